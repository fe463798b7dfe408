"""The alternatives behind each decision of the machines: found by replaying their logs, at no cost to the run.

A decision log holds what was decided, not what else could have been. But a fresh machine that is fed the log's events
decides the same again, and can be looked at while it does so. So before each event we look at what a node has free, and
watch its eviction policy; and the head's scheduler shows each choice with the view that it was made on, of which the
policy then says how it ranks every candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dualray.report.record import Record
from dualray.shared.machines.head.head import Head
from dualray.shared.machines.node.node import Node
from dualray.shared.model.commands import Command, EvictObject, Send, SpillObject
from dualray.shared.model.events import (
    Event,
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    LeasesGranted,
    LocationsWanted,
    ObjectRequested,
)
from dualray.shared.model.ids import HEAD, ObjectID
from dualray.shared.model.resources import CPU, Resources, free_words
from dualray.shared.policies.eviction.policy import EvictionPolicy
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, PlacementPolicy, Score, scores_of
from dualray.shared.proof.decision_log import Decision, Log

CANDIDATES_MAX = 16
"""Candidates of one choice that are kept: the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The head chose, or found no room.

    Attributes:
        policy: its class's name.
        candidates: the best of them, best first; then those without room.
        left_out: how many candidates are not among them.
        free: in words, what each of these candidates had free.
    """

    time_ns: int
    request: LeaseRequested
    policy: str
    answer: Placement
    candidates: Sequence[Score]
    left_out: int
    free: dict[str, str]


@dataclass(slots=True, kw_only=True)
class Asked:
    """What became of a request for leases at the head: how often there was no room, the first such choice, and those
    that placed a lease."""

    no_room: int = 0
    first_without: Choice | None = None
    placed: list[Choice] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A node answered a request: so many leases here, so many spilled back to the head; `reasons` in words."""

    time_ns: int
    node: str
    request: LeaseRequested
    here: int
    spilled: int
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lease on a worker was granted."""

    time_ns: int
    node: str
    lease: LeaseGranted


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """An object left a store, for the disk when `spilled`, to make room.

    Attributes:
        position: its place among the candidates, from 1: the one that was used longest ago.
        candidates: how many objects could have gone.
        used_bytes, capacity_bytes: of the store, before.
        event: what the room was made for.
    """

    time_ns: int
    node: str
    policy: str
    spilled: bool
    position: int
    candidates: int
    used_bytes: int
    capacity_bytes: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A node asked another one for an object, or (`of` is the head) where it is; `event` is why."""

    time_ns: int
    node: str
    of: str
    event: Event


class Replayed:
    """Everything that a replay of the nodes' and the head's logs shows. What no log tells is absent."""

    def __init__(self, record: Record) -> None:
        self.asked: dict[str, Asked] = {}
        """At the head, by request."""
        self.local: dict[str, list[Local]] = {}
        """At nodes, by request."""
        self.grants: dict[str, list[Grant]] = {}
        """By worker, in order of time."""
        self.refusals: dict[str, list[tuple[int, str]]] = {}
        """By request: when, and the error's message."""
        self.evictions: dict[str, list[Eviction]] = {}
        """By object."""
        self.asks: dict[str, list[Ask]] = {}
        """By object."""
        self.store_levels: dict[str, list[tuple[int, int]]] = {}
        """Of each node, the bytes in its store from a moment on."""
        for node in record.nodes():
            for log in record.logs[node]:
                self._replay_node(log)
        for log in record.logs.get(HEAD, ()):
            self._replay_head(log)
        for grants in self.grants.values():
            grants.sort(key=lambda grant: grant.time_ns)

    # ---- Nodes -----------------------------------------------------------------------------------------------

    def _replay_node(self, log: Log) -> None:
        machine = log.spec.make()
        assert isinstance(machine, Node)
        watched = _WatchedEviction(machine.eviction)
        machine.eviction = watched
        levels = self.store_levels.setdefault(log.spec.address, [])
        for decision in log.decisions:
            event, used_bytes = decision.event, machine.store_used_bytes()
            reasons: Sequence[str] = ()
            if isinstance(event, LeaseRequested):
                reasons = machine.why_not_here(event, decision.now_ns)
            watched.choices.clear()
            machine.handle(event, decision.now_ns)
            if isinstance(event, LeaseRequested):
                self._note_local(log.spec.address, decision, event, reasons)
            self._note_commands(machine, decision, watched, used_bytes)
            if machine.store_used_bytes() != used_bytes:
                levels.append((decision.now_ns, machine.store_used_bytes()))

    def _note_local(self, node: str, decision: Decision, request: LeaseRequested, reasons: Sequence[str]) -> None:
        spilled = sum(
            message.count
            for to, message in _sent(decision.commands)
            if to == HEAD and isinstance(message, LeaseRequested) and message.request_id == request.request_id
        )
        local = Local(
            time_ns=decision.now_ns,
            node=node,
            request=request,
            here=max(request.count - spilled, 0),
            spilled=spilled,
            reasons=reasons,
        )
        self.local.setdefault(request.request_id, []).append(local)

    def _note_commands(self, machine: Node, decision: Decision, watched: _WatchedEviction, used_bytes: int) -> None:
        node = machine.node
        for command in decision.commands:
            match command:
                case EvictObject(object_id=object_id) | SpillObject(object_id=object_id):
                    position, candidates = watched.place_of(object_id)
                    eviction = Eviction(
                        time_ns=decision.now_ns,
                        node=node,
                        policy=watched.name,
                        spilled=isinstance(command, SpillObject),
                        position=position,
                        candidates=candidates,
                        used_bytes=used_bytes,
                        capacity_bytes=machine.store_capacity_bytes(),
                        event=decision.event,
                    )
                    self.evictions.setdefault(object_id.hex(), []).append(eviction)
                case Send(to=to, message=LeaseGranted() as lease):
                    grant = Grant(time_ns=decision.now_ns, node=node, lease=lease)
                    self.grants.setdefault(lease.worker, []).append(grant)
                case Send(to=to, message=LeasesGranted(leases=leases)):
                    for lease in leases:
                        grant = Grant(time_ns=decision.now_ns, node=node, lease=lease)
                        self.grants.setdefault(lease.worker, []).append(grant)
                case Send(to=to, message=LeaseRefused() as refusal):
                    self._note_refusal(decision.now_ns, refusal)
                case Send(to=to, message=ObjectRequested(object_id=object_id) | LocationsWanted(object_id=object_id)):
                    ask = Ask(time_ns=decision.now_ns, node=node, of=to, event=decision.event)
                    self.asks.setdefault(object_id.hex(), []).append(ask)
                case _:
                    pass

    def _note_refusal(self, time_ns: int, refusal: LeaseRefused) -> None:
        self.refusals.setdefault(refusal.request_id, []).append((time_ns, refusal.error.message))

    # ---- The head --------------------------------------------------------------------------------------------

    def _replay_head(self, log: Log) -> None:
        machine = log.spec.make()
        assert isinstance(machine, Head)
        now_ns = 0

        def on_choice(request: LeaseRequested, policy: PlacementPolicy, view: ClusterView, answer: Placement) -> None:
            asked = self.asked.setdefault(request.request_id, Asked())
            if answer.outcome is Outcome.SUCCESS:
                asked.placed.append(_choice(now_ns, request, policy, view, answer))
                return
            asked.no_room += 1
            if asked.first_without is None:
                asked.first_without = _choice(now_ns, request, policy, view, answer)

        machine.watch_choices(on_choice)
        for decision in log.decisions:
            now_ns = decision.now_ns
            machine.handle(decision.event, now_ns)
            for _, message in _sent(decision.commands):
                if isinstance(message, LeaseRefused):
                    self._note_refusal(now_ns, message)


def _sent(commands: Iterable[Command]) -> Iterable[tuple[str, Event]]:
    return ((command.to, command.message) for command in commands if isinstance(command, Send))


def _choice(
    time_ns: int, request: LeaseRequested, policy: PlacementPolicy, view: ClusterView, answer: Placement
) -> Choice:
    scores = scores_of(policy, request.shape, view, request.via)
    scores.sort(key=lambda score: (score.rank is None, score.rank or (), score.node))
    kept = scores[:CANDIDATES_MAX]
    return Choice(
        time_ns=time_ns,
        request=request,
        policy=type(policy).__name__,
        answer=answer,
        candidates=kept,
        left_out=len(scores) - len(kept),
        free={score.node: _free_words(request.shape.placement, view, score) for score in kept},
    )


def _free_words(demand: Resources, view: ClusterView, score: Score) -> str:
    candidate = view.candidates[score.node]
    names = [name for name, _ in demand.units] or [CPU]
    return ", ".join(
        free_words(max(candidate.free.get(name, 0), 0), candidate.total.get(name, 0), name) for name in names
    )


class _WatchedEviction:
    """An eviction policy that remembers what it was offered."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self.spills: bool = getattr(policy, "spills", False)
        self.name = type(policy).__name__
        self.choices: list[list[ObjectID]] = []

    def choose(self, evictable: Iterable[tuple[ObjectID, int]], bytes_needed: int) -> list[ObjectID] | None:
        offered = list(evictable)
        self.choices.append([object_id for object_id, _ in offered])
        return self._policy.choose(offered, bytes_needed)

    def place_of(self, object_id: ObjectID) -> tuple[int, int]:
        """Its place among what was offered, from 1, and how much that was; zeros when it was not."""
        for offered in reversed(self.choices):
            if object_id in offered:
                return offered.index(object_id) + 1, len(offered)
        return 0, 0
