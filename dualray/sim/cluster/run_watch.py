"""The watch over a run checks invariants, and ends a run that stands still or exceeds its time limit.

Its driver then gets a SimulationDeadlockError. So it does when nothing is left to happen. A run stands still when
STANDSTILL_EVENTS_MAX events have passed at one instant.
"""

from __future__ import annotations

from collections.abc import Callable

from dualray.exceptions import SimulationDeadlockError
from dualray.shared.model.ids import Address
from dualray.sim.kernel.kernel import Kernel, Scheduled
from dualray.sim.processes.runner import Process

INVARIANTS_EVERY_EVENTS = 1_000
INVARIANTS_THINGS = 500
"""That are looked at each time, machine by machine in turn: all of a small cluster, and no more of a large one."""
STANDSTILL_EVENTS_MAX = 5_000_000
"""Events at one instant of virtual time, after which the machines are taken to be in a loop: 10,000 nodes start with
about a million."""


class RunWatch:
    """Watches one run; see the module.

    stuck: makes the error, given why the run ends; it says who waits for whom.
    """

    def __init__(
        self,
        kernel: Kernel,
        processes: dict[Address, Process],
        stuck: Callable[[str], SimulationDeadlockError],
        time_limit_ns: int | None,
    ) -> None:
        self.things = INVARIANTS_THINGS
        """That are looked at each time."""
        self._kernel = kernel
        self._processes = processes
        self._stuck = stuck
        self._standstill_ns = -1
        self._standstill_since = 0
        self._unchecked: list[Process] = []
        """Whose invariants come next, the last first."""
        self._things_to_check = 0
        kernel.on_event(self._look_after, every=INVARIANTS_EVERY_EVENTS)
        self._time_limit: Scheduled | None = None
        if time_limit_ns is not None:
            self._time_limit = kernel.call_after(time_limit_ns, self._time_is_up, daemon=True)

    def deadlock(self) -> SimulationDeadlockError:
        """Nothing is left to happen, and the driver waits."""
        return self._stuck(f"No event is left at {self._now_words()}, so the program cannot continue")

    def _look_after(self, events: int) -> None:
        """Every so many events: machines hold their invariants, and time passes."""
        self._check_some()
        if self._kernel.now_ns != self._standstill_ns:
            self._standstill_ns, self._standstill_since = self._kernel.now_ns, events
        elif events - self._standstill_since >= STANDSTILL_EVENTS_MAX:
            raise self._stuck(
                f"the simulation handled {STANDSTILL_EVENTS_MAX:,} events, but the virtual time stayed at "
                f"{self._now_words()}: the program is in an endless loop"
            )

    def lift_time_limit(self) -> None:
        """The program has ended: its time limit is no concern of what comes after it."""
        if self._time_limit is not None:
            self._time_limit.cancel()

    def _time_is_up(self) -> None:
        raise self._stuck(f"The scenario reached its time limit at {self._now_words()}")

    def _now_words(self) -> str:
        return f"{self._kernel.now_ns / 1e9:.6f} s of virtual time"

    def _check_some(self) -> None:
        """A sweep over the machines whose turn it is: all of a small cluster, or of a large one as many as have so
        many things together. One that has more than that is paid off over the next times."""
        self._things_to_check += self.things
        for _ in range(len(self._processes)):
            if self._things_to_check <= 0:
                return
            if not self._unchecked:
                self._unchecked = list(reversed(self._processes.values()))
            process = self._unchecked.pop()
            if process.is_alive:
                self._things_to_check -= process.things()
                process.check_invariants()
        self._things_to_check = min(self._things_to_check, 0)
