"""The node manager: runs the node machine, forks and ends workers, keeps the object store's files, passes on what
workers print."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dualray.real.limits import check_room_for_files, limit_in_words
from dualray.real.net.addresses import node_of_objects, objects_address
from dualray.real.net.loop import Timer
from dualray.real.net.messages import Payload
from dualray.real.net.transport import Transport
from dualray.real.observe.counters import COUNTS
from dualray.real.observe.worker_output import DRIVER_KNOWN, FLUSH, LogFile, OutputRouter, WorkerOutput
from dualray.real.processes.memory_monitor import MemoryMonitor
from dualray.real.processes.runner import EXIT_TO_REJOIN, MachineProcess, begin
from dualray.real.session import session as sessions
from dualray.real.session.template_client import TemplateClient
from dualray.real.store.node_store import NodeStore
from dualray.real.store.object_streams import ObjectStreams
from dualray.real.store.spill import SpillDirectory
from dualray.shared.handles import SHUTDOWN_PATIENCE_NS
from dualray.shared.machines.node.node import Node
from dualray.shared.model.commands import (
    Command,
    DeleteObject,
    DeleteSpilled,
    EvictObject,
    ReceiveObject,
    RenameObject,
    ReserveSpace,
    RestoreObject,
    Send,
    SendObject,
    SpillObject,
    StartWorker,
    StopWorker,
    UnloadObject,
)
from dualray.shared.model.events import (
    DrainAsked,
    Event,
    MemoryExceeded,
    NodeDied,
    NodesDied,
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
    WorkerNotStarted,
    lives_over,
)
from dualray.shared.model.ids import FIRST_DRIVER, HEAD, Address, NodeID, ObjectID, is_driver
from dualray.shared.model.states import WorkerState
from dualray.shared.proof.decision_log import MachineSpec
from dualray.shared.proof.trace import TraceKind

if TYPE_CHECKING:
    from dualray.real.observe.metrics import NodeMetrics

_READ_BYTES = 65536
_DRAIN_READS_MAX = 64
_ENDS_WITHIN_S = 1.0
_FILES_OF_A_WORKER = 3
"""Two pipes for its output, and its connection."""
_log = logging.getLogger("dualray")


@dataclass(slots=True)
class Moved:
    """How much has left memory, or come back."""

    objects: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """One more object."""
        self.objects += 1
        self.size_bytes += size_bytes


class NodeProcess(MachineProcess):
    """See the module."""

    machine: Node

    def __init__(
        self,
        *,
        session: sessions.Session,
        node: NodeID,
        incarnation: int,
        lifeline_fd: int,
        template: socket.socket,
    ) -> None:
        super().__init__(session=session, spec=_spec_of(session, node, incarnation), lifeline_fd=lifeline_fd)
        self.node = node
        self.store = self._new_store(session)
        self.disk = SpillDirectory(session.spill_directory, self.loop.call_soon)
        self.object_transport = Transport(
            self.loop,
            address=objects_address(node),
            socket_dir=session.sockets,
            secret=session.secret,
            on_message=lambda peer, header, buffers: self.streams.on_message(peer, header, buffers),
            on_peer_lost=self._on_objects_lost,
            gateway_for=session.gateway_for,
        )
        self.refuse_when_starved(self.object_transport)
        self.streams = ObjectStreams(
            transport=self.object_transport,
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
            on_lost=lambda status: self._on_template_lost(),
        )
        self._pids: dict[str, int] = {}
        self._stops: dict[str, str] = {}
        self._outputs: dict[str, dict[int, WorkerOutput]] = {}
        self.router = OutputRouter(
            node=node, transport=self.transport, first_driver=FIRST_DRIVER if session.cluster is None else None
        )
        self._stderr: dict[str, WorkerOutput] = {}
        """Kept until the worker's exit is known, which may be later than the end of its output."""
        self.moved = {kind: Moved() for kind in ("evicted", "spilled", "restored")}
        self.metrics = self._served_metrics(session.metrics_port)
        self.template.attach(template)
        self.memory_monitor = MemoryMonitor(
            self.loop, session.config, pids=lambda: self._pids, exceeded=self._on_memory_exceeded
        )
        self.exit_status = 0
        self._silence: Timer | None = None
        self.faults = None
        if session.cluster is not None and session.cluster.takes_faults:
            from dualray.real.processes.fault_orders import FaultOrders  # noqa: PLC0415 - for clusters under test alone

            self.faults = FaultOrders(self)
        if self.heartbeats is not None:
            self.heartbeats.watch(HEAD)

    def _new_store(self, session: sessions.Session) -> NodeStore:
        return NodeStore(
            session.store_directory,
            capacity=session.store_bytes,
            size_min=session.config.inline_bytes_max + 1,
            objects_max=session.config.store_objects_max,
            warm_bytes=session.config.store_warm_bytes,
            idle_s=session.config.store_idle_ns / 1e9,
            call_soon=self.loop.call_soon,
        )

    def _served_metrics(self, port: int | None) -> NodeMetrics | None:
        """Serve the metrics at a port, if there is one."""
        if port is None:
            return None
        from dualray.real.observe.metrics import NodeMetrics  # noqa: PLC0415 - an HTTP server, for those who want one

        metrics = NodeMetrics(self, port)
        _log.info("metrics are served at http://%s/metrics", metrics.address)
        return metrics

    # ---- Commands --------------------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        match command:
            case Send(to=to) if self.faults is not None and to in self.faults.strangers:
                pass  # nobody listens there
            case StartWorker(worker=worker):
                self._start_worker(worker)
            case StopWorker(worker=worker, reason=reason, is_graceful=is_graceful):
                self._stops[worker] = reason
                if worker in self._pids:
                    self._stop(worker, is_graceful=is_graceful)
            case ReserveSpace(object_id=object_id, size_bytes=size_bytes):
                self.store.reserve(object_id, size_bytes, lambda error: self._on_reserved(object_id, error))
            case EvictObject(object_id=object_id):
                self.moved["evicted"].add(self.store.size_of(object_id))
                self.recorder.trace(TraceKind.OBJECT_EVICTED, object_id)
                self.store.delete(object_id)
            case DeleteObject(object_id=object_id):
                self.recorder.trace(TraceKind.OBJECT_DELETED, object_id)
                self.streams.delete(object_id)
            case RenameObject(room_id=room_id, object_id=object_id, size_bytes=size_bytes):
                self.recorder.trace(TraceKind.OBJECT_STORED, object_id, amount=size_bytes)
                self.store.rename(room_id, object_id, size_bytes)
            case SpillObject(object_id=object_id, size_bytes=size_bytes):
                self.recorder.trace(TraceKind.OBJECT_SPILLED, object_id, amount=size_bytes)
                self.disk.write(object_id, self.store.open(object_id), partial(self._on_spilled, object_id))
            case UnloadObject(object_id=object_id):
                self.store.delete(object_id)
            case RestoreObject(object_id=object_id, size_bytes=size_bytes):
                self.recorder.trace(TraceKind.OBJECT_RESTORED, object_id, amount=size_bytes)
                target = self.store.create(object_id, size_bytes)
                self.disk.read(object_id, target, partial(self._on_restored, object_id))
            case DeleteSpilled(object_id=object_id):
                self.disk.delete(object_id)
            case SendObject(object_id=object_id, size_bytes=size_bytes, to=to, offset=offset):
                self.recorder.trace(TraceKind.TRANSFER_STARTED, object_id, other=to, amount=size_bytes - offset)
                self.streams.send(command)
            case ReceiveObject():
                self.streams.receive(command)
            case _:
                super().perform(command)

    def _on_memory_exceeded(self, event: MemoryExceeded) -> None:
        if not self.machine.is_freeing_memory():  # else the one that was chosen is about to end
            _log.warning("out of memory: %d bytes are in use, and the limit is %d", event.used_bytes, event.limit_bytes)
            self.handle(event)

    def _on_reserved(self, object_id: ObjectID, error: str | None) -> None:
        if error is None:
            self.handle(SpaceReserved(object_id=object_id, place=self.store.place_of(object_id)))
        else:
            self.handle(ReserveFailed(object_id=object_id, reason=error))

    def _on_spilled(self, object_id: ObjectID, error: str | None, elapsed_ns: int) -> None:
        if error is None:
            self.moved["spilled"].add(self.store.size_of(object_id))
            self.handle(ObjectSpilled(object_id=object_id, elapsed_ns=elapsed_ns))
        else:
            logging.getLogger("dualray").error("object %s cannot be spilled: %s", object_id.hex(), error)
            self.handle(SpillFailed(object_id=object_id, reason=error))

    def _on_restored(self, object_id: ObjectID, error: str | None, elapsed_ns: int) -> None:
        self.store.seal(object_id)
        if error is None:
            self.moved["restored"].add(self.store.size_of(object_id))
            self.handle(ObjectRestored(object_id=object_id, elapsed_ns=elapsed_ns))
        else:
            logging.getLogger("dualray").error("object %s cannot be read back: %s", object_id.hex(), error)
            self.handle(RestoreFailed(object_id=object_id, reason=error))

    def receive(self, message: Event, payloads: Sequence[Payload]) -> None:
        if isinstance(message, NodeDied | NodesDied):
            for node, incarnation in lives_over(message).items():
                if not self.machine.has_returned(node, incarnation):
                    self.streams.drop(node)
        super().receive(message, payloads)
        if isinstance(message, NodeWelcomed):
            if self.faults is not None:
                self.faults.put_back()
            (self.session.directory / sessions.JOINED_FILE).touch()

    def receive_raw(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        if header[0] == DRIVER_KNOWN:
            self.router.on_driver_known(header)
        elif header[0] == FLUSH:
            for worker, outputs in list(self._outputs.items()):
                for fd in list(outputs):
                    self._drain(worker, fd, is_dead=False)
            self.router.answer_flush(peer)
        elif header[0] == COUNTS:
            if self.metrics is not None:
                self.metrics.hear(peer, header)
        else:
            super().receive_raw(peer, header, buffers)

    def _on_received(self, object_id: ObjectID, source: NodeID, size_bytes: int) -> None:
        self.recorder.trace(TraceKind.TRANSFER_ENDED, object_id, other=source, amount=size_bytes)

    # ---- Workers ---------------------------------------------------------------------------------------------

    def _start_worker(self, worker: Address) -> None:
        self.recorder.trace(TraceKind.WORKER_STARTED, worker)
        argv = {"session": str(self.session.directory), "node": self.node, "address": worker}
        starting = self.machine.worker_states()[WorkerState.STARTING]
        try:
            check_room_for_files(_FILES_OF_A_WORKER + starting)  # the others that start have still to connect
            stdout_fd, stderr_fd = self.template.fork(worker, argv)
        except OSError as error:
            words = limit_in_words(error)
            self.loop.call_soon(lambda: self._on_fork_failed(worker, words))  # it is an event of its own
            return
        outputs = self._outputs[worker] = {}
        for fd, stream, suffix in ((stdout_fd, 1, "out"), (stderr_fd, 2, "err")):
            outputs[fd] = WorkerOutput(
                worker=worker,
                stream=stream,
                file=LogFile(self.session.logs / f"{worker.replace('/', '-')}.{suffix}"),
                show=partial(self._show, worker) if self.session.log_to_driver else None,
                lines_kept=self.session.config.stderr_lines_kept,
            )
            if stream == 2:
                self._stderr[worker] = outputs[fd]
            os.set_blocking(fd, False)
            self.loop.add_reader(fd, lambda fd=fd: self._on_output(worker, fd))  # type: ignore[misc]  # bound default

    def _show(self, worker: str, name: str, pid: int, task_id: bytes, stream: int, lines: list[bytes]) -> None:
        lease = self.machine.lease_of(Address(worker))
        owner = lease.owner if lease is not None and is_driver(lease.owner) else None
        self.router.show(name, pid or self._pids.get(worker, 0), task_id, stream, lines, owner)

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
        _log.info("worker %s has pid %d", worker, pid)
        if worker in self._stops:  # it was to be stopped before it had a pid
            self.template.signal(worker, signal.SIGKILL)

    def _stop(self, worker: str, *, is_graceful: bool) -> None:
        """End a worker. One whose actor has `__ray_shutdown__` takes SIGTERM, and has a while."""
        if is_graceful:
            self.loop.call_later(SHUTDOWN_PATIENCE_NS / 1e9, partial(self._end_if_there, worker))
        self.template.signal(worker, signal.SIGTERM if is_graceful else signal.SIGKILL)

    def _end_if_there(self, worker: str) -> None:
        if worker in self._pids:
            self.template.signal(worker, signal.SIGKILL)

    def _on_fork_failed(self, worker: str, error: str) -> None:
        self._stderr.pop(worker, None)
        for fd in list(self._outputs.pop(worker, {})):
            self.loop.remove_reader(fd)
            os.close(fd)
        self.recorder.trace(TraceKind.WORKER_ENDED, worker, other=error)
        self.handle(WorkerNotStarted(worker=Address(worker), reason=error))

    def _on_exited(self, worker: str, pid: int, status: int) -> None:
        """A worker is gone; what it printed last says why, perhaps."""
        self._pids.pop(worker, None)
        for fd in list(self._outputs.get(worker, {})):
            self._drain(worker, fd)
        self._outputs.pop(worker, None)
        stderr = self._stderr.pop(worker)
        lines = list(stderr.last_lines)
        reason = f"stopped: {self._stops.pop(worker)}" if worker in self._stops else exit_reason(status)
        self.recorder.trace(TraceKind.WORKER_ENDED, worker, other=reason)
        known = self.machine.lease_of(Address(worker))
        lease = f"lease {known.lease_id} of {known.owner}" if known is not None else "no lease"
        last = f"; the last task to print: {stderr.name}, task {stderr.task_id.hex()}" if stderr.task_id else ""
        _log.info("worker %s, pid %d, %s: %s%s", worker, pid, lease, reason, last)
        if lines:
            reason += "; the last lines of its stderr:\n" + b"\n".join(lines).decode(errors="replace")
        self.transport.hear_out(worker)
        self.handle(WorkerExited(worker=Address(worker), reason=reason))

    def _drain(self, worker: str, fd: int, *, is_dead: bool = True) -> None:
        """Read what is in a worker's pipe; of a living one as much as a pipe holds."""
        for _ in range(_DRAIN_READS_MAX):
            if fd not in self._outputs.get(worker, {}):
                return
            output = self._outputs[worker][fd]
            try:
                data = os.read(fd, _READ_BYTES)
            except (
                BlockingIOError
            ):  # of a dead worker: its child holds the pipe: it may go on printing, and is not ours
                if not is_dead:
                    return
                data = b""
            output.feed(data)
            if not data:
                self._close_output(worker, fd)

    # ---- Life ------------------------------------------------------------------------------------------------

    def on_peer_lost(self, peer: str) -> None:
        if self.metrics is not None:
            self.metrics.forget(peer)
        if (pid := self._pids.get(peer)) is not None:
            self.loop.call_later(_ENDS_WITHIN_S, lambda: self._end_deaf_worker(peer, pid))
        if peer == HEAD:
            self._leave("the connection to the head has closed")
        elif is_node(peer):
            self.streams.drop(peer)
            self.handle(PeerLost(address=Address(peer)))
            self.transport.forget(peer)  # the node may live, or come back as its next incarnation
        elif self.session.gateway_for(peer) is not None:  # a process of another machine, which may live
            self.transport.forget(peer)
            self.handle(PeerLost(address=Address(peer)))

    def _end_deaf_worker(self, worker: str, pid: int) -> None:
        """A worker that has closed its connection is about to end; one that lives on would keep its task for ever."""
        if self._pids.get(worker) == pid:
            self._stops.setdefault(worker, "its connection to the node manager has closed")
            self.template.signal(worker, signal.SIGKILL)

    def _on_objects_lost(self, peer: str) -> None:
        """The connection for objects has closed: it and the one for messages end together."""
        node = node_of_objects(peer)
        self.transport.drop(node, ConnectionResetError(f"the connection for objects to {node} has closed"))
        self._on_peer_lost(node)

    def on_silent(self, peer: str) -> None:
        """The head is silent: if that lasts, it counts this node as dead, and others run what ran here."""
        suspicion_s = self.session.config.suspicion_ns / 1e9
        _log.warning("the head process does not answer; this node ends if it stays silent for %g s more", suspicion_s)
        self._silence = self.loop.call_later(
            suspicion_s, lambda: self._leave(f"no message came from the head for {suspicion_s:g} s more")
        )

    def on_heard(self, peer: str) -> None:
        _log.warning("the head process answers again")
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def handle(self, event: Event) -> None:
        super().handle(event)
        if self.machine.refused:
            self._leave(
                f"the head declared incarnation {self.machine.incarnation} of {self.node} dead, and drops its messages"
            )
        if self.machine.drained and not self.is_ending:
            _log.info("%s has finished its tasks, and ends", self.node)
            self.end()

    def on_drain_signal(self) -> None:
        """SIGUSR1: whoever runs this node wants it to end in good order."""
        _log.info("%s must leave the cluster, and first finishes its tasks", self.node)
        self.handle(DrainAsked())

    def _on_template_lost(self) -> None:
        """All workers have died with it. A template that could not even start would not start next time either."""
        why = (
            "its worker template has ended, and all workers have ended with it: "
            f"{self.template.reason or 'it was killed'}"
        )
        if self.template.has_served:
            self._leave(why)
        else:
            _log.critical("%s ends: %s", self.node, why)
            self.end()

    def _leave(self, why: str) -> None:
        """This life of the node is over; whether there is a next one is for whoever has started it."""
        if self.exit_status == 0 and not self.is_ending:
            self.exit_status = EXIT_TO_REJOIN
            _log.warning("%s ends: %s", self.node, why)
            self.end()

    def clean_up(self) -> None:
        """End the workers, delete the store."""
        if self.metrics is not None:
            self.metrics.close()
        self.memory_monitor.close()
        if self.faults is not None:
            self.faults.close()
        self.template.close()
        self.disk.close()
        self.store.destroy()
        self.object_transport.close()
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


def _spec_of(session: sessions.Session, node: NodeID, incarnation: int) -> MachineSpec:
    return MachineSpec(
        kind="node",
        address=node,
        node=node,
        config=session.config,
        incarnation=incarnation,
        total=session.total.units,
        store_bytes=session.store_bytes,
        labels=session.labels,
    )


def main(argv: Sequence[str]) -> int:
    """Entry: `python -m dualray.real.processes.node SESSION LIFELINE TEMPLATE NODE INCARNATION`, `argv` being what
    follows the name; TEMPLATE is the socket of its worker template."""
    name, incarnation = argv[3], int(argv[4])
    session, lifeline_fd = begin(name, argv)
    node = NodeProcess(
        session=session,
        node=NodeID(name),
        incarnation=incarnation,
        lifeline_fd=lifeline_fd,
        template=socket.socket(fileno=int(argv[2])),
    )
    _log.info("node manager %s, incarnation %d, pid %d", name, incarnation, os.getpid())
    signal.signal(signal.SIGUSR1, lambda *_: node.loop.call_soon(node.on_drain_signal))
    node.recorder.trace(TraceKind.NODE_STARTED, node.node)
    node.handle(Started())
    node.run()
    return node.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
