"""NODE_AFFINITY: the node that the user named; with `soft`, elsewhere when it is gone or can never take it."""

from __future__ import annotations

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, PlacementPolicy, Score, scores_of


class AffinityPlacement:
    """See the module. `otherwise` places soft demands whose node cannot take them."""

    def __init__(self, otherwise: PlacementPolicy) -> None:
        self._otherwise = otherwise

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        wanted = shape.strategy.node
        candidate = view.candidates.get(wanted) if wanted is not None else None
        if candidate is not None and fits(candidate.total, shape.placement):
            if fits(candidate.free, shape.placement):
                return Placement(Outcome.SUCCESS, candidate.node, "affinity: the named node")
            if shape.strategy.fails_if_busy:
                return Placement(Outcome.INFEASIBLE, reason=f"{wanted} is busy, and _fail_on_unavailable is set")
            return Placement(Outcome.FAILED, reason=f"{wanted} is busy")
        if shape.strategy.soft:
            return self._otherwise.choose(shape, view, via)
        why = "is not alive" if candidate is None else "could never run it"
        return Placement(Outcome.INFEASIBLE, reason=f"{wanted} was named (soft=False) and {why}")

    def scores(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> list[Score]:
        """The named node alone counts, as long as it could ever take it."""
        wanted = shape.strategy.node
        named = view.candidates.get(wanted) if wanted is not None else None
        if shape.strategy.soft and (named is None or not fits(named.total, shape.placement)):
            return scores_of(self._otherwise, shape, view, via)
        return [
            Score(
                node=candidate.node,
                rank=(0,) if candidate is named and fits(candidate.free, shape.placement) else None,
                words="was named" if candidate is named else "was not named",
            )
            for candidate in view.candidates.values()
        ]
