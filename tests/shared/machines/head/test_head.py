"""The head as a whole, and membership: who takes part, who is suspected, who is dead, and what comes back."""

from __future__ import annotations

import pytest

from dualray.shared.machines.head.head import ANNOUNCE_TIMER
from dualray.shared.model.commands import ArmTimer, CancelTimer, Send
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    ClusterChanged,
    ClusterStateReported,
    ClusterStateRequested,
    DriverJoined,
    DriverLeft,
    LeaseRequested,
    NodeDied,
    NodeHeard,
    NodeJoined,
    NodeRefused,
    NodeSilent,
    NodeWelcomed,
    OwnerDied,
    PeerLost,
    TimerFired,
    WorkerDied,
)
from dualray.shared.model.ids import Address, NodeID, WaitID
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import NodeState
from tests.shared.builders import DRIVER, OTHER, HeadStepper, cpus, info, sent, shape
from tests.shared.machines.head.news import N0, N1, X, lost, told


def silent(node: str = N0, incarnation: int = 0) -> NodeSilent:
    return NodeSilent(node=NodeID(node), incarnation=incarnation)


def heard(node: str = N0, incarnation: int = 0) -> NodeHeard:
    return NodeHeard(node=NodeID(node), incarnation=incarnation)


ANNOUNCE = TimerFired(timer=ANNOUNCE_TIMER)


def suspected(node: str = N0) -> TimerFired:
    return TimerFired(timer=f"suspicion:{node}")


# ---- Membership: who takes part -------------------------------------------------------------------------------------


def test_a_node_that_joins_is_welcome_and_everyone_hears_of_it():
    head = HeadStepper(info("node-0"))
    head(ANNOUNCE)
    commands = head(NodeJoined(info=info("node-1")))
    assert told(commands, NodeWelcomed) == ["node-1"]
    assert sent(commands, ClusterChanged) == [ClusterChanged(nodes=(info("node-0"), info("node-1")))] * 2


def test_nodes_that_join_in_a_burst_are_announced_once():
    head = HeadStepper(info("node-0"))
    commands = head(*(NodeJoined(info=info(f"node-{number}")) for number in (1, 2, 3)))
    assert sent(commands, ClusterChanged) == []
    everybody = ClusterChanged(nodes=tuple(info(f"node-{number}") for number in range(4)))
    assert sent(head(ANNOUNCE), ClusterChanged) == [everybody] * 4
    assert sent(head(ANNOUNCE), ClusterChanged) == []


def test_a_node_that_joins_twice_joins_once(head):
    assert head(NodeJoined(info=info("node-0"))) == []


def test_a_driver_that_joins_is_told_of_the_cluster(head):
    commands = head(DriverJoined(address=Address("driver-2"), node=N1))
    assert sent(commands, ClusterChanged, "driver-2") == [ClusterChanged(nodes=(info("node-0"), info("node-1")))]


def test_a_node_that_joins_late_is_told_of_the_dead(head):
    head(WorkerDied(worker=Address("node-0/w3"), node=N0, reason="SIGKILL"), lost("node-1"))
    commands = head(NodeJoined(info=info("node-2")))
    assert sent(commands, NodeDied, "node-2") == [NodeDied(node=N1, incarnation=0)]
    assert sent(commands, OwnerDied, "node-2") == [OwnerDied(address=Address("node-0/w3"))]


# ---- Membership: suspicion ------------------------------------------------------------------------------------------


def test_a_silent_node_is_suspected_and_nobody_hears_of_it(head):
    assert head(silent()) == [ArmTimer(timer="suspicion:node-0", delay_ns=Config().suspicion_ns)]


def test_a_suspect_that_is_heard_again_is_as_before(head):
    head(silent())
    assert head(heard()) == [CancelTimer(timer="suspicion:node-0")]
    assert head(suspected()) == []


def test_a_suspect_that_stays_silent_is_dead_and_everyone_alive_hears_of_it(head):
    head(ANNOUNCE, ANNOUNCE, silent())
    commands = head(suspected())
    assert told(commands, NodeDied) == ["node-1", DRIVER]
    assert sent(commands, NodeDied, DRIVER)[0].cluster == ClusterChanged(nodes=(info("node-1"),))


def test_a_suspect_is_suspected_once(head):
    head(silent())
    assert head(silent()) == []


def test_a_node_whose_connection_closed_is_dead_at_once(head):
    assert told(head(lost()), NodeDied) == ["node-1", DRIVER]


def test_a_suspect_whose_connection_closed_is_dead_once(head):
    head(silent())
    commands = head(lost())
    assert CancelTimer(timer="suspicion:node-0") in commands
    assert head(suspected(), lost()) == []


def test_an_unknown_connection_that_closed_is_nobodys_death(head):
    assert head(lost("node-9")) == []


# ---- Membership: zombies and reboots --------------------------------------------------------------------------------


def test_a_zombie_that_is_heard_is_refused(head):
    head(lost())
    refusal = Send(to=Address("node-0"), message=NodeRefused(node=N0, incarnation=0))
    assert head(heard()) == [refusal]
    assert head(NodeJoined(info=info("node-0"))) == [refusal]


def test_what_a_zombie_reports_is_dropped(head):
    head(lost())
    assert head.report("node-0", cpus(2)) == []
    assert head.added(X, "node-0") == []
    assert head(silent()) == []


def test_a_node_that_comes_back_as_a_new_incarnation_is_welcome(head):
    head(lost())
    commands = head(NodeJoined(info=info("node-0", incarnation=1)))
    assert told(commands, NodeWelcomed) == ["node-0"]
    assert head.report("node-0", cpus(1), incarnation=1) == []


def test_a_new_incarnation_ends_the_last_one(head):
    commands = head(NodeJoined(info=info("node-0", incarnation=1)))
    assert set(told(commands, NodeDied)) == {"node-0", "node-1", DRIVER}
    assert {died.incarnation for died in sent(commands, NodeDied)} == {0}


def test_what_was_placed_is_placed_again_on_the_new_incarnation_and_says_so(head):
    head.ask(shape(cpus(2)), count=2)
    (again,) = sent(head(NodeJoined(info=info("node-0", incarnation=1))), LeaseRequested, "node-0")
    assert (again.placed, again.incarnation) == (True, 1)


def test_an_earlier_incarnation_is_refused_and_its_news_dropped(head):
    head(NodeJoined(info=info("node-0", incarnation=2)))
    assert told(head(NodeJoined(info=info("node-0", incarnation=1))), NodeRefused) == ["node-0"]
    assert head(silent("node-0", 1)) == []
    assert told(head(heard("node-0", 1)), NodeRefused) == ["node-0"]
    assert head.report("node-0", cpus(2), incarnation=1) == []


# ---- Membership: processes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [DriverLeft(address=DRIVER), PeerLost(address=DRIVER)], ids=["left", "lost"])
def test_the_end_of_a_driver_is_announced_once(head, end):
    commands = head(end)
    assert told(commands, OwnerDied) == ["node-0", "node-1"]
    assert head(end) == []


def test_the_death_of_a_worker_is_announced_once(head):
    died = WorkerDied(worker=OTHER, node=N1, reason="SIGKILL")
    assert told(head(died), OwnerDied) == ["node-0", "node-1", DRIVER]
    assert head(died) == []


def test_the_clusters_state_says_who_is_alive_and_what_is_free(head):
    head.report("node-1", cpus(0.5))
    head(lost("node-0"))
    commands = head(ClusterStateRequested(wait_id=WaitID(3), requester=DRIVER))
    assert sent(commands, ClusterStateReported, DRIVER) == [
        ClusterStateReported(
            wait_id=WaitID(3),
            nodes=(
                NodeState(node=N0, incarnation=0, alive=False, total=cpus(2), available=NOTHING),
                NodeState(node=N1, incarnation=0, alive=True, total=cpus(2), available=cpus(0.5)),
            ),
        )
    ]


def test_what_is_lent_twice_is_reported_as_nothing_free(head):
    head.machine.scheduler.views[N1].reported = {"CPU": -10_000}
    head.machine.scheduler.views[N1].recount()
    (state,) = sent(head(ClusterStateRequested(wait_id=WaitID(3), requester=DRIVER)), ClusterStateReported)
    assert state.nodes[1].available == NOTHING
