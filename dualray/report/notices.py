"""What the head notices, read from its decision log while the run goes on: nodes that fall silent, die or leave, and
the names of actors.

The trace has a row for each fault, but none for the moment at which the head finds out. That moment decides when lost
tasks run again. A log has very many decisions, and few are of use here: the others are not decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgpack

from dualray.shared.model.codec import NAMES, SURROGATES, decode
from dualray.shared.model.commands import WriteRecord
from dualray.shared.model.events import ActorRegistered, NodeDraining, NodeHeard, NodeSilent
from dualray.shared.model.ids import HEAD
from dualray.shared.model.states import NodeHealth
from dualray.shared.proof.decision_log import Decision

__all__ = ["ActorNamed", "HeadTail", "NodeNotice", "Noticed", "notices_of"]


class Noticed(StrEnum):
    """What the head thinks of a node from now on."""

    SILENT = "silent"
    HEARD = "heard"
    DEAD = "dead"
    LEAVING = "leaving"
    STAYING = "staying"


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """The head notices something about one life of a node."""

    time_ns: int
    node: str
    incarnation: int
    what: Noticed


@dataclass(frozen=True, slots=True)
class ActorNamed:
    """The head hears of an actor, by the id of the task that constructs it; `name` is empty for most."""

    time_ns: int
    actor: str
    name: str


_EVENTS: Final = (ActorRegistered, NodeDraining, NodeHeard, NodeSilent)
_NODES: Final = "nodes"


class HeadTail:
    """Reads what has come to the head's log since the last look; a head that was started again has a log for each life.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._logs: dict[Path, _Log] = {}

    @property
    def has_logs(self) -> bool:
        """Whether the head has left a log that can be read."""
        return any(log.is_ours for log in self._logs.values())

    def look(self) -> list[NodeNotice | ActorNamed]:
        """The notices since the last call, in order of time.

        Raises:
            ValueError: a log that cannot be read; the message names it.
        """
        found: list[NodeNotice | ActorNamed] = []
        for path in sorted(self._directory.glob(f"{HEAD}*.decisions")):
            log = self._logs.get(path)
            if log is None:
                log = self._logs[path] = _Log(path)
            found += log.look()
        return sorted(found, key=lambda notice: notice.time_ns)


class _Log:
    """One log that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._stream = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES)
        self._events: frozenset[int] | None = None
        """The tags of the events that are decoded; None: the opening of the log was not read yet. A log of a version
        with other tags tells nothing."""
        self._writes: tuple[int, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether its opening was read, and is of this version."""
        return bool(self._events)

    def look(self) -> Iterator[NodeNotice | ActorNamed]:
        if self._path.stat().st_size <= self._read:
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        self._stream.feed(data)
        try:
            for value in self._stream:
                if self._events is None:
                    self._open(value)
                else:
                    yield from self._notices(*value)
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise ValueError(f"{self._path} is not a decision log that this dualray can read: {error}") from error

    def _open(self, opening: Any) -> None:
        names: Sequence[str] = opening["names"]
        is_ours = tuple(names) == NAMES[: len(names)]
        self._events = frozenset(NAMES.index(kind.__name__) for kind in _EVENTS) if is_ours else frozenset()
        self._writes = (_WRITE_RECORD,) if is_ours else ()

    def _notices(self, now_ns: int, event: Any, commands: Sequence[Any]) -> Iterator[NodeNotice | ActorNamed]:
        assert self._events is not None
        if event[0] in self._events:
            yield _of_event(now_ns, decode(event))
        for command in commands:
            if command[0] in self._writes and _NODES in command:
                yield from _of_record(now_ns, decode(command))


_WRITE_RECORD: Final = NAMES.index(WriteRecord.__name__)


def notices_of(decisions: Iterable[Decision]) -> Iterator[NodeNotice | ActorNamed]:
    """The same, from a whole log of the head."""
    for decision in decisions:
        if isinstance(decision.event, _EVENTS):
            yield _of_event(decision.now_ns, decision.event)
        for command in decision.commands:
            if isinstance(command, WriteRecord):
                yield from _of_record(decision.now_ns, command)


def _of_event(now_ns: int, event: Any) -> NodeNotice | ActorNamed:
    match event:
        case ActorRegistered(spec=spec):
            return ActorNamed(now_ns, spec.task_id.hex(), spec.creates.name if spec.creates is not None else "")
        case NodeDraining(node=node, incarnation=life, given_up=given_up):
            return NodeNotice(now_ns, node, life, Noticed.STAYING if given_up else Noticed.LEAVING)
        case NodeHeard(node=node, incarnation=life):
            return NodeNotice(now_ns, node, life, Noticed.HEARD)
    assert isinstance(event, NodeSilent)
    return NodeNotice(now_ns, event.node, event.incarnation, Noticed.SILENT)


def _of_record(now_ns: int, record: WriteRecord) -> Iterator[NodeNotice]:
    """Whether the head declares a node dead: it writes that down each time."""
    fields = dict(record.fields)
    if record.table == _NODES and fields["health"] == NodeHealth.DEAD:
        yield NodeNotice(now_ns, record.key, int(fields["incarnation"]), Noticed.DEAD)
