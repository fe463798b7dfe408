"""Cost-aware eviction: of the objects used longest ago, those leave the store that are cheap to make again, and the
others are written to disk.

A copy that came from another node is dropped: it is there still. An object is dropped, too, when its task took at most
a `DISK_SHARE`th of the time that writing it and reading it back takes. Making an object again also takes a CPU from
other tasks, and may take its arguments; a function that is not deterministic gives another value. Everything else is
written: objects that were put, an actor's results, results that were made again once, and those not measured.
"""

from __future__ import annotations

from dualray.shared.policies.eviction.policy import Leaving
from dualray.shared.policies.eviction.spill import SpillEviction

DISK_SHARE = 10


class CostAwareEviction(SpillEviction):
    """See the module."""

    def drops(self, leaving: Leaving) -> bool:
        """Whether an object is dropped, to be fetched or made again when it is needed, instead of being written."""
        if leaving.is_copy:
            return True
        return leaving.is_remakeable and 0 < leaving.remake_ns * DISK_SHARE <= leaving.disk_ns
