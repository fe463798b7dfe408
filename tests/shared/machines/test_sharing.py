"""Several drivers share the cluster: events in, commands out."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    LeaseGranted,
    LeaseRequested,
    LeaseReturned,
    LeaseWanted,
    OwnerDied,
    ResourcesReported,
    TimerFired,
    TurnWanted,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID
from tests.shared.builders import HeadStepper, NodeStepper, cpus, info, of, sent, shape

A, B = Address("driver-1"), Address("driver-2@node-1")
TURN_NS = Config().lease_turn_ns


def report(head, held, *, free=0, settled=()):
    available = {"CPU": free * 10_000}
    return head(
        ResourcesReported(node=NodeID("node-0"), incarnation=0, available=available, settled=settled, held=held)
    )


def placed(commands) -> list[str]:
    """Whose leases were placed, in order."""
    return [request.owner for request in sent(commands, LeaseRequested) if request.placed]


@pytest.fixture
def head() -> HeadStepper:
    """One node of four CPUs, all of which A has, and more of A's than that waits."""
    head = HeadStepper(info("node-0", cpus(4)))
    head.ask(shape(cpus(1)), count=10, owner=A, request="a")
    report(head, {A: 4}, settled=("a",) * 4)
    return head


def test_one_driver_alone_is_asked_for_nothing(head):
    assert of(report(head, {A: 4}), ArmTimer) == []


def test_who_waits_with_nothing_gets_a_turn(head):
    commands = head.ask(shape(cpus(1)), count=10, owner=B, request="b")
    assert of(commands, ArmTimer) == [ArmTimer(timer="turn", delay_ns=TURN_NS)]
    commands = head(TimerFired(timer="turn"))
    assert sent(commands, TurnWanted, "node-0") == [TurnWanted(owner=A)]
    assert of(commands, ArmTimer) == [ArmTimer(timer="turn", delay_ns=TURN_NS)], "and another one, while it has less"


def test_of_what_waits_the_driver_with_the_fewest_leases_is_served_first(head):
    head.ask(shape(cpus(1)), count=10, owner=B, request="b")
    assert placed(report(head, {A: 2}, free=2)) == [B, B]


def test_equal_shares_stay_as_they_are(head):
    head.ask(shape(cpus(1)), count=10, owner=B, request="b")
    report(head, {A: 2}, free=2)
    report(head, {A: 2, B: 2}, settled=("b",) * 2)
    commands = head(TimerFired(timer="turn"))
    assert sent(commands, TurnWanted) == []
    assert of(commands, ArmTimer) == []


def test_one_more_is_no_injustice(head):
    head.ask(shape(cpus(1)), count=10, owner=B, request="b")
    report(head, {A: 3}, free=1)
    report(head, {A: 3, B: 1}, settled=("b",))
    assert sent(head(TimerFired(timer="turn")), TurnWanted) == [TurnWanted(owner=A)]
    report(head, {A: 2, B: 1}, free=1)
    report(head, {A: 2, B: 2}, settled=("b",))
    assert sent(head(TimerFired(timer="turn")), TurnWanted) == []


def test_who_waits_for_what_no_node_has_takes_nothing_from_others():
    head = HeadStepper(info("node-0", cpus(1)), infeasible="wait")
    head.ask(shape(cpus(1)), count=2, owner=A, request="a")
    report(head, {A: 1}, settled=("a",))
    assert of(head.ask(shape(cpus(1, disk=1)), owner=B, request="b"), ArmTimer) == []


def test_a_driver_that_has_gone_shares_nothing(head):
    head.ask(shape(cpus(1)), count=10, owner=B, request="b")
    head.machine.scheduler.owners_died(lambda address: address == A)
    assert sent(head(TimerFired(timer="turn")), TurnWanted) == []


# ---- The node ------------------------------------------------------------------------------------------------------


@pytest.fixture
def node() -> NodeStepper:
    """A node of two CPUs, both leased to A."""
    node = NodeStepper().with_workers(2)
    node.ask(shape(cpus(1)), count=2, owner=A)
    return node


def test_the_oldest_lease_is_had_back_then_the_next(node):
    assert sent(node(TurnWanted(owner=A)), LeaseWanted, A) == [LeaseWanted(lease_id=LeaseID("node-0~0/lease0"))]
    assert sent(node(TurnWanted(owner=A)), LeaseWanted, A) == [LeaseWanted(lease_id=LeaseID("node-0~0/lease1"))]
    assert node(TurnWanted(owner=A)) == []


def test_who_gave_a_lease_back_does_not_take_it_again(node):
    node(TurnWanted(owner=A), LeaseReturned(lease_id=LeaseID("node-0~0/lease0")))
    commands = node.ask(shape(cpus(1)), owner=A, request="driver-1#1")
    assert sent(commands, LeaseGranted) == []
    assert len(sent(commands, LeaseRequested, HEAD)) == 1
    assert len(sent(node.ask(shape(cpus(1)), owner=B, request="b"), LeaseGranted, B)) == 1


def test_after_a_turn_it_may(node):
    node(TurnWanted(owner=A), LeaseReturned(lease_id=LeaseID("node-0~0/lease0")))
    node.now_ns += TURN_NS
    assert len(sent(node.ask(shape(cpus(1)), owner=A, request="driver-1#1"), LeaseGranted, A)) == 1


def test_the_head_hears_who_holds_what(node):
    (told,) = sent(node(LeaseReturned(lease_id=LeaseID("node-0~0/lease0"))), ResourcesReported, HEAD)
    assert told.held == {A: 1}
    node(OwnerDied(address=A))
