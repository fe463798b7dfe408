"""The worker of an actor of which several methods run at a time, or that ends itself: events in, commands out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.machines.owner.actor_exit import EXIT_TIMER
from dualray.shared.model.commands import DropPayload, DropPayloads, InterruptTask, RunTask, RunTasks, Send
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ActorExitAsked,
    ActorExited,
    ActorLeaving,
    ActorLeavingHeard,
    ObjectArrived,
    ObjectReleased,
    ObjectUnavailable,
    OwnerDied,
    Result,
    TaskFinished,
    TaskPushed,
    TasksPushed,
    TaskUnwanted,
    TimerFired,
    ViewReleased,
    WorkerBlocked,
    WorkerUnblocked,
)
from dualray.shared.model.ids import HEAD, Address, return_object_id
from dualray.shared.model.specs import TaskSpec
from tests.shared.builders import DRIVER, OTHER, OwnerStepper, constructor, error, oid, ref, sent, task, tid

WORKER = Address("node-0/w1")
THIRD = Address("driver-3")
CALLERS = (Address(DRIVER), Address(OTHER), THIRD)
ACTOR = 100
FIRST_ARGUMENT = 101


def make(limit: int = 2, *, is_async: bool = True, **promises: Any) -> OwnerStepper:
    """A worker with an actor that is up; asynchronous, so that it goes this way also with a limit of 1."""
    worker = OwnerStepper(WORKER)
    spec = constructor(ACTOR)
    assert spec.creates is not None
    spec.creates = dataclasses.replace(spec.creates, is_async=is_async, max_concurrency=limit, **promises)
    assert started(worker(TaskPushed(spec=spec, attempt=0, reply_to=HEAD))) == [ACTOR]
    [done] = sent(worker.ran(ACTOR), TaskFinished, HEAD)
    assert done.task_id == tid(ACTOR)
    return worker


def started(commands: list[Any]) -> list[int]:
    """The numbers of the calls that are to run."""
    assert not [command for command in commands if isinstance(command, RunTasks)]
    return [command.spec.task_id[0] for command in commands if isinstance(command, RunTask)]


def call(number: int, *deps: int, owner: str = OTHER, group: str = "", again: bool = False) -> TaskPushed:
    spec: TaskSpec = task(number, owner=owner, actor=ACTOR, deps=tuple(ref(oid(dep), owner=owner) for dep in deps))
    if group:
        spec.template = dataclasses.replace(spec.template, concurrency_group=group)
    return TaskPushed(spec=spec, attempt=0, reply_to=Address(owner), again=again)


def small(number: int) -> Result:
    return Result(object_id=return_object_id(tid(number), 0), size_bytes=1, inline=True)


def reported(commands: list[Any]) -> list[int]:
    return [message.task_id[0] for message in sent(commands, TaskFinished)]


def arrived(number: int) -> ObjectArrived:
    return ObjectArrived(object_id=oid(number), size_bytes=1000)


def test_at_most_so_many_run_and_the_next_starts_when_one_ends():
    worker = make(2)
    assert started(worker(call(1), call(2), call(3), call(4))) == [1, 2]
    commands = worker.ran(2, small(2))
    assert (reported(commands), started(commands)) == ([2], [3])
    assert started(worker.ran(1, small(1))) == [4]
    assert reported(worker.ran(4, small(4)) + worker.ran(3, small(3))) == [4, 3]


def test_calls_that_come_together_start_one_by_one():
    worker = make(3)
    first = call(1)
    together = TasksPushed(
        template=first.spec.template,
        owner=Address(OTHER),
        parent=first.spec.parent,
        calls=tuple((tid(number), 0, 0) for number in range(1, 6)),
        actor_id=first.spec.actor_id,
    )
    assert started(worker(together)) == [1, 2, 3]


def test_groups_have_limits_of_their_own():
    worker = make(1, concurrency_groups=(("io", 2),))
    assert started(worker(call(1), call(2))) == [1]
    assert started(worker(*(call(number, group="io") for number in (3, 4, 5)))) == [3, 4]
    assert started(worker.ran(3, small(3))) == [5]


def test_who_waits_for_arguments_holds_back_its_own_callers_calls_alone():
    worker = make(2)
    commands = worker(call(1, 9), call(2), call(3, owner=DRIVER))
    assert started(commands) == [3]
    assert sent(commands, WorkerBlocked)  # what was lost may be made again with our CPU
    commands = worker(arrived(9))
    assert started(commands) == [1]
    assert sent(commands, WorkerUnblocked)
    assert started(worker.ran(3, small(3))) == [2]


def test_an_argument_that_failed_fails_its_call_alone():
    worker = make(2)
    worker(call(1, 9), call(2))
    commands = worker(ObjectUnavailable(object_id=oid(9), error=error(ErrorKind.OBJECT_LOST)))
    assert started(commands) == [2]
    [failed] = sent(commands, TaskFinished)
    assert failed.task_id == tid(1)
    assert failed.error is not None


def test_a_call_that_is_made_again_goes_first():
    worker = make(1)
    assert started(worker(call(1), call(2), call(3, again=True))) == [1]
    assert started(worker.ran(1, small(1))) == [3]


@pytest.mark.parametrize("place", ["queued", "fetching", "fetched"])
def test_a_call_that_is_cancelled_never_begins(place):
    worker = make(1)
    if place == "queued":
        worker(call(1), call(2), call(3))
    else:  # the fetch begins where there is room; another caller's call may take the room meanwhile
        worker(call(2, 9))
    if place == "fetching":
        worker(call(3))
    if place == "fetched":
        assert started(worker(call(1, owner=DRIVER), arrived(9), call(3))) == [1]
        assert worker.machine.values.pins.views
    commands = worker(TaskUnwanted(task_id=tid(2), attempt=0, force=False, recursive=False))
    [report] = sent(commands, TaskFinished)
    assert report.task_id == tid(2)
    assert report.error is not None
    assert report.error.kind is ErrorKind.TASK_CANCELLED
    begun = started(commands) if place == "fetching" else started(worker.ran(1, small(1)))
    assert begun == [3]
    assert not worker.machine.values.pins.views


@pytest.mark.parametrize("is_async", [True, False])
def test_calls_that_run_are_told_that_they_were_cancelled(is_async):
    worker = make(2, is_async=is_async)
    worker(call(1), call(2), call(3))
    commands = worker(TaskUnwanted(task_id=tid(1), attempt=0, force=False, recursive=False))
    assert commands == [InterruptTask(task_id=tid(1), attempt=0)]  # a thread goes on, and may ask
    assert worker(TaskUnwanted(task_id=tid(2), attempt=1, force=False, recursive=False)) == []  # another attempt
    commands = worker.ran(1, failed=error(ErrorKind.TASK_CANCELLED))
    assert (reported(commands), started(commands)) == ([1], [3])
    assert worker(TaskUnwanted(task_id=tid(1), attempt=0, force=False, recursive=False)) == []  # it has ended


def test_what_a_dead_caller_has_pushed_does_not_begin():
    worker = make(1)
    worker(call(1), call(2), call(3, 9), call(4, owner=DRIVER))
    commands = worker(OwnerDied(address=Address(OTHER)))
    assert started(commands) == []
    assert started(worker.ran(1, small(1))) == [4]


def test_a_pinned_argument_of_a_dead_caller_is_given_back():
    worker = make(1)
    assert started(worker(call(2, 9), call(3, owner=DRIVER), arrived(9))) == [3]
    commands = worker(OwnerDied(address=Address(OTHER)))
    assert sent(commands, ObjectReleased, "node-0")
    assert started(worker.ran(3, small(3))) == []


def test_exit_tells_the_head_when_all_have_heard():
    worker = make(2)
    worker(call(1), call(2, owner=DRIVER), call(3))
    commands = worker(ActorExitAsked(task_id=tid(2)))
    assert [command.to for command in commands if isinstance(command, Send)] == [OTHER, DRIVER]
    assert len(sent(commands, ActorLeaving)) == 2
    assert worker.ran(1, small(1)) == []  # neither reported, nor is there a next one
    assert sent(worker(ActorLeavingHeard(process=Address(OTHER))), ActorExited) == []
    [news] = sent(worker(ActorLeavingHeard(process=Address(DRIVER))), ActorExited, HEAD)
    assert news.worker == WORKER


def test_exit_waits_neither_for_the_dead_nor_for_ever():
    worker = make(2)
    worker(call(1), call(2, owner=DRIVER))
    worker(ActorExitAsked(task_id=tid(1)))
    worker(OwnerDied(address=Address(OTHER)))
    assert len(sent(worker(TimerFired(timer=EXIT_TIMER)), ActorExited, HEAD)) == 1
    assert worker(ActorLeavingHeard(process=Address(DRIVER))) == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("arrive"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("die"), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
    ),
    max_size=60,
)


@given(st.integers(1, 4), STEPS)
def test_whatever_happens_calls_start_in_order_within_the_limit_and_are_reported_once(limit, steps):
    worker = make(limit)
    running: list[int] = []
    begun: list[int] = []
    told: list[int] = []
    pushed: dict[int, Address] = {}
    wanted: list[int] = []
    dead: set[Address] = set()

    def take(commands: list[Any]) -> None:
        for number in started(commands):
            running.append(number)
            begun.append(number)
        told.extend(reported(commands))
        assert len(running) <= limit

    def end(number: int) -> None:
        if FIRST_ARGUMENT + number in wanted:
            take(worker(ViewReleased(object_id=oid(FIRST_ARGUMENT + number))))
        take(worker.ran(number, small(number)))

    for step, first, second in steps:
        if step == "push" and len(pushed) < 90 and CALLERS[first] not in dead:
            number = len(pushed) + 1
            pushed[number] = CALLERS[first]
            deps = (FIRST_ARGUMENT + number,) if second == 2 else ()
            wanted.extend(deps)
            take(worker(call(number, *deps, owner=CALLERS[first])))
        elif step == "end" and running:
            end(running.pop(first % len(running)))
        elif step == "arrive" and wanted:
            object_id = oid(wanted[first % len(wanted)])
            if object_id in worker.machine.values.pins.asked:
                take(worker(ObjectArrived(object_id=object_id, size_bytes=1000)))
        elif step == "die":
            dead.add(CALLERS[first])
            take(worker(OwnerDied(address=CALLERS[first])))
        elif step == "cancel" and first in pushed:
            take(worker(TaskUnwanted(task_id=tid(first), attempt=0, force=False, recursive=False)))
    for _ in range(300):  # everything comes to its end
        for object_id in list(worker.machine.values.pins.asked):
            take(worker(ObjectArrived(object_id=object_id, size_bytes=1000)))
        if running:
            end(running.pop(0))
    assert len(told) == len(set(told))
    assert {number for number, caller in pushed.items() if caller not in dead} <= set(told)
    for caller in CALLERS:
        mine = [number for number in begun if pushed[number] == caller]
        assert mine == sorted(mine)
    values = worker.machine.values
    assert (values.pins.views, values.table, values.waiting.waits) == ({}, {}, {})


# ---- Calls that are made again before their earlier attempts were heard of -------------------------------------------


def attempt(number: int, attempts: int, *deps: int, owner: str = OTHER) -> TaskPushed:
    """As `call`, made again so many times."""
    return dataclasses.replace(call(number, *deps, owner=owner, again=attempts > 0), attempt=attempts)


def made(commands: list[Any]) -> list[tuple[int, int]]:
    """The calls that are to run, with their attempts."""
    handed = [each for command in commands if isinstance(command, RunTasks) for each in command.tasks]
    alone = [command for command in commands if isinstance(command, RunTask)]
    return [(each.spec.task_id[0], each.attempt) for each in (*alone, *handed)]


def dropped(commands: list[Any]) -> list[int]:
    """The calls whose arguments' bytes are dropped."""
    keys = [command.key for command in commands if isinstance(command, DropPayload)]
    keys += [key for command in commands if isinstance(command, DropPayloads) for key in command.keys]
    return [key[0] for key in keys if len(key) == len(tid(0))]


@pytest.fixture(params=["one by one", "one at a time", "several at a time"])
def actor(request: pytest.FixtureRequest) -> OwnerStepper:
    """The worker of an actor, however many of its methods may run at a time."""
    if request.param == "one by one":
        worker = OwnerStepper(WORKER)
        worker(TaskPushed(spec=constructor(ACTOR), attempt=0, reply_to=HEAD))
        worker.ran(ACTOR)
        return worker
    return make(1 if request.param == "one at a time" else 3)


def test_an_attempt_waits_until_the_earlier_one_that_runs_has_ended(actor):
    """Found by scenarios/actors_swarm.yaml, seed 283: all come at once when a partition ends."""
    commands = actor(attempt(1, 0), attempt(1, 1), attempt(1, 2))
    assert made(commands) == [(1, 0)]
    assert dropped(commands) == []
    commands = actor.ran(1, small(1))
    assert (reported(commands), made(commands), dropped(commands)) == ([1], [(1, 2)], [])
    commands = actor.ran(1, small(1), attempt=2)
    assert (reported(commands), made(commands), dropped(commands)) == ([1], [], [1])


def test_an_attempt_that_has_not_begun_never_does_when_there_is_a_later_one(actor):
    waiting = made(actor(*(attempt(number, 0) for number in range(1, 5))))
    waiting += made(actor(attempt(4, 1)))
    begun = []
    while waiting:
        number, attempts = waiting.pop(0)
        begun.append((number, attempts))
        waiting += made(actor.ran(number, small(number), attempt=attempts))
    assert sorted(begun) == [(1, 0), (2, 0), (3, 0), (4, 1)]


def test_the_arguments_of_an_attempt_live_as_long_as_one_of_them_waits(actor):
    actor(attempt(1, 0, 9), attempt(1, 1, 9))
    commands = actor(arrived(9))
    assert made(commands) in ([(1, 0)], [(1, 1)])
    if made(commands) == [(1, 0)]:
        commands = actor.ran(1, small(1))
        assert made(commands) + made(actor(arrived(9))) == [(1, 1)]
    assert sent(commands, ObjectReleased) == []
    actor.ran(1, small(1), attempt=1)
    actor(ViewReleased(object_id=oid(9)))
    assert not actor.machine.values.table


def test_a_repeated_call_is_cancelled_where_it_waits(actor):
    actor(attempt(1, 0), attempt(1, 1))
    [told] = sent(actor(TaskUnwanted(task_id=tid(1), attempt=1, force=False, recursive=False)), TaskFinished)
    assert (told.attempt, told.error.kind) == (1, ErrorKind.TASK_CANCELLED)
    commands = actor.ran(1, small(1))
    assert (made(commands), dropped(commands)) == ([], [1])


def test_a_repeated_call_of_a_process_that_died_never_begins(actor):
    actor(attempt(1, 0, owner=DRIVER), attempt(1, 1, owner=DRIVER))
    actor(OwnerDied(address=Address(DRIVER)))
    commands = actor.ran(1, small(1))
    assert (made(commands), dropped(commands)) == ([], [1])


def test_calls_that_are_made_again_together_are_looked_at_one_by_one(actor):
    first = call(1)
    together = TasksPushed(
        template=first.spec.template,
        owner=Address(OTHER),
        parent=first.spec.parent,
        calls=((tid(1), 1, 10), (tid(2), 0, 10)),
        actor_id=first.spec.actor_id,
    )
    actor(attempt(1, 0))
    begun = made(actor(together))
    assert begun in ([], [(2, 0)])
    begun += made(actor.ran(1, small(1)))
    assert (1, 1) in begun
