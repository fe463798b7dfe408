"""Cancelling on the cluster in memory: wherever a task is, and whatever dies meanwhile, everything ends."""

from __future__ import annotations

import pytest

from dualray.shared.model.errors import ErrorKind
from tests.shared.harness import (
    MS,
    Body,
    Call,
    Cancel,
    Cluster,
    Deliver,
    Get,
    KillNode,
    KillWorker,
    MakeActor,
    Op,
    Settle,
    Shape,
    Sleep,
    Submit,
    Tick,
    Wait,
)

LONG = Body(steps=(Sleep(50 * MS),) * 20)
PARENT = Body(steps=(Submit(body=LONG, cpus=0), Submit(body=LONG, cpus=0), Get((0, 1))))
ONE_CPU = Shape(nodes=((1, 0, 1000),))
TWO_NODES = Shape()


class Watched(Cluster):
    """Notes which tasks have begun."""

    def __init__(self, *args, **settings):
        self.begun = []
        super().__init__(*args, **settings)

    def started(self, process, task):
        self.begun.append((task.spec.task_id, task.attempt))


def go(ops: list[Op], *, shape: Shape = TWO_NODES, seed: int = 0) -> Watched:
    cluster = Watched(shape, seed=seed)
    for op in ops:
        cluster.do(op)
    cluster.finish()
    cluster.check_replays()
    return cluster


def kinds(cluster: Cluster) -> set[ErrorKind]:
    return {error.kind for error in cluster.errors}


def test_what_has_not_begun_does_not_begin():
    calls = [Submit() for _ in range(10)]
    cluster = go([*calls, *(Cancel(index) for index in range(10)), Get(tuple(range(10)))], shape=ONE_CPU)
    assert cluster.begun == []
    assert kinds(cluster) == {ErrorKind.TASK_CANCELLED}


def test_what_waits_for_an_argument_that_is_cancelled_fails_with_it():
    cluster = go([Submit(body=LONG), Submit(deps=(0,)), Submit(deps=(1,)), Settle(), Cancel(0), Get((2,))])
    assert len(cluster.begun) == 1
    assert kinds(cluster) == {ErrorKind.TASK_CANCELLED}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_parent_and_its_children_end_wherever_they_are(seed, force):
    ops: list[Op] = [Submit(body=PARENT, retries=2) for _ in range(3)]
    ops += [Deliver(5 + seed * 7), Cancel(1, force=force), Cancel(0), Get((1,))]
    go(ops, seed=seed)


@pytest.mark.parametrize("fault", [KillWorker(0), KillWorker(1), KillNode(1), KillNode(1, silently=True)])
@pytest.mark.parametrize("seed", range(25))
def test_a_task_is_not_tried_again_when_what_ran_it_dies(seed, fault):
    ops: list[Op] = [Submit(body=PARENT, retries=-1, strategy=1) for _ in range(4)]
    ops += [Settle(), *(Cancel(index, recursive=bool(seed % 2)) for index in range(4)), Deliver(seed), fault]
    cluster = go([*ops, Wait((0, 1, 2, 3), num=4)], seed=seed)
    assert max(attempt for _, attempt in cluster.begun) == 0


@pytest.mark.parametrize("seed", range(25))
def test_by_force_nobody_else_loses_an_attempt(seed):
    ops: list[Op] = [Submit(body=Body(steps=(Sleep(MS // 10),))) for _ in range(20)]
    ops += [Settle(), Tick(), Settle(), Tick(), Deliver(seed)]
    ops += [Cancel(index, force=True) for index in range(0, 20, 3)]
    ops += [Get((index,)) for index in range(20)]
    cluster = go(ops, shape=ONE_CPU, seed=seed)
    assert kinds(cluster) <= {ErrorKind.TASK_CANCELLED}
    assert {attempt for _, attempt in cluster.begun} <= {0}


@pytest.mark.parametrize("seed", range(25))
def test_calls_of_an_actor_that_wait_give_way(seed):
    ops: list[Op] = [MakeActor(), *(Call(0, body=LONG if index < 2 else Body()) for index in range(8))]
    ops += [Deliver(seed * 3), *(Cancel(index, force=True) for index in range(1, 8)), Get((0,)), Get((7,))]
    cluster = go(ops, seed=seed)
    assert kinds(cluster) <= {ErrorKind.TASK_CANCELLED}
