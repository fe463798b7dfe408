"""The tasks of an owner: late news, exceptions, errors that nobody reads, arguments."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import CopyPayload, DropPayload, Send, TellFailure
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    BorrowAdded,
    LeaseRequested,
    RefsAdded,
    RefsDropped,
    ResultsTaken,
    ValueReported,
    ValueRequested,
)
from dualray.shared.model.ids import exception_id
from dualray.shared.model.states import ValueState
from tests.shared.builders import NODE, OTHER, RAISED, OwnerStepper, completed, of, oid, ref, sends, sent, task, tid
from tests.shared.machines.owner.answers import WORKER, dropped, error_of, pushes, retries

# ---- Late news ------------------------------------------------------------------------------------------------------


@pytest.fixture
def second_attempt(driver) -> OwnerStepper:
    """A driver whose task 1 was lost with w0 and runs again on w1."""
    driver.submit(task(1))
    driver.grant(0, request=0)
    driver.worker_died(0)
    driver.grant(1, request=1)
    return driver


def test_the_result_of_an_attempt_that_was_given_up_is_dropped(second_attempt):
    second_attempt.wait(1, ref(oid(1)))
    assert second_attempt.finish(1, attempt=0) == [DropPayload(key=oid(1))]
    assert completed(second_attempt.finish(1, attempt=1, worker="node-0/w1")) == [(1, (oid(1),))]


def test_a_failure_of_an_attempt_that_was_given_up_is_dropped(second_attempt):
    assert retries(second_attempt.finish(1, attempt=0, failed=RAISED)) == []
    assert second_attempt.machine.values.table[oid(1)].state is ValueState.PENDING


def test_a_late_result_does_not_touch_the_bytes_of_the_one_that_came(second_attempt):
    second_attempt.finish(1, attempt=1, worker="node-0/w1")
    assert second_attempt.finish(1, attempt=0) == []


def test_what_a_late_result_refers_to_is_let_go(second_attempt):
    commands = second_attempt.finish(1, attempt=0, nested=(ref(oid(7), WORKER),))
    assert Send(to=WORKER, message=ResultsTaken(task_id=tid(1), attempt=0)) in commands
    assert sent(commands, BorrowAdded) == []


def test_a_result_of_a_task_that_nobody_knows_any_more_is_dropped(driver):
    driver.run(1)
    driver(dropped(oid(1)))
    assert driver.finish(1) == [DropPayload(key=oid(1))]


# ---- Exceptions -----------------------------------------------------------------------------------------------------


def test_an_exception_fails_the_task_at_once(driver):
    driver.submit(task(1))
    driver.grant()
    driver.wait(1, ref(oid(1)))
    commands = driver.finish(1, failed=RAISED)
    assert retries(commands) == []
    assert completed(commands) == [(1, (oid(1),))]
    assert driver.machine.values.table[oid(1)].error == RAISED


def test_an_exception_is_retried_when_the_task_asks_for_that(driver):
    driver.submit(task(1, retry_exceptions=True))
    driver.grant()
    commands = driver.finish(1, failed=RAISED)
    assert retries(commands) == [(1, 1, "retry")]
    assert pushes(commands) == [(1, 1, WORKER)]


def test_an_exception_of_the_last_retry_is_the_users_own(driver):
    driver.submit(task(1, retry_exceptions=True, max_retries=1))
    driver.grant()
    driver.finish(1, failed=RAISED)
    assert retries(driver.finish(1, attempt=1, failed=RAISED)) == []
    assert driver.machine.values.table[oid(1)].error.kind is ErrorKind.APPLICATION


def test_the_exception_is_the_payload_of_every_return_value(driver):
    driver.submit(task(1, num_returns=3))
    driver.grant()
    commands = driver.finish(1, failed=RAISED)
    assert of(commands, CopyPayload) == [
        CopyPayload(source=exception_id(tid(1)), target=oid(1, index)) for index in range(3)
    ]
    assert of(commands, DropPayload) == [DropPayload(key=exception_id(tid(1))), DropPayload(key=tid(1))]


# ---- Errors that nobody reads ---------------------------------------------------------------------------------------


def told(commands):
    return [(failure.task_id[0], failure.error) for failure in of(commands, TellFailure)]


def told_of(driver, *object_ids):
    return told(driver(RefsDropped(object_ids=object_ids)))


def test_an_error_is_told_when_its_last_reference_goes_unread(driver):
    assert told(driver.run(1, failed=RAISED)) == []
    assert told_of(driver, oid(1)) == [(1, RAISED)]


def test_an_error_that_is_too_late_for_every_reference_is_told_at_once(driver):
    driver.submit(task(1))
    driver.grant()
    assert told_of(driver, oid(1)) == []
    assert told(driver.finish(1, failed=RAISED)) == [(1, RAISED)]


def test_an_error_without_results_is_told_at_once(driver):
    driver.submit(task(1, num_returns=0))
    driver.grant()
    assert told(driver.finish(1, failed=RAISED)) == [(1, RAISED)]


@pytest.mark.parametrize("early", [True, False])
def test_an_error_that_was_read_is_not_told(driver, early):
    driver.submit(task(1))
    driver.grant()
    if early:
        driver.wait(1, ref(oid(1)), read=True)
    driver.finish(1, failed=RAISED)
    if not early:
        driver.wait(1, ref(oid(1)), read=True)
    assert told_of(driver, oid(1)) == []


def test_waiting_for_an_error_is_not_reading_it(driver):
    driver.run(1, failed=RAISED)
    driver.wait(1, ref(oid(1)))
    assert told_of(driver, oid(1)) == [(1, RAISED)]


def test_an_error_of_several_results_is_told_once_and_not_if_one_was_read(driver):
    driver.run(1, failed=RAISED, returns=2)
    assert told_of(driver, oid(1)) == [(1, RAISED)]
    driver.submit(task(2, num_returns=2), task(3, num_returns=2))
    driver.finish(2, failed=RAISED)
    assert told_of(driver, oid(2)) == []
    assert told_of(driver, oid(2, 1)) == [(2, RAISED)]
    driver.finish(3, failed=RAISED)
    driver.wait(1, ref(oid(3, 1)), read=True)
    assert told_of(driver, oid(3), oid(3, 1)) == []


def test_an_error_that_arguments_carry_on_is_told_once_by_the_last_that_has_it(driver):
    driver.submit(task(1), task(2, deps=(ref(oid(1)),)), task(3, deps=(ref(oid(2)),)))
    driver.grant()
    driver.finish(1, failed=RAISED)
    assert told_of(driver, oid(1), oid(2)) == []
    assert told_of(driver, oid(3)) == [(1, RAISED)]


def test_an_error_that_another_process_asked_for_is_its_to_tell(driver):
    driver.run(1, failed=RAISED)
    driver(ValueRequested(object_id=oid(1), requester=OTHER))
    assert told_of(driver, oid(1)) == []


def test_a_retried_error_is_not_told(driver):
    driver.submit(task(1, retry_exceptions=True))
    driver.grant()
    assert told(driver.finish(1, failed=RAISED)) == []
    assert told(driver.finish(1, attempt=1)) == told_of(driver, oid(1)) == []


def test_a_get_that_another_error_ended_has_asked_for_all_its_values(driver):
    driver.submit(task(1))
    driver.submit(task(2))
    driver.grant()
    driver.wait(1, ref(oid(1)), ref(oid(2)), read=True)
    assert told(driver.finish(1, failed=RAISED)) == []
    driver.grant()
    assert told(driver.finish(2, failed=RAISED)) == []
    assert told_of(driver, oid(1), oid(2)) == []


def test_what_is_unread_at_the_end_is_known(driver):
    driver.run(1, failed=RAISED)
    assert [failure.task_id for failure in driver.machine.values.references.unread_failures()] == [tid(1)]
    driver.wait(1, ref(oid(1)), read=True)
    assert driver.machine.values.references.unread_failures() == []


# ---- Arguments ------------------------------------------------------------------------------------------------------


def test_a_task_waits_for_its_arguments_before_it_asks_for_a_lease(driver):
    driver.submit(task(1))
    driver.grant()
    assert driver.submit(task(2, deps=(ref(oid(1)),))) == []
    assert pushes(driver.finish(1)) == [(2, 0, WORKER)]


def test_an_argument_that_failed_fails_the_task_without_a_lease(driver):
    driver.submit(task(1, max_retries=0), task(2, deps=(ref(oid(1)),)))
    driver.grant()
    driver.wait(1, ref(oid(2)))
    commands = driver.worker_died()
    assert completed(commands) == [(1, (oid(2),))]
    assert pushes(commands) == []
    assert error_of(driver, oid(2)) == error_of(driver, oid(1))


def test_an_argument_that_raised_hands_on_its_exception(driver):
    driver.submit(task(1), task(2, deps=(ref(oid(1)),)), task(3, deps=(ref(oid(2)),)))
    driver.grant()
    assert of(driver.finish(1, failed=RAISED), CopyPayload) == [
        CopyPayload(source=exception_id(tid(1)), target=oid(1)),
        CopyPayload(source=oid(1), target=oid(2)),
        CopyPayload(source=oid(2), target=oid(3)),
    ]


def test_an_argument_of_another_owner_is_asked_for(driver):
    commands = driver(RefsAdded(refs=(ref(oid(9), OTHER),))) + driver.submit(task(1, deps=(ref(oid(9), OTHER),)))
    assert sends(commands) == [(OTHER, "BorrowAdded"), (OTHER, "ValueRequested")]
    reported = ValueReported(object_id=oid(9), state=ValueState.INLINE, size_bytes=10)
    assert sends(driver(reported)) == [(NODE, "LeaseRequested")]


def test_references_inside_arguments_are_not_waited_for(driver):
    driver.submit(task(1))
    assert len(sent(driver.submit(task(2, nested=(ref(oid(1)),))), LeaseRequested)) == 1


def test_an_argument_that_is_given_twice_is_one_argument(driver):
    driver.submit(task(1))
    driver.grant()
    driver.submit(task(2, deps=(ref(oid(1)), ref(oid(1)))))
    assert pushes(driver.finish(1)) == [(2, 0, WORKER)]
    driver.finish(2)
    driver(dropped(oid(1), oid(2)))
    assert not driver.machine.values.table
