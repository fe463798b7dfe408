"""The node manager: runs the node machine, forks and ends workers, keeps the object store's files, shows what workers
print."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence

from dualray.real import session as sessions
from dualray.real.loop import Timer
from dualray.real.messages import Payload
from dualray.real.node_store import NodeStore
from dualray.real.object_streams import ObjectStreams
from dualray.real.runner import EXIT_TO_REJOIN, MachineProcess, begin
from dualray.real.spill import SpillDirectory
from dualray.real.template_client import TemplateClient
from dualray.shared.decision_log import MachineSpec
from dualray.shared.machines.node import Node
from dualray.shared.model.commands import (
    Command,
    DeleteObject,
    DeleteSpilled,
    EvictObject,
    ReceiveObject,
    ReserveSpace,
    RestoreObject,
    SendObject,
    SpillObject,
    StartWorker,
    StopWorker,
    UnloadObject,
)
from dualray.shared.model.events import (
    DrainAsked,
    Event,
    NodeDied,
    NodeWelcomed,
    ObjectRestored,
    ObjectSpilled,
    PeerLost,
    ReserveFailed,
    RestoreFailed,
    SpaceReserved,
    SpillFailed,
    Started,
    WorkerExited,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID
from dualray.shared.trace import TraceKind

_READ_BYTES = 65536
_log = logging.getLogger("dualray")


class WorkerOutput:
    """One stream of a worker: shown line by line, the last lines kept for the error that may follow."""

    def __init__(self, *, prefix: str, shown_on: int | None, lines_kept: int) -> None:
        self._prefix = prefix.encode()
        self._shown_on = shown_on
        self._partial = b""
        self.last_lines: deque[bytes] = deque(maxlen=lines_kept)

    def feed(self, data: bytes) -> None:
        """More has been printed; empty at the end."""
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        if not data and self._partial:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            self.last_lines.append(line)
        if lines and self._shown_on is not None:
            shown = b"".join(self._prefix + line + b"\n" for line in lines)
            try:
                os.write(self._shown_on, shown)
            except OSError:  # the driver's terminal is gone, or its pipe: nobody reads
                self._shown_on = None


class NodeProcess(MachineProcess):
    """See the module."""

    machine: Node

    def __init__(self, *, session: sessions.Session, node: NodeID, incarnation: int, lifeline_fd: int) -> None:
        spec = MachineSpec(
            kind="node",
            address=node,
            node=node,
            config=session.config,
            incarnation=incarnation,
            total=session.total.units,
            store_bytes=session.store_bytes,
        )
        super().__init__(session=session, spec=spec, lifeline_fd=lifeline_fd)
        self.node = node
        self.store = NodeStore(
            session.store_directory,
            capacity=session.store_bytes,
            size_min=session.config.inline_bytes_max + 1,
            objects_max=session.config.store_objects_max,
            warm_bytes=session.config.store_warm_bytes,
            idle_s=session.config.store_idle_ns / 1e9,
            call_soon=self.loop.call_soon,
        )
        self.disk = SpillDirectory(session.spill_directory, self.loop.call_soon)
        self.streams = ObjectStreams(
            transport=self.transport,
            store=self.store,
            config=session.config,
            handle=self.handle,
            on_received=self._on_received,
        )
        self.template = TemplateClient(
            self.loop,
            on_forked=self._on_forked,
            on_exited=self._on_exited,
            on_failed=self._on_fork_failed,
            on_lost=lambda status: self.end(),
        )
        self._pids: dict[str, int] = {}
        self._stops: dict[str, str] = {}
        self._outputs: dict[str, dict[int, WorkerOutput]] = {}
        self._stderr: dict[str, WorkerOutput] = {}
        """Kept until the worker's exit is known, which may be later than the end of its output."""
        self.template.start()
        self.exit_status = 0
        self._silence: Timer | None = None
        if self.heartbeats is not None:
            self.heartbeats.watch(HEAD)

    # ---- Commands --------------------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        match command:
            case StartWorker(worker=worker):
                self._start_worker(worker)
            case StopWorker(worker=worker, reason=reason):
                self._stops[worker] = reason
                if worker in self._pids:
                    os.kill(self._pids[worker], signal.SIGKILL)
            case ReserveSpace(object_id=object_id, size_bytes=size_bytes):
                self.store.reserve(object_id, size_bytes, lambda error: self._on_reserved(object_id, error))
            case EvictObject(object_id=object_id):
                self.recorder.trace(TraceKind.OBJECT_EVICTED, object_id.hex())
                self.store.delete(object_id)
            case DeleteObject(object_id=object_id):
                self.recorder.trace(TraceKind.OBJECT_DELETED, object_id.hex())
                self.streams.give_up(object_id)
                self.store.delete(object_id)
            case SpillObject(object_id=object_id, size_bytes=size_bytes):
                self.recorder.trace(TraceKind.OBJECT_SPILLED, object_id.hex(), amount=size_bytes)
                self.disk.write(object_id, self.store.open(object_id), lambda error: self._on_spilled(object_id, error))
            case UnloadObject(object_id=object_id):
                self.store.delete(object_id)
            case RestoreObject(object_id=object_id, size_bytes=size_bytes):
                self.recorder.trace(TraceKind.OBJECT_RESTORED, object_id.hex(), amount=size_bytes)
                target = self.store.create(object_id, size_bytes)
                self.disk.read(object_id, target, lambda error: self._on_restored(object_id, error))
            case DeleteSpilled(object_id=object_id):
                self.disk.delete(object_id)
            case SendObject(object_id=object_id, size_bytes=size_bytes, to=to, offset=offset):
                self.recorder.trace(TraceKind.TRANSFER_STARTED, object_id.hex(), other=to, amount=size_bytes - offset)
                self.streams.send(command)
            case ReceiveObject():
                self.streams.receive(command)
            case _:
                super().perform(command)

    def _on_reserved(self, object_id: ObjectID, error: str | None) -> None:
        if error is None:
            self.handle(SpaceReserved(object_id=object_id))
        else:
            self.handle(ReserveFailed(object_id=object_id, reason=error))

    def _on_spilled(self, object_id: ObjectID, error: str | None) -> None:
        if error is None:
            self.handle(ObjectSpilled(object_id=object_id))
        else:
            logging.getLogger("dualray").error("object %s cannot be spilled: %s", object_id.hex(), error)
            self.handle(SpillFailed(object_id=object_id, reason=error))

    def _on_restored(self, object_id: ObjectID, error: str | None) -> None:
        self.store.seal(object_id)
        if error is None:
            self.handle(ObjectRestored(object_id=object_id))
        else:
            logging.getLogger("dualray").error("object %s cannot be read back: %s", object_id.hex(), error)
            self.handle(RestoreFailed(object_id=object_id, reason=error))

    def receive(self, message: Event, payloads: Sequence[Payload]) -> None:
        if isinstance(message, NodeDied):
            self.streams.peer_lost(message.node)
        super().receive(message, payloads)
        if isinstance(message, NodeWelcomed):
            (self.session.directory / sessions.JOINED_FILE).touch()

    def receive_raw(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        self.streams.on_message(peer, header, buffers)

    def _on_received(self, object_id: ObjectID, source: NodeID, size_bytes: int) -> None:
        self.recorder.trace(TraceKind.TRANSFER_ENDED, object_id.hex(), other=source, amount=size_bytes)

    # ---- Workers ---------------------------------------------------------------------------------------------

    def _start_worker(self, worker: Address) -> None:
        self.recorder.trace(TraceKind.WORKER_STARTED, worker)
        argv = {"session": str(self.session.directory), "node": self.node, "address": worker}
        stdout_fd, stderr_fd = self.template.fork(worker, argv)
        outputs = self._outputs[worker] = {}
        for fd, shown_on in ((stdout_fd, 1), (stderr_fd, 2)):
            outputs[fd] = WorkerOutput(
                prefix=f"({worker}) ",
                shown_on=shown_on if self.session.log_to_driver else None,
                lines_kept=self.session.config.stderr_lines_kept,
            )
            if shown_on == 2:
                self._stderr[worker] = outputs[fd]
            os.set_blocking(fd, False)
            self.loop.add_reader(fd, lambda fd=fd: self._on_output(worker, fd))  # type: ignore[misc]  # bound default

    def _on_output(self, worker: str, fd: int) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        self._outputs[worker][fd].feed(data)
        if not data:
            self._close_output(worker, fd)

    def _close_output(self, worker: str, fd: int) -> None:
        self.loop.remove_reader(fd)
        os.close(fd)
        output = self._outputs[worker].pop(fd)
        output.feed(b"")

    def _on_forked(self, worker: str, pid: int) -> None:
        self._pids[worker] = pid
        if worker in self._stops:  # it was to be stopped before it had a pid
            os.kill(pid, signal.SIGKILL)

    def _on_fork_failed(self, worker: str, error: str) -> None:
        self._stderr.pop(worker, None)
        for fd in list(self._outputs.pop(worker, {})):
            self.loop.remove_reader(fd)
            os.close(fd)
        self.recorder.trace(TraceKind.WORKER_ENDED, worker, other=error)
        self.handle(WorkerExited(worker=Address(worker), reason=f"could not be started: {error}"))

    def _on_exited(self, worker: str, pid: int, status: int) -> None:
        """A worker is gone; what it printed last says why, perhaps."""
        self._pids.pop(worker, None)
        for fd in list(self._outputs.get(worker, {})):
            self._drain(worker, fd)
        self._outputs.pop(worker, None)
        lines = list(self._stderr.pop(worker).last_lines)
        reason = f"stopped: {self._stops.pop(worker)}" if worker in self._stops else exit_reason(status)
        self.recorder.trace(TraceKind.WORKER_ENDED, worker, other=reason)
        if lines:
            reason += "; the last lines of its stderr:\n" + b"\n".join(lines).decode(errors="replace")
        self.transport.hear_out(worker)
        self.handle(WorkerExited(worker=Address(worker), reason=reason))

    def _drain(self, worker: str, fd: int) -> None:
        """Read what a dead worker has left in its pipe."""
        while fd in self._outputs.get(worker, {}):
            before = self._outputs[worker][fd]
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:  # a child of the worker holds the pipe: it may go on printing, and is not ours
                data = b""
            before.feed(data)
            if not data:
                self._close_output(worker, fd)

    # ---- Life ------------------------------------------------------------------------------------------------

    def on_peer_lost(self, peer: str) -> None:
        if peer == HEAD:
            self._leave("the connection to the head has closed")
        elif is_node(peer):
            self.streams.peer_lost(peer)
            self.handle(PeerLost(address=Address(peer)))
            self.transport.forget(peer)  # the node may live, or come back as its next incarnation

    def on_silent(self, peer: str) -> None:
        """The head is silent: if that lasts, it counts this node as dead, and others run what ran here."""
        suspicion_s = self.session.config.suspicion_ns / 1e9
        _log.warning("nothing is heard of the head; this node ends if that lasts %g s more", suspicion_s)
        self._silence = self.loop.call_later(
            suspicion_s, lambda: self._leave(f"nothing was heard of the head for {suspicion_s:g} s more")
        )

    def on_heard(self, peer: str) -> None:
        _log.warning("the head is heard again")
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def handle(self, event: Event) -> None:
        super().handle(event)
        if self.machine.refused:
            self._leave(
                f"the head has declared incarnation {self.machine.incarnation} of {self.node} dead: it drops its news"
            )
        if self.machine.drained and not self.is_ending:
            _log.info("%s has drained, and ends", self.node)
            self.end()

    def on_drain_signal(self) -> None:
        """SIGUSR1: whoever runs this node wants it to end in good order."""
        _log.info("%s is to leave, and drains", self.node)
        self.handle(DrainAsked())

    def _leave(self, why: str) -> None:
        """This life of the node is over; whether there is a next one is for whoever has started it."""
        if self.exit_status == 0 and not self.is_ending:
            self.exit_status = EXIT_TO_REJOIN
            _log.warning("%s ends: %s", self.node, why)
            self.end()

    def clean_up(self) -> None:
        """End the workers, delete the store."""
        self.template.close()
        self.disk.close()
        self.store.destroy()
        super().clean_up()
        if self.is_orphan and self.session.cluster is not None and not self.session.cluster.has_head:
            self.session.remove()


def is_node(address: str) -> bool:
    """Whether an address is a node manager's."""
    return address.startswith("node-") and "/" not in address


def exit_reason(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def main() -> None:
    """Entry: `python -m dualray.real.node SESSION LIFELINE NODE [INCARNATION]`."""
    session, lifeline_fd = begin(sys.argv[3])
    incarnation = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    node = NodeProcess(session=session, node=NodeID(sys.argv[3]), incarnation=incarnation, lifeline_fd=lifeline_fd)
    _log.info("node manager %s, incarnation %d, pid %d", sys.argv[3], incarnation, os.getpid())
    signal.signal(signal.SIGUSR1, lambda *_: node.loop.call_soon(node.on_drain_signal))
    node.recorder.trace(TraceKind.NODE_STARTED, node.node)
    node.handle(Started())
    node.run()
    sys.exit(node.exit_status)


if __name__ == "__main__":
    main()
