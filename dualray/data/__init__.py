"""Datasets: rows in Arrow blocks, which tasks and actors transform within a limit of memory.

    import dualray as ray

    numbers = ray.data.range(1_000_000).map_batches(lambda batch: {"square": batch["id"] ** 2})
    for batch in numbers.iter_batches(batch_size=4096):
        ...

The names are those of Ray Data. The package runs on dualray's tasks, actors and objects in both modes. It needs `pip
install 'dualray[data]'`. See docs/data.md.
"""

from dualray.data import aggregate, expressions
from dualray.data.choices import FileShuffleConfig, MixStoppingCondition, RandomSeedConfig, SaveMode
from dualray.data.collate_fn import ArrowBatchCollateFn, CollateFn, NumpyBatchCollateFn, PandasBatchCollateFn
from dualray.data.compute import ActorPoolStrategy, TaskPoolStrategy
from dualray.data.context import DataContext, ExecutionOptions, ExecutionResources, set_progress_bars
from dualray.data.dataset import Dataset, MaterializedDataset
from dualray.data.files import (
    read_binary_files,
    read_csv,
    read_images,
    read_json,
    read_numpy,
    read_orc,
    read_parquet,
    read_sql,
    read_text,
)
from dualray.data.grouped import GroupedData
from dualray.data.interfaces import BlockMetadata, Datasink, Datasource, ReadTask, TaskContext, WriteResult
from dualray.data.iterator import DataIterator
from dualray.data.preprocessors import Preprocessor
from dualray.data.schema import Schema
from dualray.data.sources import (
    from_arrow,
    from_arrow_refs,
    from_blocks,
    from_huggingface,
    from_items,
    from_numpy,
    from_numpy_refs,
    from_pandas,
    from_pandas_refs,
    from_torch,
    range,  # noqa: A004 - Ray's name
    range_tensor,
    read_datasource,
)
from dualray.data.tfrecords import from_tf, read_tfrecords
from dualray.data.webdataset import read_webdataset

DatasetContext = DataContext
DatasetIterator = DataIterator

__all__ = [
    "ActorPoolStrategy",
    "ArrowBatchCollateFn",
    "BlockMetadata",
    "CollateFn",
    "DataContext",
    "DataIterator",
    "Dataset",
    "DatasetContext",
    "DatasetIterator",
    "Datasink",
    "Datasource",
    "ExecutionOptions",
    "ExecutionResources",
    "FileShuffleConfig",
    "GroupedData",
    "MaterializedDataset",
    "MixStoppingCondition",
    "NumpyBatchCollateFn",
    "PandasBatchCollateFn",
    "Preprocessor",
    "RandomSeedConfig",
    "ReadTask",
    "SaveMode",
    "Schema",
    "TaskContext",
    "TaskPoolStrategy",
    "WriteResult",
    "aggregate",
    "expressions",
    "from_arrow",
    "from_arrow_refs",
    "from_blocks",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "from_tf",
    "from_torch",
    "range",
    "range_tensor",
    "read_binary_files",
    "read_csv",
    "read_datasource",
    "read_images",
    "read_json",
    "read_numpy",
    "read_orc",
    "read_parquet",
    "read_sql",
    "read_text",
    "read_tfrecords",
    "read_webdataset",
    "set_progress_bars",
]
