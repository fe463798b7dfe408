"""Names of `ray.data` that dualray does not have, each with the reason."""

from __future__ import annotations

from typing import Final

_SYSTEMS: Final = {
    "read_bigquery": "BigQuery",
    "read_clickhouse": "ClickHouse",
    "read_databricks_tables": "Databricks",
    "read_delta": "Delta Lake",
    "read_delta_sharing_tables": "Delta Sharing",
    "read_hudi": "Apache Hudi",
    "read_iceberg": "Apache Iceberg",
    "read_kafka": "Kafka",
    "read_lance": "Lance",
    "read_mongo": "MongoDB",
    "read_snowflake": "Snowflake",
    "read_unity_catalog": "Unity Catalog",
    "ClickHouseTableSettings": "ClickHouse",
    "DatabricksUnityCatalog": "Unity Catalog",
    "KafkaAuthConfig": "Kafka",
}
_FORMATS: Final = {
    "read_audio": "audio files",
    "read_avro": "Avro files",
    "read_lerobot": "LeRobot datasets",
    "read_mcap": "MCAP files",
    "read_videos": "video files",
    "read_zarr": "Zarr files",
}
_LIBRARIES: Final = {
    "from_daft": "Daft",
    "from_dask": "Dask",
    "from_mars": "Mars",
    "from_modin": "Modin",
    "from_spark": "Spark",
}
_OF_CONNECTORS: Final = ("Catalog", "CatalogAccessMode", "SinkMode", "ReaderFormat", "ResolvedSource")
_OF_SOURCES: Final = ("BlockBasedFileDatasink", "RowBasedFileDatasink", "block", "datasource")
_OF_FEATURES: Final = (
    *("DatasetSummary", "list_stats_summaries", "NodeIdStr", "checkpoint"),
    *("stats", "random_access_dataset"),
)
_INSTEAD: Final = "in map_batches(), or convert data with from_arrow() and to_pandas()"
_OWN_SOURCE: Final = (
    "for data sources and sinks that you write, dualray.data has only the classes Datasource, ReadTask, BlockMetadata "
    "and Datasink"
)

_NAMES: Final = {
    **{
        name: f"dualray.data has no connector to {system}; call the client library of {system} {_INSTEAD}"
        for name, system in _SYSTEMS.items()
    },
    **{
        name: f"dualray.data has none of the connectors that use {name} in Ray; call the client library of the other "
        f"system {_INSTEAD}"
        for name in _OF_CONNECTORS
    },
    **{
        name: f"dualray.data does not read {files}; use read_binary_files(), and decode the files in map() or "
        "flat_map()"
        for name, files in _FORMATS.items()
    },
    **{
        name: f"dualray.data does not convert data of the library {library}; use from_pandas() and to_pandas()"
        for name, library in _LIBRARIES.items()
    },
    **dict.fromkeys(_OF_SOURCES, _OWN_SOURCE),
    **{name: f"dualray.data does not have the feature of Ray Data to which {name} belongs" for name in _OF_FEATURES},
    "TFXReadOptions": "dualray.data reads TFRecord files without TFX; use read_tfrecords()",
    "llm": "dualray has no library for language models",
}

REFUSED: Final = {f"ray.data.{name}": reason for name, reason in _NAMES.items()} | {
    "ray.data.aggregate.ApproximateQuantile": "instead of ApproximateQuantile, use Quantile, which computes an exact "
    "quantile",
    "ray.data.aggregate.ApproximateTopK": "instead of ApproximateTopK, use ValueCounter, which counts exactly",
    "ray.data._internal": "ray.data._internal is private to Ray; dualray has only its names that other projects import",
    "ray.data.expressions": "dualray has only the expressions that docs/data.md lists",
}
