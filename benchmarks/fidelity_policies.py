"""A placement policy as a user would write it, for the ranking of `benchmarks.fidelity`."""

from __future__ import annotations

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, not_placed


class LastFirst:
    """The last node that has room: as far from the driver as can be."""

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        """See PlacementPolicy."""
        for node, candidate in reversed(list(view.candidates.items())):
            if fits(candidate.free, shape.placement):
                return Placement(Outcome.SUCCESS, node, "the last one")
        return not_placed(shape, view)
