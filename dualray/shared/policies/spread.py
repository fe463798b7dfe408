"""SPREAD: best effort round-robin over the nodes that can take the demand now."""

from __future__ import annotations

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, Score, not_placed


class SpreadPlacement:
    """See the module."""

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        nodes = list(view.candidates.values())
        for step in range(len(nodes)):
            candidate = nodes[(view.round_robin + step) % len(nodes)]
            if fits(candidate.free, shape.placement):
                return Placement(Outcome.SUCCESS, candidate.node, "spread: next in turn")
        return not_placed(shape, view)

    def scores(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> list[Score]:
        """Every candidate's place in the round."""
        count = len(view.candidates)
        scores = []
        for order, candidate in enumerate(view.candidates.values()):
            turn = (order - view.round_robin) % count
            has_room = fits(candidate.free, shape.placement)
            words = f"is number {turn + 1} of this round" + ("" if has_room else ", and has no room now")
            scores.append(Score(node=candidate.node, rank=(turn,) if has_room else None, words=words))
        return scores
