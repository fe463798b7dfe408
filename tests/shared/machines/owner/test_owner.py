"""The owner machine: events in, commands out. Each test states one rule in its name."""

from __future__ import annotations

import pytest

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.owner.explanation import EXPLAINED_MAX
from dualray.shared.machines.owner.leases import DEFER_NS, IDLE_TIMER, PUSH_TIMER
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    CompleteWait,
    CopyPayload,
    DropPayload,
    DropPayloads,
    ForgetTasks,
    NoteRetry,
    RunTask,
    RunTasks,
    Send,
    TellFailure,
    WriteRecord,
    WriteRecords,
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
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    LeasesGranted,
    LeasesReturned,
    LocationsWanted,
    NodeDied,
    ObjectDemanded,
    ObjectFailed,
    ObjectReleased,
    ObjectSealed,
    ObjectsFreed,
    ObjectUnavailable,
    ObjectWanted,
    OwnerDied,
    PeerMet,
    PutAbandoned,
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
    TasksFinished,
    TasksPushed,
    TasksRan,
    TasksRecalled,
    TaskSubmitted,
    TimerFired,
    ValueReported,
    ValueRequested,
    ViewReleased,
    WaitAbandoned,
    WorkerBlocked,
    WorkerUnblocked,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, RequestID, TaskID, WaitID, exception_id
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
    NodeStepper,
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
    found = []
    for command in of(commands, Send):
        if isinstance(command.message, TaskPushed | TasksPushed):
            several = isinstance(command.message, TasksPushed)
            for push in command.message.each() if several else [command.message]:
                found += [(push.spec.task_id[0], push.attempt, command.to)]
    return found


def pushed_to(stepper: OwnerStepper, number: int) -> str:
    """The worker that has a task."""
    return next(lease.worker for lease in stepper.machine.leases.leases.values() if tid(number) in lease.in_flight)


def error_of(stepper: OwnerStepper, object_id) -> str:
    """What reading the object raises."""
    failure = stepper.machine.values.table[object_id].failure
    assert failure is not None
    return failure.message


def demanded(stepper: OwnerStepper, object_id, losses: int = 1, *, asked: bool = False):
    return stepper(ObjectDemanded(object_id=object_id, losses=losses, asked=asked))


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


def test_tasks_that_follow_one_another_have_leases_asked_for_together():
    driver = OwnerStepper(lease_requests_max=16)
    driver.now_ns = 1000
    commands = driver.submit_only(*map(task, range(1, 8)))
    assert [asked.count for asked in sent(commands, LeaseRequested)] == [1, 1, 2]
    assert ArmTimer(timer=PUSH_TIMER, delay_ns=DEFER_NS) in commands
    assert [asked.count for asked in sent(driver.wait(1, ref(oid(1))), LeaseRequested)] == [3]
    assert sent(driver(TimerFired(timer=PUSH_TIMER)), LeaseRequested) == []


def test_the_last_leases_are_asked_for_though_nobody_waits():
    driver = OwnerStepper(lease_requests_max=16)
    driver.now_ns = 1000
    driver.submit_only(*map(task, range(1, 4)))
    assert [asked.count for asked in sent(driver(TimerFired(timer=PUSH_TIMER)), LeaseRequested)] == [1]


def test_idle_leases_of_one_node_go_back_together(driver):
    driver.submit(task(1), task(2))
    requests = list(driver.machine.leases.requests)
    leases = tuple(
        LeaseGranted(
            request_id=request,
            lease_id=LeaseID(f"lease-{number}"),
            worker=Address(f"{NODE}/w{number}"),
            node=NodeID(NODE),
            incarnation=0,
        )
        for number, request in enumerate(requests)
    )
    assert len(sent(driver(LeasesGranted(leases=leases)), TaskPushed)) == 2
    driver.finish(1, worker=f"{NODE}/w1")
    driver.finish(2, worker=f"{NODE}/w0")
    driver.now_ns = Config().lease_idle_ns
    (returned,) = of(driver(TimerFired(timer=IDLE_TIMER)), Send)
    assert returned == Send(to=Address(NODE), message=LeasesReturned(lease_ids=("lease-1", "lease-0")))


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


def test_tasks_that_follow_one_another_are_pushed_to_a_busy_worker_together(driver):
    driver.run(1, duration_ns=100_000)
    assert pushes(driver.submit_only(task(2))) == [(2, 0, WORKER)]
    commands = driver.submit_only(task(3), task(4))
    assert pushes(commands) == []
    assert [timer.timer for timer in of(commands, ArmTimer)] == [PUSH_TIMER]
    (push,) = of(driver(TimerFired(timer=PUSH_TIMER)), Send)
    assert push.message == TasksPushed(
        template=task(3).template,
        owner=DRIVER,
        parent=task(3).parent,
        calls=((tid(3), 0, task(3).args_bytes), (tid(4), 0, task(4).args_bytes)),
    )
    assert not push.urgent


def test_whoever_waits_has_all_that_he_submitted_pushed(driver):
    driver.run(1, duration_ns=100_000)
    driver.submit_only(task(2), task(3))
    assert pushes(driver.wait(1, ref(oid(3)))) == [(3, 0, WORKER)]


def test_a_worker_with_nothing_left_is_given_all_that_waits(driver):
    driver.run(1, duration_ns=100_000)
    driver.submit_only(task(2), task(3), task(4))
    assert pushes(driver.finish(2, duration_ns=100_000)) == [(3, 0, WORKER), (4, 0, WORKER)]


def test_results_that_come_together_are_taken_in_like_single_ones(driver):
    driver.run(1, duration_ns=100_000)
    driver.submit(task(2), task(3), task(4))
    finished = TasksFinished(worker=WORKER, node=NODE, outcomes=outcomes(2, 3, 3, 7))
    commands = driver(finished)
    assert driver.machine.values.table[oid(2)].state is ValueState.INLINE
    assert driver.machine.values.table[oid(3)].state is ValueState.INLINE
    assert list(driver.machine.tasks.records) == [tid(4)]
    assert [drop.key for drop in of(commands, DropPayload)] == [tid(2), tid(3), oid(7)]
    (lease,) = driver.machine.leases.leases.values()
    assert list(lease.in_flight) == [tid(4)]


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


@pytest.mark.parametrize(("duration_ns", "shares"), [(1_000, [9]), (100_000, [5, 4])])
def test_tasks_that_take_less_than_their_push_are_not_divided_among_workers(driver, duration_ns, shares):
    driver.submit(task(1), task(2))
    driver.grant(0, request=0)
    driver.grant(1, request=1)
    for number, worker in ((1, WORKER), (2, "node-0/w1")):
        driver.finish(number, worker=worker, duration_ns=duration_ns)
    driver.now_ns = 1_000_000_000
    driver.submit_only(task(3))
    driver.finish(3, worker=pushed_to(driver, 3), duration_ns=duration_ns)
    driver.submit_only(*map(task, range(4, 13)))
    driver(TimerFired(timer=PUSH_TIMER))
    in_flight = [len(lease.in_flight) for lease in driver.machine.leases.leases.values()]
    assert sorted((count for count in in_flight if count), reverse=True) == shares


def test_a_burst_goes_on_when_what_was_held_back_is_pushed_for_its_age(driver):
    driver.run(1, duration_ns=1_000)
    driver.now_ns = 1_000_000_000
    assert pushes(driver.submit_only(task(2))) == [(2, 0, WORKER)]
    driver.finish(2, duration_ns=1_000)
    assert pushes(driver.submit_only(task(3))) == []
    assert pushes(driver(TimerFired(timer=PUSH_TIMER))) == [(3, 0, WORKER)]
    driver.finish(3, duration_ns=1_000)
    assert pushes(driver.submit_only(task(4))) == []
    driver.wait(1, ref(oid(4)))
    driver.finish(4, duration_ns=1_000)
    assert pushes(driver.submit_only(task(5))) == [(5, 0, WORKER)], "who has waited submits no burst"


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
    assert pushes(ahead.grant(1, request=1)) == [(2, 1, "node-0/w1"), (3, 1, "node-0/w1"), (4, 1, "node-0/w1")]


def test_a_task_that_may_have_begun_behind_another_is_another_attempt_and_uses_no_retry(ahead):
    """Found by scenarios/crowd_swarm.yaml: the news of the oldest task's end may have been lost with the worker."""
    left = {number: ahead.machine.tasks.records[tid(number)].retries_left for number in (2, 3, 4)}
    ahead.node_died()
    records = {number: ahead.machine.tasks.records[tid(number)] for number in (2, 3, 4)}
    assert {number: record.attempt for number, record in records.items()} == {2: 1, 3: 1, 4: 1}
    assert {number: left[number] - record.retries_left for number, record in records.items()} == {2: 1, 3: 0, 4: 0}


def test_tasks_without_retries_are_pushed_one_by_one(driver):
    """Else one that has begun behind another could begin again, when both are lost with their node."""
    driver.run(1, duration_ns=1, max_retries=0)
    assert [number for number, _, _ in pushes(driver.submit(task(2, max_retries=0), task(3, max_retries=0)))] == [2]
    assert [number for number, _, _ in pushes(driver.finish(2))] == [3]


def test_a_task_without_retries_fails_with_its_worker_and_those_behind_it_do_not(driver):
    driver.run(1, duration_ns=1, max_retries=0)
    asked = driver.submit(task(2, max_retries=0), task(3, max_retries=0))
    driver.wait(1, ref(oid(2)))
    commands = driver.worker_died()
    assert retries(commands) == []
    assert completed(commands) == [(1, (oid(2),))]
    assert [each.count for each in sent(asked + commands, LeaseRequested)] == [1]
    assert error_of(driver, oid(2)) == f"f (task 02020202) was lost: {CRASH.message}"


def test_retries_have_an_end_and_the_error_counts_the_tries(driver):
    driver.submit(task(1, max_retries=2))
    for attempt in range(3):
        driver.grant(attempt, request=attempt)
        commands = driver.worker_died(attempt)
    assert retries(commands) == []
    assert error_of(driver, oid(1)) == f"f (task 01010101) was lost: {CRASH.message} It was tried 3 times."


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
    commands = driver.finish(1, failed=RAISED)
    assert of(commands, CopyPayload) == [
        CopyPayload(source=exception_id(tid(1)), target=oid(1, index)) for index in range(3)
    ]
    assert commands[-1] == DropPayload(key=exception_id(tid(1)))


# ---- Errors that nobody reads --------------------------------------------------------------------------------------


def told(commands):
    return [(failure.task_id[0], failure.error) for failure in of(commands, TellFailure)]


def told_of(driver, *object_ids):
    return told(driver(RefsDropped(object_ids=object_ids)))


def test_an_error_is_told_when_its_last_reference_goes_unread(driver):
    assert told(driver.run(1, failed=RAISED)) == []
    assert told_of(driver, oid(1)) == [(1, RAISED)]


def test_an_error_that_is_too_late_for_every_reference_is_told_at_once(driver):
    driver.submit(task(1))
    driver.grant()
    assert told_of(driver, oid(1)) == []
    assert told(driver.finish(1, failed=RAISED)) == [(1, RAISED)]


def test_an_error_without_results_is_told_at_once(driver):
    driver.submit(task(1, num_returns=0))
    driver.grant()
    assert told(driver.finish(1, failed=RAISED)) == [(1, RAISED)]


@pytest.mark.parametrize("early", [True, False])
def test_an_error_that_was_read_is_not_told(driver, early):
    driver.submit(task(1))
    driver.grant()
    if early:
        driver.wait(1, ref(oid(1)), read=True)
    driver.finish(1, failed=RAISED)
    if not early:
        driver.wait(1, ref(oid(1)), read=True)
    assert told_of(driver, oid(1)) == []


def test_waiting_for_an_error_is_not_reading_it(driver):
    driver.run(1, failed=RAISED)
    driver.wait(1, ref(oid(1)))
    assert told_of(driver, oid(1)) == [(1, RAISED)]


def test_an_error_of_several_results_is_told_once_and_not_if_one_was_read(driver):
    driver.run(1, failed=RAISED, returns=2)
    assert told_of(driver, oid(1)) == [(1, RAISED)]
    driver.submit(task(2, num_returns=2), task(3, num_returns=2))
    driver.finish(2, failed=RAISED)
    assert told_of(driver, oid(2)) == []
    assert told_of(driver, oid(2, 1)) == [(2, RAISED)]
    driver.finish(3, failed=RAISED)
    driver.wait(1, ref(oid(3, 1)), read=True)
    assert told_of(driver, oid(3), oid(3, 1)) == []


def test_an_error_that_arguments_carry_on_is_told_once_by_the_last_that_has_it(driver):
    driver.submit(task(1), task(2, deps=(ref(oid(1)),)), task(3, deps=(ref(oid(2)),)))
    driver.grant()
    driver.finish(1, failed=RAISED)
    assert told_of(driver, oid(1), oid(2)) == []
    assert told_of(driver, oid(3)) == [(1, RAISED)]


def test_an_error_that_another_process_asked_for_is_its_to_tell(driver):
    driver.run(1, failed=RAISED)
    driver(ValueRequested(object_id=oid(1), requester=OTHER))
    assert told_of(driver, oid(1)) == []


def test_a_retried_error_is_not_told(driver):
    driver.submit(task(1, retry_exceptions=True))
    driver.grant()
    assert told(driver.finish(1, failed=RAISED)) == []
    assert told(driver.finish(1, attempt=1)) == told_of(driver, oid(1)) == []


def test_what_is_unread_at_the_end_is_known(driver):
    driver.run(1, failed=RAISED)
    assert [failure.task_id for failure in driver.machine.values.unread_failures()] == [tid(1)]
    driver.wait(1, ref(oid(1)), read=True)
    assert driver.machine.values.unread_failures() == []


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
    assert error_of(driver, oid(2)) == error_of(driver, oid(1))


def test_an_argument_that_raised_hands_on_its_exception(driver):
    driver.submit(task(1), task(2, deps=(ref(oid(1)),)), task(3, deps=(ref(oid(2)),)))
    driver.grant()
    assert of(driver.finish(1, failed=RAISED), CopyPayload) == [
        CopyPayload(source=exception_id(tid(1)), target=oid(1)),
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


# ---- Reconstruction --------------------------------------------------------------------------------------------------


def stored_chain(driver: OwnerStepper, *, max_retries: int = 3) -> None:
    """Task 1 makes a large object, task 2 another of it; nobody holds the first any more."""
    driver.run(1, inline=False, max_retries=max_retries)
    driver.run(2, lease=1, deps=(ref(oid(1)),), inline=False, max_retries=max_retries)
    driver(dropped(oid(1)))


def failures(commands) -> list[tuple[bytes, ErrorKind]]:
    """Of which objects the head was told that they will not come."""
    return [(failed.object_id, failed.error.kind) for failed in sent(commands, ObjectFailed, HEAD)]


def test_a_stored_object_that_was_lost_is_made_again_when_it_is_demanded(driver):
    driver.run(1, inline=False)
    commands = demanded(driver, oid(1))
    assert retries(commands) == [(1, 1, "reconstruction")]
    assert pushes(commands) == [(1, 1, WORKER)]


def test_nothing_is_made_again_before_it_is_demanded(driver):
    driver.run(1, inline=False, max_retries=3)
    assert retries(driver.node_died("node-0")) == []


def test_readers_wait_for_the_copy_that_is_being_made(driver):
    driver.run(1, inline=False)
    demanded(driver, oid(1))
    assert completed(driver.wait(1, ref(oid(1)), fetch=False)) == []
    assert completed(driver.finish(1, attempt=1, inline=False)) == [(1, (oid(1),))]


def test_a_demand_for_a_loss_that_was_answered_is_old_news(driver):
    driver.run(1, inline=False)
    demanded(driver, oid(1), losses=1)
    driver.finish(1, attempt=1, inline=False)
    assert retries(demanded(driver, oid(1), losses=1)) == []
    assert retries(demanded(driver, oid(1), losses=2)) == [(1, 2, "reconstruction")]


def test_a_demand_before_any_loss_means_that_the_copy_is_on_its_way(driver):
    driver.run(1, inline=False)
    assert retries(demanded(driver, oid(1), losses=0)) == []


@pytest.fixture
def sealed_elsewhere(driver) -> OwnerStepper:
    """A driver whose task 1 has sealed its result on node-1."""
    driver.submit(task(1))
    driver.grant(node="node-1")
    driver.finish(1, worker="node-1/w0", inline=False)
    return driver


def asks_again(commands) -> bool:
    return sent(commands, LocationsWanted, HEAD) == [
        LocationsWanted(object_id=oid(1), owner=DRIVER, node=NODE, by_owner=True)
    ]


@pytest.mark.parametrize("demand_first", [False, True])
def test_a_demand_before_any_loss_has_the_head_asked_again_when_who_sealed_it_is_dead(sealed_elsewhere, demand_first):
    """Then the news of the copy has arrived there by now, or never will."""
    if demand_first:
        assert not asks_again(demanded(sealed_elsewhere, oid(1), losses=0))
        assert asks_again(sealed_elsewhere.node_died("node-1"))
    else:
        assert not asks_again(sealed_elsewhere.node_died("node-1"))
        assert asks_again(demanded(sealed_elsewhere, oid(1), losses=0))


def test_an_object_of_which_the_head_knows_no_copy_when_it_is_asked_again_is_made_again(sealed_elsewhere):
    sealed_elsewhere.node_died("node-1")
    assert retries(demanded(sealed_elsewhere, oid(1), losses=0)) == []
    assert retries(demanded(sealed_elsewhere, oid(1), losses=0, asked=True)) == [(1, 1, "reconstruction")]


def test_a_demand_for_another_node_is_no_answer_to_the_owners_question(sealed_elsewhere):
    """The head had sent it before it was asked, and may know of a copy meanwhile."""
    sealed_elsewhere.node_died("node-1")
    demanded(sealed_elsewhere, oid(1), losses=0)
    assert demanded(sealed_elsewhere, oid(1), losses=0) == []


def test_a_demand_while_the_object_is_being_made_starts_nothing(driver):
    driver.submit(task(1))
    driver.grant()
    assert retries(demanded(driver, oid(1))) == []
    demanded(driver, oid(1))
    assert failures(driver.finish(1, inline=False)) == []


def test_a_lost_object_whose_arguments_were_freed_is_made_with_them_in_order(driver):
    stored_chain(driver)
    commands = demanded(driver, oid(2))
    assert retries(commands) == [(1, 1, "reconstruction"), (2, 1, "reconstruction")]
    assert [number for number, _, _ in pushes(commands)] == [1]
    assert [number for number, _, _ in pushes(driver.finish(1, attempt=1, inline=False))] == [2]


def test_an_argument_that_was_made_for_lineage_alone_is_freed_again(driver):
    stored_chain(driver)
    demanded(driver, oid(2))
    driver.finish(1, attempt=1, inline=False)
    commands = driver.finish(2, attempt=1, worker="node-0/w1", inline=False)
    assert sent(commands, ObjectsFreed) == [ObjectsFreed(object_ids=(oid(1),))]


def test_an_object_that_was_put_cannot_be_made_again(driver):
    driver.put(1, inline=False)
    assert failures(demanded(driver, put_id(1))) == [(put_id(1), ErrorKind.RECONSTRUCTION_FAILED)]
    assert error_of(driver, put_id(1)) == (
        "Object 00000000:80000001 was lost and cannot be made again: "
        "object 00000000:80000001 was put, and no task can make it again."
    )


def test_the_result_of_a_task_without_attempts_cannot_be_made_again(driver):
    driver.run(1, inline=False, max_retries=0)
    commands = demanded(driver, oid(1))
    assert failures(commands) == [(oid(1), ErrorKind.RECONSTRUCTION_FAILED)]
    assert retries(commands) == []
    assert "has no attempt left" in error_of(driver, oid(1))


def test_making_again_uses_up_the_attempts(driver):
    driver.run(1, inline=False, max_retries=1)
    demanded(driver, oid(1), losses=1)
    driver.finish(1, attempt=1, inline=False)
    assert failures(demanded(driver, oid(1), losses=2)) == [(oid(1), ErrorKind.RECONSTRUCTION_FAILED)]


def test_another_result_of_a_task_that_runs_again_already_is_made_by_the_same_attempt(driver):
    driver.submit(task(1, num_returns=2))
    driver.grant()
    driver.finish(1, returns=2, inline=False)
    assert retries(demanded(driver, oid(1, 0))) == [(1, 1, "reconstruction")]
    commands = demanded(driver, oid(1, 1))
    assert retries(commands) == failures(commands) == []
    driver.wait(1, ref(oid(1, 1)), fetch=False)
    assert completed(driver.finish(1, attempt=1, returns=2, inline=False)) == [(1, (oid(1, 1),))]


def test_who_waits_for_an_object_that_cannot_be_made_again_is_told(driver):
    driver.put(1, inline=False)
    driver.wait(1, ref(put_id(1)))
    assert completed(demanded(driver, put_id(1))) == [(1, (put_id(1),))]


def test_a_small_argument_is_kept_for_lineage_and_not_made_again(driver):
    driver.run(1)
    driver.run(2, deps=(ref(oid(1)),), inline=False)
    driver(dropped(oid(1)))
    commands = demanded(driver, oid(2))
    assert retries(commands) == [(2, 1, "reconstruction")]
    assert len(pushes(commands)) == 1


def test_a_demand_for_an_object_that_was_freed_is_answered_with_failure(driver):
    driver.run(1, inline=False)
    driver(dropped(oid(1)))
    assert failures(demanded(driver, oid(1))) == [(oid(1), ErrorKind.OBJECT_LOST)]


def test_a_result_that_comes_out_small_when_it_is_made_again_is_said_to_be_no_object_of_the_stores(driver):
    driver.run(1, inline=False)
    demanded(driver, oid(1))
    assert failures(driver.finish(1, attempt=1)) == [(oid(1), ErrorKind.RECONSTRUCTION_FAILED)]


def test_a_task_that_fails_when_it_runs_again_fails_its_result(driver):
    driver.run(1, inline=False)
    demanded(driver, oid(1))
    assert failures(driver.finish(1, attempt=1, failed=RAISED)) == [(oid(1), ErrorKind.APPLICATION)]


def test_other_results_of_the_task_that_are_still_there_are_left_alone(driver):
    driver.submit(task(1, num_returns=2))
    driver.grant()
    driver.finish(1, returns=2, inline=False)
    demanded(driver, oid(1, 0))
    assert driver.machine.values.table[oid(1, 1)].state is ValueState.STORED
    driver.finish(1, attempt=1, returns=2, inline=False)
    assert driver.machine.values.table[oid(1, 0)].state is ValueState.STORED


# ---- References ------------------------------------------------------------------------------------------------------


def test_a_small_value_is_dropped_with_its_last_reference(driver):
    driver.put(1)
    assert driver(dropped(put_id(1))) == [DropPayload(key=put_id(1))]
    assert not driver.machine.values.table


def test_a_stored_value_is_freed_at_the_head_with_its_last_reference(driver):
    driver.put(1, inline=False)
    assert driver(dropped(put_id(1))) == [Send(to=HEAD, message=ObjectsFreed(object_ids=(put_id(1),)))]


def test_a_value_stays_while_a_reference_is_left(driver):
    driver.put(1)
    driver(RefsAdded(refs=(ref(put_id(1)),)))
    assert driver(dropped(put_id(1))) == []
    assert driver(dropped(put_id(1))) == [DropPayload(key=put_id(1))]


def test_a_result_that_nobody_wants_any_more_is_dropped_when_it_comes(driver):
    driver.submit(task(1))
    driver.grant()
    assert driver(dropped(oid(1))) == []
    assert DropPayload(key=oid(1)) in driver.finish(1)
    assert not driver.machine.values.table
    assert not driver.machine.tasks.records


def test_a_large_result_that_nobody_wants_any_more_is_freed_when_it_comes(driver):
    driver.submit(task(1))
    driver.grant()
    driver(dropped(oid(1)))
    assert sent(driver.finish(1, inline=False), ObjectsFreed) == [ObjectsFreed(object_ids=(oid(1),))]


def test_an_argument_lives_until_its_task_has_finished(driver):
    driver.put(1)
    driver.submit(task(1, nested=(ref(put_id(1)),)))
    driver.grant()
    assert driver(dropped(put_id(1))) == []
    assert DropPayload(key=put_id(1)) in driver.finish(1)


def test_the_arguments_payload_goes_when_the_task_can_not_run_again(driver):
    driver.submit(task(1))
    driver.grant()
    assert DropPayload(key=tid(1)) in driver.finish(1)


def test_the_arguments_payload_stays_while_a_large_result_may_have_to_be_made_again(driver):
    assert DropPayload(key=tid(1)) not in driver.run(1, inline=False)
    assert DropPayload(key=tid(1)) in driver(dropped(oid(1)))


def test_a_value_lives_in_the_values_that_contain_it(driver):
    driver.put(1)
    driver.put(2, nested=(ref(put_id(1)),))
    assert driver(dropped(put_id(1))) == []
    assert driver(dropped(put_id(2))) == [DropPayload(key=put_id(2)), DropPayload(key=put_id(1))]


def borrowed(object_id, borrower: str = OTHER) -> BorrowAdded:
    return BorrowAdded(object_id=object_id, borrower=Address(borrower))


def test_a_borrower_is_noted_acknowledged_and_keeps_the_value(driver):
    driver.put(1)
    assert sends(driver(borrowed(put_id(1)))) == [(OTHER, "BorrowAcknowledged")]
    assert driver(dropped(put_id(1))) == []
    removed = driver(BorrowRemoved(object_id=put_id(1), borrower=OTHER))
    assert removed == [DropPayload(key=put_id(1))]


def test_a_borrow_of_what_is_gone_is_acknowledged_too(driver):
    assert sends(driver(borrowed(put_id(1)))) == [(OTHER, "BorrowAcknowledged")]


@pytest.mark.parametrize(
    "death",
    [
        OwnerDied(address=OTHER),
        NodeDied(node=NodeID("node-1"), incarnation=0),
        NodeDied(node=NodeID("node-1"), incarnation=3),
    ],
)
def test_a_borrower_that_died_keeps_nothing(driver, death):
    driver.put(1)
    driver(borrowed(put_id(1)), dropped(put_id(1)))
    assert driver(death) == [DropPayload(key=put_id(1))]


def test_a_borrow_that_comes_after_the_news_of_the_borrowers_death_keeps_nothing(driver):
    """The node manager, which is asked about everybody who is met, knows of it."""
    node = NodeStepper()
    driver.put(1)
    driver(borrowed(put_id(1)))
    (first,) = sent(driver(OwnerDied(address=OTHER), borrowed(put_id(1))), PeerMet, NODE)
    node(OwnerDied(address=OTHER))
    driver(dropped(put_id(1)))
    assert driver(*sent(node(first), OwnerDied, DRIVER)) == [DropPayload(key=put_id(1))]


def test_the_death_of_an_earlier_life_of_a_borrowers_node_changes_nothing(driver):
    driver.put(1)
    driver(borrowed(put_id(1), "node-1~2/w0"), dropped(put_id(1)))
    assert driver(NodeDied(node=NodeID("node-1"), incarnation=1)) == []


def test_a_reference_from_elsewhere_is_borrowed_once(driver):
    commands = driver(RefsAdded(refs=(ref(oid(9), OTHER), ref(oid(9), OTHER))))
    assert sends(commands) == [(OTHER, "BorrowAdded")]
    driver.acknowledged(oid(9))
    assert driver(dropped(oid(9))) == []
    assert sends(driver(dropped(oid(9)))) == [(OTHER, "BorrowRemoved")]


def test_a_borrow_that_ends_before_it_was_acknowledged_ends_at_once(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    assert sends(driver(dropped(oid(9)))) == [(OTHER, "BorrowRemoved")]


def test_no_borrow_ends_while_another_is_not_acknowledged(driver):
    """It may be what keeps that other object alive."""
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.acknowledged(oid(9))
    driver(RefsAdded(refs=(ref(oid(8), "node-2/w0"),)))
    assert driver(dropped(oid(9))) == []
    assert sends(driver.acknowledged(oid(8))) == [(OTHER, "BorrowRemoved")]


def test_a_borrow_whose_end_was_held_back_and_that_began_anew_does_not_end(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.acknowledged(oid(9))
    driver(RefsAdded(refs=(ref(oid(8), "node-2/w0"),)), dropped(oid(9)), RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.acknowledged(oid(8))
    assert sent(driver.acknowledged(oid(9)), BorrowRemoved) == []


def test_an_owner_that_dies_takes_what_was_not_read_with_it(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.wait(1, ref(oid(9), OTHER))
    commands = driver(OwnerDied(address=OTHER))
    assert completed(commands) == [(1, (oid(9),))]
    assert driver.machine.values.table[oid(9)].error.kind is ErrorKind.OWNER_DIED
    assert error_of(driver, oid(9)).startswith("Object 09090909:0 is lost: node-1/w0, which owned it, died. Keep ")


def test_a_small_value_outlives_its_owner_where_it_was_read(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.wait(1, ref(oid(9), OTHER))
    driver(ValueReported(object_id=oid(9), state=ValueState.INLINE, size_bytes=10), OwnerDied(address=OTHER))
    assert driver.machine.values.table[oid(9)].state is ValueState.INLINE


def test_an_owner_answers_with_the_bytes_when_the_value_is_small(driver):
    driver.put(1)
    assert driver(ValueRequested(object_id=put_id(1), requester=OTHER)) == [
        Send(
            to=OTHER,
            message=ValueReported(object_id=put_id(1), state=ValueState.INLINE, size_bytes=10),
            payloads=(put_id(1),),
        )
    ]


def test_an_owner_answers_with_the_place_when_the_value_is_large(driver):
    driver.put(1, inline=False)
    (answer,) = of(driver(ValueRequested(object_id=put_id(1), requester=OTHER)), Send)
    assert answer.message == ValueReported(object_id=put_id(1), state=ValueState.STORED, size_bytes=1000)
    assert answer.payloads == ()


def test_an_owner_answers_with_the_exception_when_the_task_raised(driver):
    driver.run(1, failed=RAISED)
    (answer,) = of(driver(ValueRequested(object_id=oid(1), requester=OTHER)), Send)
    assert answer.message == ValueReported(object_id=oid(1), state=ValueState.FAILED, size_bytes=0, error=RAISED)
    assert answer.payloads == (oid(1),)


def test_an_owner_answers_once_the_value_is_ready(driver):
    driver.submit(task(1))
    driver.grant()
    assert sent(driver(ValueRequested(object_id=oid(1), requester=OTHER)), ValueReported) == []
    assert [answer.state for answer in sent(driver.finish(1), ValueReported, OTHER)] == [ValueState.INLINE]


def test_an_owner_answers_for_what_it_has_freed_with_failure(driver):
    (answer,) = sent(driver(ValueRequested(object_id=oid(1), requester=OTHER)), ValueReported)
    assert (answer.state, answer.error.kind) == (ValueState.FAILED, ErrorKind.OBJECT_LOST)


def test_a_reference_of_ours_that_comes_back_after_we_freed_it_fails(driver):
    driver(RefsAdded(refs=(ref(oid(1)),)))
    assert completed(driver.wait(1, ref(oid(1)))) == [(1, (oid(1),))]
    assert error_of(driver, oid(1)) == "Object 01010101:0 was freed: its last reference had been dropped."
    driver(dropped(oid(1)))
    assert not driver.machine.values.table


def test_an_answer_that_nobody_waits_for_any_more_is_dropped(driver):
    reported = ValueReported(object_id=oid(9), state=ValueState.INLINE, size_bytes=10)
    assert driver(reported) == [DropPayload(key=oid(9))]


def test_results_that_carry_references_are_taken_when_their_owner_has_acknowledged(driver):
    driver.submit(task(1))
    driver.grant()
    commands = driver.finish(1, nested=(ref(oid(7), WORKER),))
    assert sends(commands) == [(WORKER, "BorrowAdded")]
    assert sends(driver.acknowledged(oid(7))) == [(WORKER, "ResultsTaken")]


def test_results_that_carry_references_of_our_own_are_taken_at_once(driver):
    driver.put(1)
    driver.submit(task(1))
    driver.grant()
    assert sends(driver.finish(1, nested=(ref(put_id(1)),))) == [(WORKER, "ResultsTaken")]


# ---- Waits -----------------------------------------------------------------------------------------------------------


def test_a_wait_for_what_is_ready_ends_at_once(driver):
    driver.put(1)
    assert driver.wait(1, ref(put_id(1))) == [CompleteWait(wait_id=WaitID(1), ready=(put_id(1),))]


def test_a_wait_ends_when_enough_is_ready_and_says_what_is(driver):
    driver.submit(task(1), task(2), task(3))
    for number in range(3):
        driver.grant(number, request=number)
    assert completed(driver.wait(1, ref(oid(1)), ref(oid(2)), ref(oid(3)), num_ready=2)) == []
    assert completed(driver.finish(3, worker="node-0/w2")) == []
    assert completed(driver.finish(1)) == [(1, (oid(1), oid(3)))]


def test_a_wait_that_finds_more_than_it_asked_for_says_so(driver):
    driver.put(1)
    driver.put(2)
    assert completed(driver.wait(1, ref(put_id(2)), ref(put_id(1)), num_ready=1)) == [(1, (put_id(2), put_id(1)))]


def test_what_is_stored_somewhere_is_ready_for_a_wait_that_does_not_fetch(driver):
    driver.run(1, inline=False)
    assert completed(driver.wait(1, ref(oid(1)), fetch=False)) == [(1, (oid(1),))]


def test_what_is_stored_somewhere_is_brought_here_for_a_wait_that_fetches(driver):
    driver.run(1, inline=False)
    commands = driver.wait(1, ref(oid(1)))
    assert sent(commands, ObjectWanted, NODE) == [ObjectWanted(object_id=oid(1), owner=DRIVER, requester=DRIVER)]
    commands = driver.arrived(oid(1))
    assert completed(commands) == [(1, (oid(1),))]
    assert sends(commands) == [(NODE, "ObjectReleased")]


def test_what_was_read_stays_pinned_until_its_last_view_is_gone(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)), read=True)
    assert sent(driver.arrived(oid(1)), ObjectReleased) == []
    assert completed(driver.wait(2, ref(oid(1)), read=True)) == [(2, (oid(1),))]
    assert driver(ViewReleased(object_id=oid(1))) == []
    assert sends(driver(ViewReleased(object_id=oid(1)))) == [(NODE, "ObjectReleased")]


def test_a_view_outlives_the_references(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)), read=True)
    driver.arrived(oid(1))
    assert sends(driver(dropped(oid(1)))) == [(HEAD, "ObjectsFreed")]
    assert sends(driver(ViewReleased(object_id=oid(1)))) == [(NODE, "ObjectReleased")]


def test_two_waits_bring_an_object_here_once(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)))
    assert sent(driver.wait(2, ref(oid(1))), ObjectWanted) == []
    assert completed(driver.arrived(oid(1))) == [(1, (oid(1),)), (2, (oid(1),))]


def test_a_read_ends_early_when_one_of_its_objects_has_failed(driver):
    driver.submit(task(1), task(2))
    driver.grant(0, request=0)
    driver.grant(1, request=1)
    driver.wait(1, ref(oid(1)), ref(oid(2)), read=True)
    assert completed(driver.finish(2, worker="node-0/w1", failed=RAISED)) == [(1, (oid(2),))]


def test_a_wait_counts_what_has_failed_as_ready(driver):
    driver.submit(task(1), task(2))
    driver.grant()
    driver.wait(1, ref(oid(1)), ref(oid(2)))
    assert completed(driver.finish(1, failed=RAISED)) == []


def test_a_wait_ends_at_its_timeout_with_what_is_ready(driver):
    driver.put(1)
    driver.submit(task(2))
    commands = driver.wait(7, ref(put_id(1)), ref(oid(2)), timeout_ns=5 * MS)
    assert of(commands, ArmTimer) == [ArmTimer(timer="wait:7", delay_ns=5 * MS)]
    assert driver(TimerFired(timer="wait:7")) == [CompleteWait(wait_id=WaitID(7), ready=(put_id(1),))]


def test_a_wait_that_ends_before_its_timeout_stops_the_clock(driver):
    driver.submit(task(1))
    driver.grant()
    driver.wait(7, ref(oid(1)), timeout_ns=5 * MS)
    assert CancelTimer(timer="wait:7") in driver.finish(1)
    assert driver(TimerFired(timer="wait:7")) == []


def test_timeout_0_asks_what_is_ready_now(driver):
    driver.submit(task(1))
    commands = driver.wait(1, ref(oid(1)), timeout_ns=0)
    assert completed(commands) == [(1, ())]
    assert of(commands, ArmTimer) == []


def test_a_task_that_waits_lends_its_cpu(worker):
    worker.pushed(task(1, owner=OTHER))
    worker.submit(task(2, owner=WORKER))
    assert sends(worker.wait(1, ref(oid(2), WORKER), of_task=1)) == [(NODE, "WorkerBlocked")]
    worker.grant(5)
    assert sent(worker.finish(2, worker="node-0/w5"), WorkerUnblocked) == [WorkerUnblocked(worker=WORKER)]


def test_a_task_that_finds_what_it_waits_for_keeps_its_cpu(worker):
    worker.pushed(task(1, owner=OTHER))
    worker.put(1)
    assert sent(worker.wait(1, ref(put_id(1), WORKER), of_task=1), WorkerBlocked) == []


def test_a_driver_that_waits_has_no_cpu_to_lend(driver):
    driver.submit(task(1))
    assert sent(driver.wait(1, ref(oid(1))), WorkerBlocked) == []


def test_an_object_that_can_not_come_fails_the_borrowers_wait(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.wait(1, ref(oid(9), OTHER))
    driver(ValueReported(object_id=oid(9), state=ValueState.STORED, size_bytes=1000))
    lost = error(ErrorKind.OBJECT_LOST, "gone")
    assert completed(driver(ObjectUnavailable(object_id=oid(9), error=lost))) == [(1, (oid(9),))]
    assert error_of(driver, oid(9)) == "gone"


def test_an_object_for_which_there_is_no_room_now_may_be_asked_for_again(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)))
    full = error(ErrorKind.STORE_FULL, "full")
    assert completed(driver(ObjectUnavailable(object_id=oid(1), error=full))) == [(1, (oid(1),))]
    assert error_of(driver, oid(1)) == "full"
    assert sends(driver.wait(2, ref(oid(1)))) == [(NODE, "ObjectWanted")]
    assert completed(driver.arrived(oid(1))) == [(2, (oid(1),))]


# ---- Room in the store -----------------------------------------------------------------------------------------------


def space_wanted(wait_id: int) -> SpaceWanted:
    return SpaceWanted(wait_id=WaitID(wait_id), object_id=oid(1), size_bytes=500, owner=OTHER, remakeable=True)


def test_room_is_asked_of_the_nodes_store(worker):
    assert worker(space_wanted(1)) == [
        Send(
            to=Address(NODE),
            message=SpaceRequested(object_id=oid(1), size_bytes=500, owner=OTHER, requester=WORKER, remakeable=True),
        )
    ]


def test_room_that_was_granted_lets_the_writer_write(worker):
    worker(space_wanted(1))
    assert completed(worker(SpaceGranted(object_id=oid(1)))) == [(1, (oid(1),))]
    assert sends(worker(SpaceWritten(object_id=oid(1)))) == [(NODE, "ObjectSealed")]


def test_what_is_there_already_is_not_written_again(worker):
    worker(space_wanted(1))
    assert completed(worker(SpaceGranted(object_id=oid(1), present=True))) == [(1, ())]


def test_room_for_a_put_that_was_abandoned_is_freed_when_it_comes(driver):
    driver(space_wanted(1))
    assert driver(PutAbandoned(object_id=oid(1))) == []
    assert sends(driver(SpaceGranted(object_id=oid(1)))) == [(NODE, "ObjectSealed"), (HEAD, "ObjectsFreed")]


def test_room_that_a_put_had_when_it_was_abandoned_is_freed(driver):
    driver(space_wanted(1))
    driver(SpaceGranted(object_id=oid(1)))
    assert sends(driver(PutAbandoned(object_id=oid(1)))) == [(NODE, "ObjectSealed"), (HEAD, "ObjectsFreed")]


def test_a_value_whose_put_was_abandoned_at_its_end_is_let_go(driver):
    driver.put(1, inline=False)
    assert (HEAD, "ObjectsFreed") in sends(driver(PutAbandoned(object_id=put_id(1))))
    assert put_id(1) not in driver.machine.values.table


def test_a_wait_that_was_abandoned_completes_no_more(driver):
    driver.run(1)
    driver.submit(task(2))
    driver.wait(1, ref(oid(1)), ref(oid(2)), read=True)
    driver(dropped(oid(1)))
    driver(WaitAbandoned(wait_id=WaitID(1)))
    assert completed(driver.finish(2)) == []


def test_room_that_was_denied_fails_the_writer(worker):
    worker(space_wanted(1))
    full = error(ErrorKind.STORE_FULL)
    assert worker(SpaceDenied(object_id=oid(1), error=full)) == [CompleteWait(wait_id=WaitID(1), error=full)]


def test_two_writers_of_one_object_are_answered_in_turn(worker):
    worker(space_wanted(1), space_wanted(2))
    assert completed(worker(SpaceGranted(object_id=oid(1)))) == [(1, (oid(1),))]
    assert completed(worker(SpaceGranted(object_id=oid(1), present=True))) == [(2, ())]


def test_a_large_put_is_sealed_and_its_owner_knows_it_stored(driver):
    assert sent(driver.put(1, inline=False), ObjectSealed) == [ObjectSealed(object_id=put_id(1), requester=DRIVER)]
    assert driver.machine.values.table[put_id(1)].state is ValueState.STORED


# ---- Actors ----------------------------------------------------------------------------------------------------------

HOME = "node-1/w3"


@pytest.fixture
def actor(driver) -> OwnerStepper:
    """A driver that has made actor 1, which is not placed yet."""
    driver.submit(constructor(1))
    return driver


@pytest.fixture
def alive(actor) -> OwnerStepper:
    actor.actor_is(1, ActorState.ALIVE, worker=HOME)
    return actor


def call(number: int, **options):
    return task(number, actor=1, resources=NOTHING, max_retries=options.pop("max_task_retries", 0), **options)


GONE = error(ErrorKind.ACTOR_DIED, "Actor 01010101 has ended: It was killed.")
AWAY = error(ErrorKind.ACTOR_UNAVAILABLE, "Node node-1 died.")


def test_an_actor_is_registered_with_the_head_with_its_arguments_beside(driver):
    driver.put(1)
    commands = driver.submit(constructor(1, deps=(ref(put_id(1)),)))
    registered = ActorRegistered(spec=constructor(1, deps=(ref(put_id(1)),)), inline_deps=(put_id(1),))
    assert Send(to=HEAD, message=registered, payloads=(tid(1), put_id(1))) in commands
    assert sent(commands, ActorSubscribed, HEAD) == [ActorSubscribed(actor_id=aid(1), subscriber=DRIVER)]
    assert sent(commands, LeaseRequested) == []


def test_an_actor_whose_argument_fails_is_never_made(driver):
    driver.submit(task(2), constructor(1, deps=(ref(oid(2)),)))
    driver.grant()
    commands = driver.finish(2, failed=RAISED)
    assert sent(commands, ActorFailed, HEAD) == [ActorFailed(actor_id=aid(1), owner=DRIVER, error=RAISED)]


def test_calls_wait_until_the_actor_is_alive_and_go_in_order(actor):
    assert pushes(actor.submit(call(2), call(3))) == []
    commands = actor.actor_is(1, ActorState.ALIVE, worker=HOME)
    assert pushes(commands) == [(2, 0, HOME), (3, 0, HOME)]


def test_a_call_goes_straight_to_the_actors_worker(alive):
    assert sends(alive.submit(call(2))) == [(HOME, "TaskPushed")]


def test_a_call_that_waits_for_an_argument_holds_back_those_behind_it(alive):
    alive.submit(task(5))
    alive.grant()
    assert pushes(alive.submit(call(2, deps=(ref(oid(5)),)), call(3))) == []
    assert pushes(alive.finish(5)) == [(2, 0, HOME), (3, 0, HOME)]


def test_a_call_whose_argument_failed_lets_those_behind_it_go(alive):
    alive.submit(task(5))
    alive.grant()
    alive.submit(call(2, deps=(ref(oid(5)),)), call(3))
    assert pushes(alive.finish(5, failed=RAISED)) == [(3, 0, HOME)]


def test_a_handle_from_elsewhere_asks_the_head_where_the_actor_is(driver):
    commands = driver.submit(call(2))
    assert sent(commands, ActorSubscribed, HEAD) == [ActorSubscribed(actor_id=aid(1), subscriber=DRIVER)]


def test_calls_that_may_not_be_repeated_fail_when_the_actor_restarts(alive):
    alive.submit(call(2, name="Actor.step"))
    alive.wait(1, ref(oid(2)))
    commands = alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    assert completed(commands) == [(1, (oid(2),))]
    assert error_of(alive, oid(2)) == (
        "Actor 01010101 was lost while it had the call Actor.step (task 02020202): Node node-1 died. "
        "It restarts; set max_task_retries to have such calls repeated."
    )
    assert alive.machine.values.table[oid(2)].error.kind is ErrorKind.ACTOR_UNAVAILABLE


def test_calls_that_may_be_repeated_go_to_the_next_life_before_those_made_since(alive):
    alive.submit(call(2, max_task_retries=1), call(3), call(4, max_task_retries=1))
    commands = alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    assert retries(commands) == [(2, 1, "retry"), (4, 1, "retry")]
    alive.submit(call(5))
    assert pushes(alive.actor_is(1, ActorState.ALIVE, life=1, worker="node-2/w0")) == [
        (2, 1, "node-2/w0"),
        (4, 1, "node-2/w0"),
        (5, 0, "node-2/w0"),
    ]


def test_calls_made_while_the_actor_restarts_wait_for_it(alive):
    alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    assert pushes(alive.submit(call(2))) == []
    assert pushes(alive.actor_is(1, ActorState.ALIVE, life=1, worker=HOME)) == [(2, 0, HOME)]


def test_calls_in_flight_are_lost_also_when_the_news_of_the_restart_is_the_next_life(alive):
    alive.submit(call(2, max_task_retries=1))
    commands = alive.actor_is(1, ActorState.ALIVE, life=1, worker="node-2/w0")
    assert pushes(commands) == [(2, 1, "node-2/w0")]


def test_when_the_actor_has_died_sent_and_waiting_calls_fail_with_its_reason(alive):
    alive.submit(task(5), call(2, max_task_retries=5), call(3, deps=(ref(oid(5)),)))
    alive.wait(1, ref(oid(2)), ref(oid(3)))
    assert completed(alive.actor_is(1, ActorState.DEAD, failed=GONE)) == [(1, (oid(2), oid(3)))]
    assert error_of(alive, oid(2)) == error_of(alive, oid(3)) == GONE.message


def test_a_call_to_an_actor_that_has_died_fails_at_once(alive):
    alive.actor_is(1, ActorState.DEAD, failed=GONE)
    alive.submit(call(2))
    assert error_of(alive, oid(2)) == GONE.message


def test_death_is_final(alive):
    alive.actor_is(1, ActorState.DEAD, failed=GONE)
    alive.actor_is(1, ActorState.ALIVE, life=1, worker=HOME)
    assert pushes(alive.submit(call(2))) == []


def test_news_of_an_earlier_life_is_old(alive):
    alive.actor_is(1, ActorState.ALIVE, life=1, worker="node-2/w0")
    alive.actor_is(1, ActorState.RESTARTING, life=0, failed=AWAY)
    assert pushes(alive.submit(call(2))) == [(2, 0, "node-2/w0")]


def test_an_answer_of_an_earlier_life_is_dropped(alive):
    alive.submit(call(2, max_task_retries=1))
    alive.actor_is(1, ActorState.ALIVE, life=1, worker="node-2/w0")
    assert alive.finish(2, worker=HOME) == [DropPayload(key=oid(2))]
    assert alive.machine.values.table[oid(2)].state is ValueState.PENDING


def test_an_answered_call_is_not_lost_with_the_actor(alive):
    alive.submit(call(2))
    alive.finish(2, worker=HOME)
    alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    assert alive.machine.values.table[oid(2)].state is ValueState.INLINE


def test_a_method_that_raised_is_called_again_when_it_asks_for_that(alive):
    alive.submit(call(2, max_task_retries=1, retry_exceptions=True))
    assert pushes(alive.finish(2, worker=HOME, failed=RAISED)) == [(2, 1, HOME)]
    alive.finish(2, attempt=1, worker=HOME, failed=RAISED)
    assert alive.machine.values.table[oid(2)].error.kind is ErrorKind.APPLICATION


def test_a_call_whose_result_was_lost_is_made_again_before_those_that_wait(alive):
    alive.submit(call(2, max_task_retries=1))
    alive.finish(2, worker=HOME, inline=False)
    alive.submit(task(5), call(3, deps=(ref(oid(5)),)), call(4))
    commands = demanded(alive, oid(2))
    assert pushes(commands) == [(2, 1, HOME)]
    assert [pushed.again for pushed in sent(commands, TaskPushed)] == [True]


def test_the_last_handle_ends_the_actor(alive):
    assert sent(alive(dropped(oid(1))), ActorOutOfScope, HEAD) == [ActorOutOfScope(actor_id=aid(1))]


def test_a_call_that_is_not_finished_keeps_the_actor(alive):
    spec = call(2)
    spec.actor_handle = ref(oid(1))
    alive.submit(spec)
    assert sent(alive(dropped(oid(1))), ActorOutOfScope) == []
    assert len(sent(alive.finish(2, worker=HOME), ActorOutOfScope)) == 1


def test_the_arguments_of_the_constructor_are_kept_until_the_actor_has_died(driver):
    driver.put(1)
    driver.submit(constructor(1, deps=(ref(put_id(1)),)))
    driver.actor_is(1, ActorState.ALIVE, worker=HOME)
    assert DropPayload(key=put_id(1)) not in driver(dropped(put_id(1), oid(1)))
    assert DropPayload(key=put_id(1)) in driver.actor_is(1, ActorState.DEAD, failed=GONE)
    assert not driver.machine.tasks.records


def test_an_actor_that_was_killed_before_its_arguments_were_ready_lets_go_of_them(driver):
    driver.submit(task(2), constructor(1, deps=(ref(oid(2)),)))
    driver.grant()
    driver.actor_is(1, ActorState.DEAD, failed=GONE)
    driver(dropped(oid(1), oid(2)))
    commands = driver.finish(2)
    assert sent(commands, ActorRegistered) == []
    assert not driver.machine.tasks.records
    assert not driver.machine.values.table


def test_a_kill_is_the_heads_business(driver):
    killed = driver(ActorKillAsked(actor_id=aid(1), no_restart=False))
    assert killed == [Send(to=HEAD, message=ActorKillRequested(actor_id=aid(1), no_restart=False))]


def test_calls_made_after_a_kill_wait_for_the_news_of_the_death(alive):
    alive(ActorKillAsked(actor_id=aid(1), no_restart=True))
    assert pushes(alive.submit(call(2))) == []
    alive.actor_is(1, ActorState.DEAD, failed=GONE)
    assert error_of(alive, oid(2)) == GONE.message


# ---- The cluster -----------------------------------------------------------------------------------------------------


def test_the_clusters_state_is_asked_of_the_head(driver):
    asked = driver(ClusterStateAsked(wait_id=WaitID(3)))
    assert asked == [Send(to=HEAD, message=ClusterStateRequested(wait_id=WaitID(3), requester=DRIVER))]
    row = NodeState(node=NodeID("node-0"), incarnation=0, alive=True, total=cpus(2), available=cpus(1))
    assert completed(driver(ClusterStateReported(wait_id=WaitID(3), nodes=(row,)))) == [(3, ())]
    assert driver.machine.cluster_state[WaitID(3)] == (row,)


def test_a_demand_that_no_node_could_meet_is_known_before_it_is_submitted(driver):
    assert driver.machine.why_infeasible(shape(cpus(8))) is None  # nothing is known of the cluster yet
    driver(ClusterChanged(nodes=(info("node-0", cpus(2)),)))
    assert driver.machine.why_infeasible(shape(cpus(2))) is None
    assert "node-0, has 2 CPU and lacks 6 CPU" in driver.machine.why_infeasible(shape(cpus(8)))


def test_in_an_open_cluster_no_demand_is_infeasible():
    driver = OwnerStepper(infeasible="wait")
    driver(ClusterChanged(nodes=(info("node-0", cpus(2)),)))
    assert driver.machine.why_infeasible(shape(cpus(8))) is None


# ---- Why does it wait? -----------------------------------------------------------------------------------------------


def why(stepper: OwnerStepper, object_id) -> str:
    return stepper.machine.explanation.of_object(object_id)


def test_why_it_waits_for_its_arguments(driver):
    driver.submit(task(1), task(2, deps=(ref(oid(1)),), name="g"))
    assert why(driver, oid(2)) == (
        "object 02020202:0 is made by g (task 02020202), which waits for its arguments 01010101:0; "
        "object 01010101:0 is made by f (task 01010101), which waits for a worker with 1 CPU"
    )
    assert driver.machine.explanation.first_cause(oid(2)).spec == task(1)


def test_why_it_waits_for_a_node_that_nobody_has(driver):
    driver.submit(task(1, resources=cpus(8)))
    driver(ClusterChanged(nodes=(info("node-0", cpus(2)),)))
    assert "with 8 CPU; it demands 8 CPU; the nearest node, node-0, has 2 CPU and lacks 6 CPU" in why(driver, oid(1))


def test_an_explanation_follows_no_chain_without_end(driver):
    driver.submit(task(1), *(task(number, deps=(ref(oid(number - 1)),)) for number in range(2, 30)))
    assert why(driver, oid(29)).count("which waits for its arguments") == 1 + EXPLAINED_MAX


def test_why_it_waits_for_a_worker(driver):
    driver.submit(task(1, resources=cpus(2, gpus=1)))
    assert why(driver, oid(1)) == (
        "object 01010101:0 is made by f (task 01010101), which waits for a worker with 2 CPU, 1 GPU"
    )


def test_why_it_waits_for_the_worker_that_has_it(driver):
    driver.submit(task(1))
    driver.grant()
    assert why(driver, oid(1)) == "object 01010101:0 is made by f (task 01010101), which node-0/w0 has"


def test_why_it_waits_for_an_actor(actor):
    actor.submit(call(2, name="Actor.step"))
    assert why(actor, oid(2)) == (
        "object 02020202:0 is made by Actor.step (task 02020202), which waits for actor 01010101 (PENDING)"
    )


def test_why_it_waits_for_another_owner(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    assert why(driver, oid(9)) == "object 09090909:0 is owned by node-1/w0, which has not said that it is ready"


def test_why_it_waits_for_the_store(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)))
    assert why(driver, oid(1)) == "object 01010101:0 is in a store and is being brought to node-0"


def test_why_it_waits_for_what_is_not_known(driver):
    assert why(driver, oid(9)) == "object 09090909:0 is not known to driver-1"


def test_a_wait_explains_just_what_it_misses(driver):
    driver.put(1)
    driver.submit(task(2))
    driver.wait(4, ref(put_id(1)), ref(oid(2)))
    assert driver.machine.explanation.of_wait(WaitID(4)) == [why(driver, oid(2))]
    assert driver.machine.explanation.of_wait(WaitID(5)) == []


# ---- A worker's side -------------------------------------------------------------------------------------------------


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


def outcomes(*numbers: int) -> tuple[tuple[TaskID, int, int, int], ...]:
    return tuple((tid(number), 0, 10, MS) for number in numbers)


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
    with pytest.raises(InvariantViolation, match="was not in hand"):
        run(TasksRan(outcomes=outcomes(2)))


def test_when_the_task_in_hand_blocks_those_handed_over_with_it_are_given_back(run):
    run(TasksRan(outcomes=outcomes(1)))
    commands = run.wait(1, ref(oid(9)), of_task=2)
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


def test_a_submitted_task_is_submitted_once(driver):
    driver.submit(task(1))
    with pytest.raises(Exception, match="task 01010101 was submitted twice"):
        driver.machine.handle(TaskSubmitted(spec=task(1)), 0)


def test_a_borrow_from_two_processes_ends_with_the_last(driver):
    driver.put(1)
    driver(borrowed(put_id(1)), borrowed(put_id(1), "node-2/w0"), dropped(put_id(1)))
    assert driver(BorrowRemoved(object_id=put_id(1), borrower=OTHER)) == []
    removed = driver(BorrowRemoved(object_id=put_id(1), borrower=Address("node-2/w0")))
    assert removed == [DropPayload(key=put_id(1))]


def test_an_acknowledgement_of_nothing_is_nothing(driver):
    assert driver(BorrowAcknowledged(object_id=oid(9))) == []
