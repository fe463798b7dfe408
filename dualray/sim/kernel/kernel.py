"""The event kernel of sim mode: SimPy's, with integer nanoseconds and a cheap event.

Theory of operation
-------------------
`Kernel` is a `simpy.Environment`. Everything of the simulation happens inside an event; events happen in
the total order (time, priority, sequence), where the sequence number is drawn when the event is scheduled.
Two runs that schedule the same events in the same order are therefore equal, whatever the hash seed. Time
is an `int` of nanoseconds since the start of the simulation; a float delay is a bug and is refused, because
rounding would make the order of events depend on how a sum was written.

The queue, the clock and the loop are a `Calendar` (calendar.py). The events of the simulator's own are `Scheduled`:
a function and its arguments, put into the queue directly. No SimPy process runs per message and no closure is made.
`Scheduled` is a real `simpy.Event`, so a SimPy process can wait for one, and ordinary SimPy events (timeouts,
processes, conditions) share the queue, the clock and the order.

What is never cancelled and never waited for (`post`: messages, the ends of modelled tasks) is no event at all, only an
entry of the queue: a function and its argument. A cancelled event stays in the queue for a while, so that a timer armed
and cancelled per message costs little; the calendar sees to it that they do not pile up.

Daemon events (heartbeats, periodic reports) do not keep a simulation alive: `run_until` performs them while
something else is still to happen and answers False when only daemon events are left. That is how a deadlock
is found.

Guarantees: `now_ns` never goes back; `events_performed` counts every event performed, once; hooks run after
each N-th event, between events, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import simpy
from simpy.core import EmptySchedule, Infinity, SimTime
from simpy.events import NORMAL, URGENT, EventPriority

from dualray.sim.kernel.calendar import Calendar

__all__ = ["LATE", "NORMAL", "URGENT", "Kernel", "Scheduled"]

LATE: Final = EventPriority(2)
"""Priority of what must come after every other event of the instant (one recomputation for many changes)."""


class Scheduled(simpy.Event):
    """A call at a time: `fn(*args)` is performed when its turn comes, unless `cancel()` came first.

    Made by `Kernel.call_after`. Everything lives in slots; the instance dictionary of the base class stays
    empty.
    """

    __slots__ = ("_args", "_fn", "_performed", "_waiters", "daemon", "env")

    _ok = True
    _value: Any = None

    env: Kernel
    daemon: bool

    def __init__(self, kernel: Kernel, fn: Callable[..., object], args: tuple[Any, ...], daemon: bool) -> None:
        # simpy.Event.__init__ is not called: it would make the list of callbacks that few messages need.
        self.env = kernel
        self.daemon = daemon
        self._fn: Callable[..., object] | None = fn
        self._args = args
        self._waiters: list[Callable[[simpy.Event], None]] | None = None
        self._performed = False

    @property
    def callbacks(self) -> Any:
        """SimPy's list of callbacks (None once performed), made when a SimPy process first waits for it."""
        if self._performed:
            return None
        if self._waiters is None:
            self._waiters = []
        return self._waiters

    @callbacks.setter
    def callbacks(self, value: Any) -> None:
        raise AttributeError("only the kernel can change the callbacks of a Scheduled event")

    @property
    def pending(self) -> bool:
        """True while the call is still to be performed: neither performed nor cancelled."""
        return self._fn is not None

    def cancel(self) -> bool:
        """Forget the call. Returns False, and does nothing, when it was performed or cancelled before."""
        if self._fn is None:
            return False
        assert not self._waiters, "a Scheduled event that a SimPy process waits for cannot be cancelled"
        self._fn = None
        self._args = ()
        self.env.calendar.forget(not self.daemon)
        return True

    def __repr__(self) -> str:
        state = "performed" if self._performed else "cancelled" if self._fn is None else f"calls {self._fn!r}"
        return f"<Scheduled {state}{' daemon' if self.daemon else ''}>"


class Kernel(simpy.Environment):
    """A SimPy environment on integer nanoseconds; see the module's theory of operation."""

    addresses_shown = 0
    """How many locks of user code have been printed: the next one shows another address."""

    def __init__(self) -> None:
        self.calendar: Final = Calendar(self._perform, _is_cancelled)
        super().__init__(initial_time=0)
        self.post = self.calendar.post
        self.run_until_any = self.calendar.run_until_any

    # -- time ----------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """Virtual time in nanoseconds since the start of the simulation."""
        return self.calendar.now_ns

    @property
    def _now(self) -> int:
        """SimPy's name for it; SimPy allows floats, schedule() lets only ints in."""
        return self.calendar.now_ns

    @_now.setter
    def _now(self, now_ns: int) -> None:
        self.calendar.now_ns = now_ns

    @property
    def events_performed(self) -> int:
        """Events that were performed so far."""
        return self.calendar.events_performed

    @property
    def events_pending(self) -> int:
        """Events that are still to be performed and keep the simulation alive (not daemon, not cancelled)."""
        return self.calendar.live

    # -- scheduling ----------------------------------------------------------------------------------------

    def call_after(
        self,
        delay_ns: int,
        fn: Callable[..., object],
        *args: Any,
        daemon: bool = False,
        priority: EventPriority = NORMAL,
    ) -> Scheduled:
        """Perform `fn(*args)` in `delay_ns` nanoseconds. A daemon event does not keep a run going."""
        event = Scheduled(self, fn, args, daemon)
        self.schedule(event, priority, delay_ns)
        return event

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        """SimPy's entry to the queue, taken by every event: Scheduled, timeouts, processes, `succeed()`."""
        assert type(delay) is int, f"a delay is an int of nanoseconds, not {delay!r}"
        assert delay >= 0, f"a delay of {delay} ns would end in the past"
        calendar = self.calendar
        calendar.enter(calendar.now_ns + delay, priority, event, type(event) is not Scheduled or not event.daemon)

    # -- running -------------------------------------------------------------------------------------------

    def _perform(self, event: simpy.Event, at_ns: int) -> bool:
        """What the calendar calls for an event that is due."""
        calendar = self.calendar
        if type(event) is not Scheduled:
            calendar.live -= 1
            calendar.events_performed += 1
            self._queue.append((at_ns, NORMAL, 0, event))  # SimPy's own step takes it from there
            super().step()
            return True
        fn = event._fn
        if fn is None:
            return False
        calendar.now_ns = at_ns
        if not event.daemon:
            calendar.live -= 1
        calendar.events_performed += 1
        args, event._args, event._fn, event._performed = event._args, (), None, True
        fn(*args)
        if event._waiters is not None:
            for callback in event._waiters:
                callback(event)
        return True

    def peek(self) -> SimTime:
        """Time of the next event in nanoseconds; infinity when there is none (SimPy's convention)."""
        at_ns = self.calendar.next_ns()
        return Infinity if at_ns is None else at_ns

    def step(self) -> None:
        """Perform the next event. Raises simpy's `EmptySchedule` when there is none."""
        if not self.calendar.step():
            raise EmptySchedule

    def run_until(self, done: Callable[[], bool]) -> bool:
        """Perform events until `done()`, which is asked before each.

        Returns True when done, False when nothing is left to make it so (only daemon events, or none).
        What an event raises passes through; the event counts as performed and the kernel can go on.
        """
        calendar = self.calendar
        while not done():
            if calendar.live == 0:
                return False
            calendar.step()
        return True

    # -- hooks ---------------------------------------------------------------------------------------------

    def on_event(self, fn: Callable[[int], object], *, every: int) -> Callable[[], None]:
        """Call `fn(events_performed)` after each `every`-th event, counted from the start of the simulation.

        Returns a function that takes the hook out again. Hooks due at the same count run in the order in
        which they were added.
        """
        assert every > 0
        hook = self.calendar.add_hook(fn, every)
        return lambda: self.calendar.remove_hook(hook)


def _is_cancelled(event: Any) -> bool:
    return type(event) is Scheduled and event._fn is None
