"""The daemon of one node of a cluster: what `dualray start` leaves running on a machine.

Theory of operation. It reads the cluster's settings from the head, or makes them when it is the head's; founds the
session (its pid is in the session's name); opens the gateway; and starts head and node manager as its children. It says
on its status pipe what came of that. Then it waits: for SIGTERM, for SIGUSR1, which it
hands on to the node manager, to drain, for the end of its own lifeline when it has one, for the end of a child.

A node manager that ends because the head counts its life as over (EXIT_TO_REJOIN) is started again as the next
incarnation of the same node, for as long as the head answers within REJOIN_TIMEOUT_S. Every other end of a child is the
end of the daemon: what an operator's service manager starts again, it starts as a new node. Whatever ends, the
session's processes and files go with the daemon.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from dualray.exceptions import AuthenticationError, DualrayError
from dualray.real.cluster import address as addresses
from dualray.real.cluster import launch
from dualray.real.cluster.encryption import CertificateFiles, Encryption
from dualray.real.cluster.gateway import CONTROL_PLANE, Gateway, dial, user_timeout_s
from dualray.real.cluster.launch_commands import CommandPlace, CommandStarter, Ledger
from dualray.real.cluster.node_faults import NodeFaults
from dualray.real.cluster.node_options import START_TIMEOUT_S, NodeOptions
from dualray.real.cluster.provider import LocalStarter, Provider, Starter
from dualray.real.control_plane.resp import ReplyError
from dualray.real.control_plane.shards import socket_names
from dualray.real.limits import check_open_files, raise_open_files, start_thread
from dualray.real.logs import log_to
from dualray.real.net.addresses import parse_endpoint
from dualray.real.net.frames import Refusal
from dualray.real.net.loop import Loop
from dualray.real.processes.runner import EXIT_TO_REJOIN
from dualray.real.session import session as sessions
from dualray.real.session.children import HEAD_MODULE, NODE_MODULE, Children
from dualray.real.session.session import CONTROL_PLANE_FILE, ClusterPlace, Session
from dualray.real.store.kept_store import KEPT_ARENA_FILE
from dualray.real.store.object_store import ARENA_FILE
from dualray.shared.model.config import Config
from dualray.shared.model.ids import HEAD, NodeID
from dualray.shared.model.resources import Resources

REJOIN_TIMEOUT_S: Final = 60.0
"""How long a node that was declared dead tries to reach the head before it gives up."""
PROVIDER_END_TIMEOUT_S: Final = 60.0
"""So long machines that were launched have to end when the head's node does."""
_POLL_S: Final = 0.005
_REJOIN_PAUSE_S: Final = 0.5

WORKERS_LOG: Final = "workers"
"""In the logs directory of a node that `dualray start` has started: what its workers print."""

_log = logging.getLogger("dualray")


class Daemon:
    """See the module. The main thread supervises; the gateway's loop has a thread of its own.

    Args:
        options: see NodeOptions.
        secret: the cluster's; None lets a head draw one.
    Raises:
        DualrayError, AuthenticationError: the head does not answer, or does not take us.
        OSError: the gateway cannot listen where it is told to.
    """

    def __init__(self, options: NodeOptions, secret: bytes | None) -> None:
        self.options = options
        self._incarnation = 0
        self._endpoints: dict[str, tuple[str, int]] = {}
        self.is_told_to_end = False
        self.provider: Provider | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        files = CertificateFiles(*options.tls_files) if options.tls_files is not None else None
        if options.address is None:
            self.info, node = self._new_cluster(), NodeID("node-0")
        else:
            assert secret is not None, "a node that joins has the secret"
            head = parse_endpoint(options.address, "address")
            encryption = Encryption(secret, is_on=options.tls, files=files)
            with addresses.remote_client(head, secret, encryption) as client:
                self.info, node = addresses.read_info(client), addresses.next_node(client)
            self._endpoints[HEAD] = head
        self.session = self._make_session(node, secret)
        self._encryption = Encryption(self.session.secret, is_on=options.tls, files=files)
        self.children = Children(self.session)
        self.loop = Loop(lambda error: _log.critical("the gateway failed because of a bug in dualray", exc_info=error))
        self._thread = threading.Thread(target=self.loop.run, name="dualray-gateway", daemon=True)
        try:
            self.children.start()
            log_to(self.session.log_path("daemon"))
            self._faults = NodeFaults(self.loop, self.session) if options.takes_faults else None
            self.gateway = self._open_gateway()
        except BaseException:
            self.children.end()
            self.session.remove()
            raise
        start_thread(self._thread)

    # ---- Start -----------------------------------------------------------------------------------------------

    def _new_cluster(self) -> addresses.ClusterInfo:
        record = self.options.record_directory
        return addresses.ClusterInfo(
            address="",
            config=Config(**self.options.config),
            seed=self.options.seed,
            job_root=self.options.job_root,
            record_directory=Path(record) if record is not None else None,
            redis_shards=self.options.redis_shards,
        )

    def _make_session(self, node: NodeID, secret: bytes | None) -> Session:
        has_head = self.options.address is None
        port = self.options.port or _free_port(self.options.node_ip)
        endpoint = (
            f"[{self.options.node_ip}]:{port}" if ":" in self.options.node_ip else f"{self.options.node_ip}:{port}"
        )
        if has_head:
            self.info = dataclasses.replace(self.info, address=endpoint)
        return sessions.create(
            config=self.info.config,
            seed=self.info.seed,
            job_root=self.info.job_root,
            total=Resources(tuple((name, units) for name, units in self.options.total)),
            labels=tuple((key, value) for key, value in self.options.labels),
            device_names=self.options.device_names,
            store_bytes=self.options.store_bytes,
            log_to_driver=self.options.log_to_driver,
            redis_shards=self.info.redis_shards,
            metrics_port=self.options.metrics_port,
            record_directory=self.info.record_directory,
            secret=secret,
            node=node,
            cluster=ClusterPlace(
                address=self.info.address,
                endpoint=endpoint,
                has_head=has_head,
                is_detached=self.options.is_detached,
                command=self.options.command,
                takes_faults=self.options.takes_faults,
            ),
        )

    @property
    def place(self) -> ClusterPlace:
        assert self.session.cluster is not None
        return self.session.cluster

    def _open_gateway(self) -> Gateway:
        return Gateway(
            self.loop,
            session_directory=self.session.directory,
            socket_dir=self.session.sockets,
            secret=self.session.secret,
            bind=parse_endpoint(self.place.endpoint, "endpoint"),
            control_plane=self.session.redis_socket,
            shards=socket_names(self.info.redis_shards),
            has_head=self.place.has_head,
            resolve=self._resolve,
            broken_after_s=user_timeout_s(self.session.config),
            node=self.session.node,
            encryption=self._encryption,
            conditions=self._faults.conditions if self._faults is not None else None,
            origin=self._origin,
        )

    def _origin(self, pid: int) -> str:
        """Whether a process of this machine counts as the head's, or as this node's."""
        head = self.children.processes.get(HEAD)
        return HEAD if head is not None and head.pid == pid else self.session.node

    def _resolve(self, home: str) -> tuple[str, int]:
        """Where a node's gateway is. A node keeps it for all its incarnations, and its name is never given again."""
        found = self._endpoints.get(home)
        if found is None:
            try:
                with addresses.local_client(self.session) as client:
                    found = self._endpoints[home] = addresses.endpoint_of(client, home)
            except (OSError, ReplyError, AuthenticationError) as error:
                raise LookupError(
                    f"the cluster's database (the control plane) did not return the address of {home}: {error}"
                ) from error
        return found

    def start(self) -> None:
        """Start head and node manager and wait until the head has welcomed the node.

        Raises:
            DualrayError: a process has ended, with the last lines of its log, or it took too long.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        if self.place.has_head:
            if self.options.provider is not None:
                self.provider = Provider(self.session, self._starter(self.options.provider))
            self.children.spawn(HEAD, HEAD_MODULE)
            self._wait((self.session.directory / CONTROL_PLANE_FILE).exists, "the head", deadline)
        with addresses.local_client(self.session) as client:
            if self.place.has_head:
                addresses.publish(client, self.info)
                addresses.next_node(client)  # node-0 is this one
                addresses.next_driver(self.session)  # driver-1 is that of an `init` without a cluster
            addresses.set_endpoint(client, self.session.node, self.place.endpoint)
        self._start_node(deadline)

    def _start_node(self, deadline: float) -> None:
        joined = self.session.directory / sessions.JOINED_FILE
        joined.unlink(missing_ok=True)
        arena = self.session.store_directory / ARENA_FILE
        if self._faults is not None and self._faults.keeps_store:
            arena.rename(self.session.store_directory / KEPT_ARENA_FILE)
            self._faults.keeps_store = False
        arena.unlink(missing_ok=True)  # of a life that could not clean up
        self.children.spawn(self.session.node, NODE_MODULE, self.session.node, str(self._incarnation))
        self._wait(joined.exists, f"the head did not let {self.session.node} join", deadline)

    def _wait(self, condition: Callable[[], bool], what: str, deadline: float) -> None:
        while not condition():
            self.children.check()
            if time.monotonic() > deadline or self.is_told_to_end:
                raise DualrayError(f"node {self.session.node} did not start in time: {what}{self.children.last_logs()}")
            time.sleep(_POLL_S)

    # ---- Supervision -----------------------------------------------------------------------------------------

    def tell_to_end(self) -> None:
        """From a signal handler: end soon."""
        self.is_told_to_end = True
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it is being woken
            os.write(self._wake_write, b".")

    def tell_to_drain(self) -> None:
        """From a signal handler: the node is to leave in good order; its end is then this daemon's."""
        self.children.send_signal(self.session.node, signal.SIGUSR1)

    def run(self) -> None:
        """Supervise until the end."""
        while not self.is_told_to_end:
            self._sleep_until_something_happens()
            for name, child in self.children.processes.items():
                if child.status is not None:
                    _log.warning("%s has ended with status %s", name, child.status)
                    if name != self.session.node or not self._is_to_rejoin(child.status) or not self._rejoin():
                        return
                    break

    def _sleep_until_something_happens(self) -> None:
        """A child's end, a signal, or the end of the lifeline."""
        waits = [self._wake_read, self.children.fileno()]
        if self.options.lifeline_fd is not None:
            waits.append(self.options.lifeline_fd)
        poll = select.poll()
        for fd in waits:
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll()]
        self.children.update()
        if self.options.lifeline_fd in ready:
            _log.info("this node ends, because the process that started it has ended")
            self.is_told_to_end = True
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 64):
                pass

    def _is_to_rejoin(self, status: int) -> bool:
        """Whether the node comes back in another life; one that is switched off is waited for."""
        if self._faults is None or not self._faults.is_off.is_set():
            return status == EXIT_TO_REJOIN
        while self._faults.is_off.is_set():
            if self.is_told_to_end or self._lifeline_has_ended():
                return False
            time.sleep(_POLL_S)
        return True

    def _rejoin(self) -> bool:
        """This life of the node is over, and the machine is fine: come back as the next incarnation."""
        deadline = time.monotonic() + REJOIN_TIMEOUT_S
        _log.warning("%s tries to join the cluster again", self.session.node)
        while not self.is_told_to_end:
            try:
                with addresses.local_client(self.session) as client:
                    client.call("PING")
                self._incarnation += 1  # with each attempt: the head may have seen, and lost, the one before
                self._start_node(deadline)
                _log.warning("%s joined the cluster again as incarnation %d", self.session.node, self._incarnation)
                return True
            except (DualrayError, OSError, ReplyError) as error:
                if time.monotonic() > deadline or self._head_has_ended():
                    _log.error("%s gives up: %s", self.session.node, error)
                    return False
            if self._lifeline_has_ended():
                return False
            time.sleep(_REJOIN_PAUSE_S)
        return False

    def _head_has_ended(self) -> bool:
        """Whether nobody listens any more where the head was, which is more than being out of reach."""
        if self.place.has_head:
            self.children.update()
            return self.children.processes[HEAD].status is not None
        try:
            dial(self._endpoints[HEAD], CONTROL_PLANE, self.session.secret, encryption=self._encryption).close()
        except ConnectionRefusedError:
            return True
        except (OSError, Refusal):
            return False
        return False

    def _lifeline_has_ended(self) -> bool:
        if self.options.lifeline_fd is None:
            return False
        return bool(select.select([self.options.lifeline_fd], [], [], 0)[0])

    def _starter(self, plan: Mapping[str, Any]) -> Starter:
        """What starts the nodes that the head wants."""
        if plan["kind"] == "local":
            return LocalStarter(plan, start=self._start_another, stop=launch.stop_node)
        place = CommandPlace(
            address=self.place.address,
            secret_file=self.session.directory / "secret",
            prefix=self.session.directory.name,
            options=() if self.options.tls is None else ("--tls",) if self.options.tls else ("--no-tls",),
        )
        return CommandStarter(plan, place, Ledger(Path(plan["said"]["ledger"])))

    def _start_another(self, offer: Mapping[str, Any], labels: Mapping[str, str]) -> launch.StartedNode:
        """Start one more node of this cluster on this machine, which ends with us at the latest."""
        options = launch.node_options(
            **{**offer, "labels": labels},
            address=self.place.address,
            node_ip=self.options.node_ip,
            port=0,
            config=self.info.config,
        )
        options = dataclasses.replace(
            options,
            tls=self.options.tls,
            tls_files=self.options.tls_files,
            takes_faults=self.options.takes_faults,
            log_to_driver=self.options.log_to_driver,
        )
        return launch.start_node(options, self.session.secret, is_detached=False)

    def close(self) -> None:
        """End the nodes that were launched and the children, close the gateway, remove every file."""
        with contextlib.ExitStack() as last_first:  # a step that fails keeps no other from being done
            last_first.callback(self.session.remove)
            last_first.callback(self._thread.join, 5.0)
            last_first.callback(self.loop.stop)
            if self._faults is not None:
                last_first.callback(self.loop.call_and_wait, self._faults.close)
            last_first.callback(self.loop.call_and_wait, self.gateway.close)
            last_first.callback(self.children.end)
            if self.provider is not None:
                last_first.callback(self.provider.close, PROVIDER_END_TIMEOUT_S)
        _log.info("the end")


def _free_port(host: str) -> int:
    """A port that nobody uses now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port: int = server.getsockname()[1]
    return port


def _write_output_to(path: Path) -> None:
    """What workers print, and what the interpreter has to say, goes to a file: nobody's terminal is left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, sys.stdout.fileno())
    os.dup2(fd, sys.stderr.fileno())
    os.close(fd)


def main() -> None:
    """Entry: `python -m dualray.real.cluster.daemon OPTIONS`, the secret on standard input."""
    options = NodeOptions(**json.loads(sys.argv[1]))
    raise_open_files()
    secret = sys.stdin.buffer.read() or None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal in which the node was started
    status: dict[str, str] = {}
    daemon: Daemon | None = None
    try:
        check_open_files()
        daemon = Daemon(options, secret)
        if options.is_detached:
            _write_output_to(daemon.session.log_path(WORKERS_LOG))
        signal.signal(signal.SIGTERM, lambda *_: daemon.tell_to_end())
        signal.signal(signal.SIGUSR1, lambda *_: daemon.tell_to_drain())
        daemon.start()
        status = {
            "directory": str(daemon.session.directory),
            "node": daemon.session.node,
            "address": daemon.place.address,
            "endpoint": daemon.place.endpoint,
        }
    except (DualrayError, OSError, ReplyError) as error:
        status = {"error": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(BrokenPipeError), os.fdopen(options.status_fd, "w") as pipe:
        json.dump(status, pipe)
    try:
        if daemon is not None and "error" not in status:
            daemon.run()
    finally:
        if daemon is not None:
            daemon.close()
    sys.exit("error" in status or (daemon is not None and not daemon.is_told_to_end))


if __name__ == "__main__":
    main()
