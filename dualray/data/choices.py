"""Values of Ray's arguments that have classes of their own: seeds, modes of writing, orders of files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


@dataclass(frozen=True, slots=True)
class RandomSeedConfig:
    """The seed of a random order.

    Attributes:
        seed: the seed. Default: see `DataContext.shuffle_seed`.
        reseed_after_execution: each execution of the dataset gives another order.
        use_timestamp_as_default: accepted as in Ray, and without effect: a second run gives the same rows.
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


class MixStoppingCondition(Enum):
    """When `Dataset.mix` ends: with the first dataset that has no more rows, or with the last one."""

    STOP_ON_SHORTEST = "stop_on_shortest"
    STOP_ON_LONGEST_DROP = "stop_on_longest_drop"
