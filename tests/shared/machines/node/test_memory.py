"""A node that is out of memory: which worker ends, and what its owner is told."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import StopWorker
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import LeasedWorkerDied, MemoryExceeded, WorkerExited
from dualray.shared.model.ids import HEAD, Address
from dualray.shared.policies.worker_killing import MemoryUser, NewestTaskFirst
from tests.shared.builders import DRIVER, NodeStepper, cpus, of, sent

GIB = 1 << 30
W0, W1, W2 = (Address(f"node-0/w{number}") for number in range(3))


def exceeded(*sizes_gib: float, used_gib: float = 16, limit_gib: float = 15) -> MemoryExceeded:
    workers = tuple((Address(f"node-0/w{number}"), int(size * GIB)) for number, size in enumerate(sizes_gib))
    return MemoryExceeded(used_bytes=int(used_gib * GIB), limit_bytes=int(limit_gib * GIB), workers=workers)


@pytest.fixture
def node() -> NodeStepper:
    """Three workers, of which w2 and then w1 are leased: the last that was idle is taken first."""
    node = NodeStepper(total=cpus(3)).with_workers(3)
    node.ask()
    node.ask()
    return node


def stopped(commands) -> list[str]:
    return [command.worker for command in of(commands, StopWorker)]


def test_the_newest_task_ends(node):
    assert stopped(node(exceeded(0, 5, 6))) == [W1]


def test_one_worker_at_a_time(node):
    assert stopped(node(exceeded(0, 5, 6)) + node(exceeded(0, 5, 6))) == [W1]
    node(WorkerExited(worker=W1, reason="SIGKILL"))
    assert stopped(node(exceeded(0, 0, 6))) == [W2]


def test_its_owner_learns_that_there_was_no_memory(node):
    node(exceeded(0, 5, 6))
    (died,) = sent(node(WorkerExited(worker=W1, reason="SIGKILL")), LeasedWorkerDied, DRIVER)
    assert died.error.kind is ErrorKind.OUT_OF_MEMORY
    assert died.error.message.startswith(
        "Worker node-0/w1 died: node-0 was out of memory: 16.0 GiB were in use, and the limit is 15.0 GiB. This worker"
    )


def test_a_worker_that_dies_for_another_reason_is_no_matter_of_memory(node):
    node(exceeded(0, 5, 6))
    (died,) = sent(node(WorkerExited(worker=W2, reason="SIGKILL")), LeasedWorkerDied, DRIVER)
    assert died.error.kind is ErrorKind.WORKER_CRASHED


def test_an_actor_ends_last():
    node = NodeStepper(total=cpus(3)).with_workers(3)
    node.ask()  # w2
    node.ask(owner=HEAD, placed=True, request="actor:01:0")  # w1
    assert stopped(node(exceeded(0, 9, 1))) == [W2]
    node(WorkerExited(worker=W2, reason="SIGKILL"))
    assert stopped(node(exceeded(0, 9))) == [W1]


def test_a_large_idle_worker_ends_before_anything_is_lost(node):
    assert stopped(node(exceeded(2, 5, 6))) == [W0]


def test_without_workers_there_is_nothing_to_end():
    assert NodeStepper().with_workers(0)(exceeded()) == []
    assert NewestTaskFirst().choose([], 1) is None
    small = MemoryUser(worker=W0, size_bytes=1, is_idle=True)
    assert NewestTaskFirst().choose([small], 2) is None
