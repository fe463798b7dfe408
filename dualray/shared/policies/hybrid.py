"""Hybrid placement, the default: pack up to a threshold of use, then spread; in the manner of today's Ray.

Order of preference among nodes that can take the demand now: nodes without GPUs for work without GPUs; the node where
the task was submitted while its critical use stays under the threshold; any node under the threshold, in order of
name; else the least used. (Ray picks at random among the top k; here ties are broken by name, so that a placement can
be repeated.)
"""

from __future__ import annotations

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import GPU, fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, Score, not_placed


class HybridPlacement:
    """See the module."""

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        demand = shape.placement
        wants_gpu = demand.get(GPU) > 0
        best: tuple[bool, int, bool, int] | None = None
        chosen: NodeID | None = None
        for order, candidate in enumerate(view.candidates.values()):
            if not fits(candidate.free, demand):
                continue
            use = candidate.critical_use_percent(demand)
            packed_use = 0 if use <= view.spread_threshold_percent else use
            rank = (candidate.has_gpus and not wants_gpu, packed_use, candidate.node != via, order)
            if best is None or rank < best:
                best, chosen = rank, candidate.node
        if chosen is None:
            return not_placed(shape, view)
        return Placement(Outcome.SUCCESS, chosen, "hybrid: packed while under the threshold, else least used")

    def scores(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> list[Score]:
        """Every candidate's rank; see the module."""
        demand = shape.placement
        spares_gpus = demand.get(GPU) == 0
        scores = []
        for order, candidate in enumerate(view.candidates.values()):
            if not fits(candidate.free, demand):
                scores.append(Score(node=candidate.node, rank=None, words="has no room now"))
                continue
            use = candidate.critical_use_percent(demand)
            is_packed = use <= view.spread_threshold_percent
            is_spared = candidate.has_gpus and spares_gpus
            words = [
                f"would be {use} % in use" + (f", not over {view.spread_threshold_percent} %" if is_packed else ""),
                *(["has GPUs, which are not wanted"] if is_spared else []),
                *(["is where it was submitted"] if candidate.node == via else []),
            ]
            rank = (int(is_spared), 0 if is_packed else use, int(candidate.node != via), order)
            scores.append(Score(node=candidate.node, rank=rank, words="; ".join(words)))
        return scores
