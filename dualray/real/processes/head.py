"""The head process: runs the head machine and the control plane's server, and cleans up when the driver is gone."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial

from dualray.exceptions import ControlPlaneError
from dualray.real.control_plane.server import begin_server, start_server
from dualray.real.control_plane.shards import list_shards, sockets_at, tables_at
from dualray.real.limits import is_exhaustion, start_thread
from dualray.real.net.messages import Payload
from dualray.real.observe.counters import COUNTS, COUNTS_ASKED, TABLES_EMPTY, of_connections
from dualray.real.observe.worker_output import DRIVER_ASKED, answer_driver_asked
from dualray.real.processes.provider_client import ProviderClient
from dualray.real.processes.runner import MachineProcess, begin
from dualray.real.session import session as sessions
from dualray.shared.machines.head.head import Head
from dualray.shared.model.codec import pack
from dualray.shared.model.commands import Command, LaunchNodes, TerminateNode, WriteRecord
from dualray.shared.model.events import (
    DriverJoined,
    Event,
    LaunchesFailed,
    NodeHeard,
    NodeJoined,
    NodeSilent,
    PeerLost,
    Started,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, is_driver, job_of_driver
from dualray.shared.proof.decision_log import MachineSpec

_NODE_ENDS_WITHIN_S = 5.0
_SERVER_STARTS_FIRST_WITHIN_S = 30.0
_SERVER_STARTS_WITHIN_S = 10.0
_SERVER_POLL_S = 0.003
_SERVER_STARTS_MAX = 5
"""In a row and in vain, after which the head gives up, and with it the cluster."""

_log = logging.getLogger("dualray")


class HeadProcess(MachineProcess):
    """See the module."""

    machine: Head

    def __init__(self, *, session: sessions.Session, lifeline_fd: int) -> None:
        # They start beside us; whoever needs them before they answer tries again, and `init` waits for the file.
        self.servers = [
            begin_server(place.parent, session.password, append_only=session.cluster is not None)
            for place in sockets_at(session.redis_socket, session.redis_shards)
        ]
        self._servers_deadline = time.monotonic() + _SERVER_STARTS_FIRST_WITHIN_S
        spec = MachineSpec(kind="head", address=HEAD, config=session.config)
        super().__init__(session=session, spec=spec, lifeline_fd=lifeline_fd)
        self.control_plane = tables_at(session.redis_socket, session.password, session.redis_shards)
        self._server_lock = threading.Lock()
        self._is_over = threading.Event()
        self.loop.call_soon(self._wait_for_servers)
        self.incarnations: dict[str, int] = {}
        """Of each node, its present life."""
        self.provider: ProviderClient | None = None
        if (socket := session.directory / sessions.PROVIDER_SOCKET).exists():
            self.provider = ProviderClient(self.loop, socket, self._on_launches_failed)
        self.drivers: dict[int, str] = {}
        """Of each job, its driver while it is there: to whom what its tasks print is sent."""

    def _wait_for_servers(self) -> None:
        for server in self.servers:
            if not server.is_up():
                if time.monotonic() > self._servers_deadline:
                    raise ControlPlaneError(
                        f"the control plane ({server.kind}) at {server.socket_path} does not answer\n"
                        f"{server.last_log()}"
                    )
                self.loop.call_later(_SERVER_POLL_S, self._wait_for_servers)
                return
        kind = self.servers[0].kind
        if shards := self.session.redis_shards:
            kind += f" and {shards} shards"
            list_shards(self.session.redis_socket, self.session.password, shards)
        _log.info("control plane: %s", kind)
        written = self.session.directory / f".{sessions.CONTROL_PLANE_FILE}"
        written.write_text(kind)
        written.rename(self.session.directory / sessions.CONTROL_PLANE_FILE)
        for place in range(len(self.servers)):
            name = f"dualray-control-plane-{place}"
            start_thread(threading.Thread(target=self._keep_server, args=(place,), name=name, daemon=True))

    def _keep_server(self, place: int) -> None:
        """A thread of its own, which lives as long as this process: start one of the control plane's servers again when
        it has died, with the tables of its append-only file. In a session of `init`, which has none, drivers and
        workers put their functions into the new one. Clients try again meanwhile (control_plane/client.py)."""
        failures = 0
        while (process := self.servers[place].process) is not None and failures < _SERVER_STARTS_MAX:
            status = process.wait()
            with self._server_lock:
                if self._is_over.is_set():
                    return
                _log.error("server %d of the control plane has ended with status %d", place, status)
                try:
                    self.servers[place] = start_server(
                        self.servers[place].socket_path.parent,
                        self.session.password,
                        append_only=self.session.cluster is not None,
                        start_timeout_s=_SERVER_STARTS_WITHIN_S,
                    )
                    failures = 0
                    _log.warning("server %d of the control plane is back: %s", place, self.servers[place].kind)
                    if self.session.cluster is None:
                        self._fill(place)
                except ControlPlaneError as error:
                    failures += 1
                    _log.error("restarting the control plane failed, attempt %d: %s", failures, error)
        if failures:
            self.loop.call_soon(self._end_without_server)

    def _fill(self, place: int) -> None:
        """A server has been started again with nothing in it."""
        if place == 0 and self.session.redis_shards:
            list_shards(self.session.redis_socket, self.session.password, self.session.redis_shards)
        self.loop.call_soon(self._ask_for_functions)

    def _ask_for_functions(self) -> None:
        for driver in self.drivers.values():
            self.transport.send(driver, bytes((TABLES_EMPTY,)))

    def _end_without_server(self) -> None:
        raise ControlPlaneError(f"the control plane's server did not start again in {_SERVER_STARTS_MAX} attempts")

    def receive(self, message: Event, payloads: Sequence[Payload]) -> None:
        if isinstance(message, NodeJoined):
            self.incarnations[message.info.node] = message.info.incarnation
            if self.heartbeats is not None:
                self.heartbeats.watch(message.info.node)
            _log.info("%s joins, incarnation %d: %s", message.info.node, message.info.incarnation, message.info.total)
        elif isinstance(message, DriverJoined):
            self.drivers[job_of_driver(message.address)] = message.address
            _log.info("%s joins", message.address)
        super().receive(message, payloads)

    def receive_raw(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        if header[0] == DRIVER_ASKED:
            answer_driver_asked(self.transport, peer, header, self.drivers)
        elif header[0] == COUNTS_ASKED:
            counts = self.machine.counts() | of_connections(self.transport.counters)
            self.transport.send(peer, bytes((COUNTS,)) + pack([counts, []]))
        else:
            super().receive_raw(peer, header, buffers)

    def perform(self, command: Command) -> None:
        if isinstance(command, LaunchNodes):
            ids = command.launch_ids
            _log.info("group %s: %d nodes are launched: %s", command.group, len(ids), ", ".join(ids))
            if self.provider is not None:
                self.provider.launch(command.group, ids)
            else:
                failed = partial(
                    self._on_launches_failed, command.group, ids, "this cluster has no provider that launches nodes"
                )
                self.loop.call_soon(failed)
        elif isinstance(command, TerminateNode):
            if self.provider is not None:
                self.provider.terminate(command.launch_id)
        else:
            super().perform(command)

    def _on_launches_failed(self, group: str, launch_ids: tuple[str, ...], reason: str) -> None:
        _log.warning("group %s: %s: %s", group, ", ".join(launch_ids), reason)
        self.handle(LaunchesFailed(group=group, launch_ids=launch_ids, reason=reason))

    def write_record(self, command: WriteRecord) -> None:
        if command.table == "actors":
            fields = ", ".join(f"{name} {value}" for name, value in command.fields if value)
            _log.info("actor %s: %s", command.key, fields)
        super().write_record(command)

    def on_peer_lost(self, peer: str) -> None:
        if "/" in peer:  # a worker's end is its node manager's news
            why = self.transport.why_lost(peer)
            if isinstance(why, OSError) and is_exhaustion(why):  # it lives
                self.transport.forget(peer)
                self.handle(PeerLost(address=Address(peer), limit=why.strerror or str(why)))
            return
        if self.heartbeats is not None:
            self.heartbeats.unwatch(peer)
        if peer in self.incarnations:
            _log.warning("the connection to %s has closed, so the head process declares it dead", peer)
        if is_driver(Address(peer)):
            self.drivers.pop(job_of_driver(Address(peer)), None)
        self.handle(PeerLost(address=Address(peer)))
        self.transport.forget(peer)  # the node may come back as its next incarnation

    def on_silent(self, peer: str) -> None:
        _log.warning("%s does not answer", peer)
        self.handle(NodeSilent(node=NodeID(peer), incarnation=self.incarnations[peer]))

    def on_heard(self, peer: str) -> None:
        _log.warning("%s answers again", peer)
        self.handle(NodeHeard(node=NodeID(peer), incarnation=self.incarnations[peer]))

    def clean_up(self) -> None:
        """Wait for the node managers to end, then remove everything that the session has left.

        After an error the files stay: who has started the session reads the logs, and then removes them.
        """
        deadline = time.monotonic() + _NODE_ENDS_WITHIN_S
        node_sockets = [path for path in self.session.sockets.glob("node-*") if "w" not in path.name]
        while any(path.exists() for path in node_sockets) and time.monotonic() < deadline:
            time.sleep(0.001)
        super().clean_up()
        if self.provider is not None:
            self.provider.close()
        if self.control_plane is not None:
            self.control_plane.close()
        self._is_over.set()
        is_held = self._server_lock.acquire(timeout=_SERVER_STARTS_WITHIN_S)
        for server in reversed(self.servers):  # the shards lie in the primary's directory
            server.stop()
        if is_held:
            self._server_lock.release()
        if self.is_ending:
            self.session.remove()


def main(argv: Sequence[str]) -> None:
    """Entry: `python -m dualray.real.processes.head SESSION LIFELINE`, `argv` being what follows the name."""
    session, lifeline_fd = begin("head", argv)
    head = HeadProcess(session=session, lifeline_fd=lifeline_fd)
    head.handle(Started())
    head.run()


if __name__ == "__main__":
    main(sys.argv[1:])
