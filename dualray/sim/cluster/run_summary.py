"""What a simulation was, in a few figures, for whoever has run a program: `dualray run` prints them.

Counted from the trace when the simulation ends, and only then: a run pays for it what a look at each row costs.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from dualray.shared.proof.trace import TraceKind
from dualray.shared.scenario.fault_model import Fault

if TYPE_CHECKING:
    from dualray.sim.cluster.cluster import Cluster

RECONSTRUCTION = "reconstruction"
"""The reason of a retry that makes a lost object again."""


def summarise(cluster: Cluster, ended_ns: int) -> dict[str, Any]:
    """The figures, as JSON takes them.

    Times are in seconds of virtual time, sizes in bytes. `never_happened` has the faults that found nothing, each with
    the reason where one is known; `assumed` the names of the tasks of whose durations nobody has said anything.
    """
    tasks = failed = retries = remade = evicted = spilled = spilled_bytes = 0
    names: dict[str, None] = {}
    faults: list[dict[str, Any]] = []
    for event in cluster.trace_events:
        match event.kind:
            case TraceKind.TASK_SUBMITTED:
                tasks += 1
                names[event.name] = None
            case TraceKind.TASK_ENDED:
                failed += event.other != ""
            case TraceKind.TASK_RETRIED if event.other == RECONSTRUCTION:
                remade += 1
            case TraceKind.TASK_RETRIED:
                retries += 1
            case TraceKind.OBJECT_EVICTED:
                evicted += 1
            case TraceKind.OBJECT_SPILLED:
                spilled, spilled_bytes = spilled + 1, spilled_bytes + event.amount
            case TraceKind.FAULT:
                faults.append({"at_s": event.time_ns / 1e9, "fault": f"{event.name.partition(' ')[0]} {event.subject}"})
    return {
        "virtual_s": ended_ns / 1e9,
        "nodes": len(cluster.nodes),
        "seed": cluster.seed,
        "tasks": tasks,
        "failed": failed,
        "retries": retries,
        "evicted": evicted,
        "spilled": spilled,
        "spilled_bytes": spilled_bytes,
        "recomputed": remade,
        "faults": faults,
        "never_happened": [{"fault": fault, "why": why} for fault, why in _never_happened(cluster, list(names))],
        "assumed": list(cluster.task_costs.assumed),
        "assumed_s": cluster.task_costs.default_ns / 1e9,
    }


def never_happened(cluster: Cluster) -> list[str]:
    """The faults that found nothing, or whose time did not come, in words, each with the reason."""
    if not (cluster.faults.missed or cluster.faults.outstanding):
        return []
    submitted = [event.name for event in cluster.trace_events if event.kind is TraceKind.TASK_SUBMITTED]
    return [f"{fault}: {why}" for fault, why in _never_happened(cluster, list(dict.fromkeys(submitted)))]


def _never_happened(cluster: Cluster, names: list[str]) -> list[tuple[str, str]]:
    injector = cluster.faults
    return [
        (str(fault), _why(fault, names, found_nothing=fault in injector.missed))
        for fault in (*injector.missed, *injector.outstanding)
    ]


def _why(fault: Fault, names: list[str], *, found_nothing: bool) -> str:
    """Why a fault did not happen, as far as that can be told; "": its time had not come."""
    if found_nothing:
        return "the fault found no target"
    if fault.at_ns is not None:
        return "the program had ended"
    if fault.task_name and fault.task_name not in names:
        nearest = difflib.get_close_matches(fault.task_name, names, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        return f"no task is called {fault.task_name!r}{hint}"
    return "too few such events happened"
