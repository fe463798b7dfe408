"""Drawn durations keep what they depend on; no prediction is below what no run can beat."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

import dualray as ray
from dualray import whatif
from dualray.recording.file import read_record_file
from dualray.whatif.bounds import busiest_actor_ns, least_ns
from dualray.whatif.durations import Call, Durations, groups_of, keeps_own

MS = 1_000_000


def calls(took_ms: list[float], **features: list[Any]) -> list[Call]:
    """Calls of one function: what each took, and what differs between them."""
    count = len(took_ms)
    columns = [features.get(name, [0] * count) for name in ("actor", "values", "size", "place")]
    return [
        Call(bytes([index]), round(ms * MS), each)
        for index, (ms, each) in enumerate(zip(took_ms, zip(*columns, strict=True), strict=True))
    ]


def noisy(rng: random.Random, ms: float) -> float:
    return ms * rng.lognormvariate(0, 0.05)


@pytest.mark.parametrize("feature", ["actor", "values", "size", "place"])
@pytest.mark.parametrize("seed", range(5))
def test_groups_that_differ_are_told_apart_and_groups_that_do_not_are_pooled(feature, seed):
    rng = random.Random(seed)
    kinds = [index % 3 for index in range(30)]
    apart = calls([noisy(rng, 10 * (1 + kind)) for kind in kinds], **{feature: kinds})
    assert sorted(len(group) for group in groups_of(apart)) == [10, 10, 10]
    alike = calls([noisy(rng, 10) for _ in kinds], **{feature: kinds})
    assert [len(group) for group in groups_of(alike)] == [30]


def test_of_two_things_that_differ_the_one_that_explains_the_durations_counts():
    rng = random.Random(1)
    actors, values = [index % 2 for index in range(40)], [index // 2 % 4 for index in range(40)]
    found = groups_of(calls([noisy(rng, 10 * (1 + value)) for value in values], actor=actors, values=values))
    assert sorted(len(group) for group in found) == [10, 10, 10, 10]
    both = groups_of(
        calls(
            [noisy(rng, 10 * (1 + value) * (1 + 9 * actor)) for actor, value in zip(actors, values, strict=True)],
            actor=actors,
            values=values,
        )
    )
    assert len(both) == 8


def test_calls_that_were_all_given_other_values_keep_their_own_durations():
    rng = random.Random(2)
    took = [rng.uniform(5, 50) for _ in range(20)]
    [group] = groups_of(calls(took, values=list(range(20))))
    assert keeps_own(group)
    [same] = groups_of(calls([10.0] * 20, values=list(range(20))))
    assert not keeps_own(same)
    [unknown] = groups_of(calls(took))
    assert not keeps_own(unknown)


def pipeline(path: Path, items: int) -> None:
    """Three actors in a row: each item passes all of them, and the middle one works longest."""

    @ray.remote
    class Stage:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def work(self, item: int) -> int:
            time.sleep(self.seconds)
            return item

    ray.init(mode="sim", num_cpus=4, record=path)
    try:
        new: Any = Stage.remote  # type: ignore[attr-defined]
        stages = [new(seconds) for seconds in (0.02, 0.15, 0.05)]
        refs = []
        for item in range(items):
            ref: Any = item
            for stage in stages:
                ref = stage.work.remote(ref)
            refs.append(ref)
        ray.get(refs)
    finally:
        ray.shutdown()


def test_a_pipeline_is_as_slow_as_its_slowest_actor_with_every_seed(tmp_path):
    pipeline(tmp_path / "run.parquet", 20)
    trace = whatif.load(tmp_path / "run.parquet")
    assert busiest_actor_ns(trace.graph) == pytest.approx(20 * 150 * MS, rel=0.02)
    found = whatif.predict(trace, nodes=[1], cpus=[4], seeds=5, jobs=1)
    for _, _, replayed in found.runs:
        assert replayed.makespan_ns == pytest.approx(trace.graph.makespan_ns, rel=0.02)


def test_the_record_tells_which_calls_were_given_the_same_values(tmp_path):
    @ray.remote
    def work(number: int, *, words: str = "") -> int:
        return number

    ray.init(mode="sim", record=tmp_path / "run.parquet")
    asked = [(1, "a"), (2, "a"), (1, "b"), (1, "a"), (2, "a")]
    ray.get([work.remote(number, words=words) for number, words in asked])
    ray.shutdown()
    rows = list(read_record_file(tmp_path / "run.parquet").of_kind("task"))
    assert [row["values"] for row in rows] == [1, 2, 3, 1, 2]


def test_a_duration_that_depends_on_a_value_is_drawn_from_calls_with_that_value(tmp_path):
    @ray.remote
    def work(tenths: int) -> None:
        time.sleep(tenths / 10)

    ray.init(mode="sim", num_cpus=2, record=tmp_path / "run.parquet")
    ray.get([work.remote(number % 4) for number in range(24)])
    ray.shutdown()
    graph = whatif.load(tmp_path / "run.parquet").graph
    draws = Durations(graph)
    for task_id, node in graph.tasks.items():
        alike = draws.alike(task_id)
        assert len(alike) == 6
        assert max(alike) - min(alike) < 10 * MS
        assert node.script.compute_ns in alike


def test_no_prediction_is_below_the_critical_path(tmp_path):
    @ray.remote
    def link(before: Any, seconds: float) -> None:
        time.sleep(seconds)

    ray.init(mode="sim", num_cpus=4, record=tmp_path / "run.parquet")
    ref: Any = None
    for number in range(12):
        ref = link.remote(ref, 0.01 + number / 100)
    others = [link.remote(None, 0.5) for _ in range(3)]
    ray.get([ref, *others])
    ray.shutdown()
    graph = whatif.load(tmp_path / "run.parquet").graph
    work_s = sum(0.01 + number / 100 for number in range(12))
    assert work_s < least_ns(graph) / 1e9 < 1.05 * work_s + 12 * 0.0012
    found = whatif.predict(tmp_path / "run.parquet", nodes=[1, 8], cpus=[8], seeds=4, jobs=1)
    assert all(row.low_s >= least_ns(graph) / 1e9 for row in found.rows)


def test_work_that_the_end_does_not_wait_for_is_no_bound(tmp_path):
    @ray.remote
    class Slow:
        def work(self) -> None:
            time.sleep(1)

    ray.init(mode="sim", num_cpus=2, record=tmp_path / "run.parquet")
    slow: Any = Slow.remote()  # type: ignore[attr-defined]
    ray.get(slow.work.remote())
    kept = [slow.work.remote() for _ in range(5)]
    ray.shutdown()
    del kept
    assert busiest_actor_ns(whatif.load(tmp_path / "run.parquet").graph) == pytest.approx(1e9, rel=0.01)


def test_a_program_that_goes_on_with_the_first_has_no_fixed_path(tmp_path):
    @ray.remote
    def work(seconds: float) -> None:
        time.sleep(seconds)

    ray.init(mode="sim", num_cpus=2, record=tmp_path / "run.parquet")
    left = [work.remote(0.1 * number) for number in range(1, 5)]
    while left:
        _, left = ray.wait(left)
    ray.shutdown()
    assert least_ns(whatif.load(tmp_path / "run.parquet").graph) == 0
