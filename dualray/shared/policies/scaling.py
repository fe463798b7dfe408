"""What a scaling policy is shown, and what it answers: how many nodes of each group to launch, and which leave.

A policy has the method `choose(view: ScaleView) -> ScaleDecision`. It is pure: the same view, the same decision. Nodes
belong to groups of nodes that are alike; demands are counts of shapes, however many tasks stand behind them. Amounts
are in units of `shared/model/resources.py`, times in nanoseconds, prices in millionths of a currency unit an hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dualray.shared.model.resources import Resources, fits, shortfall
from dualray.shared.model.specs import GroupStrategy, LabelTerm, LeaseShape, StrategyKind, labels_match


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupSpec:
    """Nodes that are alike, of which there may be more or fewer.

    Attributes:
        total, labels: what each offers.
        least, most: how many there are when nothing is to be done, and how many there may be.
        price: of one node for an hour, in millionths; 0: not known.
    """

    name: str
    total: Resources
    labels: tuple[tuple[str, str], ...] = ()
    least: int = 0
    most: int = 1
    price: int = 0

    def could_take(self, shape: LeaseShape) -> bool:
        """Whether a node of it that is empty could take a lease."""
        strategy = shape.strategy
        if strategy.kind is StrategyKind.NODE_AFFINITY and not strategy.soft:
            return False
        fitting = not strategy.labels or labels_match(strategy.labels, dict(self.labels))
        return fitting and fits(dict(self.total.units), shape.placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledNode:
    """A node, or one that was launched and has not joined.

    Attributes:
        name: the node's, or the launch's.
        group: "" when it belongs to none, as the head's may.
        free: what demands may still take of it; of one that has not joined, all.
        idle_ns: for how long nobody has used it; 0: it is in use, or may not leave.
    """

    name: str
    group: str
    total: Mapping[str, int]
    free: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    is_joined: bool = True
    idle_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Leases of one shape that wait. `labels` must be met by their node."""

    resources: Resources
    labels: tuple[LabelTerm, ...] = ()
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Bundles of a placement group that have no place: all of them are to get one, or none.

    Attributes:
        name: of the group, for people.
        bundles: what each is to reserve.
        selectors: of each bundle, what its node's labels must meet; (): nothing.
        nodes: those that hold bundles of this group already.
    """

    name: str
    bundles: tuple[Resources, ...]
    strategy: GroupStrategy
    selectors: tuple[tuple[LabelTerm, ...], ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleView:
    """All that a decision depends on.

    Attributes:
        requested: for what the cluster is to be large enough, used or not (`request_resources`); each job's apart.
        idle_timeout_ns: a node may leave that was idle for longer.
        speed_percent: so many nodes may be launched at a time for plain demands, of those that have joined, and
            `SPEED_LEAST` in any case; 0: any number.
        closed: groups of which no node can be had now, and why.
        leaving: by group, how many nodes leave. `nodes` lacks these nodes, and a group's `most` does not count them.
    """

    groups: Sequence[NodeGroupSpec]
    nodes: Sequence[ScaledNode]
    demands: Sequence[Demand] = ()
    gangs: Sequence[Gang] = ()
    requested: Sequence[Sequence[Demand]] = ()
    idle_timeout_ns: int
    speed_percent: int = 0
    closed: Mapping[str, str] = field(default_factory=dict)
    leaving: Mapping[str, int] = field(default_factory=dict)

    def count_by_group(self) -> Counter[str]:
        """How many of the nodes each group has."""
        return Counter([node.group for node in self.nodes])


SPEED_LEAST = 5
"""Nodes that may be launched at a time, however few there are: else a small cluster could not begin to grow."""


def demand_words(resources: Resources, labels: Sequence[LabelTerm]) -> str:
    """A demand, for people."""
    return f"{resources}" + (f" on a node with {' and '.join(map(str, labels))}" if labels else "")


def request_words(count: int) -> str:
    """What a job wants by `request_resources`, for people; `count` are its bundles."""
    return f"the {count} {'bundle' if count == 1 else 'bundles'} that request_resources asked for"


def whole_words(count: int, total: int, needed: int, room: int, most: int, leaving: int = 0) -> str:
    """Why a group of nodes does not take `count` of `total` bundles that start together or not at all, and a way out.

    Args:
        needed: nodes of the group that these bundles take.
        room: nodes of the group that may be launched now.
        most: the group's max.
        leaving: nodes of the group that leave, which count until they have left.
    """
    words = f"{count} of {total} bundles" if count < total else f"{count} bundle{'s' if count != 1 else ''}"
    words += f" need{'s' if count == 1 else ''} {needed} node{'s' if needed != 1 else ''} of this group"
    if needed <= room:
        return f"{words}, but the other bundles do not fit, and dualray places all bundles or none"
    held = f"max: {most}, {leaving} {'leaves' if leaving == 1 else 'leave'}" if leaving else f"max: {most}"
    words = f"{words}, but {f'only {room}' if room else 'no'} more may start ({held})"
    if needed <= room + leaving:
        return f"{words} until nodes have left"
    return f"{words}: raise max, or request fewer or smaller bundles"


def never_words(group: NodeGroupSpec, resources: Resources, labels: tuple[LabelTerm, ...]) -> str:
    """Why no node of a group could meet a demand; "" when one could."""
    total = dict(group.total.units)
    if not fits(total, resources):
        return f"a node of this group lacks {shortfall(total, resources)}"
    if labels and not labels_match(labels, dict(group.labels)):
        return f"its labels do not meet {' and '.join(map(str, labels))}"
    return ""


def not_now_words(view: ScaleView, counts: Mapping[str, int], *, is_slow: bool) -> dict[str, str]:
    """Of each group, why it has no more nodes now. `counts`: its nodes; `is_slow`: the speed allows no more."""
    slow = "as many nodes as upscaling_speed_percent allows are starting" if is_slow else ""
    whys: dict[str, str] = {}
    for group in view.groups:
        leaving = view.leaving.get(group.name, 0)
        most = group.most + leaving
        full = f"it has {most} node{'s' if most != 1 else ''}, which is its max"
        full += f"; {leaving} of these {'leaves' if leaving == 1 else 'leave'}" if leaving else ""
        whys[group.name] = view.closed.get(group.name) or (full if counts[group.name] >= group.most else slow)
    return whys


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A demand that no node will meet, and why not.

    Attributes:
        what: the demand in words; see `demand_words`.
        is_whole: it is met whole or not at all, as a placement group is; `count` are its bundles.
        reasons: by group, why none of it is launched.
    """

    what: str
    count: int
    reasons: Mapping[str, str]
    is_whole: bool = False

    def __str__(self) -> str:
        return self.what if self.is_whole else f"{self.count} x {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """What is to be done.

    Attributes:
        launches: by group, how many nodes.
        leaving: nodes that are to leave, each with the reason.
        cancelled: launches that are not needed any more, each with the reason.
        unmet: demands that are left.
    """

    launches: Mapping[str, int] = field(default_factory=dict)
    leaving: Mapping[str, str] = field(default_factory=dict)
    cancelled: Mapping[str, str] = field(default_factory=dict)
    unmet: Sequence[Unmet] = ()


class ScalingPolicy(Protocol):
    """See the module."""

    def choose(self, view: ScaleView) -> ScaleDecision: ...
