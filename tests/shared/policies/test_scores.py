"""What a placement policy says of its candidates, when it is asked why, is what it chooses by."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import CPU, GPU, UNITS, from_units
from dualray.shared.model.specs import LeaseShape, Strategy, StrategyKind
from dualray.shared.policies.affinity import AffinityPlacement
from dualray.shared.policies.hybrid import HybridPlacement
from dualray.shared.policies.locality import LocalityPlacement
from dualray.shared.policies.placement import Candidate, ClusterView, Outcome, scores_of
from dualray.shared.policies.spread import SpreadPlacement

POLICIES = {
    "hybrid": HybridPlacement(),
    "locality": LocalityPlacement(HybridPlacement()),
    "spread": SpreadPlacement(),
    "affinity": AffinityPlacement(HybridPlacement()),
}
NODES = [NodeID(f"node-{number}") for number in range(5)]


@st.composite
def views(draw: Any) -> ClusterView:
    candidates = {}
    for node in NODES[: draw(st.integers(1, len(NODES)))]:
        total = {CPU: draw(st.integers(1, 4)) * UNITS, GPU: draw(st.integers(0, 2)) * UNITS}
        free = {name: draw(st.integers(-1, amount // UNITS)) * UNITS for name, amount in total.items()}
        candidates[node] = Candidate(node=node, total=total, free=free)
    return ClusterView(
        candidates=candidates,
        spread_threshold_percent=draw(st.sampled_from([0, 50, 100])),
        local_bytes=draw(st.dictionaries(st.sampled_from(NODES), st.integers(1, 100), max_size=5)),
        round_robin=draw(st.integers(0, 20)),
    )


shapes = st.builds(
    lambda cpus, gpus, node, soft: LeaseShape(
        resources=from_units({CPU: cpus * UNITS, GPU: gpus * UNITS}),
        placement=from_units({CPU: cpus * UNITS, GPU: gpus * UNITS}),
        strategy=Strategy(kind=StrategyKind.NODE_AFFINITY, node=node, soft=soft),
    ),
    st.integers(0, 3),
    st.integers(0, 1),
    st.sampled_from(NODES),
    st.booleans(),
)


@pytest.mark.parametrize("name", POLICIES)
@given(view=views(), shape=shapes, via=st.sampled_from(NODES))
def test_the_lowest_score_is_the_choice(name: str, view: ClusterView, shape: LeaseShape, via: NodeID):
    policy = POLICIES[name]
    scores = scores_of(policy, shape, view, via)
    assert sorted(score.node for score in scores) == sorted(view.candidates)
    assert all(score.words for score in scores)
    ranked = [(score.rank, score.node) for score in scores if score.rank is not None]
    answer = policy.choose(shape, view, via)
    assert (answer.outcome is Outcome.SUCCESS) == bool(ranked)
    if ranked:
        assert min(ranked)[1] == answer.node


def test_a_policy_that_does_not_say_still_has_candidates():
    class First:
        def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Any:
            raise AssertionError("nobody asks it to choose")

    view = ClusterView(
        candidates={NODES[0]: Candidate(node=NODES[0], total={CPU: UNITS}, free={CPU: 0})}, spread_threshold_percent=50
    )
    shape = LeaseShape(resources=from_units({CPU: UNITS}), placement=from_units({CPU: UNITS}))
    (score,) = scores_of(First(), shape, view, None)
    assert (score.rank, score.words) == (None, "has no room now")
