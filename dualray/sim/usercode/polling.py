"""Detects user code that polls, so that virtual time advances although nothing waits.

In real time that costs processor time, and ends; in a simulation nothing would ever happen meanwhile. So a look in vain
is taken as a look at the clock: a consecutive one, at the same virtual instant, waits a moment, and each next one for a
little longer.
"""

from __future__ import annotations

import multiprocessing.connection
import multiprocessing.pool
import multiprocessing.popen_fork
import multiprocessing.synchronize
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from math import ceil, inf
from typing import Any, Final

from dualray.sim.kernel.fibers import FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.usercode.substitutions import Substitution
from dualray.sim.usercode.switching import is_within_import
from dualray.sim.usercode.virtual_time import read_step_ns

__all__ = ["Polling", "poll"]

LOOK_NS: Final = 1_000_000
LOOK_NS_MAX: Final = 100_000_000
"""Who waits for a pipe looks again after so long, and each time after twice as long, up to so long. What a child
process does takes real time: who waits for one looks every `LOOK_NS` of real time, and as much virtual time goes by."""


def _pauses() -> Iterator[int]:
    pause_ns = LOOK_NS
    while True:
        yield pause_ns
        pause_ns = min(2 * pause_ns, LOOK_NS_MAX)


def poll(kernel: Kernel, fibers: FiberScheduler) -> bool:
    """User code looks whether something has happened, and it has not. Who looks again and again at one instant waits a
    moment each time, as who reads the clock: else nothing would ever happen. Whether it has waited."""
    fiber = fibers.user_fiber()
    if fiber is None:
        return False
    if fiber.clock_read_ns < kernel.now_ns:
        fiber.clock_reads = 0
        fiber.clock_read_ns = kernel.now_ns
        return False
    until_ns = fiber.clock_read_ns + read_step_ns(fiber)
    if is_within_import(fiber):
        fiber.clock_read_ns = until_ns
        return False
    fibers.sleep_ns(until_ns - kernel.now_ns)
    fiber.clock_read_ns = kernel.now_ns
    return True


class Polling:
    """What is put in the place of questions that user code may ask again and again."""

    def __init__(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        self._kernel = kernel
        self._fibers = fibers

    def move_to(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        """From now on they are those of another simulation."""
        self._kernel, self._fibers = kernel, fibers

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced, made against what stands there now."""
        return [*self._of_polls(), *self._of_pipes()]

    def _of_polls(self) -> list[Substitution]:
        """Who looks again and again whether something has happened waits a moment each time."""
        is_set, get, empty, done = threading.Event.is_set, queue.Queue.get, queue.Queue.empty, Future.done

        def event_is_set(self_: Any) -> bool:
            return is_set(self_) or (poll(self._kernel, self._fibers) and is_set(self_))

        def future_done(self_: Any) -> bool:
            return done(self_) or (poll(self._kernel, self._fibers) and done(self_))

        def queue_get(self_: Any, block: bool = True, timeout: float | None = None) -> Any:
            if block or self_._qsize() or not poll(self._kernel, self._fibers):
                return get(self_, block, timeout)
            return get(self_, block=False)

        simple: Any = queue._PySimpleQueue  # type: ignore[attr-defined]
        simple_get, simple_empty = simple.get, simple.empty

        def simple_queue_get(self_: Any, block: bool = True, timeout: float | None = None) -> Any:
            if not block and simple_empty(self_):
                poll(self._kernel, self._fibers)
            return simple_get(self_, block, timeout)

        def simple_queue_empty(self_: Any) -> bool:
            return simple_empty(self_) and not (poll(self._kernel, self._fibers) and not simple_empty(self_))

        def queue_empty(self_: Any) -> bool:
            return empty(self_) and not (poll(self._kernel, self._fibers) and not empty(self_))

        return [
            Substitution(holder=threading.Event, name="is_set", replacement=event_is_set),
            Substitution(holder=Future, name="done", replacement=future_done),
            Substitution(holder=queue.Queue, name="get", replacement=queue_get),
            Substitution(holder=queue.Queue, name="empty", replacement=queue_empty),
            Substitution(holder=simple, name="get", replacement=simple_queue_get),
            Substitution(holder=simple, name="empty", replacement=simple_queue_empty),
        ]

    def _of_pipes(self) -> list[Substitution]:
        """A `ThreadPool` has a thread that waits for a pipe, which would stop everybody else: it looks now and then."""
        original = multiprocessing.connection.wait

        def look(objects: list[Any], timeout_s: float) -> list[Any]:
            """Wait by the real clock: the virtual one stands still meanwhile."""
            with self._fibers.system:
                return original(objects, timeout_s)

        def wait(object_list: Any, timeout: float | None = None, has_child: bool = False) -> list[Any]:
            if self._fibers.user_fiber() is None:
                return original(object_list, timeout)
            poll(self._kernel, self._fibers)  # a pool looks again and again until another thread takes what is ready
            objects, pauses = list(object_list), _pauses()
            has_child = has_child or any(isinstance(each, int) for each in objects)
            until_ns = inf if timeout is None else self._kernel.now_ns + timeout * 1e9
            while not (ready := look(objects, LOOK_NS / 1e9 if has_child else 0)):
                if self._kernel.now_ns >= until_ns:
                    break
                pause_ns = LOOK_NS if has_child else next(pauses)
                self._fibers.sleep_ns(min(pause_ns, ceil(until_ns - self._kernel.now_ns)) if timeout else pause_ns)
            return ready

        connection = multiprocessing.connection.Connection
        receive = vars(connection)["_recv"]

        def receive_in_turn(self_: Any, size: int, *args: Any) -> Any:
            """Wait in real time for a child process's answer, while the process's other threads continue."""
            if size and self._fibers.user_fiber() is not None:
                wait([self_], has_child=True)
            return receive(self_, size, *args)

        children = multiprocessing.popen_fork.Popen
        wait_for_end = vars(children)["wait"]

        def wait_in_turn(self_: Any, timeout: float | None = None) -> Any:
            if self_.returncode is None and timeout is None and self._fibers.user_fiber() is not None:
                wait([self_.sentinel])
            return wait_for_end(self_, timeout)

        replaced = Substitution.of(multiprocessing.connection, "wait", wait)
        return [
            replaced,
            Substitution(holder=multiprocessing.pool, name="wait", replacement=replaced.replacement),
            Substitution(holder=connection, name="_recv", replacement=receive_in_turn),
            Substitution(holder=children, name="wait", replacement=wait_in_turn),
            *self._of_shared_locks(),
        ]

    def _of_shared_locks(self) -> list[Substitution]:
        """A lock that is shared with child processes may wait for one of them, which waits for another thread here."""
        lock = multiprocessing.synchronize.SemLock
        make, enter = vars(lock)["_make_methods"], vars(lock)["__enter__"]

        def acquire(real: Callable[..., bool], block: bool = True, timeout: float | None = None) -> bool:
            if not block or self._fibers.user_fiber() is None:
                return real(block, timeout)
            until_ns = inf if timeout is None else self._kernel.now_ns + timeout * 1e9
            while not real(True, LOOK_NS / 1e9):
                if self._kernel.now_ns >= until_ns:
                    return False
                self._fibers.sleep_ns(LOOK_NS)
            return True

        def make_methods(self_: Any) -> None:
            make(self_)
            self_.acquire = partial(acquire, self_.acquire)

        def enter_in_turn(self_: Any) -> Any:
            return enter(self_) if self._fibers.user_fiber() is None else self_.acquire()

        return [
            Substitution(holder=lock, name="_make_methods", replacement=make_methods),
            Substitution(holder=lock, name="__enter__", replacement=enter_in_turn),
        ]
