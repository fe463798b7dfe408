from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from dualray.shared.model.config import Config
from dualray.shared.scenario.chaos import WEIGHTS, Ground, draw_schedule
from dualray.shared.scenario.fault_model import OF_WORKERS, FaultKind, parse_fault

GROUND = Ground(nodes=["node-1", "node-2"], tasks=["f", "g"], actors=["Counter"], config=Config())
FIRST_OF_SEED_7 = [
    "reboot node-2 at 0.624s for 0.547s",
    "lose object when object_stored 20",
    "pause worker when f starts 32 for 0.153s",
    "kill worker when g starts 30",
]


def test_a_seed_gives_the_same_faults_and_another_seed_others():
    first = draw_schedule(GROUND, seed=1, count=100)
    assert first == draw_schedule(GROUND, seed=1, count=100)
    assert first[:30] == draw_schedule(GROUND, seed=1, count=30), "a longer soak begins as the shorter one"
    assert first != draw_schedule(GROUND, seed=2, count=100)


def test_the_schedule_of_a_seed_stays():
    assert [str(fault) for fault in draw_schedule(GROUND, seed=7, count=4)] == FIRST_OF_SEED_7


def test_every_fault_can_be_written_down_and_read_again():
    for fault in draw_schedule(GROUND, seed=3, count=300):
        assert parse_fault(str(fault)) == fault


def test_every_kind_comes_about_as_often_as_it_weighs():
    drawn = Counter(fault.kind for fault in draw_schedule(GROUND, seed=5, count=4000))
    for kind, weight in WEIGHTS.items():
        share = weight / sum(WEIGHTS.values())
        assert 0.6 * share < drawn[kind] / 4000 < 1.6 * share, kind


def test_pauses_are_shorter_and_longer_than_the_suspicion():
    timeout_ns, suspicion_ns = GROUND.config.heartbeat_timeout_ns, GROUND.config.suspicion_ns
    pauses = [f.for_ns or 0 for f in draw_schedule(GROUND, seed=5, count=300) if f.kind is FaultKind.PAUSE_NODE]
    assert any(pause_ns <= timeout_ns for pause_ns in pauses)
    assert any(timeout_ns < pause_ns < timeout_ns + suspicion_ns for pause_ns in pauses)
    assert any(pause_ns > timeout_ns + suspicion_ns for pause_ns in pauses)


def test_a_node_that_is_told_to_leave_has_another_in_its_place_within_seconds():
    drains = [f.for_ns or 0 for f in draw_schedule(GROUND, seed=5, count=300) if f.kind is FaultKind.DRAIN_NODE]
    assert drains and all(500_000_000 <= drain_ns <= 5_000_000_000 for drain_ns in drains)


def test_anchors_and_times_rise():
    faults = draw_schedule(GROUND, seed=5, count=300)
    times = [fault.at_ns for fault in faults if fault.at_ns is not None]
    assert all(one < other for one, other in pairwise(times))
    for name in GROUND.tasks:
        for event in ("task_started", "task_ended"):
            starts = [fault.start for fault in faults if (fault.task_name, fault.event) == (name, event)]
            assert all(one < other for one, other in pairwise(starts))


def test_what_is_not_there_cannot_be_befallen():
    alone = Ground(nodes=[], tasks=["f"], config=Config())
    kinds = {fault.kind for fault in draw_schedule(alone, seed=1, count=100)}
    assert kinds == {*OF_WORKERS, FaultKind.RESTART_HEAD, FaultKind.PAUSE_HEAD, FaultKind.SLOW_HEAD}
    nobody = Ground(nodes=[], config=Config(), kinds=frozenset({FaultKind.PAUSE_NODE}))
    with pytest.raises(ValueError, match="dualray cannot choose faults at random"):
        draw_schedule(nobody, seed=1, count=1)
