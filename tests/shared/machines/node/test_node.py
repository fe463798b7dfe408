"""The node as a whole: what it says to the head and what it relays to its workers."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import Send
from dualray.shared.model.events import (
    ClusterChanged,
    LeaseGranted,
    NodeDied,
    NodeJoined,
    NodeRefused,
    OwnerDied,
    PeerMet,
    SpaceGranted,
    Started,
    WorkerExited,
    WorkerReady,
)
from dualray.shared.model.ids import HEAD, Address, NodeID
from tests.shared.builders import DRIVER, OTHER, NodeStepper, cpus, info, oid, sends, sent

W0 = Address("node-0/w0")


@pytest.fixture
def node() -> NodeStepper:
    return NodeStepper().with_workers(2)


def test_a_node_reports_for_duty_with_what_it_has():
    node = NodeStepper("node-3", cpus(4, gpus=1), store_bytes=77, incarnation=2)
    joined = NodeJoined(info=info("node-3", cpus(4, gpus=1), incarnation=2, store_bytes=77))
    assert node(Started()) == [Send(to=HEAD, message=joined)]


@pytest.mark.parametrize(
    "news",
    [
        ClusterChanged(nodes=(info("node-0"),)),
        OwnerDied(address=Address(OTHER)),
        NodeDied(node=NodeID("node-1"), incarnation=0),
    ],
    ids=["cluster", "process", "node"],
)
def test_news_is_relayed_to_every_worker_that_is_up(node, news):
    node.machine.scheduler.worker_pool.start_worker()
    node.machine.out.commands.clear()
    name = type(news).__name__
    assert sends(node(news)) == [("node-0/w0", name), ("node-0/w1", name)]


def test_a_worker_that_comes_up_is_told_of_the_cluster():
    node = NodeStepper()
    changed = ClusterChanged(nodes=(info("node-0"), info("node-1")))
    node(changed)
    node.ask()
    assert sent(node(WorkerReady(worker=W0)), ClusterChanged, W0) == [changed]


def test_a_refused_life_is_over(node):
    node(NodeRefused(node=NodeID("node-0"), incarnation=0))
    assert node.machine.refused


def test_the_refusal_of_an_earlier_life_is_late_news():
    node = NodeStepper(incarnation=1)
    node(NodeRefused(node=NodeID("node-0"), incarnation=0))
    assert not node.machine.refused


def test_what_a_worker_asked_for_before_it_died_is_not_granted_to_the_dead(node):
    node(WorkerExited(worker=W0, reason="SIGKILL"))
    assert sent(node.ask(owner=W0), LeaseGranted) == []
    assert sent(node.reserve(oid(1), by=W0), SpaceGranted) == []
    assert node.want(oid(1), by=W0) == []


def met(peer: str) -> PeerMet:
    return PeerMet(process=W0, peer=Address(peer))


def test_who_meets_a_process_that_has_died_is_told(node):
    node(OwnerDied(address=Address(OTHER)))
    assert sent(node(met(OTHER)), OwnerDied, W0) == [OwnerDied(address=Address(OTHER))]
    assert node(met(DRIVER)) == []


def test_who_meets_a_process_of_a_node_that_has_died_is_told(node):
    node(NodeDied(node=NodeID("node-1"), incarnation=0))
    assert len(sent(node(met("node-1/w7")), OwnerDied, W0)) == 1
    assert node(met("node-1~1/w7")) == []


def test_what_a_driver_had_asked_for_is_not_granted_after_its_death(node):
    """Found by tests/kept_runs/shuffled.py, seed 303: the news comes from the head, and overtakes what it had sent."""
    node(OwnerDied(address=Address(DRIVER)))
    assert node.reserve(oid(1), by=DRIVER, owner=OTHER) == []
    assert node.want(oid(2), owner=OTHER) == []
    assert not node.machine.store.objects
    assert not node.machine.transfer.wants
