"""The executor: tasks that are pushed to a worker, what it runs, reports and gives back."""

from __future__ import annotations

import pytest

from dualray.exceptions import InvariantViolation
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    CopyPayload,
    DropPayload,
    DropPayloads,
    ForgetTasks,
    RunTask,
    RunTasks,
    Send,
    WriteRecords,
)
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ObjectReleased,
    ObjectUnavailable,
    ObjectWanted,
    OwnerDied,
    RefsAdded,
    Result,
    ResultsTaken,
    TaskFinished,
    TaskPushed,
    TasksFinished,
    TasksPushed,
    TasksRan,
    TasksRecalled,
    TimerFired,
    WorkerBlocked,
    WorkerUnblocked,
)
from dualray.shared.model.ids import HEAD, Address, exception_id
from tests.shared.builders import (
    MS,
    NODE,
    OTHER,
    RAISED,
    OwnerStepper,
    constructor,
    error,
    of,
    oid,
    payloads_of,
    put_id,
    ref,
    sends,
    sent,
    started,
    task,
    tid,
)
from tests.shared.machines.owner.answers import WORKER, dropped, outcomes


def inline_result(number: int, *nested) -> Result:
    return Result(object_id=oid(number), size_bytes=10, inline=True, nested=nested)


def given(number: int, **options):
    """A task that another process owns, as a worker gets it."""
    return task(number, owner=OTHER, **options)


def test_a_pushed_task_runs(worker):
    assert of(worker.pushed(given(1)), RunTask) == [RunTask(spec=given(1), attempt=0)]


def test_tasks_run_one_at_a_time_in_the_order_in_which_they_came(worker):
    assert started(worker.pushed(given(1)) + worker.pushed(given(2)) + worker.pushed(given(3))) == [tid(1)]
    # These are handed over together, to run one after another.
    assert of(worker.ran(1), RunTasks) == [RunTasks(tasks=(handed(2), handed(3)))]
    assert started(worker.ran(2)) == []
    assert started(worker.ran(3)) == []
    assert worker.machine.executor.current is None


def handed(number: int) -> TaskPushed:
    return TaskPushed(spec=given(number), attempt=0, reply_to=OTHER)


@pytest.fixture
def run(worker) -> OwnerStepper:
    """Runs task 1; 2 to 4 were handed over with it, 5 was pushed later."""
    worker(
        TasksPushed(
            template=given(1).template,
            owner=OTHER,
            parent=given(1).parent,
            calls=tuple((tid(number), 0, given(number).args_bytes) for number in range(1, 5)),
        )
    )
    worker.pushed(given(5))
    return worker


def test_calls_that_stand_alone_are_handed_over_together(worker):
    calls = tuple((tid(number), 0, given(number).args_bytes) for number in range(1, 5))
    pushed = TasksPushed(template=given(1).template, owner=OTHER, parent=given(1).parent, calls=calls)
    assert pushed.each() == [handed(number) for number in range(1, 5)]
    assert of(worker(pushed), RunTasks) == [RunTasks(tasks=tuple(pushed.each()))]


def test_a_task_that_must_not_be_tried_twice_runs_alone_and_is_reported_at_once(run):
    run.pushed(task(6, owner=OTHER, max_retries=0))
    run.pushed(given(7))
    run(TasksRan(outcomes=outcomes(1, 2, 3, 4)))
    assert started(run.ran(5, inline_result(5))) == [tid(6)]
    commands = run.ran(6, inline_result(6))
    assert [send.urgent for send in of(commands, Send)] == [True]
    assert started(commands) == [tid(7)]


def test_a_task_that_may_be_what_its_last_worker_died_of_runs_alone(run):
    run.pushed(given(6), again=True)
    run.pushed(given(7))
    run(TasksRan(outcomes=outcomes(1, 2, 3, 4)))
    assert started(run.ran(5, inline_result(5))) == [tid(6)]


def test_what_a_dying_worker_gives_back_is_pushed_as_made_again(driver):
    driver.run(1, duration_ns=100_000)
    driver.submit(task(2), task(3), task(4))
    driver.worker_died()
    commands = driver.grant(1, request=1)
    assert {push.again for push in sent(commands, TaskPushed)} == {True}


def test_what_returned_together_is_reported_together(run):
    commands = run(TasksRan(outcomes=outcomes(1, 2)))
    (finished,) = [each for each in of(commands, Send) if each.to == OTHER]
    assert finished.message == TasksFinished(worker=WORKER, node=NODE, outcomes=outcomes(1, 2))
    assert finished.payloads == (oid(1), oid(2))
    assert not finished.urgent
    (dropped,) = of(commands, DropPayloads)
    assert dropped.keys == (oid(1), oid(2), tid(1), tid(2))
    (rows,) = of(commands, WriteRecords)
    assert rows.keys == (tid(1).hex(), tid(2).hex())
    assert run.machine.executor.current == handed(3)


def test_the_next_begin_when_the_last_of_those_handed_over_has_returned(run):
    assert started(run(TasksRan(outcomes=outcomes(1, 2, 3, 4)))) == [tid(5)]


def test_calls_of_two_owners_are_reported_to_each(run):
    run(TasksRan(outcomes=outcomes(1, 2, 3, 4)))
    run.pushed(task(6, owner="driver-3"), reply_to="driver-3")
    run.pushed(task(7, owner="driver-4"), reply_to="driver-4")
    run.ran(5)
    commands = run(TasksRan(outcomes=outcomes(6, 7)))
    assert [(send.to, send.message.outcomes) for send in of(commands, Send)] == [
        ("driver-3", outcomes(6)),
        ("driver-4", outcomes(7)),
    ]


def test_a_result_that_does_not_fit_in_is_reported_in_its_place(run):
    run(TasksRan(outcomes=outcomes(1)))
    assert len(sent(run.ran(2, failed=RAISED), TaskFinished)) == 1
    run(TasksRan(outcomes=outcomes(3, 4)))
    assert run.machine.executor.current.spec.task_id == tid(5)


def test_news_of_a_task_that_is_not_in_hand_is_refused(run):
    with pytest.raises(InvariantViolation, match="was not running the task"):
        run(TasksRan(outcomes=outcomes(2)))


def test_when_the_task_in_hand_blocks_those_handed_over_with_it_are_given_back(run):
    run(TasksRan(outcomes=outcomes(1)))
    assert of(run.wait(1, ref(oid(9)), of_task=2), ForgetTasks) == [], "its owner may answer at once"
    commands = run(TimerFired(timer="brief:1"))
    assert of(commands, ForgetTasks) == [ForgetTasks(tasks=(handed(3), handed(4)))]
    assert [recall.tasks for recall in sent(commands, TasksRecalled)] == [(tid(3), tid(4), tid(5))]
    assert run.machine.executor.current == handed(2)


def test_a_task_that_waits_to_be_reported_lets_none_begin(run):
    run(RefsAdded(refs=(ref(oid(9), "driver-7"),)))
    commands = run.ran(1, inline_result(1))
    assert of(commands, ForgetTasks) == [ForgetTasks(tasks=(handed(2), handed(3), handed(4)))]
    assert sent(commands, TaskFinished) == []
    assert started(run.acknowledged(oid(9))) == [tid(2), tid(3), tid(4), tid(5)]


def test_a_finished_task_is_reported_with_its_small_results_and_its_time(worker):
    worker.pushed(given(1), attempt=2)
    worker.now_ns = 7 * MS
    (finished,) = [each for each in of(worker.ran(1, inline_result(1), attempt=2), Send) if each.to == OTHER]
    assert finished.message == TaskFinished(
        task_id=tid(1), attempt=2, worker=WORKER, node=NODE, results=(inline_result(1),), duration_ns=7 * MS
    )
    assert finished.payloads == (oid(1),)


def test_what_a_finished_task_took_and_gave_is_dropped(worker):
    worker.pushed(given(1, deps=(ref(oid(9), OTHER),)), inline=(oid(9),))
    drops = {drop.key for drop in of(worker.ran(1, inline_result(1)), DropPayload)}
    assert drops == {tid(1), oid(1), oid(9)}
    assert not worker.machine.values.table


def test_an_exception_travels_as_a_payload_under_its_own_key(worker):
    worker.pushed(given(1))
    commands = worker.ran(1, failed=RAISED)
    assert payloads_of(commands, TaskFinished) == (exception_id(tid(1)),)
    assert CopyPayload(source=oid(1), target=exception_id(tid(1))) in commands


def test_large_arguments_are_brought_and_pinned_before_the_task_runs(worker):
    commands = worker.pushed(given(1, deps=(ref(oid(9), OTHER),)))
    assert sent(commands, ObjectWanted, NODE) == [ObjectWanted(object_id=oid(9), owner=OTHER, requester=WORKER)]
    assert started(commands) == []
    assert started(worker.arrived(oid(9))) == [tid(1)]


def test_small_arguments_came_along(worker):
    assert started(worker.pushed(given(1, deps=(ref(oid(9), OTHER),)), inline=(oid(9),))) == [tid(1)]


def test_a_task_whose_argument_can_not_come_ends_without_having_run(worker):
    worker.pushed(given(1, deps=(ref(oid(9), OTHER),)))
    lost = error(ErrorKind.OBJECT_LOST, "gone")
    commands = worker(ObjectUnavailable(object_id=oid(9), error=lost))
    assert started(commands) == []
    assert [finished.error for finished in sent(commands, TaskFinished, OTHER)] == [lost]


def test_arguments_that_did_come_are_released_when_another_can_not(worker):
    worker.pushed(given(1, deps=(ref(oid(8), OTHER), ref(oid(9), OTHER))))
    worker.arrived(oid(8))
    commands = worker(ObjectUnavailable(object_id=oid(9), error=error(ErrorKind.OBJECT_LOST)))
    assert sent(commands, ObjectReleased, NODE) == [ObjectReleased(object_id=oid(8), requester=WORKER)]


def test_a_task_that_holds_a_borrow_is_reported_when_it_is_acknowledged(worker):
    worker.pushed(given(1))
    worker(RefsAdded(refs=(ref(oid(9), "driver-2"),)))
    assert sent(worker.ran(1), TaskFinished) == []
    assert len(sent(worker.acknowledged(oid(9)), TaskFinished)) == 1


def test_a_borrow_from_the_tasks_own_owner_goes_ahead_of_the_report(worker):
    worker.pushed(given(1))
    borrow = worker(RefsAdded(refs=(ref(oid(9), OTHER),)))
    assert sends(borrow + worker.ran(1))[:2] == [(OTHER, "BorrowAdded"), (OTHER, "TaskFinished")]


def test_the_next_task_waits_while_the_last_is_not_reported(worker):
    worker.pushed(given(1))
    worker.pushed(given(2))
    worker(RefsAdded(refs=(ref(oid(9), "driver-2"),)))
    assert started(worker.ran(1)) == []
    assert started(worker.acknowledged(oid(9))) == [tid(2)]


def test_a_report_does_not_wait_for_an_owner_that_died(worker):
    worker.pushed(given(1))
    worker(RefsAdded(refs=(ref(oid(9), "driver-2"),)))
    worker.ran(1)
    assert len(sent(worker(OwnerDied(address=Address("driver-2"))), TaskFinished)) == 1


def test_results_that_carry_references_keep_them_until_they_are_taken(worker):
    worker.pushed(given(1))
    worker.put(1)
    worker.ran(1, inline_result(1, ref(put_id(1), WORKER)))
    assert worker(dropped(put_id(1))) == []
    assert worker(ResultsTaken(task_id=tid(1), attempt=0)) == [DropPayload(key=put_id(1))]


def test_results_that_nobody_will_take_keep_nothing(worker):
    worker.pushed(given(1))
    worker.put(1)
    worker.ran(1, inline_result(1, ref(put_id(1), WORKER)))
    worker(dropped(put_id(1)))
    assert worker(OwnerDied(address=OTHER)) == [DropPayload(key=put_id(1))]


def test_a_task_that_blocks_gives_back_what_has_not_started(worker):
    worker.submit(task(9, owner=WORKER))
    for number in (1, 2, 3):
        worker.pushed(given(number))
    worker.pushed(task(4, owner="driver-2"), reply_to="driver-2")
    commands = worker.wait(1, ref(oid(9), WORKER), of_task=1)
    assert sent(commands, TasksRecalled, OTHER) == [TasksRecalled(worker=WORKER, tasks=(tid(2), tid(3)))]
    assert sent(commands, TasksRecalled, "driver-2") == [TasksRecalled(worker=WORKER, tasks=(tid(4),))]
    assert {tid(2), tid(3), tid(4)} <= {drop.key for drop in of(commands, DropPayload)}


def test_what_is_pushed_while_a_task_is_blocked_is_given_back_at_once(worker):
    worker.submit(task(9, owner=WORKER))
    worker.pushed(given(1))
    worker.wait(1, ref(oid(9), WORKER), of_task=1)
    assert sent(worker.pushed(given(2)), TasksRecalled) == [TasksRecalled(worker=WORKER, tasks=(tid(2),))]


@pytest.fixture
def fetching(worker) -> OwnerStepper:
    """A worker whose task 1 waits for a large argument, with task 2 behind it."""
    commands = worker.pushed(given(1, deps=(ref(oid(9), OTHER),)))
    (timer,) = of(commands, ArmTimer)
    assert timer == ArmTimer(timer="fetch", delay_ns=worker.machine.config.fetch_patience_ns)
    worker.pushed(given(2))
    return worker


def test_a_task_whose_arguments_take_long_lends_its_cpu_and_gives_back_what_is_behind_it(fetching):
    commands = fetching(TimerFired(timer="fetch"))
    assert sent(commands, WorkerBlocked, NODE) == [WorkerBlocked(worker=WORKER)]
    assert sent(commands, TasksRecalled, OTHER) == [TasksRecalled(worker=WORKER, tasks=(tid(2),))]
    assert sent(fetching.pushed(given(3)), TasksRecalled) == [TasksRecalled(worker=WORKER, tasks=(tid(3),))]
    commands = fetching.arrived(oid(9))
    assert sent(commands, WorkerUnblocked, NODE) == [WorkerUnblocked(worker=WORKER)]
    assert started(commands) == [tid(1)]


def test_a_task_whose_arguments_come_in_time_keeps_what_is_behind_it(fetching):
    commands = fetching.arrived(oid(9))
    assert of(commands, CancelTimer) == [CancelTimer(timer="fetch")]
    assert sent(commands, WorkerUnblocked) == []
    assert started(commands) == [tid(1)]
    assert started(fetching.ran(1)) == [tid(2)]


def test_a_task_whose_arguments_are_here_arms_no_timer(worker):
    commands = worker.pushed(given(1)) + worker.pushed(given(2, deps=(ref(oid(9), OTHER),)), inline=(oid(9),))
    assert of(commands + worker.ran(1), ArmTimer) == []


def test_an_actor_that_blocks_keeps_its_calls(worker):
    worker.pushed(constructor(1, owner=OTHER), reply_to=HEAD)
    worker.ran(1)
    worker.submit(task(9, owner=WORKER))
    worker.pushed(given(2, actor=1))
    worker.pushed(given(3, actor=1))
    assert sent(worker.wait(1, ref(oid(9), WORKER), of_task=2), TasksRecalled) == []


@pytest.fixture
def busy_actor(worker) -> OwnerStepper:
    """An actor of OTHER whose call 2 waits for a large argument, with call 3 behind it."""
    worker.pushed(constructor(1, owner=OTHER), reply_to=HEAD)
    worker.ran(1)
    worker.pushed(given(2, actor=1, deps=(ref(oid(9), "driver-3"),)))
    worker.pushed(given(3, actor=1))
    return worker


def test_a_call_that_is_made_again_goes_before_all_that_have_not_begun(busy_actor):
    """Also before the one whose arguments are being brought here: they may be made of its result."""
    assert started(busy_actor.pushed(given(4, actor=1), again=True)) == [tid(4)]
    assert started(busy_actor.ran(4)) == []
    assert started(busy_actor.arrived(oid(9))) == [tid(2)]
    assert started(busy_actor.ran(2)) == [tid(3)]


def test_a_call_that_is_made_again_waits_for_the_one_that_runs(busy_actor):
    busy_actor.arrived(oid(9))
    assert started(busy_actor.pushed(given(4, actor=1), again=True)) == []
    assert started(busy_actor.ran(2)) == [tid(4)]


def test_a_call_that_gave_way_and_whose_caller_is_dead_is_dropped(busy_actor):
    busy_actor(OwnerDied(address=OTHER))
    commands = busy_actor.pushed(task(4, owner="driver-2", actor=1), reply_to="driver-2", again=True)
    assert started(commands) == [tid(4)]
    assert tid(2) in {drop.key for drop in of(commands, DropPayload)}
    assert started(busy_actor.ran(4)) == []


def test_an_actor_of_which_a_thread_waits_takes_calls(worker):
    """A thread that its constructor has started, and that goes on after it."""
    worker.pushed(constructor(1, owner=OTHER), reply_to=HEAD)
    worker.submit(task(9, owner=WORKER))
    worker.wait(1, ref(oid(9), WORKER), of_task=1)
    worker.ran(1)
    assert started(worker.pushed(given(2, actor=1))) == [tid(2)]


def test_a_worker_of_which_a_thread_waits_takes_tasks(worker):
    """A thread that an earlier task has started, and that goes on after it."""
    worker.pushed(given(1))
    worker.submit(task(9, owner=WORKER))
    worker.wait(1, ref(oid(9), WORKER), of_task=1)
    worker.ran(1)
    assert started(worker.pushed(given(2))) == [tid(2)]


def test_tasks_of_a_process_that_died_are_not_begun(worker):
    for number in (1, 2):
        worker.pushed(given(number))
    worker.pushed(task(3, owner="driver-2"), reply_to="driver-2")
    worker(OwnerDied(address=OTHER))
    assert started(worker.ran(1)) == [tid(3)]
