"""The head: membership, global scheduler, directory and actors. Events in, commands out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.machines.head.directory import NO_DEMAND
from dualray.shared.machines.head.head import ANNOUNCE_TIMER
from dualray.shared.model.commands import ArmTimer, CancelTimer, DropPayload, Send, WriteRecord
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ActorChanged,
    ActorFailed,
    ActorKillRequested,
    ActorOutOfScope,
    ActorRegistered,
    ActorSubscribed,
    ClusterChanged,
    ClusterStateReported,
    ClusterStateRequested,
    CopiesDoubted,
    CopiesJudged,
    CopyKept,
    CopyWanted,
    DriverJoined,
    DriverLeft,
    ItemsDoubted,
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    LeasesRecalled,
    LocationsKnown,
    LocationsWanted,
    NodeDied,
    NodeHeard,
    NodeJoined,
    NodeRefused,
    NodeSilent,
    NodeWelcomed,
    ObjectAdded,
    ObjectDemanded,
    ObjectFailed,
    ObjectRemoved,
    ObjectsFreed,
    OwnerDied,
    PeerLost,
    TaskFinished,
    TaskPushed,
    TimerFired,
    WorkerDied,
    WorkerUnwanted,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, RequestID, WaitID, exception_id
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import NodeState, Strategy, StrategyKind
from dualray.shared.model.states import ActorState
from tests.shared.builders import (
    CRASH,
    DRIVER,
    OTHER,
    RAISED,
    HeadStepper,
    aid,
    constructor,
    cpus,
    error,
    hint,
    info,
    of,
    oid,
    ref,
    sends,
    sent,
    shape,
    tid,
)

N0, N1 = NodeID("node-0"), NodeID("node-1")
X = oid(9)


@pytest.fixture
def head() -> HeadStepper:
    """Two nodes of two CPUs each, and a driver."""
    head = HeadStepper(info("node-0"), info("node-1"))
    head(DriverJoined(address=DRIVER, node=N0))
    return head


def silent(node: str = N0, incarnation: int = 0) -> NodeSilent:
    return NodeSilent(node=NodeID(node), incarnation=incarnation)


def heard(node: str = N0, incarnation: int = 0) -> NodeHeard:
    return NodeHeard(node=NodeID(node), incarnation=incarnation)


ANNOUNCE = TimerFired(timer=ANNOUNCE_TIMER)


def suspected(node: str = N0) -> TimerFired:
    return TimerFired(timer=f"suspicion:{node}")


def lost(address: str = N0) -> PeerLost:
    return PeerLost(address=Address(address))


def told(commands, kind) -> list[str]:
    """Who was sent messages of a type."""
    return [to for to, name in sends(commands) if name == kind.__name__]


# ---- Membership: who takes part --------------------------------------------------------------------------------------


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


# ---- Membership: suspicion -------------------------------------------------------------------------------------------


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


# ---- Membership: zombies and reboots ---------------------------------------------------------------------------------


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


# ---- Membership: processes -------------------------------------------------------------------------------------------


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


# ---- The global scheduler --------------------------------------------------------------------------------------------


def placed(commands) -> list[tuple[str, str]]:
    """Which requests were placed on which nodes, lease by lease."""
    forwarded = [each for each in of(commands, Send) if isinstance(each.message, LeaseRequested)]
    assert all(each.message.placed for each in forwarded)
    return [(each.message.request_id, each.to) for each in forwarded for _ in range(each.message.count)]


def test_leases_are_placed_one_by_one(head):
    assert placed(head.ask(count=3)) == [("driver-1#0", "node-0"), ("driver-1#0", "node-1"), ("driver-1#0", "node-0")]


def test_what_is_placed_counts_as_taken_before_the_node_says_so(head):
    assert len(placed(head.ask(shape(cpus(2)), count=3))) == 2


def test_a_report_that_is_older_than_a_placement_does_not_free_it(head):
    head.ask(shape(cpus(2)), count=2)
    head.report("node-0", cpus(2))  # sent before the placement arrived there
    assert placed(head.ask(shape(cpus(2)), request="b")) == []


def test_what_is_allocated_counts_as_the_report_says(head):
    actor = shape(NOTHING, placement=cpus(2))
    assert len(placed(head.ask(actor, count=5, request="a"))) == 2
    assert placed(head.report("node-1", cpus(2), allocated=("a",))) == [("a", "node-1")], "the first takes nothing"
    assert placed(head.report("node-1", cpus(2))) == [], "the second is on its way"
    assert placed(head.report("node-1", NOTHING, allocated=("a",))) == []
    assert placed(head.report("node-1", cpus(2), "a", "a")) == [("a", "node-1")]


def test_when_a_node_dies_what_it_had_only_allocated_is_placed_again(head):
    head.ask(shape(cpus(2)), request="a")
    head.report("node-0", NOTHING, allocated=("a",))
    assert placed(head(lost("node-0"))) == [("a", "node-1")]


def test_what_has_no_room_waits_and_is_served_in_order(head):
    head.ask(shape(cpus(2)), count=2, request="a")
    head.ask(shape(cpus(2)), request="b")
    head.ask(shape(cpus(2)), request="c")
    assert placed(head.report("node-1", cpus(2), "a")) == [("b", "node-1")]
    assert placed(head.report("node-0", cpus(2), "a")) == [("c", "node-0")]


def test_what_waits_is_placed_on_a_node_that_joins(head):
    head.ask(shape(cpus(2)), count=3)
    assert placed(head(NodeJoined(info=info("node-2")))) == [("driver-1#0", "node-2")]


def test_a_small_demand_is_not_held_back_by_a_large_one(head):
    head.ask(count=3, request="a")
    head.ask(shape(cpus(2)), request="b")
    assert placed(head.ask(request="c")) == [("c", "node-1")]


def test_when_a_node_dies_what_it_had_not_settled_is_placed_again(head):
    head.ask(shape(cpus(2)), request="a")
    head.ask(shape(cpus(2)), request="b")
    assert head.report("node-1", NOTHING, "b") == []
    head.report("node-1", cpus(2))
    assert placed(head(lost("node-0"))) == [("a", "node-1")]


def test_when_a_node_dies_what_it_had_settled_is_not_placed_again(head):
    head.ask(request="a")
    head.report("node-0", cpus(1), "a")
    assert placed(head(lost("node-0"))) == []


def test_what_dead_processes_asked_for_is_not_placed_again(head):
    assert placed(head.ask(owner="node-0/w0", request="a", via="node-0")) == [("a", "node-0")]
    assert placed(head(lost("node-0"))) == []


def test_what_a_dead_process_waits_for_is_forgotten(head):
    head.ask(shape(cpus(2)), count=2, request="a")
    head.ask(shape(cpus(2)), owner=OTHER, request="b")
    head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert placed(head.report("node-0", cpus(2), "a")) == []


def test_what_a_dead_process_had_asked_for_and_comes_late_is_dropped(head):
    head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert head.ask(owner=OTHER) == []


def test_a_demand_that_no_node_could_meet_is_refused_with_the_nearest_node(head):
    (refused,) = sent(head.ask(shape(cpus(2, gpus=1), name="train"), count=3), LeaseRefused, DRIVER)
    assert refused.count == 3
    assert refused.error.kind is ErrorKind.TASK_UNSCHEDULABLE
    assert refused.error.message == (
        "train cannot be scheduled: it demands 2 CPU, 1 GPU; the nearest node, node-0, has 2 CPU and lacks 1 GPU. "
        "Ask for less, or start a node that has it."
    )


def test_in_an_open_cluster_a_demand_waits_for_a_node_that_could_meet_it():
    head = HeadStepper(info("node-0"), infeasible="wait")
    assert sent(head.ask(shape(cpus(8))), LeaseRefused) == []
    assert placed(head(NodeJoined(info=info("node-1", cpus(8))))) == [("driver-1#0", "node-1")]


def test_when_the_only_node_that_could_meet_a_demand_dies_it_is_refused(head):
    head(NodeJoined(info=info("node-2", cpus(8))))
    head.ask(shape(cpus(8)))
    commands = head(lost("node-2"))
    assert told(commands, LeaseRefused) == [DRIVER]


def test_when_the_node_that_was_named_dies_what_waits_for_it_is_refused(head):
    named = shape(strategy=Strategy(kind=StrategyKind.NODE_AFFINITY, node=N1))
    head.ask(named, count=3)
    refusals = sent(head(lost("node-1")), LeaseRefused, DRIVER)
    assert sum(refused.count for refused in refusals) == 3
    assert "it names node 'node-1' (soft=False), which is not alive; alive nodes: node-0" in refusals[0].error.message


def test_a_lease_with_large_arguments_goes_where_they_are(head):
    head.added(X, "node-1")
    assert placed(head.ask(shape(deps=(hint(X),)), via="node-0")) == [("driver-1#0", "node-1")]


def test_a_lease_that_waits_for_a_lost_argument_takes_no_room_from_the_task_that_makes_it_again():
    head = HeadStepper(info("node-0", cpus(1)))
    assert len(placed(head.ask(shape(deps=(hint(X),)), request="a"))) == 1
    assert placed(head.ask(request="b")) == [("b", "node-0")]


def test_why_a_demand_waits(head):
    head.ask(shape(cpus(2)), count=3)
    assert head.machine.explain() == ["1 x f of driver-1 waits for 2 CPU: every node that could take it is busy"]


@given(st.lists(st.tuples(st.sampled_from(["ask", "settle", "die", "join"]), st.integers(0, 5)), max_size=40))
def test_each_lease_is_with_one_node_or_waits_or_was_settled(steps):
    head = HeadStepper(infeasible="wait")  # the stepper checks the books after each step
    alive: dict[str, int] = {}
    lives: dict[str, int] = {}
    with_node: dict[str, list[str]] = {}
    asked = settled = 0
    for kind, number in steps:
        node = f"node-{number % 3}"
        commands = []
        if kind == "ask":
            asked += number
            commands = head.ask(shape(cpus(number % 3)), count=number, request=f"driver-1#{asked}") if number else []
        elif kind == "join" and node not in alive:
            alive[node] = lives[node] = lives.get(node, -1) + 1
            with_node[node] = []
            commands = head(NodeJoined(info=info(node, incarnation=lives[node])))
        elif kind == "settle" and with_node.get(node):
            settled += 1
            commands = head.report(node, cpus(2), with_node[node].pop(), incarnation=alive[node])
        elif kind == "die" and node in alive:
            del alive[node], with_node[node]
            commands = head(lost(node))
        for request, to in placed(commands):
            with_node[to].append(request)
    waiting = sum(request.count for request in head.machine.scheduler.pending)
    assert sum(map(len, with_node.values())) + waiting + settled == asked


# ---- The directory ---------------------------------------------------------------------------------------------------


def wanted(node: str = N0, owner: str = DRIVER) -> LocationsWanted:
    return LocationsWanted(object_id=X, owner=Address(owner), node=NodeID(node))


def freed() -> ObjectsFreed:
    return ObjectsFreed(object_ids=(X,))


def removed(node: str) -> ObjectRemoved:
    return ObjectRemoved(object_id=X, node=NodeID(node), incarnation=0)


def known(commands) -> list[tuple[str, tuple[str, ...]]]:
    """Who was told of which places."""
    return [(each.to, each.message.nodes) for each in of(commands, Send) if isinstance(each.message, LocationsKnown)]


def test_who_asks_for_an_object_is_told_where_it_is(head):
    head.added(X, "node-1")
    assert known(head(wanted("node-0"))) == [("node-0", ("node-1",))]


@pytest.fixture
def pieces() -> HeadStepper:
    """A head of six nodes for whom the objects of these tests, of 1,000 bytes, are large; node-1 has X."""
    head = HeadStepper(*(info(f"node-{index}") for index in range(6)), transfer_chunk_bytes=100)
    head.added(X, "node-1")
    return head


# ---- A holder that is out of reach


@pytest.fixture
def four() -> HeadStepper:
    """A head of four nodes; node-1 has X, and owner is the driver."""
    head = HeadStepper(*(info(f"node-{index}") for index in range(4)))
    head.added(X, "node-1")
    return head


def cut_off(node: str = N0, *unreachable: str) -> LocationsWanted:
    away = tuple(map(NodeID, unreachable or ("node-1",)))
    return LocationsWanted(object_id=X, owner=Address(DRIVER), node=NodeID(node), unreachable=away)


def relays(commands) -> list[str]:
    """Who is to fetch a copy for others."""
    return [each.to for each in of(commands, Send) if isinstance(each.message, CopyWanted)]


def kept(node: str) -> CopyKept:
    return CopyKept(object_id=X, node=NodeID(node))


YES, NO = CopiesJudged(object_id=X), CopiesJudged(object_id=X, why_kept="it was put")


def test_a_holder_in_reach_is_named_though_another_is_not(four):
    four.added(X, "node-2")
    commands = four(cut_off())
    assert [set(nodes) for _, nodes in known(commands)] == [{"node-1", "node-2"}]
    assert relays(commands) == []


def test_what_is_out_of_reach_is_fetched_by_a_third_node_once_for_all_who_wait(four):
    assert relays(four(cut_off(N0))) == ["node-2"]
    assert relays(four(cut_off("node-3"))) == []
    assert known(four(wanted("node-2"))) == [("node-2", ("node-1",))]
    told = known(four.added(X, "node-2"))
    assert [(node, "node-2" in nodes) for node, nodes in told] == [("node-0", True), ("node-3", True)]
    assert four(kept("node-2")) == []
    assert not four.machine.directory.relays


def test_when_no_other_node_can_fetch_it_either_who_waits_is_told_which_link_is_broken(four):
    four(cut_off(N0))
    commands = four(cut_off("node-2"))  # it has been asked to fetch it, and cannot reach node-1, either
    assert relays(commands) == ["node-3"]
    assert sent(four(kept("node-3")), CopiesDoubted, DRIVER) == [CopiesDoubted(object_id=X, node=N0)]
    assert [each.error.kind for each in sent(four(NO), ObjectFailed, N0)] == [ErrorKind.UNREACHABLE]
    assert not four.machine.directory.relays
    assert not four.machine.directory.entries[X].subscribers


def test_with_two_nodes_alone_there_is_no_way_round(head):
    head.added(X, "node-1")
    assert sent(head(cut_off()), ObjectFailed) == []
    (failed,) = sent(head(NO), ObjectFailed, N0)
    assert failed.error.kind is ErrorKind.UNREACHABLE
    for words in (
        "cannot be brought to node-0",
        "it lies on node-1",
        "no other node can pass it on",
        "It cannot be made again: it was put.",
    ):
        assert words in failed.error.message
    assert list(head.machine.directory.entries[X].nodes) == [N1], "others may have it"


def test_copies_that_cannot_be_brought_to_a_node_are_given_up_and_the_object_is_demanded_near_it(head):
    head.added(X, "node-1")
    assert sent(head(cut_off()), CopiesDoubted, DRIVER) == [CopiesDoubted(object_id=X, node=N0)]
    commands = head(YES)
    assert told(commands, ObjectsFreed) == ["node-1"]
    assert sent(commands, ObjectDemanded) == [], "it is lost when they have gone"
    assert sent(head(removed("node-1")), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=1, near=N0)]
    assert head.machine.scheduler.parted
    head.added(X, "node-0")
    assert not (head.machine.directory.relays or head.machine.directory.away)


def test_what_is_placed_on_a_node_that_its_owner_turns_out_not_to_reach_is_given_back(head):
    """Found by scenarios/parted_swarm.yaml, seed 80: what a lease waited for was made again where it could not be
    brought from, until it was given up."""
    head.ask(shape(cpus(2)), request="driver-1#0")
    head.ask(shape(cpus(1)), request="driver-1#1")
    head.ask(shape(cpus(1)), request="node-1/w0#0", owner="node-1/w0")
    assert set(head.machine.scheduler.owners_waiting(N1)) == {DRIVER, "node-1/w0"}
    head.added(X, "node-0")
    head(cut_off("node-1", "node-0"))
    assert sent(head(YES), LeasesRecalled, "node-1") == [LeasesRecalled(owner=Address(DRIVER))]


def test_a_holder_that_dies_is_no_copy_to_wait_for(head):
    head.added(X, "node-1")
    head(cut_off(), YES)
    assert sent(head(lost("node-1")), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=1, near=N0)]


def test_who_reaches_none_of_several_holders_is_likelier_cut_off_himself(four):
    four.added(X, "node-2")
    commands = four(cut_off(N0, "node-1", "node-2"))
    assert relays(commands) == []
    assert sent(commands, CopiesDoubted, DRIVER) == [CopiesDoubted(object_id=X, node=N0)]
    assert relays(four(NO)) == ["node-3"], "it may be the links all the same"
    assert sent(four(cut_off("node-3", "node-1", "node-2")), ObjectFailed, N0)


def test_who_was_out_of_reach_is_until_the_object_has_come(four):
    """Else who asks is sent to one after the other, and to the first again when that was long ago."""
    four(cut_off(N0, "node-1"))
    four.added(X, "node-2")
    assert len(sent(four(cut_off(N0, "node-2")), CopiesDoubted)) == 1
    four.added(X, N0)
    four(removed(N0))
    assert known(four(cut_off(N0, "node-2"))) == [("node-0", ("node-1", "node-2"))]


def test_an_answer_that_comes_when_there_is_another_copy_changes_nothing(four):
    four(cut_off(N0), cut_off("node-2"), kept("node-3"))
    assert [node for node, _ in known(four.added(X, "node-3"))] == ["node-0", "node-2"]
    assert four(YES) == []


def test_an_answer_for_a_node_that_has_died_costs_no_copy(head):
    head.added(X, "node-1")
    head(cut_off(), lost("node-0"))
    assert told(head(YES), ObjectsFreed) == []
    assert not (head.machine.directory.relays or head.machine.directory.away)


def test_what_was_on_its_way_when_its_copies_were_given_up_is_no_copy(four):
    """What is made again may be other bytes."""
    (told_first,) = sent(four(wanted("node-3")), LocationsKnown, "node-3")
    four(cut_off(N0), cut_off("node-2"), kept("node-3"), YES, removed("node-1"))
    late = ObjectAdded(
        object_id=X, size_bytes=1000, owner=DRIVER, node=NodeID("node-3"), incarnation=0, turn=told_first.turn
    )
    commands = four(late)
    assert (known(commands), told(commands, ObjectsFreed)) == ([], ["node-3"])
    four.added(X, N0)
    (told_then,) = sent(four(wanted("node-3")), LocationsKnown, "node-3")
    assert told_then.nodes == (N0,)
    late.turn = told_then.turn
    assert told(four(late), ObjectsFreed) == []


def test_a_node_that_dies_while_it_fetches_is_followed_by_the_next(four):
    four(cut_off())
    commands = four(lost("node-2"))
    assert relays(commands) == ["node-3"]
    commands = four(lost("node-1"))
    assert len(sent(commands, ObjectDemanded)) == 1, "the holder is dead: now it is made again"
    assert four(kept("node-3")) == []
    assert known(four.added(X, "node-3")) == [("node-0", ("node-3",))]


def test_what_is_freed_is_fetched_for_nobody(four):
    four(cut_off())
    assert len(sent(four(freed()), ObjectFailed, N0)) == 1
    assert four(kept("node-2")) == []
    assert not four.machine.directory.relays


def first(commands) -> list[str]:
    return [nodes[0] for _, nodes in known(commands)]


def test_who_asks_for_a_large_object_is_sent_along_a_chain(pieces):
    assert known(pieces(wanted("node-0"))) == [("node-0", ("node-1",))]
    assert known(pieces(wanted("node-2"))) == [("node-2", ("node-0", "node-1"))]
    assert known(pieces(wanted("node-3"))) == [("node-3", ("node-2", "node-1"))]
    pieces.added(X, "node-0")
    assert known(pieces(wanted("node-4"))) == [("node-4", ("node-1", "node-0"))], "it serves nobody any more"


def test_each_answer_has_a_later_turn(pieces):
    turns = [sent(pieces(wanted(f"node-{index}")), LocationsKnown)[0].turn for index in (0, 2, 3, 2)]
    assert turns == sorted(set(turns))


def test_who_asks_again_is_no_source_of_his_own_and_is_asked_by_later_ones_only(pieces):
    pieces(wanted("node-0"))
    assert known(pieces(wanted("node-0"))) == [("node-0", ("node-1",))]
    assert first(pieces(wanted("node-2"))) == ["node-0"]


def test_a_node_that_died_is_in_no_chain(pieces):
    pieces(wanted("node-0"), lost("node-0"))
    assert first(pieces(wanted("node-2"))) == ["node-1"]


def test_nobody_is_sent_to_those_who_receive_what_has_been_lost(pieces):
    pieces(wanted("node-0"), removed("node-1"))
    pieces.added(X, "node-2")
    pieces(wanted("node-3"))
    assert first(pieces(wanted("node-4"))) == ["node-3"], "node-0 may have other bytes"


def test_an_owners_question_makes_no_chain(pieces):
    pieces(LocationsWanted(object_id=X, owner=DRIVER, node=N0, by_owner=True))
    assert first(pieces(wanted("node-2"))) == ["node-1"]


def test_who_asks_for_an_object_that_is_nowhere_waits_and_its_owner_is_asked(head):
    commands = head(wanted("node-0"))
    assert sends(commands) == [(DRIVER, "ObjectDemanded")]
    assert known(head.added(X, "node-1")) == [("node-0", ("node-1",))]


def test_who_waits_is_told_once(head):
    head(wanted("node-0"))
    head.added(X, "node-1")
    assert known(head(ObjectAdded(object_id=X, size_bytes=1000, owner=DRIVER, node=N1, incarnation=0))) == []


def test_a_demand_counts_how_often_the_last_copy_has_gone(head):
    head.added(X, "node-1")
    head(removed("node-1"))
    assert sent(head(wanted("node-0")), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=1)]
    head.added(X, "node-1")
    assert sent(head(removed("node-1"), wanted("node-0")), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=2)]


def test_a_demand_says_whether_who_waits_is_held_up(head):
    held_up = LocationsWanted(object_id=X, owner=DRIVER, node=N0, is_held_up=True)
    assert sent(head(held_up), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=0, is_held_up=True)]
    head.added(X, "node-0")
    assert sent(head(removed("node-0"), wanted("node-1")), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=1)]


def test_a_demand_says_whether_who_had_the_last_copy_was_held_up(head):
    head.added(X, "node-0")
    gone = replace(removed("node-0"), is_held_up=True)
    lost = ObjectDemanded(object_id=X, losses=1, is_held_up=True)
    assert sent(head(gone, wanted("node-1")), ObjectDemanded) == [lost]
    head.added(X, "node-0")
    assert sent(head(removed("node-0"), wanted("node-1")), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=2)]


def test_a_demand_that_answers_the_owners_own_question_says_so(head):
    asked = LocationsWanted(object_id=X, owner=DRIVER, node=N0, by_owner=True)
    assert sent(head(asked), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=0, asked=True)]
    head.added(X, "node-1")
    assert sent(head(asked), ObjectDemanded) == []


def test_as_long_as_one_copy_is_left_nothing_is_lost(head):
    head.added(X, "node-0")
    head.added(X, "node-1")
    head(removed("node-1"))
    assert known(head(wanted("node-1"))) == [("node-1", ("node-0",))]


def test_the_loss_of_the_last_copy_is_demanded_only_when_someone_waits(head):
    head.added(X, "node-1")
    assert sent(head(removed("node-1")), ObjectDemanded) == []


def test_a_node_that_asks_for_what_it_is_said_to_have_waits_for_the_news_of_its_loss(head):
    head.added(X, "node-0")
    assert head(wanted("node-0")) == []
    assert sent(head(removed("node-0")), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=1)]


def test_when_a_node_dies_what_others_wait_for_is_demanded_anew(head):
    """Its task may have run there, and nobody has said so yet."""
    head(wanted("node-0"))
    assert sent(head(lost("node-1")), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=0)]


def test_the_news_of_a_nodes_death_goes_before_the_demand(head):
    head(NodeJoined(info=info("node-2")))
    head(wanted("node-0"))
    names = [name for to, name in sends(head(lost("node-1"))) if to == DRIVER]
    assert names.index("NodeDied") < names.index("ObjectDemanded")


def test_a_dead_node_waits_for_nothing(head):
    head(wanted("node-0"), lost("node-0"))
    assert known(head.added(X, "node-1")) == []


def test_a_freed_object_is_deleted_wherever_it_is(head):
    head.added(X, "node-0")
    head.added(X, "node-1")
    assert told(head(freed()), ObjectsFreed) == ["node-0", "node-1"]
    assert head(freed()) == []


def test_who_waits_for_an_object_that_is_freed_is_told(head):
    head(wanted("node-0"))
    assert told(head(freed()), ObjectFailed) == ["node-0"]


def test_a_copy_that_is_reported_after_its_object_was_freed_is_asked_about(head):
    head(freed())
    commands = head.added(X, "node-1")
    assert [asked.losses for asked in sent(commands, ObjectDemanded, DRIVER)] == [-1]
    unwanted = ObjectFailed(object_id=X, error=error(ErrorKind.OBJECT_LOST))
    assert told(head(unwanted), ObjectsFreed) == ["node-1"]


def test_the_items_of_a_generator_that_had_lost_attempts_are_asked_about(head):
    head.added(oid(1, 1), "node-1")
    head.added(oid(2, 1), "node-1")
    head(ObjectRemoved(object_id=oid(1, 1), node=N1, incarnation=0))
    asked = sent(head(ItemsDoubted(task_id=tid(1))), ObjectDemanded, DRIVER)
    assert asked == [ObjectDemanded(object_id=oid(1, 1), losses=NO_DEMAND)]
    asked = sent(head.added(oid(1, 2), "node-1"), ObjectDemanded, DRIVER)
    assert asked == [ObjectDemanded(object_id=oid(1, 2), losses=NO_DEMAND)], "the news of it came late"
    assert sent(head.added(oid(2, 2), "node-1"), ObjectDemanded) == []


def test_who_waits_for_an_object_that_can_not_be_made_again_is_told_why(head):
    head(wanted("node-0"))
    failed = ObjectFailed(object_id=X, error=error(ErrorKind.RECONSTRUCTION_FAILED))
    assert sent(head(failed), ObjectFailed, "node-0") == [failed]


def test_who_waits_for_an_object_of_a_dead_owner_is_told(head):
    head(wanted("node-0", OTHER))
    (failed,) = sent(head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL")), ObjectFailed, "node-0")
    assert failed.error.kind is ErrorKind.OWNER_DIED
    assert failed.error.message == "Object 09090909:0 is lost: node-1/w0, which owned it, died."


@pytest.mark.parametrize(
    "death", [WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"), PeerLost(address=Address("node-1"))]
)
def test_who_asks_for_an_object_of_a_dead_owner_is_told_at_once(head, death):
    head(death)
    assert told(head(wanted("node-0", OTHER)), ObjectFailed) == ["node-0"]


def test_a_copy_of_a_dead_owners_object_is_deleted(head):
    head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert told(head.added(X, "node-0", owner=OTHER), ObjectsFreed) == ["node-0"]


def test_a_copy_is_written_down(head):
    (record,) = of(head.added(X, "node-1"), WriteRecord)
    assert (record.table, record.key) == ("objects", X.hex())
    assert dict(record.fields) == {"owner": DRIVER, "bytes": "1000", "nodes": "node-1"}


# ---- Actors ----------------------------------------------------------------------------------------------------------

HOME = "node-0/w5"


def register(head: HeadStepper, number: int = 1, *, inline=(), **options):
    return head(ActorRegistered(spec=constructor(number, **options), inline_deps=inline))


def grant(head: HeadStepper, number: int = 1, *, life: int = 0, node: str = "node-0", lease: str = "L"):
    return head(
        LeaseGranted(
            request_id=RequestID(f"actor:{aid(number).hex()}:{life}"),
            lease_id=LeaseID(f"{lease}{number}.{life}"),
            worker=Address(f"{node}/w5"),
            node=NodeID(node),
            incarnation=0,
        )
    )


def constructed(head: HeadStepper, number: int = 1, *, life: int = 0, node: str = "node-0", failed=None):
    worker = Address(f"{node}/w5")
    return head(
        TaskFinished(
            task_id=tid(number),
            attempt=life,
            worker=worker,
            node=NodeID(node),
            results=(),
            duration_ns=1,
            error=failed,
        )
    )


def worker_died(head: HeadStepper, number: int = 1, *, life: int = 0):
    return head(LeasedWorkerDied(lease_id=LeaseID(f"L{number}.{life}"), worker=Address(HOME), error=CRASH))


def changes(commands, to: str = DRIVER) -> list[tuple[str, int, str | None]]:
    """What a subscriber was told: state, life and worker."""
    return [(str(each.state), each.life, each.worker) for each in sent(commands, ActorChanged, to)]


def reason(commands) -> str:
    """Why the actor is dead, as the driver was told."""
    (changed,) = [each for each in sent(commands, ActorChanged, DRIVER) if each.state is ActorState.DEAD]
    return changed.error.message


@pytest.fixture
def subscribed(head) -> HeadStepper:
    head(ActorSubscribed(actor_id=aid(1), subscriber=DRIVER))
    return head


@pytest.fixture
def alive(subscribed) -> HeadStepper:
    """Actor 1 lives on node-0 and has one restart."""
    register(subscribed, max_restarts=1)
    grant(subscribed)
    subscribed.report("node-0", cpus(2), f"actor:{aid(1).hex()}:0")
    constructed(subscribed)
    return subscribed


def test_a_registered_actor_is_placed(head):
    (asked,) = sent(register(head), LeaseRequested, "node-0")
    assert asked.owner == HEAD
    assert (asked.shape.placement, asked.shape.resources) == (cpus(1), NOTHING)


def test_an_actor_is_constructed_on_the_worker_that_was_granted(head):
    spec = constructor(1, deps=(ref(oid(2)),))
    head(ActorRegistered(spec=spec, inline_deps=(oid(2),)))
    pushed = TaskPushed(spec=spec, attempt=0, reply_to=HEAD, inline_deps=(oid(2),))
    assert grant(head) == [Send(to=Address(HOME), message=pushed, payloads=(tid(1), oid(2)))]


def test_who_subscribes_is_told_of_the_state_now_and_whenever_it_changes(head):
    register(head)
    assert changes(head(ActorSubscribed(actor_id=aid(1), subscriber=DRIVER))) == [("PENDING", 0, None)]
    grant(head)
    assert changes(constructed(head)) == [("ALIVE", 0, HOME)]


def test_who_subscribes_late_is_told_why_the_actor_is_dead(head):
    register(head)
    head(ActorKillRequested(actor_id=aid(1), no_restart=True))
    commands = head(ActorSubscribed(actor_id=aid(1), subscriber=DRIVER))
    assert reason(commands) == "Actor 01010101 has ended: It was killed with kill(actor)."


def test_an_actor_whose_worker_died_is_restarted_in_a_new_life(alive):
    commands = worker_died(alive)
    assert changes(commands) == [("RESTARTING", 1, None)]
    assert len(placed(commands)) == 1
    grant(alive, life=1, node="node-1")
    assert changes(constructed(alive, life=1, node="node-1")) == [("ALIVE", 1, "node-1/w5")]


def test_an_actor_whose_node_died_is_restarted_elsewhere(alive):
    commands = alive(lost("node-0"))
    assert changes(commands) == [("RESTARTING", 1, None)]
    assert [to for _, to in placed(commands)] == ["node-1"]


def test_an_actor_whose_node_was_rebooted_is_placed_once(alive):
    """What is sent to the dead node's address reaches its next life."""
    commands = alive(NodeJoined(info=info("node-0", incarnation=1)))
    assert len(placed(commands)) == 1


def test_an_actor_without_restarts_left_is_dead_and_says_how_often_it_was_restarted(alive):
    worker_died(alive)
    grant(alive, life=1)
    constructed(alive, life=1)
    assert reason(worker_died(alive, life=1)) == (
        f"Actor Actor (01010101) died and is not restarted (it had been restarted 1 times): {CRASH.message}"
    )


def test_an_actor_that_was_never_to_be_restarted_says_so(subscribed):
    register(subscribed)
    grant(subscribed)
    constructed(subscribed)
    assert reason(worker_died(subscribed)).startswith(
        "Actor Actor (01010101) died and is not restarted (max_restarts is 0): "
    )


def test_minus_one_restarts_have_no_end(subscribed):
    register(subscribed, max_restarts=-1)
    for life in range(10):
        grant(subscribed, life=life)
        constructed(subscribed, life=life)
        assert changes(worker_died(subscribed, life=life)) == [("RESTARTING", life + 1, None)]


def test_an_actor_that_is_lost_while_it_is_constructed_is_restarted(subscribed):
    register(subscribed, max_restarts=1)
    grant(subscribed)
    assert changes(worker_died(subscribed)) == [("RESTARTING", 1, None)]


def test_a_constructor_that_raises_ends_the_actor_and_its_worker(subscribed):
    register(subscribed, max_restarts=5)
    grant(subscribed)
    commands = constructed(subscribed, failed=RAISED)
    assert reason(commands) == "The constructor of actor Actor (01010101) raised: ValueError: no"
    assert told(commands, WorkerUnwanted) == ["node-0"]
    assert DropPayload(key=exception_id(tid(1))) in commands
    assert changes(worker_died(subscribed)) == []


def test_a_constructor_of_an_earlier_life_is_late_news(alive):
    worker_died(alive)
    assert changes(constructed(alive, life=0)) == []


def test_an_actor_that_no_node_could_hold_is_dead(subscribed):
    commands = register(subscribed, placement=cpus(8), name="Big")
    (changed,) = sent(commands, ActorChanged, DRIVER)
    assert changed.error.kind is ErrorKind.ACTOR_UNSCHEDULABLE
    assert changed.error.message.startswith("Big cannot be scheduled: it demands 8 CPU; the nearest node, node-0,")


def test_a_killed_actor_is_dead_and_its_worker_ends(alive):
    commands = alive(ActorKillRequested(actor_id=aid(1), no_restart=True))
    assert reason(commands) == "Actor 01010101 has ended: It was killed with kill(actor)."
    assert sent(commands, WorkerUnwanted, "node-0") == [
        WorkerUnwanted(worker=Address(HOME), reason="Actor 01010101 has ended: It was killed with kill(actor).")
    ]
    assert changes(worker_died(alive)) == []


def test_a_kill_with_restart_ends_the_worker_alone(alive):
    commands = alive(ActorKillRequested(actor_id=aid(1), no_restart=False))
    assert changes(commands) == []
    assert told(commands, WorkerUnwanted) == ["node-0"]
    assert changes(worker_died(alive)) == [("RESTARTING", 1, None)]


def test_a_dead_actor_is_killed_in_vain(alive):
    kill = ActorKillRequested(actor_id=aid(1), no_restart=True)
    alive(kill)
    assert alive(kill) == []


def test_an_actor_that_was_killed_before_it_was_made_is_never_made(subscribed):
    subscribed(ActorKillRequested(actor_id=aid(1), no_restart=True))
    commands = register(subscribed)
    assert placed(commands) == []
    assert of(commands, DropPayload) == [DropPayload(key=tid(1))]


def test_an_actor_without_handles_ends(alive):
    commands = alive(ActorOutOfScope(actor_id=aid(1)))
    assert reason(commands) == "Actor 01010101 has ended: Its last handle is gone."


def test_an_actor_ends_with_the_process_that_made_it(subscribed):
    register(subscribed, owner=OTHER, max_restarts=5)
    grant(subscribed)
    constructed(subscribed)
    commands = subscribed(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert reason(commands) == "Actor 01010101 has ended: node-1/w0, which owned it, died."


def test_an_actor_of_a_process_that_died_already_is_never_made(head):
    head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert placed(register(head, owner=OTHER)) == []


def test_an_actor_whose_argument_failed_is_dead(subscribed):
    commands = subscribed(ActorFailed(actor_id=aid(1), owner=DRIVER, error=RAISED))
    assert reason(commands) == "Actor 01010101 was not made, for an argument failed: ValueError: no"


def test_a_lease_for_an_actor_that_ended_meanwhile_goes_back(subscribed):
    register(subscribed)
    subscribed(ActorOutOfScope(actor_id=aid(1)))
    assert told(grant(subscribed), LeaseReturned) == ["node-0"]


def test_a_second_lease_for_one_life_goes_back(alive):
    assert told(grant(alive, node="node-1", lease="M"), LeaseReturned) == ["node-1"]


def test_a_lease_that_a_zombie_grants_is_not_used(subscribed):
    register(subscribed)
    assert [to for _, to in placed(subscribed(lost("node-0")))] == ["node-1"]
    assert grant(subscribed, node="node-0") == []
    assert told(grant(subscribed, node="node-1"), TaskPushed) == ["node-1/w5"]


def test_the_arguments_are_kept_for_restarts_and_dropped_with_the_actor(head):
    register(head, inline=(oid(2),), max_restarts=1)
    grant(head)
    constructed(head)
    assert of(worker_died(head), DropPayload) == []
    drops = of(head(ActorOutOfScope(actor_id=aid(1))), DropPayload)
    assert drops == [DropPayload(key=tid(1)), DropPayload(key=oid(2))]


def test_an_argument_of_two_actors_is_kept_for_the_other(head):
    register(head, 1, inline=(oid(2),))
    register(head, 3, inline=(oid(2),))
    assert of(head(ActorOutOfScope(actor_id=aid(1))), DropPayload) == [DropPayload(key=tid(1))]
    assert DropPayload(key=oid(2)) in of(head(ActorOutOfScope(actor_id=aid(3))), DropPayload)


def test_a_dead_subscriber_hears_of_nothing(alive):
    alive(ActorSubscribed(actor_id=aid(1), subscriber=OTHER))
    alive(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert changes(worker_died(alive), OTHER) == []


def test_a_change_is_written_down(alive):
    (record,) = [each for each in of(worker_died(alive), WriteRecord) if each.table == "actors"]
    assert dict(record.fields) == {"state": "RESTARTING", "life": "1", "worker": ""}


def test_which_actors_wait(head):
    register(head)
    assert head.machine.explain() == ["actor Actor (01010101) is PENDING"]
