"""The owner makes lost objects again, as far as their lineage and its attempts allow."""

from __future__ import annotations

import pytest

from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import LocationsWanted, ObjectFailed, ObjectsFreed
from dualray.shared.model.ids import HEAD
from dualray.shared.model.states import ValueState
from tests.shared.builders import DRIVER, NODE, RAISED, OwnerStepper, completed, oid, put_id, ref, sent, task
from tests.shared.machines.owner.answers import WORKER, demanded, dropped, error_of, pushes, retries


def stored_chain(driver: OwnerStepper, *, max_retries: int = 3) -> None:
    """Task 1 makes a large object, task 2 another of it; nobody holds the first any more."""
    driver.run(1, inline=False, max_retries=max_retries)
    driver.run(2, lease=1, deps=(ref(oid(1)),), inline=False, max_retries=max_retries)
    driver(dropped(oid(1)))


def failures(commands) -> list[tuple[bytes, ErrorKind]]:
    """Of which objects the head was told that they will not come."""
    return [(failed.object_id, failed.error.kind) for failed in sent(commands, ObjectFailed, HEAD)]


def test_a_stored_object_that_was_lost_is_made_again_when_it_is_demanded(driver):
    driver.run(1, inline=False)
    commands = demanded(driver, oid(1))
    assert retries(commands) == [(1, 1, "reconstruction")]
    assert pushes(commands) == [(1, 1, WORKER)]


def test_nothing_is_made_again_before_it_is_demanded(driver):
    driver.run(1, inline=False, max_retries=3)
    assert retries(driver.node_died("node-0")) == []


def test_readers_wait_for_the_copy_that_is_being_made(driver):
    driver.run(1, inline=False)
    demanded(driver, oid(1))
    assert completed(driver.wait(1, ref(oid(1)), fetch=False)) == []
    assert completed(driver.finish(1, attempt=1, inline=False)) == [(1, (oid(1),))]


def test_a_demand_for_a_loss_that_was_answered_is_old_news(driver):
    driver.run(1, inline=False)
    demanded(driver, oid(1), losses=1)
    driver.finish(1, attempt=1, inline=False)
    assert retries(demanded(driver, oid(1), losses=1)) == []
    assert retries(demanded(driver, oid(1), losses=2)) == [(1, 2, "reconstruction")]


def test_a_demand_before_any_loss_means_that_the_copy_is_on_its_way(driver):
    driver.run(1, inline=False)
    assert retries(demanded(driver, oid(1), losses=0)) == []


@pytest.fixture
def sealed_elsewhere(driver) -> OwnerStepper:
    """A driver whose task 1 has sealed its result on node-1."""
    driver.submit(task(1))
    driver.grant(node="node-1")
    driver.finish(1, worker="node-1/w0", inline=False)
    return driver


def asks_again(commands) -> bool:
    return sent(commands, LocationsWanted, HEAD) == [
        LocationsWanted(object_id=oid(1), owner=DRIVER, node=NODE, by_owner=True)
    ]


@pytest.mark.parametrize("demand_first", [False, True])
def test_a_demand_before_any_loss_has_the_head_asked_again_when_who_sealed_it_is_dead(sealed_elsewhere, demand_first):
    """Then the news of the copy has arrived there by now, or never will."""
    if demand_first:
        assert not asks_again(demanded(sealed_elsewhere, oid(1), losses=0))
        assert asks_again(sealed_elsewhere.node_died("node-1"))
    else:
        assert not asks_again(sealed_elsewhere.node_died("node-1"))
        assert asks_again(demanded(sealed_elsewhere, oid(1), losses=0))


def test_an_object_of_which_the_head_knows_no_copy_when_it_is_asked_again_is_made_again(sealed_elsewhere):
    sealed_elsewhere.node_died("node-1")
    assert retries(demanded(sealed_elsewhere, oid(1), losses=0)) == []
    assert retries(demanded(sealed_elsewhere, oid(1), losses=0, asked=True)) == [(1, 1, "reconstruction")]


def test_a_demand_for_another_node_is_no_answer_to_the_owners_question(sealed_elsewhere):
    """The head had sent it before it was asked, and may know of a copy meanwhile."""
    sealed_elsewhere.node_died("node-1")
    demanded(sealed_elsewhere, oid(1), losses=0)
    assert demanded(sealed_elsewhere, oid(1), losses=0) == []


def test_a_demand_while_the_object_is_being_made_starts_nothing(driver):
    driver.submit(task(1))
    driver.grant()
    assert retries(demanded(driver, oid(1))) == []
    demanded(driver, oid(1))
    assert failures(driver.finish(1, inline=False)) == []


def test_a_lost_object_whose_arguments_were_freed_is_made_with_them_in_order(driver):
    stored_chain(driver)
    commands = demanded(driver, oid(2))
    assert retries(commands) == [(1, 1, "reconstruction"), (2, 1, "reconstruction")]
    assert [number for number, _, _ in pushes(commands)] == [1]
    assert [number for number, _, _ in pushes(driver.finish(1, attempt=1, inline=False))] == [2]


def test_an_argument_that_was_made_for_lineage_alone_is_freed_again(driver):
    stored_chain(driver)
    demanded(driver, oid(2))
    driver.finish(1, attempt=1, inline=False)
    commands = driver.finish(2, attempt=1, worker="node-0/w1", inline=False)
    assert sent(commands, ObjectsFreed) == [ObjectsFreed(object_ids=(oid(1),))]


def test_an_object_that_was_put_cannot_be_made_again(driver):
    driver.put(1, inline=False)
    assert failures(demanded(driver, put_id(1))) == [(put_id(1), ErrorKind.RECONSTRUCTION_FAILED)]
    assert error_of(driver, put_id(1)) == (
        "Object 00000000:80000001 was lost and cannot be recomputed: "
        "object 00000000:80000001 was created by put(), and no task can recompute it."
    )


def test_the_result_of_a_task_without_attempts_cannot_be_made_again(driver):
    driver.run(1, inline=False, max_retries=0)
    commands = demanded(driver, oid(1))
    assert failures(commands) == [(oid(1), ErrorKind.RECONSTRUCTION_FAILED)]
    assert retries(commands) == []
    assert "has no attempt left" in error_of(driver, oid(1))


def test_making_again_uses_up_the_attempts(driver):
    driver.run(1, inline=False, max_retries=1)
    demanded(driver, oid(1), losses=1)
    driver.finish(1, attempt=1, inline=False)
    assert failures(demanded(driver, oid(1), losses=2)) == [(oid(1), ErrorKind.RECONSTRUCTION_FAILED)]


def test_another_result_of_a_task_that_runs_again_already_is_made_by_the_same_attempt(driver):
    driver.submit(task(1, num_returns=2))
    driver.grant()
    driver.finish(1, returns=2, inline=False)
    assert retries(demanded(driver, oid(1, 0))) == [(1, 1, "reconstruction")]
    commands = demanded(driver, oid(1, 1))
    assert retries(commands) == failures(commands) == []
    driver.wait(1, ref(oid(1, 1)), fetch=False)
    assert completed(driver.finish(1, attempt=1, returns=2, inline=False)) == [(1, (oid(1, 1),))]


def test_who_waits_for_an_object_that_cannot_be_made_again_is_told(driver):
    driver.put(1, inline=False)
    driver.wait(1, ref(put_id(1)))
    assert completed(demanded(driver, put_id(1))) == [(1, (put_id(1),))]


def test_a_small_argument_is_kept_for_lineage_and_not_made_again(driver):
    driver.run(1)
    driver.run(2, deps=(ref(oid(1)),), inline=False)
    driver(dropped(oid(1)))
    commands = demanded(driver, oid(2))
    assert retries(commands) == [(2, 1, "reconstruction")]
    assert len(pushes(commands)) == 1


def test_a_demand_for_an_object_that_was_freed_is_answered_with_failure(driver):
    driver.run(1, inline=False)
    driver(dropped(oid(1)))
    assert failures(demanded(driver, oid(1))) == [(oid(1), ErrorKind.OBJECT_LOST)]


def test_a_result_that_comes_out_small_when_it_is_made_again_is_said_to_be_no_object_of_the_stores(driver):
    driver.run(1, inline=False)
    demanded(driver, oid(1))
    assert failures(driver.finish(1, attempt=1)) == [(oid(1), ErrorKind.RECONSTRUCTION_FAILED)]


def test_a_task_that_fails_when_it_runs_again_fails_its_result(driver):
    driver.run(1, inline=False)
    demanded(driver, oid(1))
    assert failures(driver.finish(1, attempt=1, failed=RAISED)) == [(oid(1), ErrorKind.APPLICATION)]


def test_other_results_of_the_task_that_are_still_there_are_left_alone(driver):
    driver.submit(task(1, num_returns=2))
    driver.grant()
    driver.finish(1, returns=2, inline=False)
    demanded(driver, oid(1, 0))
    assert driver.machine.values.table[oid(1, 1)].state is ValueState.STORED
    driver.finish(1, attempt=1, returns=2, inline=False)
    assert driver.machine.values.table[oid(1, 0)].state is ValueState.STORED
