"""Faults on a real cluster of this machine while a workload runs on it, and what came of it: `dualray chaos`.

Theory of operation. The thread that calls `soak` performs the faults (real_faults.py) and counts what the traces say.
The workload's lanes (chaos_work.py) go on round after round until every fault has been performed and healed. Then the
cluster must come to rest: all nodes alive, no lease held, no object left in a store. When nothing makes progress for
`patience_s`, the run ends as a hang, with what the driver waits for and why.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dualray
from dualray import runtime
from dualray.cluster_utils import Cluster
from dualray.report.lineage import Copies
from dualray.report.summary import RECONSTRUCTION
from dualray.shared.model.config import Config
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.chaos import Ground, draw_schedule
from dualray.shared.scenario.fault_model import Fault, FaultKind
from dualray.testing.chaos_work import ACTORS, DISTINCT_ROUNDS, TASKS, Lane, expected, lanes
from dualray.testing.real_faults import LOOK_S, OF_DOORS, FaultPerformer, check_plan

LIMITS: dict[str, Any] = {"heartbeat_timeout_ns": 1_000_000_000, "suspicion_ns": 2_000_000_000}
"""A node is dead after 3 s of silence, so that a soak has many deaths."""
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": "256MiB"}

_OF_STORES = frozenset(
    {
        TraceKind.NODE_STARTED,
        TraceKind.OBJECT_STORED,
        TraceKind.OBJECT_DELETED,
        TraceKind.OBJECT_EVICTED,
        TraceKind.TRANSFER_ENDED,
    }
)
_REST_LOOK_S = 0.25
_REST_S = 30.0


@dataclass(slots=True)
class Soak:
    """What came of a run.

    Attributes:
        planned, performed: faults; each of `performed` in words, with whom it befell.
        rounds: of each lane, those that ended.
        wrong: results that are not the expected ones, and errors that no fault may cause.
        hang: what waited, and why; empty when nothing did.
        problems: faults that could not be performed, or did not heal.
        unrest: what was left in the cluster when the workload was done.
        left_behind: processes and files that were there after the cluster's end.
        retries, reconstructions, restarts: of tasks, of objects, of actors.
        deaths: nodes whose life ended: killed, or silent for too long.
        tasks: attempts of tasks that ended.
        seconds: of wall time.
    """

    planned: int = 0
    performed: list[str] = field(default_factory=list)
    rounds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    hang: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unrest: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    retries: int = 0
    reconstructions: int = 0
    restarts: int = 0
    deaths: int = 0
    tasks: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Every fault performed, every result right, no hang, nothing left."""
        faultless = not (self.wrong or self.hang or self.problems or self.unrest or self.left_behind)
        return faultless and len(self.performed) == self.planned


def schedule(*, seed: int, faults: int, nodes: int, workload: str) -> tuple[Fault, ...]:
    """The faults of one soak: a function of its arguments alone.

    Raises:
        ValueError: there is no such workload.
    """
    lanes(workload)
    ground = Ground(
        nodes=[f"node-{index}" for index in range(1, nodes)],
        tasks=TASKS.get(workload, ()),
        actors=ACTORS.get(workload, ()),
        config=Config(**LIMITS),
    )
    return draw_schedule(ground, seed=seed, count=faults)


def soak(
    plan: Sequence[Fault],
    *,
    workload: str | Mapping[str, Lane],
    nodes: int,
    record: Path,
    seed: int = 0,
    patience_s: float = 60.0,
    on_fault: Callable[[str], object] = lambda words: None,
    on_progress: Callable[[Soak], object] = lambda so_far: None,
) -> Soak:
    """Run a workload on a cluster of real processes under faults.

    Args:
        plan: see `schedule`; anchors are counted over the whole run.
        workload: a name that `chaos_work.lanes` knows, or lanes of your own.
        nodes: of the cluster, at least 1; node-0 has the head and the driver.
        record: an empty directory for decision logs and traces.
        patience_s: without any progress for so long, the run is a hang.
        on_fault, on_progress: called with each fault's words, and many times a second.

    Raises:
        ValueError: a fault that real mode does not perform, or of a node that is not there; no such workload.
    """
    names = [f"node-{index}" for index in range(nodes)]
    check_plan(plan, names)
    for fault in plan:
        if fault.kind is FaultKind.KILL_HEAD:
            raise ValueError(
                f"fault '{fault}': every workload fails under this fault, so `dualray chaos` cannot check a workload"
            )
    work = lanes(workload) if isinstance(workload, str) else workload
    classes = ACTORS.get(workload, ()) if isinstance(workload, str) else ()
    right = expected(work, seed)
    began = time.monotonic()
    found = Soak(planned=len(plan))
    record = record.absolute()
    head_node = {**NODE, "limits": LIMITS, "decision_log": record, "seed": seed}
    takes_faults = any(fault.kind in OF_DOORS or fault.keeps_store for fault in plan)
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=head_node, takes_faults=takes_faults)
    run = _Run(cluster, plan, found, right, record, classes, on_fault)
    try:
        run.add_nodes(nodes - 1)
        run.go(work, patience_s, on_progress)
    finally:
        run.end()
        found.seconds = time.monotonic() - began
    return found


class _Run:
    def __init__(
        self,
        cluster: Cluster,
        plan: Sequence[Fault],
        found: Soak,
        right: Mapping[str, list[Any]],
        record: Path,
        classes: Sequence[str],
        on_fault: Callable[[str], object],
    ) -> None:
        self._cluster = cluster
        self._found = found
        self._right = right
        self._faults = FaultPerformer(cluster, plan, record, like_first=NODE, spares_puts=True, on_fault=on_fault)
        self._lock = threading.Lock()
        self._classes = classes
        self._constructed: set[str] = set()
        self._stores: list[TraceEvent] = []
        """What happened to the stores so far."""
        self._lanes_end = threading.Event()
        self._ends = threading.Event()

    def add_nodes(self, count: int) -> None:
        """So many more."""
        for _ in range(count):
            self._faults.started(self._cluster.add_node(**NODE), NODE)

    # ---- The run -------------------------------------------------------------------------------------------------

    def go(self, work: Mapping[str, Lane], patience_s: float, on_progress: Callable[[Soak], object]) -> None:
        """Until every fault has been performed and healed, and the lanes have come to the end of their round."""
        found, faults = self._found, self._faults
        faults.begin()
        workers = [
            threading.Thread(target=self._lane, args=(name, lane), name=f"chaos-{name}", daemon=True)
            for name, lane in work.items()
        ]
        for thread in workers:
            thread.start()
        seen, since = -1, time.monotonic()
        performed, performed_since = 0, time.monotonic()
        while any(thread.is_alive() for thread in workers):
            self._look()
            on_progress(found)
            if len(found.performed) != performed or faults.is_lasting:
                performed, performed_since = len(found.performed), time.monotonic()
            if not (faults.outstanding or faults.is_lasting):
                self._lanes_end.set()
            elif time.monotonic() - performed_since > patience_s and not faults.is_early:
                # Work goes on, and what is left of the plan finds no target.
                faults.give_up(f"for {patience_s:g} s the fault found no target")
            progress = found.tasks + found.rounds.total()
            if progress != seen:
                seen, since = progress, time.monotonic()
            elif time.monotonic() - since > patience_s:
                found.hang = self._why(patience_s, workers)
                return
            if found.wrong:
                self._lanes_end.set()
            time.sleep(LOOK_S)
        if not found.wrong:
            self._rest()

    def _lane(self, name: str, lane: Lane) -> None:
        number = 0
        while not self._lanes_end.is_set() and not self._ends.is_set():
            expected_result = self._right[name][number % DISTINCT_ROUNDS]
            try:
                result = lane(number % DISTINCT_ROUNDS)
            except Exception as error:  # noqa: BLE001 - whatever it is, no fault may cause it
                if not self._ends.is_set():
                    self._wrong(f"{name}, round {number}: {type(error).__name__}: {error}")
                return
            if json.dumps(result) != json.dumps(expected_result):
                self._wrong(f"{name}, round {number}: the result is {result!r}, not {expected_result!r}")
                return
            with self._lock:
                self._found.rounds[name] += 1
            number += 1

    def _wrong(self, what: str) -> None:
        with self._lock:
            self._found.wrong.append(what)

    def _why(self, patience_s: float, workers: Sequence[threading.Thread]) -> list[str]:
        """What waits, and why, in words."""
        stuck = ", ".join(thread.name for thread in workers if thread.is_alive())
        rows = [
            f"{row['NodeID']}~{row['Incarnation']} {'alive' if row['Alive'] else 'dead'}, free {row['Available']}"
            for row in dualray.nodes()
        ]
        left = [f"not performed: {fault}" for fault in self._faults.outstanding]
        lasting = [f"still lasts: {words}" for words in self._faults.lasting()]
        waiting = runtime.current("chaos").verbs.waiting()
        return [
            f"no task has ended for {patience_s:g} s; these tasks wait: {stuck}",
            *waiting,
            *rows,
            *lasting,
            *left[:10],
        ]

    # ---- Traces --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for event in self._faults.look():
            self._count(event)
            if event.kind in _OF_STORES:
                self._stores.append(event)
        self._found.performed, self._found.problems = list(self._faults.performed), list(self._faults.problems)

    def _count(self, event: TraceEvent) -> None:
        found = self._found
        match event.kind:
            case TraceKind.TASK_STARTED if event.name in self._classes:
                found.restarts += event.subject in self._constructed
                self._constructed.add(event.subject)
            case TraceKind.TASK_ENDED:
                found.tasks += 1
            case TraceKind.TASK_RETRIED if event.other == RECONSTRUCTION:
                found.reconstructions += 1
            case TraceKind.TASK_RETRIED:
                found.retries += 1
            case _:
                pass

    # ---- The end -------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Without work the cluster comes to rest: every node alive, no lease held, no object in a store."""
        deadline = time.monotonic() + _REST_S
        while True:
            self._look()
            self._found.unrest = self._what_is_left()
            if not self._found.unrest or time.monotonic() > deadline:
                return
            time.sleep(_REST_LOOK_S)

    def _what_is_left(self) -> list[str]:
        rows = {row["NodeID"]: row for row in dualray.nodes()}
        self._found.deaths = sum(row["Incarnation"] + (not row["Alive"]) for row in rows.values())
        living = [node.node_id for node in self._cluster.list_all_nodes()]
        left = [f"{name} is not alive" for name in living if not rows[name]["Alive"]]
        left += [
            f"{name} has {rows[name]['Available']} free of {rows[name]['Resources']}"
            for name in living
            if rows[name]["Available"] != rows[name]["Resources"]
        ]
        copies = Copies()
        for event in sorted(self._stores, key=lambda event: event.time_ns):  # in order also across looks
            copies.apply(event)
        stored = Counter(node for nodes in copies.by_object.values() for node in nodes if node in living)
        return left + [f"{count} objects in the store of {name}" for name, count in stored.items()]

    def end(self) -> None:
        """End everything, and look for what is left behind."""
        self._ends.set()
        self._lanes_end.set()
        self._faults.end()
        self._found.performed, self._found.problems = list(self._faults.performed), list(self._faults.problems)
        self._cluster.shutdown()
        self._found.left_behind += self._faults.left_behind()
