"""The head process: runs the head machine and the control plane's server, and cleans up when the driver is gone."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from dualray.real import session as sessions
from dualray.real.control_plane import ControlPlane
from dualray.real.control_plane_server import start_server
from dualray.real.messages import Payload
from dualray.real.runner import MachineProcess, begin
from dualray.shared.decision_log import MachineSpec
from dualray.shared.model.events import Event, NodeHeard, NodeJoined, NodeSilent, PeerLost, Started
from dualray.shared.model.ids import HEAD, Address, NodeID

CONTROL_PLANE_FILE = "control_plane"
"""In the session's directory: which server it is, for `init` to say."""

_NODE_ENDS_WITHIN_S = 5.0


class HeadProcess(MachineProcess):
    """See the module."""

    def __init__(self, *, session: sessions.Session, lifeline_fd: int) -> None:
        # The server is there before anybody can reach us, and so before anybody can need it.
        # In a cluster it keeps its tables on disk: a server that dies is started again, and nobody else ends for that.
        self._keeps_tables = session.cluster is not None
        self.server = start_server(session.redis_directory, session.password, append_only=self._keeps_tables)
        (session.directory / CONTROL_PLANE_FILE).write_text(self.server.kind)
        logging.getLogger("dualray").info("control plane: %s", self.server.kind)
        spec = MachineSpec(kind="head", address=HEAD, config=session.config)
        super().__init__(session=session, spec=spec, lifeline_fd=lifeline_fd)
        self.control_plane = ControlPlane(self.server.socket_path, session.password)
        if self._keeps_tables:
            self._watch_server()
        self.incarnations: dict[str, int] = {}
        """Of each node, its present life."""

    def _watch_server(self) -> None:
        if self.server.process is not None:
            pidfd = os.pidfd_open(self.server.process.pid)
            self.loop.add_reader(pidfd, lambda: self._on_server_end(pidfd))

    def _on_server_end(self, pidfd: int) -> None:
        """The control plane's server has died: start it again, with the tables from its append-only file. Its clients
        try again meanwhile (control_plane.py)."""
        self.loop.remove_reader(pidfd)
        os.close(pidfd)
        assert self.server.process is not None
        status = self.server.process.wait()
        logging.getLogger("dualray").error("the control plane's server has ended with status %d", status)
        self.server = start_server(self.session.redis_directory, self.session.password, append_only=True)
        self._watch_server()
        logging.getLogger("dualray").warning("the control plane is back: %s", self.server.kind)

    def receive(self, message: Event, payloads: Sequence[Payload]) -> None:
        if isinstance(message, NodeJoined):
            self.incarnations[message.info.node] = message.info.incarnation
            if self.heartbeats is not None:
                self.heartbeats.watch(message.info.node)
            logging.getLogger("dualray").info(
                "%s joins, incarnation %d: %s", message.info.node, message.info.incarnation, message.info.total
            )
        super().receive(message, payloads)

    def on_peer_lost(self, peer: str) -> None:
        if "/" in peer:  # a worker's end is its node manager's news
            return
        if self.heartbeats is not None:
            self.heartbeats.unwatch(peer)
        if peer in self.incarnations:
            logging.getLogger("dualray").warning("the connection to %s has closed: it is dead", peer)
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
