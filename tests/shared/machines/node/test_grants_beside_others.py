"""A node that is not alone grants leases until its use is at the threshold; from there on the head compares nodes."""

from __future__ import annotations

import pytest

from dualray.shared.model.events import ClusterChanged, LeaseGranted, LeaseRequested
from dualray.shared.model.ids import HEAD, RequestID
from tests.shared.builders import DRIVER, NodeStepper, cpus, info, sent, shape


def beside_another(total: int, **named) -> NodeStepper:
    node = NodeStepper(total=cpus(total), **named).with_workers(total)
    node(ClusterChanged(nodes=tuple(info(f"node-{index}", cpus(total)) for index in range(2))))
    return node


def granted_and_spilled(node: NodeStepper, count: int) -> tuple[int, int]:
    commands = node.ask(count=count)
    return len(sent(commands, LeaseGranted)), sum(asked.count for asked in sent(commands, LeaseRequested, HEAD))


@pytest.mark.parametrize(
    ("total", "busy", "here"),
    [(4, 0, 2), (4, 1, 1), (4, 2, 0), (3, 0, 2), (1, 0, 1)],
    ids=["idle", "below half", "half in use", "beyond half with the last", "one CPU"],
)
def test_a_node_grants_until_half_of_it_is_in_use(total, busy, here):
    node = beside_another(total)
    assert granted_and_spilled(node, busy) == (busy, 0)
    assert granted_and_spilled(node, 4) == (here, 4 - here)


@pytest.mark.parametrize(("threshold", "here"), [(0, 0), (100, 4)])
def test_the_threshold_is_a_limit_that_users_set(threshold, here):
    assert granted_and_spilled(beside_another(4, spread_threshold_percent=threshold), 5) == (
        here,
        5 - here,
    )


def test_a_node_alone_grants_all_that_fits():
    node = beside_another(4)
    node(ClusterChanged(nodes=(info("node-0", cpus(4)),)))
    assert granted_and_spilled(node, 5) == (4, 1)


def test_the_reason_names_the_resource_and_its_use():
    node = beside_another(4)
    granted_and_spilled(node, 2)
    asked = LeaseRequested(request_id=RequestID("driver-1#9"), owner=DRIVER, shape=shape(cpus(1)), count=1)
    words = "the node grants requests itself only while less than 50 % of its CPU is in use"
    assert node.machine.why_not_here(asked, 0) == [words]
