"""Which worker ends when a node runs out of memory: tasks before actors, and the newest first.

A task can be run again by its owner; an actor's state is gone for good. The newest has done the least work, and the one
that was there before it had enough memory until it came. (Today's Ray kills by the same order: newest retriable work
first.) Workers without a lease hold nothing that a task needs, and are ended before anything else if they are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dualray.shared.model.ids import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUser:
    """A worker of a node that is out of memory.

    Attributes:
        size_bytes: what it uses of memory by itself, without the object store.
        is_idle: it has no lease.
        is_actor: it holds an actor.
    """

    worker: Address
    size_bytes: int
    is_idle: bool = False
    is_actor: bool = False


class MemoryPolicy(Protocol):
    """Chooses the worker that ends; `users` come in the order in which their leases were granted."""

    def choose(self, users: Sequence[MemoryUser], bytes_over: int) -> MemoryUser | None:
        """The worker that ends, or None: `bytes_over` is how much memory is used beyond the limit."""


class NewestTaskFirst:
    """See the module."""

    def choose(self, users: Sequence[MemoryUser], bytes_over: int) -> MemoryUser | None:
        idle = [user for user in users if user.is_idle and user.size_bytes >= bytes_over]
        tasks = [user for user in users if not user.is_idle and not user.is_actor]
        actors = [user for user in users if user.is_actor]
        for choice in (idle, tasks, actors):
            if choice:
                return choice[-1]
        return None
