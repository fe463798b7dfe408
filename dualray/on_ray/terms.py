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
from dualray.shared.model.specs import NODE_ID_LABEL, LabelTerm, labels_match
from dualray.shared.units import parse_size_bytes


def bytes_of(memory: float | str | None) -> int | None:
    """`memory=` as Ray takes it."""
    if memory is None:
        return None
    return parse_size_bytes(memory, "memory") if isinstance(memory, str) else int(memory)


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
        RuntimeEnvSetupError: a directory or module cannot be sent.
    """
    wanted = dict(said)
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
        case ours.NodeAffinitySchedulingStrategy():
            return of_ray.NodeAffinitySchedulingStrategy(
                chosen.node_id, chosen.soft, chosen._spill_on_unavailable, chosen._fail_on_unavailable
            )
        case ours.NodeLabelSchedulingStrategy():
            return of_ray.NodeLabelSchedulingStrategy(_conditions(chosen.hard), soft=_conditions(chosen.soft or {}))
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


def _conditions(conditions: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _condition(condition) for key, condition in conditions.items()}


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


def demand_of(options: TaskOptions | ActorOptions) -> dict[str, float]:
    """What one node must have, by name: of a call that goes to no placement group, whose bundles Ray has checked."""
    one_cpu = isinstance(options, TaskOptions) or not (options.num_gpus or options.resources)
    named = {
        "CPU": (1 if one_cpu else 0) if options.num_cpus is None else options.num_cpus,
        "GPU": options.num_gpus or 0,
        "memory": bytes_of(options.memory) or 0,
        **(options.resources or {}),
    }
    return {name: amount for name, amount in named.items() if amount}


def labels_problem(terms: tuple[LabelTerm, ...], node: str | None, nodes: Sequence[Mapping[str, Any]]) -> str:
    """In words, why no node that is alive has the labels, or is the node, that are demanded; "" when one does. To
    name a node that there is not would end this process: Ray gives up on such an id."""
    alive = [each for each in nodes if each["Alive"]]
    if node is not None and all(each["NodeID"] != node for each in alive):
        return f"there is no node {node!r} that is alive ({NODE_ID_LABEL})"
    if not alive or not terms or any(labels_match(terms, each["Labels"]) for each in alive):
        return ""
    has = ", ".join(f"{key}={value}" for key, value in sorted(alive[0]["Labels"].items()) if key != NODE_ID_LABEL)
    best = min(alive, key=lambda each: sum(not labels_match((term,), each["Labels"]) for term in terms))
    unmet = " and ".join(str(term) for term in terms if not labels_match((term,), best["Labels"]))
    return f"no node has the labels: one has {has or 'none'}, and {unmet} does not hold there"


def shortfall(demand: Mapping[str, float], nodes: Sequence[Mapping[str, Any]]) -> str:
    """In words, why no node that is alive could ever take a demand; "" when one could, or none is known."""
    totals = [node["Resources"] for node in nodes if node["Alive"]]
    if not totals or any(all(total.get(name, 0) >= amount for name, amount in demand.items()) for total in totals):
        return ""
    lacking = {name: max(total.get(name, 0) for total in totals) for name in demand}
    most = ", ".join(f"{amount:g} {name}" for name, amount in lacking.items())
    wanted = ", ".join(f"{amount:g} {name}" for name, amount in demand.items())
    return f"it demands {wanted} of one node, and the most that a node has is {most}"
