"""Runs a scenario's program on real processes of this machine, and applies its faults meanwhile.

Of the scenario's cluster, real mode takes the number of nodes and what each has to offer (CPUs, GPUs as declared,
resources, labels, an object store whose size is given); of its faults, those that can be performed on processes without
privileges (dualray/real/faults.py), anchored at a time since the program's start or at an event in the traces. Network,
speed, memory and costs are the machine's own. When the program has succeeded, what is left is looked for as in sim
mode, in machines that the decision logs give (replicas.py); what the trace says is held against the same oracles.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dualray
from dualray import runtime
from dualray.cluster_utils import Cluster
from dualray.report.traces import read_traces
from dualray.shared.scenario.growth import Growth, LocalProvider, ProviderModel, offer_of
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.failures import Ended, call
from dualray.testing.outcome import Outcome, examination_of, make_outcome
from dualray.testing.real_faults import LOOK_S, OF_DOORS, FaultPerformer, check_plan
from dualray.testing.replicas import Replicas
from dualray.testing.scripts import SCRIPT_TIMEOUT_S, run_script

_REST_S = 30.0
"""A cluster has so long to come to rest when its program has ended."""
NODES_MAX = 16
"""Of a cluster on one machine: each node has a store and processes of its own."""


def run_on_cluster(scenario: Scenario, program: Path | Callable[[], Any], decision_log: Path | None) -> Outcome:
    """Run the program once.

    Args:
        program: see `dualray.testing.run.find_program`.
        decision_log: a directory for decision logs and traces, which may be new.

    Raises:
        ValueError: a cluster, or a fault, that is not for real mode.
    """
    nodes = scenario.cluster.each_node()
    if len(nodes) > NODES_MAX:
        raise ValueError(
            f"cluster: {len(nodes):,} nodes are too many: real mode starts all nodes on this machine, and at most "
            f"{NODES_MAX}. Run the scenario with --mode sim"
        )
    plan = scenario.planned()
    check_plan(plan, [name for name, _ in nodes], instead="dualray scenario run, without --mode real")
    with contextlib.ExitStack() as stack:
        if decision_log is None:
            decision_log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualray-scenario-")))
        decision_log.mkdir(parents=True, exist_ok=True)
        record = decision_log.absolute()
        of_cluster = {"limits": scenario.limits, "seed": scenario.seed, "decision_log": record}
        options = [offer_of(group) for _, group in nodes]
        takes_faults = any(fault.kind in OF_DOORS or fault.keeps_store for fault in plan)
        head_node = options[0] | of_cluster | _growth_of(scenario)
        with Cluster(
            initialize_head=True, connect=True, head_node_args=head_node, takes_faults=takes_faults
        ) as cluster:
            faults = FaultPerformer(cluster, plan, record, like_first=options[0])
            try:
                for kind in options[1:]:
                    faults.started(cluster.add_node(**kind), kind)
                ended = _run(scenario, program, cluster, faults)
                ended_ns = time.monotonic_ns()
            finally:
                faults.end()
            replicas = Replicas(record)
            is_looked_at = not replicas.is_too_large
            leaks = None if ended.error else _what_is_left(cluster, replicas if is_looked_at else None)
            if is_looked_at:
                replicas.look()
        examination = examination_of(faults, ended_ns=ended_ns, leaks=leaks, violations=replicas.violations())
        return make_outcome(ended, read_traces(record), examination)


def _what_is_left(cluster: Cluster, replicas: Replicas | None) -> list[str] | None:
    """What the cluster keeps although the program has ended, in words; None: the program has references still.

    Args:
        replicas: without them only the leases of nodes are looked at.
    """
    gc.collect()  # what the program has made may lie in a cycle, and hold an actor
    deadline = time.monotonic() + _REST_S
    while True:
        left = _leases_left(cluster)
        if replicas is not None and (not left or time.monotonic() > deadline):
            replicas.look()
            nodes = [node.node_id for node in cluster.list_all_nodes()]
            kept = replicas.left(nodes, dualray.get_runtime_context().get_worker_id())
            if kept is None:
                return None
            left += kept
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(LOOK_S)


def _leases_left(cluster: Cluster) -> list[str]:
    """Nodes that are not alive, and nodes of which not all resources are free."""
    rows = {row["NodeID"]: row for row in dualray.nodes()}
    left = []
    for node in cluster.list_all_nodes():
        row = rows[node.node_id]
        if not row["Alive"]:
            left.append(f"{node.node_id} is not alive")
        elif row["Available"] != row["Resources"]:
            left.append(f"{node.node_id} has {row['Available']} free of {row['Resources']}")
    return left


def _growth_of(scenario: Scenario) -> dict[str, Any]:
    """What the first node has to know of groups of nodes, which are launched on this machine."""
    if not scenario.cluster.scaling:
        return {}
    local = ProviderModel(local=LocalProvider(nodes=NODES_MAX))
    return {"autoscale": Growth(name=scenario.name, cluster=scenario.cluster, provider=local)}


def _run(scenario: Scenario, program: Path | Callable[[], Any], cluster: Cluster, faults: FaultPerformer) -> Ended:
    """Until the program ends."""
    ended: list[Ended] = []

    def body() -> None:
        if isinstance(program, Path):
            settings = {"MODE": "real", "ADDRESS": cluster.address}
            if scenario.workload.as_ray:
                settings["AS_RAY"] = "1"
            ended.append(run_script(program, scenario.workload.args, settings))
        else:
            ended.append(call(program))

    thread = threading.Thread(target=body, name=f"scenario {scenario.name}", daemon=True)
    deadline = time.monotonic() + SCRIPT_TIMEOUT_S
    faults.begin()
    thread.start()
    while thread.is_alive():
        faults.look()
        if time.monotonic() > deadline:
            waits = "; ".join(runtime.current("scenario").verbs.waiting()) or "nothing of dualray's"
            alive = ", ".join(row["NodeID"] for row in dualray.nodes() if row["Alive"])
            words = f"the script did not end within {SCRIPT_TIMEOUT_S:g} s; it waits for {waits}; alive nodes: {alive}"
            return Ended(error=("TimeoutError", "Exception"), message=words)
        thread.join(LOOK_S)
    return ended[0]
