"""The owner machine: events in, commands out. Each test states one rule in its name."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import CompleteWait, Send
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ClusterChanged,
    ClusterStateAsked,
    ClusterStateReported,
    ClusterStateRequested,
    DriverJoined,
    ObjectSealed,
    PutAbandoned,
    SpaceDenied,
    SpaceGranted,
    SpaceRequested,
    SpaceWanted,
    SpaceWritten,
    Started,
    TaskSubmitted,
    WaitAbandoned,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, WaitID
from dualray.shared.model.specs import NodeState
from dualray.shared.model.states import ValueState
from tests.shared.builders import (
    DRIVER,
    NODE,
    OTHER,
    OwnerStepper,
    completed,
    cpus,
    error,
    info,
    oid,
    put_id,
    ref,
    sends,
    sent,
    shape,
    task,
)
from tests.shared.machines.owner.answers import WORKER, dropped

# ---- Leases ---------------------------------------------------------------------------------------------------------


def test_a_driver_tells_the_head_that_it_takes_part(driver):
    assert driver(Started()) == [Send(to=HEAD, message=DriverJoined(address=DRIVER, node=NODE))]


def test_a_worker_begins_in_silence(worker):
    assert worker(Started()) == []


# ---- Room in the store ----------------------------------------------------------------------------------------------


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


# ---- The cluster ----------------------------------------------------------------------------------------------------


def test_the_clusters_state_is_asked_of_the_head(driver):
    asked = driver(ClusterStateAsked(wait_id=WaitID(3)))
    assert asked == [Send(to=HEAD, message=ClusterStateRequested(wait_id=WaitID(3), requester=DRIVER))]
    row = NodeState(node=NodeID("node-0"), incarnation=0, alive=True, total=cpus(2), available=cpus(1))
    assert completed(driver(ClusterStateReported(wait_id=WaitID(3), nodes=(row,)))) == [(3, ())]
    assert driver.machine.questions.cluster_state[WaitID(3)] == (row,)


@pytest.mark.parametrize("infeasible", ["raise", "wait"])
def test_a_demand_that_no_node_could_meet_is_known_before_it_is_submitted(infeasible):
    driver = OwnerStepper(infeasible=infeasible)
    assert driver.machine.why_waiting(shape(cpus(8))) is None  # nothing is known of the cluster yet
    driver(ClusterChanged(nodes=(info("node-0", cpus(2)),)))
    assert driver.machine.why_waiting(shape(cpus(2))) is None
    assert "node-0, has 2 CPU and lacks 6 CPU" in driver.machine.why_waiting(shape(cpus(8)))


# ---- A worker's side ------------------------------------------------------------------------------------------------


def test_a_submitted_task_is_submitted_once(driver):
    driver.submit(task(1))
    with pytest.raises(Exception, match="task 01010101 was submitted twice"):
        driver.machine.handle(TaskSubmitted(spec=task(1)), 0)
