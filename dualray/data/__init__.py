"""Datasets: rows in Arrow blocks, which tasks and actors transform within a limit of memory.

    import dualray as ray

    numbers = ray.data.range(1_000_000).map_batches(lambda batch: {"square": batch["id"] ** 2})
    for batch in numbers.iter_batches(batch_size=4096):
        ...

The names are those of Ray Data. The package runs on dualray's tasks, actors and objects in both modes. It needs `pip
install 'dualray[data]'`. See docs/data.md.
"""

from dualray.data.context import DataContext
from dualray.data.dataset import Dataset, MaterializedDataset
from dualray.data.grouped import GroupedData
from dualray.data.iterator import DataIterator
from dualray.data.sources import (
    from_arrow,
    from_arrow_refs,
    from_items,
    from_numpy,
    from_numpy_refs,
    from_pandas,
    from_pandas_refs,
    range,  # noqa: A004 - Ray's name
    read_csv,
    read_json,
    read_parquet,
)

__all__ = [
    "DataContext",
    "DataIterator",
    "Dataset",
    "GroupedData",
    "MaterializedDataset",
    "from_arrow",
    "from_arrow_refs",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "range",
    "read_csv",
    "read_json",
    "read_parquet",
]
