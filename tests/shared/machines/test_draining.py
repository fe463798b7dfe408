"""A node that is to leave in good order: what it, the head and the owners do."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    CopyKept,
    CopyWanted,
    DrainAsked,
    LeaseRequested,
    LeaseReturned,
    LeasesRecalled,
    LeaseWanted,
    LocationsWanted,
    NodeDraining,
    NodeEmptied,
    NodeJoined,
    NodeReleased,
    ObjectReceived,
    ObjectsFreed,
    PeerLost,
    ResourcesReported,
    TimerFired,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID
from tests.shared.builders import (
    DRIVER,
    HeadStepper,
    NodeStepper,
    OwnerStepper,
    cpus,
    info,
    of,
    oid,
    sends,
    sent,
    shape,
    task,
)

N0, N1, N2 = NodeID("node-0"), NodeID("node-1"), NodeID("node-2")
X, Y = oid(8), oid(9)
EMPTIED = NodeEmptied(node=N0, incarnation=0, needed=())


# ---- The node ------------------------------------------------------------------------------------------------------


@pytest.fixture
def node() -> NodeStepper:
    """A node of two CPUs, with one lease granted and one placed by the head that waits for room."""
    node = NodeStepper().with_workers(2)
    node.ask(shape(cpus(1)), request="driver-1#0")
    node.ask(shape(cpus(2)), placed=True, request="driver-1#1")
    return node


def test_it_tells_the_head_and_wants_its_leases_back(node):
    commands = node(DrainAsked())
    assert sent(commands, NodeDraining, HEAD) == [NodeDraining(node=N0, incarnation=0)]
    assert sent(commands, LeaseWanted, DRIVER) == [LeaseWanted(lease_id=LeaseID("node-0~0/lease0"))]
    assert of(commands, ArmTimer) == [ArmTimer(timer="drain", delay_ns=Config().drain_timeout_ns)]
    assert node(DrainAsked()) == [], "once is enough"


def test_what_was_placed_there_and_waits_goes_back_to_the_head(node):
    (again,) = sent(node(DrainAsked()), LeaseRequested, HEAD)
    assert (again.request_id, again.count, again.placed, again.via) == ("driver-1#1", 1, False, "node-0")


def test_what_a_process_waits_for_that_is_out_of_reach_goes_back_to_the_head(node):
    node.ask(shape(cpus(2)), placed=True, request="driver-2#0", owner="driver-2")
    commands = node(LeasesRecalled(owner=Address("driver-2")))
    assert [again.request_id for again in sent(commands, LeaseRequested, HEAD)] == ["driver-2#0"]
    assert sent(commands, ResourcesReported, HEAD)[-1].settled == ("driver-2#0",)
    assert [slot.owner for slot in node.machine.scheduler.waiting.values()] == [DRIVER]


@pytest.mark.parametrize("placed", [True, False])
def test_what_is_asked_for_meanwhile_goes_to_the_head(node, placed):
    node(DrainAsked())
    (again,) = sent(node.ask(count=2, placed=placed, request="driver-1#2"), LeaseRequested, HEAD)
    assert (again.count, again.placed) == (2, False)


def test_when_the_leases_are_back_it_says_what_nothing_can_make_again(node):
    node.store(X, remakeable=False)
    node.store(Y, remakeable=True)
    assert sent(node(DrainAsked()), NodeEmptied, HEAD) == []
    commands = node(LeaseReturned(lease_id=LeaseID("node-0~0/lease0")))
    assert sent(commands, NodeEmptied, HEAD) == [NodeEmptied(node=N0, incarnation=0, needed=(X,))]
    assert not node.machine.drained
    node(NodeReleased(node=N0, incarnation=0))
    assert node.machine.drained


def test_an_object_that_is_stored_after_its_lease_came_back_is_named_as_well(node):
    """The news of the object comes from the worker, that of the lease from its owner: either may come first."""
    node(DrainAsked())
    node(LeaseReturned(lease_id=LeaseID("node-0~0/lease0")))
    again = [NodeEmptied(node=N0, incarnation=0, needed=(X,), repeats=1)]
    assert sent(node.store(X, remakeable=False), NodeEmptied, HEAD) == again
    node(NodeReleased(node=N0, incarnation=0))
    assert not node.machine.drained, "the head did not know of the object"
    node(NodeReleased(node=N0, incarnation=0, repeats=1))
    assert node.machine.drained


def test_an_actor_that_goes_on_storing_objects_does_not_hold_it_up(node):
    node(DrainAsked(), LeaseReturned(lease_id=LeaseID("node-0~0/lease0")))
    repeats = [sent(node.store(oid(20 + number)), NodeEmptied, HEAD) for number in range(12)]
    assert [len(each) for each in repeats] == [1] * 8 + [0] * 4
    node(NodeReleased(node=N0, incarnation=0, repeats=8))
    assert node.machine.drained


def test_the_release_of_an_earlier_life_is_old_news():
    node = NodeStepper(incarnation=1)
    node(DrainAsked(), NodeReleased(node=N0, incarnation=0))
    assert not node.machine.drained


def test_after_a_while_it_leaves_all_the_same(node):
    node(DrainAsked(), TimerFired(timer="drain"))
    assert node.machine.drained


def test_one_that_may_stay_gives_the_drain_up_and_says_why(node):
    node(DrainAsked(is_cancellable=True))
    commands = node(TimerFired(timer="drain"))
    why = "its tasks did not end within 30 s"
    assert sent(commands, NodeDraining, HEAD) == [NodeDraining(node=N0, incarnation=0, given_up=why)]
    assert not node.machine.drained
    node(NodeReleased(node=N0, incarnation=0))
    assert not node.machine.drained, "the head has not heard of it yet"
    node(LeaseReturned(lease_id=LeaseID("node-0~0/lease0")))
    assert sent(node.ask(count=1, placed=True, request="driver-1#2"), LeaseRequested, HEAD) == [], "it takes work again"
    assert node(TimerFired(timer="drain")) == []


def test_it_says_whether_it_was_copies_that_found_no_place(node):
    node.store(X, remakeable=False)
    node(DrainAsked(is_cancellable=True), LeaseReturned(lease_id=LeaseID("node-0~0/lease0")))
    (given_up,) = sent(node(TimerFired(timer="drain")), NodeDraining, HEAD)
    assert given_up.given_up == "the objects that only this node had were not moved within 30 s"
    assert sent(node(DrainAsked(is_cancellable=True)), NodeEmptied, HEAD), "it may try again"


@pytest.mark.parametrize("first", [True, False])
def test_a_notice_that_it_ends_is_not_given_up_whatever_was_asked_beside_it(node, first):
    node(DrainAsked(is_cancellable=first), DrainAsked(is_cancellable=not first), TimerFired(timer="drain"))
    assert node.machine.drained


def test_an_actor_does_not_hold_it_up():
    node = NodeStepper().with_workers(1)
    node.ask(shape(cpus(1)), owner=HEAD, placed=True)
    commands = node(DrainAsked())
    assert sent(commands, LeaseWanted) == []
    assert len(sent(commands, NodeEmptied, HEAD)) == 1


def test_a_copy_that_is_wanted_is_fetched_and_kept():
    node = NodeStepper()
    commands = node(CopyWanted(object_id=X, owner=DRIVER, remakeable=False))
    assert len(sent(commands, LocationsWanted, HEAD)) == 1
    node.locations(X, "node-1")
    commands = node(ObjectReceived(object_id=X, source=N1))
    assert sent(commands, CopyKept, HEAD) == [CopyKept(object_id=X, node=N0)]
    stored = node.machine.store.objects[X]
    assert not stored.remakeable
    assert not stored.pins


def test_a_copy_that_is_here_is_kept_from_now_on():
    node = NodeStepper()
    node.store(X, remakeable=True)
    commands = node(CopyWanted(object_id=X, owner=DRIVER, remakeable=False))
    assert sent(commands, CopyKept, HEAD) == [CopyKept(object_id=X, node=N0)]
    assert not node.machine.store.objects[X].remakeable


def test_a_copy_that_finds_no_room_is_no_reason_to_wait():
    node = NodeStepper()
    node(CopyWanted(object_id=X, owner=DRIVER, remakeable=True))
    commands = node.locations(X, "node-1", size_bytes=2000)
    assert sent(commands, CopyKept, HEAD) == [CopyKept(object_id=X, node=N0)]


# ---- The head ------------------------------------------------------------------------------------------------------


@pytest.fixture
def head() -> HeadStepper:
    """Three nodes, of which the first is about to leave."""
    head = HeadStepper(info("node-0"), info("node-1"), info("node-2"))
    head(NodeDraining(node=N0, incarnation=0))
    return head


def test_nothing_is_placed_on_a_node_that_leaves(head):
    commands = head.ask(shape(cpus(1)), count=4, via="node-0")
    assert {to for to, name in sends(commands) if name == "LeaseRequested"} == {N1, N2}


def test_nothing_is_placed_there_either_when_it_has_lost_a_gpu_since(head):
    """Found by tests/kept_runs/shuffled.py: each would be handed back, and placed there again."""
    head(NodeJoined(info=info("node-0", cpus(7))))
    commands = head.ask(shape(cpus(1)), count=4, via="node-1")
    assert {to for to, name in sends(commands) if name == "LeaseRequested"} == {N1, N2}


def test_what_only_it_has_goes_to_the_others_in_turn(head):
    head.added(X, "node-0")
    head.added(Y, "node-0")
    commands = head(EMPTIED)
    assert sent(commands, CopyWanted, N1) == [CopyWanted(object_id=X, owner=DRIVER, remakeable=True)]
    assert sent(commands, CopyWanted, N2) == [CopyWanted(object_id=Y, owner=DRIVER, remakeable=True)]
    assert sent(head(CopyKept(object_id=X, node=N1)), NodeReleased) == []
    assert sent(head(CopyKept(object_id=Y, node=N2)), NodeReleased, N0) == [NodeReleased(node=N0, incarnation=0)]


def test_an_object_that_it_names_later_is_moved_as_well_and_what_is_under_way_is_not_moved_twice(head):
    head.added(X, "node-0")
    assert sent(head(EMPTIED), CopyWanted, N1)
    head.added(Y, "node-0")
    commands = head(NodeEmptied(node=N0, incarnation=0, needed=(), repeats=1))
    assert sent(commands, CopyWanted) == [CopyWanted(object_id=Y, owner=DRIVER, remakeable=True)]
    assert sent(head(CopyKept(object_id=X, node=N1)), NodeReleased) == []
    released = sent(head(CopyKept(object_id=Y, node=N2)), NodeReleased, N0)
    assert released == [NodeReleased(node=N0, incarnation=0, repeats=1)]


def test_a_keeper_that_leaves_as_well_is_replaced(head):
    head.added(X, "node-0")
    assert sent(head(EMPTIED), CopyWanted, N1)
    head(NodeDraining(node=N1, incarnation=0))
    commands = head(NodeEmptied(node=N1, incarnation=0, needed=()))
    assert sent(commands, CopyWanted, N2) == [CopyWanted(object_id=X, owner=DRIVER, remakeable=True)]
    assert sent(commands, NodeReleased, N1), "it has nothing that others need"
    assert sent(head(CopyKept(object_id=X, node=N1)), NodeReleased) == []
    assert sent(head(CopyKept(object_id=X, node=N2)), NodeReleased, N0)


def test_a_keeper_that_dies_is_replaced(head):
    head.added(X, "node-0")
    head(NodeEmptied(node=N0, incarnation=0, needed=(X,)))
    commands = head(PeerLost(address=Address("node-1")))
    assert sent(commands, CopyWanted, N2) == [CopyWanted(object_id=X, owner=DRIVER, remakeable=False)]
    assert sent(head(CopyKept(object_id=X, node=N2)), NodeReleased, N0)


def test_when_the_last_keeper_leaves_as_well_both_may_go(head):
    head(PeerLost(address=Address("node-2")))
    head.added(X, "node-0")
    head(EMPTIED, NodeDraining(node=N1, incarnation=0))
    released = sent(head(NodeEmptied(node=N1, incarnation=0, needed=())), NodeReleased)
    assert {event.node for event in released} == {N0, N1}


def test_what_is_freed_meanwhile_needs_no_other_keeper(head):
    head.added(X, "node-0")
    head(EMPTIED, ObjectsFreed(object_ids=(X,)))
    commands = head(PeerLost(address=Address("node-1")))
    assert sent(commands, CopyWanted) == []
    assert sent(commands, NodeReleased, N0)


def test_what_others_have_too_stays_unless_nothing_can_make_it_again(head):
    for object_id in (X, Y):
        head.added(object_id, "node-0")
        head.added(object_id, "node-2")
    commands = head(NodeEmptied(node=N0, incarnation=0, needed=(Y,)))
    assert sent(commands, CopyWanted) == [CopyWanted(object_id=Y, owner=DRIVER, remakeable=False)]
    assert sent(commands, CopyWanted, N2)


def test_a_node_that_has_nothing_is_released_at_once(head):
    assert sent(head(EMPTIED), NodeReleased, N0)


def test_when_nobody_else_is_left_it_may_go(head):
    head.added(X, "node-0")
    head(PeerLost(address=Address("node-1")), PeerLost(address=Address("node-2")))
    assert sent(head(EMPTIED), NodeReleased, N0)


def test_its_death_ends_it(head):
    head.added(X, "node-0")
    head(EMPTIED, PeerLost(address=Address("node-0")))
    assert sent(head(CopyKept(object_id=X, node=N1)), NodeReleased) == []
    assert not head.machine.membership.leaving


def test_news_of_an_earlier_life_drains_nothing(head):
    head(NodeDraining(node=N1, incarnation=7))
    assert head.machine.membership.staying() == [N1, N2]


# ---- The owner -----------------------------------------------------------------------------------------------------


def test_an_owner_gives_a_wanted_lease_back_when_its_task_is_done():
    driver = OwnerStepper()
    driver.submit(task(1))
    driver.grant(0)
    driver.submit(task(2))
    commands = driver(LeaseWanted(lease_id=LeaseID("lease-0")))
    assert sent(commands, LeaseReturned) == []
    commands = driver.finish(1)
    assert sent(commands, LeaseReturned) == [LeaseReturned(lease_id=LeaseID("lease-0"))]
    assert [name for _, name in sends(commands) if name == "TaskPushed"] == [], "the next one waits for another lease"


def test_an_owner_gives_an_idle_lease_back_at_once():
    driver = OwnerStepper()
    driver.submit(task(1))
    driver.grant(0)
    driver.finish(1)
    assert len(sent(driver(LeaseWanted(lease_id=LeaseID("lease-0"))), LeaseReturned)) == 1


def test_an_owner_that_has_no_such_lease_hears_old_news():
    assert OwnerStepper()(LeaseWanted(lease_id=LeaseID("lease-0"))) == []
