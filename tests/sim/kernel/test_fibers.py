from __future__ import annotations

import contextvars
import gc
import os
import random
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import greenlet
import pytest

from dualray.sim.kernel.fibers import RETHROWS_MAX, Fiber, FiberKilled, FiberScheduler, FiberState
from dualray.sim.kernel.kernel import Kernel


@dataclass(frozen=True)
class Owner:
    name: str = "worker"
    pid: int = 4_200_001
    hostname: str = "node-1"


class Deadlock(Exception):
    pass


class Simulation:
    """A kernel, its fibers and the driver, which is the test itself."""

    def __init__(self) -> None:
        self.crashes: list[tuple[Fiber, BaseException]] = []
        self.switches: list[tuple[str, str]] = []
        self.kernel = Kernel()
        self.fibers = FiberScheduler(
            self.kernel,
            on_deadlock=lambda: Deadlock("everybody waits"),
            on_crash=lambda fiber, exc: self.crashes.append((fiber, exc)),
            on_resume=lambda fiber: self.switches.append(("resume", fiber.owner.hostname)),
            on_suspend=lambda fiber: self.switches.append(("suspend", fiber.owner.hostname)),
        )
        self.driver = self.fibers.adopt_current(Owner("driver", hostname="driver"))

    def spawn_after(self, delay_ns: int, fn: Callable[[], object], hostname: str = "node-1") -> list[Fiber]:
        """Spawn `fn` from an event; the fiber is in the list when the event has happened."""
        spawned: list[Fiber] = []
        owner = Owner(hostname=hostname)
        self.kernel.call_after(delay_ns, lambda: spawned.append(self.fibers.spawn(owner, fn)))
        return spawned

    def run_out(self) -> None:
        """Let everything happen that is left to happen."""
        with pytest.raises(Deadlock):
            self.fibers.park()


@contextmanager
def simulation() -> Iterator[Simulation]:
    sim = Simulation()
    try:
        yield sim
    finally:
        sim.fibers.close()


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with simulation() as made:
        yield made


def test_the_driver_parks_until_it_is_woken(sim: Simulation) -> None:
    assert sim.fibers.current() is sim.driver is sim.fibers.driver
    sim.kernel.call_after(30, sim.fibers.wake, sim.driver, "answer")
    assert sim.fibers.park() == "answer"
    assert sim.kernel.now_ns == 30


def test_sleep_takes_virtual_time_only(sim: Simulation) -> None:
    sim.fibers.sleep_ns(3_600 * 10**9)
    assert sim.kernel.now_ns == 3_600 * 10**9


def test_sleep_goes_on_at_once_when_nothing_happens_before(sim: Simulation) -> None:
    sim.fibers.sleep_ns(5)
    assert (sim.kernel.now_ns, sim.kernel.events_performed, sim.switches[1:]) == (5, 1, [])
    sim.kernel.call_after(7, lambda: None)
    sim.fibers.sleep_ns(7)  # the event was there first
    assert (sim.kernel.now_ns, sim.kernel.events_performed) == (12, 3)
    assert sim.switches[1:] == [("suspend", "driver"), ("resume", "driver")]


def _log_of_a_random_program(seed: int, hold: Callable[[Fiber], bool] | None = None) -> list[tuple[str, int, int]]:
    """Fibers that sleep and spawn others; events that do nothing, and a hook. With `hold`, each sleep parks."""
    drawn = random.Random(seed)
    log: list[tuple[str, int, int]] = []
    with simulation() as sim:
        sim.fibers.hold = hold

        def note(what: str) -> None:
            log.append((what, sim.kernel.now_ns, sim.kernel.events_performed))

        def task(name: str, depth: int) -> Callable[[], None]:
            def run() -> None:
                for step in range(drawn.randrange(1, 6)):
                    sim.fibers.sleep_ns(drawn.choice((0, 1, 1_000, 40_000)))
                    note(f"{name} step {step}")
                    if depth < 3 and drawn.random() < 0.4:
                        sim.fibers.spawn(Owner(), task(f"{name}.{step}", depth + 1))
                    if drawn.random() < 0.3:
                        sim.kernel.call_after(drawn.choice((0, 1, 1_000)), note, f"event of {name}")

            return run

        sim.kernel.calendar.add_hook(lambda count: note("hook"), 7)
        for number in range(3):
            sim.spawn_after(number * 500, task(str(number), 0))
        sim.run_out()
        task("driver", 0)()
        sim.run_out()
    return log


@pytest.mark.parametrize("seed", range(40))
def test_what_happens_is_the_same_as_if_every_sleep_parked(seed: int) -> None:
    log = _log_of_a_random_program(seed)
    assert any(what == "hook" for what, _, _ in log) or len(log) < 8
    assert _log_of_a_random_program(seed, hold=lambda fiber: False) == log


def test_spawn_in_an_event_runs_at_once_until_the_fiber_parks(sim: Simulation) -> None:
    seen: list[str] = []

    def task() -> None:
        seen.append("task starts")
        sim.fibers.sleep_ns(10)
        seen.append(f"task ends at {sim.kernel.now_ns}")

    def event() -> None:
        seen.append("event starts")
        fiber = sim.fibers.spawn(Owner(), task)
        assert fiber.state is FiberState.PARKED
        seen.append("event ends")

    sim.kernel.call_after(5, event)
    sim.fibers.sleep_ns(100)
    assert seen == ["event starts", "task starts", "event ends", "task ends at 15"]


def test_spawn_on_a_fiber_waits_until_that_parks(sim: Simulation) -> None:
    seen: list[str] = []
    fiber = sim.fibers.spawn(Owner(), lambda: seen.append("task"))
    assert (seen, fiber.state) == ([], FiberState.READY)
    sim.fibers.sleep_ns(0)
    assert (seen, fiber.state) == (["task"], FiberState.ENDED)


def test_woken_fibers_run_after_the_event_in_the_order_of_waking(sim: Simulation) -> None:
    seen: list[str] = []

    def waiter(name: str) -> Callable[[], None]:
        def wait() -> None:
            seen.append(f"{name} got {sim.fibers.park()}")

        return wait

    first, second = (sim.spawn_after(1, waiter(name)) for name in ("first", "second"))

    def wake_both() -> None:
        sim.fibers.wake(second[0], 2)
        sim.fibers.wake(first[0], 1)
        seen.append("event over")

    sim.kernel.call_after(2, wake_both)
    sim.kernel.call_after(2, seen.append, "next event")
    sim.run_out()
    assert seen == ["event over", "second got 2", "first got 1", "next event"]


def test_a_wake_before_the_park_is_kept(sim: Simulation) -> None:
    assert sim.fibers.wake(sim.driver, "early") is True
    assert sim.fibers.park() == "early"
    sim.run_out()


def test_two_wakes_for_one_park_are_refused(sim: Simulation) -> None:
    sim.fibers.wake(sim.driver)
    with pytest.raises(RuntimeError, match="twice, but"):
        sim.fibers.wake(sim.driver)
    sim.fibers.park()


def test_an_ended_fiber_cannot_be_woken(sim: Simulation) -> None:
    spawned = sim.spawn_after(1, lambda: None)
    sim.fibers.sleep_ns(2)
    assert sim.fibers.wake(spawned[0]) is False
    assert sim.fibers.throw(spawned[0], FiberKilled()) is False


def test_nothing_left_to_happen_raises_what_on_deadlock_makes(sim: Simulation) -> None:
    with pytest.raises(Deadlock, match="everybody waits"):
        sim.fibers.park()
    sim.fibers.sleep_ns(5)  # and the driver may go on
    assert sim.kernel.now_ns == 5


def test_a_daemon_event_does_not_hide_a_deadlock(sim: Simulation) -> None:
    def beat() -> None:
        sim.kernel.call_after(10, beat, daemon=True)

    beat()
    with pytest.raises(Deadlock):
        sim.fibers.park()


def test_throw_raises_inside_the_fiber(sim: Simulation) -> None:
    caught: list[BaseException] = []

    def task() -> None:
        try:
            sim.fibers.sleep_ns(100)
        except KeyboardInterrupt as exc:
            caught.append(exc)
        sim.fibers.sleep_ns(7)
        caught.append(Exception(f"went on until {sim.kernel.now_ns}"))

    spawned = sim.spawn_after(0, task)
    cancelled = KeyboardInterrupt("cancelled")
    sim.kernel.call_after(3, lambda: sim.fibers.throw(spawned[0], cancelled))
    sim.run_out()
    assert caught[0] is cancelled
    assert str(caught[1]) == "went on until 10"
    assert sim.kernel.now_ns == 10  # the timer of the sleep that was interrupted is gone


def test_a_throw_wins_over_a_wake_of_the_same_event(sim: Simulation) -> None:
    caught: list[object] = []

    def task() -> None:
        try:
            caught.append(sim.fibers.park())
        except ValueError as exc:
            caught.append(exc)

    spawned = sim.spawn_after(0, task)

    def both() -> None:
        assert sim.fibers.wake(spawned[0], "value") is True
        assert sim.fibers.throw(spawned[0], ValueError("late")) is True
        assert sim.fibers.wake(spawned[0], "value") is False

    sim.kernel.call_after(1, both)
    sim.run_out()
    assert [str(it) for it in caught] == ["late"]


def test_a_fiber_killed_before_it_started_does_not_start(sim: Simulation) -> None:
    seen: list[str] = []
    fiber = sim.fibers.spawn(Owner(), lambda: seen.append("ran"))
    sim.fibers.throw(fiber, FiberKilled())
    sim.run_out()
    assert (seen, fiber.state, sim.crashes) == ([], FiberState.ENDED, [])


def test_except_exception_does_not_hold_a_kill_and_finally_cannot_wait(sim: Simulation) -> None:
    seen: list[str] = []

    def task() -> None:
        try:
            try:
                sim.fibers.park()
            except Exception:  # noqa: BLE001  # what user code does
                seen.append("caught")
        finally:
            seen.append("finally")
            sim.fibers.sleep_ns(1_000_000)
            seen.append("slept")

    spawned = sim.spawn_after(0, task)
    sim.kernel.call_after(1, lambda: sim.fibers.throw(spawned[0], FiberKilled()))
    sim.run_out()
    assert seen == ["finally"]
    assert (spawned[0].state, spawned[0].killed, sim.crashes) == (FiberState.ENDED, True, [])
    assert sim.kernel.now_ns == 1


def test_what_escapes_from_a_killed_fiber_is_dropped(sim: Simulation) -> None:
    def task() -> None:
        try:
            sim.fibers.park()
        finally:
            raise ValueError("last words")

    spawned = sim.spawn_after(0, task)
    sim.kernel.call_after(1, lambda: sim.fibers.throw(spawned[0], FiberKilled()))
    sim.run_out()
    assert (spawned[0].state, sim.crashes) == (FiberState.ENDED, [])


def test_a_fiber_that_swallows_its_kill_is_abandoned() -> None:
    rethrows = []
    with simulation() as sim:

        def stubborn() -> None:
            while True:
                try:
                    sim.fibers.park()
                except BaseException as exc:  # noqa: BLE001  # what user code should not do
                    rethrows.append(exc)

        spawned = sim.spawn_after(0, stubborn)
        sim.kernel.call_after(1, lambda: sim.fibers.throw(spawned[0], FiberKilled()))
        sim.run_out()
        assert len(rethrows) == 1 + RETHROWS_MAX
        assert spawned[0].state is FiberState.ABANDONED
        assert sim.fibers.abandoned == spawned
        assert [fiber for fiber, _ in sim.crashes] == spawned
        assert sim.fibers.wake(spawned[0]) is False
    assert len(rethrows) == 1 + RETHROWS_MAX


def test_a_running_fiber_that_is_killed_stops_at_its_next_park(sim: Simulation) -> None:
    seen: list[str] = []

    def task() -> None:
        me = sim.fibers.current()
        assert me is not None
        sim.fibers.throw(me, FiberKilled())
        seen.append("still running")
        sim.fibers.sleep_ns(1)
        seen.append("slept")

    spawned = sim.spawn_after(0, task)
    sim.run_out()
    assert (seen, spawned[0].state) == (["still running"], FiberState.ENDED)


def test_what_escapes_from_a_fiber_goes_to_on_crash(sim: Simulation) -> None:
    def task() -> None:
        sim.fibers.sleep_ns(1)
        raise ValueError("bug")

    spawned = sim.spawn_after(0, task)
    sim.run_out()
    ((fiber, exc),) = sim.crashes
    assert fiber is spawned[0]
    assert str(exc) == "bug"


def test_without_on_crash_it_surfaces_in_the_driver() -> None:
    kernel = Kernel()
    fibers = FiberScheduler(kernel)
    fibers.adopt_current(Owner())
    try:
        kernel.call_after(1, lambda: fibers.spawn(Owner(), lambda: 1 / 0))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fibers.park()
        with pytest.raises(RuntimeError, match="nothing is left to happen"):
            fibers.park()
    finally:
        fibers.close()


def test_what_an_event_raises_surfaces_in_the_driver(sim: Simulation) -> None:
    def broken() -> None:
        raise AssertionError("an invariant does not hold")

    sim.kernel.call_after(5, broken)
    sim.kernel.call_after(6, sim.fibers.wake, sim.driver, "later")
    with pytest.raises(AssertionError, match="an invariant"):
        sim.fibers.park()
    assert sim.fibers.park() == "later"


def test_control_c_in_the_kernel_surfaces_in_the_driver(sim: Simulation) -> None:
    sim.kernel.call_after(5, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        sim.fibers.park()
    sim.fibers.sleep_ns(5)


def test_control_c_in_a_task_surfaces_in_the_driver(sim: Simulation) -> None:
    spawned = sim.spawn_after(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        sim.fibers.park()
    assert (spawned, sim.crashes) == ([], [])  # it came up through the event that spawned the task


def test_a_keyboard_interrupt_thrown_by_cancel_does_not(sim: Simulation) -> None:
    spawned = sim.spawn_after(0, sim.fibers.park)
    sim.kernel.call_after(1, lambda: sim.fibers.throw(spawned[0], KeyboardInterrupt()))
    sim.run_out()
    assert [type(exc) for _, exc in sim.crashes] == [KeyboardInterrupt]


def test_hooks_bracket_every_stretch_of_user_code(sim: Simulation) -> None:
    def task() -> None:
        sim.fibers.sleep_ns(10)

    sim.spawn_after(5, task, hostname="node-2")
    sim.fibers.sleep_ns(100)
    assert sim.switches == [
        ("resume", "driver"),
        ("suspend", "driver"),
        ("resume", "node-2"),
        ("suspend", "node-2"),
        ("resume", "node-2"),
        ("suspend", "node-2"),
        ("resume", "driver"),
    ]
    sim.fibers.close()
    assert sim.switches[-1] == ("suspend", "driver")


def test_contextvars_belong_to_the_fiber(sim: Simulation) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[tuple[str, str]] = []

    def task(name: str) -> Callable[[], None]:
        def run() -> None:
            before = variable.get()
            variable.set(name)
            sim.fibers.sleep_ns(10)
            seen.append((before, variable.get()))

        return run

    variable.set("driver")
    sim.spawn_after(1, task("one"))
    sim.spawn_after(1, task("two"))
    sim.fibers.sleep_ns(50)
    sim.spawn_after(1, task("three"))  # on a greenlet that was used before
    sim.fibers.sleep_ns(50)
    assert seen == [("unset", "one"), ("unset", "two"), ("unset", "three")]
    assert variable.get() == "driver"


def test_the_system_section_is_not_user_code(sim: Simulation) -> None:
    fibers = sim.fibers
    assert fibers.user_fiber() is sim.driver
    with fibers.system:
        assert fibers.user_fiber() is None
        assert fibers.current() is sim.driver
        with fibers.system:
            pass
        sim.spawn_after(1, lambda: seen.append(fibers.user_fiber() is fibers.current()))
        seen: list[bool] = []
        fibers.sleep_ns(5)
        assert seen == [True]  # the section is the driver's, not the other fiber's
        assert fibers.user_fiber() is None
    assert fibers.user_fiber() is sim.driver


def test_the_kernel_is_not_a_fiber(sim: Simulation) -> None:
    seen: list[Any] = []

    def event() -> None:
        seen.append(sim.fibers.current())
        sim.fibers.park()

    sim.kernel.call_after(1, event)
    with pytest.raises(RuntimeError, match="the kernel cannot wait for itself"):
        sim.fibers.park()
    assert seen == [None]


def test_parking_on_another_thread_is_a_clear_error(sim: Simulation) -> None:
    errors: list[BaseException] = []

    def elsewhere() -> None:
        assert sim.fibers.current() is None
        try:
            sim.fibers.park()
        except RuntimeError as exc:
            errors.append(exc)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "another OS thread" in str(errors[0])


def test_parking_in_a_foreign_greenlet_is_a_clear_error(sim: Simulation) -> None:
    with pytest.raises(RuntimeError, match="not a fiber of this simulation"):
        greenlet.greenlet(sim.fibers.park).switch()


def test_a_scheduler_has_one_driver_and_is_closed_by_it(sim: Simulation) -> None:
    with pytest.raises(RuntimeError, match="already has a driver"):
        sim.fibers.adopt_current(Owner())
    sim.kernel.call_after(1, sim.fibers.close)
    with pytest.raises(RuntimeError, match="only the driver can end"):
        sim.fibers.park()


def test_nothing_works_before_the_driver_is_there_or_after_the_end() -> None:
    fibers = FiberScheduler(Kernel())
    for _ in ("before", "after"):
        with pytest.raises(RuntimeError, match="not running"):
            fibers.park()
        with pytest.raises(RuntimeError, match=r"before spawning|closed"):
            fibers.spawn(Owner(), lambda: None)
        assert fibers.current() is None
        fibers.close()


def test_close_ends_every_fiber_in_order_and_lets_finally_run() -> None:
    seen: list[str] = []
    with simulation() as sim:

        def task(name: str) -> Callable[[], None]:
            def run() -> None:
                try:
                    sim.fibers.park()
                finally:
                    seen.append(name)

            return run

        for name in ("one", "two"):
            sim.spawn_after(1, task(name))
        sim.fibers.sleep_ns(5)
        late = sim.fibers.spawn(Owner(), task("never started"))
        events = sim.kernel.events_performed
    assert seen == ["one", "two"]
    assert late.state is FiberState.ENDED
    assert sim.kernel.events_performed == events
    assert sim.fibers.current() is None
    assert sim.fibers.closed
    sim.fibers.close()


def test_close_finishes_before_it_raises_what_on_crash_raised() -> None:
    kernel = Kernel()
    fibers = FiberScheduler(kernel)
    driver = fibers.adopt_current(Owner())

    def stubborn() -> None:
        while True:
            try:
                fibers.park()
            except FiberKilled:
                pass

    kernel.call_after(1, lambda: fibers.spawn(Owner(), stubborn))
    kernel.call_after(1, lambda: fibers.spawn(Owner(), fibers.park))
    kernel.call_after(2, fibers.wake, driver)
    fibers.park()
    with pytest.raises(RuntimeError, match="went on after"):
        fibers.close()
    assert fibers.closed
    assert not fibers._live


def greenlets_alive() -> int:
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # isinstance wakes deprecated attributes of lazy modules
        return sum(type(it) is greenlet.greenlet for it in gc.get_objects())


def use_greenlets() -> None:
    with simulation() as sim:
        used: set[int] = set()

        def task() -> None:
            used.add(id(greenlet.getcurrent()))
            sim.fibers.sleep_ns(1)

        for _ in range(50):
            sim.spawn_after(1, task)
            sim.fibers.sleep_ns(5)
        assert len(used) == 1
        for _ in range(50):
            sim.spawn_after(1, sim.fibers.park)
        sim.fibers.sleep_ns(5)


def test_greenlets_are_reused_and_none_is_left_after_close() -> None:
    before = greenlets_alive()
    use_greenlets()
    assert greenlets_alive() <= before


def test_simulations_that_share_greenlets_leave_them_to_the_next_and_nothing_with_them() -> None:
    idle: list[Any] = []
    owners: list[weakref.ref[Any]] = []
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable")

    class Person(Owner):
        pass

    def simulate(names: list[str]) -> list[int]:
        used: list[int] = []
        kernel = Kernel()
        fibers = FiberScheduler(kernel)
        fibers.share_greenlets(idle)
        fibers.adopt_current(Owner("driver"))

        def task() -> None:
            assert variable.get(None) is None
            fiber = fibers.current()
            assert fiber is not None
            variable.set(fiber.owner)
            used.append(id(greenlet.getcurrent()))
            fibers.sleep_ns(5)

        for name in names:
            owner = Person(name)
            owners.append(weakref.ref(owner))
            kernel.call_after(1, fibers.spawn, owner, task)
        fibers.sleep_ns(3)
        if len(names) < 3:  # the others end with the simulation
            fibers.sleep_ns(9)
        fibers.close()
        return used

    first = simulate(["a", "b", "c"])
    second = simulate(["d", "e"])
    third = simulate(["f", "g", "h", "i"])
    assert len(set(first)) == 3
    assert set(second) < set(first)
    assert set(first) < set(third)
    assert len(idle) == 4
    gc.collect()
    assert [owner() for owner in owners] == [None] * 9


def test_a_second_simulation_starts_from_zero() -> None:
    for _ in range(2):
        with simulation() as sim:
            sim.fibers.sleep_ns(7)
            assert sim.kernel.now_ns == 7


def test_a_driver_may_live_on_another_thread_than_the_main_one() -> None:
    seen: list[int] = []

    def script() -> None:
        with simulation() as sim:
            sim.fibers.sleep_ns(9)
            seen.append(sim.kernel.now_ns)

    thread = threading.Thread(target=script)
    thread.start()
    thread.join()
    assert seen == [9]
