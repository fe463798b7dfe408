"""Names of `ray.data` that dualray does not have, each with the reason."""

from __future__ import annotations

from typing import Final

_OTHERS = "call the client library of the system in map_batches(), or through from_arrow() and to_pandas()"
_FORMAT = "read the files with read_binary_files(), and decode them in map() or flat_map()"
_FRAMES = "convert through pandas, with from_pandas() and to_pandas()"
_OWN_SOURCE = "of Ray's interface for sources and targets, dualray has Datasource, ReadTask, BlockMetadata and Datasink"
_KNOB = "dualray does not have the feature to which this name belongs"

_NAMES: Final = {
    _OTHERS: (
        *("read_bigquery", "read_clickhouse", "read_databricks_tables", "read_delta", "read_delta_sharing_tables"),
        *("read_hudi", "read_iceberg", "read_kafka", "read_lance", "read_mongo", "read_snowflake"),
        *("read_unity_catalog", "Catalog", "CatalogAccessMode", "ClickHouseTableSettings", "DatabricksUnityCatalog"),
        *("KafkaAuthConfig", "SinkMode", "ReaderFormat", "ResolvedSource"),
    ),
    _FORMAT: (
        *("read_audio", "read_avro", "read_lerobot", "read_mcap", "read_tfrecords", "read_videos"),
        *("read_webdataset", "read_zarr", "TFXReadOptions"),
    ),
    _FRAMES: ("from_daft", "from_dask", "from_mars", "from_modin", "from_spark", "from_tf"),
    _OWN_SOURCE: (*("BlockBasedFileDatasink", "RowBasedFileDatasink", "block", "datasource"),),
    _KNOB: (
        *("DatasetSummary", "list_stats_summaries", "NodeIdStr", "checkpoint"),
        *("stats", "random_access_dataset"),
    ),
    "dualray does not have Ray's preprocessors; transform rows with map_batches()": ("Preprocessor", "preprocessors"),
    "dualray has no library for language models": ("llm",),
}

REFUSED: Final = {f"ray.data.{name}": reason for reason, names in _NAMES.items() for name in names} | {
    "ray.data.aggregate.ApproximateQuantile": "use Quantile, which is exact",
    "ray.data.aggregate.ApproximateTopK": "use ValueCounter, which is exact",
    "ray.data._internal": "the module is private to Ray, and dualray has only the names that other projects import",
    "ray.data.expressions": "docs/data.md lists the functions of expressions",
}
