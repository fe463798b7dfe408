"""What few programs do, recorded and replayed: generators, placement groups, kills, cancelled tasks, labels."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray import whatif
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.scheduling_strategies import NodeLabelSchedulingStrategy, PlacementGroupSchedulingStrategy
from dualray.whatif.answers import answers_of


def generators() -> None:
    """One whose items are large, one that waits for its consumer, and one of the old kind."""

    @ray.remote(num_returns="streaming", duration=0.01)
    def make(count: int, size: int) -> Any:
        for _ in range(count):
            time.sleep(0.02)
            yield np.zeros(size)

    @ray.remote(duration=0.01)
    def use(array: Any) -> int:
        return len(array)

    @ray.remote(num_returns="dynamic", duration=0.01)
    def some() -> Any:
        yield from range(3)

    used = [use.remote(ref) for ref in make.remote(4, 100_000)]
    for ref in make.options(_generator_backpressure_num_objects=1).remote(4, 10):
        time.sleep(0.05)
        used.append(use.remote(ref))
    assert ray.get(used) == [100_000] * 4 + [10] * 4
    assert ray.get(list(ray.get(some.remote()))) == [0, 1, 2]


def groups() -> None:
    """Tasks in both bundles of a placement group, and one after its end."""
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    ray.get(group.ready())
    task = ray.remote(duration=0.05)(abs)
    places = [PlacementGroupSchedulingStrategy(group, index % 2) for index in range(6)]
    ray.get([task.options(scheduling_strategy=place).remote(1) for place in places])
    remove_placement_group(group)
    ray.get(task.remote(1))


def ends() -> None:
    """An actor is killed in the middle of a call, and a task is cancelled."""

    @ray.remote
    class Sleeper:
        def sleep(self, seconds: float) -> None:
            time.sleep(seconds)

    sleeper: Any = Sleeper.options(num_cpus=0).remote()  # type: ignore[attr-defined]
    ray.get(sleeper.sleep.remote(0.02))
    asleep = sleeper.sleep.remote(60)
    time.sleep(0.05)
    ray.kill(sleeper)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(asleep)
    forever = ray.remote(time.sleep).remote(60)
    time.sleep(0.05)
    ray.cancel(forever)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(forever)


@pytest.mark.parametrize("program", [generators, groups, ends])
def test_it_is_replayed_as_it_was_simulated(tmp_path: Path, program: Callable[[], None]):
    started: Any = ray.init(mode="sim", num_cpus=2, record=tmp_path / "run.parquet")
    try:
        began_s = started.now_s
        program()
        simulated_s = started.now_s - began_s
    finally:
        ray.shutdown()
    loaded = whatif.load(tmp_path / "run.parquet")
    [row, larger] = whatif.predict(loaded, nodes=[1, 3], cpus=[2], cores=99, seeds=1, jobs=1).rows
    assert not row.lacks
    assert row.makespan_s == pytest.approx(simulated_s, rel=0.05)
    assert not larger.lacks
    assert row.attempts == larger.attempts == len(loaded.graph.tasks)


@pytest.mark.parametrize("program", [generators, *(pytest.param(it, marks=pytest.mark.slow) for it in (groups, ends))])
def test_real_runs_are_recorded_and_replayed_too(tmp_path: Path, program: Callable[[], None]):
    ray.init(mode="real", num_cpus=2, record=tmp_path / "run.parquet", log_to_driver=False)
    try:
        program()
    finally:
        ray.shutdown()
    loaded = whatif.load(tmp_path / "run.parquet")
    found = whatif.predict(loaded, nodes=[2], cpus=[2], seeds=1, jobs=1)
    [row] = found.rows
    recorded_s = loaded.graph.makespan_ns / 1e9
    assert not row.lacks
    assert row.makespan_s < 1.2 * recorded_s
    assert found.check_s is not None
    assert found.check_s < 1.2 * recorded_s
    words = "\n".join(answers_of(found, None))
    assert f"The recorded run took {recorded_s:.4g} s" in words
    assert not loaded.graph.cold_start_ns or "`--cold-start recorded` adds this time" in words


def test_a_cluster_that_starts_with_the_program_takes_longer(tmp_path: Path):
    ray.init(mode="sim", num_cpus=2, record=tmp_path / "run.parquet")
    ray.get([ray.remote(duration=0.1)(abs).remote(number) for number in range(4)])
    ray.shutdown()
    times = [
        whatif.predict(tmp_path / "run.parquet", nodes=[1], seeds=1, jobs=1, cold_start=each).rows[0].makespan_s
        for each in (None, "300ms", 0.3, "recorded")
    ]
    assert times[1] == times[2] == pytest.approx(times[0] + 0.3, abs=0.01)
    assert times[3] == times[0], "a simulation has no cold start"


def test_a_cluster_without_room_for_a_placement_group_says_what_lacks(tmp_path: Path):
    ray.init(mode="sim", num_cpus=2, record=tmp_path / "run.parquet")
    groups()
    ray.shutdown()
    [row] = whatif.predict(tmp_path / "run.parquet", nodes=[1], cpus=[1], seeds=1, jobs=1).rows
    assert "a placement group of the program can never be reserved: its bundles demand 2 CPU" in row.lacks


def test_what_a_replay_leaves_out_is_said_in_words(tmp_path: Path):
    ray.init(mode="sim", num_cpus=2, labels={"zone": "a"}, record=tmp_path / "run.parquet")
    task = ray.remote(duration=0.01)(abs)
    here = NodeLabelSchedulingStrategy(hard={"zone": ray.util.scheduling_strategies.In("a")})
    ray.get(task.options(name="near", scheduling_strategy=here).remote(1))

    @ray.remote(max_concurrency=2)
    class Many:
        def call(self) -> int:
            return 1

    ray.get(Many.remote().call.remote())  # type: ignore[attr-defined]
    ray.shutdown()
    found = whatif.predict(tmp_path / "run.parquet", nodes=[1], seeds=1, jobs=1)
    assert not found.rows[0].lacks
    words = "\n".join(answers_of(found, None))
    assert "The prediction ignores labels: near requested nodes by label" in words
    assert "In the prediction, an actor runs one method at a time." in words
