"""`init(log_to_driver=False)`: what virtual workers print is not shown.

A worker has `sys.stdout` and `sys.stderr` of its own while it runs, in which everything is lost; what it puts in their
place stays its own. Its modules' handlers that write to the driver's streams still do.
"""

from __future__ import annotations

import io
import sys
from typing import Any, Final

from dualray.sim.kernel.fibers import Fiber
from dualray.sim.processes.entering import enter_process, leave_process
from dualray.sim.processes.worker import UserProcess

__all__ = ["UnheardWorkers"]


class _Nowhere(io.RawIOBase):
    """Takes everything and keeps nothing."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


class UnheardWorkers:
    """The calls that a scheduler makes instead of `enter_process` and `leave_process`."""

    def __init__(self) -> None:
        nowhere: Final = io.TextIOWrapper(io.BufferedWriter(_Nowhere()), encoding="utf-8", write_through=True)
        self._nowhere = (nowhere, nowhere)
        self._outer: tuple[Any, Any] | None = None
        self._own: dict[UserProcess, tuple[Any, Any]] = {}
        """What workers have put in the place of their streams."""

    def enter(self, fiber: Fiber) -> None:
        """User code runs."""
        owner = fiber.owner
        assert isinstance(owner, UserProcess)
        if not owner.is_driver:
            self._outer = (sys.stdout, sys.stderr)
            sys.stdout, sys.stderr = self._own.get(owner, self._nowhere)
        enter_process(fiber)

    def leave(self, fiber: Fiber) -> None:
        """The kernel runs."""
        leave_process(fiber)
        owner = fiber.owner
        assert isinstance(owner, UserProcess)
        if owner.is_driver or self._outer is None:
            return
        streams = (sys.stdout, sys.stderr)
        if streams != self._nowhere:
            self._own[owner] = streams
        else:
            self._own.pop(owner, None)
        sys.stdout, sys.stderr = self._outer
        self._outer = None
