"""Virtual time in user code: the clocks and `sleep` that it sees.

Theory of operation
-------------------
While user code of a simulation runs, the clocks and `sleep` of the `time` module are the kernel's.
Everywhere else, in the kernel, pytest, other threads and inside `with fibers.system:`, they are the real
ones, at the same moment and through the same names: a replacement function stands in `time` for the life of
the simulation and asks, at each call, whether the caller is user code (`FiberScheduler.user_fiber`).
Nothing is swapped at a switch.

Replaced: time, time_ns, monotonic, monotonic_ns, perf_counter, perf_counter_ns, process_time,
process_time_ns, thread_time, thread_time_ns, sleep; and, where they are called without a time, localtime,
gmtime, ctime, asctime, strftime. `time.time()` starts at EPOCH_NS, 2020-01-01 UTC; the others start at 0.
All are `kernel.now_ns` away from it.

`clock_gettime` reads those of the day and the others alike, and so does `os.times`, whose process has computed all the
time; `select.select` of nothing sleeps.

Not replaced: `datetime.now()`, `utcnow()`, `today()` and `date.today()`. They
belong to C types, which take no attributes, and putting a subclass into the `datetime` module breaks
pickling (a real datetime then is "not the same object as datetime.datetime"), `type(x) is datetime` and
subclasses made meanwhile. User code that wants virtual dates says `datetime.fromtimestamp(time.time())`.

A date in seconds is a float, of which there is one in 240 ns. A wait of 0.2 s between two of them would be shorter
than that after rounding, every other time: real waits are longer by more. So a fiber that reads `time.time()` again
goes on until an instant that a float can have, and reads that one; its first read is rounded down.

A program that only watches the clock must not hang. A read that finds virtual time where the fiber's last read left it
is a consecutive read: it first parks for READ_STEP_MIN_NS, each next one for a little longer, up to READ_STEP_MAX_NS,
in the kernel, so that what it waits for can happen; in an import, and in a library, its own clock goes on alone
(switching.py). The steps start over when time moved for another reason. For the same reason the shortest sleep is
READ_STEP_MIN_NS.
"""

from __future__ import annotations

import math
import operator
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dualray.sim.kernel.fibers import Fiber, FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.usercode.substitutions import Substitution, Substitutions
from dualray.sim.usercode.switching import ahead_ns, is_within_import, may_leave

__all__ = ["EPOCH_NS", "VirtualTime", "read_step_ns"]

EPOCH_NS: Final = 1_577_836_800 * 10**9
"""What `time.time_ns()` reads at the start of every simulation: 2020-01-01 00:00:00 UTC."""

READ_STEP_MIN_NS: Final = 1_000
READ_STEP_MAX_NS: Final = 1_000_000
READ_STEP_GROWTH_NS: Final = 10
"""The n-th consecutive clock read takes 1 us + n * 10 ns, at most 1 ms: a thousand time stamps in a row
cost 6 ms of virtual time, and a busy wait of a minute takes 110,000 reads."""

READS_KEPT: Final = 4
"""Of the floats that a fiber has read, those with which the next one is compared."""

ALONE_NS_MAX: Final = 1_000_000_000
"""An import that sleeps for longer may wait for another process."""


def read_step_ns(fiber: Fiber) -> int:
    """What the next one of consecutive reads takes."""
    step_ns = min(READ_STEP_MIN_NS + fiber.clock_reads * READ_STEP_GROWTH_NS, READ_STEP_MAX_NS)
    fiber.clock_reads += 1
    return step_ns


# -- the clocks ---------------------------------------------------------------------------------------------

_CLOCKS: Final[Mapping[str, int]] = {
    "time": EPOCH_NS,
    "monotonic": 0,
    "perf_counter": 0,
    "process_time": 0,
    "thread_time": 0,
}


class VirtualTime:
    """The clocks that user code of a simulation sees; see the module's theory of operation.

    ahead_ns: how far the time of day that a fiber reads is ahead: its node's clock may be set wrong.

    The runner puts `substitutions()` into the set that it installs, together with those of isolation;
    `install()` and `uninstall()` are for using this module alone. `move_to` another simulation takes the clocks along:
    what stands in `time` asks for the kernel and the fibers of now.
    """

    def __init__(
        self, kernel: Kernel, fibers: FiberScheduler, *, ahead_ns: Callable[[Fiber], int] = lambda fiber: 0
    ) -> None:
        self._kernel = kernel
        self._fibers = fibers
        self._ahead_ns = ahead_ns
        self._alone: Substitutions | None = None

    def move_to(self, kernel: Kernel, fibers: FiberScheduler, ahead_ns: Callable[[Fiber], int]) -> None:
        """From now on these are the clocks of another simulation."""
        self._kernel, self._fibers, self._ahead_ns = kernel, fibers, ahead_ns

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced, made against the functions that stand in `time` now."""
        made = [Substitution.of(time, "sleep", self._make_sleep(time.sleep))]
        for name, offset_ns in _CLOCKS.items():
            for clock, in_seconds in ((name, True), (name + "_ns", False)):
                if hasattr(time, clock):  # thread_time is not everywhere
                    function = self._make_clock(getattr(time, clock), offset_ns, in_seconds)
                    made.append(Substitution.of(time, clock, function))
        for clock, in_seconds in (("clock_gettime", True), ("clock_gettime_ns", False)):
            if hasattr(time, clock):  # not on Windows
                made.append(Substitution.of(time, clock, self._make_of_clock_id(getattr(time, clock), in_seconds)))
        return [
            *made,
            Substitution.of(os, "times", self._make_times(os.times)),
            Substitution.of(select, "select", self._make_select(select.select)),
            Substitution.of(time, "localtime", self._make_of_seconds(time.localtime)),
            Substitution.of(time, "gmtime", self._make_of_seconds(time.gmtime)),
            Substitution.of(time, "ctime", self._make_of_seconds(time.ctime)),
            Substitution.of(time, "asctime", self._make_of_tuple(time.asctime, 0)),
            Substitution.of(time, "strftime", self._make_of_tuple(time.strftime, 1)),
        ]

    def install(self) -> None:
        """Replace the clocks alone, without the rest of isolation."""
        self._alone = Substitutions(self.substitutions())
        self._alone.install()

    def uninstall(self) -> None:
        """Undo `install`."""
        if self._alone is not None:
            self._alone.uninstall()
            self._alone = None

    def rewrite_function(self, function: object) -> None:
        """`Substitutions.rewrite_function` of the set that `install` has installed."""
        if self._alone is None:
            raise RuntimeError("virtual time is not installed: call install() first")
        self._alone.rewrite_function(function)

    def read_ns(self, fiber: Fiber) -> int:
        """Virtual time as `fiber`, the current one, reads it; a consecutive read moves it on first."""
        kernel = self._kernel
        if fiber.clock_read_ns >= kernel.now_ns:
            self._move_on(fiber, fiber.clock_read_ns + read_step_ns(fiber))
        else:
            fiber.clock_reads = 0
            fiber.clock_read_ns = kernel.now_ns
        return fiber.clock_read_ns

    def _move_on(self, fiber: Fiber, until_ns: int) -> None:
        """The fiber's next read is not before then; see switching.py."""
        if may_leave(fiber):
            self._fibers.sleep_ns(until_ns - self._kernel.now_ns)
            until_ns = self._kernel.now_ns
        fiber.clock_read_ns = until_ns

    def _date_s(self, fiber: Fiber) -> float:
        """What `time.time()` reads: an instant that a float can have, see the module."""
        is_first = fiber.clock_read_ns < 0
        while True:
            date_ns = self.read_ns(fiber) + EPOCH_NS + self._ahead_ns(fiber)
            per_second = round(1 / math.ulp(date_ns / 1_000_000_000))
            if is_first:
                return date_ns * per_second // 1_000_000_000 / per_second
            ticks = -(-date_ns * per_second // 1_000_000_000)
            left_ns = -(-ticks * 1_000_000_000 // per_second) - date_ns
            if left_ns > 0:
                until_ns = fiber.clock_read_ns + left_ns
                self._move_on(fiber, until_ns)
                if fiber.clock_read_ns != until_ns:
                    continue  # its machine stood still
            return ticks / per_second

    # -- the replacements: each holds the original, and calls it for everyone who is not user code ---------

    def _make_clock(self, original: Callable[[], Any], offset_ns: int, in_seconds: bool) -> Callable[[], Any]:
        is_of_day = offset_ns == EPOCH_NS  # the others measure intervals

        def clock() -> Any:
            fiber = self._fibers.user_fiber()
            if fiber is None:
                return original()
            if is_of_day and in_seconds:
                return self._date_s(fiber)
            read_ns = self.read_ns(fiber) + offset_ns
            if is_of_day:
                read_ns += self._ahead_ns(fiber)
            return _interval_s(fiber, read_ns) if in_seconds else read_ns

        return clock

    def _make_of_clock_id(self, original: Callable[[int], Any], in_seconds: bool) -> Callable[[int], Any]:
        of_day = self._make_clock(time.time, EPOCH_NS, in_seconds)
        of_intervals = self._make_clock(time.monotonic, 0, in_seconds)

        def clock_gettime(clock_id: int, /) -> Any:
            if self._fibers.user_fiber() is None:
                return original(clock_id)
            return of_day() if clock_id == time.CLOCK_REALTIME else of_intervals()

        return clock_gettime

    def _make_times(self, original: Callable[[], os.times_result]) -> Callable[[], os.times_result]:
        def times() -> os.times_result:
            fiber = self._fibers.user_fiber()
            if fiber is None:
                return original()
            elapsed_s = self.read_ns(fiber) / 1_000_000_000
            return os.times_result((elapsed_s, 0.0, 0.0, 0.0, elapsed_s))

        return times

    def _make_select(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def select(*args: Any) -> Any:
            is_sleep = len(args) == 4 and args[3] is not None and not any(args[:3])
            if not is_sleep or self._fibers.user_fiber() is None:
                return original(*args)
            time.sleep(args[3])
            return [], [], []

        return select

    def _make_sleep(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def sleep(seconds: Any, /) -> None:
            fiber = self._fibers.user_fiber()
            if fiber is None:
                original(seconds)
                return
            now_ns = self._kernel.now_ns
            delay_ns = max(_sleep_ns(seconds), READ_STEP_MIN_NS)
            if delay_ns <= ALONE_NS_MAX and is_within_import(fiber):
                fiber.clock_reads += 1
                fiber.clock_read_ns = max(fiber.clock_read_ns, now_ns) + delay_ns
            else:
                self._fibers.sleep_ns(delay_ns + ahead_ns(fiber, now_ns))

        return sleep

    def _make_of_seconds(self, original: Callable[[Any], Any]) -> Callable[..., Any]:
        def of_seconds(seconds: Any = None, /) -> Any:
            return original(self._time_in_user_code() if seconds is None else seconds)

        return of_seconds

    def _make_of_tuple(self, original: Callable[..., Any], position: int) -> Callable[..., Any]:
        localtime = time.localtime

        def of_tuple(*args: Any) -> Any:
            if len(args) == position and (now_s := self._time_in_user_code()) is not None:
                args = (*args, localtime(now_s))
            return original(*args)

        return of_tuple

    def _time_in_user_code(self) -> float | None:
        """What `time.time()` reads in user code; None elsewhere, where None means the real time."""
        fiber = self._fibers.user_fiber()
        if fiber is None:
            return None
        return (self.read_ns(fiber) + EPOCH_NS + self._ahead_ns(fiber)) / 1_000_000_000


def _interval_s(fiber: Fiber, read_ns: int) -> float:
    """What a clock of intervals reads in seconds. The difference of two such floats can be less than the time between
    them, by rounding: then a wait would seem shorter than it was, and this read is the next float that is not. A read
    that follows another one at once is no end of a wait."""
    read_s = read_ns / 1_000_000_000
    earlier: tuple[tuple[int, float], ...] = fiber.seconds_read or ()
    if not fiber.clock_reads:
        for before_ns, before_s in earlier:
            passed_s = (read_ns - before_ns) / 1_000_000_000
            read_s = max(read_s, before_s + passed_s)
            while read_s - before_s < passed_s:  # twice at most
                read_s = math.nextafter(read_s, math.inf)
    fiber.seconds_read = ((read_ns, read_s), *earlier[: READS_KEPT - 1])
    return read_s


def _sleep_ns(seconds: Any) -> int:
    """`time.sleep`'s argument in nanoseconds, refused with the errors of the real one."""
    if isinstance(seconds, float):
        delay_ns = round(seconds * 1e9)
        delay_ns += delay_ns / 1e9 < seconds  # never shorter than asked
    else:
        delay_ns = operator.index(seconds) * 10**9
    if delay_ns < 0:
        raise ValueError("sleep length must be non-negative")
    return delay_ns
