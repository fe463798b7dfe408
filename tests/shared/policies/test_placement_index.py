"""The indices of placement policies answer what a look at all nodes would, whatever happens to the cluster."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import from_units
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.hybrid import HybridPlacement
from dualray.shared.policies.placement import WATCHERS_MAX, Candidate, Candidates, ClusterView
from dualray.shared.policies.spread import SpreadPlacement

DEMANDS = tuple(
    from_units(amounts)
    for amounts in (
        {"CPU": 10_000},
        {"CPU": 20_000},
        {"GPU": 10_000},
        {"CPU": 10_000, "GPU": 5_000},
        {"disk": 1},
        {"CPU": 90_000},
        {},
    )
)


def node(number):
    return NodeID(f"node-{number}")


def machine(number, kind):
    total = ({"CPU": 40_000}, {"CPU": 80_000, "disk": 3}, {"CPU": 40_000, "GPU": 20_000})[kind]
    return Candidate(node=node(number), total=dict(total), free=dict(total))


steps = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 8), st.integers(0, 2)),
    st.tuples(st.just("leave"), st.integers(0, 8), st.just(0)),
    st.tuples(st.just("take"), st.integers(0, 8), st.sampled_from(range(len(DEMANDS)))),
    st.tuples(st.just("empty"), st.integers(0, 8), st.just(0)),
    st.tuples(st.just("choose"), st.integers(-1, 8), st.sampled_from(range(len(DEMANDS)))),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=60), st.sampled_from([0, 50, 100]))
def test_an_index_answers_as_a_look_at_all_nodes(moves, threshold):
    candidates = Candidates()
    hybrid, spread = HybridPlacement(), SpreadPlacement()
    for turn, (what, number, which) in enumerate(moves):
        known = candidates.get(node(number))
        if what == "join":
            candidates[node(number)] = machine(number, which)
        elif what == "leave":
            candidates.remove(node(number))
        elif what == "take" and known is not None:
            for name, amount in DEMANDS[which].units:
                known.free[name] = known.free.get(name, 0) - amount
            candidates.touch(node(number))
        elif what == "empty" and known is not None:
            known.free.clear()
            known.free.update(known.total)
            candidates.touch(node(number))
        elif what == "choose":
            shape = LeaseShape(resources=DEMANDS[which], placement=DEMANDS[which])
            via = node(number) if number >= 0 else None
            view = ClusterView(candidates=candidates, spread_threshold_percent=threshold, round_robin=turn)
            plain = ClusterView(candidates=dict(candidates), spread_threshold_percent=threshold, round_robin=turn)
            for policy in (hybrid, spread):
                assert policy.choose(shape, view, via) == type(policy)().choose(shape, plain, via)


def test_more_demands_than_are_watched_are_answered_all_the_same():
    candidates = Candidates()
    for number in range(4):
        candidates[node(number)] = machine(number, 0)
    hybrid = HybridPlacement()
    for turn in range(3 * WATCHERS_MAX):
        demand = from_units({"CPU": 1 + turn % (WATCHERS_MAX + 7)})
        shape = LeaseShape(resources=demand, placement=demand)
        view = ClusterView(candidates=candidates, spread_threshold_percent=50)
        chosen = hybrid.choose(shape, view, None)
        plain = ClusterView(candidates=dict(candidates), spread_threshold_percent=50)
        assert chosen == HybridPlacement().choose(shape, plain, None)
        candidates[chosen.node].free["CPU"] -= 97
        candidates.touch(chosen.node)
