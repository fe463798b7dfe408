"""LRU eviction with pins: the objects used longest ago leave first; pinned ones and those that nothing can make again
are never offered to the policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dualray.shared.model.ids import ObjectID


class EvictionPolicy(Protocol):
    """Chooses what leaves the store; `evictable` comes in order of last use, oldest first.

    A policy with `spills = True` has its choice written to disk. Such a policy may also have `drops(leaving) -> bool`:
    whether a chosen object is dropped instead (cost_aware.py).
    """

    def choose(self, evictable: Iterable[tuple[ObjectID, int]], bytes_needed: int) -> list[ObjectID] | None:
        """The objects to evict, or None when all of them together do not make enough room."""


class LruEviction:
    """See the module."""

    spills = False
    """Whether what is chosen goes to disk, instead of being made again when it is wanted."""

    def choose(self, evictable: Iterable[tuple[ObjectID, int]], bytes_needed: int) -> list[ObjectID] | None:
        chosen: list[ObjectID] = []
        for object_id, size_bytes in evictable:
            if bytes_needed <= 0:
                break
            chosen.append(object_id)
            bytes_needed -= size_bytes
        return chosen if bytes_needed <= 0 else None
