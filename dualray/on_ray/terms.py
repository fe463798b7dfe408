"""dualray's options in Ray's terms, and what no node of the cluster can ever meet."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
from ray._private.runtime_env.working_dir import upload_working_dir_if_needed
from ray.util import scheduling_strategies as of_ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from dualray import scheduling_strategies as ours
from dualray.exceptions import RuntimeEnvSetupError
from dualray.on_ray.errors import Retried, RetriedCarrier
from dualray.options import ActorOptions, MethodOptions, TaskOptions
from dualray.runtime_env import HOOK
from dualray.shared.model.demands import memory_bytes
from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import UNITS, Resources, from_units
from dualray.shared.model.specs import NODE_ID_LABEL, LeaseShape, NodeInfo, Strategy, StrategyKind, labels_match
from dualray.shared.policies.feasibility import why_infeasible


def bytes_of(memory: float | str | None) -> int | None:
    """`memory=` as Ray takes it."""
    return None if memory is None else memory_bytes("memory", memory)


def retried_of(retry_exceptions: bool | Sequence[type[BaseException]]) -> Retried:
    """`retry_exceptions=` as the wrapper of a call knows it."""
    return retry_exceptions if isinstance(retry_exceptions, bool) else tuple(retry_exceptions)


def retries_for_ray(retried: Retried) -> bool | list[type[Exception]]:
    """`retry_exceptions=` for Ray: the wrapper decides, and says so by the type that it raises."""
    return [RetriedCarrier] if retried else False


def where(options: TaskOptions | ActorOptions) -> dict[str, Any]:
    """Resources, strategy and labels for Ray; what is not said is absent."""
    said: dict[str, Any] = {
        "num_cpus": options.num_cpus,
        "num_gpus": options.num_gpus,
        "memory": bytes_of(options.memory) or None,
        "resources": dict(options.resources) if options.resources else None,
        "label_selector": dict(options.label_selector) if options.label_selector else None,
        "fallback_strategy": [dict(each) for each in options.fallback_strategy] if options.fallback_strategy else None,
        "scheduling_strategy": strategy_of(options.scheduling_strategy),
        "runtime_env": _environment(options.runtime_env) if options.runtime_env else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _environment(said: Mapping[str, Any]) -> dict[str, Any]:
    """A call's runtime environment, with its directories sent to the cluster: Ray does so for those of a job alone. Its
    modules would replace those of the job, and the package may be among these.

    Raises:
        RuntimeEnvSetupError: a directory or module cannot be sent, or there is a setup hook.
    """
    wanted = dict(said)
    if HOOK in wanted:
        raise RuntimeEnvSetupError(
            f"runtime_env: pass {HOOK} to init(), because Ray accepts {HOOK} only from init(), not from a task or "
            "an actor"
        )
    if "py_modules" in wanted:
        of_job = ray.get_runtime_context().runtime_env.get("py_modules") or []
        wanted["py_modules"] = [*wanted["py_modules"], *of_job]
    try:
        for upload in (upload_py_modules_if_needed, upload_working_dir_if_needed):
            wanted = upload(wanted, include_gitignore=True, scratch_dir=tempfile.gettempdir())
    except (OSError, ValueError, ray.exceptions.RayError) as error:
        raise RuntimeEnvSetupError(f"runtime_env: {error}") from error
    return wanted


def strategy_of(chosen: Any) -> Any:
    """A scheduling strategy as Ray's own."""
    match chosen:
        case ours.NodeAffinitySchedulingStrategy() if _is_no_id(chosen.node_id):
            return "DEFAULT"  # no node is called that: a call that must go there is never made
        case ours.NodeAffinitySchedulingStrategy():
            return of_ray.NodeAffinitySchedulingStrategy(
                chosen.node_id, chosen.soft, chosen._spill_on_unavailable, chosen._fail_on_unavailable
            )
        case ours.NodeLabelSchedulingStrategy():
            return of_ray.NodeLabelSchedulingStrategy(_conditions(chosen.hard), soft=_conditions(chosen.soft))
        case ours.PlacementGroupSchedulingStrategy():
            group = chosen.placement_group
            if group is None or getattr(group, "is_empty", False):
                return of_ray.PlacementGroupSchedulingStrategy(None)
            return of_ray.PlacementGroupSchedulingStrategy(
                group_of(group.id, group.bundle_specs),
                chosen.placement_group_bundle_index,
                chosen.placement_group_capture_child_tasks,
            )
    return chosen


def _is_no_id(node_id: str) -> bool:
    """Whether Ray names no node so: its ids are hex."""
    return len(node_id) != 2 * ray.NodeID.size() or bool(set(node_id) - set("0123456789abcdefABCDEF"))


def _conditions(conditions: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: _condition(condition) for key, condition in (conditions or {}).items()}


def _condition(condition: Any) -> Any:
    match condition:
        case ours.In():
            return of_ray.In(*condition.values)
        case ours.NotIn():
            return of_ray.NotIn(*condition.values)
        case ours.Exists():
            return of_ray.Exists()
    return of_ray.DoesNotExist()


def group_of(group_id: bytes, bundles: Sequence[Mapping[str, float]] | None = None) -> Any:
    """Ray's handle to a placement group."""
    cache = None if bundles is None else [dict(bundle) for bundle in bundles]
    return PlacementGroup(ray.PlacementGroupID(group_id), cache)


def state_of_group(group_id: bytes) -> str:
    """CREATED, PENDING, RESCHEDULING or REMOVED."""
    return str(placement_group_table(group_of(group_id)).get("state", "REMOVED"))


def marks_of(options: MethodOptions, returns: int | str | None) -> dict[str, Any]:
    """What Ray's own `method` is told of a method."""
    said = {
        "num_returns": returns,
        "concurrency_group": options.concurrency_group,
        "max_task_retries": options.max_task_retries,
        "retry_exceptions": retries_for_ray(retried_of(options.retry_exceptions)) or None,
        "_generator_backpressure_num_objects": options._generator_backpressure_num_objects,
    }
    return {name: value for name, value in said.items() if value is not None}


# ---- What can never be met -------------------------------------------------------------------------------------------


def nodes_alive() -> list[NodeInfo]:
    """The nodes that are alive, as the rules of the other modes see them."""
    return [
        NodeInfo(
            node=NodeID(node["NodeID"]),
            incarnation=0,
            total=_offered(node["Resources"]),
            store_bytes=round(node["Resources"].get(_STORE, 0)),
            labels=tuple(sorted(label for label in node["Labels"].items() if label[0] != NODE_ID_LABEL)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


_STORE = "object_store_memory"
"""Ray counts the bytes of a node's store among its resources."""


def _offered(amounts: Mapping[str, float]) -> Resources:
    return from_units({name: round(amount * UNITS) for name, amount in amounts.items() if name != _STORE})


def why_never(shape: LeaseShape, *, waits_for_nodes: bool) -> str:
    """In words, why no node can ever take a call; "" when one can, or may join. A node that there is not is always
    refused: Ray ends the program that names one."""
    nodes = nodes_alive()
    why = why_infeasible(shape, nodes) or ""
    return "" if waits_for_nodes and not _names_no_node(shape.strategy, nodes) else why


def _names_no_node(strategy: Strategy, nodes: Sequence[NodeInfo]) -> bool:
    if strategy.kind is StrategyKind.NODE_AFFINITY and not strategy.soft:
        return all(info.node != strategy.node for info in nodes)
    own = [term for term in strategy.labels if term.key == NODE_ID_LABEL]
    return bool(own) and not any(labels_match(tuple(own), info.all_labels()) for info in nodes)
