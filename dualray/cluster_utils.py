"""`Cluster`: several nodes on one machine, for tests and for trying things out, with the interface of Ray's `Cluster`.

In real mode each node is a daemon with its own node manager, workers, object store and directory. The nodes connect
over TCP on the loopback interface, as nodes on different machines do. In sim mode the nodes are virtual machines of the
simulation that `init(address=cluster.address)` starts; they join and leave it in virtual time. All nodes end with this
process at the latest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import secrets
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from dualray import api
from dualray.as_ray.system_config import all_limits_of_ray, limits_of_variables
from dualray.cluster_address import ClusterAddress, planned
from dualray.exceptions import DualrayError, rays_words
from dualray.options import unknown_name
from dualray.real.cluster.launch import (
    StartedNode,
    drain_node,
    launch_plan,
    node_options,
    read_growth,
    start_node,
    stop_node,
)
from dualray.settings import SETTINGS, resolve
from dualray.shared.labels import parse_labels
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.scenario.growth import Growth
from dualray.shared.units import parse_size_bytes
from dualray.sim.cluster.planned_nodes import NodePlan, PlannedNode
from dualray.sim.processes.worker_runtime import VIRTUAL_PORT
from dualray.sim.runtime import DEFAULT_STORE_BYTES, OFFERED_MEMORY_BYTES
from dualray.sim.usercode.process_calls import ip_of

_WAIT_TIMEOUT_S = 30.0
_DRAIN_TIMEOUT_S = 60.0
"""Longer than `drain_timeout_ns`, after which the node ends by itself."""


_NAMES = """
autoscaling_config cluster_id dashboard_agent_listen_port dashboard_host dashboard_port enable_object_reconstruction
env_vars external_addresses gcs_address gcs_server_port huge_pages include_dashboard include_log_monitor
log_to_stderr max_worker_port metrics_agent_port metrics_export_port min_worker_port no_monitor node_id
node_ip_address node_manager_port node_name object_manager_port object_spilling_directory plasma_directory
plasma_store_socket_name proxy_server_url ray_client_server_port ray_debugger_external raylet_socket_name
redirect_output redis_address redis_max_clients redis_password redis_port redis_shard_ports redis_username
resource_isolation_config runtime_env_agent_port runtime_env_dir_name session_name setup_worker_path temp_dir
tracing_startup_hook webui worker_path worker_port_list _system_config
"""
_WITHOUT_EFFECT = frozenset(_NAMES.split())
"""Arguments of a node that Ray's `Cluster.add_node` knows and that say nothing to dualray."""
_PORTS = frozenset(name for name in (*_WITHOUT_EFFECT, "metrics_port") if name.endswith("_port")) - {
    "max_worker_port",
    "min_worker_port",
}
OF_THE_FIRST_NODE = (
    "limits, seed, decision_log, num_redis_shards and autoscale apply to the whole cluster: pass them with its "
    "first node"
)


@dataclasses.dataclass(slots=True, eq=False)
class ClusterNode:
    """A node of a `Cluster`."""

    _started: StartedNode
    is_alive: bool = True

    @property
    def node_id(self) -> str:
        """Name of the node, such as `node-1`, which `dualray.nodes()` calls NodeID."""
        return self._started.node

    @property
    def unique_id(self) -> str:
        """The same, under Ray's name."""
        return self.node_id

    @property
    def address(self) -> str:
        """host:port of the node's gateway."""
        return self._started.endpoint

    @property
    def directory(self) -> Path:
        """Directory of the node's session; the logs are in `logs/`."""
        return self._started.directory

    @property
    def pid(self) -> int:
        """Process id of the node's daemon."""
        return self._started.process.pid

    def processes(self, *, daemon: bool = False) -> list[psutil.Process]:
        """Return the node manager and the workers; with `daemon`, all processes of the node."""
        try:
            root = psutil.Process(self.pid)
            found = root.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        if daemon:
            return [root, *found]
        heads = {process.pid for process in found if _is_head(process)}
        return [process for process in found if process.pid not in heads and _parent(process) not in heads]

    def live_processes(self) -> list[tuple[str, psutil.Process]]:
        """Return the running processes of the node with their names: daemon, node manager, workers, head."""
        found = []
        for process in self.processes(daemon=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process.name(), process))
        return found

    def any_processes_alive(self) -> bool:
        """Return whether any process of the node runs."""
        return bool(self.live_processes())

    def remaining_processes_alive(self) -> bool:
        """Return whether the node is alive. Its daemon ends when a process ends that the node needs."""
        return self._started.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the node manager and all workers at once, as if the machine lost power."""
        self._signal(signal.SIGKILL)

    def kill_raylet(self) -> None:
        """As `kill`, under Ray's name."""
        self.kill()

    def cut_power(self) -> None:
        """Kill the node as `kill` does; its daemon can boot it again. The node must take faults."""
        for process in self.processes():
            if _parent(process) != self.pid:  # else it is the one that starts them
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def drain(self, timeout_s: float = _DRAIN_TIMEOUT_S) -> bool:
        """Let the node finish its tasks, hand on its objects and leave; return whether it left in time."""
        return drain_node(self._started, min(timeout_s, _DRAIN_TIMEOUT_S))

    def freeze(self) -> None:
        """Send SIGSTOP to the node manager and the workers, as if the machine hung."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT, so that the node continues."""
        self._signal(signal.SIGCONT)

    def _end(self) -> None:
        """End what is left of it; returns when it is gone."""
        stop_node(self._started)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue


class VirtualNode(ClusterNode):
    """A node of a `Cluster` in sim mode. It has no process and no directory."""

    def __init__(self, planned: PlannedNode, plan: NodePlan) -> None:
        self._planned = planned
        self._plan = plan
        self.is_alive = True

    @property
    def node_id(self) -> str:
        return self._planned.name

    @property
    def address(self) -> str:
        return f"{ip_of(self._planned.name)}:{VIRTUAL_PORT}"

    @property
    def directory(self) -> Path:
        raise DualrayError(f"node {self.node_id} has no directory, because simulated nodes write no files")

    @property
    def pid(self) -> int:
        raise DualrayError(f"node {self.node_id} has no daemon and no pid, because simulated nodes have no processes")

    def processes(self, *, daemon: bool = False) -> list[psutil.Process]:
        return []

    def any_processes_alive(self) -> bool:
        return self.remaining_processes_alive()

    def remaining_processes_alive(self) -> bool:
        return self.is_alive and self._planned.is_alive

    def __repr__(self) -> str:
        return f"VirtualNode({self.node_id!r}, is_alive={self.is_alive})"

    def kill(self) -> None:
        """Kill the virtual node manager and workers at once, as if the machine lost power."""
        self._planned.kill()

    def drain(self, timeout_s: float = _DRAIN_TIMEOUT_S) -> bool:
        """Let the node drain and leave in virtual time; return whether it left in time."""
        return self._planned.drain(round(min(timeout_s, _DRAIN_TIMEOUT_S) * 1e9))

    def freeze(self) -> None:
        """Stop the virtual machine, as if it hung."""
        self._planned.pause()

    def thaw(self) -> None:
        """Let the virtual machine continue."""
        self._planned.resume()

    def _end(self) -> None:
        self._plan.remove(self._planned)


def _is_head(process: psutil.Process) -> bool:
    try:
        return "dualray.real.processes.head" in process.cmdline()
    except psutil.Error:
        return False


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return 0


class Cluster:
    """A cluster of several nodes on this machine. As a context manager it shuts the cluster down at its end.

    Args:
        initialize_head: start the head's node at once.
        connect: connect this process as a driver, too.
        head_node_args: arguments of `add_node` for the head's node, and the `limits`, `seed` and `decision_log` of the
            cluster.
        shutdown_at_exit: whether the nodes end with this process. If not, `shutdown()` or `dualray stop` ends them.
        mode: "real" or "sim". Default: DUALRAY_MODE, or "real". In sim mode pass `cluster.address` itself to `init`,
            and not a copy of its text; `connect` sets the `mode`.
        takes_faults: whether `dualray.testing` can inject faults into the nodes. Their messages then pass through
            gateways, which takes time.
    """

    def __init__(
        self,
        initialize_head: bool = False,
        connect: bool = False,
        head_node_args: Mapping[str, Any] | None = None,
        shutdown_at_exit: bool = True,
        *,
        mode: str | None = None,
        takes_faults: bool = False,
    ) -> None:
        settled = SETTINGS["mode"].parse("mode", mode) if mode is not None else resolve({})["mode"].value
        self._plan = NodePlan() if settled == "sim" else None
        self._ends_with_us = shutdown_at_exit
        self._takes_faults = takes_faults
        self.head_node: ClusterNode | None = None
        self.worker_nodes: list[ClusterNode] = []
        self._secret = secrets.token_hex(32).encode()
        self._is_connected = False
        if connect and not initialize_head:
            raise ValueError(
                "connect=True needs initialize_head=True, because a program cannot join a Cluster without nodes"
            )
        try:
            if initialize_head:
                self.add_node(**(head_node_args or {}))
            if connect:
                self.connect()
        except BaseException:
            self.shutdown()
            raise

    @property
    def address(self) -> str:
        """host:port of the head, for `init(address=...)`. Under the name `ray`, None if there is no head."""
        if self.head_node is None:
            if rays_words() is not None:
                return None  # type: ignore[return-value]  # as Ray's, whose `init` then starts a cluster
            raise DualrayError("the cluster has no node yet: call add_node() first")
        if self._plan is not None:
            return self._plan.address
        return self.head_node._started.address

    def _address_of_head(self) -> str | None:
        return self.address if self.head_node is not None and self.head_node.is_alive else None

    def _address_of_plan(self) -> ClusterAddress:
        assert self._plan is not None
        return self._plan.address

    @property
    def gcs_address(self) -> str:
        """As `address`, under the name of Ray's control plane."""
        return self.address

    def remaining_processes_alive(self) -> bool:
        """Return whether every node of the cluster is alive."""
        return all(node.remaining_processes_alive() for node in self.list_all_nodes())

    def list_all_nodes(self) -> list[ClusterNode]:
        """Return the nodes that were not removed, the head's node first."""
        head = [self.head_node] if self.head_node is not None else []
        return [*head, *self.worker_nodes]

    def add_node(
        self,
        wait: bool = True,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        memory: int | str | None = None,
        labels: Mapping[str, str] | None = None,
        object_store_memory: float | str | None = None,
        limits: Mapping[str, Any] | None = None,
        seed: int | None = None,
        decision_log: Path | str | None = None,
        metrics_port: int | None = None,
        num_redis_shards: int = 0,
        autoscale: Path | str | Growth | None = None,
        **of_ray: Any,
    ) -> ClusterNode:
        """Start a node and return it. The first node gets the head.

        Args:
            wait: wait until the connected driver sees the node.
            num_cpus, num_gpus, resources: what the node has.
            memory: memory that tasks can reserve with `memory=`, in bytes or a text such as "16GiB". Default in
                real mode: 70 % of this machine's memory.
            labels: labels of the node, such as {"zone": "a"}; see docs/api/placement.md.
            object_store_memory: size of the object store, in bytes or a text such as "64MiB". Default in real mode: a
                quarter of what the other nodes of this machine leave of a lone node's default. Default in sim mode: 2
                GiB.
            limits, seed, decision_log, num_redis_shards: settings of the whole cluster, for the first node only.
            autoscale: file of `dualray start --autoscale` with groups of nodes to launch, for the first node only.
            metrics_port: port of 127.0.0.1 on which to serve the node's metrics; 0 means any free port, None no
                metrics.
            of_ray: other arguments of Ray's `add_node`, such as `dashboard_port`, which have no effect.

        Raises:
            TypeError: an argument is unknown to dualray and Ray; the message has the nearest name.
            DualrayError: the node did not start; the message says why.
            ValueError: the resources are wrong, or a further node has settings of the whole cluster.
        """
        _check_first(self.head_node, limits or None, seed, decision_log, num_redis_shards or None, autoscale)
        _check_names(of_ray)
        _check_ports({**of_ray, "metrics_port": metrics_port})
        if self.head_node is None:
            of_variables = limits_of_variables() if rays_words() is not None else {}
            limits = {**of_variables, **all_limits_of_ray(of_ray.get("_system_config")), **(limits or {})}
        offers: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources, "labels": labels}
        offers["memory"] = None if memory is None else SETTINGS["memory"].parse("memory", memory)
        offers["object_store_memory"] = _bytes("object_store_memory", object_store_memory)
        growth, source = _growth(autoscale)
        if self._plan is not None:
            self._plan.growth = growth if growth is not None else self._plan.growth
            self._plan.say(limits=limits, seed=seed, decision_log=decision_log)
            planned.address_of = self._address_of_plan
            return self._take_in(_virtual_node(self._plan, **offers))
        options = node_options(
            **offers,
            address=self.address if self.head_node is not None else None,
            node_ip=None,
            port=0,
            config=_config(growth, limits),
            provider=launch_plan(growth, source) if growth is not None else None,
            metrics_port=metrics_port,
            num_redis_shards=num_redis_shards,
        )
        of_us: dict[str, Any] = {"seed": seed, "takes_faults": self._takes_faults}
        options = dataclasses.replace(options, **of_us, record_directory=_made(decision_log))
        return self._take_in(ClusterNode(start_node(options, self._secret, is_detached=not self._ends_with_us)), wait)

    def _take_in(self, node: ClusterNode, wait: bool = False) -> ClusterNode:
        if self.head_node is None:
            self.head_node = node
            if self._plan is None:
                planned.address_of = self._address_of_head
        else:
            self.worker_nodes.append(node)
        if wait and self._is_connected:
            self._wait_until(lambda: node.node_id in _alive(), f"{node.node_id} has not joined")
        return node

    def remove_node(self, node: ClusterNode, allow_graceful: bool = True) -> None:
        """End a node.

        Args:
            node: a node of this cluster.
            allow_graceful: let the node finish its tasks and hand on the objects that only it has. If False, kill it.
                Under the name `ray` the node is killed in both cases, for on Ray its objects are lost in both.
        """
        if node is self.head_node and self.worker_nodes:
            raise ValueError(
                "the first node runs the head process, so remove all other nodes before the first node, or call "
                "shutdown()"
            )
        if not allow_graceful or rays_words() is not None:
            node.kill()
        elif node is not self.head_node:
            node.drain()
        node._end()
        node.is_alive = False
        if node is self.head_node:
            self.head_node = None
        else:
            self.worker_nodes.remove(node)
        if self._is_connected and self.head_node is not None:
            self._wait_until(lambda: node.node_id not in _alive(), f"{node.node_id} has not left")

    def wait_for_nodes(self, timeout: float = _WAIT_TIMEOUT_S) -> None:
        """Wait until the head counts every node of this cluster, and no other node, as alive.

        A process that is connected to no cluster joins this one while it waits.

        Raises:
            TimeoutError: the nodes were not alive within `timeout` seconds.
        """
        if self._plan is not None and self._plan.running is None:
            return  # `init` returns when all of them are there
        expected = {node.node_id for node in self.list_all_nodes()}
        what = f"the alive nodes must be {sorted(expected)}"
        if api.is_initialized():
            self._wait_until(lambda: _alive() == expected, what, timeout)
            return
        with api.init(address=self.address, log_to_driver=False):
            self._wait_until(lambda: _alive() == expected, what, timeout)

    def _wait_until(self, condition: Any, what: str, timeout_s: float = _WAIT_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster was not ready within {timeout_s:g} s: {what}")
            time.sleep(0.01)

    def connect(self, **settings: Any) -> None:
        """Connect this process as a driver; `settings` are further arguments of `init`."""
        api.init(address=self.address, **settings)
        self._is_connected = True

    def shutdown(self) -> None:
        """Disconnect this process and end every node. A second call does nothing."""
        if self._is_connected:
            self._is_connected = False
            api.shutdown()
        if planned.address_of in (self._address_of_plan, self._address_of_head):
            planned.address_of = None
        for node in reversed(self.list_all_nodes()):
            if self._plan is None:
                node.thaw()
                node._end()
            node.is_alive = False
        self.worker_nodes.clear()
        self.head_node = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()


def _virtual_node(
    plan: NodePlan,
    *,
    labels: Mapping[str, str] | None,
    object_store_memory: int | None,
    memory: int | None,
    **offers: Any,
) -> VirtualNode:
    """One more node of a plan; see `Cluster.add_node`."""
    planned = PlannedNode(
        plan,
        total=parse_resources(memory=memory or OFFERED_MEMORY_BYTES, **offers),
        store_bytes=object_store_memory or DEFAULT_STORE_BYTES,
        labels=parse_labels("labels", labels or {}),
    )
    plan.add(planned)
    return VirtualNode(planned, plan)


def _check_first(head_node: ClusterNode | None, *of_cluster: object) -> None:
    """That nothing of the whole cluster is said of a node that is not its first."""
    if head_node is not None and any(each is not None for each in of_cluster):
        raise ValueError(OF_THE_FIRST_NODE)


def _config(growth: Growth | None, limits: Mapping[str, Any] | None) -> Config:
    """A node may join that can take what no node can take now: what none can take waits."""
    return Config(**{"infeasible": "wait", **(growth.limits if growth else {}), **(limits or {})})


def _growth(said: Path | str | Growth | None) -> tuple[Growth | None, Path | None]:
    """What says how a cluster grows, and its file, if it is one."""
    if isinstance(said, Path | str):
        return read_growth(Path(said)), Path(said)
    return said, None


def _bytes(name: str, value: float | str | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_size_bytes(value, name)
    if value != int(value):
        raise ValueError(f"{name}={value!r} must be a whole number of bytes")
    return int(value)


def _check_names(given: Mapping[str, Any]) -> None:
    """That Ray's `add_node` knows what dualray's does not."""
    for name in given:
        if name not in _WITHOUT_EFFECT:
            known = [each for each in inspect.signature(Cluster.add_node).parameters if each not in ("self", "of_ray")]
            raise TypeError(unknown_name("argument", name, known, "Cluster.add_node"))


def _check_ports(given: Mapping[str, Any]) -> None:
    """That the ports that Ray's arguments name differ, though dualray opens none but `metrics_port`.

    Raises:
        ValueError: two are the same, or lie in the range of the workers' ports.
    """
    named = {name: port for name, port in given.items() if name in _PORTS and port}
    for name, port in named.items():
        same = [other for other in named if named[other] == port and other != name]
        if same:
            raise ValueError(f"add_node: {name} and {same[0]} are both {port}; give two different ports")
    text = given.get("worker_port_list") or ""
    ports = [int(port) for port in text.split(",")] if text else []
    taken = [port for port in ports if port in named.values()]
    if taken:
        raise ValueError(
            f"add_node: other processes already use the ports {taken} of worker_port_list; give other ports"
        )
    least, most = given.get("min_worker_port"), given.get("max_worker_port")
    if least and most:
        taken = [port for port in named.values() if least <= port <= most]
        if taken:
            raise ValueError(
                f"add_node: the ports of workers, from {least} to {most}, include {taken}, which other processes "
                "already "
                "use"
            )


def _alive() -> set[str]:
    return {row["NodeID"] for row in api.nodes() if row["Alive"]}


def _made(directory: Path | str | None) -> str | None:
    """The absolute path of a directory, which is there from now on."""
    if directory is None:
        return None
    path = Path(directory).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
