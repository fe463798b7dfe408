"""The words in which an owner says what an object waits for."""

from __future__ import annotations

from dualray.shared.machines.owner.explanation import EXPLAINED_MAX
from dualray.shared.model.events import ClusterChanged, RefsAdded
from dualray.shared.model.ids import WaitID
from tests.shared.builders import OTHER, OwnerStepper, cpus, info, oid, put_id, ref, task
from tests.shared.machines.owner.answers import call


def why(stepper: OwnerStepper, object_id) -> str:
    return stepper.machine.explanation.of_object(object_id)


def test_why_it_waits_for_its_arguments(driver):
    driver.submit(task(1), task(2, deps=(ref(oid(1)),), name="g"))
    assert why(driver, oid(2)) == (
        "object 02020202:0 is computed by g (task 02020202), which waits for its arguments 01010101:0; "
        "object 01010101:0 is computed by f (task 01010101), which waits for a worker with 1 CPU"
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
        "object 01010101:0 is computed by f (task 01010101), which waits for a worker with 2 CPU, 1 GPU"
    )


def test_why_it_waits_for_the_worker_that_has_it(driver):
    driver.submit(task(1))
    driver.grant()
    assert why(driver, oid(1)) == "object 01010101:0 is computed by f (task 01010101), which node-0/w0 has"


def test_why_it_waits_for_an_actor(actor):
    actor.submit(call(2, name="Actor.step"))
    assert why(actor, oid(2)) == (
        "object 02020202:0 is computed by Actor.step (task 02020202), which waits for actor 01010101 (PENDING)"
    )


def test_why_it_waits_for_another_owner(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    assert (
        why(driver, oid(9))
        == "object 09090909:0 is owned by node-1/w0, which has not reported that the object is ready"
    )


def test_why_it_waits_for_the_store(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)))
    assert why(driver, oid(1)) == "object 01010101:0 is in a store and is being copied to node-0"


def test_why_it_waits_for_what_is_not_known(driver):
    assert why(driver, oid(9)) == "object 09090909:0 is not known to driver-1"


def test_a_wait_explains_just_what_it_misses(driver):
    driver.put(1)
    driver.submit(task(2))
    driver.wait(4, ref(put_id(1)), ref(oid(2)))
    assert driver.machine.explanation.of_wait(WaitID(4)) == [why(driver, oid(2))]
    assert driver.machine.explanation.of_wait(WaitID(5)) == []
