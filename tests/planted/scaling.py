"""Scaling policies that decide wrongly: exploration, or one run, must find each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dualray.shared.policies.bin_packing import BinPacking
from dualray.shared.policies.scaling import Gang, NodeGroupSpec, ScaleDecision, ScaledNode, ScaleView


def changed(groups: Sequence[NodeGroupSpec], most: int) -> list[NodeGroupSpec]:
    return [replace(group, most=group.most + most) for group in groups]


class IgnoresTheMost(BinPacking):
    """Launches more nodes than a group may have."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        return super().choose(replace(view, groups=changed(view.groups, 5)))


class ForgetsLaunches(BinPacking):
    """Launches again what is on its way."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        return super().choose(replace(view, nodes=[node for node in view.nodes if node.is_joined]))


class TiresEarly(BinPacking):
    """Lets nodes leave after half of their time."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        return super().choose(replace(view, idle_timeout_ns=view.idle_timeout_ns // 2))


class LetsTheLastGo(BinPacking):
    """Lets nodes leave that a group should have at least."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        groups = [replace(group, least=0) for group in view.groups]
        return super().choose(replace(view, groups=groups))


class InsistsOnTheRefused(BinPacking):
    """Launches what was refused just now."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        return super().choose(replace(view, closed={}))


class KeepsOneInReserve(BinPacking):
    """Launches a node that nobody has asked for."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        decision = super().choose(view)
        name = view.groups[-1].name
        return decision if decision.launches else replace(decision, launches={name: 1})


class IgnoresGangs(BinPacking):
    """Launches nothing for placement groups."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        return super().choose(replace(view, gangs=()))


class SplitsGangs(BinPacking):
    """Launches for all bundles of a group but the last."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        gangs = [_without_last(gang) for gang in view.gangs if len(gang.bundles) > 1]
        return super().choose(replace(view, gangs=gangs))


def _without_last(gang: Gang) -> Gang:
    return replace(gang, bundles=gang.bundles[:-1], selectors=gang.selectors[:-1])


class TakesTheFullForFree(BinPacking):
    """Believes that nodes in use are free."""

    def choose(self, view: ScaleView) -> ScaleDecision:
        return super().choose(replace(view, nodes=[_emptied(node) for node in view.nodes]))


def _emptied(node: ScaledNode) -> ScaledNode:
    return replace(node, free=dict(node.total))
