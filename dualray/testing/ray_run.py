"""Runs a scenario's program on a local Ray of several nodes, and applies its faults meanwhile.

Of the scenario's cluster, Ray takes the number of nodes and what each has to offer; of its faults, those that can be
performed on its processes (PERFORMED). They are anchored at a time since the program's start, or at the begin, the end
or the submission of a call: the layer counts these (dualray/on_ray/anchors.py). There is no trace, so that the
oracles of the other modes do not look at the run, and figures of retries and transfers are not known: what the program
returns, or raises, is judged, and whether the faults happened.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import psutil

import dualray
from dualray.real.faults import Slowdown, signal_all
from dualray.shared.scenario.cluster import NodeGroup
from dualray.shared.scenario.fault_model import Fault, FaultKind
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.failures import Ended, call
from dualray.testing.outcome import Outcome, examination_of, make_outcome
from dualray.testing.scripts import SCRIPT_TIMEOUT_S, last_line, run_script

PERFORMED: Final = frozenset(
    {
        FaultKind.KILL_WORKER,
        FaultKind.PAUSE_WORKER,
        FaultKind.SLOW_WORKER,
        FaultKind.KILL_ACTOR,
        FaultKind.KILL_NODE,
        FaultKind.REBOOT_NODE,
        FaultKind.DRAIN_NODE,
        FaultKind.PAUSE_NODE,
        FaultKind.SLOW_NODE,
        FaultKind.ADD_NODES,
    }
)
_OF_SELF: Final = frozenset({FaultKind.KILL_WORKER})
_EVENTS: Final = ("task_started", "task_ended", "task_submitted")
_LOOK_S: Final = 0.02
_STORE_BYTES_MIN: Final = 80 * 1024 * 1024
"""The least that Ray takes."""
NODES_MAX: Final = 8
_PREEMPTION: Final = 2
"""Ray's number of the reason for which a node is drained."""


def run_on_ray(scenario: Scenario, program: Path | Callable[[], Any]) -> Outcome:
    """Run the program once.

    Raises:
        ValueError: a cluster, or a fault, that is not for Ray.
    """
    nodes = scenario.cluster.each_node()
    plan = scenario.planned()
    check_plan(plan, [name for name, _ in nodes])
    if scenario.cluster.scaling:
        raise ValueError(
            "cluster: groups: mode ray launches no nodes; run the scenario with --mode sim, or give a number of nodes"
        )
    if len(nodes) > NODES_MAX:
        raise ValueError(
            f"cluster: {len(nodes):,} nodes are too many: mode ray starts all nodes on this machine, and at most "
            f"{NODES_MAX}. Run the scenario with --mode sim"
        )
    with _cluster(nodes) as cluster, _Performer(cluster, plan, [_options(group) for _, group in nodes]) as faults:
        began_s = time.monotonic()
        ended = _run(scenario, program, cluster.address, faults)
        took_ns = round((time.monotonic() - began_s) * 1e9)
        starts = faults.starts()
    examination = examination_of(faults, ended_ns=took_ns, leaks=None)
    outcome = make_outcome(ended, (), examination)
    outcome.starts.update(starts)
    return outcome


def check_plan(plan: Sequence[Fault], names: Sequence[str]) -> None:
    """Say no to what cannot be performed on a local Ray of these nodes, the driver's first.

    Raises:
        ValueError: with the reason, and what does perform it.
    """
    for fault in plan:
        if fault.kind not in PERFORMED or fault.keeps_store or fault.group:
            raise ValueError(
                f"fault '{fault}': mode ray does not perform this fault; leave out --mode ray. Mode ray performs: "
                f"{', '.join(sorted(PERFORMED))}"
            )
        if fault.at_ns is None and fault.event not in _EVENTS:
            raise ValueError(
                f"fault '{fault}': mode ray cannot observe {fault.event}, because dualray only sees when calls "
                "are submitted, start and end"
            )
        for name in {fault.node, fault.on_node} - {"", *names}:
            raise ValueError(f"fault '{fault}': the cluster has no node {name!r}; the nodes are {', '.join(names)}")
        if fault.node == names[0]:
            raise ValueError(f"fault '{fault}': the driver and the head process run on {fault.node}; name another node")
        if fault.kind in (FaultKind.SLOW_NODE, FaultKind.SLOW_WORKER) and fault.factor <= 1:
            raise ValueError(
                f"fault '{fault}': mode ray can slow processes down, but not speed them up: the factor must be above 1"
            )


def _options(group: NodeGroup) -> dict[str, Any]:
    """A node of this group, for Ray's `Cluster`."""
    default = NodeGroup.model_fields["object_store"].default
    store_bytes = 2 * _STORE_BYTES_MIN if group.object_store == default else int(group.object_store)
    given = {
        "num_cpus": int(group.cpus),
        "num_gpus": int(group.gpus or 0),
        "resources": {name: int(amount) for name, amount in (group.resources or {}).items()},
        "labels": group.labels,
        "object_store_memory": max(store_bytes, _STORE_BYTES_MIN),
    }
    return {name: value for name, value in given.items() if value}


@contextlib.contextmanager
def _cluster(nodes: Sequence[tuple[str, NodeGroup]]) -> Iterator[Any]:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - only who runs on Ray has it

        first = {**_options(nodes[0][1]), "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        yield cluster
    finally:
        dualray.shutdown()
        cluster.shutdown()


_OF_RAY: Final = re.compile(r"(\x1b\[\d+m)?\((raylet|autoscaler|gcs_server|\w* ?pid=)|\s*\[\d{4}-\d\d-\d\d ")


def _without_rays(output: str) -> str:
    """What a script has printed, without what Ray tells at its driver of nodes and workers that are gone."""
    own, is_rays = [], False
    for line in output.splitlines():
        is_rays = bool(_OF_RAY.match(line)) or (is_rays and line[:1].isspace())  # what is told may have several lines
        if not is_rays:
            own.append(line)
    return "\n".join(own)


def _run(scenario: Scenario, program: Path | Callable[[], Any], address: str, faults: _Performer) -> Ended:
    """Until the program ends."""
    ended: list[Ended] = []

    def body() -> None:
        if isinstance(program, Path):
            settings = {"MODE": "ray", "FAULT_WATCHER": os.environ["DUALRAY_FAULT_WATCHER"], "LOG_TO_DRIVER": "0"}
            ran = run_script(program, scenario.workload.args, {**settings, "ADDRESS": address})
            ended.append(ran if ran.error else replace(ran, result=last_line(_without_rays(ran.output))))
        else:
            dualray.init(mode="ray", log_to_driver=False)  # it adopts the connection of this process
            try:
                ended.append(call(program))
            finally:
                dualray.shutdown()

    thread = threading.Thread(target=body, name=f"scenario {scenario.name}", daemon=True)
    deadline = time.monotonic() + SCRIPT_TIMEOUT_S
    faults.begin()
    thread.start()
    while thread.is_alive():
        faults.look()
        if time.monotonic() > deadline:
            return Ended(
                error=("TimeoutError", "Exception"), message=f"the script did not end within {SCRIPT_TIMEOUT_S:g} s"
            )
        thread.join(_LOOK_S)
    return ended[0] if ended else Ended(error=("DualrayError", "Exception"), message="the program could not be started")


class _Performer:
    """Performs a plan on the nodes of a local Ray; entered while it does.

    Attributes:
        performed: faults, in words, with whom each befell. problems: faults that could not be performed.
    """

    def __init__(self, cluster: Any, plan: Sequence[Fault], options: Sequence[dict[str, Any]]) -> None:
        self.performed: list[str] = []
        self.problems: list[str] = []
        self._cluster = cluster
        self._plan = list(plan)
        self._left = dict(enumerate(plan))
        self._options = options
        self._places: dict[str, Any] = {"node-0": cluster.head_node}
        self._ids: dict[str, str] = {}
        """The place of each node, by Ray's id."""
        self._watcher: Any = None
        self._actors: dict[str, dict[int, str]] = {}
        self._waiting: list[int] = []
        """Faults of actors whose time has come, and that find no actor yet."""
        self._threads: list[threading.Thread] = []
        self._slowdowns: list[Slowdown] = []
        self._ends = threading.Event()
        self._began_ns = 0

    def __enter__(self) -> Self:
        import ray  # noqa: PLC0415 - as above
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        from dualray.on_ray.anchors import NAME, NAMESPACE, VARIABLE, Watcher  # noqa: PLC0415

        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        for index, options in enumerate(self._options[1:], 1):
            self._places[f"node-{index}"] = self._cluster.add_node(**options)
        self._cluster.wait_for_nodes()
        self._note_ids()
        names = {fault.task_name or "" for fault in self._plan if fault.at_ns is None}
        names |= {f"{fault.actor}." for fault in self._plan if fault.actor}
        here = NodeAffinitySchedulingStrategy(self._cluster.head_node.node_id, soft=False)
        made = ray.remote(num_cpus=0, max_concurrency=10_000)(Watcher).options(
            name=NAME, namespace=NAMESPACE, lifetime="detached", scheduling_strategy=here
        )
        self._watcher = made.remote([tuple(self._anchor(index)) for index in self._anchored()], sorted(names))
        ray.get(self._watcher.names.remote())
        os.environ[VARIABLE] = NAME
        return self

    def __exit__(self, *_: object) -> None:
        import ray  # noqa: PLC0415 - as above

        from dualray.on_ray.anchors import VARIABLE  # noqa: PLC0415

        os.environ.pop(VARIABLE, None)
        self._ends.set()
        for slowdown in self._slowdowns:
            slowdown.end()
        for thread in self._threads:
            thread.join(30)
        ray.shutdown()

    def _note_ids(self) -> None:
        self._ids = {node.node_id: name for name, node in self._places.items()}

    def _anchored(self) -> list[int]:
        return [index for index, fault in enumerate(self._plan) if fault.at_ns is None]

    def _anchor(self, index: int) -> Any:
        from dualray.on_ray.anchors import Anchor  # noqa: PLC0415 - as above

        fault = self._plan[index]
        node = self._places[fault.on_node].node_id if fault.on_node else ""
        is_suicide = fault.kind in _OF_SELF and not fault.after_ns
        return Anchor(
            index,
            fault.event,
            fault.task_name or "",
            node,
            fault.start,
            fault.submission,
            is_suicide,
            fault.after_ns > 0,
        )

    def begin(self) -> None:
        """Now is the time from which the plan's times count."""
        self._began_ns = time.monotonic_ns()

    @property
    def outstanding(self) -> list[Fault]:
        """Faults that have not begun."""
        return [self._plan[index] for index in self._left]

    def starts(self) -> dict[str, int]:
        """How many calls of each name that the plan wants to hear of have begun."""
        import ray  # noqa: PLC0415 - as above

        counts: dict[str, int] = ray.get(self._watcher.started.remote())
        return {name: count for name, count in counts.items() if name}

    def look(self) -> None:
        """Perform what is due."""
        import ray  # noqa: PLC0415 - as above

        passed, self._actors = ray.get(self._watcher.take.remote())
        for index, node, pid in passed:
            self._in_a_thread(index, node, pid)
        now_ns = time.monotonic_ns() - self._began_ns
        for index, fault in list(self._left.items()):
            if fault.at_ns is not None and fault.at_ns <= now_ns:
                self._in_a_thread(index, "", 0)
        for index in list(self._waiting):
            self._waiting.remove(index)
            self._kill_actor(index)

    def _in_a_thread(self, index: int, node: str, pid: int) -> None:
        fault = self._left.pop(index)

        def guarded() -> None:
            try:
                self._ends.wait(fault.after_ns / 1e9)
                self._perform(index, fault, node, pid)
            except (OSError, RuntimeError, ValueError, AssertionError, psutil.Error) as error:
                self.problems.append(f"{fault}: {type(error).__name__}: {error}")
            finally:
                self._watcher.performed.remote(index)

        thread = threading.Thread(target=guarded, name=str(fault), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _note(self, index: int, subject: str) -> None:
        """It has begun: who has brought it about goes on."""
        self.performed.append(f"{self._plan[index]}: {subject}")
        self._watcher.performed.remote(index)

    def _perform(self, index: int, fault: Fault, node: str, pid: int) -> None:
        match fault.kind:
            case FaultKind.KILL_WORKER:
                if fault.after_ns:
                    os.kill(pid, signal.SIGKILL)
                self._note(index, f"process {pid} on {self._ids.get(node, node)}")
            case FaultKind.PAUSE_WORKER | FaultKind.SLOW_WORKER:
                self._hold_up(index, fault, [psutil.Process(pid)], f"process {pid}")
            case FaultKind.KILL_ACTOR:
                self._kill_actor(index)
            case FaultKind.PAUSE_NODE | FaultKind.SLOW_NODE:
                self._hold_up(index, fault, _processes_of(self._places[fault.node]), fault.node)
            case FaultKind.ADD_NODES:
                for _ in range(fault.count):
                    self._places[f"node-{len(self._places)}"] = self._cluster.add_node(**self._options[0])
                self._note_ids()
                self._note(index, f"{fault.count} nodes")
            case _:
                self._take_away(index, fault)

    def _hold_up(self, index: int, fault: Fault, processes: list[psutil.Process], subject: str) -> None:
        seconds = threading.TIMEOUT_MAX if fault.for_ns is None else fault.for_ns / 1e9
        if fault.kind in (FaultKind.SLOW_NODE, FaultKind.SLOW_WORKER):
            self._note(index, subject)
            slowdown = Slowdown(lambda: processes, fault.factor)
            self._slowdowns.append(slowdown)
            slowdown.last(seconds)
            return
        signal_all(processes, signal.SIGSTOP)
        self._note(index, subject)
        try:
            self._ends.wait(seconds)
        finally:
            signal_all(processes, signal.SIGCONT)

    def _kill_actor(self, index: int) -> None:
        fault = self._plan[index]
        for pid in reversed(self._actors.get(fault.actor, {})):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._note(index, f"process {pid}")
                return
        self._waiting.append(index)

    def _take_away(self, index: int, fault: Fault) -> None:
        """The node goes; in good order, if it is drained. Later another one stands in its place, if `for` says so."""
        node = self._places[fault.node]
        seconds = (fault.for_ns or 0) / 1e9
        if fault.kind is FaultKind.DRAIN_NODE:
            self._drain(node, seconds)
            self._note(index, fault.node)
            self._ends.wait(seconds)
            self._cluster.remove_node(node, allow_graceful=True)
        else:
            self._cluster.remove_node(node, allow_graceful=False)
            self._note(index, fault.node)
            self._ends.wait(seconds)
        if fault.for_ns is not None and not self._ends.is_set():
            place = int(fault.node.removeprefix("node-"))
            self._places[fault.node] = self._cluster.add_node(**self._options[min(place, len(self._options) - 1)])
            self._note_ids()

    def _drain(self, node: Any, seconds: float) -> None:
        """Tell Ray that the node will go."""
        raylet: Any = importlib.import_module("ray._raylet")  # it is compiled, and has no types
        until_ms = round((time.time() + seconds) * 1000) if seconds else 0
        client = raylet.GcsClient(address=self._cluster.address)
        client.drain_node(node.node_id, _PREEMPTION, "a fault of a scenario", until_ms)


def _processes_of(node: Any) -> list[psutil.Process]:
    """A node's processes and their children."""
    found: dict[int, psutil.Process] = {}
    for each in node.all_processes.values():
        for info in each:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(info.process.pid)
                found |= {child.pid: child for child in (process, *process.children(recursive=True))}
    return list(found.values())
