"""Locality-aware placement: a task with large arguments goes where most of their bytes are.

Among the nodes that can take the demand now, the one with the most bytes wins; without any, or without arguments in
the stores, the default policy decides.
"""

from __future__ import annotations

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, PlacementPolicy


class LocalityPlacement:
    """See the module. `otherwise` places what has no bytes anywhere."""

    def __init__(self, otherwise: PlacementPolicy) -> None:
        self._otherwise = otherwise

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
