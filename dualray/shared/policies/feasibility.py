"""Whether a demand can ever be met, and if not, the sentence that says why: the nearest node and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from dualray.shared.model.resources import fits, shortfall
from dualray.shared.model.specs import LeaseShape, NodeInfo, StrategyKind


def why_infeasible(shape: LeaseShape, nodes: Sequence[NodeInfo]) -> str | None:
    """None when some node could ever take the demand; else what is wrong, and the way out."""
    strategy = shape.strategy
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
        return f"it demands {demand} and the cluster has no node that is alive"
    nearest = min(nodes, key=lambda info: (_lacking(info, shape), info.node))
    lacks = shortfall(dict(nearest.total.units), demand)
    return (
        f"it demands {demand}; the nearest node, {nearest.node}, has {nearest.total} and lacks {lacks}. "
        f"Ask for less, or start a node that has it"
    )


def _lacking(info: NodeInfo, shape: LeaseShape) -> tuple[int, int]:
    lacks = shortfall(dict(info.total.units), shape.placement)
    return len(lacks.units), sum(amount for _, amount in lacks.units)
