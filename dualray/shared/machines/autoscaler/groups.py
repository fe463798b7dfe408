"""Groups of nodes as text, in which a `Config` carries them to every process and into its decision logs."""

from __future__ import annotations

import json
from collections.abc import Iterable

from dualray.shared.model.resources import Resources
from dualray.shared.policies.scaling import NodeGroupSpec


def groups_to_text(groups: Iterable[NodeGroupSpec]) -> str:
    """For `Config.autoscaler_groups`."""
    rows = [
        {
            "name": group.name,
            "total": [list(row) for row in group.total.units],
            "labels": [list(row) for row in group.labels],
            "least": group.least,
            "most": group.most,
            "price": group.price,
        }
        for group in groups
    ]
    return json.dumps(rows, separators=(",", ":")) if rows else ""


def groups_of(text: str) -> tuple[NodeGroupSpec, ...]:
    """The groups that a text names; none of the empty one.

    Raises:
        ValueError: it is no such text.
    """
    if not text:
        return ()
    try:
        return tuple(
            [
                NodeGroupSpec(
                    name=str(row["name"]),
                    total=Resources(tuple([(str(name), int(units)) for name, units in row["total"]])),
                    labels=tuple([(str(key), str(value)) for key, value in row["labels"]]),
                    least=int(row["least"]),
                    most=int(row["most"]),
                    price=int(row["price"]),
                )
                for row in json.loads(text)
            ]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"autoscaler_groups={text!r} does not describe groups of nodes: {error!r}") from None
