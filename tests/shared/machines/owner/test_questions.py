"""What an owner asks other processes, and the answers that never come."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import CompleteWait
from dualray.shared.model.events import NodeDied, OwnerDied, PeerMet, RowsAsked, RowsReported, TimerFired
from dualray.shared.model.ids import Address, NodeID, WaitID
from tests.shared.builders import NODE, OTHER, OwnerStepper, sent

WAIT = WaitID(7)


def ask(stepper: OwnerStepper, process: str) -> list:
    return stepper(RowsAsked(wait_id=WAIT, table="tasks", to=Address(process), timeout_ns=1_000))


@pytest.mark.parametrize(
    "death",
    [
        OwnerDied(address=OTHER),
        NodeDied(node=NodeID("node-1"), incarnation=0),
    ],
)
def test_a_process_that_dies_has_no_rows(driver, death):
    assert sent(ask(driver, OTHER), PeerMet, NODE) == [PeerMet(process=driver.address, peer=OTHER)]
    assert CompleteWait(wait_id=WAIT) in driver(death)
    assert driver.machine.take_rows(WAIT) == ()
    assert driver(RowsReported(wait_id=WAIT, rows=("{}",))) == []


def test_a_node_manager_that_dies_has_no_rows(driver):
    assert sent(ask(driver, "node-1"), PeerMet) == []
    assert CompleteWait(wait_id=WAIT) in driver(NodeDied(node=NodeID("node-1"), incarnation=0))
    assert driver.machine.take_rows(WAIT) == ()


def test_the_death_of_another_process_ends_no_wait(driver):
    ask(driver, OTHER)
    assert CompleteWait(wait_id=WAIT) not in driver(OwnerDied(address=Address("node-1/w9")))
    assert CompleteWait(wait_id=WAIT) in driver(TimerFired(timer=f"rows:{WAIT}"))
    assert driver.machine.take_rows(WAIT) is None
