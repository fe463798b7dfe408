"""Faults on a real cluster of this machine while a workload runs on it, and what came of it: `dualray chaos`.

Theory of operation. The cluster records its decisions and traces. The thread that calls `soak` follows the traces, so
that it can perform a fault at the n-th start of a task, kills what is to be killed at once, and gives every fault that
lasts a thread of its own. A name in the schedule is a place: the node that was started in place of a killed node-1 is
node-1 to the faults that come later (the cluster calls it node-4, say). One place suffers one fault at a time; the next
one waits for it. The head's node and the driver on it live through all of it; its workers do not.

The workload's lanes (chaos_work.py) go on round after round until every fault has been performed and healed. Then the
cluster must come to rest: all nodes alive, no lease held, no object left in a store. When nothing makes progress for
`patience_s`, the run ends as a hang, with what the driver waits for and why.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import dualray
from dualray import runtime
from dualray.cluster_utils import Cluster, ClusterNode
from dualray.exceptions import DualrayError
from dualray.real import faults as means
from dualray.real.session import SHARED_MEMORY
from dualray.report.lineage import Copies
from dualray.report.summary import RECONSTRUCTION
from dualray.report.tail import TraceTail
from dualray.shared.chaos import Ground, draw_schedule
from dualray.shared.faults import Fault, FaultKind
from dualray.shared.model.config import Config
from dualray.shared.model.ids import Address, node_of
from dualray.shared.trace import TraceEvent, TraceKind, to_bytes
from dualray.testing.chaos_work import ACTORS, DISTINCT_ROUNDS, TASKS, Lane, expected, lanes

LIMITS: dict[str, Any] = {"heartbeat_timeout_ns": 1_000_000_000, "suspicion_ns": 2_000_000_000}
"""A node is dead after 3 s of silence, so that a soak has many deaths."""
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": "256MiB"}
CHAOS = "chaos"
"""Who performs faults, in the trace."""

_OF_STORES = frozenset(
    {
        TraceKind.NODE_STARTED,
        TraceKind.OBJECT_STORED,
        TraceKind.OBJECT_DELETED,
        TraceKind.OBJECT_EVICTED,
        TraceKind.TRANSFER_ENDED,
    }
)
_LOOK_S = 0.02
_REST_LOOK_S = 0.25
_REST_S = 30.0
_BACK_S = 90.0
"""A node whose pause is over has so long to be alive again; see REJOIN_TIMEOUT_S of the daemon."""
_ENDS_S = 10.0


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
    """The faults of one soak: a function of its arguments alone."""
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
    for fault in plan:
        means.refuse(fault)
        for name in fault.named_nodes:
            if name not in names[1:]:
                known = ", ".join(names[1:]) or "none"
                raise ValueError(f"fault '{fault}': {name!r} cannot be befallen; those that can: {known}")
    work = lanes(workload) if isinstance(workload, str) else workload
    classes = ACTORS.get(workload, ()) if isinstance(workload, str) else ()
    right = expected(work, seed)
    began = time.monotonic()
    found = Soak(planned=len(plan))
    record = record.absolute()
    head_node = {**NODE, "limits": LIMITS, "decision_log": record, "seed": seed}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=head_node)
    run = _Run(cluster, plan, found, right, record, classes, on_fault)
    try:
        for _ in range(nodes - 1):
            run.started(cluster.add_node(**NODE))
        run.go(work, patience_s, on_progress)
    finally:
        run.end()
        found.seconds = time.monotonic() - began
    return found


class _Place:
    """Where a node is: the node changes, the place stays."""

    def __init__(self, node: ClusterNode) -> None:
        self.node = node
        self.is_busy = False


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
        self._on_fault = on_fault
        self._tail = TraceTail(record)
        self._trace = (record / f"{CHAOS}.trace").open("wb", buffering=0)
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}
        self._tables = threading.Lock()
        """Held by whoever needs them, to join a node, or takes them away."""
        self._timed = sorted((fault for fault in plan if fault.at_ns is not None), key=lambda fault: fault.at_ns or 0)
        self._anchored = [fault for fault in plan if fault.at_ns is None]
        self._counts: Counter[tuple[str, str]] = Counter()
        self._actors: dict[str, dict[str, None]] = {}
        """Of each class, the workers that have started one of its methods, the last one last."""
        self._classes = classes
        self._constructed: set[str] = set()
        self._stores: list[TraceEvent] = []
        """What happened to the stores so far."""
        self._threads: list[threading.Thread] = []
        self._slowdowns: set[means.Slowdown] = set()
        self._lanes_end = threading.Event()
        self._ends = threading.Event()
        self._processes: dict[tuple[int, float], psutil.Process] = {}
        self._directories: dict[str, Path] = {}
        self._began_ns = 0
        assert cluster.head_node is not None
        self._note_node(cluster.head_node)

    def started(self, node: ClusterNode) -> None:
        """One more node, and its place."""
        self._places[node.node_id] = _Place(node)
        self._note_node(node)

    def _note_node(self, node: ClusterNode) -> None:
        """Remember what must be gone in the end."""
        self._directories[node.node_id] = node.directory
        for process in node.processes(daemon=True):
            self._note_process(process)

    def _note_process(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._processes[process.pid, process.create_time()] = process

    # ---- The run -------------------------------------------------------------------------------------------------

    def go(self, work: Mapping[str, Lane], patience_s: float, on_progress: Callable[[Soak], object]) -> None:
        """Until every fault has been performed and healed, and the lanes have come to the end of their round."""
        found = self._found
        self._began_ns = time.monotonic_ns()
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
            self._perform_what_is_due()
            on_progress(found)
            if len(found.performed) != performed or self._faults_last():
                performed, performed_since = len(found.performed), time.monotonic()
            if not (self._timed or self._anchored or self._faults_last()):
                self._lanes_end.set()
            elif time.monotonic() - performed_since > patience_s and not self._is_early():
                self._give_up(patience_s)
            progress = found.tasks + found.rounds.total()
            if progress != seen:
                seen, since = progress, time.monotonic()
            elif time.monotonic() - since > patience_s:
                found.hang = self._why(patience_s, workers)
                return
            if found.wrong:
                self._lanes_end.set()
            time.sleep(_LOOK_S)
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
                self._wrong(f"{name}, round {number}: {result!r} and not {expected_result!r}")
                return
            with self._lock:
                self._found.rounds[name] += 1
            number += 1

    def _wrong(self, what: str) -> None:
        with self._lock:
            self._found.wrong.append(what)

    def _problem(self, what: str) -> None:
        with self._lock:
            self._found.problems.append(what)

    def _faults_last(self) -> bool:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return bool(self._threads)

    def _is_early(self) -> bool:
        """Whether there are faults whose time has not come."""
        now_ns = time.monotonic_ns() - self._began_ns
        return any(fault.at_ns is not None and fault.at_ns > now_ns for fault in self._timed)

    def _give_up(self, patience_s: float) -> None:
        """Work goes on, and what is left of the plan finds nobody to befall."""
        for fault in (*self._timed, *self._anchored):
            self._problem(f"{fault}: for {patience_s:g} s there was nobody to befall")
        self._timed.clear()
        self._anchored.clear()

    def _why(self, patience_s: float, workers: Sequence[threading.Thread]) -> list[str]:
        """What waits, and why, in words."""
        stuck = ", ".join(thread.name for thread in workers if thread.is_alive())
        rows = [
            f"{row['NodeID']}~{row['Incarnation']} {'alive' if row['Alive'] else 'dead'}, free {row['Available']}"
            for row in dualray.nodes()
        ]
        left = [f"not performed: {fault}" for fault in (*self._timed, *self._anchored)]
        lasting = [f"still lasts: {thread.name}" for thread in self._threads if thread.is_alive()]
        waiting = runtime.current("chaos").verbs.waiting()  # type: ignore[attr-defined]
        return [f"no task has ended for {patience_s:g} s; these wait: {stuck}", *waiting, *rows, *lasting, *left[:10]]

    # ---- Traces --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for event in self._tail.look():
            self._count(event)
            if event.kind in _OF_STORES:
                self._stores.append(event)
            for name in {event.name, ""}:
                self._counts[event.kind, name] += 1
            for fault in [fault for fault in self._anchored if self._is_anchor(fault, event)]:
                self._anchored.remove(fault)
                self._kill_worker(fault, event.process)

    def _is_anchor(self, fault: Fault, event: TraceEvent) -> bool:
        name = fault.task_name or ""
        if event.kind != fault.event or name not in ("", event.name):
            return False
        return self._counts[event.kind, name] >= fault.start and "/" in event.process

    def _count(self, event: TraceEvent) -> None:
        found = self._found
        match event.kind:
            case TraceKind.TASK_STARTED if "." in event.name:
                workers = self._actors.setdefault(event.name.partition(".")[0], {})
                workers.pop(event.process, None)
                workers[event.process] = None
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

    def _note(self, fault: Fault, subject: str) -> None:
        """Into the trace, and to whoever watches."""
        event = TraceEvent(time.monotonic_ns(), TraceKind.FAULT, CHAOS, subject, "", str(fault.kind))
        self._trace.write(to_bytes((event,)))
        words = f"{fault}" + (f": {subject}" if subject not in ("", fault.node) else "")
        with self._lock:
            self._found.performed.append(words)
        self._on_fault(words)

    # ---- Faults --------------------------------------------------------------------------------------------------

    def _perform_what_is_due(self) -> None:
        now_ns = time.monotonic_ns() - self._began_ns
        for fault in [fault for fault in self._timed if fault.at_ns is not None and fault.at_ns <= now_ns]:
            if self._perform(fault):
                self._timed.remove(fault)

    def _perform(self, fault: Fault) -> bool:
        """Whether it has begun; else it waits, for an actor, or for the end of another fault."""
        match fault.kind:
            case FaultKind.KILL_ACTOR:
                return self._kill_actor(fault)
            case FaultKind.RESTART_HEAD:
                self._in_a_thread(fault, lambda: self._restart_control_plane(fault))
            case _:
                place = self._places[fault.node]
                if place.is_busy:
                    return False
                place.is_busy = True
                self._in_a_thread(fault, lambda: self._befall(fault, place))
        return True

    def _in_a_thread(self, fault: Fault, perform: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                perform()
            except (DualrayError, TimeoutError, OSError, psutil.Error) as error:
                self._problem(f"{fault}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, name=str(fault), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _kill_worker(self, fault: Fault, worker: str) -> None:
        """It may have ended meanwhile, as may its node: then the next one that passes the anchor takes its place."""
        directory = self._directories.get(node_of(Address(worker)))
        pid = means.pid_of(directory / "sockets", worker) if directory is not None else None
        if pid is not None and means.kill_process(pid):
            self._note(fault, worker)
        else:
            self._anchored.append(fault)

    def _kill_actor(self, fault: Fault) -> bool:
        for worker in reversed(self._actors.get(fault.actor, {})):
            directory = self._directories[node_of(Address(worker))]
            pid = means.pid_of(directory / "sockets", worker)
            if pid is not None and means.kill_process(pid):
                self._note(fault, worker)
                del self._actors[fault.actor][worker]
                return True
        self._actors.get(fault.actor, {}).clear()
        return False

    def _befall(self, fault: Fault, place: _Place) -> None:
        node, seconds = place.node, (fault.for_ns or 0) / 1e9
        match fault.kind:
            case FaultKind.PAUSE_NODE:
                self._note(fault, node.node_id)
                node.freeze()
                try:
                    self._ends.wait(seconds)
                finally:
                    node.thaw()
                self._wait_until_alive(node)
            case FaultKind.SLOW_NODE:
                slowdown = means.Slowdown(node.processes, fault.factor)
                self._slowdowns.add(slowdown)
                self._note(fault, node.node_id)
                slowdown.last(seconds)
                self._slowdowns.discard(slowdown)
                self._wait_until_alive(node)
            case _:
                self._note_node(node)
                self._note(fault, node.node_id)
                node.kill()
                self._cluster.remove_node(node, allow_graceful=False)
                if fault.kind is FaultKind.KILL_NODE:
                    return  # the place stays empty, and busy: nothing can befall it any more
                self._ends.wait(seconds)
                with self._tables:
                    if self._ends.is_set():
                        return
                    place.node = self._cluster.add_node(**NODE)
                self._note_node(place.node)
        place.is_busy = False

    def _wait_until_alive(self, node: ClusterNode) -> None:
        deadline = time.monotonic() + _BACK_S
        while not self._ends.is_set():
            if any(row["NodeID"] == node.node_id and row["Alive"] for row in dualray.nodes()):
                self._note_node(node)
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{node.node_id} was not alive again within {_BACK_S:g} s")
            time.sleep(_LOOK_S)

    def _restart_control_plane(self, fault: Fault) -> None:
        head_node = self._cluster.head_node
        assert head_node is not None
        with self._tables:
            server = means.control_plane_server(head_node.processes(daemon=True))
            if server is None:
                raise DualrayError("the head keeps the tables itself: without redis-server they cannot be taken away")
            self._note(fault, "")
            server.suspend()
            self._ends.wait((fault.for_ns or 0) / 1e9)
            server.kill()
            deadline = time.monotonic() + _BACK_S
            while (again := means.control_plane_server(head_node.processes(daemon=True))) is None or again == server:
                if self._ends.is_set():
                    return
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the control plane was not back within {_BACK_S:g} s")
                time.sleep(_LOOK_S)
            self._note_process(again)

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
        living = [node.node_id for node in self._cluster.list_all_nodes]
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
        for slowdown in list(self._slowdowns):
            slowdown.end()
        for thread in self._threads:
            thread.join(_BACK_S)
        for node in self._cluster.list_all_nodes:
            self._note_node(node)
        self._cluster.shutdown()
        self._trace.close()
        _, alive = psutil.wait_procs(list(self._processes.values()), timeout=_ENDS_S)
        self._found.left_behind += [f"process {process.pid}: {process}" for process in alive]
        for directory in self._directories.values():
            for path in (directory, SHARED_MEMORY / directory.name):
                if path.exists():
                    self._found.left_behind.append(str(path))
