"""Translates options for the core: into resource demands, placement strategies, and conditions on labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dualray.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
    WholeGroupSchedulingStrategy,
)
from dualray.shared.labels import label_term, parse_selector
from dualray.shared.model.demands import parse_named, parse_resources
from dualray.shared.model.ids import Address, NodeID, PlacementGroupID
from dualray.shared.model.resources import CPU, NOTHING, UNITS, Resources, add, demand_in_group
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    NODE_ID_LABEL,
    WHOLE_GROUP,
    GroupStrategy,
    LabelOperator,
    LabelTerm,
    NodeState,
    PlacementGroupSpec,
    Strategy,
    StrategyKind,
    labels_match,
)


class _Selecting(Protocol):
    """Options of a task or an actor."""

    @property
    def label_selector(self) -> Mapping[str, str] | None: ...

    @property
    def fallback_strategy(self) -> Sequence[Mapping[str, Any]] | None: ...


_ONE_CPU = Resources(((CPU, UNITS),))


def task_demand(
    num_cpus: float | None, num_gpus: float | None, memory: float | str | None, resources: Mapping[str, float] | None
) -> Resources:
    """What a task holds while it runs: 1 CPU unless it says."""
    return parse_resources(
        num_cpus=1 if num_cpus is None else num_cpus, num_gpus=num_gpus, memory=memory, resources=resources
    )


def actor_demands(
    num_cpus: float | None, num_gpus: float | None, memory: float | str | None, resources: Mapping[str, float] | None
) -> tuple[Resources, Resources]:
    """What a node must offer to place an actor, and what the actor holds."""
    if num_cpus is None and not num_gpus and not resources:
        if not memory:
            return _ONE_CPU, NOTHING
        held = parse_resources(num_cpus=None, num_gpus=None, memory=memory, resources=None)
        return add([_ONE_CPU, held]), held
    held = task_demand(num_cpus, num_gpus, memory, resources)
    return held, held


class WrongStrategyError(TypeError, ValueError):
    """A scheduling strategy is neither a str nor one of the classes. In Ray the error is a TypeError."""


def strategy_of(
    chosen: Any, label_selector: Mapping[str, str] | None, what: str, captured: Strategy | None = None
) -> Strategy:
    """What a user wrote as scheduling_strategy and label_selector, as the core understands it. `captured` is the
    strategy of the task that makes the call, when its children go where it is unless they say."""
    labels = parse_selector(f"{what}: label_selector", label_selector)
    group: Any = getattr(chosen, "placement_group", None)
    match chosen:
        case None if captured is not None and not labels:
            return replace(captured, bundle=-1)
        case None | "DEFAULT":
            return Strategy(kind=StrategyKind.NODE_LABELS, labels=labels) if labels else DEFAULT_STRATEGY
        case "SPREAD":
            return Strategy(kind=StrategyKind.SPREAD, labels=labels)
        case NodeAffinitySchedulingStrategy(node_id=node_id, _spill_on_unavailable=True):
            near = label_term(f"{what}: node_id", NODE_ID_LABEL, LabelOperator.IN, (node_id,))
            return Strategy(kind=StrategyKind.NODE_LABELS, labels=labels, preferred=(near,))
        case NodeAffinitySchedulingStrategy(node_id=node_id, soft=soft):
            return Strategy(
                kind=StrategyKind.NODE_AFFINITY,
                node=NodeID(node_id),
                soft=soft,
                labels=labels,
                fails_if_busy=chosen._fail_on_unavailable,
            )
        case NodeLabelSchedulingStrategy(hard=hard, soft=soft):
            return Strategy(
                kind=StrategyKind.NODE_LABELS,
                labels=(*labels, *_conditions(f"{what}: hard", hard or {})),
                preferred=_conditions(f"{what}: soft", soft or {}),
            )
        case PlacementGroupSchedulingStrategy() if group == "default":  # as in Ray: as if none was given
            return strategy_of(None, label_selector, what, captured)
        case PlacementGroupSchedulingStrategy():
            if labels:
                raise ValueError(
                    f"{what}: label_selector= cannot be used with a placement group; give bundle_label_selector= to "
                    f"placement_group()"
                )
            return _in_group(chosen, what, captured)
    raise (ValueError if isinstance(chosen, str) else WrongStrategyError)(
        f"{what}: scheduling_strategy={chosen!r} must be 'DEFAULT', 'SPREAD' or a NodeAffinity-, NodeLabel- or "
        f"PlacementGroupSchedulingStrategy"
    )


def _conditions(what: str, conditions: Mapping[str, Any]) -> tuple[LabelTerm, ...]:
    terms = []
    for key, condition in sorted(conditions.items()):
        match condition:
            case In(values=values):
                terms.append(label_term(what, key, LabelOperator.IN, values))
            case NotIn(values=values):
                terms.append(label_term(what, key, LabelOperator.NOT_IN, values))
            case Exists():
                terms.append(label_term(what, key, LabelOperator.EXISTS))
            case DoesNotExist():
                terms.append(label_term(what, key, LabelOperator.DOES_NOT_EXIST))
    return tuple(terms)


def _in_group(chosen: PlacementGroupSchedulingStrategy, what: str, captured: Strategy | None) -> Strategy:
    group, index = chosen.placement_group, chosen.placement_group_bundle_index
    if group is None or getattr(group, "is_empty", False):
        return DEFAULT_STRATEGY
    if not hasattr(group, "bundle_specs"):
        raise TypeError(f"{what}: placement_group={group!r} must be a PlacementGroup from placement_group(), or None")
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"{what}: placement_group_bundle_index={index!r} must be an int")
    if not -1 <= index < group.bundle_count:
        raise ValueError(
            f"{what}: placement_group_bundle_index={index} must be -1, for any bundle, or below the number of bundles, "
            f"{group.bundle_count}: bundle index {index} is invalid"
        )
    captures = chosen.placement_group_capture_child_tasks
    if captures is None:
        captures = captured is not None
    return Strategy(
        kind=StrategyKind.PLACEMENT_GROUP,
        group=PlacementGroupID(group.id),
        bundle=WHOLE_GROUP if isinstance(chosen, WholeGroupSchedulingStrategy) else index,
        captures=bool(captures),
    )


def selector_for(
    options: _Selecting, demand: Resources, nodes: Callable[[], Sequence[NodeState]]
) -> Mapping[str, str] | None:
    """The label selector of a call: the first that is met by a node which could ever take the call, else the first."""
    if not options.fallback_strategy:
        return options.label_selector
    alive = [node for node in nodes() if node.alive]
    for selector in selectors_of(options):
        terms = parse_selector("label_selector", selector)
        for node in alive:
            if labels_match(terms, {NODE_ID_LABEL: node.node, **dict(node.labels)}) and all(
                node.total.get(name) >= amount for name, amount in demand.units
            ):
                return selector
    return options.label_selector


def selectors_of(options: _Selecting) -> list[Mapping[str, str] | None]:
    """The label selectors of a call, in the order in which they are tried."""
    return [options.label_selector, *(fallback["label_selector"] for fallback in options.fallback_strategy or ())]


def placed(
    chosen: Any,
    label_selector: Mapping[str, str] | None,
    demand: Resources,
    held: Resources,
    what: str,
    captured: Strategy | None,
    *,
    qualified: str | None = None,
) -> tuple[Resources, Resources, Strategy]:
    """What a call demands of a node, what it holds, and its strategy: in a placement group, of the bundle's resources.

    Raises:
        ValueError: a demand that no bundle, or not the one that was named, has room for.
    """
    strategy = strategy_of(chosen, label_selector, what, captured)
    if strategy.group is None:
        return demand, held, strategy
    if isinstance(chosen, PlacementGroupSchedulingStrategy):
        group = chosen.placement_group
        assert group is not None
        bundles = group.bundle_specs if strategy.bundle < 0 else [group.bundle_specs[strategy.bundle]]
        wanted = demand.as_floats()
        if not any(all(bundle.get(name, 0) >= amount for name, amount in wanted.items()) for bundle in bundles):
            which = "every bundle" if strategy.bundle < 0 else f"bundle {strategy.bundle}"
            request = {name: int(amount) if amount == int(amount) else amount for name, amount in wanted.items()}
            raise ValueError(
                f"{what} demands {demand}, but {which} of {group!r} offers less. (Cannot schedule {qualified or what} "
                f"with the placement group because the resource request {request} cannot fit into any bundles for "
                f"the placement group, {group.bundle_specs}.)"
            )
    return (
        demand_in_group(demand, strategy.group, strategy.bundle),
        demand_in_group(held, strategy.group, strategy.bundle),
        strategy,
    )


def group_spec(
    bundles: Sequence[Mapping[str, float]],
    strategy: str,
    name: str,
    is_detached: bool,
    selectors: Sequence[Mapping[str, str]],
    *,
    owner: Address,
) -> PlacementGroupSpec:
    """A placement group that a user asks for, without an id."""
    return PlacementGroupSpec(
        group_id=PlacementGroupID(b""),
        bundles=tuple([parse_named(bundle) for bundle in bundles]),
        strategy=GroupStrategy(strategy),
        owner=owner,
        name=name,
        is_detached=is_detached,
        selectors=tuple([parse_selector(f"bundle_label_selector[{i}]", each) for i, each in enumerate(selectors)]),
    )
