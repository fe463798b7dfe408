"""NODE_LABELS: the nodes whose labels match, and among these the policy that decides anyway.

Terms that a node must meet narrow the choice; of what is left, nodes that meet the preferred terms too come first, as
long as one of them can take the demand now.
"""

from __future__ import annotations

from dataclasses import replace

from dualray.shared.model.ids import NodeID
from dualray.shared.model.specs import LabelTerm, LeaseShape, labels_match
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, PlacementPolicy


class LabelPlacement:
    """See the module. `otherwise` chooses among the nodes that match."""

    def __init__(self, otherwise: PlacementPolicy) -> None:
        self._otherwise = otherwise

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        strategy = shape.strategy
        matching = _narrowed(view, strategy.labels)
        if strategy.preferred:
            placement = self._otherwise.choose(shape, _narrowed(matching, strategy.preferred), via)
            if placement.outcome is Outcome.SUCCESS:
                return placement
        if not matching.candidates:
            wanted = " and ".join(map(str, strategy.labels))
            return Placement(Outcome.INFEASIBLE, reason=f"no node has the labels {wanted}")
        return self._otherwise.choose(shape, matching, via)


def _narrowed(view: ClusterView, terms: tuple[LabelTerm, ...]) -> ClusterView:
    matching = {node: candidate for node, candidate in view.candidates.items() if labels_match(terms, candidate.labels)}
    return replace(view, candidates=matching)
