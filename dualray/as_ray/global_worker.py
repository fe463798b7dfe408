"""What Ray's own public tests and other suites read of `ray._private.worker.global_worker`, as dualray knows it.

It is one object for a process, and reads all it answers from the current runtime when it is asked.
"""

from __future__ import annotations

from typing import Any

from dualray import runtime
from dualray.as_ray import internal_kv
from dualray.hex_id import HexId
from dualray.object_ref import ObjectRef
from dualray.runtime_context import RuntimeContext
from dualray.user_verbs import CallContext

__all__ = ["GlobalWorker", "global_worker"]

_TIMEOUT_NS = 5_000_000_000
_ENDED = ("FINISHED", "FAILED")
_ELSEWHERE = ("UNKNOWN", "STORED")
"""States of objects of which other processes know more: where the value lies, or whether there is one."""


def rows_of(table: str) -> list[dict[str, Any]]:
    """Return the rows of a state table, from the processes that answered."""
    return runtime.current("ray._private.worker").verbs.state_rows(table, _TIMEOUT_NS)[0]


def _own_rows(table: str) -> list[dict[str, Any]]:
    """Return the rows that this process has of a state table, without asking another."""
    verbs: Any = runtime.current("ray._private.worker").verbs
    core = verbs.core
    with core.host.lock:
        rows: list[dict[str, Any]] = core.machine.rows(table)
    return rows


def _here() -> CallContext:
    return runtime.current("ray._private.worker").verbs.context()


def store_name(node_id: str) -> str:
    """The name of a node's object store in `nodes()` and in the node's workers. No socket has this path."""
    return f"{node_id}/object_store"


def manager_name(node_id: str) -> str:
    """The same for its node manager."""
    return f"{node_id}/node_manager"


class Node:
    """The node on which this process runs: `global_worker.node`."""

    @property
    def unique_id(self) -> HexId:
        """The id of this node."""
        return HexId(_here().node_id)

    node_id = unique_id

    @property
    def node_ip_address(self) -> str:
        """The IP address at which other nodes reach this node."""
        return runtime.current("ray._private.worker").verbs.ip_address

    @property
    def address_info(self) -> dict[str, str]:
        """The same as the field `address_info` of what `ray.init` returns."""
        addresses = runtime.current("ray._private.worker").addresses()
        return {
            "node_ip_address": addresses["node_ip_address"],
            "object_store_address": addresses["object_store_address"],
            "raylet_socket_name": addresses["local_scheduler_address"],
            "gcs_address": addresses["control_plane_address"],
            "address": addresses["control_plane_address"],
            "session_dir": addresses["session_dir"],
            "node_id": _here().node_id,
        }

    @property
    def gcs_address(self) -> str:
        """The address of the control plane."""
        return self.address_info["gcs_address"]

    @property
    def plasma_store_socket_name(self) -> str:
        """A name that only the object store of this node has."""
        return store_name(self.unique_id)

    @property
    def raylet_socket_name(self) -> str:
        """A name that only the node manager of this node has."""
        return manager_name(self.unique_id)

    _raylet_socket_name = raylet_socket_name

    def get_session_dir_path(self) -> str:
        """The directory of the session; in a simulation, a path of its own where nothing is."""
        return self.address_info["session_dir"]

    def get_temp_dir_path(self) -> str:
        """The directory that contains the directories of sessions."""
        return RuntimeContext(runtime.current("ray._private.worker")).get_temp_dir()


class CoreWorker:
    """The objects and tasks that this process owns: `global_worker.core_worker`."""

    def get_worker_id(self) -> HexId:
        """The id of this worker."""
        return HexId(_here().worker_id)

    def get_current_node_id(self) -> HexId:
        """The node on which this process runs."""
        return HexId(_here().node_id)

    def get_current_job_id(self) -> HexId:
        """The job that this process works for."""
        return HexId(_here().job_id)

    def get_current_task_id(self) -> HexId:
        """The task that calls; nil in a driver."""
        return HexId(_here().task_id or "")

    def get_actor_id(self) -> HexId:
        """The actor in this process; nil if there is none."""
        return HexId(_here().actor_id or "")

    def get_placement_group_id(self) -> HexId:
        """The placement group in which the caller runs; nil if there is none."""
        return HexId(_here().placement_group_id or "")

    def get_current_runtime_env(self) -> str:
        """The runtime environment, as JSON."""
        return RuntimeContext(runtime.current("ray._private.worker")).get_runtime_env_string()

    def object_exists(self, object_ref: ObjectRef[Any], memory_store_only: bool = False) -> bool:
        """Whether the value exists now. `memory_store_only`: whether its owner has it, as for small values."""
        object_id = object_ref.hex()
        for row in _own_rows("objects"):
            if row["object_id"] == object_id and row["state"] not in _ELSEWHERE:
                return bool(row["state"] == "INLINE")
        for row in rows_of("objects"):
            if row["object_id"] == object_id:
                is_inline = row["state"] == "INLINE"
                return is_inline or (not memory_store_only and bool(row["node_ids"]))
        return False

    def get_all_reference_counts(self) -> dict[bytes, dict[str, int]]:
        """Count the references to objects that this process owns, here and in tasks that it has submitted."""
        own = _here().worker_id
        counted = {
            row["object_id"].encode(): {"local": row["local_refs"], "submitted": row["used_by_tasks"]}
            for row in rows_of("objects")
            if row["owner"] == own
        }
        return {key: counts for key, counts in counted.items() if any(counts.values())}

    def get_memory_store_size(self) -> int:
        """Return the number of small values that this process keeps."""
        own = _here().worker_id
        return sum(row["owner"] == own and row["state"] == "INLINE" for row in rows_of("objects"))

    def get_pending_children_task_ids(self, parent_task_id: Any) -> list[HexId]:
        """Return the tasks that a task of this process has submitted and that have not ended.

        It looks at what this process knows now: while another process is asked, the tasks could end.
        """
        parent = parent_task_id.hex()
        return [
            HexId(row["task_id"])
            for row in _own_rows("tasks")
            if row["parent_task_id"] == parent and row["state"] not in _ENDED
        ]


class GcsClient:
    """The control plane's keys, values and address: `global_worker.gcs_client`."""

    def __init__(self, address: str | None = None, cluster_id: str | None = None) -> None:
        """The client of the program's own cluster: there is no other that it could join."""

    @property
    def address(self) -> str:
        """The address of the control plane."""
        return runtime.current("ray._private.worker").addresses()["control_plane_address"]

    def internal_kv_get(self, key: bytes, namespace: bytes | None = None, timeout: float | None = None) -> bytes | None:
        """Return a key's value; None if it has none."""
        return internal_kv._internal_kv_get(key, namespace=namespace)

    def internal_kv_put(
        self,
        key: bytes,
        value: bytes,
        overwrite: bool = True,
        namespace: bytes | None = None,
        timeout: float | None = None,
    ) -> int:
        """Store a value. Return the number of new keys."""
        return int(not internal_kv._internal_kv_put(key, value, overwrite, namespace=namespace))

    def internal_kv_exists(self, key: bytes, namespace: bytes | None = None, timeout: float | None = None) -> bool:
        """Whether a key has a value."""
        return internal_kv._internal_kv_exists(key, namespace=namespace)

    def internal_kv_keys(
        self, prefix: bytes, namespace: bytes | None = None, timeout: float | None = None
    ) -> list[bytes]:
        """Return the keys with a prefix."""
        return internal_kv._internal_kv_list(prefix, namespace=namespace)

    def internal_kv_del(
        self, key: bytes, del_by_prefix: bool = False, namespace: bytes | None = None, timeout: float | None = None
    ) -> int:
        """Delete a value, or all with a prefix. Return how many were deleted."""
        return internal_kv._internal_kv_del(key, del_by_prefix=del_by_prefix, namespace=namespace)


class GlobalWorker:
    """The state of this process: `global_worker`."""

    def __init__(self) -> None:
        self._node, self._core_worker, self._gcs_client = Node(), CoreWorker(), GcsClient()

    @property
    def connected(self) -> bool:
        """Whether this process is connected: `ray.init` was called, or it is a worker."""
        return runtime.current_or_none() is not None

    def check_connected(self) -> None:
        """Raise NotInitializedError where there is no cluster."""
        runtime.current("ray._private.worker")

    @property
    def mode(self) -> int | None:
        """SCRIPT_MODE (0) in a driver, WORKER_MODE (1) in a worker; None without a cluster."""
        here = runtime.current_or_none()
        return None if here is None else int(here.verbs.is_in_task)

    @property
    def node(self) -> Node | None:
        """The node on which this process runs; None without a cluster."""
        return self._node if self.connected else None

    @property
    def core_worker(self) -> CoreWorker:
        """The objects and tasks that this process owns.

        Raises:
            AttributeError: there is no cluster.
        """
        self._check("core_worker")
        return self._core_worker

    @property
    def gcs_client(self) -> GcsClient:
        """The control plane.

        Raises:
            AttributeError: there is no cluster.
        """
        self._check("gcs_client")
        return self._gcs_client

    def _check(self, name: str) -> None:
        if not self.connected:
            raise AttributeError(f"global_worker has no {name} before ray.init(): call ray.init() first")

    @property
    def current_job_id(self) -> HexId:
        """The job; nil without a cluster."""
        return HexId(_here().job_id if self.connected else "")

    @property
    def current_task_id(self) -> HexId:
        """The task that calls; nil in a driver."""
        return self._core_worker.get_current_task_id()

    @property
    def current_node_id(self) -> HexId:
        """The node on which this process runs."""
        return self._node.unique_id

    @property
    def actor_id(self) -> HexId:
        """The actor in this process; nil if there is none."""
        return self._core_worker.get_actor_id()

    @property
    def placement_group_id(self) -> HexId:
        """The placement group in which the caller runs; nil if there is none."""
        return self._core_worker.get_placement_group_id()

    @property
    def worker_id(self) -> bytes:
        """The id of this process, as bytes."""
        return self._core_worker.get_worker_id().binary()

    @property
    def node_ip_address(self) -> str:
        """The IP address at which other nodes reach this node."""
        return self._node.node_ip_address

    @property
    def namespace(self) -> str:
        """The namespace of names of actors."""
        return runtime.current("ray._private.worker").verbs.namespace

    @property
    def runtime_env(self) -> str:
        """The runtime environment, as JSON."""
        return self._core_worker.get_current_runtime_env()

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether tasks and actors that are created here go to this placement group."""
        return _here().captures_children

    @property
    def task_depth(self) -> int:
        """The number of tasks from the driver to this one, itself included; 0 in the driver."""
        task = _here().task_id
        if task is None:
            return 0
        parents = {row["task_id"]: row.get("parent_task_id") for row in rows_of("tasks")}
        depth = 1
        while (parent := parents.get(task)) is not None and parent in parents:
            task, depth = parent, depth + 1
        return depth


global_worker = GlobalWorker()
