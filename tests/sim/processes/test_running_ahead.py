"""Short ways that a simulation takes: a fiber ends before its task's time is over, a worker begins and reports plain
calls in fewer steps. Nobody can tell."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

import dualray
from dualray.exceptions import TaskCancelledError, TaskError

FAULTS: tuple[list[str], ...] = (
    [],
    ["kill worker when square starts 3"],
    ["kill worker when square ends 3"],
    ["kill worker when square ends 1", "kill node-2 when square ends 5"],
    ["pause node-1 when square ends 2 for 1s", "kill worker when square ends 4"],
    ["kill node-1 at 2.3s"],
    ["pause node-1 at 2.4s for 3s"],
    ["slow node-1 by 7 at 2.4s for 1s"],
)


def program(faults, *, runs_ahead=True, decision_log=None):
    """What a program has seen, and what its cluster has traced."""
    runtime: Any = dualray.init(mode="sim", nodes=3, num_cpus=2, seed=7, faults=faults, decision_log=decision_log)
    runtime.cluster.runs_ahead = runs_ahead
    name = dualray.remote(duration=lambda number: number / 10)(lambda number: f"number {number}")
    nap = dualray.remote(duration=1.0)(lambda: time.sleep(0.25))
    several = dualray.remote(duration=0.1)(lambda numbers: list(numbers))

    @dualray.remote(duration=0.5)
    def square(number):
        return number * number

    @dualray.remote(duration=0.2)
    def asks(number):
        return dualray.get(square.remote(number))

    try:
        refs = [square.remote(number) for number in range(8)]
        refs += [name.remote(number) for number in range(4)] + [nap.remote(), several.remote((1, 2)), asks.remote(5)]
        long = square.options(name="long").remote(100)
        time.sleep(2.0)
        last = [square.remote(number) for number in range(6)]
        time.sleep(0.7)
        dualray.cancel(last[5])
        dualray.cancel(last[0])
        seen = [dualray.get(refs), dualray.get(long), time.monotonic()]
        for ref in last:
            try:
                seen.append(dualray.get(ref))
            except TaskCancelledError:
                seen.append("cancelled")
        seen.append(time.monotonic())
        fibers = len(runtime.cluster.fibers._pool)
        assert len(runtime.cluster.faults.performed) == len(faults), "the run has what it is about"
        trace = [event.row() for event in runtime.cluster.trace_events]
        return seen, trace, runtime.examine(), fibers
    finally:
        dualray.shutdown()


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults[0] if faults else "calm")
def test_nobody_can_tell(faults):
    ahead = program(faults, runs_ahead=True)
    behind = program(faults, runs_ahead=False)
    assert ahead[:3] == behind[:3]
    assert ahead[0][0][:8] == [number * number for number in range(8)]
    assert not ahead[2].leaks


def test_a_task_that_has_run_ahead_can_be_cancelled():
    dualray.init(mode="sim", nodes=1, num_cpus=1)
    try:
        ref = dualray.remote(duration=10.0)(lambda: 1).remote()
        time.sleep(5.0)
        dualray.cancel(ref)
        with pytest.raises(TaskCancelledError):
            dualray.get(ref)
        assert 5.0 < time.monotonic() < 6.0
        assert dualray.get(dualray.remote(duration=1.0)(lambda: 2).remote()) == 2
    finally:
        dualray.shutdown()


def test_tasks_that_run_at_a_time_need_one_greenlet():
    runtime: Any = dualray.init(mode="sim", nodes=10, num_cpus=8)
    try:
        square = dualray.remote(duration=1.0)(lambda number: number * number)
        refs = [square.remote(number) for number in range(400)]
        assert sum(dualray.get(refs)) == sum(number * number for number in range(400))
        fetching = 80  # each worker parks once, for the function
        assert len(runtime.cluster.fibers._pool) <= fetching
        began = len(runtime.cluster.fibers._pool)
        dualray.get([square.remote(number) for number in range(400)])
        assert len(runtime.cluster.fibers._pool) == began
    finally:
        dualray.shutdown()


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults[0] if faults else "calm")
def test_whose_decisions_are_written_down_takes_no_short_way_and_does_the_same(faults, tmp_path):
    short = program(faults)
    written = program(faults, decision_log=tmp_path)
    assert list(tmp_path.glob("*.decisions"))
    assert short[:2] == written[:2], "but for messages that tell idle workers of the cluster, everything"


def lists(number):
    return [number]


def fails(number):
    raise ValueError(number)


def asks_who_it_is(number):
    return dualray.get_runtime_context().get_task_id()


def puts(number):
    return dualray.get(dualray.put(number))


def naps(number):
    time.sleep(1.0)
    return number


@pytest.mark.parametrize(
    ("function", "has_core"),
    [(abs, False), (lists, True), (fails, True), (asks_who_it_is, True), (puts, True), (naps, False)],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_a_worker_gets_a_core_of_its_own_when_it_does_more_than_plain_tasks(function, has_core):
    runtime: Any = dualray.init(mode="sim", nodes=1, num_cpus=1)
    try:
        task = dualray.remote(duration=1.0)(lambda number: function(number))
        for number in range(3):
            try:
                dualray.get(task.remote(number))
            except TaskError:
                assert function is fails
        [worker] = [process for process in runtime.cluster.processes.values() if "/" in process.address]
        assert worker.has_core is has_core
        assert not runtime.examine().leaks
    finally:
        dualray.shutdown()


def test_a_worker_that_is_handed_another_function_gets_a_core_that_knows_both():
    runtime: Any = dualray.init(mode="sim", nodes=1, num_cpus=1)
    try:
        calls = [dualray.remote(duration=1.0)(lambda number, factor=factor: number * factor) for factor in (2, 3)]
        began = []
        for call in (*calls, *calls):
            began.append(runtime.now_s)
            assert dualray.get(call.remote(7)) in (14, 21)
        [worker] = [process for process in runtime.cluster.processes.values() if "/" in process.address]
        assert worker.has_core
        took = [after - before for before, after in zip(began, [*began[1:], runtime.now_s], strict=True)]
        assert took[2] < took[1], "the function was asked for once"
        assert took[3] < took[1]
    finally:
        dualray.shutdown()


def test_a_core_that_is_lent_has_nothing_left_of_whom_it_served_before():
    """Two workers take turns with one core, and a third, which fails, keeps what it had."""
    runtime: Any = dualray.init(mode="sim", nodes=3, num_cpus=1)
    try:
        where = dualray.remote(duration=1.0, max_retries=1)(lambda number: os.getpid() if number < 90 else 1 // 0)
        pids = dualray.get([where.remote(number) for number in range(3)])
        assert len(set(pids)) == 3
        assert set(dualray.get([where.remote(number) for number in range(3)])) == set(pids)
        with pytest.raises(TaskError):
            dualray.get(where.remote(90))
        workers = [process for process in runtime.cluster.processes.values() if "/" in process.address]
        assert sum(worker.has_core for worker in workers) == 1
        assert {worker.pid for worker in workers} == set(pids)
        assert len({dualray.get(where.remote(number)) for number in range(30)}) <= 3
        assert not runtime.examine().leaks
    finally:
        dualray.shutdown()
