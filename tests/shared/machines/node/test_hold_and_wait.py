"""What is brought early for tasks that have not begun keeps nobody from going on. Each test states one rule."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import ArmTimer, CancelTimer, EvictObject, ReserveSpace
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    LeaseGranted,
    LeaseRefused,
    LeaseReturned,
    LocationsWanted,
    ObjectFailed,
    ObjectNotHere,
    ObjectReceived,
    ObjectRequested,
    ObjectUnavailable,
    OwnerDied,
    ReserveFailed,
    SpaceGranted,
    TimerFired,
    WorkerBlocked,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID
from tests.shared.builders import DRIVER, OTHER, NodeStepper, cpus, hint, of, oid, sent, shape

W0, W1 = Address("node-0/w0"), Address("node-0/w1")
AWAY = NodeID("node-9")


@pytest.fixture
def node() -> NodeStepper:
    """One CPU, two workers, a store of 1,000 bytes."""
    return NodeStepper(total=cpus(1)).with_workers(2)


def task(*numbers: int, amount: float = 1):
    """What a task demands whose arguments, of 200 bytes each, are the results of these tasks."""
    return shape(cpus(amount), deps=tuple(hint(oid(number), 200) for number in numbers))


def ask(node: NodeStepper, *numbers: int, amount: float = 1):
    return node.ask(task(*numbers, amount=amount), placed=True)


def arrive(node: NodeStepper, number: int):
    return node(ObjectReceived(object_id=oid(number), source=AWAY))


def is_away(node: NodeStepper, *numbers: int):
    return [command for number in numbers for command in node.locations(oid(number), AWAY, size_bytes=200)]


def requested(commands) -> list[int]:
    """Of which tasks' results the bytes are asked for."""
    return [message.object_id[0] for message in sent(commands, ObjectRequested)]


def slots(node: NodeStepper) -> list[tuple[bool, int]]:
    """Of each slot that waits: whether it is admitted, and how many arguments it lacks."""
    return [(slot.is_admitted, len(slot.missing)) for slot in node.machine.scheduler.waiting.values()]


def pins(node: NodeStepper, number: int) -> list[str]:
    return list(node.machine.store.objects[oid(number)].pins)


def test_nothing_is_held_for_a_slot_while_an_argument_is_yet_to_be_made(node):
    node.store(oid(1), 200)
    commands = ask(node, 1, 2, 3)
    assert len(sent(commands, LocationsWanted, HEAD)) == 2
    assert requested(is_away(node, 2)) == []
    assert pins(node, 1) == []
    assert slots(node) == [(False, 0)]
    assert requested(is_away(node, 3)) == [2, 3]
    assert slots(node) == [(True, 2)]
    assert len(pins(node, 1)) == 1


def test_arguments_are_brought_for_as_many_slots_as_half_the_store_takes_in_order(node):
    for first in (1, 3, 5):
        ask(node, first, first + 1)
    assert requested(is_away(node, 5, 6)) == [5, 6]
    assert requested(is_away(node, 1, 2, 3, 4)) == []
    arrive(node, 5)
    assert sent(arrive(node, 6), LeaseGranted)
    assert slots(node) == [(True, 2), (False, 0)]


def test_a_slot_whose_arguments_are_many_is_admitted_alone(node):
    ask(node, 1, 2, 3, 4)
    ask(node, 5)
    assert requested(is_away(node, 1, 2, 3, 4)) == [1, 2, 3, 4]
    assert requested(is_away(node, 5)) == []


def test_slots_that_share_their_arguments_are_admitted_together(node):
    for _ in range(5):
        ask(node, 1, 2)
    is_away(node, 1, 2)
    assert slots(node) == [(True, 2)] * 5


def test_a_process_that_writes_goes_before_what_is_brought_early_and_takes_its_room(node):
    node.store(oid(9), 700, remakeable=False)
    ask(node, 1, 2)
    assert requested(is_away(node, 1, 2)) == [1]
    arrive(node, 1)
    commands = node.reserve(oid(8), 250, by=W1)
    assert of(commands, EvictObject) == [EvictObject(object_id=oid(1))]
    assert sent(commands, SpaceGranted, W1)
    assert slots(node) == [(False, 0)]


def test_of_slots_that_keep_one_another_from_room_the_youngest_stands_back_until_the_oldest_has_started(node):
    node.store(oid(9), 600, remakeable=False)
    ask(node, 1, 2)
    node.ask(shape(cpus(1), deps=(hint(oid(4), 50), hint(oid(5), 50))), placed=True)
    for number in (4, 5):
        node.locations(oid(number), AWAY, size_bytes=50)
    arrive(node, 4)
    assert requested(is_away(node, 1, 2)) == [1]
    assert slots(node) == [(True, 2), (False, 0)]
    assert requested(arrive(node, 5)) == [2]
    assert slots(node) == [(True, 2), (False, 0)]
    arrive(node, 1)
    commands = arrive(node, 2)
    assert [granted.request_id for granted in sent(commands, LeaseGranted)] == ["driver-1#0"]
    assert len(pins(node, 1)) == len(pins(node, 2)) == 1


def test_a_slot_of_which_an_argument_is_lost_gives_up_the_others(node):
    ask(node, 1, 2)
    is_away(node, 1, 2)
    arrive(node, 1)
    assert len(pins(node, 1)) == 1
    commands = node(ObjectNotHere(object_id=oid(2), node=AWAY))
    assert len(sent(commands, LocationsWanted, HEAD)) == 1
    assert pins(node, 1) == []
    assert requested(is_away(node, 2)) == [2]
    assert sent(arrive(node, 2), LeaseGranted)


def test_a_slot_whose_arguments_are_all_here_starts_while_others_wait_for_room(node):
    node.store(oid(1), 900, remakeable=False)
    node.reserve(oid(2), 900, by=W1)
    assert sent(node.ask(shape(cpus(1), deps=(hint(oid(1), 900),)), placed=True), LeaseGranted)
    assert len(pins(node, 1)) == 1


def test_a_slot_that_found_no_room_waits_on_while_a_task_runs_here_and_is_refused_when_none_does(node):
    node.ask()
    node.store(oid(9), 900, remakeable=False)
    ask(node, 1)
    is_away(node, 1)
    [request] = node.machine.store.waiting
    timer = TimerFired(timer=f"space:{oid(1).hex()}:{request.user}")
    assert not sent(node(timer), LeaseRefused)
    assert slots(node)
    is_away(node, 1)
    node(LeaseReturned(lease_id=LeaseID("node-0~0/lease0"), worker_usable=True))
    [refused] = sent(node(timer), LeaseRefused)
    assert refused.error.kind is ErrorKind.STORE_FULL
    assert slots(node) == []


def test_an_argument_that_is_larger_than_the_store_is_refused_at_once_also_while_a_task_runs(node):
    node.ask()
    node.ask(shape(cpus(1), deps=(hint(oid(1), 1001),)), placed=True)
    [refused] = sent(node.locations(oid(1), AWAY, size_bytes=1001), LeaseRefused)
    assert refused.error.kind is ErrorKind.STORE_FULL


def test_what_a_process_wants_too_is_brought_before_what_is_brought_early(node):
    node.store(oid(9), 900, remakeable=False)
    ask(node, 1, 2)
    is_away(node, 1, 2)
    node.want(oid(2), by=DRIVER)
    line = node.machine.store.waiting
    assert [(request.object_id[0], request.is_early) for request in line] == [(2, False), (1, True)]


def test_the_arguments_of_a_lease_are_pinned_for_it_until_its_worker_has_its_own_pin(node):
    node.store(oid(1), 200)
    [granted] = sent(ask(node, 1), LeaseGranted)
    assert len(pins(node, 1)) == 1
    node.want(oid(1), by=granted.worker)
    assert pins(node, 1) == [granted.worker]


def test_a_slot_that_ends_leaves_the_line_for_room(node):
    node.store(oid(9), 900, remakeable=False)
    ask(node, 1)
    is_away(node, 1)
    assert len(node.machine.store.waiting) == 1
    node.machine.scheduler.start_draining()
    assert not node.machine.store.waiting
    assert not node.machine.transfer.wants


def test_a_slot_that_finds_no_room_while_all_tasks_are_blocked_is_refused_in_the_end(node):
    """They may wait for it."""
    [granted] = sent(node.ask(), LeaseGranted)
    node.store(oid(9), 900, remakeable=False)
    ask(node, 1)
    node(WorkerBlocked(worker=granted.worker))
    for _ in range(5):
        assert not sent(no_room(node), LeaseRefused)
        assert slots(node)
    [refused] = sent(no_room(node), LeaseRefused)
    assert refused.error.kind is ErrorKind.STORE_FULL
    assert slots(node) == []


def test_a_slot_whose_argument_another_node_cannot_read_back_is_refused(node):
    node.ask()
    ask(node, 1)
    full = ErrorInfo(kind=ErrorKind.STORE_FULL, message="full", is_final=True)
    is_away(node, 1)
    [refused] = sent(node(ObjectFailed(object_id=oid(1), error=full)), LeaseRefused)
    assert refused.error == full


def no_room(node: NodeStepper) -> list:
    """Wait until the one in line is refused."""
    is_away(node, 1)
    [request] = node.machine.store.waiting
    return node(TimerFired(timer=f"space:{oid(1).hex()}:{request.user}"))


# ---- There is room, and no memory ------------------------------------------------------------------------------------


def no_memory(node: NodeStepper):
    return node(ReserveFailed(object_id=oid(1), reason="full"))


def armed(commands) -> list[tuple[str, int]]:
    return [(timer.timer.partition(":")[0], timer.delay_ns) for timer in of(commands, ArmTimer)]


@pytest.fixture
def starved(node) -> NodeStepper:
    """A task runs, and another one's argument is somewhere else; there is room for it here."""
    node.ask(owner=OTHER)
    node.finds_memory = False
    ask(node, 1)
    assert len(of(is_away(node, 1), ReserveSpace)) == 1
    return node


def test_what_finds_no_memory_asks_for_it_now_and_then_and_begins_anew_in_the_end(starved):
    pause_ns = starved.machine.config.store_wait_ns // 10
    for _ in range(9):
        commands = no_memory(starved)
        assert armed(commands) == [("memory", pause_ns)]
        assert sent(commands, LocationsWanted) == sent(commands, LeaseRefused) == []
        [timer] = of(commands, ArmTimer)
        assert len(of(starved(TimerFired(timer=timer.timer)), ReserveSpace)) == 1
    commands = no_memory(starved)
    assert armed(commands) == []
    assert len(sent(commands, LocationsWanted, HEAD)) == 1


def test_what_found_no_memory_comes_when_there_is_some(starved):
    [timer] = of(no_memory(starved), ArmTimer)
    starved.finds_memory = True
    assert requested(starved(TimerFired(timer=timer.timer))) == [1]
    arrive(starved, 1)
    assert slots(starved) == [(True, 0)]
    assert starved.machine.store.space.without_memory == {}


def test_who_waits_no_more_asks_for_no_memory(starved):
    [timer] = of(no_memory(starved), ArmTimer)
    commands = starved(OwnerDied(address=DRIVER))
    assert [cancelled.timer for cancelled in of(commands, CancelTimer)] == [timer.timer]
    assert starved.machine.store.space.without_memory == {}


def test_what_a_running_task_wants_too_is_refused_the_next_time(starved):
    [timer] = of(no_memory(starved), ArmTimer)
    starved.want(oid(1), by=W0)
    starved(TimerFired(timer=timer.timer))
    assert len(sent(no_memory(starved), ObjectUnavailable, W0)) == 1


def test_who_was_sent_here_for_it_asks_elsewhere_meanwhile(starved):
    starved(ObjectRequested(object_id=oid(1), to=NodeID("node-2"), turn=9))
    assert len(sent(no_memory(starved), ObjectNotHere, NodeID("node-2"))) == 1


def test_bringing_one_argument_of_a_slot_does_not_evict_another_that_is_here(node):
    """Else the slot waits for a copy that is gone, and keeps what others need to make it again."""
    node.store(oid(1), 400)
    node.store(oid(9), 400)
    commands = node.ask(shape(cpus(1), deps=(hint(oid(4), 400), hint(oid(1), 400))), placed=True)
    commands += node.locations(oid(4), AWAY, size_bytes=400)
    assert [each.object_id for each in of(commands, EvictObject)] == [oid(9)]
    assert requested(commands) == [4]
