"""The global scheduler: where the head places leases, and what it does when nothing fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import LeaseRefused, NodeHeard, NodeJoined, NodeSilent, WorkerDied
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import Strategy, StrategyKind
from tests.shared.builders import DRIVER, OTHER, HeadStepper, cpus, hint, info, sent, shape
from tests.shared.machines.head.news import N0, N1, X, lost, placed, told

SILENT = NodeSilent(node=N1, incarnation=0)


def test_leases_are_placed_one_by_one(head):
    assert placed(head.ask(count=3)) == [("driver-1#0", "node-0"), ("driver-1#0", "node-1"), ("driver-1#0", "node-0")]


def test_other_placements_do_not_turn_the_round_of_spread(head):
    spread = shape(cpus(0.5), strategy=Strategy(kind=StrategyKind.SPREAD))
    nodes = []
    for number in range(4):
        nodes += [node for _, node in placed(head.ask(spread, request=f"spread-{number}"))]
        head.ask(shape(cpus(0.1)), request=f"other-{number}")
    assert nodes == ["node-0", "node-1", "node-0", "node-1"]


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
        "Demand less, or start a node that has enough."
    )


def test_in_an_open_cluster_a_demand_waits_for_a_node_that_could_meet_it():
    head = HeadStepper(info("node-0"), infeasible="wait")
    assert sent(head.ask(shape(cpus(8))), LeaseRefused) == []
    assert placed(head(NodeJoined(info=info("node-1", cpus(8))))) == [("driver-1#0", "node-1")]


def test_in_an_open_cluster_too_a_node_that_was_named_and_is_not_there_is_refused():
    head = HeadStepper(info("node-0"), infeasible="wait")
    named = Strategy(kind=StrategyKind.NODE_AFFINITY, node=N1)
    (refused,) = sent(head.ask(shape(strategy=named)), LeaseRefused, DRIVER)
    assert "it names node 'node-1' (soft=False), which is not alive" in refused.error.message
    at_home = Strategy(kind=StrategyKind.NODE_AFFINITY, node=N0)
    assert len(sent(head.ask(shape(cpus(8), strategy=at_home), request="b"), LeaseRefused, DRIVER)) == 1


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


def test_a_lease_whose_argument_only_a_silent_node_has_lets_others_run():
    head = HeadStepper(info("node-0", cpus(1)), info("node-1", cpus(1)))
    head.added(X, "node-1")
    head.report("node-1", NOTHING)
    assert placed(head.ask(shape(deps=(hint(X),)), request="a")) == [("a", "node-0")]
    assert placed(head.ask(request="b")) == [], "a will take the CPU as soon as its argument has come"
    assert placed(head(SILENT)) == [("b", "node-0")]


def test_a_request_whose_argument_only_a_silent_node_has_waits_until_the_node_is_heard_or_dead(head):
    head.added(X, "node-1")
    head(SILENT)
    assert placed(head.ask(shape(deps=(hint(X),)), request="a")) == []
    (why,) = head.machine.explain()
    assert why.endswith("one of its arguments is only on node-1, and the head hears nothing from there")
    assert placed(head(NodeHeard(node=N1, incarnation=0))) == [("a", "node-1")]
    head(SILENT)
    assert placed(head.ask(shape(deps=(hint(X),)), request="b")) == []
    assert placed(head(lost("node-1"))) == [("a", "node-0"), ("b", "node-0")]


def test_a_request_whose_argument_another_node_has_too_does_not_wait_for_a_silent_one(head):
    head.added(X, "node-0")
    head.added(X, "node-1")
    head(SILENT)
    assert placed(head.ask(shape(deps=(hint(X),)), request="a")) == [("a", "node-0")]


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
