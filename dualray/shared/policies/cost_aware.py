"""Cost-aware eviction: of the objects used longest ago, those leave the store that are cheap to make again, and the
others are written to disk.

A copy that came from another node is dropped: it is there still. An object is dropped, too, when its task took at most
a `DISK_SHARE`th of the time that writing it and reading it back takes. Making an object again also takes a CPU from
other tasks, and may take its arguments; a function that is not deterministic gives another value. Everything else is
written: objects that were put, an actor's results, results that were made again once, and those not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from dualray.shared.model.ids import ObjectID
from dualray.shared.policies.spill import SpillEviction

DISK_SHARE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """An object that is about to leave a full store.

    Attributes:
        size_bytes: what it takes of the store.
        is_copy: it came from another node, and this node is not the one to keep it.
        is_remakeable: its task may run again for it.
        remake_ns: its task ran for so long; 0: not measured.
        disk_ns: to write it to this node's disk and to read it back takes about as long, as others took lately.
    """

    object_id: ObjectID
    size_bytes: int
    is_copy: bool
    is_remakeable: bool
    remake_ns: int
    disk_ns: int


class CostAwareEviction(SpillEviction):
    """See the module."""

    def drops(self, leaving: Leaving) -> bool:
        """Whether an object is dropped, to be fetched or made again when it is needed, instead of being written."""
        if leaving.is_copy:
            return True
        return leaving.is_remakeable and 0 < leaving.remake_ns * DISK_SHARE <= leaving.disk_ns
