"""Leases of accelerators of several kinds on one node."""

from __future__ import annotations

from dualray.shared.model.accelerators import DEVICES_MAX
from dualray.shared.model.events import LeaseGranted, LeaseReturned, WorkerRetired
from dualray.shared.model.ids import LeaseID
from tests.shared.builders import NodeStepper, cpus, sent, shape


def devices(commands) -> list[tuple[int, ...]]:
    return [granted.device_ids for granted in sent(commands, LeaseGranted)]


def returned(lease: int) -> LeaseReturned:
    return LeaseReturned(lease_id=LeaseID(f"node-0~0/lease{lease}"), worker_usable=True)


def test_a_lease_holds_devices_of_several_kinds_and_waits_for_the_scarcest():
    node = NodeStepper(total=cpus(8, gpus=2, TPU=2)).with_workers(8)
    tpu = 2 * DEVICES_MAX
    both = shape(cpus(0, gpus=1, TPU=1))
    assert devices(node.ask(shape(cpus(0, TPU=1)))) == [(tpu,)]
    assert devices(node.ask(both)) == [(0, tpu + 1)]
    assert not devices(node.ask(both, placed=True))
    assert devices(node(returned(0))) == [(1, tpu)]


def test_a_worker_with_devices_that_are_no_gpus_is_used_again():
    node = NodeStepper(total=cpus(8, gpus=1, TPU=1)).with_workers(2)
    [first] = sent(node.ask(shape(cpus(0, TPU=1))), LeaseGranted)
    assert sent(node(returned(0)), WorkerRetired) == []
    [again] = sent(node.ask(shape(cpus(1))), LeaseGranted)
    assert again.worker == first.worker
    [third] = sent(node.ask(shape(cpus(0, gpus=1))), LeaseGranted)
    assert third.worker != first.worker
    assert sent(node(returned(2)), WorkerRetired) == [WorkerRetired(worker=third.worker)]
