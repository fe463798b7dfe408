"""The task that runs, in a process where several do: each thread, fiber and coroutine has its own.

It stands where `CoreWorker.execution` is a plain `Execution` elsewhere, so that processes that run one task at a time
pay nothing for it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from dualray.shared.host import Execution


class ExecutionContext:
    """Has every attribute of the Execution that the caller is in; outside of all calls, of `base`."""

    __slots__ = ("_base", "_current")

    def __init__(self, base: Execution) -> None:
        object.__setattr__(self, "_base", base)
        object.__setattr__(self, "_current", ContextVar("dualray-execution"))

    def enter(self, execution: Execution) -> None:
        """From now on the caller, and what it starts, is in `execution`."""
        self._current.set(execution)

    @property
    def here(self) -> Execution:
        """The Execution that the caller is in."""
        execution: Execution = self._current.get(self._base)
        return execution

    def __getattr__(self, name: str) -> Any:
        return getattr(self.here, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.here, name, value)
