"""One I/O event loop, run by one thread at a time.

Theory of operation. The loop waits in a selector for three kinds of news: a file descriptor became readable
or writable, a timer is due, or another thread handed in a callback. Each turn runs what is ready in a fixed
order: the descriptors that the selector named, then the callbacks that were queued when this part began, then
the timers that are due, earliest first and, when two are due at the same nanosecond, in the order they were
armed. A callback that queues another callback therefore never starves the descriptors.

The seat. Whoever runs turns sits in the one seat. A thread that waits for news (`pump`) takes it, so that the news
reaches it without a change of threads, which costs more than all the rest of a message's way. The thread that called
`run` serves when nobody else does: it takes the seat when nobody has pumped for `_GRACE_NS`, or at once when a
second thread waits too, and leaves it to the next one that pumps. A thread that finds another one pumping waits for
its signal in the ordinary way. While the pumping thread computes, for less than `_GRACE_NS` at a time, nobody sits.

Spinning. A pumping thread looks for news before it sleeps, giving way to other processes with each look: to wake an
idle CPU takes longer than most answers do. It looks `spin_ns` long where news has come within that time of late, and
sleeps at once where news takes longer, or where others compute.

Threads. `call_soon`, `call_later`, `Timer.cancel`, `call_and_wait`, `report` and `stop` may be used from any
thread, also from a finalizer that the garbage collector runs in the middle of one of them (the one lock is
reentrant, and what it guards is consistent at each bytecode). `add_reader` and its kin belong to the loop's
own thread, or to anybody before the loop runs. A sleeping loop is woken through an eventfd, and only when it
sleeps: a busy one costs its callers no system call.

Finalizers. While callbacks run, the collector rests. Between them it may run a finalizer on the thread in the seat,
which waits for something: that thread runs turns within its turn.

Errors. An exception of a callback goes to `on_error` and the loop goes on; nothing is swallowed. So does a
MemoryError that the background thread meets between callbacks; a pumping thread raises it.
KeyboardInterrupt, SystemExit and whatever `on_error` itself raises leave `run`.

End. `stop` lets the current turn and every callback queued before the end finish; then `run` returns and
later callbacks are refused (`call_soon` returns False). A loop runs once. `close` gives its two descriptors
back.
"""

from __future__ import annotations

import collections
import gc
import heapq
import itertools
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from dualray.real.quiet_lock import quiet_beside

Callback = Callable[[], object]

_COMPACT_TIMERS_MIN: Final = 64
"""Cancelled timers stay in the heap until there are this many and they are more than half of it."""
_GLANCE_NS: Final = 500_000
"""A thread that does not wait looks for news at most this often."""
_GRACE_NS: Final = 2_000_000
"""The background thread serves when nobody has pumped for this long."""
_PARK_NS: Final = 20_000_000
"""When somebody has pumped for this long without a pause, the background thread sleeps until he stops."""
_STOLEN_NS: Final = 100_000
"""One look takes a microsecond; one that took so long lost the processor, or the interpreter, to somebody who computes:
then it is better to sleep, for"""
_NO_SPIN_FIRST_NS: Final = 2_000_000
"""the first time, and twice as long each time that a look is lost again, up to"""
_NO_SPIN_LAST_NS: Final = 40_000_000
"""(each one that brings news, and is not lost, takes back a sixteenth)."""
_LONG_GAP: Final = 4
"""A wait counts as so many times `spin_ns` at most, so that a few short ones make up for a long one."""
_READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_WRITE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR


class Awaited(Protocol):
    """What a pumping thread waits for."""

    is_set: bool


class _Nothing:
    is_set = True


_GLANCE: Final = _Nothing()


class Timer:
    """A callback that is due once, at `deadline_ns` of the monotonic clock; made by `Loop.call_later`."""

    __slots__ = ("_fn", "_loop", "deadline_ns")

    def __init__(self, loop: Loop, deadline_ns: int, fn: Callback) -> None:
        self._loop = loop
        self._fn: Callback | None = fn
        self.deadline_ns = deadline_ns

    def cancel(self) -> None:
        """Forget the callback; harmless when it has run or was cancelled before. Thread-safe."""
        if self._take() is not None:
            self._loop._note_cancelled()

    def _take(self) -> Callback | None:
        fn, self._fn = self._fn, None
        return fn


class _Watch:
    """What one file descriptor wakes; `events` is what the selector was told."""

    __slots__ = ("events", "reader", "writer")

    def __init__(self) -> None:
        self.reader: Callback | None = None
        self.writer: Callback | None = None
        self.events = 0


class Loop:
    """See the module's theory of operation.

    Args:
        on_error: called, on the loop's thread, with each exception that a callback raised.
        spin_ns: how long a pumping thread looks for news before it sleeps, at most.
        on_turn: called in each turn before it looks for news.
        is_shared: user code runs in this process, too, and may have finalizers.
    """

    def __init__(
        self,
        on_error: Callable[[Exception], None],
        *,
        spin_ns: int = 0,
        on_turn: Callback | None = None,
        is_shared: bool = False,
    ) -> None:
        self._on_error = on_error
        self._on_turn = on_turn
        self._is_shared = is_shared
        self._spin_ns = spin_ns
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._watches: dict[int, _Watch] = {}
        self._ready: collections.deque[Callback] = collections.deque()
        self._timers: list[tuple[int, int, Timer]] = []
        self._timer_count = itertools.count()
        self._cancelled_count = 0
        self._lock = threading.RLock()
        self._sleeping = False
        self._stopping = False
        self._ended = False
        self._closed = False
        self._thread_id: int | None = None
        """Of the thread in the seat."""
        self._is_running = False
        self._seat = threading.RLock()
        self._spin_again_ns = 0
        self._no_spin_ns = _NO_SPIN_FIRST_NS
        self._gap_ns = 0
        """How long a pumping thread has waited for news of late, in the mean."""
        self._pumper: int | None = None
        self._must_leave = False
        self._last_pump_ns = 0
        self._waiting_threads = 0
        """Threads that found another one pumping."""
        self._is_parked = False
        self._resume = threading.Event()

    # -- callbacks, from any thread --------------------------------------------------------------------------

    def call_soon(self, fn: Callback) -> bool:
        """Run `fn()` on the loop's thread, after what was queued before it; False when the loop has ended."""
        with self._lock:
            if self._ended:
                return False
            self._ready.append(fn)
            self._wake()
        return True

    def call_later(self, delay_s: float, fn: Callback) -> Timer:
        """Run `fn()` on the loop's thread once `delay_s` seconds have passed, never before."""
        timer = Timer(self, self.now_ns() + max(0, int(delay_s * 1e9)), fn)
        entry = (timer.deadline_ns, next(self._timer_count), timer)
        with self._lock:
            heapq.heappush(self._timers, entry)
            if self._timers[0] is entry:
                self._wake()
        return timer

    def call_and_wait(self, fn: Callback) -> None:
        """Run `fn()` on the loop's thread and return when it has run; directly when no loop runs or on it.

        Its exception is raised here, not reported. The owner must not start the loop at the same time.
        """
        if not self._is_running or self.in_loop_thread():
            fn()
            return
        done = threading.Event()
        errors: list[BaseException] = []

        def call() -> None:
            try:
                fn()
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                errors.append(error)
            finally:
                done.set()

        if not self.call_soon(call):
            call()
        done.wait()
        if errors:
            raise errors[0]

    def wake_if_asleep(self) -> None:
        """Have `on_turn` called soon. Thread-safe, and cheap while the loop is busy."""
        if self._sleeping:
            with self._lock:
                self._wake()

    def stop(self) -> None:
        """Make `run` return after the callbacks queued so far; also before it has begun. Thread-safe."""
        with self._lock:
            self._stopping = True
            self._wake()
        self._resume.set()

    def report(self, error: Exception) -> None:
        """Hand an exception to the owner, as if a callback had raised it. Thread-safe, at once."""
        self._on_error(error)

    def in_loop_thread(self) -> bool:
        """Whether the caller is a callback of this loop, while it runs."""
        return self._thread_id == threading.get_ident()

    def now_ns(self) -> int:
        """The monotonic clock in nanoseconds: the clock whose readings real mode gives to the machines."""
        return time.monotonic_ns()

    # -- file descriptors, from the loop's thread ------------------------------------------------------------

    def add_reader(self, fd: int, fn: Callback) -> None:
        """Call `fn()` in each turn in which `fd` is readable, at its end or broken."""
        self._watch(fd).reader = fn
        self._select(fd)

    def remove_reader(self, fd: int) -> None:
        """Stop watching `fd` for reading; harmless when it is not watched. Do this before closing it."""
        if (watch := self._watches.get(fd)) is not None and watch.reader is not None:
            watch.reader = None
            self._select(fd)

    def add_writer(self, fd: int, fn: Callback) -> None:
        """Call `fn()` in each turn in which `fd` takes bytes or is broken; replaces an earlier writer."""
        self._watch(fd).writer = fn
        self._select(fd)

    def remove_writer(self, fd: int) -> None:
        """Stop watching `fd` for writing; harmless when it is not watched."""
        if (watch := self._watches.get(fd)) is not None and watch.writer is not None:
            watch.writer = None
            self._select(fd)

    def _watch(self, fd: int) -> _Watch:
        assert self._thread_id is None or self.in_loop_thread(), "descriptors belong to the loop's thread"
        watch = self._watches.get(fd)
        if watch is None:
            watch = self._watches[fd] = _Watch()
        return watch

    def _select(self, fd: int) -> None:
        """Make the selector watch for exactly what somebody waits for."""
        if self._closed:
            self._watches.pop(fd, None)
            return
        watch = self._watches[fd]
        events = (select.EPOLLIN if watch.reader is not None else 0) | (
            select.EPOLLOUT if watch.writer is not None else 0
        )
        if events == watch.events:
            return
        if events == 0:
            del self._watches[fd]
            self._epoll.unregister(fd)
        elif watch.events == 0:
            self._epoll.register(fd, events)
        else:
            self._epoll.modify(fd, events)
        watch.events = events

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop`, whenever no other thread pumps. A second run is refused."""
        with self._lock:
            if self._is_running or self._ended:
                raise RuntimeError("a Loop can run only once; create a new Loop")
            self._is_running = True
        try:
            while not self._stopping:
                if self._is_served():
                    self._wait_for_the_seat()
                    continue
                with self._seat:
                    self._thread_id = threading.get_ident()
                    try:
                        while not self._is_pumped():
                            self._background_turn()
                            if self._is_stopping():
                                break
                    finally:
                        self._thread_id = None
        finally:
            with self._seat:
                self._thread_id = threading.get_ident()
                with self._lock:
                    self._ended = True
                while self._ready:
                    self._call(self._ready.popleft())
                self._thread_id = None
            self._is_running = False

    def _is_pumped(self) -> bool:
        return self._pumper is not None

    def _is_stopping(self) -> bool:
        return self._stopping

    def _is_to_leave(self) -> bool:
        return self._must_leave

    def _is_served(self) -> bool:
        if self._pumper is not None:
            return True
        return not self._waiting_threads and self.now_ns() - self._last_pump_ns < _GRACE_NS

    def _wait_for_the_seat(self) -> None:
        if self._is_pumped() and self.now_ns() - self._last_pump_ns > _PARK_NS:
            self._resume.clear()
            self._is_parked = True
            if self._is_pumped() and not self._stopping:  # else he has stopped before he could see the flag
                self._resume.wait()
            self._is_parked = False
        else:
            time.sleep(_GRACE_NS / 1e9)

    def pump(self, awaited: Awaited) -> bool:
        """Run turns on the calling thread until `awaited.is_set`; False when the loop has ended, when another thread
        runs it, or after `leave`.

        Not for callbacks. A finalizer that the collector runs between callbacks, on the thread in the seat, may wait.
        """
        me = threading.get_ident()
        if self._thread_id == me:
            return self._pump_within(awaited)
        with self._lock:
            before = self._pumper  # this thread, for a finalizer that runs while it takes the seat or has left it
            if before not in (None, me) or self._ended or self._stopping or not self._is_running:
                return False
            self._pumper = me
            self._must_leave = False
            self._last_pump_ns = time.monotonic_ns()
            if not self._seat.acquire(blocking=False):  # the background thread sits, and leaves when it is woken
                self._wake()
                taken = False
            else:
                taken = True
        try:
            if not taken:
                self._seat.acquire()
            self._thread_id = me
            try:
                if awaited is _GLANCE and not self._is_stopping():  # else it may be closed
                    self._turn(None)
                while not (awaited.is_set or self._is_stopping() or self._is_to_leave()):
                    self._turn(self._spin_ns)
            finally:
                self._thread_id = None
                self._seat.release()
        finally:
            with self._lock:
                self._last_pump_ns = time.monotonic_ns()
                self._pumper = before
                if self._is_parked or self._waiting_threads:
                    self._resume.set()
        return awaited.is_set

    def _pump_within(self, awaited: Awaited) -> bool:
        """Run turns within a turn of this thread, which may be about to sleep: it has to look again first."""
        while not (awaited.is_set or self._is_stopping() or self._is_to_leave()):
            self._turn(0)
        if not self._closed:
            os.eventfd_write(self._wake_fd, 1)
        return awaited.is_set

    def leave(self) -> None:
        """Have the pumping thread return soon, whatever it waits for. For signal handlers: takes no lock."""
        self._must_leave = True
        if not self._closed:
            os.eventfd_write(self._wake_fd, 1)

    def is_busy(self) -> bool:
        """Whether the calling thread is in the middle of something that an exception must not cut short."""
        # RLock's own word for it is what threading.Condition asks, too.
        return self._pumper == threading.get_ident() or self._lock._is_owned()  # type: ignore[attr-defined]

    def poll_once(self) -> None:
        """Run one turn on the calling thread, without waiting; unless somebody has done so within `_GLANCE_NS`."""
        if time.monotonic_ns() - self._last_pump_ns >= _GLANCE_NS:
            self.pump(_GLANCE)

    def wait_elsewhere(self, awaited: Awaited, event: threading.Event) -> None:
        """Wait while other threads serve the loop. The thread that sets `awaited` also sets the event."""
        with self._lock:
            self._waiting_threads += 1
        try:
            if not awaited.is_set:
                event.wait()
        finally:
            with self._lock:
                self._waiting_threads -= 1

    def close(self) -> None:
        """Give back the selector and the eventfd; the loop must not be running. Idempotent."""
        with self._lock:
            if self._closed:
                return
            assert not self._is_running, "stop the loop and join its thread before closing it"
            self._closed = self._ended = True
            self._epoll.close()
            os.close(self._wake_fd)

    def _background_turn(self) -> None:
        try:
            self._turn(0)
        except MemoryError as error:  # between callbacks: epoll had none
            self._on_error(error)

    def _turn(self, spin_ns: int | None) -> None:
        """One turn: at once with what there is (None), or when there is something, after having spun."""
        if self._on_turn is not None:
            self._on_turn()
        if spin_ns is None:
            happened = self._epoll.poll(0)
        else:
            happened = self._await_news(spin_ns) if spin_ns and not self._ready else self._sleep()
        if self._is_shared:
            self._serve_quietly(happened)
        else:
            self._serve(happened)

    def _serve_quietly(self, happened: list[tuple[int, int]]) -> None:
        """Run what is ready, while the collector rests: a finalizer that it ran here might wait for this very turn."""
        if self._pumper is None:
            with quiet_beside():
                self._serve(happened)
            return
        is_on = gc.isenabled()
        if is_on:
            gc.disable()
        try:
            self._serve(happened)
        finally:
            if is_on:
                gc.enable()

    def _serve(self, happened: list[tuple[int, int]]) -> None:
        for fd, mask in happened:
            if fd == self._wake_fd:
                self._read_wake()
                continue
            # An earlier callback of this turn may have removed the watch, and the number may live again in
            # another one; what was removed has no reader and no writer.
            watch = self._watches.get(fd)
            if watch is None:
                continue
            if mask & _READ and watch.reader is not None:
                self._call(watch.reader)
            if mask & _WRITE and watch.writer is not None:
                self._call(watch.writer)
        for _ in range(len(self._ready)):
            self._call(self._ready.popleft())
        timers = self._timers
        if timers:
            try:
                is_due = timers[0][0] <= time.monotonic_ns()
            except IndexError:  # another thread has just cancelled the last one
                is_due = False
            if is_due:
                self._run_timers()

    def _await_news(self, spin_ns: int) -> list[tuple[int, int]]:
        """Look for news for a while, if it can be expected to come within that; then sleep until there is some."""
        start_ns = time.monotonic_ns()
        happened = []
        if self._gap_ns <= spin_ns and start_ns >= self._spin_again_ns:
            happened = self._spin(start_ns, start_ns + spin_ns)
        if not happened:
            happened = self._sleep()
        gap_ns = min(time.monotonic_ns() - start_ns, _LONG_GAP * spin_ns)
        self._gap_ns += (gap_ns - self._gap_ns) // 4
        return happened

    def _spin(self, last_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """Look for news, without sleeping."""
        poll, clock = self._epoll.poll, time.monotonic_ns
        while True:
            happened = poll(0)
            now_ns = clock()
            if now_ns - last_ns > _STOLEN_NS:
                self._spin_again_ns = now_ns + self._no_spin_ns
                self._no_spin_ns = min(2 * self._no_spin_ns, _NO_SPIN_LAST_NS)
            elif happened:
                self._no_spin_ns = max(self._no_spin_ns - self._no_spin_ns // 16, _NO_SPIN_FIRST_NS)
            if happened or self._ready or now_ns >= end_ns:
                return happened
            last_ns = now_ns
            os.sched_yield()

    def _sleep(self) -> list[tuple[int, int]]:
        self._sleeping = True  # before the last look at the queues: who queues after it then wakes us
        if self._on_turn is not None:
            self._on_turn()
        timeout_s = -1.0
        if self._ready or self._stopping:
            timeout_s = 0.0
        elif self._timers:
            with self._lock:  # a cancellation in another thread may empty the heap
                if self._timers:
                    timeout_s = max(0.0, (self._timers[0][0] - time.monotonic_ns()) * 1e-9)
        happened = self._epoll.poll(timeout_s)
        self._sleeping = False
        return happened

    def _run_timers(self) -> None:
        now_ns = self.now_ns()
        due: list[Timer] = []
        with self._lock:
            while self._timers and self._timers[0][0] <= now_ns:
                due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            if (fn := timer._take()) is not None:
                self._call(fn)
            else:
                with self._lock:
                    self._cancelled_count = max(0, self._cancelled_count - 1)

    def _call(self, fn: Callback) -> None:
        try:
            fn()
        except Exception as error:  # noqa: BLE001 - every one of them goes to the owner
            self._on_error(error)

    def _wake(self) -> None:
        """Under the lock: end a sleep of the loop, with one write for each sleep."""
        if self._sleeping and not self._closed:
            self._sleeping = False
            os.eventfd_write(self._wake_fd, 1)

    def _read_wake(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return  # a turn within this one has read it

    def _note_cancelled(self) -> None:
        with self._lock:
            self._cancelled_count += 1
            if self._cancelled_count >= _COMPACT_TIMERS_MIN and self._cancelled_count * 2 > len(self._timers):
                self._timers = [entry for entry in self._timers if entry[2]._fn is not None]
                heapq.heapify(self._timers)
                self._cancelled_count = 0
