"""Every limit of the core, with its unit, default and reason. One `Config` is loaded by every process of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


def _limit(default: Any, unit: str, why: str) -> Any:
    return field(default=default, metadata={"unit": unit, "why": why})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Limits and policies. `describe()` lists them with units and reasons; `dualray config` prints that."""

    memory_policy: str = _limit(
        "dualray.shared.policies.memory:NewestTaskFirst",
        "dotted path",
        "which worker ends when a node is out of memory",
    )
    placement_policy: str = _limit(
        "dualray.shared.policies.hybrid:HybridPlacement", "dotted path", "where DEFAULT tasks and actors go"
    )
    eviction_policy: str = _limit(
        "dualray.shared.policies.cost_aware:CostAwareEviction",
        "dotted path",
        "what leaves a full object store; 'cost', 'lru' and 'spill' are short for ours",
    )
    retry_policy: str = _limit(
        "dualray.shared.policies.retry:BoundedRetry", "dotted path", "whether a failed task runs again"
    )
    reconstruction_policy: str = _limit(
        "dualray.shared.policies.reconstruction:LineageReconstruction", "dotted path", "how a lost object is made again"
    )
    broadcast_policy: str = _limit(
        "dualray.shared.policies.broadcast:ChainBroadcast",
        "dotted path",
        "whom a node asks for an object that others want, too",
    )
    inline_bytes_max: int = _limit(100 * 1024, "bytes", "larger values go to the object store, as in today's Ray")
    lease_requests_max: int = _limit(16, "leases", "leases asked for and not granted, per shape and owner")
    lease_idle_ns: int = _limit(2 * MILLISECOND_NS, "ns", "an idle lease goes back after this")
    lease_turn_ns: int = _limit(
        100 * MILLISECOND_NS, "ns", "so often a driver that has more than its share gives a lease to one that waits"
    )
    push_window_ns: int = _limit(2 * MILLISECOND_NS, "ns", "work pushed ahead to a leased worker")
    push_window_max: int = _limit(64, "tasks", "tasks pushed ahead to a leased worker")
    wait_told_ns: int = _limit(
        10 * SECOND_NS, "ns", "who waits longer for what only actors hold is told who holds it, once"
    )
    fetch_patience_ns: int = _limit(
        100 * MILLISECOND_NS, "ns", "a task whose arguments are not here by then lends its CPU, as one that blocks does"
    )
    spread_threshold_percent: int = _limit(50, "percent", "hybrid placement packs up to this use, then spreads")
    locality_bytes_max: int = _limit(
        1024 * 1024, "bytes", "a task whose missing arguments are larger is placed by the head, near its bytes"
    )
    store_wait_ns: int = _limit(10 * SECOND_NS, "ns", "a full store waits this long for room before it refuses")
    remakes_without_progress_max: int = _limit(
        8, "times", "that an object is made again while no task ends and no wait is over, before it fails"
    )
    refusals_max: int = _limit(
        6, "times", "that a full store and a full disk refuse who waits behind others, before he hears of it"
    )
    store_objects_max: int = _limit(131_072, "objects", "in one node's store: their index takes 64 bytes for each")
    store_warm_bytes: int = _limit(
        256 * 1024 * 1024, "bytes", "free memory kept ready for new objects, at most a quarter of the store"
    )
    store_idle_ns: int = _limit(2 * SECOND_NS, "ns", "free memory beyond store_warm_bytes is given back after this")
    kept_room_bytes_max: int = _limit(
        64 * 1024 * 1024, "bytes", "of the store that a process keeps for arguments by value; 0: none"
    )
    kept_room_idle_ns: int = _limit(500 * MILLISECOND_NS, "ns", "kept room that nobody has used for this goes back")
    spill_bytes_max: int = _limit(
        32 * 1024 * 1024 * 1024, "bytes", "of a node's objects on disk, unless the eviction policy is 'lru'"
    )
    spill_directory: str = _limit("", "path", "on a disk, for spilled objects; '' means the session's own")
    store_holders_named: int = _limit(5, "objects", "largest holders that a full store's error names")
    workers_prestarted: int = _limit(-1, "workers", "started with the node; -1 means one for each CPU")
    worker_starts_max: int = _limit(8, "workers", "worker processes starting at once on one node")
    memory_limit_percent: int = _limit(95, "percent", "of a machine's memory; beyond it the node ends a worker")
    memory_limit_bytes: int = _limit(0, "bytes", "that a node's workers may use together; 0: only the share counts")
    memory_check_ns: int = _limit(250 * MILLISECOND_NS, "ns", "so often a node looks at its memory; 0: never")
    worker_start_failures_max: int = _limit(5, "exits", "workers in a row that die while starting: the node gives up")
    pull_bytes_max: int = _limit(256 * 1024 * 1024, "bytes", "of objects that a node pulls at a time; one always may")
    broadcast_receivers_max: int = _limit(2, "nodes", "a node sends one object to so many at a time; others wait")
    link_patience_ns: int = _limit(
        10 * SECOND_NS, "ns", "a node that sends nothing for this is asked whether it is there, and given up after four"
    )
    transfer_chunk_bytes: int = _limit(1024 * 1024, "bytes", "an object goes to another node in pieces of this")
    transfer_chunks_ahead: int = _limit(16, "pieces", "sent before the first of them is acknowledged")
    heartbeat_timeout_ns: int = _limit(1 * SECOND_NS, "ns", "a node of which nothing was heard for this is silent")
    suspicion_ns: int = _limit(5 * SECOND_NS, "ns", "a silent node is declared dead after this")
    announce_ns: int = _limit(10 * MILLISECOND_NS, "ns", "changes of the cluster within this are announced together")
    report_ns: int = _limit(
        1 * MILLISECOND_NS, "ns", "a node tells the head so late of leases that have a worker, or other holders, now"
    )
    drain_timeout_ns: int = _limit(30 * SECOND_NS, "ns", "a node that is to leave in good order leaves after this")
    state_timeout_ns: int = _limit(5 * SECOND_NS, "ns", "so long a process has to answer a question about its state")
    bundles_max: int = _limit(1_000, "bundles", "of one placement group")
    infeasible: str = _limit("raise", "raise|wait", "what a demand does that no node can ever meet")
    actor_lifetime: str = _limit(
        "non_detached", "detached|non_detached", "of actors that do not say, as JobConfig(default_actor_lifetime=)"
    )
    autoscaler_groups: str = _limit(
        "", "JSON", "groups of nodes that the autoscaler launches and lets leave; '': the cluster stays as it is"
    )
    autoscaler_policy: str = _limit(
        "dualray.shared.policies.bin_packing:BinPacking", "dotted path", "how many nodes of each group there should be"
    )
    upscaling_speed_percent: int = _limit(
        100,
        "percent",
        "of the nodes that are there, launched at a time for plain demands, five at least; 0: any number",
    )
    idle_timeout_ns: int = _limit(60 * SECOND_NS, "ns", "a node that nobody has used for longer may leave")
    launch_cooldown_ns: int = _limit(30 * SECOND_NS, "ns", "no node of a group is asked for so long after a refusal")
    launch_timeout_ns: int = _limit(300 * SECOND_NS, "ns", "a launched node that has not joined after this is given up")
    autoscaler_turn_ns: int = _limit(
        100 * MILLISECOND_NS, "ns", "the autoscaler decides so long after a change, once for all that come by then"
    )
    stderr_lines_kept: int = _limit(20, "lines", "of a dead worker's stderr in the error")

    @classmethod
    def describe(cls) -> list[tuple[str, Any, str, str]]:
        """Each setting as (name, default, unit, why)."""
        return [(f.name, f.default, f.metadata["unit"], f.metadata["why"]) for f in fields(cls)]
