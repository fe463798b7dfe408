"""Datasets: rows in Arrow blocks, transformed by tasks and actors, in as little memory as they are given.

    import dualray as ray

    numbers = ray.data.range(1_000_000).map_batches(lambda batch: {"square": batch["id"] ** 2})
    for batch in numbers.iter_batches(batch_size=4096):
        ...

The names are those of today's Ray Data. It is a library: it stands on dualray's own tasks, actors and objects, runs in
both modes, and needs `pip install 'dualray[data]'`. See docs/data.md.
"""

from dualray.data.context import DataContext
from dualray.data.dataset import Dataset, MaterializedDataset
from dualray.data.grouped import GroupedData
from dualray.data.iterator import DataIterator
from dualray.data.sources import (
    from_arrow,
    from_items,
    from_numpy,
    from_pandas,
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
    "from_items",
    "from_numpy",
    "from_pandas",
    "range",
    "read_csv",
    "read_json",
    "read_parquet",
]
