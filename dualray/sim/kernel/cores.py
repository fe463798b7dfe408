"""The cores of one virtual machine, shared by what computes on it: processor sharing.

Everything that computes has a weight, the cores that it would use alone. While the weights add up to no more than
there are cores, all go on at full speed; beyond that each gets its share. `slowdown` says what company costs even then
(memory bandwidth, caches, clock speed): with a total weight of w, work takes `1 + slowdown * (w - 1)` times as long.
A fault may change the speed of all at any time; at 0 the machine stands still. So it may the pace of what one process
computes: that is then as if it were more work, or, at 0, no work until it goes on.

All work goes on at one rate, so that one number, how far it has come, tells who ends next: adding and ending take
O(log n), and a machine on which nobody waits for a core has one event for each piece of work.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil
from typing import Any

from dualray.sim.kernel.calendar import Calendar, Timer

_IDLE_WEIGHT = 0.05
"""What uses less of a core than this sleeps, and is not held up by others."""


class Work:
    """A piece of work under way."""

    __slots__ = ("args", "fn", "left_ns", "number", "timer", "weight", "whose")

    def __init__(
        self, fn: Callable[..., object], args: tuple[Any, ...], weight: float, whose: object | None = None
    ) -> None:
        self.fn: Callable[..., object] | None = fn
        self.args = args
        self.weight = weight
        self.whose = whose
        """The process that computes."""
        self.number = 0
        """Of its entry in the heap: one with another number is old."""
        self.left_ns = 0.0
        """What is left to do, while it stands still."""
        self.timer: Timer | None = None
        """Of what sleeps."""


class Cores:
    """See the module."""

    __slots__ = (
        "_at_ns",
        "_calendar",
        "_come",
        "_cores",
        "_count",
        "_heap",
        "_held",
        "_paces",
        "_rate",
        "_slowdown",
        "_speed",
        "_timer",
        "_weight",
    )

    def __init__(self, calendar: Calendar, cores: float, slowdown: float = 0.0) -> None:
        self._calendar = calendar
        self._cores = max(cores, 1e-6)
        self._slowdown = slowdown
        self._weight = 0.0
        self._speed = 1.0
        self._rate = 1.0
        self._come = 0.0
        """Nanoseconds of work that whoever has been here all the time has done."""
        self._at_ns = 0
        self._heap: list[tuple[float, int, Work]] = []
        self._count = 0
        self._timer: Timer | None = None
        self._paces: dict[object, float] = {}
        """Of processes that go on at a pace of their own."""
        self._held: dict[Work, None] = {}
        """What stands still, in the order in which it was held."""

    def run(
        self, work_ns: float, weight: float, fn: Callable[..., object], *args: Any, whose: object | None = None
    ) -> Work:
        """Call `fn(*args)` when so much work is done. `whose`: the process that does it."""
        work = Work(fn, args, weight, whose)
        if weight < _IDLE_WEIGHT:
            work.timer = self._calendar.arm(self._calendar.now_ns + round(work_ns), self._slept, work)
            return work
        self._catch_up()
        pace = self._paces.get(whose, 1.0) if self._paces else 1.0
        self._add(work, work_ns, pace)
        if self._changed() or (self._heap and self._heap[0][2] is work):
            self._arm()
        return work

    def run_aside(self, work_ns: float) -> None:
        """Compute so much; nobody waits for it."""
        self.run(work_ns, 1.0, _nothing)

    def _add(self, work: Work, left_ns: float, pace: float) -> None:
        if not pace:
            work.left_ns = left_ns
            self._held[work] = None
            return
        self._count += 1
        work.number = self._count
        heappush(self._heap, (self._come + (left_ns if pace == 1.0 else left_ns / pace), self._count, work))
        self._weight += work.weight

    def set_pace(self, whose: object, pace: float) -> None:
        """What a process computes here goes on at so many times the pace of everybody else; at 0 it stands still."""
        self._catch_up()
        before = self._paces.pop(whose, 1.0)
        if pace != 1.0:
            self._paces[whose] = pace
        works: list[tuple[Work, float]] = [(work, work.left_ns) for work in self._held if work.whose is whose]
        for work, _ in works:
            del self._held[work]
        for until, number, work in sorted(self._heap, key=_number_of):
            if work.whose is whose and work.number == number and work.fn is not None:
                self._weight -= work.weight
                works.append((work, max(until - self._come, 0.0) * before))
        for work, left_ns in works:
            work.number = 0
            self._add(work, left_ns, pace)
        self._changed()
        self._arm()

    def set_speed(self, speed: float) -> None:
        """What computes here goes on at so many times its usual speed."""
        self._catch_up()
        self._speed = speed
        if self._changed():
            self._arm()

    def cancel(self, work: Work) -> None:
        """Whoever does it has died."""
        if work.fn is None:
            return
        work.fn = None
        if work.timer is not None:
            self._calendar.disarm(work.timer)
            return
        if work in self._held:
            del self._held[work]
            return
        self._catch_up()
        self._weight -= work.weight
        if self._changed():
            self._arm()

    def _slept(self, work: Work) -> None:
        fn, work.fn, work.timer = work.fn, None, None
        assert fn is not None
        fn(*work.args)

    def _catch_up(self) -> None:
        now_ns = self._calendar.now_ns
        self._come += (now_ns - self._at_ns) * self._rate
        self._at_ns = now_ns

    def _changed(self) -> bool:
        """Work out the rate; whether it is another one."""
        weight = max(self._weight, 0.0)
        rate = 1.0 if weight <= self._cores else self._cores / weight
        if self._slowdown and weight > 1.0:
            rate /= 1.0 + self._slowdown * (min(weight, self._cores) - 1.0)
        rate *= self._speed
        if rate == self._rate:
            return False
        self._rate = rate
        return True

    def _arm(self) -> None:
        if self._timer is not None:
            self._calendar.disarm(self._timer)
            self._timer = None
        if self._heap and self._rate:
            left_ns = (self._heap[0][0] - self._come) / self._rate
            self._timer = self._calendar.arm(self._calendar.now_ns + max(0, ceil(left_ns)), self._due, None)

    def _due(self, _: None) -> None:
        self._timer = None
        self._catch_up()
        heap = self._heap
        ended: list[Work] = []
        while heap and (heap[0][2].fn is None or heap[0][1] != heap[0][2].number or heap[0][0] <= self._come + 1.0):
            entry = heappop(heap)
            number, work = entry[1], entry[2]
            if work.fn is not None and work.number == number:
                self._weight -= work.weight
                work.weight = 0.0
                ended.append(work)
        if not heap:
            self._weight = 0.0  # rounding does not add up
        self._changed()
        self._arm()
        for work in ended:
            fn, work.fn = work.fn, None
            if fn is not None:  # else one that ended with it has cancelled it
                fn(*work.args)


def _nothing() -> None:
    pass


def _number_of(entry: tuple[float, int, Work]) -> int:
    return entry[1]
