"""Spilling: what LRU eviction would choose is written to disk instead, and so may be what nothing can make again. The
store evicts what it can only when its disk is full."""

from __future__ import annotations

from dualray.shared.policies.eviction.lru import LruEviction


class SpillEviction(LruEviction):
    """See the module. Offered everything that nobody pins, not only what can be made again."""

    spills = True
