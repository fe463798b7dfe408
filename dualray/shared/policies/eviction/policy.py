"""The seam of eviction: what a policy is offered, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dualray.shared.model.ids import ObjectID


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


class EvictionPolicy(Protocol):
    """Chooses what leaves the store; `evictable` comes in order of last use, oldest first.

    A policy with `spills = True` has its choice written to disk. Such a policy may also have `drops(leaving) -> bool`:
    whether a chosen object is dropped instead (cost_aware.py).
    """

    def choose(self, evictable: Iterable[tuple[ObjectID, int]], bytes_needed: int) -> list[ObjectID] | None:
        """The objects to evict, or None when all of them together do not make enough room."""
