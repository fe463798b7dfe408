"""Hybrid placement, the default: pack up to a threshold of use, then spread; in the manner of today's Ray.

Order of preference among nodes that can take the demand now: nodes without GPUs for work without GPUs; the node where
the task was submitted while its critical use stays under the threshold; any node under the threshold, in order of
name; else the least used. (Ray picks at random among the top k; here ties are broken by name, so that a placement can
be repeated.)

Of a whole cluster (`Candidates`) an index is kept for each demand: a heap of the nodes that can take it, by that order.
Only what has changed since the last choice is looked at, so that a choice costs the same on ten nodes and on ten
thousand. It answers what a look at all of them would (a test compares the two).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TypeAlias

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import GPU, Resources, fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.placement import (
    Candidate,
    CandidateIndex,
    Candidates,
    ClusterView,
    Indices,
    Outcome,
    Placement,
    Score,
    not_placed,
)

_WHY = "hybrid: packed while under the threshold, else least used"

Rank: TypeAlias = tuple[bool, int, int]
"""Whether it spares a GPU, its use beyond the threshold, its place in the cluster: the least is the best."""


class DemandIndex(CandidateIndex):
    """Of one cluster and one demand, the nodes that can take it now, the best one first."""

    def __init__(self, candidates: Candidates, demand: Resources, view: ClusterView) -> None:
        super().__init__(candidates, demand)
        self._threshold_percent = view.spread_threshold_percent
        self._wants_gpu = demand.get(GPU) > 0
        self._ranks: dict[NodeID, Rank] = {}
        self._heap: list[tuple[Rank, NodeID]] = []
        """With what was true once: an entry counts if `_ranks` says the same."""

    def best(self, via: NodeID | None) -> NodeID | None:
        """The best node; of those that are as good but for their place, `via`. None: no node has room."""
        if self.changed:
            self._look_at_changed()
        ranks, heap = self._ranks, self._heap
        while heap and ranks.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        if not heap:
            return None
        best, node = heap[0]
        mine = ranks.get(via) if via is not None else None
        return via if mine is not None and mine[:2] == best[:2] else node

    def _look_at_changed(self) -> None:
        candidates, ranks, heap = self.candidates, self._ranks, self._heap
        for node in self.changed:
            candidate = candidates.get(node)
            if candidate is None or not fits(candidate.free, self.demand):
                ranks.pop(node, None)
                continue
            rank = self._rank(candidate)
            if ranks.get(node) != rank:
                ranks[node] = rank
                heappush(heap, (rank, node))
        self.changed.clear()
        if len(heap) > 64 + 4 * len(ranks):
            heap[:] = [(rank, node) for node, rank in ranks.items()]
            heapify(heap)

    def _rank(self, candidate: Candidate) -> Rank:
        use = candidate.critical_use_percent(self.demand)
        packed_use = 0 if use < self._threshold_percent else use
        return (candidate.has_gpus and not self._wants_gpu, packed_use, self.candidates.place(candidate.node))


class HybridPlacement:
    """See the module."""

    def __init__(self) -> None:
        self._indices: Indices[DemandIndex] = Indices(DemandIndex)

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        index = self._indices.of(view, shape.placement)
        if index is None:
            return self.choose_among_all(shape, view, via)
        chosen = index.best(via)
        if chosen is None:
            return not_placed(shape, view)
        return Placement(Outcome.SUCCESS, chosen, _WHY)

    def choose_among_all(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        """By a look at all of them."""
        demand = shape.placement
        wants_gpu = demand.get(GPU) > 0
        best: tuple[bool, int, bool, int] | None = None
        chosen: NodeID | None = None
        for order, candidate in enumerate(view.candidates.values()):
            if not fits(candidate.free, demand):
                continue
            use = candidate.critical_use_percent(demand)
            packed_use = 0 if use < view.spread_threshold_percent else use
            rank = (candidate.has_gpus and not wants_gpu, packed_use, candidate.node != via, order)
            if best is None or rank < best:
                best, chosen = rank, candidate.node
        if chosen is None:
            return not_placed(shape, view)
        return Placement(Outcome.SUCCESS, chosen, _WHY)

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
            is_packed = use < view.spread_threshold_percent
            is_spared = candidate.has_gpus and spares_gpus
            words = [
                f"is {use} % in use" + (f", below {view.spread_threshold_percent} %" if is_packed else ""),
                *(["has GPUs, which the demand does not need"] if is_spared else []),
                *(["is the node that submitted it"] if candidate.node == via else []),
            ]
            rank = (int(is_spared), 0 if is_packed else use, int(candidate.node != via), order)
            scores.append(Score(node=candidate.node, rank=rank, words="; ".join(words)))
        return scores
