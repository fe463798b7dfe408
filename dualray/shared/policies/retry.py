"""Retry: a task that was lost with its worker or node runs again while it has retries left; a task whose function
raised does so only when it asked for that (retry_exceptions). -1 retries means without end, as in today's Ray."""

from __future__ import annotations

from typing import Protocol

from dualray.shared.model.errors import ErrorKind

RETRY_FOREVER = -1
_SYSTEM_FAILURES = frozenset(
    {
        ErrorKind.WORKER_CRASHED,
        ErrorKind.OUT_OF_MEMORY,
        ErrorKind.NODE_DIED,
        ErrorKind.WORKER_UNREACHABLE,
        ErrorKind.ACTOR_DIED,
        ErrorKind.ACTOR_UNAVAILABLE,
    }
)


class RetryPolicy(Protocol):
    """Decides whether a failed attempt is followed by another."""

    def should_retry(self, *, kind: ErrorKind, retries_left: int, retry_exceptions: bool) -> bool: ...


class BoundedRetry:
    """See the module."""

    def should_retry(self, *, kind: ErrorKind, retries_left: int, retry_exceptions: bool) -> bool:
        if retries_left == 0:
            return False
        return kind in _SYSTEM_FAILURES or (kind is ErrorKind.APPLICATION and retry_exceptions)
