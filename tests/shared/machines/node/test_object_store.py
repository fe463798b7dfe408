"""The accounting of a node's store, inside its node: events in, commands out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    DeleteObject,
    DeleteSpilled,
    EvictObject,
    ReserveSpace,
    RestoreObject,
    SendObject,
    SpillObject,
    UnloadObject,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    NodeDied,
    ObjectAdded,
    ObjectArrived,
    ObjectNotHere,
    ObjectReceived,
    ObjectReleased,
    ObjectRemoved,
    ObjectRequested,
    ObjectRestored,
    ObjectSent,
    ObjectsFreed,
    ObjectSpilled,
    OwnerDied,
    ReserveFailed,
    RestoreFailed,
    SpaceDenied,
    SpaceGranted,
    SpaceReserved,
    SpillFailed,
    TimerFired,
    WorkerExited,
)
from dualray.shared.model.ids import HEAD, Address, NodeID
from tests.shared.builders import DRIVER, OTHER, NodeStepper, hint, of, oid, put_id, sends, sent, shape

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


# ---- The line ------------------------------------------------------------------------------------------------------


def test_a_request_without_room_waits_in_line_for_a_limited_time(node):
    node.reserve(oid(1), 600)
    commands = node.reserve(oid(2), 600)
    (timer,) = of(commands, ArmTimer)
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
    (timer,) = of(node.reserve(oid(2), 600, by=B), ArmTimer)
    (denied,) = sent(node(TimerFired(timer=timer.timer)), SpaceDenied, B)
    assert denied.error.kind is ErrorKind.STORE_FULL
    assert denied.error.message == (
        "Object 02020202:0 of 600 bytes found no room within 10 s on node-0: 900 of 1,000 bytes are in use. "
        "Largest holders: 01010101:0 (600 bytes, owner driver-1, used by node-1/w0), "
        "00000000:80000001 (300 bytes, owner driver-1, cannot be made again). "
        "Drop references or arrays that are not needed, or set object_store_memory= higher."
    )


def test_when_one_in_line_gives_up_those_behind_it_are_served(node):
    node.reserve(oid(1), 600)
    (timer,) = of(node.reserve(oid(2), 600), ArmTimer)
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


# ---- Disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def spilling() -> NodeStepper:
    """A store of 1,000 bytes and a disk of 1,500; the two objects in it, of 400 each, nothing can make again."""
    node = NodeStepper(store_bytes=1000, eviction_policy="spill", spill_bytes_max=1500)
    for number in (1, 2):
        node.store(oid(number), 400, remakeable=False)
    return node


def orders(commands) -> list[tuple[str, int]]:
    """What the runner is to do with bytes: command and number of the object."""
    kinds = (SpillObject, UnloadObject, RestoreObject, DeleteSpilled, EvictObject, DeleteObject)
    return [(type(each).__name__, each.object_id[0]) for each in commands if isinstance(each, kinds)]


def spill(node, number: int) -> list:
    return node(ObjectSpilled(object_id=oid(number)))


def test_a_full_store_spills_what_was_used_longest_ago_and_grants_the_room_then(spilling):
    commands = spilling.reserve(oid(3), 500)
    assert (orders(commands), granted(commands)) == ([("SpillObject", 1)], [])
    commands = spill(spilling, 1)
    assert (orders(commands), granted(commands)) == ([("UnloadObject", 1)], [(3, False)])
    assert sent(commands, ObjectRemoved, HEAD) == []  # it is still on this node
    assert (spilling.machine.store.contents.used_bytes, spilling.machine.store.contents.spilled_bytes) == (900, 400)


def test_no_more_is_spilled_than_is_needed_for_all_in_line(spilling):
    spilling.reserve(oid(3), 300)
    assert orders(spilling.reserve(oid(4), 400, by=B)) == []
    commands = spill(spilling, 1)
    assert granted(commands) == [(3, False)]
    assert orders(commands) == [("UnloadObject", 1), ("SpillObject", 2)]
    assert granted(spill(spilling, 2)) == [(4, False)]


def restored(spilling: NodeStepper) -> list:
    """Object 1 was written to disk, is wanted, and comes back; object 2 leaves for it."""
    spilling.store(oid(3), 500, remakeable=False)
    spill(spilling, 1)
    spilling.seal(oid(3))
    assert spilling.machine.store.is_spilled(oid(1))
    assert orders(spilling.want(oid(1), by=B)) == [("SpillObject", 2)]  # used longest ago
    commands = spill(spilling, 2)
    assert orders(commands) == [("UnloadObject", 2), ("RestoreObject", 1)]
    return spilling(ObjectRestored(object_id=oid(1)))


def test_a_spilled_object_that_is_wanted_comes_back_and_its_copy_on_disk_stays(spilling):
    commands = restored(spilling)
    assert orders(commands) == []
    assert sends(commands) == [(B, "ObjectArrived")]
    assert list(spilling.machine.store.objects[oid(1)].pins) == [B]
    assert spilling.machine.store.contents.spilled_bytes == 800


def test_an_object_with_a_copy_on_disk_leaves_memory_at_once(spilling):
    restored(spilling)
    spilling(released(oid(1), by=B))
    spilling.want(oid(3), by=A)
    commands = spilling.want(oid(2), by=B)
    assert orders(commands) == [("UnloadObject", 1), ("RestoreObject", 2)]
    assert spilling.machine.store.is_spilled(oid(1))
    assert spilling.machine.store.contents.spilled_bytes == 800


def test_copies_of_objects_in_memory_make_way_on_a_full_disk():
    node = NodeStepper(store_bytes=1000, eviction_policy="spill", spill_bytes_max=900)
    for number in (1, 2):
        node.store(oid(number), 400, remakeable=False)
    restored(node)
    assert orders(node.reserve(oid(4), 600)) == [("DeleteSpilled", 1), ("SpillObject", 3)]
    assert node.machine.store.contents.spilled_bytes == 400 + 500


def test_a_disk_that_fails_is_tried_again_without_the_copies_of_objects_in_memory():
    node = NodeStepper(store_bytes=1000, eviction_policy="spill")
    for number in (1, 2):
        node.store(oid(number), 400, remakeable=False)
    restored(node)
    assert orders(node.reserve(oid(4), 300)) == [("SpillObject", 3)]
    failed = SpillFailed(object_id=oid(3), reason="no space left on device")
    assert orders(node(failed)) == []  # the copy of 1 has 400 bytes, and 3 has 500
    assert orders(node(released(oid(1), by=B))) == [("UnloadObject", 1)]


def test_a_freed_object_goes_with_its_copy_on_disk(spilling):
    restored(spilling)
    spilling(released(oid(1), by=B))
    assert orders(spilling(freed(oid(1)))) == [("DeleteSpilled", 1), ("DeleteObject", 1)]
    assert spilling.machine.store.contents.spilled_bytes == 400


def test_an_object_that_is_wanted_while_it_is_being_spilled_stays(spilling):
    spilling.reserve(oid(3), 500)
    assert sends(spilling.want(oid(1), by=B)) == [(B, "ObjectArrived")]
    commands = spill(spilling, 1)
    assert orders(commands) == [("SpillObject", 2)]
    assert granted(spill(spilling, 2)) == [(3, False)]


# ---- What is cheaper: to make it again, or to write it and read it back ----------------------------------------------

DISK_NS = 2 * 400
"""To write an object of 400 bytes and to read it back, on a disk that is not measured."""


@pytest.fixture
def pricing() -> NodeStepper:
    return NodeStepper(store_bytes=1000, eviction_policy="cost", spill_bytes_max=1500)


@pytest.mark.parametrize(
    ("remake_ns", "order"), [(0, "SpillObject"), (DISK_NS // 10, "EvictObject"), (DISK_NS // 10 + 1, "SpillObject")]
)
def test_an_object_is_dropped_when_it_is_much_cheaper_to_make_again(pricing, remake_ns, order):
    pricing.store(oid(1), 400, remake_ns=remake_ns)
    pricing.store(oid(2), 400)
    assert orders(pricing.reserve(oid(3), 400)) == [(order, 1)]


def test_an_object_that_nothing_makes_again_is_written_however_fast_it_was_made(pricing):
    pricing.store(put_id(1), 400, remakeable=False, remake_ns=1)
    pricing.store(oid(2), 400)
    assert orders(pricing.reserve(oid(3), 400)) == [("SpillObject", put_id(1)[0])]


def test_a_disk_is_as_fast_as_it_was_for_the_objects_before(pricing):
    pricing.store(oid(1), 400)
    pricing.store(oid(2), 400, remake_ns=DISK_NS)
    pricing.reserve(oid(3), 400)
    pricing(ObjectSpilled(object_id=oid(1), elapsed_ns=10 * DISK_NS))
    assert orders(pricing.reserve(oid(4), 400)) == [("EvictObject", 2)]


def test_a_copy_that_came_from_another_node_is_dropped(pricing):
    pricing.want(oid(1))
    pricing.locations(oid(1), NodeID("node-1"), size_bytes=400)
    pricing(ObjectReceived(object_id=oid(1), source=NodeID("node-1")))
    pricing(released(oid(1)))
    pricing.store(oid(2), 400)
    assert orders(pricing.reserve(oid(3), 400)) == [("EvictObject", 1)]


def test_of_the_chosen_some_are_dropped_and_some_are_written_and_the_room_is_there_when_all_have_left(pricing):
    pricing.store(oid(1), 400, remake_ns=1)
    pricing.store(oid(2), 400)
    commands = pricing.reserve(oid(3), 900)
    assert (orders(commands), granted(commands)) == ([("SpillObject", 2), ("EvictObject", 1)], [])
    assert [(each.object_id, each.is_eviction) for each in sent(commands, ObjectRemoved)] == [(oid(1), True)]
    assert granted(spill(pricing, 2)) == [(3, False)]


def test_an_object_that_is_freed_while_it_is_being_spilled_goes_when_the_disk_is_done(spilling):
    spilling.reserve(oid(3), 500)
    commands = spilling(freed(oid(1)))
    assert (orders(commands), sends(commands)) == ([], [(HEAD, "ObjectRemoved")])
    commands = spill(spilling, 1)
    assert orders(commands) == [("DeleteSpilled", 1), ("DeleteObject", 1)]
    assert granted(commands) == [(3, False)]
    assert spilling.machine.store.contents.spilled_bytes == 0


def test_a_spilled_object_that_is_freed_goes_from_the_disk(spilling):
    spilling.reserve(oid(3), 500)
    spill(spilling, 1)
    commands = spilling(freed(oid(1)))
    assert (orders(commands), sends(commands)) == ([("DeleteSpilled", 1)], [(HEAD, "ObjectRemoved")])
    assert spilling.machine.store.contents.spilled_bytes == 0


def test_spilled_objects_of_an_owner_that_died_go(spilling):
    spilling.reserve(oid(3), 500, by=B, owner=B)
    spill(spilling, 1)
    assert ("DeleteSpilled", 1) in orders(spilling(OwnerDied(address=Address(A))))


def test_an_object_freed_while_it_is_being_restored_goes_when_it_is_back(spilling):
    spilling.reserve(oid(3), 500)
    spill(spilling, 1)
    spilling.seal(oid(3))
    spilling(freed(oid(3)))
    assert orders(spilling.want(oid(1), by=B)) == [("RestoreObject", 1)]
    spilling(freed(oid(1)), released(oid(1), by=B))
    assert orders(spilling(ObjectRestored(object_id=oid(1)))) == [("DeleteSpilled", 1), ("DeleteObject", 1)]


def test_a_full_disk_never_costs_an_object_and_refuses_in_words(spilling):
    (timer,) = of(spilling.reserve(oid(3), 500), ArmTimer)
    commands = spilling(SpillFailed(object_id=oid(1), reason="No space left on device"))
    assert (orders(commands), sends(commands)) == ([], [])
    assert sends(spilling.want(oid(1), by=B)) == [(B, "ObjectArrived")]
    (denied,) = sent(spilling(TimerFired(timer=timer.timer)), SpaceDenied, A)
    assert "found no room within 10 s, and none on disk (No space left on device)" in denied.error.message
    assert "800 of 1,000 bytes are in use, and 0 of 1,500 on disk" in denied.error.message


def test_a_disk_that_failed_is_tried_again_for_a_new_request_and_when_it_has_room(spilling):
    spilling.store(oid(3), 500)
    spill(spilling, 1)
    spilling.seal(oid(3))
    assert orders(spilling.reserve(oid(4), 400)) == [("SpillObject", 2)]
    assert orders(spilling(SpillFailed(object_id=oid(2), reason="full"))) == [("EvictObject", 3)]
    spilling.seal(oid(4))
    assert orders(spilling.reserve(oid(5), 300, remakeable=False)) == [("SpillObject", 2)]
    assert orders(spilling(SpillFailed(object_id=oid(2), reason="full"))) == [("EvictObject", 4)]
    spilling.seal(oid(5))
    assert orders(spilling.reserve(oid(6), 400)) == [("SpillObject", 2)]
    assert orders(spilling(SpillFailed(object_id=oid(2), reason="full"))) == []
    commands = spilling(freed(oid(1)))
    assert orders(commands) == [("DeleteSpilled", 1), ("SpillObject", 2)]
    assert granted(spill(spilling, 2)) == [(6, False)]


def test_a_disk_that_failed_while_it_was_getting_room_is_tried_again_at_once(spilling):
    spilling.store(oid(3), 500, remakeable=False)
    spill(spilling, 1)
    spilling.seal(oid(3))
    spilling.reserve(oid(4), 400)
    spilling(freed(oid(1)))
    assert orders(spilling(SpillFailed(object_id=oid(2), reason="full"))) == [("SpillObject", 2)]
    assert orders(spilling(SpillFailed(object_id=oid(2), reason="full"))) == []


def test_when_the_disk_fails_what_can_be_made_again_is_evicted():
    node = NodeStepper(store_bytes=1000, eviction_policy="spill")
    node.store(oid(1), 600, remakeable=False)
    node.store(oid(2), 300)
    assert orders(node.reserve(oid(3), 400)) == [("SpillObject", 1)]
    commands = node(SpillFailed(object_id=oid(1), reason="broken"))
    assert orders(commands) == [("EvictObject", 2)]
    assert granted(commands) == [(3, False)]


def test_the_limit_of_the_disk_counts_and_then_what_can_be_made_again_is_evicted():
    node = NodeStepper(store_bytes=1000, eviction_policy="spill", spill_bytes_max=500)
    node.store(oid(1), 400)
    node.store(oid(2), 600)
    node.reserve(oid(3), 300)
    spill(node, 1)
    node.seal(oid(3))
    assert orders(node.reserve(oid(4), 600)) == [("EvictObject", 2)]


def test_the_limit_of_the_disk_is_named_when_nothing_can_leave(spilling):
    for number in (3, 4, 5):
        spilling.reserve(oid(number), 500, remakeable=False)
        spill(spilling, number - 2) if number < 5 else None
        spilling.seal(oid(number))
    (timer,) = of(spilling.reserve(oid(6), 900, remakeable=False), ArmTimer)
    (denied,) = sent(spilling(TimerFired(timer=timer.timer)), SpaceDenied)
    assert "of 1,500 on disk" in denied.error.message


def test_whoever_waits_for_the_disk_waits_as_long_as_it_makes_progress(spilling):
    spilling.reserve(oid(3), 1000)
    assert of(spill(spilling, 1), ArmTimer) == [ArmTimer(timer=f"space:{oid(3).hex()}:{A}", delay_ns=10_000_000_000)]
    assert granted(spill(spilling, 2)) == [(3, False)]


def test_a_copy_that_the_disk_has_lost_is_lost_and_another_is_sought(spilling):
    spilling.reserve(oid(3), 500)
    spill(spilling, 1)
    spilling.seal(oid(3))
    spilling(freed(oid(3)))
    spilling.want(oid(1), by=B)
    commands = spilling(RestoreFailed(object_id=oid(1), reason="input/output error"))
    assert orders(commands) == [("DeleteSpilled", 1), ("DeleteObject", 1)]
    assert sends(commands) == [(HEAD, "ObjectRemoved"), (HEAD, "LocationsWanted")]


def test_a_restored_object_for_which_there_is_no_memory_stays_on_disk(spilling):
    spilling.reserve(oid(3), 500)
    spill(spilling, 1)
    spilling.seal(oid(3))
    spilling(freed(oid(3)))
    spilling.finds_memory = False
    spilling.want(oid(1), by=B)
    commands = spilling(ReserveFailed(object_id=oid(1), reason="full"))
    assert sends(commands) == [(B, "ObjectUnavailable")]
    assert spilling.machine.store.is_spilled(oid(1))
    spilling.finds_memory = True
    assert orders(spilling.want(oid(1), by=B)) == [("RestoreObject", 1)]


def test_a_spilled_object_is_read_back_for_another_node(spilling):
    spilling.reserve(oid(3), 500)
    spill(spilling, 1)
    spilling.seal(oid(3))
    spilling(freed(oid(3)))
    for node in ("node-1", "node-2"):
        commands = spilling(ObjectRequested(object_id=oid(1), to=NodeID(node)))
        assert sends(commands) == []
    commands = spilling(ObjectRestored(object_id=oid(1)))
    assert [each.to for each in of(commands, SendObject)] == ["node-1", "node-2"]
    spilling(ObjectSent(object_id=oid(1), to=NodeID("node-1")), ObjectSent(object_id=oid(1), to=NodeID("node-2")))
    assert not spilling.machine.store.objects[oid(1)].pins


def test_a_task_that_makes_a_spilled_object_again_finds_it_here(spilling):
    spilling.reserve(oid(3), 500)
    spill(spilling, 1)
    assert granted(spilling.reserve(oid(1), 400, by=B)) == [(1, True)]


def fill_both(spilling) -> None:
    """Object 1 is on disk; the memory is full of what is in use, and the disk will not take more."""
    spilling.reserve(oid(3), 600, remakeable=False)
    spill(spilling, 1)
    spilling.seal(oid(3))
    for number in (2, 3):
        spilling.want(oid(number), by=A)


def test_another_node_is_told_that_there_is_no_room_to_read_an_object_back(spilling):
    fill_both(spilling)
    (timer,) = of(spilling(ObjectRequested(object_id=oid(1), to=NodeID("node-1"))), ArmTimer)
    (answer,) = sent(spilling(TimerFired(timer=timer.timer)), ObjectNotHere, "node-1")
    assert answer.error.kind is ErrorKind.STORE_FULL
    assert "Largest holders" in answer.error.message
    assert spilling.machine.store.is_spilled(oid(1))


def test_a_new_life_that_wants_what_is_on_disk_gets_it_though_the_death_of_the_last_is_heard_of_meanwhile(spilling):
    spilling.reserve(oid(3), 500)
    spill(spilling, 1)
    spilling.seal(oid(3))
    spilling(freed(oid(3)))
    node = NodeID("node-1")
    spilling(ObjectRequested(object_id=oid(1), to=node, incarnation=1))
    spilling(NodeDied(node=node, incarnation=0))
    assert [each.to for each in of(spilling(ObjectRestored(object_id=oid(1))), SendObject)] == [node]
