"""A node's disk behind its store: what is written to it, read back, dropped instead, and kept when it fails."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import (
    ArmTimer,
    DeleteObject,
    DeleteSpilled,
    EvictObject,
    RestoreObject,
    SendObject,
    SpillObject,
    UnloadObject,
)
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    NodeDied,
    ObjectNotHere,
    ObjectReceived,
    ObjectRemoved,
    ObjectRequested,
    ObjectRestored,
    ObjectSent,
    ObjectSpilled,
    OwnerDied,
    ReserveFailed,
    RestoreFailed,
    SpaceDenied,
    SpillFailed,
    TimerFired,
)
from dualray.shared.model.ids import HEAD, Address, NodeID
from tests.shared.builders import NodeStepper, in_line, of, oid, put_id, sends, sent
from tests.shared.machines.node.test_object_store import A, B, freed, granted, released

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


def test_the_copy_of_an_object_that_leaves_memory_at_once_does_not_make_way_for_others():
    """It is the last one, and nothing can make the object again."""
    node = NodeStepper(store_bytes=1000, eviction_policy="spill", spill_bytes_max=900)
    for number in (1, 2):
        node.store(oid(number), 400, remakeable=False)
    restored(node)
    node(released(oid(1), by=B))
    assert orders(node.reserve(oid(4), 1000, remakeable=False)) == []  # 3 is to be written, and 1 has its copy there
    assert node.machine.store.is_here(oid(1))


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
    (timer,) = in_line(spilling.reserve(oid(3), 500))
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
    (timer,) = in_line(spilling.reserve(oid(6), 900, remakeable=False))
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
    (timer,) = in_line(spilling(ObjectRequested(object_id=oid(1), to=NodeID("node-1"))))
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
