"""Results that are lost again before anybody has had them: found by exploration, and by shuffles in small stores."""

from __future__ import annotations

import pytest

from dualray.shared.machines.tasks import REMAKES_IN_VAIN_MAX
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import LocationsWanted, ObjectDemanded, ObjectFailed, RefsDropped
from dualray.shared.model.ids import HEAD
from tests.shared.builders import OwnerStepper, oid, ref, sent, task
from tests.shared.test_owner import pushes, retries


@pytest.fixture
def driver() -> OwnerStepper:
    return OwnerStepper()


def lost(driver: OwnerStepper, object_id, losses: int, *, asked: bool = False):
    return driver(ObjectDemanded(object_id=object_id, losses=losses, asked=asked))


def test_a_task_that_is_woken_by_what_is_lost_in_the_same_step_is_woken_again(driver):
    driver.run(1, inline=False, max_retries=5)
    driver.run(2, lease=1, deps=(ref(oid(1)),), inline=False, max_retries=5)
    driver(RefsDropped(object_ids=(oid(1),)))
    assert [number for number, _, _ in retries(lost(driver, oid(2), 1))] == [1, 2]
    assert retries(lost(driver, oid(1), 0)) == []  # a copy had come and gone before we heard that it is made
    assert retries(driver.finish(1, attempt=1, inline=False)) == [(1, 2, "reconstruction")]
    assert (2, 1) in [push[:2] for push in pushes(driver.finish(1, attempt=2, inline=False))]


def test_what_a_running_attempt_makes_for_another_is_not_given_up(driver):
    driver.submit(task(1, num_returns=2, max_retries=1))
    driver.grant()
    driver.finish(1, inline=False, returns=2)
    driver.run(3, lease=1, deps=(ref(oid(1, 1)),), inline=False, max_retries=1)
    lost(driver, oid(1, 0), 1)
    driver(RefsDropped(object_ids=(oid(1, 1),)))
    commands = lost(driver, oid(3), 1)
    assert sent(commands, ObjectFailed, HEAD) == []
    assert (3, 1) in [push[:2] for push in pushes(driver.finish(1, attempt=1, inline=False, returns=2))]


def test_what_was_lost_while_it_was_made_for_another_is_asked_for_again(driver):
    """The attempt may have found the old copy, and written none."""
    driver.submit(task(1, num_returns=2, max_retries=5))
    driver.grant()
    driver.finish(1, inline=False, returns=2)
    lost(driver, oid(1, 0), 1)
    assert retries(lost(driver, oid(1, 1), 1)) == []
    asked = sent(driver.finish(1, attempt=1, inline=False, returns=2), LocationsWanted, HEAD)
    assert [(question.object_id, question.by_owner) for question in asked] == [(oid(1, 1), True)]
    assert retries(lost(driver, oid(1, 1), 1, asked=True)) == [(1, 2, "reconstruction")]


def test_what_is_made_again_in_vain_is_given_up_with_the_way_out(driver):
    driver.run(1, inline=False, max_retries=-1)
    driver.submit(task(2, deps=(ref(oid(1)),)))
    for losses in range(1, REMAKES_IN_VAIN_MAX + 1):
        assert retries(lost(driver, oid(1), losses)) == [(1, losses, "reconstruction")]
        driver.finish(1, attempt=losses, inline=False)
    (failed,) = sent(lost(driver, oid(1), REMAKES_IN_VAIN_MAX + 1), ObjectFailed, HEAD)
    assert failed.error.kind is ErrorKind.RECONSTRUCTION_FAILED
    assert "it was made again 10 times, and lost each time" in failed.error.message
    assert "Set object_store_memory= higher" in failed.error.message


@pytest.mark.parametrize("progress", ["a task ends", "a wait ends", "nobody needs it"])
def test_what_is_made_again_is_not_in_vain_while_something_comes_of_it(driver, progress):
    driver.run(1, inline=False, max_retries=-1)
    if progress != "nobody needs it":
        driver.submit(task(2, deps=(ref(oid(1)),)))
    for losses in range(1, 3 * REMAKES_IN_VAIN_MAX):
        if losses % REMAKES_IN_VAIN_MAX == 0 and progress == "a task ends":
            driver.put(losses)
            driver.submit(task(100 + losses, name="other"))
        if losses % REMAKES_IN_VAIN_MAX == 0 and progress == "a wait ends":
            driver.wait(losses, ref(oid(2)))
        assert retries(lost(driver, oid(1), losses)) == [(1, losses, "reconstruction")]
        driver.finish(1, attempt=losses, inline=False)
