from __future__ import annotations

import os
import pickle
import queue
import select
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter, sleep
from time import time as now
from typing import Any

import cloudpickle
import pytest
from _pytest import timing

from dualray.sim.kernel.fibers import FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.usercode.substitutions import Substitutions
from dualray.sim.usercode.virtual_time import EPOCH_NS, READ_STEP_MIN_NS, VirtualTime

REPLACED = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
    "sleep",
    "localtime",
    "gmtime",
    "ctime",
    "asctime",
    "strftime",
)
ORIGINALS = {name: getattr(time, name) for name in REPLACED if hasattr(time, name)}
OLD_YEARS_S = 1_700_000_000  # a real clock of today reads more


@dataclass(frozen=True)
class Owner:
    pid: int = 4_200_001
    hostname: str = "node-1"


class Simulation:
    def __init__(self) -> None:
        self.kernel = Kernel()
        self.fibers = FiberScheduler(self.kernel)
        self.clock = VirtualTime(self.kernel, self.fibers)
        self.fibers.adopt_current(Owner())
        self.clock.install()

    def end(self) -> None:
        self.clock.uninstall()
        self.fibers.close()

    def in_a_task(self, fn: Callable[[], object]) -> object:
        """Run `fn` in a fiber of its own and wait for what it returns."""
        driver = self.fibers.driver
        assert driver is not None
        self.fibers.spawn(Owner(), lambda: self.fibers.wake(driver, fn()))
        return self.fibers.park()


@pytest.fixture(autouse=True)
def nothing_is_left_patched() -> Iterator[None]:
    yield
    assert {name: getattr(time, name) for name in ORIGINALS} == ORIGINALS
    assert (sleep, perf_counter, now) == tuple(ORIGINALS[name] for name in ("sleep", "perf_counter", "time"))
    assert with_default.__defaults__ == (ORIGINALS["time"],)
    assert with_keyword_default.__kwdefaults__ == {"clock": ORIGINALS["monotonic"]}
    assert vars(Stopwatch)["clock"] is ORIGINALS["perf_counter"]
    assert Stopwatch.sleep_default.__defaults__ == (ORIGINALS["sleep"],)


@pytest.fixture
def sim() -> Iterator[Simulation]:
    made = Simulation()
    yield made
    made.end()


def with_default(clock: Callable[[], float] = time.time) -> float:
    return clock()


def with_keyword_default(*, clock: Callable[[], float] = time.monotonic) -> float:
    return clock()


class Stopwatch:
    clock = time.perf_counter

    def read(self) -> float:
        return self.clock()  # type: ignore[misc]  # a built-in function does not turn into a method

    def sleep_default(self, wait: Callable[[float], None] = time.sleep) -> None:
        wait(1)


def test_clocks_start_at_the_epoch_and_at_zero(sim: Simulation) -> None:
    assert time.time() == EPOCH_NS / 1e9
    assert time.gmtime()[:6] == (2020, 1, 1, 0, 0, 0)
    assert time.monotonic() < 0.001
    assert time.perf_counter() < 0.001


def test_sleep_moves_every_clock_and_takes_no_real_time(sim: Simulation) -> None:
    names = [name for name in ORIGINALS if name.endswith("_ns")]
    before = {name: getattr(time, name)() for name in names}
    real = ORIGINALS["monotonic"]()
    time.sleep(86_400)
    after = {name: getattr(time, name)() for name in names}
    assert ORIGINALS["monotonic"]() - real < 60
    for name in names:
        assert 86_400 * 10**9 <= after[name] - before[name] < 86_400 * 10**9 + 10**6
        seconds = getattr(time, name.removesuffix("_ns"))()
        assert isinstance(seconds, float)
        assert seconds == pytest.approx(after[name] / 1e9, abs=1e-3)


def test_names_bound_earlier_are_virtual_too(sim: Simulation) -> None:
    start = now()
    assert start < OLD_YEARS_S
    sleep(10)
    assert now() - start == pytest.approx(10)
    assert perf_counter() == pytest.approx(10, abs=1e-3)
    assert with_default() == pytest.approx(EPOCH_NS / 1e9 + 10)
    assert with_keyword_default() == pytest.approx(10, abs=1e-3)
    assert Stopwatch().read() == pytest.approx(10, abs=1e-3)
    Stopwatch().sleep_default()
    assert perf_counter() == pytest.approx(11, abs=1e-3)


def test_the_calendar_functions_follow(sim: Simulation) -> None:
    time.sleep(3 * 86_400)
    assert time.gmtime().tm_mday == 4
    assert time.localtime().tm_year == time.localtime(time.time()).tm_year == 2020
    assert "2020" in time.ctime()
    assert "2020" in time.asctime()
    assert time.strftime("%Y") == "2020"
    # Given a time, they are what they always were.
    assert time.gmtime(0).tm_year == 1970
    assert time.strftime("%Y", time.gmtime(0)) == "1970"
    assert time.asctime(time.gmtime(0)) == "Thu Jan  1 00:00:00 1970"


def test_the_times_of_the_process_are_virtual_too(sim: Simulation) -> None:
    began = os.times()
    sleep(5)
    ended = os.times()
    assert ended.elapsed - began.elapsed == pytest.approx(5, abs=1e-4)
    assert ended.user == ended.elapsed
    assert (ended.system, ended.children_user, ended.children_system) == (0, 0, 0)
    with sim.fibers.system:
        assert os.times().elapsed != ended.elapsed


def test_to_select_nothing_is_to_sleep(sim: Simulation) -> None:
    assert select.select([], [], [], 3600) == ([], [], [])
    assert time.monotonic() == pytest.approx(3600)
    with pytest.raises(ValueError, match="non-negative"):
        select.select([], [], [], -1)


def test_to_select_something_real_is_real(sim: Simulation) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"x")
        assert select.select([reading], [], [], 60) == ([reading], [], [])
    finally:
        os.close(reading)
        os.close(writing)
    assert sim.kernel.now_ns == 0


def test_each_fiber_reads_the_same_clock(sim: Simulation) -> None:
    time.sleep(5)
    assert sim.in_a_task(time.monotonic) == pytest.approx(5, abs=1e-3)
    sim.in_a_task(lambda: time.sleep(2))
    assert sim.in_a_task(time.monotonic) == pytest.approx(7, abs=1e-3)
    assert time.monotonic() == pytest.approx(7, abs=1e-3)


def test_outside_user_code_the_clocks_are_real(sim: Simulation) -> None:
    seen: list[float] = []
    sim.kernel.call_after(1, lambda: seen.append(time.time()))
    sim.fibers.sleep_ns(2)
    thread = threading.Thread(target=lambda: seen.extend((time.time(), now(), with_default())))
    thread.start()
    thread.join()
    with sim.fibers.system:
        seen.append(time.time())
        time.sleep(0)
        events = sim.kernel.events_performed
        time.time()
        assert sim.kernel.events_performed == events
    assert len(seen) == 5
    assert min(seen) > OLD_YEARS_S


def test_a_program_that_polls_the_clock_comes_to_an_end(sim: Simulation) -> None:
    happened: list[int] = []
    sim.kernel.call_after(7 * 10**9, lambda: happened.append(sim.kernel.now_ns))
    deadline, reads = time.monotonic() + 60, 0
    while time.monotonic() < deadline:
        reads += 1
    assert 60 <= sim.kernel.now_ns / 1e9 < 60.01
    assert happened == [7 * 10**9]  # it let others go on
    assert reads < 120_000


def test_polling_between_zero_sleeps_comes_to_an_end_too(sim: Simulation) -> None:
    deadline = time.monotonic() + 0.01
    while time.monotonic() < deadline:
        time.sleep(0)
    assert sim.kernel.now_ns >= 10**7


def test_waiting_with_zero_sleeps_comes_to_an_end(sim: Simulation) -> None:
    happened: list[int] = []
    sim.kernel.call_after(10**6, happened.append, 1)
    while not happened:
        time.sleep(0)
    assert 10**6 <= sim.kernel.now_ns < 2 * 10**6


def test_consecutive_reads_advance_by_a_microsecond_and_more(sim: Simulation) -> None:
    first, second, third = time.monotonic_ns(), time.monotonic_ns(), time.monotonic_ns()
    assert second - first == READ_STEP_MIN_NS
    assert READ_STEP_MIN_NS < third - second < 2 * READ_STEP_MIN_NS
    time.sleep(1)
    fourth = time.monotonic_ns()
    assert fourth - third == 10**9  # the first read after a wait is free
    assert time.monotonic_ns() - fourth == READ_STEP_MIN_NS  # and the steps start over


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (-1, ValueError),
        (-0.5, ValueError),
        (float("nan"), ValueError),
        (float("inf"), OverflowError),
        ("1", TypeError),
        (None, TypeError),
    ],
)
def test_sleep_refuses_what_the_real_one_refuses(argument: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        time.sleep(argument)
    sim = Simulation()
    try:
        with pytest.raises(error):
            time.sleep(argument)
    finally:
        sim.end()


def test_time_without_a_simulation_is_untouched() -> None:
    Simulation().end()
    assert time.time() > OLD_YEARS_S


def test_two_simulations_at_once_are_refused(sim: Simulation) -> None:
    with pytest.raises(RuntimeError, match="another simulation"):
        VirtualTime(sim.kernel, sim.fibers).install()
    assert time.time() < OLD_YEARS_S  # and the first one goes on


def test_a_replacement_that_outlives_its_simulation_is_the_original() -> None:
    sim = Simulation()
    kept = types.SimpleNamespace(sleep=time.sleep, time=time.time)
    sim.end()
    assert kept.time() > OLD_YEARS_S
    kept.sleep(0)


def test_what_modules_bind_during_a_simulation_is_swept_out(tmp_path: Any, monkeypatch: Any) -> None:
    source = "from time import sleep, time\ndef read(clock=time):\n    return clock()\n"
    (tmp_path / "imported_meanwhile.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    sim = Simulation()
    try:
        import imported_meanwhile  # type: ignore[import-not-found]

        assert imported_meanwhile.read() < OLD_YEARS_S
    finally:
        sim.end()
        del sys.modules["imported_meanwhile"]
    assert imported_meanwhile.sleep is ORIGINALS["sleep"]
    assert imported_meanwhile.time is ORIGINALS["time"]
    assert imported_meanwhile.read.__defaults__ == (ORIGINALS["time"],)


def test_a_place_that_someone_else_wrote_meanwhile_is_theirs() -> None:
    sim = Simulation()
    theirs: Any = object()
    time.gmtime = theirs
    try:
        sim.end()
        assert time.gmtime is theirs
    finally:
        time.gmtime = ORIGINALS["gmtime"]


def test_the_standard_library_and_our_own_code_keep_the_real_clocks(sim: Simulation) -> None:
    assert vars(queue)["time"] is ORIGINALS["monotonic"]
    assert timing.perf_counter is ORIGINALS["perf_counter"]


def test_replacements_are_pickled_by_reference(sim: Simulation) -> None:
    for name, original in ORIGINALS.items():
        replacement = getattr(time, name)
        assert pickle.loads(pickle.dumps(replacement)) is replacement
        assert cloudpickle.loads(cloudpickle.dumps(replacement)) is replacement
        assert replacement.__name__ == name
        assert replacement.__doc__ == original.__doc__


def function_by_value(source: str, name: str) -> Any:
    """A function as cloudpickle makes one: its globals belong to no module."""
    namespace = {"__name__": "gone", "time": ORIGINALS["time"], "sleep": ORIGINALS["sleep"], "module": time}
    exec(source, namespace)
    return namespace[name]


BY_VALUE = """
def helper():
    sleep(5)

def make(clock):
    def shipped(read=time, *, again=time):
        helper()
        return read(), again(), clock(), time(), module.time(), Timer().clock()
    return shipped

class Timer:
    clock = time

shipped = make(time)
"""


def test_a_function_shipped_by_value_is_rewritten(sim: Simulation) -> None:
    shipped = function_by_value(BY_VALUE, "shipped")
    sim.clock.rewrite_function(shipped)
    assert shipped() == pytest.approx((EPOCH_NS / 1e9 + 5,) * 6, abs=1e-3)
    timer = shipped.__globals__["Timer"]
    sim.end()
    assert shipped.__defaults__ == (ORIGINALS["time"],)
    assert shipped.__kwdefaults__ == {"again": ORIGINALS["time"]}
    assert shipped.__globals__["sleep"] is ORIGINALS["sleep"]
    assert vars(timer)["clock"] is ORIGINALS["time"]


def test_a_method_and_a_class_shipped_by_value_are_rewritten(sim: Simulation) -> None:
    source = "class Actor:\n    def read(self, clock=time):\n        return clock() + time()\n"
    for through in (lambda actor: actor, lambda actor: actor().read):
        actor = function_by_value(source, "Actor")
        sim.clock.rewrite_function(through(actor))
        assert actor().read() < 2 * OLD_YEARS_S


def test_a_function_pickled_before_the_simulation_arrives_with_virtual_time() -> None:
    data = cloudpickle.dumps(function_by_value(BY_VALUE, "shipped"))
    sim = Simulation()
    try:
        assert max(cloudpickle.loads(data)()) < OLD_YEARS_S
    finally:
        sim.end()


def test_rewriting_needs_an_installation() -> None:
    sim = Simulation()
    sim.end()
    with pytest.raises(RuntimeError, match="not installed"):
        sim.clock.rewrite_function(with_default)


def test_a_failed_installation_leaves_nothing(monkeypatch: Any) -> None:
    kernel = Kernel()
    substitutions = Substitutions(VirtualTime(kernel, FiberScheduler(kernel)).substitutions())

    def fail(module: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(substitutions, "_sweep_module", fail)
    with pytest.raises(KeyboardInterrupt):
        substitutions.install()
    assert not substitutions.installed


def test_substitutions_are_a_context_manager() -> None:
    kernel = Kernel()
    with Substitutions(VirtualTime(kernel, FiberScheduler(kernel)).substitutions()) as standing:
        assert time.sleep is not ORIGINALS["sleep"]
        with pytest.raises(RuntimeError, match="already replaced"):
            standing.install()
    standing.uninstall()
