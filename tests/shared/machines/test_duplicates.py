"""A message that a machine hears twice.

The connections of both modes deliver each message once and in order, and the machines rely on it; what they do with a
second one shows how much, if a transport were to send again what it does not know to have arrived.
"""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import RunTask
from dualray.shared.model.events import ActorRegistered, DriverJoined, LeaseReturned
from dualray.shared.model.ids import Address, NodeID
from dualray.shared.model.states import ActorState
from tests.shared.builders import DRIVER, OTHER, HeadStepper, OwnerStepper, aid, constructor, info, of, sent, task
from tests.shared.machines.head.news import constructed, grant


@pytest.fixture
def head() -> HeadStepper:
    head = HeadStepper(info("node-0"), info("node-1"))
    head(DriverJoined(address=DRIVER, node=NodeID("node-0")))
    head(ActorRegistered(spec=constructor(1)))
    return head


def test_the_head_hears_twice_that_an_actor_is_constructed(head):
    grant(head)
    constructed(head)
    assert constructed(head) == []
    assert head.machine.actors.records[aid(1)].state is ActorState.ALIVE


def test_the_head_hears_twice_of_the_lease_for_an_actor(head):
    grant(head)
    assert sent(grant(head), LeaseReturned) == []  # it would take the worker from under the actor
    constructed(head)
    assert sent(grant(head), LeaseReturned) == []


def test_an_owner_hears_twice_of_a_lease():
    driver = OwnerStepper()
    driver.submit(task(1))
    driver.grant()
    assert sent(driver.grant(), LeaseReturned) == []


def test_a_worker_hears_twice_of_a_task():
    worker = OwnerStepper(Address("node-0/w0"))
    commands = worker.pushed(task(1, owner=OTHER)) + worker.pushed(task(1, owner=OTHER))
    commands += worker.ran(1)
    assert len(of(commands, RunTask)) == 1


def test_a_worker_hears_twice_of_a_task_that_waits_behind_another():
    worker = OwnerStepper(Address("node-0/w0"))
    commands = worker.pushed(task(1, owner=OTHER))
    commands += worker.pushed(task(2, owner=OTHER)) + worker.pushed(task(2, owner=OTHER))
    commands += worker.ran(1) + worker.ran(2)
    assert [command.spec.task_id for command in of(commands, RunTask)] == [task(1).task_id, task(2).task_id]
