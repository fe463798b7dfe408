"""LRU eviction with pins: the objects used longest ago leave first; pinned ones and those that nothing can make again
are never offered to the policy."""

from __future__ import annotations

from collections.abc import Iterable

from dualray.shared.model.ids import ObjectID


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
