"""The story of a task or an object, in words: what was decided, among which candidates, for which reason, and what
followed.

Moments come from the trace; candidates, scores and reasons from replaying the logs (replayed.py); why a task was queued
again from the decision of its owner that did so. What no log tells is left out, and a run without logs has the trace's
moments alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from dualray.report.histories import LOST, NOT_ENDED, RESTART, TASK_HEX, Attempt, Lives, Move, ObjectLife, TaskLife
from dualray.report.replayed import Ask, Choice, Eviction, Grant, Local, Replayed
from dualray.report.requests import Requests
from dualray.shared.model.accelerators import device_words
from dualray.shared.model.commands import NoteRetry, Send
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ActorChanged,
    Event,
    LeasedWorkerDied,
    LeaseRequested,
    LinkLost,
    LocationsKnown,
    NodeDied,
    ObjectDemanded,
    ObjectElsewhere,
    ObjectFailed,
    ObjectNotHere,
    ObjectRequested,
    ObjectWanted,
    PeerLost,
    ReceiveFailed,
    SpaceRequested,
    SpaceReserved,
    TaskFinished,
    TimerFired,
)
from dualray.shared.model.ids import HEAD, ObjectID, short
from dualray.shared.model.specs import DEFAULT_STRATEGY, TaskSpec
from dualray.shared.proof.trace import TraceEvent, TraceKind

LISTED_MAX = 8
"""Things of one kind that a line names."""


@dataclass(frozen=True, slots=True)
class Line:
    """A moment of a story; `details` are what belongs to it."""

    time_ns: int | None
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The story of a task or an object: its id in full, and its lines in order of time."""

    subject: str
    title: str
    lines: tuple[Line, ...]


class Teller:
    """Tells the stories of one run, which may go on."""

    def __init__(self, lives: Lives, *, goes_on: bool = False) -> None:
        self._lives = lives
        self._goes_on = goes_on

    @property
    def _replayed(self) -> Replayed:
        return self._lives.replayed

    @cached_property
    def _owners(self) -> _Owners:
        return _Owners(self._lives)

    @cached_property
    def _requests(self) -> Requests:
        return Requests(self._lives.record)

    @cached_property
    def _returned(self) -> dict[str, list[ObjectLife]]:
        """Of each task, the objects that it returns."""
        returned: dict[str, list[ObjectLife]] = {}
        for thing in self._lives.objects.values():
            if not thing.is_put:
                returned.setdefault(thing.task, []).append(thing)
        return returned

    @cached_property
    def _deaths(self) -> dict[int, list[TraceEvent]]:
        """Faults and ends of workers, by time."""
        deaths: dict[int, list[TraceEvent]] = {}
        for event in self._lives.record.events:
            if event.kind in (TraceKind.FAULT, TraceKind.WORKER_ENDED):
                deaths.setdefault(event.time_ns, []).append(event)
        return deaths

    def tell(self, subject: str) -> Story:
        """The story of a task or an object, by its whole id.

        Raises:
            KeyError: the run has none of that id; `find_id` finds what is meant.
        """
        if subject in self._lives.tasks:
            life = self._lives.tasks[subject]
            lines, title = list(self._of_task(life)), f"{life.name or 'a task'}, task {subject[:8]}"
        else:
            thing = self._lives.objects[subject]
            lines, title = list(self._of_object(thing)), f"object {_short(subject)}, {self._origin(thing)}"
        lines.sort(key=lambda line: line.time_ns if line.time_ns is not None else -1)
        return Story(subject=subject, title=title, lines=tuple(lines))

    def placement_of(self, subject: str) -> tuple[Choice, int] | None:
        """The head's choice of the node on which a task ran last, and which of the choices for its request that was,
        from 1; None: it is no task, or no choice of the head's."""
        life = self._lives.tasks.get(subject)
        if life is None or (life.spec is not None and life.spec.actor_id is not None):
            return None
        for attempt in sorted(life.attempts.values(), key=lambda each: -each.number):
            grant = self._grant_of(attempt) if attempt.pushed_ns is not None else None
            head = None if grant is None else self._replayed.asked.get(grant.lease.request_id)
            if grant is None or head is None:
                continue
            numbers = [
                number
                for number, choice in enumerate(head.placed, 1)
                if choice.answer.node == grant.node and choice.time_ns <= grant.time_ns
            ]
            if numbers:
                return head.placed[numbers[-1] - 1], numbers[-1]
        return None

    # ---- Tasks -----------------------------------------------------------------------------------------------

    def _of_task(self, life: TaskLife) -> Iterator[Line]:
        yield Line(life.submitted_ns, f"{life.owner or 'its owner'} submits the task.", tuple(self._asks_for(life)))
        yield from self._arguments(life)
        for attempt in sorted(life.attempts.values(), key=lambda each: each.number):
            yield from self._of_attempt(life, attempt)
        yield from self._results(life)
        last = max(life.attempts.values(), key=lambda each: each.number, default=None)
        if last is None or (last.pushed_ns is None and last.started_ns is None):
            yield from self._waiting(life)

    def _waiting(self, life: TaskLife) -> Iterator[Line]:
        """Why the task has no worker, or has none again: what became of the request, and how the run ended for it."""
        asked = None if life.spec is None else self._requests.of(life.spec)
        missing = [dep for dep in life.deps if not self._is_made(dep)]
        if asked is not None and not missing:
            time_ns, owner, request = asked
            yield Line(time_ns, f"{owner} asks its node for a worker.")
            for local in self._replayed.local.get(request.request_id, ()):
                yield _local_line(local)
            head = self._replayed.asked.get(request.request_id)
            if head is not None and head.first_without is not None:
                yield _choice_line(head.first_without, head.no_room)
            refusal = self._requests.refusals.get(request.request_id)
            if refusal is not None:
                yield Line(refusal.time_ns, "The task fails without a worker.", (refusal.error.message,))
                return
        names = ", ".join(f"{_short(dep)} ({self._maker_words(dep)})" for dep in missing[:LISTED_MAX])
        what = f"object {names}, which is not ready" if missing else "a worker"
        if life.spec is not None and life.spec.actor_id is not None and not missing:
            what = f"actor {short(life.spec.actor_id)}"
        when = "Now" if self._goes_on else "At the end of the run"
        yield Line(self._lives.end_ns, f"{when} the task waits for {what}.")

    def _is_made(self, object_id: str) -> bool:
        """Whether an argument has been made, or need not be: it was put, or is the handle of an actor."""
        maker = self._lives.tasks.get(object_id[:TASK_HEX])
        if maker is None or (object_id in self._lives.objects and self._lives.objects[object_id].is_put):
            return True
        is_handle = maker.spec is not None and maker.spec.creates is not None
        return is_handle or any(attempt.outcome == "" for attempt in maker.attempts.values())

    def _asks_for(self, life: TaskLife) -> Iterator[str]:
        spec = life.spec
        if spec is not None:
            placement, resources = spec.template.placement, spec.template.resources
            if spec.actor_id is None:
                holds = "" if resources == placement else f" to start, and holds {resources} while it runs"
                yield f"the task requests {placement}{holds}"
            yield f"{_retries(spec)}; the pickled arguments are {spec.args_bytes:,} bytes"
            if spec.template.strategy != DEFAULT_STRATEGY:
                strategy = spec.template.strategy
                node = f" {strategy.node}{' (soft)' if strategy.soft else ''}" if strategy.node else ""
                yield f"scheduling strategy {strategy.kind}{node}"
            if spec.actor_id is not None:
                where = f"dualray explain {spec.actor_id.hex()} explains where the actor runs"
                yield f"a call of actor {short(spec.actor_id)}, which goes to the actor's worker. {where}"
            if spec.creates is not None:
                yield "the constructor of an actor, for which the head chooses a node"
        if any(fault.subject == life.task for fault in self._lives.faults):
            yield "fault: hold call: calls from other processes can reach the actor first"
        if life.deps:
            names = ", ".join(f"{_short(dep)} ({self._maker_words(dep)})" for dep in life.deps[:LISTED_MAX])
            more = f", and {len(life.deps) - LISTED_MAX} more" if len(life.deps) > LISTED_MAX else ""
            yield f"the arguments are objects {names}{more}"

    def _maker_words(self, object_id: str) -> str:
        maker = self._lives.tasks.get(object_id[:TASK_HEX])
        if object_id in self._lives.objects and self._lives.objects[object_id].is_put:
            return "put"
        if maker is not None and maker.spec is not None and maker.spec.creates is not None:
            return f"handle of {maker.name}"
        return f"result of {maker.name}" if maker is not None else "put"

    def _arguments(self, life: TaskLife) -> Iterator[Line]:
        """When the last argument was first made, if that was after the submission."""
        made: list[tuple[int, str]] = []
        for dep in life.deps:
            maker = self._lives.tasks.get(dep[:TASK_HEX])
            if maker is not None and maker.spec is not None and maker.spec.creates is not None:
                continue  # the handle of an actor, which nothing waits for
            ends = [
                attempt.ended_ns
                for attempt in (maker.attempts.values() if maker is not None else ())
                if attempt.ended_ns is not None and attempt.outcome == ""
            ]
            if ends:
                made.append((min(ends), dep))
        if made and max(made)[0] > life.submitted_ns:
            time_ns, dep = max(made)
            yield Line(
                time_ns, f"The last missing argument, object {_short(dep)}, is ready: the task can run from now on."
            )

    def _of_attempt(self, life: TaskLife, attempt: Attempt) -> Iterator[Line]:
        if attempt.number and attempt.cause == RESTART:
            yield from self._restart(life, attempt)
        elif attempt.number:
            why = self._owners.retries.get((life.task, attempt.number))
            details = [f"because {_because(why)}"] if why is not None else []
            if isinstance(why, NodeDied):
                details += self._notice(life.attempts.get(attempt.number - 1), attempt.queued_ns)
            text = f"The task is queued again, as attempt {attempt.number}: {attempt.cause}."
            yield Line(attempt.queued_ns, text, tuple(details))
        if attempt.pushed_ns is not None:
            yield from self._placement(life, attempt)
            yield self._push(attempt)
        if attempt.started_ns is None:
            return
        for dep in dict.fromkeys(life.deps):
            yield from self._arrivals(dep, attempt)
        waited = attempt.started_ns - attempt.queued_ns
        yield Line(
            attempt.started_ns,
            f"Attempt {attempt.number} starts on {attempt.worker}, {_words(waited)} after it was queued.",
        )
        for wait in self._lives.waits.get((attempt.worker, attempt.task), ()):
            if attempt.started_ns <= wait.started_ns <= (attempt.ended_ns or 0) and wait.ended_ns > wait.started_ns:
                names = ", ".join(f"{_short(each)} ({self._maker_words(each)})" for each in wait.objects[:LISTED_MAX])
                yield Line(
                    wait.started_ns,
                    f"The task waits {_words(wait.ended_ns - wait.started_ns)} in get or wait for {names}.",
                )
        yield self._end(attempt)

    def _restart(self, life: TaskLife, attempt: Attempt) -> Iterator[Line]:
        """How an actor lost its worker, and when the head restarted it."""
        before = life.attempts.get(attempt.number - 1)
        if before is None:
            return
        again_ns = attempt.pushed_ns or attempt.started_ns or attempt.queued_ns
        for event in self._deaths_of(before, again_ns):
            what = _death_words(event)
            yield Line(event.time_ns, f"The actor is lost with its worker {before.worker}.", (what,) if what else ())
            break
        grant = self._grant_of(attempt)
        head = self._replayed.asked.get(grant.lease.request_id) if grant is not None else None
        choices = [] if head is None else [each for each in (head.first_without, *head.placed) if each is not None]
        asked_ns = min((each.time_ns for each in choices), default=attempt.queued_ns)
        details = tuple(self._notice(before, asked_ns))
        yield Line(asked_ns, f"The head restarts the actor, as attempt {attempt.number}.", details)

    def _notice(self, before: Attempt | None, noticed_ns: int) -> Iterator[str]:
        """How long the head took to notice that a node was dead, and which settings decide it."""
        if before is None or HEAD not in self._lives.record.logs:
            return
        for event in self._deaths_of(before, noticed_ns):
            if event.kind is TraceKind.FAULT and event.subject == before.node:
                config, passed_ns = self._lives.record.logs[HEAD][0].spec.config, noticed_ns - event.time_ns
                silence = f"heartbeat_timeout_ns ({_words(config.heartbeat_timeout_ns)})"
                rule = f"the head declares a silent node dead after {silence} and suspicion_ns "
                rule += f"({_words(config.suspicion_ns)})"
                how = rule if passed_ns >= config.suspicion_ns else "its connection broke, or it came back"
                yield f"the node died {_words(passed_ns)} before: {how}"
                return

    def _deaths_of(self, attempt: Attempt, until_ns: int) -> Iterator[TraceEvent]:
        """The faults and ends that befell an attempt's worker or node since it was pushed, up to a moment."""
        since_ns = attempt.started_ns or attempt.pushed_ns or 0
        for time_ns, events in self._deaths.items():
            if since_ns <= time_ns <= until_ns:
                yield from (event for event in events if event.subject in (attempt.worker, attempt.node))

    def _placement(self, life: TaskLife, attempt: Attempt) -> Iterator[Line]:
        """The way of the lease on which it was pushed."""
        grant = self._grant_of(attempt)
        if grant is None or (life.spec is not None and life.spec.actor_id is not None):
            return
        request_id = grant.lease.request_id
        asked = self._owners.requests.get(request_id)
        if asked is not None:
            time_ns, owner, request = asked
            leases = f"{request.count} workers" if request.count > 1 else "a worker"
            shared = "" if request.count == 1 else ", for tasks with the same demands"
            old = " for earlier tasks with the same demands; this task later uses one of their leases"
            yield Line(time_ns, f"{owner} asks its node for {leases}{old if time_ns < life.submitted_ns else shared}.")
        for local in self._replayed.local.get(request_id, ()):
            if local.time_ns <= grant.time_ns and (not local.request.placed or local.node == grant.node):
                yield _local_line(local)
        head = self._replayed.asked.get(request_id)
        if head is not None:
            if head.first_without is not None:
                yield _choice_line(head.first_without, head.no_room)
            placed = [
                choice for choice in head.placed if choice.answer.node == grant.node and choice.time_ns <= grant.time_ns
            ]
            if placed:
                yield _choice_line(placed[-1], 0)
        devices = f", with {device_words(grant.lease.device_ids)}" if grant.lease.device_ids else ""
        yield Line(grant.time_ns, f"{grant.node} grants a lease on worker {grant.lease.worker}{devices}.")

    def _grant_of(self, attempt: Attempt) -> Grant | None:
        """The lease that its worker was under when it was pushed there."""
        grants = [
            grant
            for grant in self._replayed.grants.get(attempt.worker, ())
            if grant.time_ns <= (attempt.pushed_ns or 0)
        ]
        return grants[-1] if grants else None

    def _push(self, attempt: Attempt) -> Line:
        by = attempt.pushed_by or "its owner"
        return Line(attempt.pushed_ns, f"{by} pushes attempt {attempt.number} to {attempt.worker}.")

    def _arrivals(self, dep: str, attempt: Attempt) -> Iterator[Line]:
        """How an argument came to its node, while it waited for that."""
        for move in self._lives.objects[dep].moves:
            if move.target != attempt.node or move.ended_ns is None:
                continue
            if attempt.queued_ns <= move.ended_ns <= (attempt.started_ns or 0):
                yield Line(
                    move.ended_ns, f"The argument {_short(dep)} has arrived on {move.target}: {_move_words(move)}."
                )

    def _end(self, attempt: Attempt) -> Line:
        ran = _words((attempt.ended_ns or 0) - (attempt.started_ns or 0))
        if attempt.outcome == "":
            return Line(attempt.ended_ns, f"Attempt {attempt.number} returns after {ran}.")
        if attempt.outcome == LOST:
            words = f"Attempt {attempt.number} is lost with its worker, after {ran}."
            return Line(attempt.ended_ns, words, self._death(attempt))
        if attempt.outcome == NOT_ENDED:
            last = f"has run for {ran} so far" if self._goes_on else f"had run for {ran} at the end of the run"
            return Line(self._lives.end_ns, f"Attempt {attempt.number} {last}.")
        error = self._owners.errors.get((attempt.task, attempt.number), "")
        first = tuple(error.strip().splitlines()[-1:])
        how = "raises an error" if attempt.outcome == ErrorKind.APPLICATION else f"ends with {attempt.outcome}"
        return Line(attempt.ended_ns, f"Attempt {attempt.number} {how}, after {ran}.", first)

    def _death(self, attempt: Attempt) -> tuple[str, ...]:
        """What befell its worker."""
        events = self._deaths.get(attempt.ended_ns or 0, ())
        return tuple(_death_words(event) for event in events if event.subject in (attempt.worker, attempt.node))

    def _results(self, life: TaskLife) -> Iterator[Line]:
        for result in self._returned.get(life.task, ()):
            if result.rows:
                users = len(result.consumers)
                yield Line(
                    result.rows[0].time_ns,
                    f"The result of the task is object {_short(result.object_id)}, {result.size_bytes:,} bytes, an "
                    f"argument of {users} task{'' if users == 1 else 's'}.",
                    (f"dualray explain {result.object_id} prints the object's history",),
                )

    # ---- Objects ---------------------------------------------------------------------------------------------

    def _origin(self, thing: ObjectLife) -> str:
        maker = self._lives.tasks.get(thing.task)
        if thing.is_put:
            return f"put by {f'{maker.name}, task {thing.task[:8]}' if maker is not None else 'the driver'}"
        return f"result of {maker.name}, task {thing.task[:8]}" if maker is not None else "result of an unknown task"

    def _of_object(self, thing: ObjectLife) -> Iterator[Line]:
        if not thing.rows:
            maker = self._lives.tasks.get(thing.task)
            made = maker.finished_by(self._lives.end_ns) if maker is not None else None
            yield Line(
                made.ended_ns if made is not None else None,
                "The object was never in a store, because small values stay with their owner and travel in messages.",
            )
        for row in thing.rows:
            line = self._object_line(thing, row)
            if line is not None:
                yield line
        for move in thing.moves:
            if move.ended_ns is not None:
                yield Line(move.ended_ns, f"The object has arrived on {move.target}: {_move_words(move)}.")
        yield from self._asked_for(thing)
        yield from self._demands(thing)
        yield from self._consumers(thing)

    def _object_line(self, thing: ObjectLife, row: TraceEvent) -> Line | None:
        match row.kind:
            case TraceKind.OBJECT_STORED:
                text = f"{row.process} writes the object into the store of its node: {row.amount:,} bytes."
                return Line(row.time_ns, text)
            case TraceKind.TRANSFER_STARTED:
                return Line(row.time_ns, f"{row.process} begins to send the object to {row.other}.")
            case TraceKind.OBJECT_EVICTED | TraceKind.OBJECT_SPILLED:
                return self._left(thing, row)
            case TraceKind.OBJECT_RESTORED:
                return Line(row.time_ns, f"{row.process} begins to read the object back from its disk.")
            case TraceKind.OBJECT_DELETED:
                return Line(
                    row.time_ns, f"{row.process} deletes its copy, which was incomplete or which no process needs."
                )
            case _:
                return None

    def _left(self, thing: ObjectLife, row: TraceEvent) -> Line:
        what = "evicts the object" if row.kind is TraceKind.OBJECT_EVICTED else "writes the object to its disk"
        text = f"{row.process} {what}, to make room."
        for eviction in self._replayed.evictions.get(thing.object_id, ()):
            if eviction.time_ns == row.time_ns and eviction.node == row.process:
                return Line(row.time_ns, text, tuple(_eviction_words(eviction)))
        return Line(row.time_ns, text)

    def _asked_for(self, thing: ObjectLife) -> Iterator[Line]:
        for ask in self._replayed.asks.get(thing.object_id, ()):
            yield _ask_line(ask)

    def _demands(self, thing: ObjectLife) -> Iterator[Line]:
        for time_ns, owner, losses, planned in self._owners.demands.get(thing.object_id, ()):
            details = [
                f"task {task[:8]} ({self._name_of(task)}) runs again, as attempt {attempt}: {reason}"
                for task, attempt, reason in planned
            ]
            if not details:
                details = ["no task had to start: one already computes the object, or a copy is on its way"]
            yield Line(
                time_ns,
                f"A node needs the object, but the head knows no copy ({losses} lost so far), so the head asks "
                f"the owner, {owner}.",
                tuple(details),
            )
        for time_ns, wanted, attempt in self._owners.plans.get(thing.task, ()):
            if wanted != thing.object_id and not thing.is_put:
                yield Line(
                    time_ns,
                    f"The object's task will run again, as attempt {attempt}, because object {_short(wanted)} is "
                    f"computed from this object. A process needed {_short(wanted)}, and both objects have no copy.",
                )
        for time_ns, owner, message in self._owners.failed.get(thing.object_id, ()):
            yield Line(time_ns, f"{owner} gives up the object, because no task can recompute it.", (message,))

    def _name_of(self, task: str) -> str:
        return self._lives.tasks[task].name if task in self._lives.tasks else "unknown"

    def _consumers(self, thing: ObjectLife) -> Iterator[Line]:
        for task in dict.fromkeys(thing.consumers[:LISTED_MAX]):
            for attempt in self._lives.tasks[task].attempts.values():
                if attempt.started_ns is not None:
                    again = f", attempt {attempt.number}" if attempt.number else ""
                    yield Line(
                        attempt.started_ns,
                        f"{attempt.name} (task {task[:8]}{again}) starts on {attempt.worker} with the object as "
                        "an argument.",
                    )
        if len(thing.consumers) > LISTED_MAX:
            yield Line(self._lives.end_ns, f"{len(thing.consumers) - LISTED_MAX:,} more tasks used the object.")


class _Owners:
    """What the logs of drivers and workers tell, by task and object."""

    def __init__(self, lives: Lives) -> None:
        self.requests: dict[str, tuple[int, str, LeaseRequested]] = {}
        self.retries: dict[tuple[str, int], Event] = {}
        """The event on which a task was queued again."""
        self.errors: dict[tuple[str, int], str] = {}
        self.demands: dict[str, list[tuple[int, str, int, list[tuple[str, int, str]]]]] = {}
        self.plans: dict[str, list[tuple[int, str, int]]] = {}
        """Of each task that runs again: when, the object that was wanted, and the attempt."""
        self.failed: dict[str, list[tuple[int, str, str]]] = {}
        for owner in [*lives.record.owners(), HEAD]:
            for decision in lives.record.decisions(owner):
                event = decision.event
                planned = []
                for command in decision.commands:
                    match command:
                        case NoteRetry(task_id=task_id, attempt=attempt, reason=reason):
                            self.retries[task_id.hex(), attempt] = event
                            planned.append((task_id.hex(), attempt, reason))
                        case Send(message=LeaseRequested(placed=False) as request) if owner != HEAD:
                            self.requests.setdefault(request.request_id, (decision.now_ns, owner, request))
                        case Send(message=ObjectFailed(object_id=object_id, error=error)):
                            self.failed.setdefault(object_id.hex(), []).append((decision.now_ns, owner, error.message))
                        case _:
                            pass
                if isinstance(event, TaskFinished) and event.error is not None:
                    self.errors[event.task_id.hex(), event.attempt] = event.error.message
                elif isinstance(event, ObjectDemanded):
                    row = (decision.now_ns, owner, event.losses, planned)
                    self.demands.setdefault(event.object_id.hex(), []).append(row)
                    for task, attempt, _ in planned:
                        self.plans.setdefault(task, []).append((decision.now_ns, event.object_id.hex(), attempt))


# ---- Words -------------------------------------------------------------------------------------------------------


def _short(object_id: str) -> str:
    return short(ObjectID(bytes.fromhex(object_id)))


def _retries(spec: TaskSpec) -> str:
    count, what = (spec.creates.max_restarts, "restarts") if spec.creates else (spec.template.max_retries, "retries")
    return f"{what} allowed: {'any number' if count < 0 else count or 'none'}"


def _words(ns: int) -> str:
    for unit, unit_ns in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= unit_ns:
            return f"{ns / unit_ns:.4g} {unit}"
    return f"{ns} ns"


def _death_words(event: TraceEvent) -> str:
    return f"fault: {event.name} ({event.subject})" if event.kind is TraceKind.FAULT else event.other


def _move_words(move: Move) -> str:
    lasted = (move.ended_ns or move.started_ns) - move.started_ns
    rate = f", {move.size_bytes * 1000 / lasted:,.0f} MB/s" if lasted else ""
    return f"{move.size_bytes:,} bytes from {move.source} in {_words(lasted)}{rate}"


def _local_line(local: Local) -> Line:
    count = local.request.count
    if local.request.placed:
        return Line(
            local.time_ns, f"{local.node} queues the requests that the head has placed on it.", tuple(local.reasons)
        )
    if not local.spilled:
        what = "grants the request itself" if count == 1 else f"grants all {count} itself"
        why = "the node has room, and the arguments are on the node or small"
        return Line(local.time_ns, f"{local.node} {what}: {why}.")
    here = f", and keeps {local.here}" if local.here else ""
    reasons = tuple(local.reasons or ("the node has no room for more",))
    return Line(local.time_ns, f"{local.node} sends {_of_all(local.spilled, count)} back to the head{here}.", reasons)


def _of_all(part: int, whole: int) -> str:
    if whole == 1:
        return "the request"
    return f"all {whole} requests" if part == whole else f"{part} of {whole} requests"


def _choice_line(choice: Choice, no_room: int) -> Line:
    details = []
    for position, score in enumerate(choice.candidates, 1):
        chosen = " (chosen)" if score.node == choice.answer.node else ""
        out = "" if score.rank is not None else "; not a candidate now"
        details.append(f"{position}. {score.node}{chosen}: {choice.free[score.node]}; {score.words}{out}")
    if choice.left_out:
        details.append(f"and {choice.left_out:,} more candidates with a lower rank")
    if no_room:
        times = "once" if no_room == 1 else f"{no_room:,} times in all"
        text = (
            f"The head finds no node for the request: {choice.answer.reason} ({choice.policy}; {times}). The request "
            "waits at the head."
        )
    else:
        text = f"The head chooses {choice.answer.node}: {choice.answer.reason} ({choice.policy})."
    return Line(choice.time_ns, text, tuple(details))


def _eviction_words(eviction: Eviction) -> Iterator[str]:
    yield f"room was needed because {_because(eviction.event)}"
    yield f"the store held {eviction.used_bytes:,} of {eviction.capacity_bytes:,} bytes"
    if eviction.position:
        yield (
            f"{eviction.policy} was offered {eviction.candidates} unused objects; the evicted object was number "
            f"{eviction.position}, counted from the least recently used"
        )


def _ask_line(ask: Ask) -> Line:
    if ask.of == HEAD:
        return Line(ask.time_ns, f"{ask.node} asks the head where the object is.", (f"because {_because(ask.event)}",))
    details = [f"because {_because(ask.event)}"]
    return Line(ask.time_ns, f"{ask.node} asks {ask.of} to send the object.", tuple(details))


def _because(event: Event) -> str:
    """Why something was done: the event on which it was, as the end of a sentence."""
    match event:
        case LeasedWorkerDied(worker=worker, error=error):
            words = _first_line(error.message)
            return words[0].lower() + words[1:] if worker in words else f"worker {worker} died: {words}"
        case NodeDied(node=node, incarnation=incarnation):
            return f"the head declared {node} dead (incarnation {incarnation})"
        case TaskFinished(error=error) if error is not None:
            return f"it ended with {error.kind}: {_first_line(error.message)}"
        case ObjectDemanded(object_id=object_id):
            return f"object {short(object_id)} was needed, and no copy was left"
        case ObjectWanted(requester=requester):
            return f"{requester} wanted the object"
        case LeaseRequested(owner=owner, shape=shape):
            return f"{shape.name or 'a task'} of {owner}, which was going to run on the node, needs the object"
        case SpaceRequested(object_id=object_id, size_bytes=size_bytes, requester=requester):
            return f"{requester} was going to write object {short(object_id)}, {size_bytes:,} bytes"
        case LocationsKnown(object_id=object_id, size_bytes=size_bytes, nodes=nodes):
            holders = f"{_some(nodes)} as holder{'s' if len(nodes) > 1 else ''}"
            return f"the head named {holders} of object {short(object_id)}, {size_bytes:,} bytes"
        case ObjectRequested(to=to):
            return f"{to} requested the object"
        case SpaceReserved():
            return "there was memory for the object"
        case ReceiveFailed(source=source):
            return f"{source} broke the transfer off"
        case PeerLost(address=address):
            return f"the connection to {address} broke"
        case LinkLost(process=process, node=node):
            return f"{process} and {node} could not reach each other"
        case ObjectNotHere(node=node):
            return f"{node} no longer had a copy"
        case ObjectElsewhere(node=node, holder=holder):
            return f"{node} was serving other nodes first, and {holder} had a copy by then"
        case ActorChanged(state=state):
            return f"its actor was {state}"
        case TimerFired(timer=timer):
            return f"the timer {timer!r} was due"
        case _:
            return f"this event arrived: {_spoken(type(event).__name__)}"


def _some(nodes: Iterable[str]) -> str:
    listed = list(nodes)
    return ", ".join(listed[:LISTED_MAX]) + (", ..." if len(listed) > LISTED_MAX else "")


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0].rstrip(".") if message.strip() else "no details are known"


def _spoken(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
