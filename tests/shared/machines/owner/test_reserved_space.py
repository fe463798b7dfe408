"""Room that an owner keeps, what lies there, and to whom it is lent: see shared/machines/owner/reserved_space.py."""

from __future__ import annotations

import pytest

from dualray.shared.machines.owner.reserved_space import ROOM_TIMER
from dualray.shared.model.commands import ArmTimer, DeleteObject, RenameObject, ReserveSpace
from dualray.shared.model.events import (
    ArgumentsLent,
    LoanPinned,
    LoansAsked,
    LoansKept,
    LoansKnown,
    ObjectPlaced,
    ObjectReleased,
    OwnerDied,
    RefsDropped,
    RoomWanted,
    SpaceGranted,
    SpaceRequested,
    SpaceReserved,
    SpaceReturned,
    SpaceWanted,
    TimerFired,
    ValuePut,
    WorkerExited,
)
from dualray.shared.model.ids import Address, ObjectID, WaitID, lent_by
from dualray.shared.model.specs import Ref
from tests.shared.builders import NODE, NodeStepper, OwnerStepper, completed, put_id, sent

DRIVER = Address("driver-1")
READER = Address(f"{NODE}/w0")
OTHER_READER = Address(f"{NODE}/w1")
ELSEWHERE = Address("node-9/w0")


@pytest.fixture
def driver() -> OwnerStepper:
    return OwnerStepper()


def dropped(*object_ids: ObjectID) -> RefsDropped:
    return RefsDropped(object_ids=object_ids)


def wanted(number: int, size_bytes: int = 500) -> SpaceWanted:
    return SpaceWanted(
        wait_id=WaitID(number),
        object_id=put_id(number),
        size_bytes=size_bytes,
        owner=DRIVER,
        remakeable=False,
        is_argument=True,
    )


def lodge(driver: OwnerStepper, number: int, size_bytes: int = 500) -> None:
    """An argument is written into room that the node manager had to make."""
    assert [each.is_room for each in sent(driver(wanted(number, size_bytes)), SpaceRequested)] == [True]
    driver(SpaceGranted(object_id=put_id(number), place=number))
    write(driver, number, size_bytes)


def write(driver: OwnerStepper, number: int, size_bytes: int = 500) -> None:
    driver(ValuePut(object_id=put_id(number), size_bytes=size_bytes, inline=False))


def lend(driver: OwnerStepper, number: int, worker: Address = READER, task: int = 1) -> None:
    rooms = driver.machine.rooms
    rooms.lend(put_id(100 + task)[:16], [Ref(put_id(number), DRIVER)], worker)


def settle(driver: OwnerStepper, worker: Address = READER, task: int = 1) -> None:
    driver.machine.rooms.settle(worker, put_id(100 + task)[:16])


def commands_of(driver: OwnerStepper) -> list[object]:
    commands, driver.machine.out.commands = driver.machine.out.commands, []
    return commands


def test_what_is_freed_leaves_its_room_to_the_next(driver):
    lodge(driver, 1)
    assert sent(driver(dropped(put_id(1))), SpaceReturned) == []
    commands = driver(wanted(2, 400))
    assert completed(commands) == [(2, (put_id(2),))]
    assert sent(commands, SpaceRequested) == []
    assert driver.machine.rooms.place_of(put_id(2)) == 1


@pytest.mark.parametrize("size_bytes", [501, 249])
def test_room_that_is_too_small_or_much_too_large_is_not_taken(driver, size_bytes):
    lodge(driver, 1)
    driver(dropped(put_id(1)))
    assert sent(driver(wanted(2, size_bytes)), SpaceRequested)


def test_what_is_lent_is_not_written_over_before_it_is_back(driver):
    lodge(driver, 1)
    lend(driver, 1)
    [loan] = sent(commands_of(driver), ArgumentsLent)
    assert loan.loans == ((put_id(1), put_id(1), 1, 500),)
    driver(dropped(put_id(1)))
    assert sent(driver(wanted(2)), SpaceRequested)
    settle(driver)
    assert completed(driver(wanted(3))) == [(3, (put_id(3),))]


def test_what_was_lent_to_a_worker_comes_back_with_its_death(driver):
    lodge(driver, 1)
    lend(driver, 1)
    driver(dropped(put_id(1)))
    driver(OwnerDied(address=READER))
    assert completed(driver(wanted(2))) == [(2, (put_id(2),))]


def test_a_task_on_another_node_has_its_argument_handed_over(driver):
    lodge(driver, 1)
    lend(driver, 1, ELSEWHERE)
    [placed] = sent(commands_of(driver), ObjectPlaced)
    assert (placed.object_id, placed.room_id, placed.is_lent) == (put_id(1), put_id(1), False)
    assert driver.machine.rooms.lodged == {}


def test_room_is_returned_and_arguments_are_handed_over_when_room_is_wanted(driver):
    lodge(driver, 1)
    lodge(driver, 2)
    lodge(driver, 3)
    lend(driver, 3)
    driver(dropped(put_id(1)))
    commands = driver(RoomWanted())
    assert [each.object_id for each in sent(commands, SpaceReturned)] == [put_id(1)]
    assert [(each.object_id, each.is_lent) for each in sent(commands, ObjectPlaced)] == [
        (put_id(2), False),
        (put_id(3), True),
    ]
    settle(driver)
    assert sent(commands_of(driver), ObjectReleased) == [ObjectReleased(object_id=put_id(3), requester=lent_by(DRIVER))]


def test_nothing_is_lodged_for_a_while_when_room_was_wanted(driver):
    driver(RoomWanted())
    assert [each.is_room for each in sent(driver(wanted(1)), SpaceRequested)] == [False]
    driver.now_ns += 600_000_000
    assert [each.is_room for each in sent(driver(wanted(2)), SpaceRequested)] == [True]


def test_what_a_reader_keeps_is_handed_over_and_pinned_for_it(driver):
    lodge(driver, 1)
    lend(driver, 1)
    commands_of(driver)
    [placed] = sent(driver(LoansKept(worker=READER, object_ids=(put_id(1),))), ObjectPlaced)
    assert (placed.is_lent, placed.readers) == (True, (READER,))


def test_room_that_nobody_uses_goes_back(driver):
    lodge(driver, 1)
    driver(dropped(put_id(1)))
    driver.now_ns += 500_000_000
    assert [each.object_id for each in sent(driver(TimerFired(timer=ROOM_TIMER)), SpaceReturned)] == [put_id(1)]


def test_the_timer_goes_on_while_there_is_something_to_look_after(driver):
    lodge(driver, 1)
    lend(driver, 1)
    driver.now_ns += 500_000_000
    assert any(isinstance(each, ArmTimer) and each.timer == ROOM_TIMER for each in driver(TimerFired(timer=ROOM_TIMER)))
    settle(driver)
    driver.now_ns += 500_000_000
    assert sent(driver(TimerFired(timer=ROOM_TIMER)), ObjectPlaced)


# ---- The node --------------------------------------------------------------------------------------------------------


@pytest.fixture
def node() -> NodeStepper:
    return NodeStepper(store_bytes=1000, eviction_policy="lru").with_workers(2)


def room(node: NodeStepper, number: int, size_bytes: int = 500, by: Address = DRIVER) -> None:
    request = SpaceRequested(
        object_id=put_id(number), size_bytes=size_bytes, owner=by, requester=by, remakeable=False, is_room=True
    )
    node(request)


def placed(number: int, room_number: int, size_bytes: int = 300, **options: object) -> ObjectPlaced:
    return ObjectPlaced(
        object_id=put_id(number),
        room_id=put_id(room_number),
        size_bytes=size_bytes,
        owner=DRIVER,
        requester=DRIVER,
        **options,
    )


def test_who_asks_for_room_hears_its_place():
    node = NodeStepper()
    node.finds_memory = False
    room(node, 1)
    [granted] = sent(node(SpaceReserved(object_id=put_id(1), place=77)), SpaceGranted)
    assert granted.place == 77


def test_an_object_takes_over_its_room_and_leaves_the_rest(node):
    room(node, 1)
    commands = node(placed(2, 1))
    assert RenameObject(room_id=put_id(1), object_id=put_id(2), size_bytes=300) in commands
    assert node.machine.store.contents.used_bytes == 300
    assert node.machine.store.is_sealed(put_id(2))


def test_a_full_store_calls_back_what_is_kept_once(node):
    room(node, 1)
    room(node, 2, by=READER)
    commands = node.reserve(put_id(3), 600)
    assert len(sent(commands, RoomWanted)) == 2
    assert sent(node.reserve(put_id(4), 600), RoomWanted) == []
    node(SpaceReturned(object_id=put_id(1), requester=DRIVER))
    commands = node(SpaceReturned(object_id=put_id(2), requester=READER))
    assert [each.object_id for each in sent(commands, SpaceGranted)] == [put_id(3)]


def test_room_counts_as_used(node):
    room(node, 1)
    assert node.machine.store.contents.used_bytes == 500
    assert any(isinstance(each, ReserveSpace) for each in [*node.reserve(put_id(2), 500)]) is False
    assert node.machine.store.contents.used_bytes == 1000


def test_what_is_lent_does_not_leave_before_it_is_released(node):
    room(node, 1)
    node(placed(1, 1, 500, is_lent=True))
    node.machine.store.free(put_id(1))
    assert node.machine.store.is_readable(put_id(1))
    assert DeleteObject(object_id=put_id(1)) in node(ObjectReleased(object_id=put_id(1), requester=lent_by(DRIVER)))


def test_a_reader_hears_that_what_it_keeps_is_pinned(node):
    room(node, 1)
    commands = node(placed(1, 1, 500, is_lent=True, readers=(READER,)))
    assert sent(commands, LoanPinned, READER) == [LoanPinned(object_id=put_id(1))]
    assert READER in node.machine.store.objects[put_id(1)].pins


def test_room_of_a_dead_process_stays_until_all_workers_have_said_what_they_read(node):
    room(node, 1)
    room(node, 2, 300)
    commands = node(OwnerDied(address=DRIVER))
    assert len(sent(commands, LoansAsked)) == 2
    assert node.machine.store.contents.used_bytes == 800
    loan = (put_id(5), put_id(1), 0, 200)
    node(LoansKnown(worker=READER, lender=DRIVER, loans=(loan,)))
    assert node.machine.store.contents.used_bytes == 500
    node(WorkerExited(worker=OTHER_READER, reason="killed by SIGKILL"))
    assert node.machine.store.contents.used_bytes == 200
    assert DeleteObject(object_id=put_id(5)) in node(ObjectReleased(object_id=put_id(5), requester=READER))
    assert node.machine.store.contents.used_bytes == 0
