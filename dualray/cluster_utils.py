"""Several nodes on one machine, for tests and for trying out: `Cluster`, with the interface of Ray's.

Each node is a daemon with its own node manager, workers, object store and directory, and speaks with the others over
TCP on the loopback interface, as nodes on different machines do. Everything ends with this process at the latest.
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
from dualray.exceptions import DualrayError
from dualray.options import unknown_name
from dualray.real.cluster.launch import StartedNode, drain_node, node_options, start_node, stop_node
from dualray.settings import SETTINGS
from dualray.shared.model.config import Config
from dualray.shared.units import parse_size_bytes

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
OF_THE_FIRST_NODE = "limits, seed, decision_log and num_redis_shards belong to the cluster: give them to its first node"


@dataclasses.dataclass(slots=True, eq=False)
class ClusterNode:
    """A node of a `Cluster`."""

    _started: StartedNode
    is_alive: bool = True

    @property
    def node_id(self) -> str:
        """Its name, such as `node-1`: what `dualray.nodes()` calls NodeID."""
        return self._started.node

    unique_id = node_id

    @property
    def address(self) -> str:
        """host:port of its gateway."""
        return self._started.endpoint

    @property
    def directory(self) -> Path:
        """Its session's directory; the logs are in `logs/`."""
        return self._started.directory

    @property
    def pid(self) -> int:
        """Of its daemon."""
        return self._started.process.pid

    def processes(self, *, daemon: bool = False) -> list[psutil.Process]:
        """Its node manager and workers; on the head's node without the head; with `daemon`, all of the node."""
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
        """Those of the node that run, each with what it is called: its daemon, the head if it is here, node manager
        and workers."""
        found = []
        for process in self.processes(daemon=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process.name(), process))
        return found

    def any_processes_alive(self) -> bool:
        """Whether any of its processes run."""
        return bool(self.live_processes())

    def remaining_processes_alive(self) -> bool:
        """Whether the node lives: its daemon ends when a process ends that the node cannot do without."""
        return self._started.process.poll() is None

    def kill(self) -> None:
        """SIGKILL to node manager and workers, all at once, as when the machine loses power."""
        self._signal(signal.SIGKILL)

    def drain(self, timeout_s: float = _DRAIN_TIMEOUT_S) -> bool:
        """Let it leave in good order: its tasks end, and others take what only it has; whether it has, in time."""
        return drain_node(self._started, min(timeout_s, _DRAIN_TIMEOUT_S))

    def freeze(self) -> None:
        """SIGSTOP to node manager and workers: silence, as of a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue


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
    """A cluster on this machine; also a context manager, which shuts it down.

    Args:
        initialize_head: start the head's node at once.
        connect: join it as a driver, too.
        head_node_args: arguments of `add_node` for the head's node; and `limits`, `seed` and `decision_log`,
            which are the cluster's.
        shutdown_at_exit: its nodes end with this process; else with `shutdown()`, or `dualray stop`.
    """

    def __init__(
        self,
        initialize_head: bool = False,
        connect: bool = False,
        head_node_args: Mapping[str, Any] | None = None,
        shutdown_at_exit: bool = True,
    ) -> None:
        self._ends_with_us = shutdown_at_exit
        self.head_node: ClusterNode | None = None
        self.worker_nodes: list[ClusterNode] = []
        self._secret = secrets.token_hex(32).encode()
        self._is_connected = False
        if connect and not initialize_head:
            raise ValueError("connect=True needs initialize_head=True: there is nothing to connect to")
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
        """host:port of the head, for `init(address=...)`."""
        if self.head_node is None:
            raise DualrayError("the cluster has no head yet: call add_node() first")
        return self.head_node._started.address

    @property
    def gcs_address(self) -> str:
        """As `address`, under the name of Ray's control plane."""
        return self.address

    def remaining_processes_alive(self) -> bool:
        """Whether every node of it lives."""
        return all(node.remaining_processes_alive() for node in self.list_all_nodes())

    def list_all_nodes(self) -> list[ClusterNode]:
        """Those that were not removed, the head's first."""
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
        object_store_memory: int | str | None = None,
        limits: Mapping[str, Any] | None = None,
        seed: int | None = None,
        decision_log: Path | str | None = None,
        metrics_port: int | None = None,
        num_redis_shards: int = 0,
        **of_ray: Any,
    ) -> ClusterNode:
        """Start one more node; the first is the head's.

        Args:
            wait: until the connected driver sees it.
            num_cpus, num_gpus, resources: what it has.
            memory: bytes, or a text such as "16GiB", that it offers to tasks that say `memory=`; default: none.
            labels: such as {"zone": "a"}; see docs/api/placement.md.
            object_store_memory: bytes, or a text such as "64MiB"; default: a quarter of what the other nodes of this
                machine leave of the default of a lone node.
            limits, seed, decision_log, num_redis_shards: of the whole cluster: for the first node only.
            metrics_port: where it serves its metrics at 127.0.0.1; 0: any port that is free; None: not.
            of_ray: what else Ray's `add_node` knows, such as `dashboard_port`: without effect.

        Raises:
            TypeError: an argument that neither knows, with the nearest name.
            DualrayError: it did not start; the message says why.
            ValueError: resources that are wrong; what is of the whole cluster for a further node.
        """
        if self.head_node is not None and (limits or seed is not None or decision_log is not None or num_redis_shards):
            raise ValueError(OF_THE_FIRST_NODE)
        _check_names(of_ray)
        if isinstance(object_store_memory, str):
            object_store_memory = parse_size_bytes(object_store_memory, "object_store_memory")
        options = node_options(
            address=self.address if self.head_node is not None else None,
            node_ip=None,
            port=0,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources,
            memory=None if memory is None else SETTINGS["memory"].parse("memory", memory),
            labels=labels,
            object_store_memory=object_store_memory,
            config=Config(**{"infeasible": "wait", **(limits or {})}),  # a node that can take it may join
            metrics_port=metrics_port,
            num_redis_shards=num_redis_shards,
        )
        recorded = dataclasses.replace(options, seed=seed, record_directory=_made(decision_log))
        node = ClusterNode(start_node(recorded, self._secret, is_detached=not self._ends_with_us))
        self._take_in(node)
        if wait and self._is_connected:
            self._wait_until(lambda: node.node_id in _alive(), f"{node.node_id} is seen")
        return node

    def _take_in(self, node: ClusterNode) -> None:
        if self.head_node is None:
            self.head_node = node
        else:
            self.worker_nodes.append(node)

    def remove_node(self, node: ClusterNode, allow_graceful: bool = True) -> None:
        """End a node.

        Args:
            node: one of this cluster's.
            allow_graceful: let it finish the tasks that it runs, and hand on what only it has; else it is killed.
        """
        if node is self.head_node and self.worker_nodes:
            raise ValueError("remove the other nodes before the head's, or call shutdown()")
        if not allow_graceful:
            node.kill()
        elif node is not self.head_node:
            node.drain()
        node.is_alive = False
        stop_node(node._started)
        if node is self.head_node:
            self.head_node = None
        else:
            self.worker_nodes.remove(node)
        if self._is_connected and self.head_node is not None:
            self._wait_until(lambda: node.node_id not in _alive(), f"{node.node_id} is gone")

    def wait_for_nodes(self, timeout: float = _WAIT_TIMEOUT_S) -> None:
        """Wait until the head counts every node of this cluster, and no other, as alive. A process that is connected to
        no cluster joins this one for as long as it waits.

        Raises:
            TimeoutError: after `timeout` seconds.
        """
        expected = {node.node_id for node in self.list_all_nodes()}
        what = f"the nodes that are alive are {sorted(expected)}"
        if api.is_initialized():
            self._wait_until(lambda: _alive() == expected, what, timeout)
            return
        with api.init(address=self.address, log_to_driver=False):
            self._wait_until(lambda: _alive() == expected, what, timeout)

    def _wait_until(self, condition: Any, what: str, timeout_s: float = _WAIT_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout_s:g} s in vain until {what}")
            time.sleep(0.01)

    def connect(self, **settings: Any) -> None:
        """Join this process as a driver; `settings` are further arguments of `init`."""
        api.init(address=self.address, **settings)
        self._is_connected = True

    def shutdown(self) -> None:
        """Disconnect, and end every node. Idempotent."""
        if self._is_connected:
            self._is_connected = False
            api.shutdown()
        for node in reversed(self.list_all_nodes()):
            node.thaw()
            stop_node(node._started)
        self.worker_nodes.clear()
        self.head_node = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()


def _check_names(given: Mapping[str, Any]) -> None:
    """That Ray's `add_node` knows what dualray's does not."""
    for name in given:
        if name not in _WITHOUT_EFFECT:
            known = [each for each in inspect.signature(Cluster.add_node).parameters if each not in ("self", "of_ray")]
            raise TypeError(unknown_name("argument", name, known, "Cluster.add_node"))


def _alive() -> set[str]:
    return {row["NodeID"] for row in api.nodes() if row["Alive"]}


def _made(directory: Path | str | None) -> str | None:
    """The absolute path of a directory, which is there from now on."""
    if directory is None:
        return None
    path = Path(directory).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
