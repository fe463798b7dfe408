"""Names of `ray.data` that dualray does not have, each with the reason."""

from __future__ import annotations

from typing import Final

_OTHERS = (
    "dualray.data has no connector to this system; call the system's own client in map_batches(), or convert data with "
    "from_arrow() and to_pandas()"
)
_FORMAT = "dualray.data does not read this format; use read_binary_files(), and decode the files in map() or flat_map()"
_FRAMES = "dualray.data does not convert data of this library; use from_pandas() and to_pandas()"
_OWN_SOURCE = "for your own data sources and sinks, dualray has only Datasource, ReadTask, BlockMetadata and Datasink"
_KNOB = "dualray.data does not have the feature of Ray Data to which this name belongs"

_NAMES: Final = {
    _OTHERS: (
        *("read_bigquery", "read_clickhouse", "read_databricks_tables", "read_delta", "read_delta_sharing_tables"),
        *("read_hudi", "read_iceberg", "read_kafka", "read_lance", "read_mongo", "read_snowflake"),
        *("read_unity_catalog", "Catalog", "CatalogAccessMode", "ClickHouseTableSettings", "DatabricksUnityCatalog"),
        *("KafkaAuthConfig", "SinkMode", "ReaderFormat", "ResolvedSource"),
    ),
    _FORMAT: (
        *("read_audio", "read_avro", "read_lerobot", "read_mcap", "read_videos"),
        *("read_zarr", "TFXReadOptions"),
    ),
    _FRAMES: ("from_daft", "from_dask", "from_mars", "from_modin", "from_spark"),
    _OWN_SOURCE: (*("BlockBasedFileDatasink", "RowBasedFileDatasink", "block", "datasource"),),
    _KNOB: (
        *("DatasetSummary", "list_stats_summaries", "NodeIdStr", "checkpoint"),
        *("stats", "random_access_dataset"),
    ),
    "dualray has no library for language models": ("llm",),
}

REFUSED: Final = {f"ray.data.{name}": reason for reason, names in _NAMES.items() for name in names} | {
    "ray.data.aggregate.ApproximateQuantile": "use Quantile, which computes an exact quantile",
    "ray.data.aggregate.ApproximateTopK": "use ValueCounter, which counts exactly",
    "ray.data._internal": "this module is private to Ray; dualray has only the names that other projects import",
    "ray.data.expressions": "docs/data.md lists the expressions that dualray has",
}
