"""Two rows compared over paired seeds, and single changes ranked by what they gain."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray import whatif
from dualray.sim.replay.replayed import Replayed
from dualray.whatif.answers import verdicts_of
from dualray.whatif.compare import RESIDUAL, difference, single_changes
from dualray.whatif.configurations import Configuration


def recorded(path: Path, program: Callable[[], object]) -> whatif.Trace:
    ray.init(mode="sim", num_cpus=2, record=path)
    try:
        program()
    finally:
        ray.shutdown()
    return whatif.load(path)


def replays(*times_s: float, failed: str = "") -> list[Replayed]:
    return [Replayed(makespan_ns=round(each * 1e9), failed=failed) for each in times_s]


def test_what_both_have_in_common_cancels_out():
    paired = difference(replays(5.0, 10.0, 20.0), replays(2.5, 5.0, 10.0))
    assert paired.gain == pytest.approx(0.5)
    assert paired.is_sure
    assert paired.low == pytest.approx(1 - 0.5 * np.exp(RESIDUAL))
    unpaired = difference(replays(5.0, 10.0, 20.0), replays(10.0, 2.5, 5.0))
    assert unpaired.low < paired.low
    assert not unpaired.is_sure


def test_a_small_difference_is_not_sure_and_none_is_none():
    assert not difference(replays(10.0, 10.0), replays(9.5, 9.5)).is_sure
    assert difference(replays(10.0, 9.0), replays(10.0, 9.0)).high == 0.0
    with pytest.raises(ValueError, match="cannot be compared in pairs"):
        difference(replays(10.0), replays(9.0, 9.0))
    with pytest.raises(ValueError, match="a simulated run failed, so dualray cannot compare the run: no room"):
        difference(replays(10.0), replays(9.0, failed="no room"))


def test_each_change_changes_one_thing():
    base = Configuration(nodes=2, cpus=2)
    for words, config in single_changes(base):
        changed = [name for name in Configuration.__slots__ if getattr(config, name) != getattr(base, name)]
        assert len(changed) == 1, words


@pytest.mark.slow
def test_cpus_help_a_program_that_computes_and_a_network_one_that_moves(tmp_path):
    def computes() -> None:
        sleep = ray.remote(lambda: time.sleep(0.2))
        ray.get([sleep.remote() for _ in range(16)])

    trace = recorded(tmp_path / "computes.parquet", computes)
    found = whatif.predict(trace, nodes=[2], cpus=[2], seeds=3, jobs=1, price=1.0)
    helps = whatif.what_would_help(found, found.rows[0].configuration, jobs=1)
    assert {helps[0].words, helps[1].words} == {"twice the nodes", "twice the CPUs of each node"}
    for it in helps[:2]:
        assert it.difference is not None
        assert it.difference.is_sure
        assert it.difference.gain == pytest.approx(0.5, abs=0.05)
        assert it.cost == pytest.approx(it.configuration.nodes * it.makespan_s / 3600)
    by_words = {it.words: it for it in helps}
    assert by_words["twice the network"].difference is not None
    assert not by_words["twice the network"].difference.is_sure
    assert by_words["one node less"].difference is not None
    assert by_words["one node less"].difference.high < 0

    def moves() -> None:
        make = ray.remote(num_cpus=2)(lambda: np.ones(20_000_000, dtype=np.uint8))
        use = ray.remote(num_cpus=2)(lambda *arrays: None)
        ray.get([use.remote(*[make.remote() for _ in range(4)]) for _ in range(2)])

    trace = recorded(tmp_path / "moves.parquet", moves)
    found = whatif.predict(trace, nodes=[2], cpus=[2], network=["200Mbps"], seeds=1, jobs=1)
    helps = whatif.what_would_help(found, found.rows[0].configuration, jobs=1)
    faster = {it.words: it.difference.gain for it in helps if it.difference is not None}
    assert faster["twice the network"] > 0.3


def test_a_cluster_that_was_not_asked_for_is_refused(tmp_path):
    trace = recorded(tmp_path / "run.parquet", lambda: ray.get(ray.remote(lambda: 1).remote()))
    found = whatif.predict(trace, nodes=[1], seeds=1, jobs=1)
    with pytest.raises(ValueError, match="is not one of the configurations of this prediction"):
        whatif.what_would_help(found, Configuration(nodes=77, cpus=2))


def test_policies_are_told_apart_with_an_interval(tmp_path):
    def program() -> None:
        sleep: Any = ray.remote(lambda: time.sleep(0.1))
        ray.get([sleep.remote() for _ in range(8)])

    trace = recorded(tmp_path / "run.parquet", program)
    found = whatif.predict(trace, nodes=[2], cpus=[2], policy=["hybrid", "spread"], seeds=2, jobs=1)
    lines = [line for line in verdicts_of(found, None) if " faster than with " in line]
    assert len(lines) == 1
    assert "they may be equal" in lines[0]
