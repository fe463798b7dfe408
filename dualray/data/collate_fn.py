"""Classes of functions that make batches for `iter_torch_batches`; each says which form of batch it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["ArrowBatchCollateFn", "CollateFn", "NumpyBatchCollateFn", "PandasBatchCollateFn"]


class CollateFn(ABC):
    """A function that makes a batch; base of the three forms."""

    batch_format = "numpy"

    @abstractmethod
    def __call__(self, batch: Any) -> Any:
        """Make a batch of rows."""


class ArrowBatchCollateFn(CollateFn):
    """It takes Arrow tables."""

    batch_format = "pyarrow"


class NumpyBatchCollateFn(CollateFn):
    """It takes dicts of numpy arrays."""


class PandasBatchCollateFn(CollateFn):
    """It takes pandas DataFrames."""

    batch_format = "pandas"
