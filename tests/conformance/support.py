"""What conformance programs lean on; imported by workers too, so it needs nothing but dualray.

Everything that waits has a limit. A `get` that is late says so itself (GetTimeoutError names what it waits for), and a
condition that never holds names itself. In sim mode the limits count virtual time, so they cost nothing.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dualray as ray
from dualray import runtime
from dualray.as_ray import VARIABLE
from dualray.exceptions import ActorUnavailableError
from dualray.shared.units import parse_size_bytes

MODES = ("sim", "real")
WITHIN_S = 20.0
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """What a started cluster has."""

    mode: str
    nodes: int
    cpus: float


def options_for(mode: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Arguments of `init`: two CPUs a node, three nodes in sim mode unless `changes` say otherwise."""
    changes = dict(changes or {})
    options: dict[str, Any] = {"mode": mode, "num_cpus": 2}
    nodes = changes.pop("nodes", 3)
    if mode == "sim":
        options["nodes"] = nodes
    return options | changes


def start_cluster(mode: str, **changes: Any) -> Shape:
    """`init` in one mode; `nodes=` counts in sim mode alone."""
    options = options_for(mode, changes)
    ray.init(**(options if mode != "ray" else _on_ray(dict(options))))
    return Shape(mode=mode, nodes=options.get("nodes", 1), cpus=options["num_cpus"])


_OF_THE_NODE = ("num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "memory")
_ray_clusters: dict[str, Any] = {}
"""The one cluster of Ray's that runs, by what its node has: it is kept, for a cluster takes Ray many seconds."""


def _on_ray(options: dict[str, Any]) -> dict[str, Any]:
    """The options of one who joins a cluster of Ray's whose node has what the options say."""
    from ray.cluster_utils import Cluster

    options.pop("limits", None)  # the core's
    node = {name: options.pop(name) for name in _OF_THE_NODE if name in options}
    if node.get("resources"):
        node["resources"] = {name: math.ceil(amount) for name, amount in node["resources"].items()}  # Ray takes wholes
    if isinstance(node.get("memory"), str):
        node["memory"] = parse_size_bytes(node["memory"])
    if "object_store_memory" in node:
        node["object_store_memory"] = max(node["object_store_memory"], 80 * MIB)  # the least that Ray takes
    key = repr(sorted(node.items()))
    if key not in _ray_clusters:
        end_ray()
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # as `init` does for a local Ray
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ray_clusters[key] = Cluster(
                initialize_head=True,
                head_node_args={"object_store_memory": 512 * MIB, **node, "include_dashboard": False},
            )
    return {"infeasible": "raise", "log_to_driver": False, **options, "address": _ray_clusters[key].address}


def end_ray() -> None:
    """End the cluster of Ray's, if one runs."""
    ray.shutdown()
    for cluster in _ray_clusters.values():
        cluster.shutdown()
    _ray_clusters.clear()


def is_on_ray() -> bool:
    """Whether this process belongs to a cluster of Ray's."""
    current = runtime.current_or_none()
    return current is not None and current.mode == "ray"


def in_words(ours: str, of_ray: str = "") -> str:
    """The pattern that an error's message matches. Ray words some errors itself, and the pattern is `of_ray` there.
    Under the name ray, dualray has Ray's words for many errors: either pattern will do."""
    if os.environ.get(VARIABLE) and of_ray:
        return f"(?s:{ours})|(?s:{of_ray})"
    return of_ray if is_on_ray() else ours


def get(refs: Any) -> Any:
    """`get` that is late after WITHIN_S instead of hanging; on Ray, whose workers start late, after thrice that."""
    return ray.get(refs, timeout=3 * WITHIN_S if is_on_ray() else WITHIN_S)


def get_when_up(call: Callable[[], Any]) -> Any:
    """The result of a call of an actor that may be restarting, which refuses calls without retries."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        try:
            return get(call())
        except ActorUnavailableError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)


def eventually(condition: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    """Wait until a condition holds; else fail with `what` should have become true."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            available = ray.available_resources() if ray.is_initialized() else "no cluster"
            raise AssertionError(f"not within {within_s:g} s: {what}; available are {available}")
        time.sleep(0.01)


def stderr_so_far() -> str:
    """Return all that pytest's fixture capfd has captured of stderr.

    Polls need it: `capfd.readouterr()` loses what another thread writes between its reading and its truncating.
    """
    return os.pread(2, os.fstat(2).st_size, 0).decode()


def node_ids() -> set[str]:
    """The ids of the nodes that are alive."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def resources_are_free(**absent: float) -> bool:
    """Whether all that the cluster has is free, except for what is named: `resources_are_free(CPU=1)`."""
    expected, available = ray.cluster_resources(), ray.available_resources()
    expected.pop("object_store_memory", None)  # of Ray: what its store has left
    available.pop("object_store_memory", None)
    for name, amount in absent.items():
        expected[name] -= amount
    return available == {name: amount for name, amount in expected.items() if amount}


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts what happened in any process, also in ones that die at once: a file to which each adds a line."""

    path: Path

    def add(self, note: object = "") -> int:
        """One more; how many there are with it."""
        with self.path.open("a") as file:
            file.write(f"{note}\n")
        return self.count

    @property
    def notes(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    @property
    def count(self) -> int:
        return len(self.notes)


@dataclass(frozen=True, slots=True)
class Gate:
    """Holds tasks until the test opens it, without a timing assumption: a file that appears."""

    path: Path

    def open(self) -> None:
        self.path.touch()

    def wait(self) -> None:
        """Wait without blocking in dualray: the task keeps its CPU."""
        eventually(self.path.exists, f"the test opens the gate {self.path.name}")


def storage_of(array: np.ndarray[Any, Any]) -> tuple[str, int]:
    """Where an array's bytes are: equal for two arrays if writing one would change the other.

    Two mappings of one file have different addresses and the same storage.
    """
    address = array.ctypes.data
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        place, _, offset, _, inode, *name = line.split(maxsplit=5)
        first, end = (int(part, 16) for part in place.split("-"))
        if first <= address < end and int(inode):
            return f"{inode} {name}", address - first + int(offset, 16)
    return "memory", address


def mark_of_process() -> tuple[str, int]:
    """What tells one worker process, real or virtual, from another."""
    return ray.get_runtime_context().get_worker_id(), os.getpid()
