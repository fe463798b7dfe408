"""Locality-aware placement: a task with large arguments goes where most of their bytes are.

Among the nodes that can take the demand now, the one with the most bytes wins; without any, or without arguments in
the stores, the default policy decides.
"""

from __future__ import annotations

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.hybrid import HybridPlacement
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, PlacementPolicy, Score, scores_of


class LocalityPlacement:
    """See the module. `otherwise` places what has no bytes anywhere; by default it is `hybrid`."""

    def __init__(self, otherwise: PlacementPolicy | None = None) -> None:
        self._otherwise = otherwise if otherwise is not None else HybridPlacement()

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        best_bytes = 0
        chosen: NodeID | None = None
        for node, local_bytes in sorted(view.local_bytes.items()):
            candidate = view.candidates.get(node)
            if candidate is not None and local_bytes > best_bytes and fits(candidate.free, shape.placement):
                best_bytes, chosen = local_bytes, node
        if chosen is None:
            return self._otherwise.choose(shape, view, via)
        return Placement(Outcome.SUCCESS, chosen, f"locality: {best_bytes} bytes of its arguments are there")

    def scores(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> list[Score]:
        """Every candidate's rank: bytes first; when none that has room has any, as the other policy ranks."""
        scores = []
        for order, (node, candidate) in enumerate(sorted(view.candidates.items())):
            local_bytes = view.local_bytes.get(node, 0)
            words = f"has {local_bytes:,} bytes of its arguments"
            if not fits(candidate.free, shape.placement):
                scores.append(Score(node=node, rank=None, words=f"{words}, and no room now"))
            elif local_bytes > 0:
                scores.append(Score(node=node, rank=(-local_bytes, order), words=words))
            else:
                scores.append(Score(node=node, rank=(0, order), words=words))
        if any(score.rank is not None and score.rank[0] < 0 for score in scores):
            return scores
        return scores_of(self._otherwise, shape, view, via)
