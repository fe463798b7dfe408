"""Bringing objects to a node: events in, commands out."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import ArmTimer, DeleteObject, ReceiveObject, SendObject
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    LocationsWanted,
    NodeDied,
    NodeThere,
    ObjectAdded,
    ObjectArrived,
    ObjectFailed,
    ObjectNotHere,
    ObjectReceived,
    ObjectReleased,
    ObjectRemoved,
    ObjectRequested,
    ObjectsAwaited,
    ObjectSent,
    ObjectUnavailable,
    OwnerDied,
    PeerLost,
    ReceiveFailed,
    SpaceDenied,
    SpaceGranted,
    SpaceReserved,
    TimerFired,
)
from dualray.shared.model.ids import HEAD, Address, NodeID
from tests.shared.builders import DRIVER, NodeStepper, error, in_line, of, oid, sends, sent
from tests.shared.machines.node.transfers import (
    N0,
    N1,
    N2,
    N3,
    A,
    B,
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

# ---- Here -----------------------------------------------------------------------------------------------------------


def test_an_object_that_is_not_here_is_asked_for_at_the_head_once(node):
    commands = node.want(X, by=A) + node.want(X, by=B)
    assert sent(commands, LocationsWanted, HEAD) == [LocationsWanted(object_id=X, owner=DRIVER, node="node-0")]


def test_an_object_that_is_being_written_here_is_waited_for(node):
    node.reserve(X, by=A)
    assert node.want(X, by=B) == []
    commands = node.seal(X, by=A)
    assert arrived(commands) == [B]


def test_who_has_made_the_object_here_writes_it_and_nobody_waits_for_the_source(pulling):
    """The source may have lost it, and wait to hear of the very copy that is made here."""
    commands = pulling.reserve(X, by=B)
    assert [each.object_id for each in of(commands, DeleteObject)] == [X]
    assert sent(commands, SpaceGranted, B) == [SpaceGranted(object_id=X, present=False)]
    assert arrived(pulling.seal(X, by=B)) == [DRIVER]


def test_who_has_made_the_object_here_while_memory_is_found_for_a_pull_writes_it_then(node):
    node.finds_memory = False
    node.want(X)
    node.locations(X, "node-1")
    assert sent(node.reserve(X, by=B), SpaceGranted, B) == []
    commands = node(SpaceReserved(object_id=X))
    assert asked(commands) == []
    assert [each.object_id for each in of(commands, DeleteObject)] == [X]
    assert sent(node(SpaceReserved(object_id=X)), SpaceGranted, B) == [SpaceGranted(object_id=X, present=False)]


@pytest.fixture
def pulls_fill_the_store(node) -> NodeStepper:
    for each in (X, Y, Z):
        node.want(each)
        node.locations(each, "node-1", size_bytes=300)
    return node


def space_timer(object_id) -> TimerFired:
    return TimerFired(timer=f"space:{object_id.hex()}:{A}")


def test_rather_than_refuse_a_writer_the_youngest_pulls_give_way_and_begin_anew(pulls_fill_the_store):
    node = pulls_fill_the_store
    node.reserve(oid(1), 500, by=A)
    commands = node(space_timer(oid(1)))
    assert [each.object_id for each in of(commands, DeleteObject)] == [Z, Y]
    assert sent(commands, SpaceGranted, A) == [SpaceGranted(object_id=oid(1), present=False)]
    assert [each.object_id for each in sent(commands, LocationsWanted, HEAD)] == [Z, Y]
    assert asked(node.locations(Y, "node-1", size_bytes=300)) == []  # no room
    assert asked(node.seal(oid(1), by=A)) == ["node-1"]


def test_no_pull_gives_way_in_vain(pulls_fill_the_store):
    node = pulls_fill_the_store
    node(ObjectReceived(object_id=X, source=N1))
    node.want(X, by=B)
    node.reserve(oid(1), 800, by=A)
    commands = node(space_timer(oid(1)))
    assert of(commands, DeleteObject) == []
    assert [each.error.kind for each in sent(commands, SpaceDenied, A)] == [ErrorKind.STORE_FULL]


def test_no_pull_gives_way_to_another(pulls_fill_the_store):
    node = pulls_fill_the_store
    node.want(oid(1))
    (timer,) = in_line(node.locations(oid(1), "node-1", size_bytes=300))
    commands = node(TimerFired(timer=timer.timer))
    assert of(commands, DeleteObject) == []
    assert [each.error.kind for each in sent(commands, ObjectUnavailable, DRIVER)] == [ErrorKind.STORE_FULL]


def test_a_node_says_that_it_is_held_up_by_a_source_that_is_silent_for_longer_than_a_live_one(pulls_fill_the_store):
    node = pulls_fill_the_store
    assert [each.is_held_up for each in sent(node.want(oid(1)), LocationsWanted)] == [False]
    node.now_ns += Config().heartbeat_timeout_ns
    assert [each.is_held_up for each in sent(node.want(oid(2)), LocationsWanted)] == [True]
    node(ObjectReceived(object_id=X, source=N1), ObjectReceived(object_id=Y, source=N1))
    node(ObjectReceived(object_id=Z, source=N1))
    assert [each.is_held_up for each in sent(node.want(oid(3)), LocationsWanted)] == [False]


def test_a_node_says_that_it_was_held_up_when_it_evicted_a_copy(pulls_fill_the_store):
    """Found by scenarios/mixed_swarm.yaml, seed 20578: who waits for the copy is not held up itself."""
    node = pulls_fill_the_store
    node.store(oid(1))
    assert [each.is_held_up for each in sent(node.store(oid(2)), ObjectRemoved)] == [False]
    node.now_ns += Config().heartbeat_timeout_ns
    assert [each.is_held_up for each in sent(node.store(oid(3)), ObjectRemoved)] == [True]


def test_a_pull_waits_for_the_end_of_those_that_stand_still(pulls_fill_the_store):
    """Behind a partition they do until their source counts as out of reach: found by exploration."""
    node = pulls_fill_the_store
    node.want(oid(1))
    (timer,) = in_line(node.locations(oid(1), "node-2", size_bytes=300))
    node.now_ns += PATIENCE_NS
    commands = node(TimerFired(timer=timer.timer))
    assert (of(commands, DeleteObject), in_line(commands)) == ([], [timer])
    assert sent(commands, ObjectUnavailable, DRIVER) == []
    node(ObjectReceived(object_id=X, source=N1), ObjectReceived(object_id=Y, source=N1))
    node(ObjectReceived(object_id=Z, source=N1))
    commands = node(TimerFired(timer=timer.timer))
    assert [each.error.kind for each in sent(commands, ObjectUnavailable, DRIVER)] == [ErrorKind.STORE_FULL]


def test_one_source_is_asked_once_there_is_room(node):
    node.want(X)
    commands = node.locations(X, "node-1", "node-2")
    assert sent(commands, ObjectRequested) == [ObjectRequested(object_id=X, to=NodeID("node-0"))]
    assert asked(commands) == ["node-1"]
    assert node.machine.store.contents.used_bytes == 100


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
    assert pulling.machine.store.contents.used_bytes == 0
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
    assert pulling.machine.store.contents.used_bytes == 0


def test_who_waits_is_told_when_there_is_never_room(node):
    node.want(X)
    (unavailable,) = sent(node.locations(X, "node-1", size_bytes=2000), ObjectUnavailable, A)
    assert unavailable.error.kind is ErrorKind.STORE_FULL


def test_who_waits_for_a_writer_that_died_gets_another_copy(node):
    node.reserve(X, by=B)
    node.want(X, by=A)
    commands = node(OwnerDied(address=Address(B)))
    assert len(sent(commands, LocationsWanted, HEAD)) == 1


# ---- From where it broke off ----------------------------------------------------------------------------------------


def test_the_runner_is_made_ready_before_a_source_is_asked(node):
    node.want(X)
    commands = node.locations(X, "node-1")
    assert of(commands, ReceiveObject) == [ReceiveObject(object_id=X, size_bytes=100, source=N1, offset=0)]
    assert [type(command).__name__ for command in commands][:2] == ["ReceiveObject", "Send"]


def test_the_next_source_goes_on_where_the_first_broke_off(pulling):
    commands = pulling(ReceiveFailed(object_id=X, source=N1, received_bytes=40))
    assert offsets(commands) == [("node-2", 40)]
    assert sent(commands, ObjectRequested, "node-2") == [ObjectRequested(object_id=X, to=N0, offset=40)]


def test_what_had_come_is_given_up_when_all_sources_have_failed(pulling):
    commands = pulling(
        ReceiveFailed(object_id=X, source=N1, received_bytes=40),
        ReceiveFailed(object_id=X, source=N2, received_bytes=60),
    )
    assert of(commands, DeleteObject) == [DeleteObject(object_id=X)]
    assert offsets(pulling.locations(X, "node-3")) == [("node-3", 0)], "a copy may have been made anew"


def test_a_connection_that_breaks_is_a_source_that_failed(pulling):
    assert asked(pulling(PeerLost(address=Address("node-1")))) == ["node-2"]


def test_a_source_sends_the_rest(node):
    node.store(X, 100)
    commands = node(ObjectRequested(object_id=X, to=N1, offset=40))
    assert commands == [SendObject(object_id=X, size_bytes=100, to=N1, offset=40)]


# ---- Admission ------------------------------------------------------------------------------------------------------


def pulled(commands) -> list:
    return [receive.object_id for receive in of(commands, ReceiveObject)]


def test_only_so_many_bytes_are_pulled_at_a_time(narrow):
    assert pulled(pull(narrow, X, Y, Z)) == [X, Y]
    assert pulled(narrow(ObjectReceived(object_id=X, source=N1))) == [Z]


def test_one_object_is_pulled_however_large(narrow):
    assert pulled(pull(narrow, X, size_bytes=1000)) == [X]
    assert pulled(pull(narrow, Y, size_bytes=10)) == []
    assert pulled(narrow(ObjectReceived(object_id=X, source=N1))) == [Y]


def test_a_pull_keeps_its_place_from_source_to_source(narrow):
    pull(narrow, X, Y, Z)
    assert pulled(narrow(ReceiveFailed(object_id=X, source=N1, received_bytes=10))) == [X]


@pytest.mark.parametrize(
    "end",
    [
        [ObjectNotHere(object_id=X, node=N1), ObjectNotHere(object_id=X, node=N2)],
        [ObjectFailed(object_id=X, error=error(ErrorKind.OBJECT_LOST))],
    ],
    ids=["no source is left", "it will not come"],
)
def test_a_pull_that_ends_badly_lets_others_go_on(narrow, end):
    pull(narrow, X, Y, Z)
    assert pulled(narrow(*end))[-1] == Z


def test_a_pull_that_waits_and_loses_its_sources_asks_the_head(narrow):
    pull(narrow, X, Y, Z)
    narrow(NodeDied(node=N1, incarnation=0), NodeDied(node=N2, incarnation=0))
    commands = narrow.locations(X, "node-3")
    assert pulled(commands) == [X]
    assert narrow.machine.transfer.admitted == {X: 100}


# ---- In vain --------------------------------------------------------------------------------------------------------


VAIN_MAX = 8


def asks_in_vain(node, times: int) -> list[list]:
    """The head names a node that turns out not to have it, again and again: what is done each time."""
    rounds = []
    for _ in range(times):
        assert asked(node.locations(X, "node-1")) == [N1]
        rounds.append(node(ObjectNotHere(object_id=X, node=N1)))
    return rounds


def test_a_head_whose_news_stay_wrong_is_not_asked_without_pause(node):
    """It would be for ever, and as fast as messages go: found with a bug planted in the directory."""
    node.want(X)
    *at_once, last = asks_in_vain(node, VAIN_MAX + 1)
    assert [len(sent(each, LocationsWanted, HEAD)) for each in at_once] == [1] * VAIN_MAX
    assert sent(last, LocationsWanted, HEAD) == []
    (timer,) = of(last, ArmTimer)
    assert timer.delay_ns == Config().heartbeat_timeout_ns
    assert len(sent(node(TimerFired(timer=timer.timer)), LocationsWanted, HEAD)) == 1
    assert of(asks_in_vain(node, 1)[0], ArmTimer) == [timer]


def test_a_source_that_has_sent_some_of_it_is_something_to_show_for_it(node):
    node.want(X)
    asks_in_vain(node, VAIN_MAX)
    node.locations(X, "node-1")
    node(ReceiveFailed(object_id=X, source=N1, received_bytes=40))
    assert len(sent(asks_in_vain(node, 1)[0], LocationsWanted, HEAD)) == 1


def test_what_nobody_wants_any_more_is_not_asked_for_when_the_timer_fires(node):
    node.want(X)
    *_, last = asks_in_vain(node, VAIN_MAX + 1)
    (timer,) = of(last, ArmTimer)
    node(ObjectFailed(object_id=X, error=error(ErrorKind.OBJECT_LOST)))
    assert node(TimerFired(timer=timer.timer)) == []


# ---- Lives ----------------------------------------------------------------------------------------------------------


def of_life(incarnation: int, to: NodeID = N1) -> ObjectRequested:
    return ObjectRequested(object_id=X, to=to, incarnation=incarnation)


def test_the_news_that_a_life_is_over_leaves_the_next_one_in_line(node):
    node.store(X)
    node(requested(N2), requested(N3), of_life(1))
    node(NodeDied(node=N1, incarnation=0))
    assert sends_to(node(ObjectSent(object_id=X, to=N2))) == [N1]


def test_the_first_request_of_a_new_life_ends_what_was_under_way_for_the_last(node):
    node.store(X)
    node.store(Y)
    node(requested(N1), ObjectRequested(object_id=Y, to=N1), requested(N2), requested(N3))
    assert sends_to(node(of_life(1))) == [N3]  # instead of the last life, which was being served
    assert not node.machine.store.objects[Y].pins
    assert sends_to(node(ObjectSent(object_id=X, to=N2))) == [N1]


def test_what_a_life_that_is_over_had_asked_for_is_not_sent(node):
    node.store(X)
    node(NodeDied(node=N1, incarnation=0))
    assert node(of_life(0)) == []
    assert sends_to(node(of_life(1))) == [N1]


# ---- Silence --------------------------------------------------------------------------------------------------------


PATIENCE_NS = 10_000_000_000


def wait_on(node, times: int = 1) -> list:
    """Nothing comes for so many patiences."""
    commands = []
    for _ in range(times):
        node.now_ns += PATIENCE_NS
        commands += node(TimerFired(timer="pulls"))
    return commands


def awaited(commands) -> list[str]:
    return [to for to, name in sends(commands) if name == "ObjectsAwaited"]


def test_who_has_been_asked_long_ago_is_asked_whether_he_is_there(pulling):
    assert sent(wait_on(pulling), ObjectsAwaited, N1) == [ObjectsAwaited(object_ids=(X,), to=N0, incarnation=0)]
    pulling(NodeThere(node=N1))
    assert awaited(wait_on(pulling, 20)) == [N1] * 3 + [N2] * 3, "the second source is asked next, and then the head"


def test_who_says_that_he_is_there_is_waited_for_without_end(pulling):
    for _ in range(20):
        assert awaited(wait_on(pulling)) == [N1]
        pulling(NodeThere(node=N1))


def test_nobody_is_asked_when_nothing_is_pulled(pulling):
    pulling(ObjectReceived(object_id=X, source=N1))
    commands = wait_on(pulling)
    assert awaited(commands) == []
    assert of(commands, ArmTimer) == []


def test_a_source_that_does_not_answer_is_out_of_reach_and_the_head_hears_of_it(node):
    node.want(X)
    node.locations(X, "node-1")
    commands = wait_on(node, 4)
    (wanted,) = sent(commands, LocationsWanted, HEAD)
    assert wanted.unreachable == (N1,)
    commands = node.locations(X, "node-1", "node-2")
    assert asked(commands) == [N2]
    assert sent(node.want(Y), LocationsWanted, HEAD)[0].unreachable == (N1,)


def test_what_is_out_of_reach_and_nobody_waits_for_any_more_is_not_asked_for_again(node):
    node.want(X)
    node.locations(X, "node-1")
    wait_on(node, 4)
    node(ObjectReleased(object_id=X, requester=Address(A)))
    assert node.locations(X, "node-1") == []
    assert not node.machine.transfer.wants


def test_who_is_heard_again_is_in_reach_and_so_is_everybody_after_a_while(node):
    node.want(X)
    node.locations(X, "node-1")
    wait_on(node, 4)
    node(requested(N1))
    assert sent(node.want(Y), LocationsWanted, HEAD)[0].unreachable == ()
    node.locations(Y, "node-1")
    wait_on(node, 4)
    node.now_ns += 7 * PATIENCE_NS
    assert sent(node.want(Z), LocationsWanted, HEAD)[0].unreachable == ()


def test_a_source_to_which_connections_break_for_long_is_out_of_reach(node):
    node.want(X)
    for _ in range(3):
        node.locations(X, "node-1")
        (wanted,) = sent(node(PeerLost(address=Address("node-1"))), LocationsWanted, HEAD)
        assert wanted.unreachable == ()
        node.now_ns += PATIENCE_NS
    node.locations(X, "node-1")
    (wanted,) = sent(node(PeerLost(address=Address("node-1"))), LocationsWanted, HEAD)
    assert wanted.unreachable == (N1,)


def test_who_awaits_what_is_not_about_to_be_sent_asks_elsewhere(node):
    node.store(X)
    node(requested(N1))
    commands = node(ObjectsAwaited(object_ids=(X, Y), to=N1, incarnation=0))
    assert sent(commands, NodeThere, N1) == [NodeThere(node=N0)]
    assert [each.object_id for each in sent(commands, ObjectNotHere, N1)] == [Y]


def test_who_awaits_what_is_yet_to_be_found_asks_elsewhere(node):
    node.want(X)
    assert node(of_life(0)) == []
    commands = node(ObjectsAwaited(object_ids=(X,), to=N1, incarnation=0))
    assert [each.object_id for each in sent(commands, ObjectNotHere, N1)] == [X]
    assert sends_to(node.locations(X, "node-2")) == []


# ---- No room anywhere -----------------------------------------------------------------------------------------------


def test_a_source_that_finds_no_room_for_what_is_on_its_disk_is_asked_again_some_times(node):
    node.want(X)
    full = error(ErrorKind.STORE_FULL, "node-1 is full")
    for _ in range(5):
        assert asked(node.locations(X, "node-1")) == [N1]
        assert len(sent(node(ObjectNotHere(object_id=X, node=N1, error=full)), LocationsWanted, HEAD)) == 1
    node.locations(X, "node-1")
    (unavailable,) = sent(node(ObjectNotHere(object_id=X, node=N1, error=full)), ObjectUnavailable, A)
    assert unavailable.error.message == "node-1 is full"
    assert not node.machine.transfer.wants
    assert asked(node.want(X) + node.locations(X, "node-1")) == [N1], "it can be wanted another time"
