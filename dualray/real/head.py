"""The head process: runs the head machine and the control plane's server, and cleans up when the driver is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from dualray.real import session as sessions
from dualray.real.control_plane import ControlPlane
from dualray.real.control_plane_server import start_server
from dualray.real.counts import COUNTS, COUNTS_ASKED, of_connections, of_head
from dualray.real.messages import Payload
from dualray.real.runner import MachineProcess, begin
from dualray.real.worker_output import DRIVER_ASKED, answer_driver_asked
from dualray.shared.decision_log import MachineSpec
from dualray.shared.machines.head import Head
from dualray.shared.model.codec import pack
from dualray.shared.model.commands import WriteRecord
from dualray.shared.model.events import DriverJoined, Event, NodeHeard, NodeJoined, NodeSilent, PeerLost, Started
from dualray.shared.model.ids import HEAD, Address, NodeID, is_driver, job_of_driver

CONTROL_PLANE_FILE = "control_plane"
"""In the session's directory: which server it is, for `init` to say."""

_NODE_ENDS_WITHIN_S = 5.0


class HeadProcess(MachineProcess):
    """See the module."""

    machine: Head

    def __init__(self, *, session: sessions.Session, lifeline_fd: int) -> None:
        # The server is there before anybody can reach us, and so before anybody can need it.
        self.server = start_server(session.redis_directory, session.password)
        (session.directory / CONTROL_PLANE_FILE).write_text(self.server.kind)
        logging.getLogger("dualray").info("control plane: %s", self.server.kind)
        spec = MachineSpec(kind="head", address=HEAD, config=session.config)
        super().__init__(session=session, spec=spec, lifeline_fd=lifeline_fd)
        self.control_plane = ControlPlane(self.server.socket_path, session.password)

        self.incarnations: dict[str, int] = {}
        """Of each node, its present life."""
        self.drivers: dict[int, str] = {}
        """Of each job, its driver while it is there: to whom what its tasks print is sent."""

    def receive(self, message: Event, payloads: Sequence[Payload]) -> None:
        if isinstance(message, NodeJoined):
            self.incarnations[message.info.node] = message.info.incarnation
            if self.heartbeats is not None:
                self.heartbeats.watch(message.info.node)
            logging.getLogger("dualray").info(
                "%s joins, incarnation %d: %s", message.info.node, message.info.incarnation, message.info.total
            )
        elif isinstance(message, DriverJoined):
            self.drivers[job_of_driver(message.address)] = message.address
            logging.getLogger("dualray").info("%s joins", message.address)
        super().receive(message, payloads)

    def receive_raw(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        if header[0] == DRIVER_ASKED:
            answer_driver_asked(self.transport, peer, header, self.drivers)
        elif header[0] == COUNTS_ASKED:
            counts = of_head(self.machine) | of_connections(self.transport.counters)
            self.transport.send(peer, bytes((COUNTS,)) + pack(counts))
        else:
            super().receive_raw(peer, header, buffers)

    def write_record(self, command: WriteRecord) -> None:
        if command.table == "actors":
            fields = ", ".join(f"{name} {value}" for name, value in command.fields if value)
            logging.getLogger("dualray").info("actor %s: %s", command.key, fields)
        super().write_record(command)

    def on_peer_lost(self, peer: str) -> None:
        if "/" in peer:  # a worker's end is its node manager's news
            return
        if self.heartbeats is not None:
            self.heartbeats.unwatch(peer)
        if peer in self.incarnations:
            logging.getLogger("dualray").warning("the connection to %s has closed: it is dead", peer)
        if is_driver(Address(peer)):
            self.drivers.pop(job_of_driver(Address(peer)), None)
        self.handle(PeerLost(address=Address(peer)))
        self.transport.forget(peer)  # the node may come back as its next incarnation

    def on_silent(self, peer: str) -> None:
        logging.getLogger("dualray").warning("%s is silent", peer)
        self.handle(NodeSilent(node=NodeID(peer), incarnation=self.incarnations[peer]))

    def on_heard(self, peer: str) -> None:
        logging.getLogger("dualray").warning("%s is heard again", peer)
        self.handle(NodeHeard(node=NodeID(peer), incarnation=self.incarnations[peer]))

    def clean_up(self) -> None:
        """Wait for the node managers to end, then remove everything that the session has left."""
        deadline = time.monotonic() + _NODE_ENDS_WITHIN_S
        node_sockets = [path for path in self.session.sockets.glob("node-*") if "w" not in path.name]
        while any(path.exists() for path in node_sockets) and time.monotonic() < deadline:
            time.sleep(0.005)
        super().clean_up()
        if self.control_plane is not None:
            self.control_plane.close()
        self.server.stop()
        self.session.remove()


def main() -> None:
    """Entry: `python -m dualray.real.head SESSION LIFELINE`."""
    session, lifeline_fd = begin("head")
    head = HeadProcess(session=session, lifeline_fd=lifeline_fd)
    head.handle(Started())
    head.run()


if __name__ == "__main__":
    main()
