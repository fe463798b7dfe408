"""Pauses machines, single processes or the tables' server, and keeps what waits for them.

Whatever would happen in a place that stands still is kept, with its arguments, and happens in the same order when the
place goes on. A process stands still with its machine, or by itself; what waits for both waits for the machine first.
User code that is in the midst of something is held as a fiber.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from dualray.shared.model.ids import Address
from dualray.sim.kernel.fibers import Fiber, FiberScheduler

TABLES: Final = "redis"
"""The server of the control plane's tables, which may stop alone, without the head."""

Waiting = deque[tuple[Callable[..., object], tuple[Any, ...]]]
"""Calls that are postponed: functions with their arguments."""


class Placed:
    """A process with an address on a machine. It is paused alone, or with the machine."""

    __slots__ = ("address", "node")

    def __init__(self, address: Address, node: str) -> None:
        self.address = address
        self.node = node


class Pauses:
    """See the module."""

    def __init__(self, fibers: FiberScheduler) -> None:
        self.places: dict[str, Waiting] = {}
        """The postponed calls of each paused machine (by name), process (by address), and of TABLES."""
        self._fibers = fibers
        self._tables_stopped = 0

    def holds(self, process: Placed) -> bool:
        """Whether the process or its machine is paused."""
        return bool(self.places) and (process.node in self.places or process.address in self.places)

    def is_paused(self, node: str) -> bool:
        """Whether the machine is paused."""
        return bool(self.places) and node in self.places

    def when_it_runs(self, process: Placed, fn: Callable[..., object], *args: Any) -> None:
        """Call a function now, or as soon as neither the process nor its machine is paused."""
        if self.places and process.node not in self.places and process.address in self.places:
            self.places[process.address].append((fn, args))
        else:
            self.when_running(process.node, fn, *args)

    def when_running(self, place: str, fn: Callable[..., object], *args: Any) -> None:
        """Call a function now, or when the machine resumes."""
        if self.places and place in self.places:
            self.places[place].append((fn, args))
        else:
            fn(*args)

    def pause(self, place: str) -> None:
        """Pause a machine or a process."""
        self.places.setdefault(place, deque())
        self._fibers.hold = self._hold

    def lift(self, place: str) -> Waiting:
        """Resume a machine or process. Return its postponed calls, for `perform`."""
        waiting = self.places.pop(place)
        if not self.places:
            self._fibers.hold = None
        return waiting

    def go_on(self, address: Address) -> None:
        """Resume a process, or release the calls of one that has ended."""
        if self.places and address in self.places:
            perform(self.lift(address))

    # ---- The tables --------------------------------------------------------------------------------------------

    @property
    def are_tables_away(self) -> bool:
        """Whether the server of the control plane's tables is stopped."""
        return bool(self.places) and TABLES in self.places

    def stop_tables(self) -> None:
        """Stop the server of the control plane's tables, until as many calls of `restart_tables`."""
        self._tables_stopped += 1
        self.places.setdefault(TABLES, deque())

    def restart_tables(self) -> None:
        """Undo one stop. After the last one, the server has its tables again and answers waiting calls."""
        self._tables_stopped -= 1
        if not self._tables_stopped:
            perform(self.lift(TABLES))

    def when_tables_answer(self, fn: Callable[[], object]) -> None:
        """Call a function now, or when the server of the tables runs again."""
        self.when_running(TABLES, fn)

    # ---- Fibers ------------------------------------------------------------------------------------------------

    def _hold(self, fiber: Fiber) -> bool:
        process: Any = fiber.owner
        if not self.holds(process):
            return False
        self.when_it_runs(process, self._release_fiber, fiber)
        return True

    def _release_fiber(self, fiber: Fiber) -> None:
        """Release a held fiber, unless another pause holds it."""
        if not self.places or not self._hold(fiber):
            self._fibers.release(fiber)


def perform(waiting: Waiting) -> None:
    """Make postponed calls, in order."""
    for fn, args in waiting:
        fn(*args)
