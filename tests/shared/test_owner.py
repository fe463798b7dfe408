"""The owner machine: events in, commands out. Each test states one rule in its name."""

from __future__ import annotations

import pytest

from dualray.shared.machines.leases import IDLE_TIMER
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    CompleteWait,
    CopyPayload,
    DropPayload,
    NoteRetry,
    RunTask,
    Send,
    WriteRecord,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ActorFailed,
    ActorKillAsked,
    ActorKillRequested,
    ActorOutOfScope,
    ActorRegistered,
    ActorSubscribed,
    BorrowAcknowledged,
    BorrowAdded,
    BorrowRemoved,
    ClusterChanged,
    ClusterStateAsked,
    ClusterStateReported,
    ClusterStateRequested,
    DriverJoined,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    NodeDied,
    ObjectDemanded,
    ObjectFailed,
    ObjectReleased,
    ObjectSealed,
    ObjectsFreed,
    ObjectUnavailable,
    ObjectWanted,
    OwnerDied,
    RefsAdded,
    RefsDropped,
    Result,
    ResultsTaken,
    SpaceDenied,
    SpaceGranted,
    SpaceRequested,
    SpaceWanted,
    SpaceWritten,
    Started,
    TaskFinished,
    TaskPushed,
    TasksRecalled,
    TaskSubmitted,
    TimerFired,
    ValueReported,
    ValueRequested,
    ViewReleased,
    WorkerBlocked,
    WorkerUnblocked,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, RequestID, WaitID
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import NodeState, Strategy, StrategyKind
from dualray.shared.model.states import ActorState, ValueState
from tests.shared.builders import (
    CRASH,
    DRIVER,
    MS,
    NODE,
    OTHER,
    RAISED,
    OwnerStepper,
    aid,
    completed,
    constructor,
    cpus,
    error,
    info,
    of,
    oid,
    payloads_of,
    put_id,
    ref,
    sends,
    sent,
    shape,
    started,
    task,
    tid,
)

WORKER = Address("node-0/w0")


@pytest.fixture
def driver() -> OwnerStepper:
    return OwnerStepper()


@pytest.fixture
def worker() -> OwnerStepper:
    return OwnerStepper(WORKER)


def retries(commands) -> list[tuple[int, int, str]]:
    """The tasks that are queued again: number, attempt to come, reason."""
    return [(note.task_id[0], note.attempt, note.reason) for note in of(commands, NoteRetry)]


def pushes(commands) -> list[tuple[int, int, str]]:
    """The tasks that were pushed: number, attempt, to whom."""
    return [
        (command.message.spec.task_id[0], command.message.attempt, command.to)
        for command in of(commands, Send)
        if isinstance(command.message, TaskPushed)
    ]


def demanded(stepper: OwnerStepper, object_id, losses: int = 1):
    return stepper(ObjectDemanded(object_id=object_id, losses=losses))


def dropped(*object_ids) -> RefsDropped:
    return RefsDropped(object_ids=object_ids)


# ---- Leases --------------------------------------------------------------------------------------------------------


def test_a_driver_tells_the_head_that_it_takes_part(driver):
    assert driver(Started()) == [Send(to=HEAD, message=DriverJoined(address=DRIVER, node=NODE))]


def test_a_worker_begins_in_silence(worker):
    assert worker(Started()) == []


def test_a_task_without_arguments_asks_its_node_for_a_lease_at_once(driver):
    wanted = LeaseRequested(request_id=RequestID("driver-1#0"), owner=DRIVER, shape=shape(), count=1)
    assert driver.submit(task(1)) == [Send(to=Address(NODE), message=wanted)]


def test_a_granted_lease_is_used_at_once_with_the_arguments_beside(driver):
    driver.submit(task(1))
    commands = driver.grant(gpu_ids=(2,))
    pushed = TaskPushed(spec=task(1), attempt=0, reply_to=DRIVER, gpu_ids=(2,))
    assert of(commands, Send) == [Send(to=WORKER, message=pushed, payloads=(tid(1),))]


def test_a_finished_task_frees_its_lease_for_the_next_of_the_same_shape(driver):
    driver.submit(task(1), task(2))
    driver.grant()
    assert pushes(driver.finish(1)) == [(2, 0, WORKER)]


def test_tasks_of_another_shape_do_not_share_a_lease(driver):
    driver.submit(task(1), task(2, resources=cpus(2)))
    driver.grant()
    assert pushes(driver.finish(1)) == []


@pytest.mark.parametrize(
    "options",
    [
        {"resources": cpus(2)},
        {"placement": cpus(2)},
        {"strategy": Strategy(kind=StrategyKind.SPREAD)},
        {"name": "g"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_makes_a_shape(driver, options):
    driver.submit(task(1))
    driver.grant()
    driver.finish(1)
    assert len(sent(driver.submit(task(2, **options)), LeaseRequested)) == 1


def test_an_idle_lease_is_reused_without_asking(driver):
    driver.run(1)
    commands = driver.submit(task(2))
    assert sends(commands) == [(WORKER, "TaskPushed")]


def test_no_more_leases_are_asked_for_than_tasks_wait():
    driver = OwnerStepper(lease_requests_max=16)
    assert sum(asked.count for asked in sent(driver.submit(task(1), task(2), task(3)), LeaseRequested)) == 3


def test_the_leases_asked_for_and_not_granted_have_a_limit():
    driver = OwnerStepper(lease_requests_max=2)
    assert sum(asked.count for asked in sent(driver.submit(*map(task, range(1, 6))), LeaseRequested)) == 2
    assert sum(asked.count for asked in sent(driver.grant(request=0), LeaseRequested)) == 1


def test_a_lease_that_was_not_asked_for_goes_straight_back(driver):
    commands = driver.grant(request=7)
    assert [(to, name) for to, name in sends(commands)] == [(NODE, "LeaseReturned")]


def test_an_idle_lease_goes_back_after_its_time(driver):
    driver.run(1)
    driver.now_ns = Config().lease_idle_ns
    (returned,) = of(driver(TimerFired(timer=IDLE_TIMER)), Send)
    assert returned == Send(to=Address(NODE), message=LeaseReturned(lease_id="lease-0"))


def test_a_lease_that_was_used_meanwhile_stays_for_the_rest_of_its_time(driver):
    idle_ns = Config().lease_idle_ns
    driver.run(1)
    driver.now_ns = idle_ns // 2
    driver.run(2)
    driver.now_ns = idle_ns
    assert driver(TimerFired(timer=IDLE_TIMER)) == [ArmTimer(timer=IDLE_TIMER, delay_ns=idle_ns // 2)]
    driver.now_ns = idle_ns // 2 + idle_ns
    assert len(sent(driver(TimerFired(timer=IDLE_TIMER)), LeaseReturned)) == 1


def test_a_busy_lease_never_goes_back(driver):
    driver.submit(task(1))
    driver.grant()
    driver.now_ns = 10 * Config().lease_idle_ns
    assert driver(TimerFired(timer=IDLE_TIMER)) == []


def test_one_task_at_a_time_while_it_is_not_known_how_long_they_take(driver):
    driver.submit(task(1), task(2))
    assert pushes(driver.grant()) == [(1, 0, WORKER)]


def test_short_tasks_are_pushed_ahead_up_to_the_window(driver):
    driver.run(1, duration_ns=Config().push_window_ns // 3)
    assert pushes(driver.submit(*map(task, range(2, 9)))) == [(2, 0, WORKER), (3, 0, WORKER), (4, 0, WORKER)]


def test_tasks_as_long_as_the_window_are_pushed_one_at_a_time(driver):
    driver.run(1, duration_ns=Config().push_window_ns)
    assert pushes(driver.submit(task(2), task(3))) == [(2, 0, WORKER)]


def test_the_window_has_a_limit_however_short_the_tasks_are():
    driver = OwnerStepper(push_window_max=2)
    driver.run(1, duration_ns=0)
    assert len(pushes(driver.submit(*map(task, range(2, 9))))) == 2


def test_an_idle_worker_is_preferred_to_one_that_is_busy(driver):
    driver.submit(task(1), task(2))
    driver.grant(0, request=0)
    driver.grant(1, request=1)
    driver.finish(1, duration_ns=10)
    driver.finish(2, worker="node-0/w1", duration_ns=10)
    assert {to for _, _, to in pushes(driver.submit(task(3), task(4)))} == {WORKER, "node-0/w1"}


def test_a_refused_demand_fails_every_task_that_waits_for_it(driver):
    driver.submit(task(1), task(2))
    driver.wait(1, ref(oid(1)), ref(oid(2)))
    never = error(ErrorKind.TASK_UNSCHEDULABLE, "f cannot be scheduled.")
    commands = driver(LeaseRefused(request_id=RequestID("driver-1#0"), count=1, error=never))
    assert completed(commands) == [(1, (oid(1), oid(2)))]
    assert [record.fields for record in of(commands, WriteRecord) if record.table == "errors"] == [
        (("kind", "TASK_UNSCHEDULABLE"), ("message", "f cannot be scheduled."))
    ] * 2


def test_a_refusal_leaves_tasks_to_the_leases_that_are_there(driver):
    driver.submit(task(1), task(2))
    driver.grant(request=0)
    refused = LeaseRefused(request_id=RequestID("driver-1#1"), count=1, error=error(ErrorKind.TASK_UNSCHEDULABLE))
    driver(refused)
    assert pushes(driver.finish(1)) == [(2, 0, WORKER)]


def test_large_arguments_are_named_in_the_demand_and_small_ones_travel_with_the_task(driver):
    driver.put(1)
    driver.put(2, inline=False)
    (asked,) = sent(driver.submit(task(1, deps=(ref(put_id(1)), ref(put_id(2))))), LeaseRequested)
    assert [(hint.object_id, hint.size_bytes) for hint in asked.shape.deps] == [(put_id(2), 1000)]
    commands = driver.grant()
    assert sent(commands, TaskPushed)[0].inline_deps == (put_id(1),)
    assert payloads_of(commands, TaskPushed) == (tid(1), put_id(1))


def test_a_shape_with_arguments_of_its_own_is_forgotten_when_nothing_needs_it(driver):
    driver.put(1, inline=False)
    driver.submit(task(1, deps=(ref(put_id(1)),)))
    driver.grant()
    driver.finish(1)
    assert driver.machine.leases.queues
    driver.now_ns = Config().lease_idle_ns
    driver(TimerFired(timer=IDLE_TIMER))
    assert not driver.machine.leases.queues


# ---- Recall --------------------------------------------------------------------------------------------------------


@pytest.fixture
def ahead(driver) -> OwnerStepper:
    """A driver that has pushed tasks 2, 3 and 4 to w0, 3 and 4 ahead of their time."""
    driver.run(1, duration_ns=Config().push_window_ns // 3)
    driver.submit(task(2), task(3), task(4))
    return driver


def recalled(*numbers: int) -> TasksRecalled:
    return TasksRecalled(worker=WORKER, tasks=tuple(map(tid, numbers)))


def test_a_recall_uses_no_retry_and_asks_for_another_lease(ahead):
    commands = ahead(recalled(3, 4))
    assert retries(commands) == []
    assert [asked.count for asked in sent(commands, LeaseRequested)] == [2]


def test_what_was_recalled_is_not_pushed_back_to_the_worker_that_is_blocked(ahead):
    assert pushes(ahead(recalled(3, 4))) == []


def test_nothing_new_is_pushed_to_a_worker_that_is_blocked(ahead):
    ahead(recalled(3, 4))
    assert pushes(ahead.submit(task(5))) == []


def test_recalled_tasks_go_first_and_in_their_old_order(ahead):
    ahead.submit(task(5))
    commands = ahead(recalled(3, 4)) + ahead.grant(1, request=1) + ahead.grant(2, request=2)
    assert [number for number, _, _ in pushes(commands)][:2] == [3, 4]


def test_a_blocked_worker_is_used_again_when_its_task_has_finished(ahead):
    ahead(recalled(3, 4))
    assert [(number, to) for number, _, to in pushes(ahead.finish(2))] == [(3, WORKER), (4, WORKER)]


def test_a_recall_of_a_task_that_is_elsewhere_by_now_is_late_news(ahead):
    ahead(recalled(3))
    ahead.grant(1, request=1)
    assert pushes(ahead(recalled(3))) == []
    assert ahead.machine.tasks.records[tid(3)].worker == "node-0/w1"


def test_a_recall_of_a_task_that_is_not_known_is_late_news(driver):
    assert driver(recalled(9)) == []


# ---- Worker death --------------------------------------------------------------------------------------------------


def test_when_a_worker_dies_only_its_oldest_task_uses_a_retry(ahead):
    assert retries(ahead.worker_died()) == [(2, 1, "retry")]


def test_when_a_worker_dies_its_tasks_run_elsewhere_in_their_old_order(ahead):
    ahead.worker_died()
    commands = ahead.grant(1, request=1) + ahead.grant(2, request=1) + ahead.grant(3, request=1)
    assert pushes(commands) == [(2, 1, "node-0/w1"), (3, 0, "node-0/w2"), (4, 0, "node-0/w3")]


def test_a_task_without_retries_fails_with_its_worker_and_those_behind_it_do_not(driver):
    driver.run(1, duration_ns=1, max_retries=0)
    driver.submit(task(2, max_retries=0), task(3, max_retries=0))
    driver.wait(1, ref(oid(2)))
    commands = driver.worker_died()
    assert retries(commands) == []
    assert completed(commands) == [(1, (oid(2),))]
    assert [asked.count for asked in sent(commands, LeaseRequested)] == [1]
    assert driver.machine.values.table[oid(2)].error == CRASH


def test_retries_have_an_end_and_the_error_counts_the_tries(driver):
    driver.submit(task(1, max_retries=2))
    for attempt in range(3):
        driver.grant(attempt, request=attempt)
        commands = driver.worker_died(attempt)
    assert retries(commands) == []
    assert driver.machine.values.table[oid(1)].error.message == f"{CRASH.message} It was tried 3 times."


def test_minus_one_retries_have_no_end(driver):
    driver.submit(task(1, max_retries=-1))
    for attempt in range(20):
        driver.grant(attempt, request=attempt)
        assert retries(driver.worker_died(attempt)) == [(1, attempt + 1, "retry")]


def test_the_death_of_an_idle_worker_costs_nothing(driver):
    driver.run(1)
    assert driver.worker_died() == []
    assert sends(driver.submit(task(2))) == [(NODE, "LeaseRequested")]


def test_the_death_of_a_worker_is_heard_once(ahead):
    ahead.worker_died()
    assert ahead.worker_died() == []


# ---- Node death ----------------------------------------------------------------------------------------------------


def test_when_a_node_dies_the_oldest_task_of_each_of_its_workers_uses_a_retry(driver):
    driver.submit(task(1), task(2))
    driver.grant(0, request=0, node="node-1")
    driver.grant(1, request=1, node="node-1")
    driver.finish(1, worker="node-1/w0", duration_ns=1)
    driver.finish(2, worker="node-1/w1", duration_ns=1)
    driver.submit(*map(task, (3, 4, 5)))
    commands = driver.node_died("node-1")
    assert sorted(retries(commands)) == [(3, 1, "retry"), (4, 1, "retry")]
    assert sum(asked.count for asked in sent(commands, LeaseRequested)) == 3


def test_a_task_that_fails_with_its_node_names_node_and_function(driver):
    driver.submit(task(1, max_retries=0, name="train"))
    driver.grant(node="node-1")
    driver.node_died("node-1")
    assert driver.machine.values.table[oid(1)].error == ErrorInfo(
        kind=ErrorKind.NODE_DIED, message="Node node-1 died while it ran train (task 01010101)."
    )


def test_the_death_of_another_node_costs_nothing(driver):
    driver.submit(task(1))
    driver.grant(node="node-1")
    assert driver.node_died("node-2") == []


# ---- Late news -----------------------------------------------------------------------------------------------------


@pytest.fixture
def second_attempt(driver) -> OwnerStepper:
    """A driver whose task 1 was lost with w0 and runs again on w1."""
    driver.submit(task(1))
    driver.grant(0, request=0)
    driver.worker_died(0)
    driver.grant(1, request=1)
    return driver


def test_the_result_of_an_attempt_that_was_given_up_is_dropped(second_attempt):
    second_attempt.wait(1, ref(oid(1)))
    assert second_attempt.finish(1, attempt=0) == [DropPayload(key=oid(1))]
    assert completed(second_attempt.finish(1, attempt=1, worker="node-0/w1")) == [(1, (oid(1),))]


def test_a_failure_of_an_attempt_that_was_given_up_is_dropped(second_attempt):
    assert retries(second_attempt.finish(1, attempt=0, failed=RAISED)) == []
    assert second_attempt.machine.values.table[oid(1)].state is ValueState.PENDING


def test_a_late_result_does_not_touch_the_bytes_of_the_one_that_came(second_attempt):
    second_attempt.finish(1, attempt=1, worker="node-0/w1")
    assert second_attempt.finish(1, attempt=0) == []


def test_what_a_late_result_refers_to_is_let_go(second_attempt):
    commands = second_attempt.finish(1, attempt=0, nested=(ref(oid(7), WORKER),))
    assert Send(to=WORKER, message=ResultsTaken(task_id=tid(1), attempt=0)) in commands
    assert sent(commands, BorrowAdded) == []


def test_a_result_of_a_task_that_nobody_knows_any_more_is_dropped(driver):
    driver.run(1)
    driver(dropped(oid(1)))
    assert driver.finish(1) == [DropPayload(key=oid(1))]


# ---- Exceptions ----------------------------------------------------------------------------------------------------


def test_an_exception_fails_the_task_at_once(driver):
    driver.submit(task(1))
    driver.grant()
    driver.wait(1, ref(oid(1)))
    commands = driver.finish(1, failed=RAISED)
    assert retries(commands) == []
    assert completed(commands) == [(1, (oid(1),))]
    assert driver.machine.values.table[oid(1)].error == RAISED


def test_an_exception_is_retried_when_the_task_asks_for_that(driver):
    driver.submit(task(1, retry_exceptions=True))
    driver.grant()
    commands = driver.finish(1, failed=RAISED)
    assert retries(commands) == [(1, 1, "retry")]
    assert pushes(commands) == [(1, 1, WORKER)]


def test_an_exception_of_the_last_retry_is_the_users_own(driver):
    driver.submit(task(1, retry_exceptions=True, max_retries=1))
    driver.grant()
    driver.finish(1, failed=RAISED)
    assert retries(driver.finish(1, attempt=1, failed=RAISED)) == []
    assert driver.machine.values.table[oid(1)].error.kind is ErrorKind.APPLICATION


def test_the_exception_is_the_payload_of_every_return_value(driver):
    driver.submit(task(1, num_returns=3))
    driver.grant()
    assert of(driver.finish(1, failed=RAISED), CopyPayload) == [
        CopyPayload(source=oid(1, 0), target=oid(1, index)) for index in (1, 2)
    ]


# ---- Arguments -----------------------------------------------------------------------------------------------------


def test_a_task_waits_for_its_arguments_before_it_asks_for_a_lease(driver):
    driver.submit(task(1))
    driver.grant()
    assert driver.submit(task(2, deps=(ref(oid(1)),))) == []
    assert pushes(driver.finish(1)) == [(2, 0, WORKER)]


def test_an_argument_that_failed_fails_the_task_without_a_lease(driver):
    driver.submit(task(1, max_retries=0), task(2, deps=(ref(oid(1)),)))
    driver.grant()
    driver.wait(1, ref(oid(2)))
    commands = driver.worker_died()
    assert completed(commands) == [(1, (oid(2),))]
    assert pushes(commands) == []
    assert driver.machine.values.table[oid(2)].error == CRASH


def test_an_argument_that_raised_hands_on_its_exception(driver):
    driver.submit(task(1), task(2, deps=(ref(oid(1)),)), task(3, deps=(ref(oid(2)),)))
    driver.grant()
    assert of(driver.finish(1, failed=RAISED), CopyPayload) == [
        CopyPayload(source=oid(1), target=oid(2)),
        CopyPayload(source=oid(2), target=oid(3)),
    ]


def test_an_argument_of_another_owner_is_asked_for(driver):
    commands = driver(RefsAdded(refs=(ref(oid(9), OTHER),))) + driver.submit(task(1, deps=(ref(oid(9), OTHER),)))
    assert sends(commands) == [(OTHER, "BorrowAdded"), (OTHER, "ValueRequested")]
    reported = ValueReported(object_id=oid(9), state=ValueState.INLINE, size_bytes=10)
    assert sends(driver(reported)) == [(NODE, "LeaseRequested")]


def test_references_inside_arguments_are_not_waited_for(driver):
    driver.submit(task(1))
    assert len(sent(driver.submit(task(2, nested=(ref(oid(1)),))), LeaseRequested)) == 1


def test_an_argument_that_is_given_twice_is_one_argument(driver):
    driver.submit(task(1))
    driver.grant()
    driver.submit(task(2, deps=(ref(oid(1)), ref(oid(1)))))
    assert pushes(driver.finish(1)) == [(2, 0, WORKER)]
    driver.finish(2)
    driver(dropped(oid(1), oid(2)))
    assert not driver.machine.values.table
