"""The accounting of a node's store, inside its node: events in, commands out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    DeleteObject,
    EvictObject,
    ReserveSpace,
    Send,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    CollectionWanted,
    ObjectAdded,
    ObjectArrived,
    ObjectReleased,
    ObjectRemoved,
    ObjectsFreed,
    OwnerDied,
    ReserveFailed,
    SpaceDenied,
    SpaceGranted,
    SpaceReserved,
    TimerFired,
    WorkerExited,
)
from dualray.shared.model.ids import HEAD, Address
from tests.shared.builders import DRIVER, OTHER, NodeStepper, hint, in_line, of, oid, put_id, sends, sent, shape

A, B, W0 = "driver-1", "driver-2", "node-0/w0"


@pytest.fixture
def node() -> NodeStepper:
    """A store of 1,000 bytes."""
    return NodeStepper(store_bytes=1000)


def granted(commands) -> list[tuple[int, bool]]:
    """Whom room was granted for: number of the object, and whether it is there already."""
    return [(each.object_id[0], each.present) for each in sent(commands, SpaceGranted)]


def evicted(commands) -> list[int]:
    return [each.object_id[0] for each in of(commands, EvictObject)]


def deleted(commands) -> list[int]:
    return [each.object_id[0] for each in of(commands, DeleteObject)]


def released(object_id, by: str = DRIVER) -> ObjectReleased:
    return ObjectReleased(object_id=object_id, requester=Address(by))


def freed(*object_ids) -> ObjectsFreed:
    return ObjectsFreed(object_ids=object_ids)


# ---- Room ----------------------------------------------------------------------------------------------------------


def test_room_that_is_free_is_granted_at_once(node):
    assert granted(node.reserve(oid(1), 1000)) == [(1, False)]
    assert node.machine.store.contents.used_bytes == 1000


def test_a_sealed_object_is_reported_to_the_head(node):
    node.reserve(oid(1), 100)
    (added,) = sent(node.seal(oid(1)), ObjectAdded, HEAD)
    assert added == ObjectAdded(object_id=oid(1), size_bytes=100, owner=DRIVER, node="node-0", incarnation=0)


def test_an_object_is_sealed_once_and_by_its_writer(node):
    node.reserve(oid(1))
    assert node.seal(oid(1), by=B) == []
    node.seal(oid(1))
    assert node.seal(oid(1)) == []


def test_what_is_here_already_is_not_written_again(node):
    node.store(oid(1))
    assert granted(node.reserve(oid(1), by=B)) == [(1, True)]
    assert node.machine.store.contents.used_bytes == 100


def test_who_comes_while_another_writes_the_same_object_waits_for_that(node):
    node.reserve(oid(1), by=A)
    assert granted(node.reserve(oid(1), by=B)) == []
    assert granted(node.seal(oid(1), by=A)) == [(1, True)]


def test_who_waited_for_a_writer_that_died_writes_the_object_itself(node):
    node.reserve(oid(1), by=A)
    node.reserve(oid(1), by=B)
    commands = node(OwnerDied(address=Address(A)))
    assert deleted(commands) == [1]
    assert granted(commands) == [(1, False)]


# ---- Eviction ------------------------------------------------------------------------------------------------------


def test_the_object_used_longest_ago_is_evicted_and_the_head_is_told(node):
    for number in (1, 2):
        node.store(oid(number), 400)
    commands = node.reserve(oid(3), 400)
    assert evicted(commands) == [1]
    assert sent(commands, ObjectRemoved, HEAD) == [
        ObjectRemoved(object_id=oid(1), node="node-0", incarnation=0, is_eviction=True)
    ]
    assert granted(commands) == [(3, False)]


def test_to_be_read_is_to_be_used(node):
    for number in (1, 2):
        node.store(oid(number), 400)
    node.want(oid(1))
    node(released(oid(1)))
    assert evicted(node.reserve(oid(3), 400)) == [2]


def test_an_object_is_in_use_until_it_is_released(node):
    """Who reads it over and over keeps one pin, and the store does not hear of each time."""
    for number in (1, 2):
        node.store(oid(number), 400)
    node.want(oid(1))
    node.want(oid(2))
    node(released(oid(2)))
    node(released(oid(1)))
    assert evicted(node.reserve(oid(3), 400)) == [2]


def test_what_the_task_needs_that_has_waited_longest_leaves_last(node):
    for number in (1, 2, 3):
        node.store(oid(number), 300)
    node.ask(shape(deps=(hint(oid(1), 300), hint(oid(4), 300))))
    node.ask(shape(deps=(hint(oid(2), 300), hint(oid(5), 300))))
    assert evicted(node.reserve(oid(6), 100)) == []
    assert evicted(node.reserve(oid(7), 600)) == [2, 3]
    assert evicted(node.reserve(oid(8), 300)) == [1]


def test_no_more_is_evicted_than_is_needed(node):
    for number in range(1, 6):
        node.store(oid(number), 200)
    assert evicted(node.reserve(oid(6), 300)) == [1, 2]


def test_a_pinned_object_is_not_evicted(node):
    node.store(oid(1), 500)
    node.store(oid(2), 500)
    node.want(oid(1))
    assert evicted(node.reserve(oid(3), 500)) == [2]


def test_an_object_that_is_being_written_is_not_evicted(node):
    node.reserve(oid(1), 600)
    assert evicted(node.reserve(oid(2), 600)) == []


def test_an_object_that_nothing_can_make_again_is_not_evicted(node):
    node.store(put_id(1), 600, remakeable=False)
    assert granted(node.reserve(oid(2), 600)) == []


def test_nothing_is_evicted_in_vain(node):
    node.store(oid(1), 300)
    node.reserve(oid(2), 300)
    assert evicted(node.reserve(oid(3), 800)) == []


# ---- Garbage that may hold references -----------------------------------------------------------------------------


def asked_to_collect(commands) -> list[str]:
    """Which processes are asked to have Python collect garbage."""
    return [send.to for send in of(commands, Send) if isinstance(send.message, CollectionWanted)]


def test_a_store_that_is_nearly_full_asks_the_owners_to_collect_garbage_once_in_a_while(node):
    assert asked_to_collect(node.store(oid(1), 400)) == []
    assert asked_to_collect(node.store(oid(2), 300, owner=OTHER)) == []
    assert asked_to_collect(node.reserve(oid(3), 1)) == [DRIVER, OTHER]
    node.now_ns += Config().garbage_ns - 1
    assert asked_to_collect(node.reserve(oid(4), 1)) == []
    node.now_ns += 1
    assert asked_to_collect(node.reserve(oid(5), 1)) == [DRIVER, OTHER]


def test_owners_are_asked_again_while_somebody_waits_for_room(node):
    node.store(oid(1), 800, remakeable=False)
    commands = node.reserve(oid(2), 600)
    assert asked_to_collect(commands) == [DRIVER]
    (timer,) = [armed for armed in of(commands, ArmTimer) if armed.timer == "garbage"]
    assert timer.delay_ns == Config().garbage_ns
    commands = node.reserve(oid(3), 100)
    assert of(commands, ArmTimer) == in_line(commands), "one timer is enough"
    node.now_ns += timer.delay_ns
    commands = node(TimerFired(timer=timer.timer))
    assert asked_to_collect(commands) == [DRIVER]
    assert of(commands, ArmTimer) == [timer]
    node(freed(oid(1)))
    node.now_ns += timer.delay_ns
    assert node(TimerFired(timer=timer.timer)) == []


# ---- The line ------------------------------------------------------------------------------------------------------


def test_a_request_without_room_waits_in_line_for_a_limited_time(node):
    node.reserve(oid(1), 600)
    commands = node.reserve(oid(2), 600)
    (timer,) = in_line(commands)
    assert timer.delay_ns == Config().store_wait_ns
    commands = node.seal(oid(1))
    assert evicted(commands) == [1]
    assert granted(commands) == [(2, False)]
    assert of(commands, CancelTimer) == [CancelTimer(timer=timer.timer)]


def test_nobody_overtakes_in_the_line(node):
    node.reserve(oid(1), 600)
    node.reserve(oid(2), 600)
    assert granted(node.reserve(oid(3), 100)) == []
    assert granted(node.seal(oid(1))) == [(2, False), (3, False)]


def test_who_waited_too_long_is_refused_with_the_largest_holders(node):
    node.store(oid(1), 600)
    node.want(oid(1), by=OTHER)
    node.store(put_id(1), 300, remakeable=False)
    (timer,) = in_line(node.reserve(oid(2), 600, by=B))
    (denied,) = sent(node(TimerFired(timer=timer.timer)), SpaceDenied, B)
    assert denied.error.kind is ErrorKind.STORE_FULL
    assert denied.error.message == (
        "Object 02020202:0 of 600 bytes found no room within 10 s on node-0: 900 of 1,000 bytes are in use. "
        "Largest holders: 01010101:0 (600 bytes, owner driver-1, used by node-1/w0), "
        "00000000:80000001 (300 bytes, owner driver-1, cannot be recomputed). "
        "Delete references or arrays that are not needed, or set object_store_memory= higher."
    )


def test_when_one_in_line_gives_up_those_behind_it_are_served(node):
    node.reserve(oid(1), 600)
    (timer,) = in_line(node.reserve(oid(2), 600))
    node.reserve(oid(3), 100)
    assert granted(node(TimerFired(timer=timer.timer))) == [(3, False)]


def test_what_is_larger_than_the_store_is_refused_at_once(node):
    (denied,) = sent(node.reserve(oid(1), 1001), SpaceDenied)
    assert "is larger than the whole store on node-0" in denied.error.message


def test_who_died_leaves_the_line(node):
    node.reserve(oid(1), 600, by=A)
    node.reserve(oid(2), 600, by=B)
    node(OwnerDied(address=Address(B)))
    assert granted(node.seal(oid(1), by=A)) == []


def test_the_bytes_that_a_dead_writer_left_are_deleted_and_those_in_line_are_served(node):
    node.reserve(oid(1), 600, by=A)
    node.reserve(oid(2), 600, by=B)
    commands = node(OwnerDied(address=Address(A)))
    assert deleted(commands) == [1]
    assert granted(commands) == [(2, False)]


# ---- Pins and frees ------------------------------------------------------------------------------------------------


def test_a_freed_object_is_deleted_at_once(node):
    node.store(oid(1))
    commands = node(freed(oid(1)))
    assert deleted(commands) == [1]
    assert node.machine.store.contents.used_bytes == 0


def test_a_freed_object_that_is_pinned_goes_with_its_last_pin(node):
    node.store(oid(1))
    node.want(oid(1), by=A)
    node.want(oid(1), by=B)
    assert deleted(node(freed(oid(1)))) == []
    assert deleted(node(released(oid(1), A))) == []
    assert deleted(node(released(oid(1), B))) == [1]


def test_what_is_not_here_can_be_freed(node):
    assert node(freed(oid(1))) == []


def test_room_that_was_freed_serves_the_line(node):
    node.store(put_id(1), 600, remakeable=False)
    node.reserve(oid(2), 600)
    assert granted(node(freed(put_id(1)))) == [(2, False)]


def test_a_freed_object_that_is_made_again_while_it_is_pinned_is_here_again(node):
    node.store(oid(1))
    node.want(oid(1), by=A)
    node(freed(oid(1)))
    commands = node.reserve(oid(1), by=B)
    assert granted(commands) == [(1, True)]
    assert len(sent(commands, ObjectAdded, HEAD)) == 1
    assert deleted(node(released(oid(1), A))) == []


def test_the_pins_of_a_process_end_with_it(node):
    node.with_workers(1)
    node.store(oid(1), 600)
    node.want(oid(1), by="node-0/w0")
    node(WorkerExited(worker=Address("node-0/w0"), reason="SIGKILL"))
    assert evicted(node.reserve(oid(2), 600)) == [1]


def test_the_objects_of_a_dead_owner_are_freed(node):
    node.store(oid(1), owner=OTHER)
    node.store(oid(2), owner=DRIVER)
    assert deleted(node(OwnerDied(address=Address(OTHER)))) == [1]


def test_a_reader_here_is_told_at_once(node):
    node.store(oid(1))
    assert sends(node.want(oid(1))) == [(DRIVER, "ObjectArrived")]


# ---- What must hold in every order ---------------------------------------------------------------------------------

numbers = st.integers(1, 5)
users = st.sampled_from([A, B])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), numbers, users, st.booleans()),
        st.tuples(st.sampled_from(["seal", "want", "release"]), numbers, users),
        st.tuples(st.just("free"), numbers),
        st.tuples(st.just("die"), users),
        st.tuples(st.just("late"), numbers, users),
    ),
    max_size=40,
)


@given(steps)
def test_a_store_never_holds_more_than_it_can_and_never_loses_what_is_pinned(steps):
    node = NodeStepper(store_bytes=1000)  # the stepper checks the books after each step
    sizes = {number: 150 * number for number in range(1, 6)}
    pinned: set[tuple[int, str]] = set()
    for step in steps:
        match step:
            case ("reserve", number, user, remakeable):
                commands = node.reserve(oid(number), sizes[number], by=user, remakeable=remakeable)
            case ("seal", number, user):
                commands = node.seal(oid(number), by=user)
            case ("want", number, user):
                commands = node.want(oid(number), by=user)
            case ("release", number, user) if (number, user) in pinned:
                pinned.remove((number, user))
                commands = node(released(oid(number), user))
            case ("free", number):
                commands = node(freed(oid(number)))
            case ("die", user):
                pinned = {pin for pin in pinned if pin[1] != user}
                commands = node(OwnerDied(address=Address(user)))
            case ("late", number, user):
                commands = node(TimerFired(timer=f"space:{oid(number).hex()}:{user}"))
            case _:
                continue
        gone = {number for number, _ in pinned} & set(evicted(commands) + deleted(commands))
        assert not gone, f"{gone} left while {pinned} are pinned"
        pinned |= {
            (command.message.object_id[0], command.to)
            for command in commands
            if isinstance(getattr(command, "message", None), ObjectArrived)
        }


# ---- Memory --------------------------------------------------------------------------------------------------------


def test_a_writer_hears_of_its_room_when_there_is_memory(node):
    node.finds_memory = False
    commands = node.reserve(oid(1), 100)
    assert of(commands, ReserveSpace) == [ReserveSpace(object_id=oid(1), size_bytes=100)]
    assert granted(commands) == []
    assert granted(node(SpaceReserved(object_id=oid(1)))) == [(1, False)]
    assert node(SpaceReserved(object_id=oid(1))) == []


def test_without_memory_what_can_be_evicted_is_and_memory_is_asked_for_again(node):
    for number in (1, 2, 3):
        node.store(oid(number), 100)
    node.finds_memory = False
    node.reserve(oid(4), 200)
    commands = node(ReserveFailed(object_id=oid(4), reason="full"))
    assert evicted(commands) == [1, 2]
    assert of(commands, ReserveSpace) == [ReserveSpace(object_id=oid(4), size_bytes=200)]
    commands = node(ReserveFailed(object_id=oid(4), reason="full"))
    assert evicted(commands) == [3]
    (denied,) = sent(node(ReserveFailed(object_id=oid(4), reason="/dev/shm is full")), SpaceDenied, A)
    assert denied.error.kind is ErrorKind.STORE_FULL
    assert "found no memory: /dev/shm is full" in denied.error.message
    assert node.machine.store.contents.used_bytes == 0


def test_news_of_memory_for_an_object_that_went_meanwhile_changes_nothing(node):
    node.finds_memory = False
    node.reserve(oid(1), 100, by=W0)
    node.machine.store.release_all(W0)
    node.machine.out.commands.clear()
    assert node(SpaceReserved(object_id=oid(1)), ReserveFailed(object_id=oid(1), reason="full")) == []


def test_whoever_waited_for_the_same_object_writes_it_when_the_first_found_no_memory(node):
    node.finds_memory = False
    node.reserve(oid(1), 100)
    node.reserve(oid(1), 100, by=B)
    commands = node(ReserveFailed(object_id=oid(1), reason="full"))
    assert sends(commands) == [(A, "SpaceDenied")]
    assert len(of(commands, ReserveSpace)) == 1
    assert granted(node(SpaceReserved(object_id=oid(1)))) == [(1, False)]


def test_a_store_holds_no_more_objects_than_its_index():
    node = NodeStepper(store_bytes=1000, store_objects_max=2)
    node.store(oid(1))
    node.store(oid(2))
    assert evicted(node.reserve(oid(3))) == [1]
    node.seal(oid(3))
    assert len(node.machine.store.objects) == 2
