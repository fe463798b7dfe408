"""The values of an owner: references, borrows, waits."""

from __future__ import annotations

import pytest

from dualray.shared.machines.owner.waits import BRIEF_NS
from dualray.shared.model.commands import ArmTimer, CancelTimer, CompleteWait, DropPayload, Send
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    BorrowAcknowledged,
    BorrowAdded,
    BorrowRemoved,
    NodeDied,
    ObjectReleased,
    ObjectsFreed,
    ObjectUnavailable,
    ObjectWanted,
    OwnerDied,
    PeerMet,
    RefsAdded,
    TimerFired,
    ValueReported,
    ValueRequested,
    ViewReleased,
    WorkerBlocked,
    WorkerUnblocked,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, WaitID
from dualray.shared.model.states import ValueState
from tests.shared.builders import (
    DRIVER,
    MS,
    NODE,
    OTHER,
    RAISED,
    NodeStepper,
    completed,
    error,
    of,
    oid,
    put_id,
    ref,
    sends,
    sent,
    task,
    tid,
)
from tests.shared.machines.owner.answers import WORKER, dropped, error_of

# ---- References -----------------------------------------------------------------------------------------------------


def test_a_small_value_is_dropped_with_its_last_reference(driver):
    driver.put(1)
    assert driver(dropped(put_id(1))) == [DropPayload(key=put_id(1))]
    assert not driver.machine.values.table


def test_a_stored_value_is_freed_at_the_head_with_its_last_reference(driver):
    driver.put(1, inline=False)
    assert driver(dropped(put_id(1))) == [Send(to=HEAD, message=ObjectsFreed(object_ids=(put_id(1),)))]


def test_a_value_stays_while_a_reference_is_left(driver):
    driver.put(1)
    driver(RefsAdded(refs=(ref(put_id(1)),)))
    assert driver(dropped(put_id(1))) == []
    assert driver(dropped(put_id(1))) == [DropPayload(key=put_id(1))]


def test_a_result_that_nobody_wants_any_more_is_dropped_when_it_comes(driver):
    driver.submit(task(1))
    driver.grant()
    assert driver(dropped(oid(1))) == []
    assert DropPayload(key=oid(1)) in driver.finish(1)
    assert not driver.machine.values.table
    assert not driver.machine.tasks.records


def test_a_large_result_that_nobody_wants_any_more_is_freed_when_it_comes(driver):
    driver.submit(task(1))
    driver.grant()
    driver(dropped(oid(1)))
    assert sent(driver.finish(1, inline=False), ObjectsFreed) == [ObjectsFreed(object_ids=(oid(1),))]


def test_an_argument_lives_until_its_task_has_finished(driver):
    driver.put(1)
    driver.submit(task(1, nested=(ref(put_id(1)),)))
    driver.grant()
    assert driver(dropped(put_id(1))) == []
    assert DropPayload(key=put_id(1)) in driver.finish(1)


def test_the_arguments_payload_goes_when_the_task_can_not_run_again(driver):
    driver.submit(task(1))
    driver.grant()
    assert DropPayload(key=tid(1)) in driver.finish(1)


def test_the_arguments_payload_stays_while_a_large_result_may_have_to_be_made_again(driver):
    assert DropPayload(key=tid(1)) not in driver.run(1, inline=False)
    assert DropPayload(key=tid(1)) in driver(dropped(oid(1)))


def test_a_value_lives_in_the_values_that_contain_it(driver):
    driver.put(1)
    driver.put(2, nested=(ref(put_id(1)),))
    assert driver(dropped(put_id(1))) == []
    assert driver(dropped(put_id(2))) == [DropPayload(key=put_id(2)), DropPayload(key=put_id(1))]


def borrowed(object_id, borrower: str = OTHER) -> BorrowAdded:
    return BorrowAdded(object_id=object_id, borrower=Address(borrower))


def test_a_borrower_is_noted_acknowledged_and_keeps_the_value(driver):
    driver.put(1)
    assert sends(driver(borrowed(put_id(1)))) == [(OTHER, "BorrowAcknowledged")]
    assert driver(dropped(put_id(1))) == []
    removed = driver(BorrowRemoved(object_id=put_id(1), borrower=OTHER))
    assert removed == [DropPayload(key=put_id(1))]


def test_a_borrow_of_what_is_gone_is_acknowledged_too(driver):
    assert sends(driver(borrowed(put_id(1)))) == [(OTHER, "BorrowAcknowledged")]


@pytest.mark.parametrize(
    "death",
    [
        OwnerDied(address=OTHER),
        NodeDied(node=NodeID("node-1"), incarnation=0),
        NodeDied(node=NodeID("node-1"), incarnation=3),
    ],
)
def test_a_borrower_that_died_keeps_nothing(driver, death):
    driver.put(1)
    driver(borrowed(put_id(1)), dropped(put_id(1)))
    assert driver(death) == [DropPayload(key=put_id(1))]


def test_a_borrow_that_comes_after_the_news_of_the_borrowers_death_keeps_nothing(driver):
    """The node manager, which is asked about everybody who is met, knows of it."""
    node = NodeStepper()
    driver.put(1)
    driver(borrowed(put_id(1)))
    (first,) = sent(driver(OwnerDied(address=OTHER), borrowed(put_id(1))), PeerMet, NODE)
    node(OwnerDied(address=OTHER))
    driver(dropped(put_id(1)))
    assert driver(*sent(node(first), OwnerDied, DRIVER)) == [DropPayload(key=put_id(1))]


def test_the_death_of_an_earlier_life_of_a_borrowers_node_changes_nothing(driver):
    driver.put(1)
    driver(borrowed(put_id(1), "node-1~2/w0"), dropped(put_id(1)))
    assert driver(NodeDied(node=NodeID("node-1"), incarnation=1)) == []


def test_a_reference_from_elsewhere_is_borrowed_once(driver):
    commands = driver(RefsAdded(refs=(ref(oid(9), OTHER), ref(oid(9), OTHER))))
    assert sends(commands) == [(OTHER, "BorrowAdded")]
    driver.acknowledged(oid(9))
    assert driver(dropped(oid(9))) == []
    assert sends(driver(dropped(oid(9)))) == [(OTHER, "BorrowRemoved")]


def test_a_borrow_that_ends_before_it_was_acknowledged_ends_at_once(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    assert sends(driver(dropped(oid(9)))) == [(OTHER, "BorrowRemoved")]


def test_no_borrow_ends_while_another_is_not_acknowledged(driver):
    """It may be what keeps that other object alive."""
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.acknowledged(oid(9))
    driver(RefsAdded(refs=(ref(oid(8), "node-2/w0"),)))
    assert driver(dropped(oid(9))) == []
    assert sends(driver.acknowledged(oid(8))) == [(OTHER, "BorrowRemoved")]


def test_a_borrow_whose_end_was_held_back_and_that_began_anew_does_not_end(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.acknowledged(oid(9))
    driver(RefsAdded(refs=(ref(oid(8), "node-2/w0"),)), dropped(oid(9)), RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.acknowledged(oid(8))
    assert sent(driver.acknowledged(oid(9)), BorrowRemoved) == []


def test_an_owner_that_dies_takes_what_was_not_read_with_it(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.wait(1, ref(oid(9), OTHER))
    commands = driver(OwnerDied(address=OTHER))
    assert completed(commands) == [(1, (oid(9),))]
    assert driver.machine.values.table[oid(9)].error.kind is ErrorKind.OWNER_DIED
    assert error_of(driver, oid(9)).startswith("Object 09090909:0 is lost: node-1/w0, which owned it, died. Keep ")


def test_a_small_value_outlives_its_owner_where_it_was_read(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.wait(1, ref(oid(9), OTHER))
    driver(ValueReported(object_id=oid(9), state=ValueState.INLINE, size_bytes=10), OwnerDied(address=OTHER))
    assert driver.machine.values.table[oid(9)].state is ValueState.INLINE


def test_an_owner_answers_with_the_bytes_when_the_value_is_small(driver):
    driver.put(1)
    assert driver(ValueRequested(object_id=put_id(1), requester=OTHER)) == [
        Send(
            to=OTHER,
            message=ValueReported(object_id=put_id(1), state=ValueState.INLINE, size_bytes=10),
            payloads=(put_id(1),),
        )
    ]


def test_an_owner_answers_with_the_place_when_the_value_is_large(driver):
    driver.put(1, inline=False)
    (answer,) = of(driver(ValueRequested(object_id=put_id(1), requester=OTHER)), Send)
    assert answer.message == ValueReported(object_id=put_id(1), state=ValueState.STORED, size_bytes=1000)
    assert answer.payloads == ()


def test_an_owner_answers_with_the_exception_when_the_task_raised(driver):
    driver.run(1, failed=RAISED)
    (answer,) = of(driver(ValueRequested(object_id=oid(1), requester=OTHER)), Send)
    assert answer.message == ValueReported(object_id=oid(1), state=ValueState.FAILED, size_bytes=0, error=RAISED)
    assert answer.payloads == (oid(1),)


def test_an_owner_answers_once_the_value_is_ready(driver):
    driver.submit(task(1))
    driver.grant()
    (answer,) = sent(driver(ValueRequested(object_id=oid(1), requester=OTHER)), ValueReported)
    assert answer.state is ValueState.PENDING
    assert [answer.state for answer in sent(driver.finish(1), ValueReported, OTHER)] == [ValueState.INLINE]


def test_an_owner_answers_for_what_it_has_freed_with_failure(driver):
    (answer,) = sent(driver(ValueRequested(object_id=oid(1), requester=OTHER)), ValueReported)
    assert (answer.state, answer.error.kind) == (ValueState.FAILED, ErrorKind.OBJECT_LOST)


def test_a_reference_of_ours_that_comes_back_after_we_freed_it_fails(driver):
    driver(RefsAdded(refs=(ref(oid(1)),)))
    assert completed(driver.wait(1, ref(oid(1)))) == [(1, (oid(1),))]
    assert error_of(driver, oid(1)) == "Object 01010101:0 was freed, because its last reference had been dropped."
    driver(dropped(oid(1)))
    assert not driver.machine.values.table


def test_an_answer_that_nobody_waits_for_any_more_is_dropped(driver):
    reported = ValueReported(object_id=oid(9), state=ValueState.INLINE, size_bytes=10)
    assert driver(reported) == [DropPayload(key=oid(9))]


def test_results_that_carry_references_are_taken_when_their_owner_has_acknowledged(driver):
    driver.submit(task(1))
    driver.grant()
    commands = driver.finish(1, nested=(ref(oid(7), WORKER),))
    assert sends(commands) == [(WORKER, "BorrowAdded")]
    assert sends(driver.acknowledged(oid(7))) == [(WORKER, "ResultsTaken")]


def test_results_that_carry_references_of_our_own_are_taken_at_once(driver):
    driver.put(1)
    driver.submit(task(1))
    driver.grant()
    assert sends(driver.finish(1, nested=(ref(put_id(1)),))) == [(WORKER, "ResultsTaken")]


# ---- Waits ----------------------------------------------------------------------------------------------------------


def test_a_wait_for_what_is_ready_ends_at_once(driver):
    driver.put(1)
    assert driver.wait(1, ref(put_id(1))) == [CompleteWait(wait_id=WaitID(1), ready=(put_id(1),))]


def test_a_wait_ends_when_enough_is_ready_and_says_what_is(driver):
    driver.submit(task(1), task(2), task(3))
    for number in range(3):
        driver.grant(number, request=number)
    assert completed(driver.wait(1, ref(oid(1)), ref(oid(2)), ref(oid(3)), num_ready=2)) == []
    assert completed(driver.finish(3, worker="node-0/w2")) == []
    assert completed(driver.finish(1)) == [(1, (oid(1), oid(3)))]


def test_a_wait_that_finds_more_than_it_asked_for_says_so(driver):
    driver.put(1)
    driver.put(2)
    assert completed(driver.wait(1, ref(put_id(2)), ref(put_id(1)), num_ready=1)) == [(1, (put_id(2), put_id(1)))]


def test_what_is_stored_somewhere_is_ready_for_a_wait_that_does_not_fetch(driver):
    driver.run(1, inline=False)
    assert completed(driver.wait(1, ref(oid(1)), fetch=False)) == [(1, (oid(1),))]


def test_what_is_stored_somewhere_is_brought_here_for_a_wait_that_fetches(driver):
    driver.run(1, inline=False)
    commands = driver.wait(1, ref(oid(1)))
    assert sent(commands, ObjectWanted, NODE) == [ObjectWanted(object_id=oid(1), owner=DRIVER, requester=DRIVER)]
    commands = driver.arrived(oid(1))
    assert completed(commands) == [(1, (oid(1),))]
    assert sends(commands) == [(NODE, "ObjectReleased")]


def test_what_was_read_stays_pinned_until_its_last_view_is_gone(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)), read=True)
    assert sent(driver.arrived(oid(1)), ObjectReleased) == []
    assert completed(driver.wait(2, ref(oid(1)), read=True)) == [(2, (oid(1),))]
    assert driver(ViewReleased(object_id=oid(1))) == []
    assert sends(driver(ViewReleased(object_id=oid(1)))) == [(NODE, "ObjectReleased")]


def test_a_view_outlives_the_references(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)), read=True)
    driver.arrived(oid(1))
    assert sends(driver(dropped(oid(1)))) == [(HEAD, "ObjectsFreed")]
    assert sends(driver(ViewReleased(object_id=oid(1)))) == [(NODE, "ObjectReleased")]


def test_two_waits_bring_an_object_here_once(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)))
    assert sent(driver.wait(2, ref(oid(1))), ObjectWanted) == []
    assert completed(driver.arrived(oid(1))) == [(1, (oid(1),)), (2, (oid(1),))]


def test_a_read_ends_early_when_one_of_its_objects_has_failed(driver):
    driver.submit(task(1), task(2))
    driver.grant(0, request=0)
    driver.grant(1, request=1)
    driver.wait(1, ref(oid(1)), ref(oid(2)), read=True)
    assert completed(driver.finish(2, worker="node-0/w1", failed=RAISED)) == [(1, (oid(2),))]


def test_a_wait_counts_what_has_failed_as_ready(driver):
    driver.submit(task(1), task(2))
    driver.grant()
    driver.wait(1, ref(oid(1)), ref(oid(2)))
    assert completed(driver.finish(1, failed=RAISED)) == []


def test_a_wait_ends_at_its_timeout_with_what_is_ready(driver):
    driver.put(1)
    driver.submit(task(2))
    commands = driver.wait(7, ref(put_id(1)), ref(oid(2)), timeout_ns=5 * MS)
    assert of(commands, ArmTimer) == [ArmTimer(timer="wait:7", delay_ns=5 * MS)]
    assert driver(TimerFired(timer="wait:7")) == [CompleteWait(wait_id=WaitID(7), ready=(put_id(1),))]


def test_a_wait_that_ends_before_its_timeout_stops_the_clock(driver):
    driver.submit(task(1))
    driver.grant()
    driver.wait(7, ref(oid(1)), timeout_ns=5 * MS)
    assert CancelTimer(timer="wait:7") in driver.finish(1)
    assert driver(TimerFired(timer="wait:7")) == []


def test_timeout_0_asks_what_is_ready_now(driver):
    driver.submit(task(1))
    commands = driver.wait(1, ref(oid(1)), timeout_ns=0)
    assert completed(commands) == [(1, ())]
    assert of(commands, ArmTimer) == []


def test_a_task_that_waits_lends_its_cpu(worker):
    worker.pushed(task(1, owner=OTHER))
    worker.submit(task(2, owner=WORKER))
    assert sends(worker.wait(1, ref(oid(2), WORKER), of_task=1)) == [(NODE, "WorkerBlocked")]
    worker.grant(5)
    assert sent(worker.finish(2, worker="node-0/w5"), WorkerUnblocked) == [WorkerUnblocked(worker=WORKER)]


def test_a_task_that_gets_a_borrowed_value_lends_its_cpu_only_when_that_takes_long(worker):
    worker.pushed(task(1, owner="driver-2"), reply_to="driver-2")
    commands = worker.wait(1, ref(oid(2), OTHER), of_task=1)
    assert sends(commands) == [(OTHER, "ValueRequested")]
    assert of(commands, ArmTimer) == [ArmTimer(timer="brief:1", delay_ns=BRIEF_NS)]
    answered = worker(ValueReported(object_id=oid(2), state=ValueState.INLINE, size_bytes=10))
    assert completed(answered) == [(1, (oid(2),))]
    assert CancelTimer(timer="brief:1") in answered
    assert worker(TimerFired(timer="brief:1")) == [], "it was under way"
    worker.wait(2, ref(oid(3), OTHER), of_task=1)
    assert sends(worker(TimerFired(timer="brief:2"))) == [(NODE, "WorkerBlocked")]
    assert (NODE, "WorkerUnblocked") in sends(
        worker(ValueReported(object_id=oid(3), state=ValueState.INLINE, size_bytes=10))
    )


def test_a_task_that_gets_a_borrowed_value_lends_its_cpu_when_the_owner_has_none(worker):
    worker.pushed(task(1, owner="driver-2"), reply_to="driver-2")
    worker.wait(1, ref(oid(2), OTHER), of_task=1)
    pending = worker(ValueReported(object_id=oid(2), state=ValueState.PENDING, size_bytes=0))
    assert pending == [ArmTimer(timer="brief:1", delay_ns=0)]
    assert sends(worker(TimerFired(timer="brief:1"))) == [(NODE, "WorkerBlocked")]
    assert sends(worker.wait(2, ref(oid(2), OTHER), of_task=1)) == [(NODE, "WorkerBlocked")], "it knows already"


def test_an_actor_whose_method_waits_keeps_its_cpu(worker):
    worker.machine.executor.values.waiting.keeps_cpu = True
    worker.pushed(task(1, owner=OTHER))
    worker.submit(task(2, owner=WORKER))
    commands = worker.wait(1, ref(oid(2), WORKER), of_task=1)
    assert sent(commands, WorkerBlocked) == [WorkerBlocked(worker=WORKER, lends=False)]


def test_a_task_that_finds_what_it_waits_for_keeps_its_cpu(worker):
    worker.pushed(task(1, owner=OTHER))
    worker.put(1)
    assert sent(worker.wait(1, ref(put_id(1), WORKER), of_task=1), WorkerBlocked) == []


def test_a_driver_that_waits_has_no_cpu_to_lend(driver):
    driver.submit(task(1))
    assert sent(driver.wait(1, ref(oid(1))), WorkerBlocked) == []


def test_an_object_that_can_not_come_fails_the_borrowers_wait(driver):
    driver(RefsAdded(refs=(ref(oid(9), OTHER),)))
    driver.wait(1, ref(oid(9), OTHER))
    driver(ValueReported(object_id=oid(9), state=ValueState.STORED, size_bytes=1000))
    lost = error(ErrorKind.OBJECT_LOST, "gone")
    assert completed(driver(ObjectUnavailable(object_id=oid(9), error=lost))) == [(1, (oid(9),))]
    assert error_of(driver, oid(9)) == "gone"


def test_an_object_for_which_there_is_no_room_now_may_be_asked_for_again(driver):
    driver.run(1, inline=False)
    driver.wait(1, ref(oid(1)))
    full = error(ErrorKind.STORE_FULL, "full")
    assert completed(driver(ObjectUnavailable(object_id=oid(1), error=full))) == [(1, (oid(1),))]
    assert error_of(driver, oid(1)) == "full"
    assert sends(driver.wait(2, ref(oid(1)))) == [(NODE, "ObjectWanted")]
    assert completed(driver.arrived(oid(1))) == [(2, (oid(1),))]


# ---- A worker's side ------------------------------------------------------------------------------------------------


def test_a_borrow_from_two_processes_ends_with_the_last(driver):
    driver.put(1)
    driver(borrowed(put_id(1)), borrowed(put_id(1), "node-2/w0"), dropped(put_id(1)))
    assert driver(BorrowRemoved(object_id=put_id(1), borrower=OTHER)) == []
    removed = driver(BorrowRemoved(object_id=put_id(1), borrower=Address("node-2/w0")))
    assert removed == [DropPayload(key=put_id(1))]


def test_an_acknowledgement_of_nothing_is_nothing(driver):
    assert driver(BorrowAcknowledged(object_id=oid(9))) == []
