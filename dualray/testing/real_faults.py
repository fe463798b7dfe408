"""Performs a plan of faults on a real cluster of this machine, each at its time or at its event in the traces.

Theory of operation. The cluster records its decisions and traces. Whoever runs the workload calls `look` many times a
second: it follows the traces, so that a fault can be performed at the n-th start of a task, kills what is to be killed
at once, and gives every fault that lasts a thread of its own. A name in the plan is a place: the node that was started
in place of a killed node-1 is node-1 to the faults that come later (the cluster calls it node-4, say). One place
suffers one fault at a time; the next one waits for it. The head's node and the driver on it live through all of it; its
workers do not.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import dualray
from dualray.cluster_utils import Cluster, ClusterNode
from dualray.exceptions import DualrayError
from dualray.real import faults as means
from dualray.real.session.session import SHARED_MEMORY
from dualray.report.tail import TraceTail
from dualray.shared.model.ids import HEAD, Address, ObjectID, is_put, node_of
from dualray.shared.proof.trace import TraceEvent, TraceKind, to_bytes
from dualray.shared.scenario.fault_model import (
    ALL,
    MAY_END,
    OF_HEAD,
    OF_OBJECTS,
    OF_WORKERS,
    TASK_ANCHORS,
    Fault,
    FaultKind,
)
from dualray.testing import real_doors as doors

CHAOS = "chaos"
"""Who performs faults, in the trace."""

LOOK_S = 0.02
_BACK_S = 90.0
"""A node whose pause is over has so long to be alive again; see REJOIN_TIMEOUT_S of the daemon."""
_ENDS_S = 10.0
_OF_ANY_NODE = means.OF_LINKS | means.OF_STORES
"""Kinds that may befall the node of head and driver as well."""


OF_DOORS = means.OF_LINKS | means.OF_STORES | OF_OBJECTS
"""Kinds that a cluster's own processes perform: it must take faults."""


def check_plan(plan: Sequence[Fault], names: Sequence[str], *, instead: str = "") -> None:
    """Say no to what cannot be performed on a real cluster of these nodes, the driver's first.

    Args:
        instead: see `dualray.real.faults.refuse`.

    Raises:
        ValueError: a kind of fault that real mode does not perform, or a node that is not there, or has the driver and
            would end.
    """
    for fault in plan:
        means.refuse(fault, instead)
        if fault.on_node and fault.on_node not in names:
            raise ValueError(
                f"fault '{fault}': the cluster has no node {fault.on_node!r}; the nodes are {', '.join(names)}"
            )
        for name in {fault.node, *fault.nodes, *fault.others} - {"", HEAD, ALL, *names}:
            raise ValueError(f"fault '{fault}': the cluster has no node {name!r}; the nodes are {', '.join(names)}")
        if fault.node == names[0] and fault.kind not in _OF_ANY_NODE:
            known = ", ".join(names[1:]) or "none"
            raise ValueError(
                f"fault '{fault}': node {fault.node!r} does not accept this fault. The nodes that accept this "
                f"fault are: {known}"
            )
        doors.check_links(fault, names)
        if fault.kind is FaultKind.ADD_NODES and fault.group:
            raise ValueError(f"fault '{fault}': real mode cannot launch nodes of a group; leave out 'of {fault.group}'")


def _seconds(fault: Fault) -> float:
    """How long it lasts at most."""
    return threading.TIMEOUT_MAX if fault.for_ns is None else fault.for_ns / 1e9


def _incarnation_of(node: ClusterNode) -> int:
    return max((row["Incarnation"] for row in dualray.nodes() if row["NodeID"] == node.node_id), default=0)


class _Place:
    """Where a node is: the node changes, the place stays.

    Attributes:
        options: what a node that is started there is like; see `Cluster.add_node`.
    """

    def __init__(self, node: ClusterNode, options: Mapping[str, Any]) -> None:
        self.node = node
        self.options = options
        self.is_busy = False


class FaultPerformer:
    """See the module. What may end and has no `for` lasts until `end`.

    Args:
        cluster: started, and joined by this process; it records into `record`.
        plan: see `check_plan`; anchors are counted from the start of the cluster, times from `begin`.
        record: the directory of the cluster's traces.
        like_first: what a node is like that a fault adds; see `Cluster.add_node`.
        spares_puts: no copy of an object that was put is lost: no task can make it again.
        on_fault: called with the words of each fault that has been performed.

    Attributes:
        performed: faults, in words, with whom each befell.
        problems: faults that could not be performed, or did not heal.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Sequence[Fault],
        record: Path,
        *,
        like_first: Mapping[str, Any] | None = None,
        spares_puts: bool = False,
        on_fault: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._like_first = like_first or {}
        self._spares_puts = spares_puts
        self.performed: list[str] = []
        self.problems: list[str] = []
        self._cluster = cluster
        self._on_fault = on_fault
        self._tail = TraceTail(record)
        self._trace = (record / f"{CHAOS}.trace").open("wb", buffering=0)
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}
        self._tables = threading.Lock()
        """Held by whoever needs them, to join a node, or takes them away."""
        self._timed = sorted((fault for fault in plan if fault.at_ns is not None), key=lambda fault: fault.at_ns or 0)
        self._anchored = [fault for fault in plan if fault.at_ns is None]
        self._later: list[tuple[int, Fault, TraceEvent]] = []
        """Those whose event has come, and that come so long after it: when, and the event."""
        self._due: list[Fault] = []
        """Those whose time or event has come, and that wait for whom they befall."""
        self._counts: Counter[tuple[str, str, str]] = Counter()
        """Of events of a kind, of a name or "" for any, in a place or "" for any."""
        self._watched = {fault.task_name for fault in plan if fault.submission}
        """Names of tasks whose submissions are counted."""
        self._submitted: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        """Of such tasks, as which they were submitted."""
        self._passed: dict[str, list[TraceEvent]] = {}
        """What such tasks have done of which the submission is not known yet: traces come in any order."""
        self._place_names: dict[str, str] = {}
        """Of each node that ever was, the place."""
        self._actors: dict[str, dict[str, None]] = {}
        """Of each class, the workers that have started one of its methods, the last one last."""
        self._threads: dict[threading.Thread, Fault] = {}
        self._slowdowns: set[means.Slowdown] = set()
        self._ends = threading.Event()
        self._processes: dict[tuple[int, float], psutil.Process] = {}
        self._directories: dict[str, Path] = {}
        self._began_ns = time.monotonic_ns()
        self._links = doors.Links(self._nodes_by_place)
        self._number = itertools.count()
        assert cluster.head_node is not None
        self._note_node(cluster.head_node)

    def started(self, node: ClusterNode, options: Mapping[str, Any]) -> None:
        """One more node, and its place; `options` as for `Cluster.add_node`."""
        self._places[node.node_id] = _Place(node, options)
        self._place_names[node.node_id] = node.node_id
        self._note_node(node)

    def begin(self) -> None:
        """Now is the time from which the plan's times count."""
        self._began_ns = time.monotonic_ns()

    def _nodes_by_place(self) -> dict[str, ClusterNode]:
        """The nodes that are there, the head's first."""
        first = self._cluster.head_node
        assert first is not None
        return {first.node_id: first} | {
            name: place.node for name, place in list(self._places.items()) if place.node.is_alive
        }

    def _note_node(self, node: ClusterNode) -> None:
        """Remember what must be gone in the end."""
        self._directories[node.node_id] = node.directory
        for process in node.processes(daemon=True):
            self._note_process(process)

    def _note_process(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._processes[process.pid, process.create_time()] = process

    # ---- How far it is -------------------------------------------------------------------------------------------

    @property
    def is_lasting(self) -> bool:
        """Whether a fault has begun that will heal, and has not."""
        return bool(self.lasting())

    def lasting(self) -> list[str]:
        """Those faults."""
        going_on = [fault for thread, fault in self._threads.items() if thread.is_alive()]
        return [str(fault) for fault in going_on if fault.for_ns is not None or fault.kind not in MAY_END]

    @property
    def outstanding(self) -> list[Fault]:
        """Faults that have not begun."""
        return [*self._due, *self._timed, *self._anchored, *[fault for _, fault, _ in self._later]]

    @property
    def is_early(self) -> bool:
        """Whether there are faults whose time has not come."""
        return bool(self._timed or self._later)

    def give_up(self, why: str) -> None:
        """What is left of the plan is not performed."""
        for fault in self.outstanding:
            self._problem(f"{fault}: {why}")
        self._due.clear()
        self._timed.clear()
        self._anchored.clear()
        self._later.clear()

    # ---- Traces --------------------------------------------------------------------------------------------------

    def look(self) -> list[TraceEvent]:
        """Take in what has happened since the last call, and perform what is due."""
        events = self._tail.look()
        for event in events:
            self._take_in(event)
        self._take_up()
        now_ns = time.monotonic_ns() - self._began_ns
        while self._timed and (self._timed[0].at_ns or 0) <= now_ns:
            self._due.append(self._timed.pop(0))
        self._due = [fault for fault in self._due if not self._perform(fault)]
        return events

    def _take_in(self, event: TraceEvent) -> None:
        if event.kind is TraceKind.TASK_STARTED and "." in event.name:
            workers = self._actors.setdefault(event.name.partition(".")[0], {})
            workers.pop(event.process, None)
            workers[event.process] = None
        for name in {event.name, ""}:
            for place in {self._place_of(event), ""}:
                self._counts[event.kind, name, place] += 1
        events = [event]
        if event.name in self._watched:
            if event.kind is TraceKind.TASK_SUBMITTED:
                self._submitted[event.name] += 1
                self._numbers[event.subject] = self._submitted[event.name]
                events += self._passed.pop(event.subject, [])
            elif event.kind in TASK_ANCHORS.values() and event.subject not in self._numbers:
                self._passed.setdefault(event.subject, []).append(event)
        for each in events:
            for fault in [fault for fault in self._anchored if self._is_anchor(fault, each)]:
                self._anchored.remove(fault)
                self._later.append((time.monotonic_ns() + fault.after_ns, fault, each))

    def _take_up(self) -> None:
        """What has come to its time after its anchor."""
        now_ns = time.monotonic_ns()
        ready = [later for later in self._later if later[0] <= now_ns]
        self._later = [later for later in self._later if later[0] > now_ns]
        for _, fault, event in ready:
            if fault.kind in OF_WORKERS:
                self._befall_worker(fault, event.process)
            elif fault.kind in OF_OBJECTS:
                self._befall_object(fault, event)
            else:
                self._due.append(fault)

    def _place_of(self, event: TraceEvent) -> str:
        """Where it happened: the driver and the head are on the first node."""
        node = node_of(Address(event.process))
        first = self._cluster.head_node
        assert first is not None
        return self._place_names.get(node, first.node_id)

    def _is_anchor(self, fault: Fault, event: TraceEvent) -> bool:
        name = fault.task_name or ""
        if event.kind != fault.event or name not in ("", event.name):
            return False
        if fault.on_node not in ("", self._place_of(event)):
            return False
        if fault.submission:
            return self._numbers.get(event.subject) == fault.submission
        is_its_time = self._counts[event.kind, name, fault.on_node] >= fault.start
        return is_its_time and (fault.kind not in OF_WORKERS or "/" in event.process)

    def _note(self, fault: Fault, subject: str) -> None:
        """Into the trace, and to whoever watches."""
        event = TraceEvent(time.monotonic_ns(), TraceKind.FAULT, CHAOS, subject, "", str(fault.kind))
        self._trace.write(to_bytes((event,)))
        words = f"{fault}" + (f": {subject}" if subject not in ("", fault.node) else "")
        with self._lock:
            self.performed.append(words)
        self._on_fault(words)

    def _problem(self, what: str) -> None:
        with self._lock:
            self.problems.append(what)

    # ---- Faults --------------------------------------------------------------------------------------------------

    def _perform(self, fault: Fault) -> bool:
        """Whether it has begun; else it waits, for an actor, or for the end of another fault."""
        match fault.kind:
            case FaultKind.KILL_ACTOR:
                return self._kill_actor(fault)
            case FaultKind.RESTART_REDIS | FaultKind.RESTART_HEAD:
                self._in_a_thread(fault, lambda: self._restart_control_plane(fault))
            case kind if kind in OF_HEAD:
                self._in_a_thread(fault, lambda: self._befall_head(fault))
            case kind if kind in means.OF_LINKS:
                self._in_a_thread(fault, lambda: self._befall_links(fault))
            case kind if kind in means.OF_STORES:
                place = self._places.get(fault.node)
                if place is not None and place.is_busy:
                    return False
                self._in_a_thread(fault, lambda: self._befall_store(fault))
            case FaultKind.ADD_NODES:
                self._in_a_thread(fault, lambda: self._add_nodes(fault))
            case _:
                place = self._places[fault.node]
                if place.is_busy:
                    return False
                place.is_busy = True
                self._in_a_thread(fault, lambda: self._apply_fault(fault, place))
        return True

    def _in_a_thread(self, fault: Fault, perform: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                perform()
            except (DualrayError, TimeoutError, OSError, psutil.Error) as error:
                self._problem(f"{fault}: {type(error).__name__}: {error}")
            except Exception as error:
                self._problem(f"{fault}: a bug in dualray: {type(error).__name__}: {error}")
                raise

        thread = threading.Thread(target=guarded, name=str(fault), daemon=True)
        self._threads[thread] = fault
        thread.start()

    def _befall_worker(self, fault: Fault, worker: str) -> None:
        """It may have ended meanwhile, as may its node: then the next one that passes the anchor takes its place."""
        directory = self._directories.get(node_of(Address(worker)))
        pid = means.pid_of(directory / "sockets", worker) if directory is not None else None
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid is None:
                raise psutil.NoSuchProcess(-1)
            process = psutil.Process(pid)
            if fault.kind is FaultKind.KILL_WORKER:
                process.kill()
                self._note(fault, worker)
            else:
                if fault.kind is FaultKind.PAUSE_WORKER:
                    process.suspend()  # at once: in a moment it may have ended
                self._in_a_thread(fault, lambda: self._hold_up(fault, process, worker))
            return
        if fault.submission:
            self._problem(f"{fault}: {worker} had ended before")
        else:
            self._anchored.append(fault)

    def _hold_up(self, fault: Fault, process: psutil.Process, subject: str) -> None:
        """Have one process stand still, or go on slowly, for as long as the fault lasts."""
        seconds = _seconds(fault)
        if fault.kind in (FaultKind.SLOW_WORKER, FaultKind.SLOW_HEAD):
            slowdown = means.Slowdown(lambda: [process], fault.factor)
            self._slowdowns.add(slowdown)
            self._note(fault, subject)
            slowdown.last(seconds)
            self._slowdowns.discard(slowdown)
            return
        with contextlib.suppress(psutil.NoSuchProcess):  # another fault has ended it since it was chosen
            process.suspend()
        self._note(fault, subject)
        try:
            self._ends.wait(seconds)
        finally:
            means.signal_all([process], signal.SIGCONT)

    def _befall_head(self, fault: Fault) -> None:
        head_node = self._cluster.head_node
        assert head_node is not None
        head = means.head_process(head_node.processes(daemon=True))
        if head is None:
            raise DualrayError("the head process has already ended")
        if fault.kind is FaultKind.KILL_HEAD:
            head.kill()
            self._note(fault, "")
        else:
            with self._tables:
                self._hold_up(fault, head, "")

    def _befall_links(self, fault: Fault) -> None:
        """What a partition takes away for too long comes back in its next incarnation, and is waited for."""
        self._note(fault, ",".join(fault.nodes) or fault.node)
        self._links.begin(fault)
        try:
            self._ends.wait(_seconds(fault))
        finally:
            self._links.end(fault)
        nodes = self._nodes_by_place()
        for name in fault.nodes or (fault.node,):
            if name in self._places and name in nodes and fault.kind is not FaultKind.LINK:
                self._wait_until_alive(nodes[name])

    def _befall_store(self, fault: Fault) -> None:
        begin, end = doors.orders_of(fault, next(self._number))
        node = self._tell_place(fault.node, begin)
        self._note(fault, node.node_id)
        if end is not None:
            self._ends.wait(_seconds(fault))
            with contextlib.suppress(DualrayError):  # the node has ended meanwhile, and the fault with it
                doors.tell_node(node, end)

    def _tell_place(self, name: str, order: dict[str, Any]) -> ClusterNode:
        """Have the node at a place perform something. One that another fault ends just then is waited for: the next
        node at this place performs it."""
        deadline = time.monotonic() + _BACK_S
        while True:
            node = self._nodes_by_place().get(name)
            try:
                if node is not None and not doors.tell_node(node, order):
                    raise DualrayError("the fault found no target")
                if node is not None:
                    return node
            except DualrayError:
                if not self._places[name].is_busy or time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise DualrayError(f"{name} has ended, and no node replaced it within {_BACK_S:g} s")
            if self._ends.wait(LOOK_S):
                raise DualrayError("the run ended before the fault happened")

    def _befall_object(self, fault: Fault, event: TraceEvent) -> None:
        """Its copy may be gone by now, or is spared: then the next one that passes the anchor takes its place."""
        node = self._nodes_by_place().get(self._place_of(event))
        is_spared = self._spares_puts and is_put(ObjectID(bytes.fromhex(event.subject)))
        try:
            if node is not None and not is_spared and doors.befall_object(node, fault, event.subject):
                self._note(fault, event.subject)
                return
        except DualrayError:  # the node has ended
            pass
        self._anchored.append(fault)

    def _add_nodes(self, fault: Fault) -> None:
        """Machines like the head's node join."""
        self._note(fault, "nodes")
        for _ in range(fault.count):
            node = self._cluster.add_node(**self._like_first)
            self.started(node, self._like_first)
        self._links.tell()

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

    def _apply_fault(self, fault: Fault, place: _Place) -> None:
        node, seconds = place.node, _seconds(fault)
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
            case FaultKind.REBOOT_NODE if fault.keeps_store:
                self._note(fault, node.node_id)
                incarnation = _incarnation_of(node)
                doors.switch_off(node, keep=True)
                self._ends.wait(seconds)
                doors.switch_on(node, keep=True)
                self._wait_until_alive(node, incarnation + 1)
            case _:
                self._note_node(node)
                self._note(fault, node.node_id)
                back_at_s = time.monotonic() + seconds
                if fault.kind is FaultKind.DRAIN_NODE:
                    node.drain(seconds)
                node.kill()
                self._cluster.remove_node(node, allow_graceful=False)
                if fault.for_ns is None:
                    return  # the place stays empty, and busy: nothing can befall it any more
                self._ends.wait(max(back_at_s - time.monotonic(), 0.0))
                with self._tables:
                    if self._ends.is_set():
                        return
                    place.node = self._cluster.add_node(**place.options)
                    self._place_names[place.node.node_id] = fault.node
                self._note_node(place.node)
                self._links.tell()
        place.is_busy = False

    def _wait_until_alive(self, node: ClusterNode, incarnation: int = 0) -> None:
        deadline = time.monotonic() + _BACK_S
        while not self._ends.is_set():
            if all(place.node is not node for place in self._places.values()):
                return  # another fault has ended it meanwhile, and has put another node in its place
            rows = [row for row in dualray.nodes() if row["NodeID"] == node.node_id]
            if any(row["Alive"] and row["Incarnation"] >= incarnation for row in rows):
                self._note_node(node)
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the node {node.node_id} did not join the cluster within {_BACK_S:g} s after its restart"
                )
            time.sleep(LOOK_S)

    def _restart_control_plane(self, fault: Fault) -> None:
        """Take its server away; the head starts it again."""
        head_node = self._cluster.head_node
        assert head_node is not None
        with self._tables:
            server = means.control_plane_server(head_node.processes(daemon=True))
            if server is None:
                raise DualrayError(
                    "the fault cannot stop the cluster's database, because the head process itself stores the "
                    "tables: no redis-server runs"
                )
            self._note(fault, "")
            server.suspend()
            self._ends.wait((fault.for_ns or 0) / 1e9)
            server.kill()
            deadline = time.monotonic() + _BACK_S
            while (again := means.control_plane_server(head_node.processes(daemon=True))) is None or again == server:
                if self._ends.is_set():
                    return
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the cluster's database (the control plane) did not start again within {_BACK_S:g} s"
                    )
                time.sleep(LOOK_S)
            self._note_process(again)

    # ---- The end -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Heal what lasts, and begin nothing more."""
        self._ends.set()
        for slowdown in list(self._slowdowns):
            slowdown.end()
        for thread in self._threads:
            thread.join(_BACK_S)
        for node in self._cluster.list_all_nodes():
            self._note_node(node)
        self._trace.close()

    def left_behind(self) -> list[str]:
        """Processes and files of the cluster, which has been shut down."""
        _, alive = psutil.wait_procs(list(self._processes.values()), timeout=_ENDS_S)
        left = [f"process {process.pid}: {process}" for process in alive]
        for directory in self._directories.values():
            left += [str(path) for path in (directory, SHARED_MEMORY / directory.name) if path.exists()]
        return left
