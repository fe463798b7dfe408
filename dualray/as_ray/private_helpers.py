"""Small functions of `ray._private` and `ray._common` that suites import: addresses, texts, nodes and actors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil

from dualray import api
from dualray.as_ray.global_worker import rows_of
from dualray.as_ray.resources import nodes, store_bytes_free
from dualray.hex_id import HexId
from dualray.shared.model.resources import HEAD_NODE, NODE_PREFIX
from dualray.util import get_node_ip_address, state

__all__ = [
    "actors",
    "available_resources_per_node",
    "binary_to_hex",
    "build_address",
    "current_node_id",
    "decode",
    "ensure_str",
    "get_node_ip_address",
    "get_or_create_event_loop",
    "get_session",
    "get_system_memory",
    "hex_to_binary",
    "jobs",
    "node_ids",
    "parse_address",
    "total_resources_per_node",
]


# ---- Addresses and texts ---------------------------------------------------------------------------------------------


def build_address(host: str, port: int | str) -> str:
    """host:port; an address of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, str] | None:
    """(host, port) of what `build_address` made; None: it has no port."""
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return None
    return host.strip("[]"), port


def binary_to_hex(identifier: bytes) -> str:
    """Bytes as text in hex."""
    return identifier.hex()


def hex_to_binary(hex_identifier: str) -> bytes:
    """The bytes of a text in hex; of an id that is a name, such as `node-0`, the name's."""
    return HexId(hex_identifier).binary()


def decode(byte_str: bytes | None, allow_none: bool = False, encode_type: str = "utf-8") -> str:
    """Bytes as text; None is "" where it is allowed.

    Raises:
        ValueError: something else.
    """
    if byte_str is None and allow_none:
        return ""
    if not isinstance(byte_str, bytes):
        raise ValueError(f"decode() takes bytes, not {byte_str!r}")
    return byte_str.decode(encode_type)


def ensure_str(text: str | bytes, encoding: str = "utf-8", errors: str = "strict") -> str:
    """A text, or bytes as one."""
    return text if isinstance(text, str) else text.decode(encoding, errors)


def get_system_memory(memory_limit_filename: str = "/sys/fs/cgroup/memory.max") -> int:
    """The bytes of memory that this machine has, or that its container may take."""
    limit = Path(memory_limit_filename)
    total = int(psutil.virtual_memory().total)
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(text)) if text.isdigit() else total


def get_or_create_event_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs here; else this thread's, which is a new one if it has none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass  # none runs
    try:
        return asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:  # as in threads
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop


def get_session() -> None:
    """The session of Ray Train or Ray Tune that the caller runs in: None, because dualray has no such sessions."""


# ---- The state of the cluster: ray._private.state --------------------------------------------------------------------


def current_node_id() -> str:
    """The resource that only the node of this process has: a task that demands it runs there."""
    return NODE_PREFIX + get_node_ip_address()


def node_ids() -> list[str]:
    """For each node that lives, the resource that only this node has."""
    return [
        name
        for row in api.nodes()
        if row["Alive"]
        for name in row["Resources"]
        if name.startswith(NODE_PREFIX) and name != HEAD_NODE
    ]


def total_resources_per_node() -> dict[str, dict[str, float]]:
    """What each node that lives has."""
    return {row["NodeID"]: row["Resources"] for row in nodes() if row["Alive"]}


def available_resources_per_node() -> dict[str, dict[str, float]]:
    """What of it is free."""
    free = store_bytes_free()
    return {
        row["NodeID"]: {**row["Available"], "object_store_memory": free.get(row["NodeID"], 0.0)}
        for row in api.nodes()
        if row["Alive"]
    }


def actors(actor_id: str | None = None, job_id: Any = None, actor_state_name: str | None = None) -> dict[str, Any]:
    """The actors that the cluster has had, by their ids; of one id, that actor, or {}.

    Args:
        actor_id: of one.
        job_id: of the program that made them.
        actor_state_name: such as "ALIVE".
    """
    found = {}
    for row in rows_of("actors"):
        job = state.Row(row)["job_id"]
        if (job_id is None or job_id.hex() == job) and actor_state_name in (None, row["state"]):
            found[row["actor_id"]] = {
                "ActorID": row["actor_id"],
                "ActorClassName": row["class_name"],
                "IsDetached": row["is_detached"],
                "Name": row["name"],
                "JobID": job,
                "Address": {"NodeID": row["node_id"], "WorkerID": row["worker_id"]},
                "OwnerAddress": {"WorkerID": row["owner"]},
                "State": row["state"],
                "NumRestarts": row["num_restarts"],
                "DeathCause": row["death_cause"],
            }
    return found.get(actor_id, {}) if actor_id is not None else found


def jobs() -> list[dict[str, Any]]:
    """The program that asks, as a job: JobID, IsDead, Entrypoint."""
    return [
        {"JobID": row["job_id"], "IsDead": row["status"] != "RUNNING", "Entrypoint": row["entrypoint"]}
        for row in state.list_jobs()
    ]
