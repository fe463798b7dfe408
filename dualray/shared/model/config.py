"""Every limit of the core, with its unit, default and reason. One `Config` is loaded by every process of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


_MOST = 2**62


def _limit(default: Any, unit: str, why: str, *, least: int = 0, most: int = _MOST) -> Any:
    """A limit. `least` and `most` bound a number: beyond them a task might never end."""
    return field(default=default, metadata={"unit": unit, "why": why, "least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Limits and policies. `describe()` lists them with units and reasons; `dualray config` prints that."""

    memory_policy: str = _limit(
        "dualray.shared.policies.worker_killing:NewestTaskFirst",
        "dotted path",
        "which worker the node kills when it is out of memory",
    )
    placement_policy: str = _limit(
        "dualray.shared.policies.hybrid:HybridPlacement", "dotted path", "on which node a DEFAULT task or actor runs"
    )
    eviction_policy: str = _limit(
        "dualray.shared.policies.eviction.cost_aware:CostAwareEviction",
        "dotted path",
        "which objects leave a full store: 'cost', 'lru', 'spill' or a dotted path",
    )
    retry_policy: str = _limit(
        "dualray.shared.policies.retry:BoundedRetry", "dotted path", "whether a failed task runs again"
    )
    reconstruction_policy: str = _limit(
        "dualray.shared.policies.reconstruction:LineageReconstruction", "dotted path", "how a lost object is recomputed"
    )
    broadcast_policy: str = _limit(
        "dualray.shared.policies.broadcast:ChainBroadcast",
        "dotted path",
        "which node serves a copy of an object that several nodes need",
    )
    inline_bytes_max: int = _limit(100 * 1024, "bytes", "values above this size go to the object store, as in Ray")
    lease_requests_max: int = _limit(
        16, "leases", "most workers that a process may request at a time for tasks with the same options", least=1
    )
    lease_idle_ns: int = _limit(
        2 * MILLISECOND_NS, "ns", "a process returns a worker that was idle for this time", most=3600 * SECOND_NS
    )
    lease_turn_ns: int = _limit(
        100 * MILLISECOND_NS, "ns", "how often a driver with too many workers gives a worker to a waiting driver"
    )
    push_window_ns: int = _limit(
        2 * MILLISECOND_NS, "ns", "how much work, in time, a process sends to a worker in advance"
    )
    push_window_max: int = _limit(64, "tasks", "most tasks that a process sends to a worker in advance", least=1)
    wait_told_ns: int = _limit(
        10 * SECOND_NS,
        "ns",
        "dualray warns once when a task waits longer than this time for resources that only actors hold",
    )
    fetch_patience_ns: int = _limit(
        100 * MILLISECOND_NS,
        "ns",
        "a task that waits longer than this time for its arguments lends its CPU to other tasks",
    )
    spread_threshold_percent: int = _limit(
        50, "percent", "tasks fill a node until its use reaches this share; then they go to the least used node"
    )
    locality_bytes_max: int = _limit(
        1024 * 1024,
        "bytes",
        "a task runs on the node that stores its arguments if its own node lacks more bytes than this",
    )
    store_wait_ns: int = _limit(
        10 * SECOND_NS, "ns", "how long a full object store waits for space before the store refuses an object"
    )
    garbage_percent: int = _limit(
        70, "percent", "in an object store above this use, processes run Python's garbage collection to free references"
    )
    garbage_ns: int = _limit(
        10 * SECOND_NS,
        "ns",
        "how often a nearly full object store requests a garbage collection; a process runs at most two in this time",
    )
    remakes_without_progress_max: int = _limit(
        8, "times", "how often dualray may recompute an object while no task or wait ends, before the object is lost"
    )
    refusals_max: int = _limit(
        6, "times", "how often a full store and disk may refuse a queued request before the request fails"
    )
    store_objects_max: int = _limit(
        131_072,
        "objects",
        "most objects in a node's object store; the index of the store takes 64 bytes for each object",
        least=1,
    )
    store_warm_bytes: int = _limit(
        256 * 1024 * 1024, "bytes", "free memory that a store keeps for new objects, at most a quarter of the store"
    )
    store_idle_ns: int = _limit(
        2 * SECOND_NS, "ns", "an object store returns free memory beyond store_warm_bytes to the system after this time"
    )
    kept_room_bytes_max: int = _limit(
        64 * 1024 * 1024, "bytes", "store memory that a process reserves for arguments passed by value; 0: none"
    )
    kept_room_idle_ns: int = _limit(
        500 * MILLISECOND_NS, "ns", "a process returns reserved store memory that was unused for this time"
    )
    spill_bytes_max: int = _limit(
        32 * 1024 * 1024 * 1024,
        "bytes",
        "most bytes of a node's spilled objects on disk; the eviction policy 'lru' spills none",
    )
    spill_directory: str = _limit("", "path", "directory for spilled objects; '' means the session's directory")
    store_holders_named: int = _limit(5, "objects", "number of largest objects that the error of a full store names")
    workers_prestarted: int = _limit(
        -1, "workers", "workers that start with the node; -1 means one for each CPU", least=-1, most=10_000
    )
    worker_starts_max: int = _limit(
        8, "workers", "most worker processes that start at the same time on a node", least=1
    )
    memory_limit_percent: int = _limit(
        95, "percent", "a node kills a worker when more than this percentage of the machine's memory is in use"
    )
    memory_limit_bytes: int = _limit(
        0, "bytes", "most memory of a node's workers together; 0: only memory_limit_percent counts"
    )
    memory_check_ns: int = _limit(250 * MILLISECOND_NS, "ns", "how often a node checks its memory use; 0: never")
    worker_start_failures_max: int = _limit(
        5, "exits", "a node gives up when this number of workers in a row die while they start"
    )
    worker_start_retry_ns: int = _limit(
        100 * MILLISECOND_NS, "ns", "a node whose machine has no room for a worker process tries again after this time"
    )
    worker_start_patience_ns: int = _limit(
        5 * SECOND_NS, "ns", "a node fails tasks when its machine has had no room for a worker process for this time"
    )
    pull_bytes_max: int = _limit(
        256 * 1024 * 1024,
        "bytes",
        "most bytes of objects that a node fetches at a time; a node may always fetch one object",
    )
    broadcast_receivers_max: int = _limit(
        2, "nodes", "most nodes to which a node sends an object at a time; other nodes wait", least=1
    )
    link_patience_ns: int = _limit(
        10 * SECOND_NS,
        "ns",
        "a node asks a sender that was silent for this time to answer, and gives up after four tries",
        least=1,
    )
    transfer_chunk_bytes: int = _limit(
        1024 * 1024, "bytes", "size of the pieces in which an object goes to another node", least=1
    )
    transfer_chunks_ahead: int = _limit(
        16, "pieces", "pieces of an object that a node sends before the receiver confirms the first piece"
    )
    heartbeat_timeout_ns: int = _limit(1 * SECOND_NS, "ns", "the head suspects a node that sent nothing for this time")
    suspicion_ns: int = _limit(5 * SECOND_NS, "ns", "the head declares a suspected node dead after this time")
    announce_ns: int = _limit(
        10 * MILLISECOND_NS, "ns", "the head collects changes of the cluster for this time, and announces them together"
    )
    report_ns: int = _limit(
        1 * MILLISECOND_NS, "ns", "longest time before a node reports changes of its workers and resources to the head"
    )
    drain_timeout_ns: int = _limit(30 * SECOND_NS, "ns", "most time that a node has to drain before it leaves")
    state_timeout_ns: int = _limit(
        5 * SECOND_NS, "ns", "most time that a process has to answer a query about its state"
    )
    bundles_max: int = _limit(1_000, "bundles", "most bundles of a placement group")
    generator_items_max: int = _limit(100_000_000, "items", "most items that a generator may yield, as in Ray")
    infeasible: str = _limit("raise", "raise|wait", "whether a demand that no node can meet fails or waits")
    actor_lifetime: str = _limit(
        "non_detached",
        "detached|non_detached",
        "lifetime of actors without lifetime=, as JobConfig(default_actor_lifetime=)",
    )
    autoscaler_groups: str = _limit(
        "", "JSON", "groups of nodes that the autoscaler launches and ends; '': the cluster keeps its size"
    )
    autoscaler_policy: str = _limit(
        "dualray.shared.policies.bin_packing:BinPacking", "dotted path", "how many nodes each group should have"
    )
    upscaling_speed_percent: int = _limit(
        100,
        "percent",
        "most nodes to launch at a time, as a percentage of the present nodes, at least five; 0: any number",
    )
    idle_timeout_ns: int = _limit(
        60 * SECOND_NS, "ns", "a node that was idle for longer than this time may leave the cluster"
    )
    launch_cooldown_ns: int = _limit(
        30 * SECOND_NS, "ns", "how long the autoscaler launches no node of a group after a refusal"
    )
    launch_timeout_ns: int = _limit(
        300 * SECOND_NS, "ns", "the autoscaler gives up a launched node that did not join within this time"
    )
    autoscaler_turn_ns: int = _limit(
        100 * MILLISECOND_NS,
        "ns",
        "how long the autoscaler waits after a change for further changes, before it decides",
    )
    stderr_lines_kept: int = _limit(20, "lines", "last lines of a dead worker's stderr that its error shows")

    @classmethod
    def describe(cls) -> list[tuple[str, Any, str, str]]:
        """Each setting as (name, default, unit, why)."""
        return [(f.name, f.default, f.metadata["unit"], f.metadata["why"]) for f in fields(cls)]

    @classmethod
    def fault_of(cls, name: str, value: Any) -> str | None:
        """Why a limit cannot have this value; None if it can."""
        limit = next(one for one in fields(cls) if one.name == name)
        if type(value) is not type(limit.default):
            return f"must be of type {type(limit.default).__name__}, like {limit.default!r}"
        least, most = limit.metadata["least"], limit.metadata["most"]
        if isinstance(value, int) and not least <= value <= most:
            return f"must be between {least:,} and {most:,} {limit.metadata['unit']}"
        return None
