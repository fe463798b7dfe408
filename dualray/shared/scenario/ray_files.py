"""Clusters that were written down for Ray, read as groups of nodes: a `RayCluster` of KubeRay, or a cluster YAML of
`ray up`. What has no meaning here is named, never guessed.

The amounts of a KubeRay group are those that Ray's own autoscaler takes: of the group's `resources`, else of
`rayStartParams`, else the limits of its first container, else the requests, CPUs and GPUs rounded up.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dualray.shared.scenario.cluster import NODES_MAX

Tree = Mapping[str, Any]

_SECOND_NS: Final = 1_000_000_000
_SCALES: Final = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", 1)
}
_QUANTITY: Final = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]{0,2})\s*")
_CPU, _GPU, _MEMORY = "CPU", "GPU", "memory"

_USED_OF_CLUSTER: Final = {"headGroupSpec", "workerGroupSpecs", "autoscalerOptions"}
_USED_OF_GROUP: Final = {
    *("groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "resources", "labels"),
    *("suspend", "template"),
}
_USED_OF_START: Final = {"num-cpus", "num-gpus", "memory", "object-store-memory", "resources"}
_WITHIN: Final = {"RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}
"""Kinds of KubeRay that have a RayCluster within, and where."""
_USED_OF_FILE: Final = {
    *("cluster_name", "idle_timeout_minutes", "upscaling_speed", "available_node_types", "head_node_type"),
    "max_workers",
}
_USED_OF_TYPE: Final = {"resources", "min_workers", "max_workers", "labels"}


@dataclass(slots=True)
class FromRay:
    """What a file says.

    Attributes:
        plain: the same as the file of a cluster that grows would say it: `name`, `cluster` and `config`.
        ignored: what of it has no meaning here, by its path.
    """

    plain: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def ignore(self, path: str, tree: Tree, used: set[str]) -> None:
        """Name the keys of a mapping that are not used."""
        self.ignored += [f"{path}{key}" for key in tree if key not in used]


class RayFileError(ValueError):
    """A file for Ray that cannot be read as groups; `path` is where in it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def is_of_ray(tree: Tree) -> bool:
    """Whether a document is one of Ray's two."""
    return (
        ("kind" in tree and "apiVersion" in tree) or tree.get("kind") == "RayCluster" or "available_node_types" in tree
    )


def read_ray_file(tree: Tree) -> FromRay:
    """Read one of Ray's documents.

    Raises:
        RayFileError: something is missing or wrong; it says where, and what to write.
    """
    kind = str(tree.get("kind", ""))
    if not kind:
        return _of_ray_up(tree)
    if kind in _WITHIN:
        key = _WITHIN[kind]
        path = f"spec.{key}."
        inner = _mapping(_mapping(tree, "", "spec"), "spec.", key)
        try:
            found = _of_kuberay({"metadata": tree.get("metadata"), "spec": inner})
        except RayFileError as error:
            raise RayFileError(path + error.path.removeprefix("spec."), error.message) from None
        found.ignored = [path + each.removeprefix("spec.") for each in found.ignored]
        return found
    if kind != "RayCluster":
        raise RayFileError("kind", f"{kind!r} has no groups of nodes: give a RayCluster, a RayJob or a RayService")
    return _of_kuberay(tree)


# ---- KubeRay -----------------------------------------------------------------------------------------------------


def _of_kuberay(tree: Tree) -> FromRay:
    found = FromRay()
    spec = _mapping(tree, "", "spec")
    found.ignore("spec.", spec, _USED_OF_CLUSTER)
    head = _mapping(spec, "spec.", "headGroupSpec")
    groups = spec.get("workerGroupSpecs") or []
    if not isinstance(groups, list) or not groups:
        raise RayFileError("spec.workerGroupSpecs", "must be a list with at least one group")
    scaling = {}
    for index, group in enumerate(groups):
        path = f"spec.workerGroupSpecs[{index}]."
        if not isinstance(group, Mapping) or "groupName" not in group:
            raise RayFileError(path.rstrip("."), "needs a groupName")
        found.ignore(path, group, _USED_OF_GROUP)
        hosts = _whole(group, path, "numOfHosts", 1)
        least = _whole(group, path, "minReplicas", 0) * hosts
        most = _whole(group, path, "maxReplicas", NODES_MAX) * hosts
        if least > most:
            raise RayFileError(f"{path}maxReplicas", f"{most} must not be less than minReplicas: {least}")
        most = min(most, NODES_MAX)  # who says nothing, or 2147483647 as KubeRay writes then, has no limit
        if group.get("suspend") is True:
            least = most = 0
        scaling[str(group["groupName"])] = {"min": least, "max": most} | _node_of(found, group, path)
    head_node = _node_of(found, head, "spec.headGroupSpec.")
    found.ignore("spec.headGroupSpec.", head, _USED_OF_GROUP)
    found.plain = {
        "name": str((tree.get("metadata") or {}).get("name", "")),
        "cluster": {"nodes": [{"count": 1} | head_node], "groups": scaling},
        "config": _options_of(found, spec.get("autoscalerOptions") or {}),
    }
    return found


def _options_of(found: FromRay, options: Tree) -> dict[str, Any]:
    found.ignore("spec.autoscalerOptions.", options, {"idleTimeoutSeconds", "upscalingMode"})
    seconds = _number(options, "spec.autoscalerOptions.", "idleTimeoutSeconds", 60)
    is_slow = options.get("upscalingMode") == "Conservative"
    return {"idle_timeout_ns": round(seconds * _SECOND_NS), "upscaling_speed_percent": 100 if is_slow else 0}


def _node_of(found: FromRay, group: Tree, path: str) -> dict[str, Any]:
    """What one node of a group offers."""
    start = group.get("rayStartParams") or {}
    found.ignore(f"{path}rayStartParams.", start, _USED_OF_START)
    containers = (((group.get("template") or {}).get("spec") or {}).get("containers")) or [{}]
    asked = containers[0].get("resources") or {}
    own = dict(group.get("resources") or {})
    limits, requests = asked.get("limits") or {}, asked.get("requests") or {}
    cpus = _first(own.pop(_CPU, None), start.get("num-cpus"), limits.get("cpu"), requests.get("cpu"))
    if cpus is None:
        raise RayFileError(
            f"{path}template", "the number of CPUs of a node is missing; give num-cpus in rayStartParams, or limits"
        )
    gpu_keys = [key for key in (*limits, *requests) if str(key).endswith("gpu")]
    of_container = next((limits.get(key, requests.get(key)) for key in gpu_keys), None)
    gpus = _first(own.pop(_GPU, None), start.get("num-gpus"), of_container)
    memory = _first(own.pop(_MEMORY, None), start.get("memory"), limits.get("memory"), requests.get("memory"))
    node: dict[str, Any] = {"cpus": math.ceil(_quantity(cpus, f"{path}cpu"))}
    if gpus is not None:
        node["gpus"] = math.ceil(_quantity(gpus, f"{path}gpu"))
    if memory is not None:
        node["memory"] = f"{round(_quantity(memory, f'{path}memory'))}B"
    if "object-store-memory" in start:
        node["object_store"] = f"{round(_quantity(start['object-store-memory'], f'{path}object-store-memory'))}B"
    custom = _custom(start.get("resources"), f"{path}rayStartParams.resources")
    custom |= {name: _quantity(amount, f"{path}resources.{name}") for name, amount in own.items()}
    if custom:
        node["resources"] = custom
    if group.get("labels"):
        node["labels"] = {str(key): str(value) for key, value in group["labels"].items()}
    return node


def _custom(text: Any, path: str) -> dict[str, float]:
    """Custom resources as `rayStartParams` has them: JSON, often in quotes, with quotes escaped."""
    if not text:
        return {}
    cleaned = str(text).strip().strip("\"'").replace("\\", "")
    try:
        found = json.loads(cleaned)
    except json.JSONDecodeError:
        raise RayFileError(path, f'{text!r} must be JSON, such as \'"{{\\"disk\\": 2}}"\'') from None
    return {str(name): float(amount) for name, amount in found.items()}


# ---- ray up ------------------------------------------------------------------------------------------------------


def _of_ray_up(tree: Tree) -> FromRay:
    found = FromRay()
    found.ignore("", tree, _USED_OF_FILE)
    types = _mapping(tree, "", "available_node_types")
    head_type = str(tree.get("head_node_type"))
    if head_type not in types:
        raise RayFileError("head_node_type", f"{head_type!r} must be one of available_node_types: {', '.join(types)}")
    scaling: dict[str, Any] = {}
    of_all = _whole(tree, "", "max_workers", NODES_MAX)
    for name, kind in types.items():
        path = f"available_node_types.{name}."
        found.ignore(path, kind, _USED_OF_TYPE)
        most = min(_whole(kind, path, "max_workers", 0), of_all)
        if most:
            least = _whole(kind, path, "min_workers", 0)
            if least > most:
                raise RayFileError(f"{path}max_workers", f"{most} must not be less than min_workers: {least}")
            scaling[str(name)] = {"min": least, "max": most} | _node_of_type(kind, path)
    if sum(group["max"] for group in scaling.values()) > of_all:  # the limit of each, and not of all together
        found.ignored.append("max_workers")
    if not scaling:
        raise RayFileError("available_node_types", "at least one type must have max_workers above 0, to launch nodes")
    minutes = _number(tree, "", "idle_timeout_minutes", 5)
    speed = _number(tree, "", "upscaling_speed", 1)
    found.plain = {
        "name": str(tree.get("cluster_name", "")),
        "cluster": {
            "nodes": [{"count": 1} | _node_of_type(types[head_type], f"available_node_types.{head_type}.")],
            "groups": scaling,
        },
        "config": {"idle_timeout_ns": round(minutes * 60 * _SECOND_NS), "upscaling_speed_percent": round(speed * 100)},
    }
    return found


def _node_of_type(kind: Tree, path: str) -> dict[str, Any]:
    resources = dict(kind.get("resources") or {})
    if _CPU not in resources:
        raise RayFileError(
            f"{path}resources",
            "the number of CPUs of a node is missing, and dualray does not ask a cloud; write {CPU: 4}",
        )
    node: dict[str, Any] = {"cpus": _quantity(resources.pop(_CPU), f"{path}resources.CPU")}
    if _GPU in resources:
        node["gpus"] = _quantity(resources.pop(_GPU), f"{path}resources.GPU")
    if _MEMORY in resources:
        node["memory"] = f"{round(_quantity(resources.pop(_MEMORY), f'{path}resources.memory'))}B"
    if "object_store_memory" in resources:
        size = _quantity(resources.pop("object_store_memory"), f"{path}resources.object_store_memory")
        node["object_store"] = f"{round(size)}B"
    if resources:
        node["resources"] = {name: _quantity(amount, f"{path}resources.{name}") for name, amount in resources.items()}
    if kind.get("labels"):
        node["labels"] = {str(key): str(value) for key, value in kind["labels"].items()}
    return node


# ---- Values ------------------------------------------------------------------------------------------------------


def _mapping(tree: Tree, path: str, key: str) -> Tree:
    value = tree.get(key)
    if not isinstance(value, Mapping) or not value:
        raise RayFileError(f"{path}{key}", "must be a mapping")
    return value


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _quantity(value: Any, path: str) -> float:
    """An amount as Kubernetes writes them: 2, "500m", "4Gi"."""
    matched = _QUANTITY.fullmatch(str(value))
    if isinstance(value, bool) or matched is None or matched[2] not in _SCALES:
        raise RayFileError(path, f"{value!r} must be an amount, such as 2, 500m or 4Gi")
    return float(matched[1]) * _SCALES[matched[2]]


def _number(tree: Tree, path: str, key: str, default: float) -> float:
    value = tree.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise RayFileError(f"{path}{key}", f"{value!r} must be a number of 0 or more")
    return value


def _whole(tree: Tree, path: str, key: str, default: int | None) -> int:
    value = tree.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RayFileError(f"{path}{key}", f"{value!r} must be a whole number of 0 or more")
    return value
