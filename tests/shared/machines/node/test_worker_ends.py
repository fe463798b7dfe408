"""Workers that end after max_calls, and workers that are of a runtime environment."""

from __future__ import annotations

from dataclasses import replace

from dualray.shared.model.commands import StartWorker
from dualray.shared.model.events import (
    LeaseGranted,
    LeaseReturned,
    LeaseWanted,
    Result,
    TaskFinished,
    TasksRecalled,
    WorkerRetired,
    WorkerSpent,
    WorkerUnwanted,
)
from dualray.shared.model.ids import Address, LeaseID
from dualray.shared.model.states import TaskState
from tests.shared.builders import DRIVER, OTHER, NodeStepper, OwnerStepper, cpus, of, oid, sent, shape, task, tid

W0 = Address("node-0/w0")


def test_a_worker_that_has_run_max_calls_says_so_and_takes_no_more():
    worker = OwnerStepper(W0)
    spec = task(1, owner=OTHER)
    spec.template = replace(spec.template, max_calls=1)
    worker.pushed(spec)
    result = Result(object_id=oid(1), size_bytes=1, inline=True)
    commands = worker.ran(1, result)
    assert sent(commands, TaskFinished, OTHER)
    assert sent(commands, WorkerSpent, "node-0") == [WorkerSpent(worker=W0)]
    commands = worker.pushed(task(2, owner=OTHER))
    assert [recalled.tasks for recalled in sent(commands, TasksRecalled, OTHER)] == [(tid(2),)]
    commands = worker(WorkerRetired(worker=W0))
    [unwanted] = sent(commands, WorkerUnwanted, "node-0")
    assert "max_calls" in unwanted.reason


def test_calls_below_max_calls_are_counted_for_each_function():
    worker = OwnerStepper(W0)
    for number in (1, 2):
        spec = task(number, owner=OTHER)
        spec.template = replace(spec.template, max_calls=2, function_id=bytes([number]) * 16)
        worker.pushed(spec)
        commands = worker.ran(number, Result(object_id=oid(number), size_bytes=1, inline=True))
        assert not sent(commands, WorkerSpent)


def lease(number):
    return LeaseID(f"node-0~0/lease{number}")


def granted(commands):
    return [message.worker for message in sent(commands, LeaseGranted)]


def test_the_lease_of_a_spent_worker_is_had_back_and_then_it_retires():
    node = NodeStepper(total=cpus(2)).with_workers(1)
    assert granted(node.ask()) == [W0]
    commands = node(WorkerSpent(worker=W0))
    assert sent(commands, LeaseWanted, DRIVER) == [LeaseWanted(lease_id=lease(0))]
    commands = node(LeaseReturned(lease_id=lease(0)))
    assert sent(commands, WorkerRetired, W0)
    assert W0 not in [worker.address for worker in node.machine.scheduler.idle]


def test_an_idle_worker_that_is_spent_retires():
    node = NodeStepper(total=cpus(2)).with_workers(1)
    node.ask()
    node(LeaseReturned(lease_id=lease(0)))
    assert sent(node(WorkerSpent(worker=W0)), WorkerRetired, W0)
    assert not node.machine.scheduler.idle


def in_environment(name):
    return replace(shape(), runtime_env=name)


def test_a_worker_is_for_the_environment_that_it_has_had():
    node = NodeStepper(total=cpus(4)).with_workers(2)
    [one] = granted(node.ask(in_environment("one")))
    node(LeaseReturned(lease_id=lease(0)))
    [plain] = granted(node.ask())
    assert plain != one
    node(LeaseReturned(lease_id=lease(1)))
    assert granted(node.ask(in_environment("one"))) == [one]
    commands = node.ask(in_environment("other"))
    assert granted(commands) == []  # none is fresh: one is started
    [start] = of(commands, StartWorker)
    assert granted(node.ready(int(start.worker.rpartition("w")[2]))) == [start.worker]


def test_of_other_environments_one_idle_worker_more_is_kept_than_there_are_cpus():
    node = NodeStepper(total=cpus(1)).with_workers(1)
    for number, name in enumerate(("one", "other")):
        commands = node.ask(in_environment(name))
        assert not sent(commands, WorkerRetired, W0)
        if number:
            [start] = of(commands, StartWorker)
            node.ready(int(start.worker.rpartition("w")[2]))
        node(LeaseReturned(lease_id=lease(number)))
    assert sent(node.ask(in_environment("third")), WorkerRetired, W0)


def test_tasks_of_different_environments_share_no_lease():
    driver = OwnerStepper()
    specs = [task(1), task(2)]
    specs[1].template = replace(specs[1].template, runtime_env="one")
    driver.submit(*specs)
    assert len(driver.machine.leases.queues) == 2
    driver.grant()
    assert driver.machine.tasks.records[tid(2)].state is TaskState.QUEUED
