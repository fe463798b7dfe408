"""The sending side of a transfer: whom a node serves, whom it sends elsewhere, and what it passes on."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import DeleteObject, SendObject
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    LocationsKnown,
    LocationsWanted,
    NodeDied,
    ObjectElsewhere,
    ObjectFailed,
    ObjectNotHere,
    ObjectReceived,
    ObjectReleased,
    ObjectRequested,
    ObjectSent,
    PeerLost,
    ReceiveFailed,
    ReserveFailed,
    SpaceReserved,
)
from dualray.shared.model.ids import HEAD, Address, NodeID
from tests.shared.builders import DRIVER, NodeStepper, error, of, oid, sent
from tests.shared.machines.node.transfers import (
    N1,
    N2,
    N3,
    N4,
    N5,
    A,
    X,
    Y,
    Z,
    arrived,
    asked,
    offsets,
    pull,
    requested,
    sends_to,
)

# ---- The other side -------------------------------------------------------------------------------------------------


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


# ---- Broadcast ------------------------------------------------------------------------------------------------------


def redirected(commands) -> list[tuple[str, str]]:
    """Who is sent to whom."""
    found = []
    for node in (N1, N2, N3, N4, N5):
        found += [(node, message.holder) for message in sent(commands, ObjectElsewhere, node)]
    return found


@pytest.fixture
def wanted_by_five(node) -> NodeStepper:
    """A node that is asked for X by five others."""
    node.store(X)
    assert sends_to(node(*map(requested, (N1, N2, N3, N4, N5)))) == [N1, N2]
    return node


def test_who_has_got_it_takes_the_second_in_line(wanted_by_five):
    commands = wanted_by_five(ObjectSent(object_id=X, to=N1))
    assert sends_to(commands) == [N3]
    assert redirected(commands) == [(N4, N1)]
    commands = wanted_by_five(ObjectSent(object_id=X, to=N2))
    assert sends_to(commands) == [N5]
    assert redirected(commands) == []


def test_nobody_is_sent_to_a_receiver_that_failed(wanted_by_five):
    commands = wanted_by_five(ObjectSent(object_id=X, to=N1, complete=False))
    assert sends_to(commands) == [N3]
    assert redirected(commands) == []


@pytest.mark.parametrize("end", [NodeDied(node=N1, incarnation=0), PeerLost(address=Address("node-1"))])
def test_a_receiver_that_dies_makes_room_for_the_next(wanted_by_five, end):
    assert sends_to(wanted_by_five(end)) == [N3]


def test_who_dies_in_line_is_forgotten(wanted_by_five):
    wanted_by_five(NodeDied(node=N3, incarnation=0), NodeDied(node=N5, incarnation=0))
    assert sends_to(wanted_by_five(ObjectSent(object_id=X, to=N1))) == [N4]
    wanted_by_five(ObjectSent(object_id=X, to=N2), ObjectSent(object_id=X, to=N4))
    assert not wanted_by_five.machine.store.objects[X].pins
    assert not wanted_by_five.machine.transfer.sending.receivers
    assert not wanted_by_five.machine.transfer.sending.requests


def test_who_is_told_to_ask_elsewhere_does(pulling):
    commands = pulling(ObjectElsewhere(object_id=X, node=N1, holder=N4))
    assert asked(commands) == ["node-4"]
    assert asked(pulling(ObjectNotHere(object_id=X, node=N4))) == ["node-2"]
    assert asked(pulling(ObjectNotHere(object_id=X, node=N2))) == ["node-1"], "the first one stays a source"


def test_who_has_another_source_by_now_stays_with_it(pulling):
    pulling(ObjectNotHere(object_id=X, node=N1))
    assert pulling(ObjectElsewhere(object_id=X, node=N1, holder=N4)) == []


def test_who_asks_again_is_sent_it_again(node):
    node.store(X)
    node(requested(N1))
    assert sends_to(node(requested(N1))) == [N1]
    node(ObjectSent(object_id=X, to=N1))
    assert not node.machine.store.objects[X].pins


# ---- Passing on -----------------------------------------------------------------------------------------------------


def asks(to: NodeID, turn: int, offset: int = 0) -> ObjectRequested:
    return ObjectRequested(object_id=X, to=to, turn=turn, offset=offset)


def turned_away(commands) -> list[str]:
    return [node for node in (N1, N2, N3, N4, N5) if sent(commands, ObjectNotHere, node)]


def told(node: NodeStepper, *sources: str, turn: int, size_bytes: int = 100) -> list:
    nodes = tuple(map(NodeID, sources))
    return node(LocationsKnown(object_id=X, size_bytes=size_bytes, owner=DRIVER, nodes=nodes, turn=turn))


@pytest.fixture
def receiving(node) -> NodeStepper:
    """A node that receives X from node-1, with turn 5."""
    node.want(X)
    told(node, "node-1", "node-2", turn=5)
    return node


def test_what_is_on_its_way_here_is_passed_on(receiving):
    assert receiving(asks(N3, turn=6, offset=40)) == [SendObject(object_id=X, size_bytes=100, to=N3, offset=40)]


@pytest.mark.parametrize("turn", [4, 5])
def test_an_earlier_turn_is_not_served_while_the_object_is_on_its_way(receiving, turn):
    assert turned_away(receiving(asks(N3, turn=turn))) == [N3], "it may be whom we wait for"


def test_an_earlier_turn_is_served_when_the_object_is_here(receiving):
    receiving(ObjectReceived(object_id=X, source=N1))
    assert sends_to(receiving(asks(N3, turn=4))) == [N3]


def test_whom_it_is_passed_on_to_keeps_it_here_from_its_seal_on(receiving):
    receiving(asks(N3, turn=6), ObjectReleased(object_id=X, requester=Address(A)))
    assert not receiving.machine.transfer.wants[X].users
    receiving(ObjectReceived(object_id=X, source=N1))
    assert list(receiving.machine.store.objects[X].pins) == ["sending to node-3"]
    receiving(ObjectSent(object_id=X, to=N3))
    assert not receiving.machine.store.objects[X].pins


def test_a_receiver_that_dies_meanwhile_does_not_end_the_pull(receiving):
    receiving(asks(N3, turn=6), NodeDied(node=N3, incarnation=0))
    assert arrived(receiving(ObjectReceived(object_id=X, source=N1))) == [A]


def test_passing_on_continues_while_the_rest_comes_from_another_source(receiving):
    receiving(asks(N3, turn=6))
    commands = receiving(ReceiveFailed(object_id=X, source=N1, received_bytes=40))
    assert offsets(commands) == [("node-2", 40)]
    assert list(receiving.machine.transfer.sending.receivers[X]) == [N3]


def test_a_pull_that_fails_breaks_off_with_those_whom_it_serves(receiving):
    receiving(asks(N2, turn=6), asks(N3, turn=7), asks(N4, turn=8))
    commands = receiving(ReceiveFailed(object_id=X, source=N1), ObjectNotHere(object_id=X, node=N2))
    assert of(commands, DeleteObject) == [DeleteObject(object_id=X)], "which ends what is under way"
    assert turned_away(commands) == [N4], "who stood in line"
    assert len(sent(commands, LocationsWanted, HEAD)) == 1
    assert receiving(ObjectSent(object_id=X, to=N2, complete=False)) == []
    told(receiving, "node-1", turn=9)
    assert turned_away(receiving(asks(N4, turn=8))) == [N4], "it has a later turn now than who asks"


def test_who_asks_before_the_sources_are_known_waits_for_them(node):
    node.want(X)
    assert node(asks(N3, turn=6), asks(N4, turn=4)) == []
    commands = told(node, "node-1", turn=5)
    assert sends_to(commands) == [N3]
    assert turned_away(commands) == [N4]


def test_who_asks_while_memory_is_found_waits_for_it(node):
    node.finds_memory = False
    node.want(X)
    told(node, "node-1", turn=5)
    assert node(asks(N3, turn=6)) == []
    assert sends_to(node(SpaceReserved(object_id=X))) == [N3]


def test_who_asks_while_there_is_no_memory_is_turned_away(node):
    node.finds_memory = False
    node.want(X)
    node(asks(N2, turn=6))
    told(node, "node-1", turn=5)
    assert turned_away(node(ReserveFailed(object_id=X, reason="none"))) == [N2]


def test_who_asks_while_there_is_no_room_is_turned_away(node):
    node.reserve(oid(1), 950)
    node.want(X)
    node(asks(N2, turn=6))
    assert turned_away(told(node, "node-1", turn=5)) == [N2]
    assert turned_away(node(asks(N3, turn=7))) == [N3]


def test_who_asks_for_a_pull_that_waits_for_others_is_turned_away(narrow):
    pull(narrow, Y, Z)
    narrow.want(X)
    narrow(asks(N2, turn=6))
    assert turned_away(told(narrow, "node-1", turn=5)) == [N2], "two pulls that wait for one another's end never end"
    assert turned_away(narrow(asks(N3, turn=7))) == [N3]


def test_who_asks_and_dies_is_forgotten(node):
    node.want(X)
    node(asks(N3, turn=6), NodeDied(node=N3, incarnation=0))
    assert sends_to(told(node, "node-1", turn=5)) == []


def test_who_asks_for_what_turns_out_to_be_lost_is_turned_away(node):
    node.want(X)
    node(asks(N3, turn=6))
    assert turned_away(node(ObjectFailed(object_id=X, error=error(ErrorKind.OBJECT_LOST)))) == [N3]


def test_those_that_want_to_know_where_an_object_is_hear_in_their_order_that_it_will_not_come(node):
    """In the order in which they asked, whatever the hash of their names: another process must decide alike."""
    transfer = node.machine.transfer
    watchers = [f"slot {number}" for number in range(30)]
    for watcher in watchers:
        transfer.locate(X, Address(A), watcher)
    transfer.on_failed(X, error())
    assert [user for user, _, _ in transfer.unavailable] == watchers


def test_those_that_want_to_know_where_an_object_is_hear_that_its_task_found_no_room(node):
    """The error is the object's. A pull that finds no room here says nothing of it: they wait on."""
    transfer = node.machine.transfer
    full = error(ErrorKind.STORE_FULL, "full")
    transfer.locate(X, Address(A), "slot 1")
    transfer.on_refused(X, full)
    assert not transfer.unavailable
    assert list(transfer.wants[X].watchers) == ["slot 1"]
    transfer.on_failed(X, full)
    assert [(user, each.is_final) for user, _, each in transfer.unavailable] == [("slot 1", True)]
    assert not transfer.wants
