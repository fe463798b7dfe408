"""Values of Ray's arguments that have classes of their own: seeds, modes of writing, orders of files, types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RandomSeedConfig:
    """The seed of a random order.

    Attributes:
        seed: the seed. Default: the context's `shuffle_seed`.
        reseed_after_execution, use_timestamp_as_default: accepted as in Ray, and without effect: a second run gives the
            same rows.
    """

    seed: int | None = None
    reseed_after_execution: bool = True
    use_timestamp_as_default: bool = False


@dataclass(frozen=True, slots=True)
class FileShuffleConfig:
    """A random order of the files that are read; for `shuffle=` of the functions that read files.

    Attributes:
        seed: the seed. Default: the context's `shuffle_seed`.
        reseed_after_execution: accepted as in Ray, and without effect.
    """

    seed: int | None = None
    reseed_after_execution: bool = True


class SaveMode(StrEnum):
    """What a method that writes files does with a directory that exists."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    IGNORE = "ignore"
    ERROR = "error"
    CREATE = "create"


class ShuffleStrategy(StrEnum):
    """Ray's ways to shuffle. dualray has one way, and accepts these names."""

    HASH_SHUFFLE = "hash_shuffle"
    SORT_SHUFFLE_PULL_BASED = "sort_shuffle_pull_based"
    SORT_SHUFFLE_PUSH_BASED = "sort_shuffle_push_based"


class _Types(type):
    def __getattr__(cls, name: str) -> Any:
        make = None if name.startswith("_") else getattr(pa, name, None)
        if make is None:
            raise AttributeError(f"DataType has no type {name!r}; it has the types of pyarrow")
        return lambda *args, **kwargs: DataType(make(*args, **kwargs))


@dataclass(frozen=True)
class DataType(metaclass=_Types):
    """A type of values: `DataType.int64()` and the other types of pyarrow."""

    arrow_type: Any

    @classmethod
    def from_arrow(cls, arrow_type: pa.DataType) -> DataType:
        """Return the type of an Arrow type."""
        return cls(arrow_type)

    @classmethod
    def from_numpy(cls, dtype: Any) -> DataType:
        """Return the type of a numpy type."""
        return cls(pa.from_numpy_dtype(dtype))

    def to_arrow_dtype(self) -> Any:
        """Return the Arrow type."""
        return self.arrow_type
