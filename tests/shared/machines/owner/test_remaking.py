"""Results that are lost again before anybody has had them: found by exploration, and by shuffles in small stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualray.shared.machines.owner.lineage import MOVES_MAX
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    CopiesDoubted,
    CopiesJudged,
    ItemReported,
    LeaseRequested,
    LocationsWanted,
    ObjectDemanded,
    ObjectFailed,
    RefsDropped,
    Result,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, PlacementGroupID
from dualray.shared.model.specs import LabelOperator, LabelTerm, Strategy, StrategyKind, Streaming
from tests.shared.builders import OwnerStepper, cpus, oid, put_id, ref, sent, task, tid
from tests.shared.machines.owner.answers import pushes, retries

REMAKES_MAX = Config().remakes_without_progress_max


@pytest.fixture
def driver() -> OwnerStepper:
    return OwnerStepper()


def lost(driver: OwnerStepper, object_id, losses: int, *, asked: bool = False):
    return driver(ObjectDemanded(object_id=object_id, losses=losses, asked=asked))


def test_a_task_that_is_woken_by_what_is_lost_in_the_same_step_is_woken_again(driver):
    driver.run(1, inline=False, max_retries=5)
    driver.run(2, lease=1, deps=(ref(oid(1)),), inline=False, max_retries=5)
    driver(RefsDropped(object_ids=(oid(1),)))
    assert [number for number, _, _ in retries(lost(driver, oid(2), 1))] == [1, 2]
    assert retries(lost(driver, oid(1), 0)) == []  # a copy had come and gone before we heard that it is made
    assert retries(driver.finish(1, attempt=1, inline=False)) == [(1, 2, "reconstruction")]
    assert (2, 1) in [push[:2] for push in pushes(driver.finish(1, attempt=2, inline=False))]


def test_what_a_running_attempt_makes_for_another_is_not_given_up(driver):
    driver.submit(task(1, num_returns=2, max_retries=1))
    driver.grant()
    driver.finish(1, inline=False, returns=2)
    driver.run(3, lease=1, deps=(ref(oid(1, 1)),), inline=False, max_retries=1)
    lost(driver, oid(1, 0), 1)
    driver(RefsDropped(object_ids=(oid(1, 1),)))
    commands = lost(driver, oid(3), 1)
    assert sent(commands, ObjectFailed, HEAD) == []
    assert (3, 1) in [push[:2] for push in pushes(driver.finish(1, attempt=1, inline=False, returns=2))]


def test_what_was_lost_while_it_was_made_for_another_is_asked_for_again(driver):
    """The attempt may have found the old copy, and written none."""
    driver.submit(task(1, num_returns=2, max_retries=5))
    driver.grant()
    driver.finish(1, inline=False, returns=2)
    lost(driver, oid(1, 0), 1)
    assert retries(lost(driver, oid(1, 1), 1)) == []
    asked = sent(driver.finish(1, attempt=1, inline=False, returns=2), LocationsWanted, HEAD)
    assert [(question.object_id, question.by_owner) for question in asked] == [(oid(1, 1), True)]
    assert retries(lost(driver, oid(1, 1), 1, asked=True)) == [(1, 2, "reconstruction")]


def test_what_is_made_again_in_vain_is_given_up_with_the_way_out(driver):
    driver.run(1, inline=False, max_retries=-1)
    driver.submit(task(2, deps=(ref(oid(1)),)))
    for losses in range(1, REMAKES_MAX + 1):
        assert retries(lost(driver, oid(1), losses)) == [(1, losses, "reconstruction")]
        driver.finish(1, attempt=losses, inline=False)
    (failed,) = sent(lost(driver, oid(1), REMAKES_MAX + 1), ObjectFailed, HEAD)
    assert failed.error.kind is ErrorKind.RECONSTRUCTION_FAILED
    assert "it was recomputed 8 times, and lost each time" in failed.error.message
    assert "Set object_store_memory= higher" in failed.error.message


def test_what_is_lost_while_a_node_is_held_up_is_not_in_vain(driver):
    """Its store is full of what stands still behind a partition, and that has an end."""
    driver.run(1, inline=False, max_retries=-1)
    driver.submit(task(2, deps=(ref(oid(1)),)))
    for losses in range(1, 3 * REMAKES_MAX):
        commands = driver(ObjectDemanded(object_id=oid(1), losses=losses, is_held_up=True))
        assert retries(commands) == [(1, losses, "reconstruction")]
        driver.finish(1, attempt=losses, inline=False)
    for more in range(REMAKES_MAX):
        losses += 1
        assert retries(lost(driver, oid(1), losses)) == [(1, losses, "reconstruction")], more
        driver.finish(1, attempt=losses, inline=False)
    assert sent(lost(driver, oid(1), losses + 1), ObjectFailed, HEAD)


@pytest.mark.parametrize("progress", ["a task ends", "a wait ends", "nobody needs it"])
def test_what_is_made_again_is_not_in_vain_while_something_comes_of_it(driver, progress):
    driver.run(1, inline=False, max_retries=-1)
    if progress != "nobody needs it":
        driver.submit(task(2, deps=(ref(oid(1)),)))
    for losses in range(1, 3 * REMAKES_MAX):
        if losses % REMAKES_MAX == 0 and progress == "a task ends":
            driver.put(losses)
            driver.submit(task(100 + losses, resources=cpus(2)))
        if losses % REMAKES_MAX == 0 and progress == "a wait ends":
            driver.wait(losses, ref(oid(2)))
        assert retries(lost(driver, oid(1), losses)) == [(1, losses, "reconstruction")]
        driver.finish(1, attempt=losses, inline=False)


def why_given_up(*, is_held_up: bool = False) -> list[str]:
    """A task waits for an item of a generator that is lost again and again, behind the attempt that has made it."""
    driver = OwnerStepper()
    spec = task(1, max_retries=-1)
    spec.template = replace(spec.template, streaming=Streaming.DYNAMIC)
    driver.submit(spec)
    driver.grant()
    made = Result(object_id=oid(1, 1), size_bytes=10, inline=False)
    report = ItemReported(task_id=tid(1), attempt=0, worker=Address("node-0/w0"), result=made)
    commands = driver(report)
    driver.submit(task(2, deps=(ref(oid(1, 1)),)))
    for attempt in range(3 * REMAKES_MAX):
        driver(replace(report, attempt=attempt))
        driver(ObjectDemanded(object_id=oid(1, 1), losses=attempt + 1, is_held_up=is_held_up))
        commands += driver.finish(1, attempt=attempt, nested=(ref(oid(1, 1)),)) + driver.push_deferred()
    return [failed.error.message for failed in sent(commands, ObjectFailed, HEAD)]


def test_what_a_generator_makes_again_in_vain_is_given_up_with_the_way_out():
    [why] = why_given_up()
    assert "it was recomputed 8 times, and lost each time" in why
    assert "Set object_store_memory= higher" in why


def test_what_a_generator_makes_for_a_node_that_is_held_up_is_not_in_vain():
    assert why_given_up(is_held_up=True) == []


def test_what_comes_out_small_when_it_was_lost_twice_is_told():
    """It was lost again before its owner had heard of the copy: a node waits for it all the time."""
    driver = OwnerStepper()
    driver.run(1, inline=False, max_retries=5)
    lost(driver, oid(1), 1)
    lost(driver, oid(1), 2)
    assert retries(driver.finish(1, attempt=1, inline=False)) == [(1, 2, "reconstruction")]
    assert sent(driver.finish(1, attempt=2), ObjectFailed, HEAD)


# ---- Copies that a node cannot have


FAR = NodeID("node-7")


def judged(driver: OwnerStepper, object_id) -> list[str | None]:
    """Why the copies are kept that cannot be brought to FAR; None: they may go."""
    return [each.why_kept for each in sent(driver(CopiesDoubted(object_id=object_id, node=FAR)), CopiesJudged, HEAD)]


def asked_near(driver: OwnerStepper, number: int, losses: int = 1) -> list[Strategy]:
    """How a result is asked to be placed that is demanded near FAR."""
    commands = driver(ObjectDemanded(object_id=oid(number), losses=losses, near=FAR))
    return [request.shape.strategy for request in sent(commands, LeaseRequested)]


NEAR = Strategy(kind=StrategyKind.NODE_AFFINITY, node=FAR, soft=True)
LABELS = (LabelTerm(key="disk", operator=LabelOperator.EXISTS),)


def test_what_can_be_made_again_is_given_up_and_made_near_who_wants_it(driver):
    driver.run(1, inline=False, max_retries=1)
    assert judged(driver, oid(1)) == [None]
    assert retries(driver()) == [], "it is, when the head demands it"
    assert asked_near(driver, 1) == [NEAR]
    driver.grant(1, request=1, node=FAR)
    driver.finish(1, attempt=1, worker=f"{FAR}/w1", inline=False)
    (why,) = judged(driver, oid(1))
    assert why is not None
    assert "has no attempt left" in why


def test_what_is_being_made_again_for_another_result_may_be_given_up(driver):
    """Found by scenarios/parted_swarm.yaml, seed 53: it was said to have no attempt left."""
    driver.submit(task(1, num_returns=2, max_retries=1))
    driver.grant()
    driver.wait(1, ref(oid(1, 1)), fetch=False)
    driver.finish(1, inline=False, returns=2)
    assert retries(lost(driver, oid(1), 1)) == [(1, 1, "reconstruction")]
    assert judged(driver, oid(1, 1)) == [None]


def test_the_next_time_that_it_is_lost_it_is_made_anywhere(driver):
    driver.run(1, inline=False, max_retries=5)
    judged(driver, oid(1))
    asked_near(driver, 1)
    driver.grant(1, request=1, node=FAR)
    driver.finish(1, attempt=1, worker=f"{FAR}/w1", inline=False)
    assert pushes(lost(driver, oid(1), 2)) == [(1, 2, "node-0/w0")]


@pytest.mark.parametrize(
    ("strategy", "then"),
    [
        (Strategy(kind=StrategyKind.SPREAD), NEAR),
        (Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID("node-3"), soft=True), NEAR),
        (Strategy(kind=StrategyKind.NODE_LABELS, labels=LABELS), replace(NEAR, labels=LABELS)),
        (Strategy(kind=StrategyKind.NODE_AFFINITY, node=FAR), None),
        (Strategy(kind=StrategyKind.PLACEMENT_GROUP, group=PlacementGroupID(b"g")), None),
    ],
)
def test_where_it_is_made_its_strategy_may_say(driver, strategy, then):
    """None: nothing else than before."""
    driver.submit(task(1, max_retries=5, strategy=strategy))
    driver.grant()
    driver.finish(1, inline=False)
    driver.worker_died()
    assert judged(driver, oid(1)) == [None]
    assert asked_near(driver, 1) == [then or strategy]


def test_what_can_be_made_on_another_node_alone_is_kept(driver):
    driver.submit(task(1, max_retries=5, strategy=Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID("node-3"))))
    driver.grant()
    driver.finish(1, inline=False)
    assert judged(driver, oid(1)) == ["the task that computed it may only run on node-3"]


def test_what_was_put_is_kept_and_what_is_being_made_is_not(driver):
    driver.put(1, inline=False)
    (why,) = judged(driver, put_id(1))
    assert why is not None
    assert "was created by put()" in why
    driver.run(1, inline=False, max_retries=5)
    lost(driver, oid(1), 1)
    assert judged(driver, oid(1)) == [None]


def test_what_nobody_wants_any_more_is_said_to_be_free(driver):
    driver.run(1, inline=False, max_retries=5)
    driver(RefsDropped(object_ids=(oid(1),)))
    (failed,) = sent(driver(CopiesDoubted(object_id=oid(1), node=FAR)), ObjectFailed, HEAD)
    assert failed.error.kind is ErrorKind.OBJECT_LOST


def test_copies_are_not_given_up_without_end(driver):
    driver.run(1, inline=False, max_retries=-1)
    assert [judged(driver, oid(1)) for _ in range(MOVES_MAX)] == [[None]] * MOVES_MAX
    (why,) = judged(driver, oid(1))
    assert why is not None
    assert f"it was recomputed {MOVES_MAX} times" in why
