"""The critical path: what the end of a run had waited for, step by step back to its beginning.

Theory of operation. We walk backwards from the end. At each moment somebody was doing what the rest waited for:

- a program (the driver's, or a task's function) that computes, back to the last `get` or `wait` that held it up;
- the result that this wait waited for longest, on its way from the task that made it;
- that task: its run, and before it the time from when it could have run (its arguments made, itself submitted) to its
  start: the transfers of its arguments, and for the rest a queue;
- what made it possible last: the task that made its last argument, or the program that submitted it;
- when it was an attempt after the first: the work that was lost, and the time until somebody noticed.

The stretches meet end to end, so that their lengths add up to the run's. With decision logs the waits are known; from a
trace alone they are guessed, and the walk is as good as the guess.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dualray.report.histories import LOST, TASK_HEX, Attempt, Lives, Wait
from dualray.report.summary import RECONSTRUCTION

NOTICED = "until the failure was detected"
FOR_WORKER = "waiting for a free worker"
FOR_ACTOR = "waiting for its actor"
"""In words, a stretch from a loss to the moment when the cluster knew of it."""


class Spent(StrEnum):
    """On what time goes."""

    COMPUTE = "compute"
    DRIVER = "driver"
    QUEUE = "queue"
    TRANSFER = "transfer"
    RECONSTRUCTION = "reconstruction"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of the path. `task` is what ran, or waited; empty for the driver's program."""

    started_ns: int
    ended_ns: int
    spent: Spent
    task: str
    number: int
    name: str
    place: str
    words: str

    @property
    def lasted_ns(self) -> int:
        return self.ended_ns - self.started_ns


def critical_path(lives: Lives) -> list[Stretch]:
    """The stretches from the run's beginning to its end, in order; adjoining, none of them empty."""
    return _Walk(lives).path()


class _Walk:
    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._ends = {key: [wait.ended_ns for wait in waits] for key, waits in lives.waits.items()}
        self._stretches: list[Stretch] = []
        self._by_worker: dict[str, list[Attempt]] = {}
        for attempt in lives.attempts():
            self._by_worker.setdefault(attempt.worker, []).append(attempt)
        for attempts in self._by_worker.values():
            attempts.sort(key=lambda attempt: attempt.started_ns or 0)
        self._starts = {
            worker: [attempt.started_ns or 0 for attempt in attempts] for worker, attempts in self._by_worker.items()
        }
        self._wanted_by: dict[tuple[str, int], Attempt] = {}
        """Of an attempt on the path, the one that waited for what it makes."""
        self._incoming: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for move in lives.moves:
            if move.ended_ns is not None:
                self._incoming.setdefault((move.object_id, move.target), []).append((move.started_ns, move.ended_ns))

    def path(self) -> list[Stretch]:
        lives = self._lives
        if lives.end_ns <= lives.start_ns:
            return []
        at_ns = lives.end_ns
        here = self._at_the_end()
        seen: set[object] = set()
        while at_ns > lives.start_ns:
            state = (at_ns, here if isinstance(here, str) else (here.task, here.number))
            if state in seen:  # at one instant everybody waits for another: what was before cannot be told
                self._add(lives.start_ns, at_ns, Spent.QUEUE, None, "", "the cause of this wait is not known")
                break
            seen.add(state)
            at_ns, here = self._program(here, at_ns) if isinstance(here, str) else self._attempt(here, at_ns)
        self._stretches.reverse()
        return self._stretches

    def _at_the_end(self) -> Attempt | str:
        """Whoever acted last: a driver whose wait ended, or the attempt that ended last."""
        lives = self._lives
        for process, task in lives.waits:
            if not task and self._ends[process, task][-1] >= lives.end_ns:
                return process
        last = max(lives.attempts(), key=lambda attempt: attempt.ended_ns or 0, default=None)
        return last if last is not None else next((task.owner for task in lives.tasks.values()), "")

    # ---- Programs --------------------------------------------------------------------------------------------

    def _program(self, process: str, at_ns: int) -> tuple[int, Attempt | str]:
        """A driver's program was at work until then: back to the wait that held it up."""
        wait = self._last_wait(process, "", at_ns, self._lives.start_ns)
        if wait is None:
            self._add(self._lives.start_ns, at_ns, Spent.DRIVER, None, process, "the driver's program")
            return self._lives.start_ns, process
        self._add(wait.ended_ns, at_ns, Spent.DRIVER, None, process, "the driver's program")
        return self._waited(wait, process)

    def _waited(self, wait: Wait, otherwise: Attempt | str) -> tuple[int, Attempt | str]:
        """To whom a wait leads: the task whose result came last. Of a wait that ended for another reason (a timeout),
        the time counts as the waiter's own."""
        maker = self._last_maker(wait.objects, wait.ended_ns)
        if maker is not None and maker.ended_ns is not None and maker.ended_ns >= wait.started_ns:
            self._add(
                maker.ended_ns,
                wait.ended_ns,
                Spent.TRANSFER,
                maker,
                wait.process,
                "sending its result to the waiting task",
            )
            return maker.ended_ns, maker
        spent = Spent.COMPUTE if isinstance(otherwise, Attempt) else Spent.DRIVER
        attempt = otherwise if isinstance(otherwise, Attempt) else None
        self._add(
            wait.started_ns, wait.ended_ns, spent, attempt, wait.process, "a wait that no task ended, such as a timeout"
        )
        return wait.started_ns, otherwise

    def _last_wait(self, process: str, task: str, at_ns: int, since_ns: int) -> Wait | None:
        """The wait of a program that ended last, and held it up."""
        waits = self._lives.waits.get((process, task), [])
        position = bisect_right(self._ends.get((process, task), []), at_ns)
        while position:
            position -= 1
            wait = waits[position]
            if wait.ended_ns < since_ns:
                return None
            if wait.started_ns < wait.ended_ns and wait.started_ns >= since_ns:
                return wait
        return None

    def _last_maker(self, objects: Iterable[str], by_ns: int) -> Attempt | None:
        """Of the attempts that made these objects, the one that ended last by then."""
        last: Attempt | None = None
        for object_id in objects:
            life = self._lives.tasks.get(object_id[:TASK_HEX])
            made = life.finished_by(by_ns) if life is not None else None
            if made is not None and (last is None or (made.ended_ns or 0) > (last.ended_ns or 0)):
                last = made
        return last

    # ---- Attempts --------------------------------------------------------------------------------------------

    def _attempt(self, attempt: Attempt, at_ns: int) -> tuple[int, Attempt | str]:
        """An attempt was at work until then: back to its own waits, or to its start and what that had waited for."""
        started_ns = attempt.started_ns if attempt.started_ns is not None else at_ns  # its worker was dead
        if at_ns > started_ns:
            spent = Spent.RECONSTRUCTION if attempt.is_done_again or attempt.outcome == LOST else Spent.COMPUTE
            words = f"attempt {attempt.number}, after {attempt.cause}" if attempt.number else "it runs"
            wait = self._last_wait(attempt.worker, attempt.task, at_ns, started_ns)
            if wait is not None:
                self._add(wait.ended_ns, at_ns, spent, attempt, attempt.worker, words)
                return self._waited(wait, attempt)
            self._add(started_ns, at_ns, spent, attempt, attempt.worker, words)
            return started_ns, attempt
        return self._before(attempt, min(at_ns, started_ns))

    def _before(self, attempt: Attempt, at_ns: int) -> tuple[int, Attempt | str]:
        """It was about to start: what it had waited for last."""
        life = self._lives.tasks[attempt.task]
        maker = self._last_maker(life.deps, at_ns)
        ready_ns = max(attempt.queued_ns, self._lives.start_ns)
        if maker is not None and maker.ended_ns is not None and maker.ended_ns > ready_ns:
            self._queue(attempt, maker.ended_ns, at_ns)
            self._wanted_by[maker.task, maker.number] = attempt
            return maker.ended_ns, maker
        if not attempt.number:
            self._queue(attempt, ready_ns, at_ns)
            return ready_ns, self._submitter(life.owner, ready_ns)
        self._add(ready_ns, at_ns, Spent.RECONSTRUCTION, attempt, attempt.node, f"queued again: {attempt.cause}")
        earlier = [each for each in life.attempts.values() if each.number < attempt.number]
        before = max(earlier, key=lambda each: each.number, default=None)
        if before is None:
            return ready_ns, self._submitter(life.owner, ready_ns)
        wanted_by = self._wanted_by.get((attempt.task, attempt.number))
        if attempt.cause == RECONSTRUCTION and wanted_by is not None and wanted_by.queued_ns <= ready_ns:
            # What it had made was missed only when somebody's turn came: until then, he stood in line.
            if self._is_known(before, wanted_by):
                self._in_line(wanted_by, wanted_by.queued_ns, ready_ns)
                return self._before(wanted_by, wanted_by.queued_ns)
            missed_ns = max(self._missed(before, ready_ns), wanted_by.queued_ns)
            self._add(missed_ns, ready_ns, Spent.RECONSTRUCTION, attempt, before.node, NOTICED)
            return self._before(wanted_by, missed_ns)
        pushed_ns = before.pushed_ns if before.pushed_ns is not None else before.queued_ns
        until_ns = min(before.ended_ns if before.ended_ns is not None else pushed_ns, ready_ns)
        until_ns = max(until_ns, self._lives.start_ns)
        self._add(until_ns, ready_ns, Spent.RECONSTRUCTION, attempt, attempt.node, NOTICED)
        return until_ns, before

    def _is_known(self, before: Attempt, wanted_by: Attempt) -> bool:
        """Whether an attempt was queued again because of the death of the node that had what `before` had made: the
        loss was known from then on."""
        lost = self._lives.tasks[wanted_by.task].attempts.get(wanted_by.number - 1)
        return lost is not None and lost.outcome == LOST and lost.node == before.node

    def _missed(self, before: Attempt, ready_ns: int) -> int:
        """When the node died that had what an attempt had made: the time until that was known is the loss's."""
        made_ns = before.ended_ns if before.ended_ns is not None else before.queued_ns
        deaths = [
            fault.time_ns
            for fault in self._lives.faults
            if fault.subject == before.node and made_ns <= fault.time_ns < ready_ns
        ]
        return deaths[-1] if deaths else ready_ns

    def _submitter(self, owner: str, at_ns: int) -> Attempt | str:
        """Whose program submitted something at that moment: the task that ran there, or the driver."""
        position = bisect_right(self._starts.get(owner, []), at_ns)
        while position:
            position -= 1
            attempt = self._by_worker[owner][position]
            if attempt.ended_ns is None or attempt.ended_ns >= at_ns:
                return attempt
        return owner

    def _queue(self, attempt: Attempt, from_ns: int, to_ns: int) -> None:
        """From when it could have run to its start. No call could run while its actor was dead."""
        at_ns = to_ns
        for died_ns, again_ns in reversed(self._actor_deaths(attempt)):
            if died_ns < at_ns and again_ns > from_ns:
                begun_ns, ended_ns = max(died_ns, from_ns), min(again_ns, at_ns)
                self._in_line(attempt, ended_ns, at_ns)
                self._add(begun_ns, ended_ns, Spent.RECONSTRUCTION, attempt, attempt.node, NOTICED)
                at_ns = begun_ns
        self._in_line(attempt, from_ns, at_ns)

    def _actor_deaths(self, attempt: Attempt) -> list[tuple[int, int]]:
        """When faults killed the actor of a call, and when the head restarted it each time."""
        spec = self._lives.tasks[attempt.task].spec
        maker = self._lives.tasks.get(spec.actor_id.hex()) if spec is not None and spec.actor_id is not None else None
        found = []
        for number, again in sorted(maker.attempts.items()) if maker is not None else ():
            before = maker.attempts.get(number - 1) if maker is not None else None
            if before is None or before.ended_ns is None or again.pushed_ns is None:
                continue
            for fault in self._lives.faults:
                if fault.subject in (before.node, before.worker) and before.ended_ns <= fault.time_ns < again.pushed_ns:
                    found.append((fault.time_ns, again.pushed_ns))
                    break
        return found

    def _in_line(self, attempt: Attempt, from_ns: int, to_ns: int) -> None:
        """Its arguments travel, and for the rest it stands in line."""
        spent = Spent.RECONSTRUCTION if attempt.number else Spent.QUEUE
        is_call = self._lives.tasks[attempt.task].actor_cpus is not None
        words = FOR_ACTOR if is_call else FOR_WORKER
        travelling = self._travelling(attempt, from_ns, to_ns)
        at_ns = to_ns
        for begun_ns, ended_ns in reversed(travelling):
            self._add(ended_ns, at_ns, spent, attempt, attempt.node, words)
            self._add(begun_ns, ended_ns, Spent.TRANSFER, attempt, attempt.node, "moving its arguments")
            at_ns = begun_ns
        self._add(from_ns, at_ns, spent, attempt, attempt.node, words)

    def _travelling(self, attempt: Attempt, from_ns: int, to_ns: int) -> list[tuple[int, int]]:
        """When arguments of the attempt were on their way to its node, between two moments; joined, in order."""
        clipped = sorted(
            (max(begun_ns, from_ns), min(ended_ns, to_ns))
            for dep in self._lives.tasks[attempt.task].deps
            for begun_ns, ended_ns in self._incoming.get((dep, attempt.node), ())
            if begun_ns < to_ns and ended_ns > from_ns
        )
        joined: list[tuple[int, int]] = []
        for begun_ns, ended_ns in clipped:
            if joined and begun_ns <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(ended_ns, joined[-1][1]))
            else:
                joined.append((begun_ns, ended_ns))
        return joined

    def _add(
        self, started_ns: int, ended_ns: int, spent: Spent, attempt: Attempt | None, place: str, words: str
    ) -> None:
        if ended_ns > started_ns:
            self._stretches.append(
                Stretch(
                    started_ns=started_ns,
                    ended_ns=ended_ns,
                    spent=spent,
                    task=attempt.task if attempt is not None else "",
                    number=attempt.number if attempt is not None else 0,
                    name=attempt.name if attempt is not None else "",
                    place=place,
                    words=words,
                )
            )
