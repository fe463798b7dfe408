"""SPREAD: best effort round-robin over the nodes that can take the demand now.

The round is made of the nodes that could take the demand if nothing else were there. A head without CPUs has no turn:
else the node behind it would take that turn, too, and run twice as much as the others.

Of a whole cluster (`Candidates`) it is kept for each demand which nodes can take it, as the bits of a number: the next
in turn is the lowest bit at or above where the round stands. It answers what a walk over all of them would (a test
compares the two).
"""

from __future__ import annotations

from collections.abc import Mapping

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import Resources, fits
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

_WHY = "spread: next in turn"


class _Round(CandidateIndex):
    """Of one cluster and one demand, which nodes could ever take it, and which can now."""

    def __init__(self, candidates: Candidates, demand: Resources, _view: ClusterView) -> None:
        super().__init__(candidates, demand)
        self._version = -1
        self._nodes: list[NodeID] = []
        self._places: dict[NodeID, int] = {}
        self._fitting = 0
        """Bit n: node n has room."""

    def next(self, turn: int) -> NodeID | None:
        """The first node with room from the one on whose turn it is; None: there is none."""
        if self._version != self.candidates.version:
            self._version = self.candidates.version
            self._nodes = _in_round(self.candidates, self.demand)
            self._places = {node: place for place, node in enumerate(self._nodes)}
            self.changed.update(dict.fromkeys(self._nodes))
            self._fitting = 0
        if self.changed:
            for node in self.changed:
                place = self._places.get(node)
                if place is not None:
                    bit = 1 << place
                    if fits(self.candidates[node].free, self.demand):
                        self._fitting |= bit
                    else:
                        self._fitting &= ~bit
            self.changed.clear()
        if not self._fitting:
            return None
        start = turn % len(self._nodes)
        ahead = self._fitting >> start
        if ahead:
            return self._nodes[start + (ahead & -ahead).bit_length() - 1]
        return self._nodes[(self._fitting & -self._fitting).bit_length() - 1]


class SpreadPlacement:
    """See the module."""

    def __init__(self) -> None:
        self._rounds: Indices[_Round] = Indices(_Round)

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        turns = self._rounds.of(view, shape.placement)
        if turns is None:
            return self.choose_among_all(shape, view, via)
        chosen = turns.next(view.round_robin)
        return not_placed(shape, view) if chosen is None else Placement(Outcome.SUCCESS, chosen, _WHY)

    def choose_among_all(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        """By a walk over all of them."""
        nodes = _in_round(view.candidates, shape.placement)
        for step in range(len(nodes)):
            node = nodes[(view.round_robin + step) % len(nodes)]
            if fits(view.candidates[node].free, shape.placement):
                return Placement(Outcome.SUCCESS, node, _WHY)
        return not_placed(shape, view)

    def scores(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> list[Score]:
        """Every candidate's place in the round."""
        places = {node: place for place, node in enumerate(_in_round(view.candidates, shape.placement))}
        scores = []
        for node, candidate in view.candidates.items():
            if node not in places:
                scores.append(
                    Score(node=node, rank=None, words="has too few resources, so it has no turn in the round")
                )
                continue
            turn = (places[node] - view.round_robin) % len(places)
            has_room = fits(candidate.free, shape.placement)
            words = f"is number {turn + 1} of this round" + ("" if has_room else ", and has no room now")
            scores.append(Score(node=node, rank=(turn,) if has_room else None, words=words))
        return scores


def _in_round(candidates: Mapping[NodeID, Candidate], demand: Resources) -> list[NodeID]:
    """The nodes that could take a demand if nothing else were there, in order."""
    return [node for node, candidate in candidates.items() if fits(candidate.total, demand)]
