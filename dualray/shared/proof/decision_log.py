"""The decision log: every (event, time) -> commands of one machine, as it happened, and the replay that checks it.

A log is a stream of msgpack values. The first opens it: format, protocol version, the kind of machine, what it was made
with, the names of events and commands. Each further one is a decision: (time, event, commands). `replay` makes a fresh
machine, feeds it the events, and compares the commands, so a log proves that its machine is pure: that nothing but the
events has decided. Whether the runners did what they were told is what trace.py proves.

A log that was cut off (its process was killed) ends at the last whole decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgpack

from dualray.shared.machines.base import Machine
from dualray.shared.model.codec import NAMES, PROTOCOL_VERSION, SURROGATES, decode, encode, pack
from dualray.shared.model.commands import Command
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event
from dualray.shared.model.ids import Address, NodeID
from dualray.shared.model.resources import Resources

if TYPE_CHECKING:
    from dualray.shared.machines.head.head import Head
    from dualray.shared.machines.node.node import Node
    from dualray.shared.machines.owner.owner import Owner

FORMAT = "dualray-decisions/1"


class Sink(Protocol):
    """Where the bytes of a log go."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """Everything that a machine is made with: its snapshot at the start of a log."""

    kind: str
    address: str
    config: Config
    node: str = ""
    is_driver: bool = False
    incarnation: int = 0
    total: tuple[tuple[str, int], ...] = ()
    store_bytes: int = 0
    labels: tuple[tuple[str, str], ...] = ()

    def make(self) -> Owner | Node | Head:
        """A fresh machine."""
        # A process runs one machine, and starts without the code of the others.
        if self.kind == "owner":
            from dualray.shared.machines.owner.owner import Owner  # noqa: PLC0415

            return Owner(
                address=Address(self.address), node=NodeID(self.node), config=self.config, is_driver=self.is_driver
            )
        if self.kind == "node":
            from dualray.shared.machines.node.node import Node  # noqa: PLC0415

            return Node(
                node=NodeID(self.node),
                incarnation=self.incarnation,
                total=Resources(self.total),
                store_bytes=self.store_bytes,
                config=self.config,
                labels=self.labels,
            )
        if self.kind == "head":
            from dualray.shared.machines.head.head import Head  # noqa: PLC0415

            return Head(config=self.config)
        raise ValueError(
            f"the log has a machine of the unknown kind {self.kind!r}; the known kinds are owner, node and head"
        )


class DecisionLog:
    """Writes the log of one machine. What is written when an event has been handled survives the process."""

    def __init__(self, sink: Sink, spec: MachineSpec, *, seed: str) -> None:
        self._sink = sink
        opening = {
            "format": FORMAT,
            "protocol": PROTOCOL_VERSION,
            "seed": seed,
            "machine": asdict(spec),
            "names": NAMES,
        }
        sink.write(pack(opening))

    def record(self, event: Event, now_ns: int, commands: Sequence[Command]) -> None:
        """One decision."""
        self._sink.write(pack((now_ns, encode(event), [encode(command) for command in commands])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision as it was logged."""

    now_ns: int
    event: Event
    commands: list[Command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log that was read."""

    spec: MachineSpec
    seed: str
    decisions: list[Decision]
    is_cut_off: bool


def read_log(data: bytes) -> Log:
    """Read a whole log.

    Raises:
        ValueError: the bytes are no decision log, or one of another version; the message says which.
    """
    stream = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES)
    stream.feed(data)
    spec, seed = _read_opening(stream)
    decisions: list[Decision] = []
    end = (
        stream.tell()
    )  # of the last whole value; the stream's own position is somewhere inside the one that was cut off
    while True:
        try:
            now_ns, event, commands = next(stream)
            decisions.append(
                Decision(now_ns=now_ns, event=decode(event), commands=[decode(command) for command in commands])
            )
        except StopIteration:
            return Log(spec=spec, seed=seed, decisions=decisions, is_cut_off=end < len(data))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"decision {len(decisions)} of the decision log cannot be read: {_words(error)}"
            ) from error
        end = stream.tell()


class LogTail:
    """Reads a log that its process still writes.

    Attributes:
        spec: what the machine was made with. None until the opening was read.
    """

    def __init__(self) -> None:
        self.spec: MachineSpec | None = None
        self._stream = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES)

    def feed(self, data: bytes) -> Iterator[tuple[int, Event]]:
        """Yield the time and the event of each decision that is whole now.

        Raises:
            ValueError: the bytes are no decision log, or one of another version; the message says which.
        """
        self._stream.feed(data)
        if self.spec is None and data:
            self.spec, _ = _read_opening(self._stream)
        for now_ns, event, _ in self._stream:
            yield now_ns, decode(event)


def _read_opening(stream: Iterator[Any]) -> tuple[MachineSpec, str]:
    try:
        opening = next(stream)
    except (StopIteration, ValueError) as error:
        raise ValueError("the file is not a decision log, because the file does not begin with a header") from error
    if not isinstance(opening, dict) or opening.get("format") != FORMAT:
        raise ValueError(
            f"the file is not a decision log (a record of a run) of format {FORMAT!r}, which this dualray reads"
        )
    try:
        version, names = opening["protocol"], tuple(opening["names"])
    except (KeyError, TypeError) as error:
        raise _no_opening(error) from error
    if version != PROTOCOL_VERSION or names != NAMES[: len(names)]:  # 0.1.0 had fewer
        raise ValueError(
            f"the log has protocol version {version}, but this dualray has version {PROTOCOL_VERSION}: replay the "
            "log with the version of dualray that wrote the log"
        )
    try:
        machine = dict(opening["machine"])
        machine["config"] = Config(**machine["config"])
        machine["total"] = tuple(tuple(pair) for pair in machine["total"])
        machine["labels"] = tuple(tuple(pair) for pair in machine["labels"])
        return MachineSpec(**machine), opening["seed"]
    except (KeyError, TypeError, ValueError) as error:
        raise _no_opening(error) from error


def _no_opening(error: Exception) -> ValueError:
    return ValueError(f"the file is not a decision log: its opening cannot be read: {_words(error)}")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first command that a fresh machine did not derive as logged."""

    decision: int
    command: int
    event: Event
    logged: Command | None
    derived: Command | None

    def __str__(self) -> str:
        return (
            f"decision {self.decision}, command {self.command}, on {self.event}:\n"
            f"  logged:  {self.logged}\n  derived: {self.derived}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay found."""

    decisions: int
    commands: int
    difference: Difference | None


def replay(log: Log) -> Replay:
    """Derive every command again with a fresh machine, up to the first that differs."""
    machine = cast(Machine, log.spec.make())
    commands = 0
    for number, decision in enumerate(log.decisions):
        derived = machine.handle(decision.event, decision.now_ns)
        for position, (old, new) in enumerate(_pairs(decision.commands, derived)):
            if old != new:
                difference = Difference(
                    decision=number, command=position, event=decision.event, logged=old, derived=new
                )
                return Replay(decisions=number, commands=commands, difference=difference)
            commands += 1
    return Replay(decisions=len(log.decisions), commands=commands, difference=None)


def _pairs(logged: Sequence[Command], derived: Sequence[Command]) -> Iterator[tuple[Command | None, Command | None]]:
    for position in range(max(len(logged), len(derived))):
        yield (
            logged[position] if position < len(logged) else None,
            derived[position] if position < len(derived) else None,
        )


def all_commands(log: Log) -> Iterable[Command]:
    """Every command of a log, in order."""
    for decision in log.decisions:
        yield from decision.commands
