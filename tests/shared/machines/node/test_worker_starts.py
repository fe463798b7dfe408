"""Starts of workers on a machine that has no room for one more process: they are tried again, and not for ever."""

from __future__ import annotations

from dualray.shared.machines.node.worker_pool import STARTS_TIMER
from dualray.shared.model.commands import ArmTimer, StartWorker
from dualray.shared.model.events import LeaseGranted, LeaseRefused, OwnerDied, TimerFired, WorkerNotStarted
from dualray.shared.model.ids import Address
from tests.shared.builders import DRIVER, OTHER, NodeStepper, of, sent


def not_started(worker: str, reason: str = "no files") -> WorkerNotStarted:
    return WorkerNotStarted(worker=Address(worker), reason=reason)


def test_a_worker_that_the_machine_has_no_room_for_is_started_later():
    node = NodeStepper()
    node.ask(count=2)
    commands = node(not_started("node-0/w0"))
    assert of(commands, ArmTimer) == [ArmTimer(timer=STARTS_TIMER, delay_ns=node.machine.config.worker_start_retry_ns)]
    commands += node(not_started("node-0/w1"))
    assert of(commands, StartWorker) == []
    assert len(of(commands, ArmTimer)) == 1
    later = node(TimerFired(timer=STARTS_TIMER))
    assert [start.worker for start in of(later, StartWorker)] == ["node-0/w2"]  # one at a time
    assert [each.worker for each in sent(node.ready(2), LeaseGranted, DRIVER)] == ["node-0/w2"]


def test_a_machine_that_has_no_room_for_long_has_its_leases_refused():
    node = NodeStepper(worker_start_retry_ns=10, worker_start_patience_ns=25)
    node.ask()
    for number in range(3):
        assert sent(node(not_started(f"node-0/w{number}")), LeaseRefused) == []
        node.now_ns += 10
        node(TimerFired(timer=STARTS_TIMER))
    commands = node(not_started("node-0/w3"))
    (refused,) = sent(commands, LeaseRefused, DRIVER)
    assert refused.error.message == "node-0 could not start a worker for 2.5e-08 s: no files."
    assert node.machine.lease_counts() == {"granted": 0, "waiting": 0, "without_worker": 0}
    node.now_ns += 10
    node(TimerFired(timer=STARTS_TIMER))
    node.ask()
    node.now_ns += 20
    assert sent(node(not_started("node-0/w4")), LeaseRefused) == []  # counted anew


def test_room_that_was_short_long_ago_is_forgotten():
    node = NodeStepper(worker_start_retry_ns=10, worker_start_patience_ns=25)
    node.ask()
    node(not_started("node-0/w0"))
    node(OwnerDied(address=DRIVER))
    node.now_ns += 10
    node(TimerFired(timer=STARTS_TIMER))
    node.now_ns += 100
    node.ask(owner=OTHER)
    assert sent(node(not_started("node-0/w1")), LeaseRefused) == []
