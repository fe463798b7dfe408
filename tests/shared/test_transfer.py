"""Bringing objects to a node: events in, commands out."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import DeleteObject, SendObject
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    LocationsWanted,
    NodeDied,
    ObjectAdded,
    ObjectArrived,
    ObjectFailed,
    ObjectNotHere,
    ObjectReceived,
    ObjectReleased,
    ObjectRequested,
    ObjectSent,
    ObjectUnavailable,
    OwnerDied,
    ReceiveFailed,
)
from dualray.shared.model.ids import HEAD, Address, NodeID
from tests.shared.builders import DRIVER, NodeStepper, error, of, oid, sends, sent

X = oid(9)
A, B = "driver-1", "driver-2"
N1, N2 = NodeID("node-1"), NodeID("node-2")


@pytest.fixture
def node() -> NodeStepper:
    return NodeStepper(store_bytes=1000)


@pytest.fixture
def pulling(node) -> NodeStepper:
    """A node that has asked node-1 for X, and knows that node-2 has it too."""
    node.want(X)
    node.locations(X, "node-1", "node-2")
    return node


def asked(commands) -> list[str]:
    """Which nodes were asked to send X."""
    return [to for to, name in sends(commands) if name == "ObjectRequested"]


def arrived(commands) -> list[str]:
    return [to for to, name in sends(commands) if name == "ObjectArrived"]


# ---- Here ----------------------------------------------------------------------------------------------------------


def test_an_object_that_is_not_here_is_asked_for_at_the_head_once(node):
    commands = node.want(X, by=A) + node.want(X, by=B)
    assert sent(commands, LocationsWanted, HEAD) == [LocationsWanted(object_id=X, owner=DRIVER, node="node-0")]


def test_an_object_that_is_being_written_here_is_waited_for(node):
    node.reserve(X, by=A)
    assert node.want(X, by=B) == []
    commands = node.seal(X, by=A)
    assert arrived(commands) == [B]


def test_one_source_is_asked_once_there_is_room(node):
    node.want(X)
    commands = node.locations(X, "node-1", "node-2")
    assert sent(commands, ObjectRequested) == [ObjectRequested(object_id=X, to=NodeID("node-0"))]
    assert asked(commands) == ["node-1"]
    assert node.machine.store.used_bytes == 100


def test_no_source_is_asked_before_there_is_room(node):
    node.reserve(oid(1), 950)
    node.want(X)
    assert asked(node.locations(X, "node-1")) == []
    assert asked(node.seal(oid(1))) == ["node-1"]


def test_everyone_who_waits_is_told_when_it_has_arrived(pulling):
    pulling.want(X, by=B)
    commands = pulling(ObjectReceived(object_id=X, source=N1))
    assert sent(commands, ObjectArrived) == [ObjectArrived(object_id=X, size_bytes=100)] * 2
    assert arrived(commands) == [A, B]
    assert len(sent(commands, ObjectAdded, HEAD)) == 1


def test_what_has_arrived_is_pinned_for_those_who_wanted_it(pulling):
    pulling(ObjectReceived(object_id=X, source=N1))
    assert list(pulling.machine.store.objects[X].pins) == [A]
    pulling(ObjectReleased(object_id=X, requester=Address(A)))
    assert not pulling.machine.store.objects[X].pins


def test_who_gave_up_is_not_told(pulling):
    pulling.want(X, by=B)
    pulling(ObjectReleased(object_id=X, requester=Address(A)))
    assert arrived(pulling(ObjectReceived(object_id=X, source=N1))) == [B]


def test_a_pull_that_nobody_waits_for_any_more_goes_on(pulling):
    pulling(ObjectReleased(object_id=X, requester=Address(A)))
    commands = pulling(ObjectReceived(object_id=X, source=N1))
    assert len(sent(commands, ObjectAdded, HEAD)) == 1
    assert arrived(commands) == []


@pytest.mark.parametrize(
    "failure",
    [
        ObjectNotHere(object_id=X, node=N1),
        ReceiveFailed(object_id=X, source=N1),
        NodeDied(node=N1, incarnation=0),
    ],
    ids=["not there", "broke off", "died"],
)
def test_when_a_source_fails_the_next_is_asked(pulling, failure):
    assert asked(pulling(failure)) == ["node-2"]


def test_when_all_sources_have_failed_the_head_is_asked_again_and_the_room_is_given_back(pulling):
    commands = pulling(ObjectNotHere(object_id=X, node=N1), ObjectNotHere(object_id=X, node=N2))
    assert len(sent(commands, LocationsWanted, HEAD)) == 1
    assert pulling.machine.store.used_bytes == 0
    assert asked(pulling.locations(X, "node-1")) == ["node-1"]


def test_a_source_that_died_before_its_turn_is_not_asked(pulling):
    pulling(NodeDied(node=N2, incarnation=0))
    commands = pulling(ObjectNotHere(object_id=X, node=N1))
    assert asked(commands) == []
    assert len(sent(commands, LocationsWanted, HEAD)) == 1


def test_the_failure_of_a_source_that_is_not_asked_is_late_news(pulling):
    assert pulling(ReceiveFailed(object_id=X, source=N2)) == []
    assert pulling(ObjectNotHere(object_id=oid(8), node=N1)) == []


def test_bytes_from_a_source_that_was_given_up_do_not_seal_the_object(pulling):
    pulling(ReceiveFailed(object_id=X, source=N1))
    assert arrived(pulling(ObjectReceived(object_id=X, source=N1))) == []
    assert arrived(pulling(ObjectReceived(object_id=X, source=N2))) == [A]


def test_bytes_that_nobody_waits_for_any_more_are_deleted(pulling):
    pulling(ObjectFailed(object_id=X, error=error(ErrorKind.OBJECT_LOST)))
    commands = pulling(ObjectReceived(object_id=X, source=N1))
    assert of(commands, DeleteObject) == [DeleteObject(object_id=X)]


def test_places_that_are_told_while_a_source_is_asked_change_nothing(pulling):
    assert pulling.locations(X, "node-3") == []


def test_when_only_this_node_is_said_to_have_it_the_head_is_asked_again(node):
    node.want(X)
    assert len(sent(node.locations(X, "node-0"), LocationsWanted, HEAD)) == 1


def test_everyone_who_waits_is_told_when_it_can_not_come(pulling):
    pulling.want(X, by=B)
    lost = error(ErrorKind.OBJECT_LOST, "gone")
    commands = pulling(ObjectFailed(object_id=X, error=lost))
    assert sent(commands, ObjectUnavailable) == [ObjectUnavailable(object_id=X, error=lost)] * 2
    assert pulling.machine.store.used_bytes == 0


def test_who_waits_is_told_when_there_is_never_room(node):
    node.want(X)
    (unavailable,) = sent(node.locations(X, "node-1", size_bytes=2000), ObjectUnavailable, A)
    assert unavailable.error.kind is ErrorKind.STORE_FULL


def test_who_waits_for_a_writer_that_died_gets_another_copy(node):
    node.reserve(X, by=B)
    node.want(X, by=A)
    commands = node(OwnerDied(address=Address(B)))
    assert len(sent(commands, LocationsWanted, HEAD)) == 1


# ---- The other side ------------------------------------------------------------------------------------------------


def requested(to: NodeID = N1) -> ObjectRequested:
    return ObjectRequested(object_id=X, to=to)


def test_an_object_that_is_here_is_sent_and_pinned_meanwhile(node):
    node.store(X, 100)
    assert node(requested()) == [SendObject(object_id=X, size_bytes=100, to=N1)]
    assert node.machine.store.objects[X].pins
    node(ObjectSent(object_id=X, to=N1))
    assert not node.machine.store.objects[X].pins


def test_two_nodes_are_sent_to_at_the_same_time(node):
    node.store(X)
    assert [send.to for send in of(node(requested(N1), requested(N2)), SendObject)] == [N1, N2]
    node(ObjectSent(object_id=X, to=N1))
    assert node.machine.store.objects[X].pins


def test_an_object_that_is_not_here_is_said_not_to_be(node):
    assert sent(node(requested()), ObjectNotHere, N1) == [ObjectNotHere(object_id=X, node=NodeID("node-0"))]


def test_an_object_that_is_being_written_is_not_sent(node):
    node.reserve(X)
    assert len(sent(node(requested()), ObjectNotHere, N1)) == 1


def test_sending_to_a_node_that_died_ends(node):
    node.store(X)
    node(requested(), NodeDied(node=N1, incarnation=0))
    assert not node.machine.store.objects[X].pins
