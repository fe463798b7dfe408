"""The common part of all machines: the outbox, the contract, and the handling of one event.

A composition handles an event in three steps: the method named for the event's type, then the drain, in which its
components react to one another until nothing is left to do (with a bound), then the commands go out. `handle` never
calls `handle`. What it costs to look up the method is one dictionary access; a test checks that every event that a
composition can hear is in its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from dualray.exceptions import InvariantViolation
from dualray.shared.model.commands import Command, Send
from dualray.shared.model.events import Event
from dualray.shared.model.ids import Address, short

DRAIN_STEPS_MAX = 1_000_000
"""Reactions of components to one event, after which a machine is taken to be in a loop."""


class Machine(Protocol):
    """The contract of a composition: what runners drive and what the decision log replays."""

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """What to do about `event`, which happened at `now_ns`."""

    def check_invariants(self) -> None:
        """Raise `InvariantViolation` when something that must hold does not: a full sweep, for tests."""


class Outbox:
    """The commands that one event has led to, and the time at which it happened."""

    __slots__ = ("commands", "needs_drain", "now_ns")

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.now_ns = 0
        self.needs_drain = False
        """Whether a component may have left something for others to react to."""

    def add(self, command: Command) -> None:
        self.commands.append(command)

    def send(self, to: Address, message: Event, payloads: tuple[bytes, ...] = (), *, urgent: bool = True) -> None:
        self.commands.append(Send(to=to, message=message, payloads=payloads, urgent=urgent))


class Composition:
    """Base of owner, node and head: one outbox, a table from event type to method, a drain."""

    def __init__(self) -> None:
        self.out = Outbox()
        self.table: Mapping[type[Any], Callable[[Any, Any], object]] = {}
        """What each event leads to: called with the machine and the event."""
        self.no_drain_events: frozenset[type[Any]] = frozenset()
        """Events of which most leave nothing to react to; the others say so (`Outbox.needs_drain`)."""

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        out = self.out
        out.now_ns = now_ns
        kind = type(event)
        out.needs_drain = kind not in self.no_drain_events
        self.table[kind](self, event)
        if out.needs_drain:
            self.drain()
        commands = out.commands
        out.commands = []
        return commands

    def drain(self) -> None:
        """Let components react to one another until nothing is left to do."""

    def check_invariants(self) -> None:
        """Raise `InvariantViolation` when something that must hold does not."""


def bounded_steps(what: str) -> Iterator[int]:
    """Numbers to count the steps of a drain with; ends in an error that names the machine."""
    yield from range(DRAIN_STEPS_MAX)
    raise InvariantViolation(f"{what} did not become idle within {DRAIN_STEPS_MAX:,} steps")


def ensure(holds: bool, message: str, *about: object) -> None:
    """An invariant: `message` is formatted with `about`, ids among it shortened, only when it does not hold."""
    if not holds:
        raise InvariantViolation(message.format(*(short(each) if isinstance(each, bytes) else each for each in about)))
