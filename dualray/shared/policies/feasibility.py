"""Whether a demand can ever be met, and if not, the sentence that says why: the nearest node and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from dualray.shared.model.resources import MEMORY, Resources, bulk, fits, offered_words, shortfall
from dualray.shared.model.specs import LabelTerm, LeaseShape, NodeInfo, StrategyKind, labels_match


def why_infeasible(shape: LeaseShape, nodes: Sequence[NodeInfo]) -> str | None:
    """None when some node could ever take the demand; else what is wrong, and the way out."""
    strategy = shape.strategy
    if strategy.kind is StrategyKind.PLACEMENT_GROUP:
        return None  # the head knows what the group has, and where
    if strategy.labels:
        matching = [info for info in nodes if labels_match(strategy.labels, info.all_labels())]
        if nodes and not matching:
            return _no_labels(strategy.labels, nodes)
        nodes = matching
    if strategy.kind is StrategyKind.NODE_AFFINITY and not strategy.soft:
        named = [info for info in nodes if info.node == strategy.node]
        if not named:
            alive = ", ".join(info.node for info in nodes[:8]) or "none"
            return f"it names node {strategy.node!r} (soft=False), which is not alive; alive nodes: {alive}"
        nodes = named
    demand = shape.placement
    if any(fits(dict(info.total.units), demand) for info in nodes):
        return None
    if not nodes:
        return f"it demands {demand}, but no node of the cluster is alive"
    nearest = min(nodes, key=lambda info: (_lacking(info, shape), info.node))
    lacks = shortfall(dict(nearest.total.units), demand)
    return (
        f"it demands {demand}; the nearest node, {nearest.node}, has {offered_words(nearest.total)} and lacks {lacks}. "
        f"{way_out(demand, nodes)}"
    )


def way_out(demand: Resources, nodes: Sequence[NodeInfo]) -> str:
    """What to do about a demand that none of the nodes can meet."""
    if demand.get(MEMORY) and not any(info.total.get(MEMORY) for info in nodes):
        return (
            "No node offers memory, because none was started with an amount: set init(memory=), `dualray start "
            "--memory`, Cluster.add_node(memory=), or memory: of a scenario's nodes. Or leave memory= out"
        )
    return "Demand less, or start a node that has enough"


def _no_labels(terms: tuple[LabelTerm, ...], nodes: Sequence[NodeInfo]) -> str:
    nearest = min(nodes, key=lambda info: (_unmet(terms, info), info.node))
    unmet = [str(term) for term in terms if not term.matches(nearest.all_labels())]
    labels = ", ".join(f"{key}={value}" for key, value in nearest.labels) or "no labels"
    return (
        f"it demands the labels {' and '.join(map(str, terms))}; the nearest node, {nearest.node}, has {labels}, and "
        f"{' and '.join(unmet)} does not match. Demand other labels, or start a node that has them"
    )


def _unmet(terms: tuple[LabelTerm, ...], info: NodeInfo) -> int:
    return sum(not term.matches(info.all_labels()) for term in terms)


def _lacking(info: NodeInfo, shape: LeaseShape) -> tuple[int, float]:
    lacks = shortfall(dict(info.total.units), shape.placement)
    return len(lacks.units), bulk(lacks)
