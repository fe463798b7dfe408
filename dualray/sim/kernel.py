"""The event kernel of sim mode: SimPy's, with integer nanoseconds and a cheap event.

Theory of operation
-------------------
`Kernel` is a `simpy.Environment`. Everything of the simulation happens inside an event; events happen in
the total order (time, priority, sequence), where the sequence number is drawn when the event is scheduled.
Two runs that schedule the same events in the same order are therefore equal, whatever the hash seed. Time
is an `int` of nanoseconds since the start of the simulation; a float delay is a bug and is refused, because
rounding would make the order of events depend on how a sum was written.

The events of the simulator's own are `Scheduled`: a function and its arguments, put into the queue
directly. No SimPy process runs per message and no closure is made. `Scheduled` is a real `simpy.Event`, so
a SimPy process can wait for one, and ordinary SimPy events (timeouts, processes, conditions) share the
queue, the clock and the order.

What is never cancelled and never waited for (`post`: messages, the ends of modelled tasks) is no event at all, only an
entry of the queue: a function and its argument.

The queue is a calendar: a heap for the current "day" (about 1 ms) and unsorted lists for later days, sorted
when their day comes. The order is that of one heap; what is far away just costs an append.

A cancelled event stays in the queue as a tombstone, does not move the clock when it comes up and is not
counted; tombstones are swept when they make up half of the queue, so that a timer armed and cancelled per
message cannot fill the memory.

Daemon events (heartbeats, periodic reports) do not keep a simulation alive: `run_until` performs them while
something else is still to happen and answers False when only daemon events are left. That is how a deadlock
is found.

Guarantees: `now_ns` never goes back; `events_performed` counts every event performed, once; hooks run after
each N-th event, between events, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final

import simpy
from simpy.core import EmptySchedule, Infinity, SimTime
from simpy.events import NORMAL, URGENT, EventPriority

__all__ = ["LATE", "NORMAL", "URGENT", "Kernel", "Scheduled"]

LATE: Final = EventPriority(2)
"""Priority of what must come after every other event of the instant (one recomputation for many changes)."""

DAY_BITS: Final = 20
"""A day of the calendar is 2**20 ns, about 1 ms: the reach of most messages, shorter than most tasks."""

TOMBSTONES_MIN: Final = 1024
"""Cancelled events that may stay in the queue before a sweep is considered."""

_Entry = tuple[Any, ...]
"""Time, priority and sequence, which order it; then an event, or, of what was posted, a function and its argument."""

_POSTED: Final = 5
"""Length of the entry of what was posted."""


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
        raise AttributeError("the callbacks of a Scheduled event belong to its kernel")

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
        self.env._forget(self)
        return True

    def __repr__(self) -> str:
        state = "performed" if self._performed else "cancelled" if self._fn is None else f"calls {self._fn!r}"
        return f"<Scheduled {state}{' daemon' if self.daemon else ''}>"


@dataclass(slots=True)
class _Hook:
    """Call `fn(events_performed)` after every `every`-th event, next when the count reaches `due`."""

    fn: Callable[[int], object]
    every: int
    due: int


class Kernel(simpy.Environment):
    """A SimPy environment on integer nanoseconds; see the module's theory of operation."""

    _now: int  # SimPy allows floats; schedule() lets only ints in

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.events_performed: int = 0
        self._queue: list[_Entry] = []  # today's heap; the name is SimPy's, whose own step pops from it
        self._today_end_ns: int = 1 << DAY_BITS
        self._days: dict[int, list[_Entry]] = {}
        self._day_numbers: list[int] = []  # heap of the keys of _days
        self._live: int = 0  # events in the queue that are neither daemon nor cancelled
        self._tombstones: int = 0
        self._sweep_at: int = TOMBSTONES_MIN
        self._hooks: list[_Hook] = []
        self._hook_due: int = -1  # the earliest due of all hooks; -1: there is none

    # -- time ----------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """Virtual time in nanoseconds since the start of the simulation."""
        return self._now

    @property
    def events_pending(self) -> int:
        """Events that are still to be performed and keep the simulation alive (not daemon, not cancelled)."""
        return self._live

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

    def post(self, at_ns: int, fn: Callable[[Any], object], argument: Any) -> None:
        """Perform `fn(argument)` at a time, which is not in the past: for what is never cancelled, and nobody waits
        for."""
        assert at_ns >= self._now, f"{at_ns} ns are in the past"
        if at_ns < self._today_end_ns:
            heappush(self._queue, (at_ns, NORMAL, next(self._eid), fn, argument))
        else:
            day = at_ns >> DAY_BITS
            entries = self._days.get(day)
            if entries is None:
                self._days[day] = [(at_ns, NORMAL, next(self._eid), fn, argument)]
                heappush(self._day_numbers, day)
            else:
                entries.append((at_ns, NORMAL, next(self._eid), fn, argument))
        self._live += 1

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        """SimPy's entry to the queue, taken by every event: Scheduled, timeouts, processes, `succeed()`."""
        assert type(delay) is int, f"a delay is an int of nanoseconds, not {delay!r}"
        assert delay >= 0, f"a delay of {delay} ns would end in the past"
        at_ns = self._now + delay
        entry = (at_ns, priority, next(self._eid), event)
        if at_ns < self._today_end_ns:
            heappush(self._queue, entry)
        else:
            day = at_ns >> DAY_BITS
            entries = self._days.get(day)
            if entries is None:
                self._days[day] = [entry]
                heappush(self._day_numbers, day)
            else:
                entries.append(entry)
        if type(event) is not Scheduled or not event.daemon:
            self._live += 1

    def _open_next_day(self) -> bool:
        """Make the next day with events today; False when there is none. Today's queue must be empty."""
        if not self._day_numbers:
            return False
        day = heappop(self._day_numbers)
        self._queue = self._days.pop(day)
        self._queue.sort()  # a sorted list is a heap
        self._today_end_ns = (day + 1) << DAY_BITS
        return True

    def _forget(self, event: Scheduled) -> None:
        """Account for `event`, which has just been cancelled."""
        if not event.daemon:
            self._live -= 1
        self._tombstones += 1
        if self._tombstones >= self._sweep_at:
            self._sweep_tombstones()

    def _sweep_tombstones(self) -> None:
        def stays(entry: _Entry) -> bool:
            event = entry[3]
            return type(event) is not Scheduled or event._fn is not None

        self._queue[:] = filter(stays, self._queue)
        heapify(self._queue)
        entries_left = len(self._queue)
        for entries in self._days.values():
            entries[:] = filter(stays, entries)
            entries_left += len(entries)
        self._tombstones = 0
        self._sweep_at = max(TOMBSTONES_MIN, entries_left)

    # -- running -------------------------------------------------------------------------------------------

    def peek(self) -> SimTime:
        """Time of the next event in nanoseconds; infinity when there is none (SimPy's convention)."""
        while True:
            while self._queue:
                event = self._queue[0][3]
                if type(event) is not Scheduled or event._fn is not None:
                    at_ns: int = self._queue[0][0]
                    return at_ns
                heappop(self._queue)
                self._tombstones -= 1
            if not self._open_next_day():
                return Infinity

    def step(self) -> None:
        """Perform the next event. Raises simpy's `EmptySchedule` when there is none."""
        while True:
            if not self._queue:
                if not self._open_next_day():
                    raise EmptySchedule
                continue  # a day may be empty: its events were cancelled and swept
            entry = self._queue[0]
            event = entry[3]
            if len(entry) == _POSTED:
                heappop(self._queue)
                self._now = entry[0]
                self._live -= 1
                self.events_performed += 1
                event(entry[4])
            elif type(event) is Scheduled:
                heappop(self._queue)
                fn = event._fn
                if fn is None:
                    self._tombstones -= 1
                    continue
                self._now = entry[0]
                if not event.daemon:
                    self._live -= 1
                self.events_performed += 1
                args = event._args
                event._fn = None
                event._args = ()
                event._performed = True
                fn(*args)
                if event._waiters is not None:
                    for callback in event._waiters:
                        callback(event)
            else:
                self._live -= 1
                self.events_performed += 1
                super().step()
            if self.events_performed == self._hook_due:
                self._call_hooks()
            return

    def run_until(self, done: Callable[[], bool]) -> bool:
        """Perform events until `done()`, which is asked before each.

        Returns True when done, False when nothing is left to make it so (only daemon events, or none).
        What an event raises passes through; the event counts as performed and the kernel can go on.
        """
        while not done():
            if self._live == 0:
                return False
            self.step()
        return True

    def run_until_any(self, things: Sized) -> bool:
        """As `run_until`, until there is something in `things`: the way of every event of a simulation."""
        step, pop = self.step, heappop
        while not things:
            if self._live == 0:
                return False
            # The next event, if it is one of ours and today: what step() does, which all others are left to.
            queue = self._queue
            if not queue:
                step()
                continue
            entry = queue[0]
            event = entry[3]
            if len(entry) == _POSTED:
                pop(queue)
                self._now = entry[0]
                self._live -= 1
                self.events_performed += 1
                event(entry[4])
            elif type(event) is Scheduled:
                pop(queue)
                fn = event._fn
                if fn is None:
                    self._tombstones -= 1
                    continue
                self._now = entry[0]
                if not event.daemon:
                    self._live -= 1
                self.events_performed += 1
                args, event._args, event._fn, event._performed = event._args, (), None, True
                fn(*args)
                if event._waiters is not None:
                    for callback in event._waiters:
                        callback(event)
            else:
                step()
                continue
            if self.events_performed == self._hook_due:
                self._call_hooks()
        return True

    # -- hooks ---------------------------------------------------------------------------------------------

    def on_event(self, fn: Callable[[int], object], *, every: int) -> Callable[[], None]:
        """Call `fn(events_performed)` after each `every`-th event, counted from the start of the simulation.

        Returns a function that takes the hook out again. Hooks due at the same count run in the order in
        which they were added.
        """
        assert every > 0
        hook = _Hook(fn, every, (self.events_performed // every + 1) * every)
        self._hooks.append(hook)
        self._hook_due = min(hook.due for hook in self._hooks)

        def remove() -> None:
            if hook in self._hooks:
                self._hooks.remove(hook)
                self._hook_due = min((hook.due for hook in self._hooks), default=-1)

        return remove

    def _call_hooks(self) -> None:
        count = self.events_performed
        due = [hook for hook in self._hooks if hook.due == count]
        for hook in due:
            hook.due = count + hook.every
        self._hook_due = min(hook.due for hook in self._hooks)
        for hook in due:
            hook.fn(count)
