"""The queue of the event kernel, its clock, and the loop that performs what is due.

Theory of operation. An entry is a tuple: time, priority and sequence, which order it, and then a function and its
argument (what was posted), a `Due`, which knows what happens (messages: most of what does), or a timer or an event of
the kernel's (kernel.py), which may have been cancelled meanwhile. Everything that happens passes through here, so that
this is one of the modules that the wheel compiles; it knows nothing of SimPy, and is handed what performs an event.

The queue is a calendar: a sorted list for the current "day" (about 33 us), of which the first part is over, and
unsorted lists for later days, sorted when their day comes. The order is that of one heap; what is not due today just
costs an append, and its share of a sort.

A cancelled event stays in the queue as a tombstone, does not move the clock when it comes up and is not counted;
tombstones are swept when they make up half of the queue.

Guarantees: time never goes back; each entry is performed once, in order; hooks run after each N-th event, between
events, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

_heappush: Final = heappush
_heappop: Final = heappop

DAY_BITS: Final = 15
"""A day of the calendar is 2**15 ns, about 33 us: shorter than what most messages and all tasks take."""

TOMBSTONES_MIN: Final = 1024
"""Cancelled events that may stay in the queue before a sweep is considered."""

NORMAL_PRIORITY: Final = 1
"""Of what is posted: SimPy's."""

Entry: TypeAlias = tuple[Any, ...]
"""Time, priority and sequence, which order it; then an event, or, of what was posted, a function and its argument."""

_POSTED: Final = 5
"""Length of the entry of what was posted."""

_OVER: Final[Entry] = ()
"""What stands for an entry that was performed: what it has led to may be gone."""


class Hook:
    """Call `fn(events_performed)` after every `every`-th event, next when the count reaches `due`."""

    __slots__ = ("due", "every", "fn")

    def __init__(self, fn: Callable[[int], object], every: int, due: int) -> None:
        self.fn = fn
        self.every = every
        self.due = due


class Due:
    """What happens at its time and is never cancelled; see `Calendar.post_due`."""

    __slots__ = ()

    def happen(self) -> None:
        """It is time."""
        raise NotImplementedError


class Timer:
    """A call at a time, unless it is disarmed before. Made by `Calendar.arm`."""

    __slots__ = ("argument", "fn", "is_armed")

    def __init__(self, fn: Callable[[Any], object], argument: Any) -> None:
        self.fn = fn
        self.argument = argument
        self.is_armed = True


class Calendar:
    """See the module.

    Args:
        perform: performs an event of the kernel's; it is told the time first. False: it was cancelled.
        is_cancelled: whether an event of the kernel's was.
    """

    __slots__ = (
        "_day_numbers",
        "_done",
        "_hook_due",
        "_hooks",
        "_is_cancelled",
        "_last_day",
        "_last_entries",
        "_perform",
        "_sequence",
        "_sweep_at",
        "_today_end_ns",
        "_tombstones",
        "days",
        "events_performed",
        "live",
        "now_ns",
        "today",
    )

    def __init__(self, perform: Callable[[Any, int], bool], is_cancelled: Callable[[Any], bool]) -> None:
        self.now_ns = 0
        self.events_performed = 0
        self.live = 0
        """Entries that are neither daemons nor cancelled."""
        self.today: list[Entry] = []
        """Sorted; the first `_done` are over."""
        self._done = 0
        self.days: dict[int, list[Entry]] = {}
        self._perform = perform
        self._is_cancelled = is_cancelled
        self._sequence = 0
        self._today_end_ns = 1 << DAY_BITS
        self._day_numbers: list[int] = []
        """A heap of the keys of `days`."""
        self._last_day = -1
        self._last_entries: list[Entry] = []
        """Of the day to come that was entered last: what happens at a time often leads to what happens at another."""
        self._tombstones = 0
        self._sweep_at: int = TOMBSTONES_MIN
        self._hooks: list[Hook] = []
        self._hook_due = -1
        """The earliest of all hooks; -1: there is none."""

    # ---- Entries ---------------------------------------------------------------------------------------------

    def post(self, at_ns: int, fn: Callable[[Any], object], argument: Any) -> None:
        """Perform `fn(argument)` at a time, which is not in the past: for what is never cancelled, and nobody waits
        for."""
        assert at_ns >= self.now_ns, f"{at_ns} ns are in the past"
        sequence = self._sequence
        self._sequence = sequence + 1
        self.live += 1
        if at_ns < self._today_end_ns:
            self._insert(at_ns, NORMAL_PRIORITY, (at_ns, NORMAL_PRIORITY, sequence, fn, argument))
            return
        self._day_of(at_ns).append((at_ns, NORMAL_PRIORITY, sequence, fn, argument))

    def post_due(self, at_ns: int, due: Due) -> None:
        """As `post`, of what knows itself what happens: a call less where this is compiled."""
        assert at_ns >= self.now_ns, f"{at_ns} ns are in the past"
        sequence = self._sequence
        self._sequence = sequence + 1
        self.live += 1
        if at_ns < self._today_end_ns:
            self._insert(at_ns, NORMAL_PRIORITY, (at_ns, NORMAL_PRIORITY, sequence, due))
            return
        self._day_of(at_ns).append((at_ns, NORMAL_PRIORITY, sequence, due))

    def enter(self, at_ns: int, priority: int, event: object, is_live: bool) -> None:
        """Perform a `Due`, or, unless it is cancelled before, a timer or an event of the kernel's."""
        sequence = self._sequence
        self._sequence = sequence + 1
        if is_live:
            self.live += 1
        entry: Entry = (at_ns, priority, sequence, event)
        if at_ns < self._today_end_ns:
            self._insert(at_ns, priority, entry)
            return
        self._day_of(at_ns).append(entry)

    def _insert(self, at_ns: int, priority: int, entry: Entry) -> None:
        """Enter what happens today: behind all that was entered before for the same time and priority."""
        today = self.today
        first, last = self._done, len(today)
        while first < last:
            middle = (first + last) // 2
            other = today[middle]
            other_ns: int = other[0]
            if other_ns > at_ns or (other_ns == at_ns and other[1] > priority):
                last = middle
            else:
                first = middle + 1
        today.insert(first, entry)

    def _day_of(self, at_ns: int) -> list[Entry]:
        """The entries of a day that has not come."""
        day = at_ns >> DAY_BITS
        if day == self._last_day:
            return self._last_entries
        entries = self.days.get(day)
        if entries is None:
            entries = self.days[day] = []
            _heappush(self._day_numbers, day)
        self._last_day, self._last_entries = day, entries
        return entries

    def _open_next_day(self) -> bool:
        """Make the next day with entries today; False when there is none. Today must be over."""
        if not self._day_numbers:
            return False
        day: int = _heappop(self._day_numbers)
        today = self.days.pop(day)
        if day == self._last_day:
            self._last_day = -1
        if len(today) > 1:
            today.sort()
        self.today, self._done = today, 0
        self._today_end_ns = (day + 1) << DAY_BITS
        return True

    def arm(self, at_ns: int, fn: Callable[[Any], object], argument: Any) -> Timer:
        """As `post`, of what may be disarmed before."""
        timer = Timer(fn, argument)
        self.enter(at_ns, NORMAL_PRIORITY, timer, True)
        return timer

    def disarm(self, timer: Timer) -> None:
        """Forget it, unless it is over."""
        if timer.is_armed:
            timer.is_armed = False
            timer.argument = None
            self.forget(True)

    def _is_gone(self, event: Any) -> bool:
        """Whether an entry's event was cancelled."""
        if isinstance(event, Due):
            return False
        return not event.is_armed if type(event) is Timer else self._is_cancelled(event)

    def forget(self, was_live: bool) -> None:
        """Account for an event that has just been cancelled."""
        if was_live:
            self.live -= 1
        self._tombstones += 1
        if self._tombstones >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        left = 0
        del self.today[: self._done]
        self._done = 0
        for entries in (self.today, *self.days.values()):
            entries[:] = [entry for entry in entries if len(entry) == _POSTED or not self._is_gone(entry[3])]
            left += len(entries)
        self._tombstones = 0
        self._sweep_at = max(TOMBSTONES_MIN, left)

    # ---- What is due -----------------------------------------------------------------------------------------

    def next_ns(self) -> int | None:
        """When the next event is due; None: there is none."""
        while True:
            while self._done < len(self.today):
                entry = self.today[self._done]
                if len(entry) == _POSTED or not self._is_gone(entry[3]):
                    at_ns: int = entry[0]
                    return at_ns
                self._done += 1
                self._tombstones -= 1
            if not self._open_next_day():
                return None

    def pass_to(self, at_ns: int) -> bool:
        """Perform a call at a time that has nothing to do, without entering it: as if it had been posted now. False,
        and nothing has happened: something else comes first, or a hook is due."""
        if self.events_performed + 1 == self._hook_due:
            return False
        next_ns = self.next_ns()
        if next_ns is not None and next_ns <= at_ns:
            return False
        self.now_ns = at_ns
        self.events_performed += 1
        return True

    def step(self) -> bool:
        """Perform the next event; False: there is none."""
        before = self.events_performed
        nothing: tuple[()] = ()
        while self.events_performed == before:
            if self._done >= len(self.today) and not self._open_next_day():
                return False
            self._perform_today(nothing, before + 1)
        return True

    def run_until_any(self, things: Sized) -> bool:
        """Perform events until there is something in `things`; False: nothing is left but daemons, or nothing."""
        while not things:
            if self.live == 0 or (self._done >= len(self.today) and not self._open_next_day()):
                return False
            self._perform_today(things, -1)
        return True

    def _perform_today(self, things: Sized, until: int) -> None:
        """Perform what is left of today, as long as there is nothing in `things`, and only daemons are left neither;
        or until so many events were performed in all."""
        while self._done < len(self.today):
            today, done = self.today, self._done
            entry = today[done]
            today[done] = _OVER
            self._done = done + 1
            if len(entry) == _POSTED:
                self.now_ns = entry[0]
                self.live -= 1
                self.events_performed += 1
                entry[3](entry[4])
            elif isinstance(entry[3], Due):
                due: Due = entry[3]
                self.now_ns = entry[0]
                self.live -= 1
                self.events_performed += 1
                due.happen()
            elif type(entry[3]) is Timer:
                timer: Timer = entry[3]
                if not timer.is_armed:
                    self._tombstones -= 1
                    continue
                timer.is_armed = False
                self.now_ns = entry[0]
                self.live -= 1
                self.events_performed += 1
                timer.fn(timer.argument)
            elif not self._perform(entry[3], entry[0]):
                self._tombstones -= 1
                continue
            if self.events_performed == self._hook_due:
                self._call_hooks()
            if self.events_performed == until or things or (self.live == 0 and until < 0):
                return

    # ---- Hooks -----------------------------------------------------------------------------------------------

    def add_hook(self, fn: Callable[[int], object], every: int) -> Hook:
        """Call `fn(events_performed)` after each `every`-th event, counted from the start."""
        hook = Hook(fn, every, (self.events_performed // every + 1) * every)
        self._hooks.append(hook)
        self._hook_due = min([each.due for each in self._hooks])
        return hook

    def remove_hook(self, hook: Hook) -> None:
        """Call it no more."""
        if hook in self._hooks:
            self._hooks.remove(hook)
            self._hook_due = min([each.due for each in self._hooks], default=-1)

    def _call_hooks(self) -> None:
        count = self.events_performed
        due = [hook for hook in self._hooks if hook.due == count]
        for hook in due:
            hook.due = count + hook.every
        self._hook_due = min([hook.due for hook in self._hooks])
        for hook in due:
            hook.fn(count)
