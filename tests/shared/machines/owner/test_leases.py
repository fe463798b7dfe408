"""The leases of an owner: what it asks for, pushes ahead, gives back, and loses with workers and nodes."""

from __future__ import annotations

import pytest

from dualray.shared.machines.owner.leases import DEFER_NS, IDLE_TIMER, OVERDUE_NS, OVERDUE_TIMER, PUSH_TIMER
from dualray.shared.model.commands import ArmTimer, DropPayload, Send, WriteRecord
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    LeaseGranted,
    LeasePassedOn,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    LeasesGranted,
    LeasesReturned,
    LeaseWanted,
    PlacementGroupRemovalAsked,
    TaskPushed,
    TasksFinished,
    TasksPushed,
    TasksRecalled,
    TasksWanted,
    TimerFired,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, PlacementGroupID, RequestID
from dualray.shared.model.specs import Strategy, StrategyKind
from dualray.shared.model.states import ValueState
from tests.shared.builders import (
    CRASH,
    DRIVER,
    NODE,
    OwnerStepper,
    completed,
    cpus,
    error,
    of,
    oid,
    payloads_of,
    put_id,
    ref,
    sends,
    sent,
    shape,
    task,
    tid,
)
from tests.shared.machines.owner.answers import WORKER, error_of, outcomes, pushes, retries


def pushed_to(stepper: OwnerStepper, number: int) -> str:
    """The worker that has a task."""
    return next(lease.worker for lease in stepper.machine.leases.leases.values() if tid(number) in lease.in_flight)


# ---- Leases ---------------------------------------------------------------------------------------------------------


def test_a_task_without_arguments_asks_its_node_for_a_lease_at_once(driver):
    wanted = LeaseRequested(request_id=RequestID("driver-1#0"), owner=DRIVER, shape=shape(), count=1)
    assert driver.submit(task(1)) == [Send(to=Address(NODE), message=wanted)]


def test_a_granted_lease_is_used_at_once_with_the_arguments_beside(driver):
    driver.submit(task(1))
    commands = driver.grant(device_ids=(2,))
    pushed = TaskPushed(spec=task(1), attempt=0, reply_to=DRIVER, device_ids=(2,))
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


SLOW_NS = 10 * Config().push_window_ns
"""Nothing is pushed behind a task that takes so long."""


def test_an_idle_lease_serves_another_function_with_the_same_resources(driver):
    driver.run(1)
    driver.submit(task(2, name="g"))  # from now on it is known that there are two
    driver.grant(1, request=1)
    driver.finish(2, worker=f"{NODE}/w1", duration_ns=SLOW_NS)
    commands = driver.submit(task(3), task(4, name="g"), task(5, name="g"))
    assert [(number, worker) for number, _, worker in pushes(commands)] == [(3, WORKER), (4, f"{NODE}/w1")]
    passed_on = driver.finish(3)
    assert pushes(passed_on) == [(5, 0, WORKER)]
    assert (NODE, LeasePassedOn(lease_id=LeaseID("lease-0"), name="g")) in [
        (command.to, command.message) for command in of(passed_on, Send)
    ]


def test_a_lease_that_becomes_idle_goes_to_the_function_that_has_waited_longest(driver):
    driver.submit(task(1), task(2, name="g"), task(3, name="h"))
    driver.grant()
    assert pushes(driver.finish(1)) == [(2, 0, WORKER)]
    assert pushes(driver.finish(2)) == [(3, 0, WORKER)]
    assert sent(driver.grant(1, request=1), LeaseReturned) == []  # it is idle for a while
    driver.now_ns = Config().lease_idle_ns
    assert sent(driver(TimerFired(timer=IDLE_TIMER)), LeaseReturned) == [LeaseReturned(lease_id=LeaseID("lease-1"))]


def test_several_idle_leases_share_the_tasks_of_another_function(driver):
    driver.submit(task(1), task(2, name="g"), task(3, name="g"))
    driver.grant()
    driver.grant(1, request=1)
    driver.grant(2, request=2)
    driver.finish(2, worker=f"{NODE}/w1")
    driver.finish(3, worker=f"{NODE}/w2")
    driver.finish(1)
    commands = driver.submit(task(4, name="h"), task(5, name="h"))
    assert sent(commands, LeaseRequested) == []
    assert len({worker for _, _, worker in pushes(commands)}) == 2


def test_a_lease_stays_with_a_function_that_has_tasks(driver):
    driver.submit(task(1), task(2), task(3, name="g"))
    driver.grant()
    assert pushes(driver.finish(1)) == [(2, 0, WORKER)]


def test_a_lease_with_a_gpu_stays_with_its_function(driver):
    driver.submit(task(1), task(2, name="g"))
    driver.grant(device_ids=(2,))
    assert pushes(driver.finish(1)) == []
    assert len(sent(driver.submit(task(3, name="h")), LeaseRequested)) == 1


def test_a_lease_that_its_node_wants_back_serves_no_other_function(driver):
    driver.submit(task(1), task(2, name="g"))
    driver.grant()
    driver(LeaseWanted(lease_id=LeaseID("lease-0")))
    commands = driver.finish(1)
    assert pushes(commands) == []
    assert sent(commands, LeaseReturned) == [LeaseReturned(lease_id=LeaseID("lease-0"))]


def test_tasks_with_large_arguments_ask_for_a_lease_near_them_and_leave_theirs_to_others(driver):
    driver.put(1, inline=False)
    driver.submit(task(1), task(2, deps=(ref(put_id(1)),)))
    driver.grant()
    assert pushes(driver.finish(1)) == []
    driver.grant(1, request=1)
    driver.submit(task(3), task(4, name="g"))
    assert pushes(driver.finish(2, worker=f"{NODE}/w1")) == [(4, 0, f"{NODE}/w1")]
    assert len(driver.machine.leases.queues) == 2, "nothing needs the queue with the argument"


def test_tasks_that_are_to_be_spread_get_a_lease_of_their_own(driver):
    spread = Strategy(kind=StrategyKind.SPREAD)
    driver.submit(task(1, strategy=spread), task(2, name="g", strategy=spread))
    driver.grant()
    assert pushes(driver.finish(1)) == []


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


def test_who_removes_a_placement_group_gives_back_its_leases_in_it(driver):
    strategies = [
        Strategy(kind=StrategyKind.PLACEMENT_GROUP, group=PlacementGroupID(name * 20)) for name in (b"a", b"b")
    ]
    for number, strategy in enumerate(strategies):
        driver.submit(task(number, strategy=strategy))
        driver.grant(number, request=number)
        driver.finish(number)
    commands = driver(PlacementGroupRemovalAsked(group_id=strategies[0].group))
    assert sends(commands) == [(HEAD, "PlacementGroupUnwanted"), (NODE, "LeaseReturned")]
    assert sent(commands, LeaseReturned) == [LeaseReturned(lease_id="lease-0")]
    assert list(driver.machine.leases.leases) == ["lease-1"]
    driver.now_ns += OVERDUE_NS  # the next task is no burst
    assert len(sent(driver.submit(task(2, strategy=strategies[0])), LeaseRequested)) == 1


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


# ---- Recall ---------------------------------------------------------------------------------------------------------


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


def test_tasks_behind_one_that_runs_for_too_long_are_asked_for(ahead):
    ahead.now_ns = OVERDUE_NS
    commands = ahead(TimerFired(timer=OVERDUE_TIMER))
    assert of(commands, Send) == [Send(to=WORKER, message=TasksWanted(owner=DRIVER))]
    assert of(commands, ArmTimer) == [ArmTimer(timer=OVERDUE_TIMER, delay_ns=OVERDUE_NS)]


def test_the_worker_that_has_given_back_what_was_asked_for_is_not_asked_again(ahead):
    ahead(recalled(3, 4))
    ahead.now_ns = OVERDUE_NS
    assert ahead(TimerFired(timer=OVERDUE_TIMER)) == []


def test_tasks_behind_one_that_began_a_moment_ago_are_looked_after_again(ahead):
    ahead.now_ns = OVERDUE_NS // 2
    ahead.finish(2)
    ahead.now_ns = OVERDUE_NS
    assert ahead(TimerFired(timer=OVERDUE_TIMER)) == [ArmTimer(timer=OVERDUE_TIMER, delay_ns=OVERDUE_NS)]


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


# ---- Worker death ---------------------------------------------------------------------------------------------------


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


# ---- Node death -----------------------------------------------------------------------------------------------------


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
