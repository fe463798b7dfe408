"""Scheduling strategies that carry arguments; the others are the strings "DEFAULT" and "SPREAD"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeAffinitySchedulingStrategy:
    """Run on the node `node_id` (a NodeID from `dualray.nodes()`). With `soft`, elsewhere when that node is gone or
    could never take the demand; without, the task or actor then fails."""

    node_id: str
    soft: bool = False
