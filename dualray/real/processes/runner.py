"""The common part of the head and of node managers: a machine, a loop, a transport, and a driver to outlive.

A `MachineProcess` hands events to its machine on the loop's thread, the only one that it has, and carries out the
commands that any machine may give. It ends when its lifeline, a pipe from the driver, closes. It decides nothing.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualray.exceptions import ControlPlaneError
from dualray.real.control_plane.shards import Tables
from dualray.real.limits import is_exhaustion, is_out_of_threads, limit_in_words
from dualray.real.logs import log_to
from dualray.real.net.heartbeats import Heartbeats
from dualray.real.net.loop import Loop, Timer
from dualray.real.net.messages import Payload, Post, decode_messages
from dualray.real.net.spare import SpareDescriptor
from dualray.real.net.transport import Transport
from dualray.real.processes.recorder import Recorder
from dualray.real.session import session as sessions
from dualray.shared.machines.base import Machine
from dualray.shared.model.codec import SURROGATES, pack
from dualray.shared.model.commands import ArmTimer, CancelTimer, Command, DropPayload, Send, WriteRecord
from dualray.shared.model.events import Event, TaskPushed, TimerFired
from dualray.shared.model.ids import Address
from dualray.shared.proof.decision_log import MachineSpec
from dualray.shared.proof.trace import TraceKind

EXIT_AFTER_ERROR = 70
"""Exit status of a process that met a bug of ours: better dead and reported than alive and wrong."""
EXIT_TO_REJOIN = 75
"""Exit status of a node manager whose life the head counts, or must count, as over: it may join again as the next."""

HEARTBEAT = b""
"""The header of a message that says nothing but that its sender lives."""

RAW_KINDS = frozenset(range(1, 12))
"""First bytes of the headers of messages between runners; those of events begin with a msgpack array, 0x90 or more."""

_PARENT_CHECK_S = 1.0


class _Armed:
    """A named timer. It may be due, on the loop's thread, before `timer` is set on the one that arms it."""

    __slots__ = ("timer",)

    def __init__(self) -> None:
        self.timer: Timer | None = None


class Timers:
    """Named timers on a loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._timers: dict[str, _Armed] = {}

    def arm(self, name: str, delay_ns: int, fire: Any) -> None:
        """Call `fire(name)` after the delay; a timer of the same name is replaced."""
        self.cancel(name)
        armed = self._timers[name] = _Armed()

        def due() -> None:
            if self._timers.get(name) is armed:
                del self._timers[name]
                fire(name)

        armed.timer = self._loop.call_later(delay_ns / 1e9, due)

    def cancel(self, name: str) -> None:
        """Forget the timer."""
        armed = self._timers.pop(name, None)
        if armed is not None and armed.timer is not None:
            armed.timer.cancel()


class MachineProcess:
    """See the module."""

    machine: Machine

    def __init__(self, *, session: sessions.Session, spec: MachineSpec, lifeline_fd: int) -> None:
        self.session = session
        self.address = Address(spec.address)
        self.machine = spec.make()
        self.payloads: dict[bytes, bytes] = {}
        self.loop = Loop(self._on_error)
        self.timers = Timers(self.loop)
        self.recorder = Recorder(
            session.record_directory,
            spec,
            seed=session.seed,
            trace_directory=session.notes_directory if session.has_notes else None,
        )
        self.transport = Transport(
            self.loop,
            address=self.address,
            socket_dir=session.sockets,
            secret=session.secret,
            on_message=self._on_message,
            on_peer_lost=self._on_peer_lost,
            gateway_for=session.gateway_for,
        )
        self.post = Post(self.transport.send)
        self._spare = SpareDescriptor()
        self.refuse_when_starved(self.transport)
        self.heartbeats: Heartbeats | None = None
        if session.cluster is not None:  # else the processes are one another's children: a death closes a connection
            self.heartbeats = Heartbeats(
                self.loop,
                timeout_ns=session.config.heartbeat_timeout_ns,
                beat=lambda address: self.transport.send(address, HEARTBEAT),
                on_silent=self.on_silent,
                on_heard=self.on_heard,
            )
        self.control_plane: Tables | None = None
        self.is_ending = False
        self.is_orphan = False
        """Nobody else is left to clean up."""
        self._lifeline_fd = lifeline_fd
        self._parent_pid = os.getppid()
        self.loop.add_reader(lifeline_fd, self._on_lifeline)
        self.loop.call_later(_PARENT_CHECK_S, self._check_parent)

    def refuse_when_starved(self, transport: Transport) -> None:
        """Without a descriptor for a connection, say so to whoever connects: others need this process to go on."""
        transport.on_starved = lambda _: self._spare.refuse_waiting(transport.listener)

    # ---- Events in -------------------------------------------------------------------------------------------

    def _on_message(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        if self.heartbeats is not None:
            self.heartbeats.hear(peer)
        if not header:
            return
        if header[0] in RAW_KINDS:
            self.receive_raw(peer, header, buffers)
            return
        for message, payloads in decode_messages(header, buffers):
            self.receive(message, payloads)

    def receive(self, message: Event, payloads: Sequence[Payload]) -> None:
        """A message has arrived."""
        if payloads:
            self.payloads.update(payloads)
        self.handle(message)

    def receive_raw(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        """A message between runners has arrived, which is no event: a piece of an object."""
        raise ValueError(f"{self.address} received an unexpected raw message from {peer}")

    def handle(self, event: Event) -> None:
        """Hand an event to the machine and carry out its commands."""
        now_ns = self.loop.now_ns()
        commands = self.machine.handle(event, now_ns)
        self.recorder.log(event, now_ns, commands)
        for command in commands:
            self.perform(command)
        self.post.flush_all()

    def _on_peer_lost(self, peer: str) -> None:
        self.post.forget(Address(peer))
        self.on_peer_lost(peer)

    def on_peer_lost(self, peer: str) -> None:
        """A connection has closed."""

    def on_silent(self, peer: str) -> None:
        """Nothing was heard of a peer for the heartbeat timeout."""

    def on_heard(self, peer: str) -> None:
        """A peer that was silent was heard again."""

    # ---- Commands out ----------------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        """Carry out a command that any machine may give; the others belong to the subclass."""
        match command:
            case Send():
                self._send(command)
            case ArmTimer():
                self.timers.arm(command.timer, command.delay_ns, lambda name: self.handle(TimerFired(timer=name)))
            case CancelTimer():
                self.timers.cancel(command.timer)
            case DropPayload():
                self.payloads.pop(command.key, None)
            case WriteRecord():
                self.write_record(command)
            case _:
                raise TypeError(f"process {self.address} cannot carry out the command {command!r}")

    def _send(self, command: Send) -> None:
        if isinstance(command.message, TaskPushed):
            spec = command.message.spec
            self.recorder.trace(
                TraceKind.TASK_PUSHED,
                spec.task_id,
                other=command.to,
                name=spec.template.name,
                amount=command.message.attempt,
            )
        payloads = [(key, self.payloads[key]) for key in command.payloads if key in self.payloads]
        self.post.add(command.to, command.message, payloads, urgent=command.urgent)

    def write_record(self, command: WriteRecord) -> None:
        """A row of the control plane's tables, written behind the work."""
        if self.control_plane is not None:
            self.control_plane.write_behind(
                command.table, command.key.encode(errors=SURROGATES), pack(dict(command.fields))
            )

    # ---- Life ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until the driver is gone, then clean up."""
        try:
            self.loop.run()
        finally:
            self.clean_up()

    def clean_up(self) -> None:
        """End what this process has started."""
        self.transport.close()
        self.recorder.close()

    def _on_lifeline(self) -> None:
        if not os.read(self._lifeline_fd, 1):
            self.loop.remove_reader(self._lifeline_fd)
            self.is_orphan = True
            self.end()

    def _check_parent(self) -> None:
        """The lifeline may have been inherited by something that lives on; the parent's death is seen all the same."""
        if os.getppid() != self._parent_pid:
            self.is_orphan = True
            self.end()
        else:
            self.loop.call_later(_PARENT_CHECK_S, self._check_parent)

    def end(self) -> None:
        """Whoever has started this process is gone, or wants it to end."""
        self.is_ending = True
        self.loop.stop()

    def _on_error(self, error: Exception) -> None:
        log = logging.getLogger("dualray")
        if isinstance(error, OSError | RuntimeError) and (is_exhaustion(error) or is_out_of_threads(error)):
            log.critical("%s ends: %s", self.address, limit_in_words(error), exc_info=error)
        elif isinstance(error, ControlPlaneError):
            log.critical("%s ends: %s", self.address, error)
        else:
            log.critical("%s ends because of a bug in dualray", self.address, exc_info=error)
        self.loop.stop()
        try:
            self.clean_up()
        finally:
            logging.shutdown()
            os._exit(EXIT_AFTER_ERROR)


def begin(name: str, argv: Sequence[str]) -> tuple[sessions.Session, int]:
    """What head and node manager do first; `argv` begins with the session's directory and the lifeline's descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then ends us
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes is the driver's to mind
    session = sessions.load(Path(argv[0]))
    log_to(session.log_path(name))
    return session, int(argv[1])
