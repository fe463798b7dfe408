from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.ids import NodeID, ObjectID, TaskID, task_of
from dualray.shared.model.resources import NOTHING, Resources, fits, from_units
from dualray.shared.model.specs import LeaseShape, Strategy, StrategyKind
from dualray.shared.policies import load_policy
from dualray.shared.policies.affinity import AffinityPlacement
from dualray.shared.policies.broadcast import ChainBroadcast, Source
from dualray.shared.policies.eviction.lru import LruEviction
from dualray.shared.policies.feasibility import why_infeasible
from dualray.shared.policies.hybrid import HybridPlacement
from dualray.shared.policies.locality import LocalityPlacement
from dualray.shared.policies.placement import Candidate, ClusterView, Outcome, Placement
from dualray.shared.policies.reconstruction import NO_ATTEMPT_LEFT, LineageReconstruction
from dualray.shared.policies.retry import RETRY_FOREVER, BoundedRetry
from dualray.shared.policies.spread import SpreadPlacement
from tests.shared.builders import cpus, info, oid, put_id, shape, tid

GPU_NODE = cpus(4, gpus=1)


def candidate(node: str, total: Resources, free: Resources | None = None) -> Candidate:
    left = dict.fromkeys(dict(total.units), 0) | dict((total if free is None else free).units)
    return Candidate(node=NodeID(node), total=dict(total.units), free=left)


def view(*candidates: Candidate, threshold: int = 50, round_robin: int = 0, **local_bytes: int) -> ClusterView:
    """`local_bytes` by the last letter of the node: `a=10` means 10 bytes on node-a."""
    return ClusterView(
        candidates={each.node: each for each in candidates},
        spread_threshold_percent=threshold,
        round_robin=round_robin,
        local_bytes={NodeID(f"node-{letter}"): size for letter, size in local_bytes.items()},
    )


def chosen(policy: Any, demand: LeaseShape, seen: ClusterView, via: str | None = None) -> str | Outcome:
    """The node, or why there is none."""
    placement = policy.choose(demand, seen, None if via is None else NodeID(via))
    assert (placement.node is not None) == (placement.outcome is Outcome.SUCCESS)
    assert placement.reason
    return placement.node or placement.outcome


# ---- Hybrid --------------------------------------------------------------------------------------------------------


def hybrid(demand: LeaseShape, *candidates: Candidate, via: str | None = None, threshold: int = 50) -> str | Outcome:
    return chosen(HybridPlacement(), demand, view(*candidates, threshold=threshold), via)


def test_hybrid_prefers_the_node_that_asked_while_it_is_under_the_threshold():
    nodes = [candidate("node-a", cpus(4)), candidate("node-b", cpus(4), cpus(3))]
    assert hybrid(shape(), *nodes, via="node-b") == "node-b"


def test_hybrid_packs_the_first_node_by_name_up_to_the_threshold():
    assert hybrid(shape(), candidate("node-a", cpus(4), cpus(3)), candidate("node-b", cpus(4))) == "node-a"


def test_hybrid_fills_a_node_until_its_use_is_at_the_threshold():
    assert hybrid(shape(), candidate("node-a", cpus(3), cpus(2)), candidate("node-b", cpus(3))) == "node-a"
    assert hybrid(shape(), candidate("node-a", cpus(4), cpus(2)), candidate("node-b", cpus(4))) == "node-b"


def test_hybrid_takes_a_node_of_one_cpu_that_asks_and_is_idle():
    nodes = [candidate("node-a", cpus(8)), candidate("node-b", cpus(1))]
    assert hybrid(shape(), *nodes, via="node-b") == "node-b"


def test_hybrid_leaves_the_node_that_asked_once_it_is_over_the_threshold():
    nodes = [candidate("node-a", cpus(4), cpus(2)), candidate("node-b", cpus(4))]
    assert hybrid(shape(), *nodes, via="node-a") == "node-b"


def test_hybrid_spreads_to_the_least_used_node_over_the_threshold():
    nodes = [candidate("node-a", cpus(8), cpus(1)), candidate("node-b", cpus(8), cpus(2))]
    assert hybrid(shape(), *nodes, via="node-a") == "node-b"


def test_hybrid_with_threshold_zero_always_spreads():
    nodes = [candidate("node-a", cpus(4), cpus(3)), candidate("node-b", cpus(4))]
    assert hybrid(shape(), *nodes, threshold=0) == "node-b"


def test_hybrid_with_threshold_100_always_packs():
    nodes = [candidate("node-a", cpus(4), cpus(1)), candidate("node-b", cpus(4))]
    assert hybrid(shape(), *nodes, threshold=100) == "node-a"


def test_hybrid_looks_at_the_resource_that_is_used_most():
    demand = shape(cpus(1, disk=1))
    nodes = [
        candidate("node-a", cpus(8, disk=2), cpus(8, disk=1)),
        candidate("node-b", cpus(8, disk=2), cpus(5, disk=2)),
    ]
    assert hybrid(demand, *nodes) == "node-b"


def test_hybrid_keeps_gpu_nodes_free_of_work_without_gpus():
    nodes = [candidate("node-a", GPU_NODE), candidate("node-b", cpus(4), cpus(1))]
    assert hybrid(shape(), *nodes) == "node-b"


def test_hybrid_keeps_gpu_nodes_free_also_when_one_of_them_asks():
    nodes = [candidate("node-a", GPU_NODE), candidate("node-b", cpus(4))]
    assert hybrid(shape(), *nodes, via="node-a") == "node-b"


def test_hybrid_uses_a_gpu_node_when_no_other_has_room():
    nodes = [candidate("node-a", GPU_NODE), candidate("node-b", cpus(4), NOTHING)]
    assert hybrid(shape(), *nodes) == "node-a"


def test_hybrid_places_gpu_work_on_gpu_nodes():
    nodes = [candidate("node-a", cpus(4)), candidate("node-b", GPU_NODE)]
    assert hybrid(shape(cpus(1, gpus=0.5)), *nodes) == "node-b"


def test_hybrid_places_a_demand_for_nothing_at_once():
    assert hybrid(shape(NOTHING), candidate("node-a", cpus(1), NOTHING)) == "node-a"


def test_hybrid_looks_at_placement_not_at_what_is_held():
    actor = shape(NOTHING, placement=cpus(1))
    assert hybrid(actor, candidate("node-a", cpus(1), NOTHING)) is Outcome.FAILED


@pytest.mark.parametrize("policy", [HybridPlacement(), SpreadPlacement()])
def test_a_demand_waits_while_every_node_that_could_take_it_is_busy(policy):
    assert chosen(policy, shape(), view(candidate("node-a", cpus(1), NOTHING))) is Outcome.FAILED


@pytest.mark.parametrize("policy", [HybridPlacement(), SpreadPlacement()])
@pytest.mark.parametrize("seen", [view(), view(candidate("node-a", cpus(1)))])
def test_a_demand_that_no_node_could_take_is_infeasible(policy, seen):
    assert chosen(policy, shape(cpus(2)), seen) is Outcome.INFEASIBLE


# ---- Spread --------------------------------------------------------------------------------------------------------


def test_spread_goes_round():
    nodes = [candidate(f"node-{letter}", cpus(4)) for letter in "abc"]
    turns = [chosen(SpreadPlacement(), shape(), view(*nodes, round_robin=turn)) for turn in range(4)]
    assert turns == ["node-a", "node-b", "node-c", "node-a"]


def test_a_node_that_could_never_take_the_demand_has_no_turn():
    nodes = [candidate("node-a", cpus(0)), candidate("node-b", cpus(4)), candidate("node-c", cpus(4))]
    seen = [view(*nodes, round_robin=turn) for turn in range(4)]
    assert [chosen(SpreadPlacement(), shape(), each) for each in seen] == ["node-b", "node-c", "node-b", "node-c"]
    ranks = {score.node: score.rank for score in SpreadPlacement().scores(shape(), seen[1], None)}
    assert ranks == {"node-a": None, "node-b": (1,), "node-c": (0,)}


def test_spread_passes_over_nodes_without_room():
    nodes = [candidate("node-a", cpus(4)), candidate("node-b", cpus(4), NOTHING), candidate("node-c", cpus(4))]
    assert chosen(SpreadPlacement(), shape(), view(*nodes, round_robin=1)) == "node-c"


# ---- Affinity ------------------------------------------------------------------------------------------------------


def affinity(node: str, *candidates: Candidate, soft: bool = False, demand: Resources | None = None) -> str | Outcome:
    strategy = Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID(node), soft=soft)
    return chosen(AffinityPlacement(HybridPlacement()), shape(demand, strategy=strategy), view(*candidates))


@pytest.mark.parametrize("soft", [False, True])
def test_affinity_goes_to_the_node_that_was_named(soft):
    assert affinity("node-b", candidate("node-a", cpus(4)), candidate("node-b", cpus(4)), soft=soft) == "node-b"


@pytest.mark.parametrize("soft", [False, True])
def test_affinity_waits_for_the_node_that_was_named_while_it_is_busy(soft):
    busy = candidate("node-b", cpus(4), NOTHING)
    assert affinity("node-b", candidate("node-a", cpus(4)), busy, soft=soft) is Outcome.FAILED


def test_hard_affinity_to_a_node_that_is_gone_is_infeasible():
    assert affinity("node-b", candidate("node-a", cpus(4))) is Outcome.INFEASIBLE


def test_hard_affinity_to_a_node_that_is_too_small_is_infeasible():
    small = candidate("node-b", cpus(1))
    assert affinity("node-b", candidate("node-a", cpus(4)), small, demand=cpus(2)) is Outcome.INFEASIBLE


def test_soft_affinity_goes_elsewhere_when_the_node_is_gone():
    assert affinity("node-b", candidate("node-a", cpus(4)), soft=True) == "node-a"


def test_soft_affinity_goes_elsewhere_when_the_node_is_too_small():
    small = candidate("node-b", cpus(1))
    assert affinity("node-b", candidate("node-a", cpus(4)), small, demand=cpus(2), soft=True) == "node-a"


# ---- Locality ------------------------------------------------------------------------------------------------------


def locality(*candidates: Candidate, via: str | None = None, **local_bytes: int) -> str | Outcome:
    return chosen(LocalityPlacement(HybridPlacement()), shape(), view(*candidates, **local_bytes), via)


def test_locality_goes_where_most_bytes_are():
    nodes = [candidate("node-a", cpus(4)), candidate("node-b", cpus(4)), candidate("node-c", cpus(4))]
    assert locality(*nodes, via="node-a", a=10, b=30, c=20) == "node-b"


def test_locality_goes_to_the_next_best_node_when_the_best_has_no_room():
    nodes = [candidate("node-a", cpus(4)), candidate("node-b", cpus(4), NOTHING), candidate("node-c", cpus(4))]
    assert locality(*nodes, a=10, b=30, c=20) == "node-c"


def test_locality_breaks_ties_by_name():
    assert locality(candidate("node-b", cpus(4)), candidate("node-a", cpus(4)), b=10, a=10) == "node-a"


def test_locality_without_bytes_anywhere_leaves_it_to_the_default():
    assert locality(candidate("node-a", cpus(4)), candidate("node-b", cpus(4)), via="node-b") == "node-b"


def test_locality_is_blind_to_nodes_that_are_gone():
    assert locality(candidate("node-a", cpus(4)), z=100) == "node-a"


# ---- What must hold for every placement -----------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    nodes = []
    for letter in "abcd"[: draw(st.integers(0, 4))]:
        total = {"CPU": draw(st.integers(0, 8)) * 10_000, "GPU": draw(st.integers(0, 2)) * 10_000}
        # A CPU may be lent twice while a blocked task goes on, so what is free may be below zero.
        free = {"CPU": draw(st.integers(-10_000, total["CPU"])), "GPU": draw(st.integers(0, total["GPU"]))}
        nodes.append(Candidate(node=NodeID(f"node-{letter}"), total=total, free=free))
    local_bytes = {
        NodeID(f"node-{letter}"): draw(st.integers(1, 100)) for letter in draw(st.sets(st.sampled_from("abx")))
    }
    return ClusterView(
        candidates={each.node: each for each in nodes},
        spread_threshold_percent=draw(st.integers(0, 100)),
        local_bytes=local_bytes,
        round_robin=draw(st.integers(0, 9)),
    )


strategies = st.sampled_from(
    [
        Strategy(),
        Strategy(kind=StrategyKind.SPREAD),
        Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID("node-b")),
        Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID("node-b"), soft=True),
    ]
)


@given(views(), st.integers(0, 4), st.sampled_from([0, 0.5, 1]), strategies, st.sampled_from([None, "node-a"]))
def test_every_policy_answers_with_a_node_that_has_room_or_says_whether_one_ever_could(seen, cpu, gpu, strategy, via):
    demand = shape(cpus(cpu, gpus=gpu), strategy=strategy)
    default = HybridPlacement()
    policies = [default, SpreadPlacement(), LocalityPlacement(default)]
    if strategy.kind is StrategyKind.NODE_AFFINITY:
        policies = [AffinityPlacement(default)]
    possible = seen.candidates.values()
    if strategy.kind is StrategyKind.NODE_AFFINITY and not strategy.soft:
        possible = [each for each in possible if each.node == strategy.node]
    ever = any(fits(each.total, demand.placement) for each in possible)
    for policy in policies:
        answer: Placement = policy.choose(demand, seen, via)
        assert answer == policy.choose(demand, seen, via)
        if answer.outcome is Outcome.SUCCESS:
            assert fits(seen.candidates[answer.node].free, demand.placement)
        else:
            assert answer.outcome is (Outcome.FAILED if ever else Outcome.INFEASIBLE)
    infos = [info(each.node, from_units(each.total)) for each in seen.candidates.values()]
    assert (why_infeasible(demand, infos) is None) == ever


# ---- Feasibility in words ------------------------------------------------------------------------------------------


def test_a_demand_that_some_node_could_take_is_feasible():
    assert why_infeasible(shape(cpus(2)), [info("node-a", cpus(1)), info("node-b", cpus(2))]) is None


def test_the_nearest_node_and_what_it_lacks_are_named():
    nodes = [info("node-a", cpus(2)), info("node-b", cpus(8)), info("node-c", cpus(6, gpus=1))]
    assert why_infeasible(shape(cpus(16, gpus=1)), nodes) == (
        "it demands 16 CPU, 1 GPU; the nearest node, node-c, has 6 CPU, 1 GPU and lacks 10 CPU. "
        "Demand less, or start a node that has enough"
    )


def test_of_nodes_that_lack_as_much_the_first_by_name_is_named():
    why = why_infeasible(shape(cpus(3)), [info("node-b", cpus(2)), info("node-a", cpus(2))])
    assert why is not None
    assert "the nearest node, node-a," in why


def test_an_empty_cluster_is_said_to_be_empty():
    assert why_infeasible(shape(), []) == "it demands 1 CPU, but no node of the cluster is alive"


def test_hard_affinity_to_a_node_that_is_gone_names_those_that_are_there():
    strategy = Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID("node-z"))
    assert why_infeasible(shape(strategy=strategy), [info("node-a"), info("node-b")]) == (
        "it names node 'node-z' (soft=False), which is not alive; alive nodes: node-a, node-b"
    )


def test_hard_affinity_looks_at_the_node_that_was_named_alone():
    strategy = Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID("node-a"))
    why = why_infeasible(shape(cpus(3), strategy=strategy), [info("node-a"), info("node-b", cpus(8))])
    assert why is not None
    assert "node-a, has 2 CPU and lacks 1 CPU" in why


# ---- Eviction ------------------------------------------------------------------------------------------------------

OLDEST_FIRST = [(oid(1), 10), (oid(2), 20), (oid(3), 30)]


@pytest.mark.parametrize(
    ("bytes_needed", "expected"),
    [(0, []), (1, [1]), (10, [1]), (11, [1, 2]), (30, [1, 2]), (60, [1, 2, 3])],
)
def test_lru_evicts_what_was_used_longest_ago_and_no_more_than_is_needed(bytes_needed, expected):
    assert LruEviction().choose(iter(OLDEST_FIRST), bytes_needed) == [oid(number) for number in expected]


def test_lru_evicts_nothing_when_all_together_do_not_make_enough_room():
    assert LruEviction().choose(iter(OLDEST_FIRST), 61) is None


# ---- Retry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ErrorKind)
@pytest.mark.parametrize("retries_left", [RETRY_FOREVER, 0, 1])
@pytest.mark.parametrize("retry_exceptions", [False, True])
def test_retry(kind, retries_left, retry_exceptions):
    lost = {
        ErrorKind.WORKER_CRASHED,
        ErrorKind.OUT_OF_MEMORY,
        ErrorKind.NODE_DIED,
        ErrorKind.WORKER_UNREACHABLE,
        ErrorKind.ACTOR_DIED,
        ErrorKind.ACTOR_UNAVAILABLE,
    }
    expected = retries_left != 0 and (kind in lost or (retry_exceptions and kind is ErrorKind.APPLICATION))
    again = BoundedRetry().should_retry(kind=kind, retries_left=retries_left, retry_exceptions=retry_exceptions)
    assert again is expected


# ---- Reconstruction ------------------------------------------------------------------------------------------------


class Past:
    """A lineage from `made`: task number -> the objects it took. Tasks not named there are not known any more."""

    def __init__(
        self,
        made: Mapping[int, tuple[ObjectID, ...]],
        *,
        available: tuple[ObjectID, ...] = (),
        spent: tuple[int, ...] = (),
    ) -> None:
        self.made = {tid(number): objects for number, objects in made.items()}
        self.available = available
        self.spent = {tid(number) for number in spent}

    def dependencies(self, task: TaskID) -> tuple[ObjectID, ...] | None:
        return self.made.get(task)

    def is_available(self, object_id: ObjectID) -> bool:
        return object_id in self.available

    def is_cancelled(self, task: TaskID) -> bool:
        return False

    def may_run_again(self, task: TaskID) -> bool:
        return task not in self.spent


def plan(wanted: ObjectID, past: Past) -> list[int] | str:
    """The numbers of the tasks to run again, or why not."""
    made = LineageReconstruction().plan(wanted, past)
    return made.impossible if made.impossible is not None else [task[0] for task in made.tasks]


def test_a_lost_object_is_made_by_its_task():
    assert plan(oid(1), Past({1: ()})) == [1]


def test_an_argument_that_exists_is_taken_as_it_is():
    assert plan(oid(2), Past({1: (), 2: (oid(1),)}, available=(oid(1),))) == [2]


def test_an_argument_that_was_put_and_exists_is_taken_as_it_is():
    assert plan(oid(2), Past({2: (put_id(1),)}, available=(put_id(1),))) == [2]


def test_the_lost_object_itself_is_made_whatever_is_said_of_it():
    """Its owner still counts it as stored when a node finds no copy."""
    assert plan(oid(1), Past({1: ()}, available=(oid(1),))) == [1]


def test_a_chain_is_run_again_from_its_first_lost_link():
    past = Past({1: (), 2: (oid(1),), 3: (oid(2),), 4: (oid(3),)}, available=(oid(1),))
    assert plan(oid(4), past) == [2, 3, 4]


def test_a_diamond_runs_its_shared_task_once():
    assert plan(oid(4), Past({1: (), 2: (oid(1),), 3: (oid(1),), 4: (oid(2), oid(3))})) == [1, 2, 3, 4]


def test_two_results_of_one_task_run_it_once():
    assert plan(oid(2), Past({1: (), 2: (oid(1, 0), oid(1, 1))})) == [1, 2]


def test_a_long_chain_needs_no_deep_stack():
    past = Past({})
    past.made = {
        TaskID(n.to_bytes(16, "big")): (ObjectID((n - 1).to_bytes(16, "big") + bytes(4)),) for n in range(1, 5000)
    }
    past.made[TaskID(bytes(16))] = ()
    wanted = ObjectID((4999).to_bytes(16, "big") + bytes(4))
    assert len(LineageReconstruction().plan(wanted, past).tasks) == 5000


@pytest.mark.parametrize(
    ("past", "reason"),
    [
        (Past({2: (put_id(1),)}), "object 00000000:80000001 was created by put(), and no task can recompute it"),
        (Past({2: (oid(1),)}), "the task that computed object 01010101:0 is no longer known"),
        (
            Past({1: (), 2: (oid(1),)}, spent=(1,)),
            f"task 01010101, which computes object 01010101:0, {NO_ATTEMPT_LEFT}",
        ),
        (
            Past({1: (), 2: (oid(1),)}, spent=(2,)),
            f"task 02020202, which computes object 02020202:0, {NO_ATTEMPT_LEFT}",
        ),
    ],
)
def test_what_cannot_be_made_again_is_said_with_its_reason(past, reason):
    assert plan(oid(2), past) == reason


def test_an_object_that_was_put_cannot_be_made_again():
    assert "was created by put()" in str(plan(put_id(1), Past({})))


@given(st.data())
def test_each_task_of_a_plan_comes_once_and_after_what_it_needs(data):
    count = data.draw(st.integers(1, 12))
    made = {
        number: tuple(oid(arg) for arg in data.draw(st.sets(st.integers(1, number - 1), max_size=4)))
        if number > 1
        else ()
        for number in range(1, count + 1)
    }
    available = tuple(oid(number) for number in data.draw(st.sets(st.integers(1, count))) if number != count)
    past = Past(made, available=available)
    tasks = LineageReconstruction().plan(oid(count), past).tasks
    assert tasks[-1] == tid(count)
    assert len(set(tasks)) == len(tasks)
    for position, task in enumerate(tasks):
        for argument in past.made[task]:
            assert argument in available or task_of(argument) in tasks[:position]


# ---- Loading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["placement_policy", "eviction_policy", "retry_policy", "reconstruction_policy"])
def test_the_default_policies_load(setting):
    load_policy(getattr(Config(), setting))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_colon", "policy 'no_colon' must be written 'package.module:Class'"),
        (":Class", "must be written 'package.module:Class'"),
        ("json:", "must be written 'package.module:Class'"),
        ("no_such_module:Class", "module 'no_such_module' cannot be imported"),
        ("json:NoSuchClass", "module 'json' has no 'NoSuchClass'"),
        ("os:abort", "'abort' is a builtin_function_or_method, but must be a class"),
        ("..json:JSONDecoder", "module '..json' cannot be imported"),
        (".:JSONDecoder", "module '.' cannot be imported"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_named_with_its_wrong_part(path, message):
    with pytest.raises(ValueError, match=r"^policy") as refused:
        load_policy(path)
    assert message in str(refused.value)


# ---- Broadcast -----------------------------------------------------------------------------------------------------


def asked_of(*sources: tuple[str, int, int], pieces: int = 100) -> list[str]:
    """Whom a node asks; each source is (name, receivers, depth)."""
    known = [Source(NodeID(node), receivers, depth) for node, receivers, depth in sources]
    return list(ChainBroadcast().choose(known, size_bytes=pieces * 10, piece_bytes=10))


def test_a_chain_grows_at_its_end():
    assert asked_of(("a", 1, 0), ("b", 1, 1), ("c", 0, 2)) == ["c", "a"]


def test_a_chain_begins_where_the_object_is_and_nobody_is_served():
    assert asked_of(("a", 1, 0), ("d", 0, 0), ("b", 0, 1)) == ["d", "a"]


def test_of_several_chains_the_shortest_grows():
    assert asked_of(("a", 2, 0), ("b", 1, 1), ("c", 0, 2), ("d", 0, 1)) == ["d", "a"]


def test_a_chain_does_not_get_longer_than_it_pays():
    chain = [("a", 1, 0), *((f"n{depth:02}", 1, depth) for depth in range(1, 11))]
    assert asked_of(*chain, ("end", 0, 11), pieces=11) == ["end", "a"]
    assert asked_of(*chain, ("end", 0, 11), pieces=10) == ["a"], "a second chain begins"


def test_a_small_object_is_fetched_from_who_has_it():
    assert asked_of(("a", 3, 0), ("d", 0, 0), ("b", 0, 1), pieces=7) == ["a", "d"]
