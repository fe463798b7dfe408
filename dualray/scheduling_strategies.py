"""Scheduling strategies that carry arguments; the others are the strings "DEFAULT" and "SPREAD"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "DoesNotExist",
    "Exists",
    "In",
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
    "NotIn",
    "PlacementGroupSchedulingStrategy",
]


@dataclass(frozen=True, slots=True)
class NodeAffinitySchedulingStrategy:
    """Run on the node `node_id` (a NodeID from `dualray.nodes()`). With `soft`, elsewhere when that node is gone or
    could never take the demand; without, the task or actor then fails.

    Args:
        _spill_on_unavailable: with `soft`: elsewhere also while that node has no room. Default: wait for it.
        _fail_on_unavailable: without `soft`. Ray fails what finds no room there at once; here it waits for the node.

    Raises:
        ValueError: one of the two with the wrong `soft`.
    """

    node_id: str
    soft: bool = False
    _spill_on_unavailable: bool = False
    _fail_on_unavailable: bool = False

    def __post_init__(self) -> None:
        if self._spill_on_unavailable and not self.soft:
            raise ValueError("_spill_on_unavailable cannot be set when soft is False: say soft=True")
        if self._fail_on_unavailable and self.soft:
            raise ValueError("_fail_on_unavailable cannot be set when soft is True: say soft=False")


class Group(Protocol):
    """What a strategy needs of a placement group (placement_group.py)."""

    id: Any
    bundle_specs: list[dict[str, float]]

    @property
    def bundle_count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PlacementGroupSchedulingStrategy:
    """Run in a bundle of a placement group, on its node and with what it has reserved.

    Args:
        placement_group: from `dualray.util.placement_group.placement_group()`; None: in no group, also when the task
            that submits this one would have its children captured.
        placement_group_bundle_index: which bundle; -1, the default: any that has room.
        placement_group_capture_child_tasks: whether tasks and actors that this one makes go to the group too, when
            they do not say where. Default: as for the task that makes this one, which is no at first.
    """

    placement_group: Group | None
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


class In:
    """The label has one of the values."""

    __slots__ = ("values",)

    def __init__(self, *values: str) -> None:
        self.values = _checked(self, values)


class NotIn:
    """The label has none of the values, or the node has no such label."""

    __slots__ = ("values",)

    def __init__(self, *values: str) -> None:
        self.values = _checked(self, values)


@dataclass(frozen=True, slots=True)
class Exists:
    """The node has the label."""


@dataclass(frozen=True, slots=True)
class DoesNotExist:
    """The node has no such label."""


LabelCondition = In | NotIn | Exists | DoesNotExist


def _checked(condition: object, values: tuple[str, ...]) -> tuple[str, ...]:
    if not values or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{type(condition).__name__}{values!r} takes one or more values, each a text")
    return values


@dataclass(frozen=True, slots=True)
class NodeLabelSchedulingStrategy:
    """Run on a node whose labels meet all of `hard`, and, while there is one with room, all of `soft` too.

    Args:
        hard, soft: for each label, a condition: `{"zone": In("a", "b"), "market": Exists()}`; `soft` None: none.
    """

    hard: Mapping[str, LabelCondition]
    soft: Mapping[str, LabelCondition] | None = None
