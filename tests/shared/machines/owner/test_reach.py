"""Processes that do not reach one another, though the head hears both: events in, commands out, at all three."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualray.shared.machines.head.global_scheduler import PARTED_PATIENCES, PARTED_TIMER
from dualray.shared.machines.head.head import Head
from dualray.shared.machines.node.node import Node
from dualray.shared.machines.owner.reach import REACH_TIMER
from dualray.shared.model.commands import ArmTimer, NoteRetry, StopWorker, TellWait
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    LinkLost,
    NodeDied,
    NodeJoined,
    OwnerDied,
    PeerLost,
    TaskPushed,
    TimerFired,
    WorkerReady,
    WorkerUnwanted,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, RequestID
from dualray.shared.model.specs import Strategy, StrategyKind
from dualray.shared.model.states import ActorState
from tests.shared.builders import (
    CRASH,
    DRIVER,
    OwnerStepper,
    Stepper,
    cpus,
    info,
    of,
    oid,
    sent,
    shape,
    task,
)

PATIENCE_NS = Config().link_patience_ns
W1 = Address("node-1/w0")
N1 = NodeID("node-1")
LINK = LinkLost(process=DRIVER, node=N1, incarnation=0, by_node=False)


def later(machine: Stepper, timer: str, delay_ns: int = PATIENCE_NS):
    machine.now_ns += delay_ns
    return machine(TimerFired(timer=timer))


# ---- The owner -------------------------------------------------------------------------------------------------------


@pytest.fixture
def owner() -> OwnerStepper:
    """A driver on node-0 that has pushed tasks 1 and 2 to workers on node-1."""
    driver = OwnerStepper(push_window_max=8)
    driver.submit(task(9))
    driver.grant(node=N1)
    driver.finish(9, worker=W1)  # a short one: the next are pushed ahead
    [asked] = sent(driver.submit(task(1, max_retries=1), task(2, max_retries=0)), LeaseRequested)
    driver.grant(1, request=int(asked.request_id.partition("#")[2]), node=N1)
    assert [record.worker for record in driver.machine.tasks.records.values()] == [W1, "node-1/w1"]
    return driver


def test_a_connection_that_closes_is_no_news_until_nobody_tells_of_a_death(owner) -> None:
    commands = owner(PeerLost(address=W1))
    assert of(commands, ArmTimer) == [ArmTimer(timer=REACH_TIMER, delay_ns=PATIENCE_NS)]
    assert sent(commands, LinkLost) == []
    owner(LeasedWorkerDied(lease_id=LeaseID("lease-0"), worker=W1, error=CRASH))
    assert sent(later(owner, REACH_TIMER), LinkLost) == []


def test_after_a_while_all_that_was_pushed_uses_a_retry_and_the_head_is_told(owner) -> None:
    owner(PeerLost(address=W1))
    commands = later(owner, REACH_TIMER)
    assert sent(commands, LinkLost, HEAD) == [LINK]
    assert [(retry.task_id, retry.attempt) for retry in of(commands, NoteRetry)] == [(task(1).task_id, 1)]
    failed = owner.machine.values.table[oid(2)]
    assert failed.error is not None
    assert failed.error.kind is ErrorKind.WORKER_UNREACHABLE
    assert "node-1 and driver-1 on node-0 cannot reach one another" in failed.error.message
    assert sent(commands, LeaseRequested) != [], "the other one is tried elsewhere"
    (told,) = of(commands, TellWait)
    assert told.words.startswith("2 tasks got no answer")


def test_a_late_result_is_not_believed(owner) -> None:
    owner(PeerLost(address=W1))
    [asked] = sent(later(owner, REACH_TIMER), LeaseRequested)
    owner.finish(1, worker=W1)
    assert not owner.machine.tasks.records[task(1).task_id].is_done
    owner.grant(2, request=int(asked.request_id.partition("#")[2]))
    owner.finish(1, attempt=1, worker="node-0/w2")
    assert task(1).task_id not in owner.machine.tasks.records or owner.machine.tasks.records[task(1).task_id].is_done


def test_the_node_manager_may_be_the_one_that_is_lost(owner) -> None:
    owner(PeerLost(address=Address(N1)))
    assert sent(later(owner, REACH_TIMER), LinkLost, HEAD) == [LINK]


def test_what_the_node_has_noticed_counts_at_once_and_is_not_told_back(owner) -> None:
    commands = owner(LinkLost(process=DRIVER, node=N1, incarnation=0, by_node=True))
    assert sent(commands, LinkLost) == []
    assert [retry.attempt for retry in of(commands, NoteRetry)] == [1]
    late = owner.grant(1, request=0, node=N1)
    assert sent(late, LeaseReturned, N1) == [LeaseReturned(lease_id=LeaseID("lease-1"))]


def test_a_node_that_died_meanwhile_is_nothing_new(owner) -> None:
    owner(PeerLost(address=W1), NodeDied(node=N1, incarnation=0))
    assert sent(later(owner, REACH_TIMER), LinkLost) == []


def test_who_has_nothing_there_does_not_care(owner) -> None:
    for peer in ("node-2/w0", "node-2", "node-0/w1", "driver-2@node-1"):
        assert owner(PeerLost(address=Address(peer))) == []


def test_a_worker_that_we_cannot_connect_to_for_a_limit_of_ours_ends(owner) -> None:
    """The driver waited for it without end: the worker lives, so nobody told of its death."""
    peer = Address("node-1/w1")
    commands = owner(PeerLost(address=peer, limit="64 files are open"))
    [unwanted] = sent(commands, WorkerUnwanted, Address("node-1"))
    assert unwanted.worker == peer
    assert unwanted.reason == "driver-1 cannot connect to node-1/w1: 64 files are open"
    assert sent(later(owner, REACH_TIMER), LinkLost) == [], "the link is sound"


@pytest.mark.parametrize("retries", [0, 1])
def test_calls_of_an_actor_that_we_cannot_connect_to_fail_or_are_sent_again_and_it_lives(retries: int) -> None:
    driver = OwnerStepper()
    driver.submit(task(1, actor=7, max_retries=retries))
    driver.actor_is(7, ActorState.ALIVE, worker=W1)
    commands = driver(PeerLost(address=W1, limit="64 files are open"))
    assert sent(commands, WorkerUnwanted) == []
    assert [push.spec.task_id for push in sent(commands, TaskPushed, W1)] == [task(1).task_id] * retries
    if not retries:
        error = driver.machine.values.table[oid(1)].error
        assert error is not None and error.kind is ErrorKind.ACTOR_UNAVAILABLE
        assert "driver-1 cannot connect to node-1/w0: 64 files are open" in error.message


@pytest.mark.parametrize("retries", [0, 1])
def test_calls_that_an_actor_may_have_are_repeated_or_fail_and_later_ones_are_left_alone(retries: int) -> None:
    driver = OwnerStepper()
    driver.submit(task(1, actor=7, max_retries=retries))
    driver.actor_is(7, ActorState.ALIVE, worker=W1)
    driver(PeerLost(address=W1))
    driver.submit(task(2, actor=7, max_retries=retries))
    commands = later(driver, REACH_TIMER)
    assert sent(commands, LinkLost) == [], "the actor lives"
    again = [push.spec.task_id for push in sent(commands, TaskPushed, W1)]
    assert again == [task(1).task_id] * retries
    assert driver.machine.tasks.records[task(2).task_id].worker == W1
    if not retries:
        error = driver.machine.values.table[oid(1)].error
        assert error is not None and error.kind is ErrorKind.ACTOR_UNAVAILABLE


# ---- The node --------------------------------------------------------------------------------------------------------


REQUEST = RequestID("driver-1#0")


@pytest.fixture
def node() -> Stepper[Node]:
    """node-1, whose only worker is leased to the driver of another machine."""
    stepper = Stepper(Node(node=N1, incarnation=0, total=cpus(1), store_bytes=1000, config=Config()))
    stepper(LeaseRequested(request_id=REQUEST, owner=DRIVER, shape=shape(), count=1, placed=True))
    granted = stepper(WorkerReady(worker=W1))
    assert len(sent(granted, LeaseGranted, DRIVER)) == 1
    return stepper


def test_a_node_ends_the_workers_of_an_owner_that_is_out_of_reach(node) -> None:
    node(PeerLost(address=DRIVER))
    commands = later(node, "links")
    assert sent(commands, LinkLost, HEAD) == [LinkLost(process=DRIVER, node=N1, incarnation=0, by_node=True)]
    (stopped,) = of(commands, StopWorker)
    assert stopped.reason == "its lease's owner driver-1 and node-1 cannot reach one another"


def test_an_owner_that_has_died_is_not_out_of_reach(node) -> None:
    node(PeerLost(address=DRIVER), OwnerDied(address=DRIVER))
    assert sent(later(node, "links"), LinkLost) == []


def test_a_node_that_is_told_does_the_same_in_that_life_alone(node) -> None:
    assert node(LinkLost(process=DRIVER, node=N1, incarnation=1, by_node=False)) == []
    assert [stop.worker for stop in of(node(LINK), StopWorker)] == [W1]


# ---- The head --------------------------------------------------------------------------------------------------------


@pytest.fixture
def head() -> Stepper[Head]:
    """Three nodes; node-1 alone has `r`."""
    stepper = Stepper(Head(config=Config()))
    for name, total in (("node-0", cpus(1)), ("node-1", cpus(9, r=9)), ("node-2", cpus(1))):
        stepper(NodeJoined(info=info(name, total)))
    return stepper


def lost(*, by_node: bool = False) -> LinkLost:
    return LinkLost(process=Address("node-0/w3"), node=N1, incarnation=0, by_node=by_node)


def placed(commands) -> list[str]:
    return [command.to for command in commands if isinstance(getattr(command, "message", None), LeaseRequested)]


@pytest.mark.parametrize("by_node", [False, True])
def test_the_head_tells_the_other_end(head, by_node: bool) -> None:
    event = lost(by_node=by_node)
    assert sent(head(event), LinkLost, "node-0/w3" if by_node else "node-1") == [event]


def test_what_has_died_is_not_out_of_reach(head) -> None:
    head(PeerLost(address=Address(N1)))
    assert head(lost()) == []


def test_nothing_of_that_machine_is_placed_there_for_a_while(head) -> None:
    head(lost())
    assert N1 not in [to for number in range(3) for to in placed(head(wants_of("node-0/w1", number)))]
    assert placed(head(wants_of("node-2/w1", 7))) == [N1], "others reach it"
    lasts_ns = PARTED_PATIENCES * PATIENCE_NS
    assert N1 in placed(later(head, PARTED_TIMER, lasts_ns)), "what waited is tried there again"


def wants_of(owner: str, number: int, **demand: float) -> LeaseRequested:
    return LeaseRequested(
        request_id=RequestID(f"{owner}#{number}"),
        owner=Address(owner),
        shape=shape(cpus(1, **demand)),
        count=1,
        via=NodeID(owner.partition("/")[0]),
    )


def test_what_only_that_node_can_take_waits_once_and_is_refused_the_second_time(head) -> None:
    head(lost())
    assert placed(head(wants_of("node-0/w1", 0, r=1))) == []
    lasts_ns = PARTED_PATIENCES * PATIENCE_NS
    assert placed(later(head, PARTED_TIMER, lasts_ns)) == [N1]
    head(lost())
    (refused,) = sent(head(wants_of("node-0/w1", 1, r=1)), LeaseRefused, "node-0/w1")
    assert refused.error.kind is ErrorKind.TASK_UNSCHEDULABLE
    assert "node-0 and node-1, which could run it, cannot reach one another" in refused.error.message
    later(head, PARTED_TIMER, lasts_ns)
    later(head, PARTED_TIMER, lasts_ns)
    assert head.machine.scheduler.parted == {}
    head(lost())
    assert placed(head(wants_of("node-0/w1", 2, r=1))) == [], "it is as if nothing had been"
    assert head.machine.scheduler.pending


def near(node: str, number: int, **demand: float) -> LeaseRequested:
    """What a worker of node-2, which reaches everybody, wants to run on a node, if possible."""
    beside = Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID(node), soft=True)
    request = wants_of("node-2/w1", number, **demand)
    return replace(request, shape=replace(request.shape, strategy=beside))


def test_what_cannot_run_where_it_is_wanted_runs_in_reach_of_it_while_it_can(head) -> None:
    head(lost())
    assert placed(head(near("node-0", 0))) == ["node-0"]
    assert placed(head(near("node-0", 1, r=1))) == [N1], "there is no other"
    head(NodeJoined(info=info("node-3", cpus(1, r=1))))
    assert placed(head(near("node-0", 2, r=1))) == ["node-3"]
    assert placed(head(near("node-0", 3, r=1))) == [], "node-1 has room, and is out of reach"


def test_both_ends_may_notice(head) -> None:
    head(lost(), lost(by_node=True))
    assert [times for _, times in head.machine.scheduler.parted.values()] == [1]
