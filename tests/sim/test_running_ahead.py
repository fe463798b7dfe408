"""Short ways that a simulation takes: a fiber ends before its task's time is over, a worker begins and reports plain
calls in fewer steps. Nobody can tell."""

from __future__ import annotations

import time
from typing import Any

import pytest

import dualray
from dualray.exceptions import TaskCancelledError

FAULTS: tuple[list[str], ...] = (
    [],
    ["kill worker when square starts 3"],
    ["kill node-1 at 2.3s"],
    ["pause node-1 at 2.4s for 3s"],
    ["slow node-1 by 7 at 2.4s for 1s"],
)


def program(faults, *, runs_ahead=True, decision_log=None):
    """What a program has seen, and what its cluster has traced."""
    runtime: Any = dualray.init(mode="sim", nodes=3, num_cpus=2, seed=7, faults=faults, decision_log=decision_log)
    runtime.cluster.runs_ahead = runs_ahead
    square = dualray.remote(duration=0.5)(lambda number: number * number)
    name = dualray.remote(duration=lambda number: number / 10)(lambda number: f"number {number}")
    nap = dualray.remote(duration=1.0)(lambda: time.sleep(0.25))
    several = dualray.remote(duration=0.1)(lambda numbers: list(numbers))

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
