"""The seam of placement: what a policy sees and what it answers.

A policy answers with one of three: a node (SUCCESS), not now but later (FAILED), or never (INFEASIBLE). It sees the
alive nodes in the order of their ids, and breaks ties by that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import GPU, Resources, fits
from dualray.shared.model.specs import LeaseShape


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A node that is alive: what it has in all, what is free, and how many bytes of the arguments it holds."""

    node: NodeID
    total: Mapping[str, int]
    free: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)

    def critical_use_percent(self, demand: Resources) -> int:
        """The highest use now, over the resources that the demand names."""
        worst = 0
        for name, _ in demand.units:
            total = self.total.get(name, 0)
            if total:
                worst = max(worst, 100 * (total - self.free.get(name, 0)) // total)
        return worst

    @property
    def has_gpus(self) -> bool:
        return self.total.get(GPU, 0) > 0


class Candidates(dict[NodeID, Candidate]):
    """The nodes that are alive, in the order in which they joined, and who is told when one of them has changed.

    A policy that would look at all of them for each lease may keep an index instead: `watch` gives it a dict in which
    those stand that have changed since it last looked and cleared it. At most `WATCHERS_MAX` are told; the one that
    asked first is forgotten then, and must not be relied on any more (`is_watched`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        """Grows whenever a node comes or goes, or offers another total."""
        self._places: dict[NodeID, int] = {}
        self._counter = 0
        self._watchers: dict[int, dict[NodeID, None]] = {}
        self._possible: dict[Resources, bool] = {}
        self._asked_version = 0

    def __setitem__(self, node: NodeID, candidate: Candidate) -> None:
        if node not in self:
            self._places[node] = self._counter
            self._counter += 1
        super().__setitem__(node, candidate)
        self.version += 1
        self.touch(node)

    def remove(self, node: NodeID) -> None:
        """A node is gone, if it was there."""
        if self.pop(node, None) is not None:
            del self._places[node]
            self.version += 1
            self.touch(node)

    def touch(self, node: NodeID) -> None:
        """What a node has free has changed."""
        for changed in self._watchers.values():
            changed[node] = None

    def could_ever_take(self, demand: Resources) -> bool:
        """Whether one of them could, if nothing else were there."""
        if self._asked_version != self.version:
            self._asked_version = self.version
            self._possible.clear()
        known = self._possible.get(demand)
        if known is None:
            known = self._possible[demand] = any(fits(candidate.total, demand) for candidate in self.values())
        return known

    def place(self, node: NodeID) -> int:
        """A number that grows from each node to the next, in the order of this mapping."""
        return self._places[node]

    def watch(self) -> dict[NodeID, None]:
        """From now on, which nodes have changed: at first, all."""
        changed: dict[NodeID, None] = dict.fromkeys(self)
        if len(self._watchers) >= WATCHERS_MAX:
            del self._watchers[next(iter(self._watchers))]
        self._watchers[id(changed)] = changed
        return changed

    def is_watched(self, changed: dict[NodeID, None]) -> bool:
        """Whether this one is still told."""
        return self._watchers.get(id(changed)) is changed


WATCHERS_MAX = 64


class CandidateIndex:
    """What a policy keeps of one cluster and one demand, so that it looks only at what has changed."""

    def __init__(self, candidates: Candidates, demand: Resources) -> None:
        self.candidates = candidates
        self.demand = demand
        self.changed = candidates.watch()


AnyIndex = TypeVar("AnyIndex", bound=CandidateIndex)


@dataclass(slots=True, kw_only=True)
class ClusterView:
    """What a placement policy may look at."""

    candidates: Mapping[NodeID, Candidate]
    spread_threshold_percent: int
    local_bytes: Mapping[NodeID, int] = field(default_factory=dict)
    """For each node, how many bytes of the demand's arguments it holds; nodes with none are absent."""
    round_robin: int = 0
    """How many leases have been placed so far; of a demand with SPREAD, those with SPREAD: where its round goes on."""


class Indices(Generic[AnyIndex]):
    """A policy's indices, one for each demand. One that is not told of changes any more is as good as none.

    Args:
        make: makes an index of a cluster and a demand.
    """

    def __init__(self, make: Callable[[Candidates, Resources, ClusterView], AnyIndex]) -> None:
        self._make = make
        self._indices: dict[Resources, AnyIndex] = {}

    def of(self, view: ClusterView, demand: Resources) -> AnyIndex | None:
        """The index of a demand, which is made if there is none; None: the policy sees some of the nodes only.

        A policy forgets its oldest index if it has as many as a cluster tells of changes.
        """
        candidates = view.candidates
        if not isinstance(candidates, Candidates):
            return None
        index = self._indices.get(demand)
        if index is None or index.candidates is not candidates or not candidates.is_watched(index.changed):
            if len(self._indices) >= WATCHERS_MAX:
                del self._indices[next(iter(self._indices))]
            index = self._indices[demand] = self._make(candidates, demand, view)
        return index


class Outcome(StrEnum):
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    INFEASIBLE = "INFEASIBLE"


@dataclass(frozen=True, slots=True)
class Placement:
    """A policy's answer: `node` with SUCCESS, else None; `reason` in words, for people who ask why."""

    outcome: Outcome
    node: NodeID | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How a policy ranks one candidate, for people who ask why: the lowest `rank` wins; None: it does not fit now."""

    node: NodeID
    rank: tuple[int, ...] | None
    words: str


class PlacementPolicy(Protocol):
    """Chooses the node for one lease; `via` is the node whose owner asked.

    A policy may also have `scores(shape, view, via) -> list[Score]`, one for each candidate, of which the lowest rank
    is the node that `choose` answers. It is asked when a choice is to be explained, never when one is made.
    """

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement: ...


def count_below(threshold_percent: int, total: int, free: int, amount: int) -> int:
    """How many demands take a resource one after another, each while its use is below the threshold."""
    left = threshold_percent * total - 100 * (total - free)
    return max(-(-left // (100 * amount)), 0)


def spares_gpus(demand: Resources, without_gpus: Iterable[Mapping[str, int]]) -> bool:
    """Whether the demand has no GPU, and a node without GPUs could ever take it. `without_gpus`: what each has."""
    return not demand.get(GPU) and any(fits(total, demand) for total in without_gpus)


def not_placed(shape: LeaseShape, view: ClusterView) -> Placement:
    """FAILED when some node could ever take the demand, else INFEASIBLE."""
    candidates, demand = view.candidates, shape.placement
    if isinstance(candidates, Candidates):
        could = candidates.could_ever_take(demand)
    else:
        could = any(fits(candidate.total, demand) for candidate in candidates.values())
    if could:
        return Placement(Outcome.FAILED, reason="every node that could take it is busy")
    return Placement(Outcome.INFEASIBLE, reason="no node could ever take it")


def scores_of(policy: PlacementPolicy, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> list[Score]:
    """What a policy says of each candidate; of one that does not say, whether there is room."""
    scores = getattr(policy, "scores", None)
    if scores is not None:
        found: list[Score] = scores(shape, view, via)
        return found
    return [
        Score(
            node=candidate.node,
            rank=None,
            words="has room" if fits(candidate.free, shape.placement) else "has no room now",
        )
        for candidate in view.candidates.values()
    ]
