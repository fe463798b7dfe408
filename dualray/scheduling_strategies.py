"""Scheduling strategies with arguments. The strategies without arguments are the strings "DEFAULT" and "SPREAD"."""

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
    """Run on the node `node_id`, a NodeID from `dualray.nodes()`.

    If the node is gone or can never meet the demand, the task or actor fails. With `soft`, it then runs on another
    node.

    Args:
        _spill_on_unavailable: with `soft`: whether the task also runs on another node while the node is busy. By
            default, the task waits for the busy node.
        _fail_on_unavailable: without `soft`: whether the task fails at once while the node is busy, with
            TaskUnschedulableError, or ActorUnschedulableError for an actor. By default, the task waits for the node.

    Raises:
        ValueError: `_spill_on_unavailable` is given without `soft`, or `_fail_on_unavailable` with `soft`.
    """

    node_id: str
    soft: bool = False
    _spill_on_unavailable: bool = False
    _fail_on_unavailable: bool = False

    def __post_init__(self) -> None:
        if self._spill_on_unavailable and not self.soft:
            raise ValueError("_spill_on_unavailable cannot be set when soft is False; set soft=True")
        if self._fail_on_unavailable and self.soft:
            raise ValueError("_fail_on_unavailable cannot be set when soft is True; set soft=False")


class Group(Protocol):
    """What a strategy needs of a placement group (placement_group.py)."""

    id: Any
    bundle_specs: list[dict[str, float]]

    @property
    def bundle_count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PlacementGroupSchedulingStrategy:
    """Run in a bundle of a placement group, on the bundle's node and with its reserved resources.

    Args:
        placement_group: from `dualray.util.placement_group.placement_group()`. None means no group, even if the
            caller's group captures child tasks.
        placement_group_bundle_index: index of the bundle. Default -1: any bundle with enough free resources.
        placement_group_capture_child_tasks: whether tasks and actors that the task or actor submits run in the group,
            too, unless they have their own scheduling strategy. Default: the caller's value, and False in a driver.
    """

    placement_group: Group | None
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


class WholeGroupSchedulingStrategy(PlacementGroupSchedulingStrategy):
    """Run in a bundle of a placement group once all of its bundles are reserved: `PlacementGroup.ready()`."""

    __slots__ = ()


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
    name = type(condition).__name__
    if not values:
        raise ValueError(
            f"The variadic parameter of the {name} operator must be a non-empty tuple, such as {name}('a', 'b')"
        )
    for position, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(
                f"Type of value in position {position} for the {name} operator must be str, such as {name}('a', 'b'), "
                f"not {value!r}"
            )
    return values


@dataclass(frozen=True, slots=True)
class NodeLabelSchedulingStrategy:
    """Run on a node whose labels meet all conditions of `hard`, and prefer free nodes that also meet `soft`.

    Args:
        hard, soft: a condition for each label: `{"zone": In("a", "b"), "market": Exists()}`. One of them can be None.

    Raises:
        ValueError: `hard` or `soft` is not a dict, both are empty, the condition of a label is not In, NotIn, Exists
            or DoesNotExist, or its key is not a str.
    """

    hard: Mapping[str, LabelCondition] | None
    soft: Mapping[str, LabelCondition] | None = None

    def __post_init__(self) -> None:
        for name, conditions in (("hard", self.hard), ("soft", self.soft)):
            _check_conditions(name, {} if conditions is None else conditions)
        if not (self.hard or self.soft):
            raise ValueError("The `hard` and `soft` parameter of NodeLabelSchedulingStrategy cannot both be empty.")


def _check_conditions(name: str, conditions: Any) -> None:
    if not isinstance(conditions, Mapping):
        raise ValueError(
            f"The {name} parameter must be a map of labels to conditions, such as {{'zone': In('a')}}, not "
            f"{conditions!r}"
        )
    for key, condition in conditions.items():
        if not isinstance(key, str):
            raise ValueError(f"The map key of the {name} parameter must be of type str, such as 'zone', not {key!r}")
        if not isinstance(condition, LabelCondition):
            raise ValueError(
                f"The map value for key {key} of the {name} parameter must be one of the `In`, `NotIn`, `Exists` or "
                f"`DoesNotExist` operators, such as {{'zone': In('a')}}, not {condition!r}"
            )
