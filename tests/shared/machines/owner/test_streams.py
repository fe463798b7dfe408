"""Generators, at their consumer (streams.py) and where they run (production.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualray.shared.model.commands import CompleteWait, DropPayload
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ItemMade,
    ItemReported,
    ItemsDoubted,
    ItemsEnded,
    ItemsRead,
    ItemTaken,
    ObjectDemanded,
    ObjectFailed,
    ObjectsFreed,
    OwnerDied,
    RefsDropped,
    Result,
    ResultsTaken,
    TaskFinished,
    TaskPushed,
    TasksRecalled,
    TaskUnwanted,
    WorkerBlocked,
)
from dualray.shared.model.ids import HEAD, Address, put_object_id, stream_handle_id, stream_room_id
from dualray.shared.model.specs import Streaming
from dualray.shared.model.states import ValueState
from tests.shared.builders import (
    CRASH,
    OTHER,
    RAISED,
    OwnerStepper,
    of,
    oid,
    ref,
    sent,
    task,
    tid,
)

W0 = Address("node-0/w0")
W1 = Address("node-0/w1")


def generator(number=1, *, ahead_max=0, streaming=Streaming.STREAMING, max_retries=3, **options):
    spec = task(number, max_retries=max_retries, **options)
    spec.template = replace(spec.template, streaming=streaming, items_ahead_max=ahead_max)
    return spec


def started(**options) -> OwnerStepper:
    """A driver whose generator, task 1, runs on worker 0."""
    driver = OwnerStepper()
    driver.submit(generator(**options))
    driver.grant()
    return driver


def item(index, *, inline=True, attempt=0, worker=W0, nested=(), size_bytes=10):
    result = Result(object_id=oid(1, index), size_bytes=size_bytes, inline=inline, nested=nested)
    return ItemReported(task_id=tid(1), attempt=attempt, worker=worker, result=result)


def taken(driver, index):
    assert driver.machine.values.table[oid(1, index)].state in (ValueState.INLINE, ValueState.STORED, ValueState.FAILED)
    return driver(ItemTaken(task_id=tid(1)))


def dropped(*object_ids):
    return RefsDropped(object_ids=object_ids)


def state_of(driver, index):
    value = driver.machine.values.table.get(oid(1, index))
    return None if value is None else value.state


HANDLE = stream_handle_id(tid(1))

# ---- The consumer ----------------------------------------------------------------------------------------------------


def test_who_waits_for_the_next_item_goes_on_when_it_is_reported():
    driver = started()
    assert not of(driver.wait(7, ref(oid(1, 1)), fetch=False), CompleteWait)
    assert of(driver(item(1)), CompleteWait) == [CompleteWait(wait_id=7, ready=(oid(1, 1),))]


def test_items_that_are_not_taken_are_kept_and_go_with_their_consumer():
    driver = started()
    driver(item(1), item(2), item(3, inline=False))
    taken(driver, 1)
    assert [state_of(driver, index) for index in (1, 2, 3)] == ["INLINE", "INLINE", "STORED"]
    commands = driver(dropped(HANDLE, oid(1, 2), oid(1, 0)))
    assert [state_of(driver, index) for index in (1, 2, 3)] == ["INLINE", None, None]
    assert [message.object_ids for message in sent(commands, ObjectsFreed, HEAD)] == [(oid(1, 3),)]


def test_the_end_is_an_item_that_there_is_not():
    driver = started()
    driver(item(1))
    driver.wait(7, ref(oid(1, 1)), fetch=False)
    taken(driver, 1)
    driver.wait(8, ref(oid(1, 2)), fetch=False)
    assert of(driver.finish(1), CompleteWait) == [CompleteWait(wait_id=8, ready=(oid(1, 2),))]
    streams = driver.machine.tasks.streams
    assert streams.has_ended_before(tid(1), 2)
    assert not streams.has_ended_before(tid(1), 1)


def test_an_error_is_the_next_item_and_then_it_ends():
    driver = started()
    driver(item(1))
    driver.finish(1, failed=RAISED)
    assert state_of(driver, 2) is ValueState.FAILED
    assert driver.machine.values.table[oid(1, 2)].error.kind is ErrorKind.APPLICATION
    streams = driver.machine.tasks.streams
    assert not streams.has_ended_before(tid(1), 2)
    assert streams.has_ended_before(tid(1), 3)


def test_nothing_is_left_when_everything_was_taken_and_dropped():
    driver = started()
    driver(item(1), item(2, inline=False))
    taken(driver, 1)
    taken(driver, 2)
    driver.finish(1)
    driver(dropped(oid(1, 0), oid(1, 1), oid(1, 2), oid(1, 3), HANDLE))
    assert not driver.machine.values.table
    assert not driver.machine.tasks.records
    assert not driver.machine.tasks.streams.consumed


def test_an_attempt_that_makes_an_item_again_gives_nothing_twice():
    driver = started()
    driver(item(1), item(2))
    taken(driver, 1)
    driver(dropped(oid(1, 1)))
    driver.worker_died()
    driver.grant(1, request=1)
    commands = driver(item(1, attempt=1, worker=W1))
    assert of(commands, DropPayload) == [DropPayload(key=oid(1, 1))]  # it was taken and dropped
    driver(item(2, attempt=1, worker=W1), item(3, attempt=1, worker=W1))
    assert [state_of(driver, index) for index in (1, 2, 3)] == [None, "INLINE", "INLINE"]
    assert driver.machine.tasks.records[tid(1)].stream.reported == 3


def test_late_news_of_an_attempt_that_was_given_up_is_dropped():
    driver = started()
    driver.worker_died()
    commands = driver(item(1))
    assert of(commands, DropPayload) == [DropPayload(key=oid(1, 1))]
    commands = driver(item(2, inline=False))
    assert [message.object_ids for message in sent(commands, ObjectsFreed, HEAD)] == [(oid(1, 2),)]
    assert driver.machine.tasks.records[tid(1)].stream.reported == 0


def test_without_an_attempt_left_the_death_of_the_worker_is_the_next_item():
    driver = started(max_retries=0)
    driver(item(1))
    commands = driver.worker_died()
    assert driver.machine.values.table[oid(1, 2)].error.kind is CRASH.kind
    assert oid(1, 2) in [message.object_id for message in sent(commands, ObjectFailed, HEAD)]  # it may be sealed


@pytest.mark.parametrize("retries", [0, 1])
def test_items_of_which_the_news_may_be_lost_are_asked_about_when_it_ends(retries):
    driver = started(max_retries=retries)
    commands = driver.worker_died()
    if retries:
        assert not sent(commands, ItemsDoubted)
        driver.grant(1, request=1)
        commands = driver.finish(1, attempt=1, worker=W1)
    assert sent(commands, ItemsDoubted, HEAD) == [ItemsDoubted(task_id=tid(1))]


@pytest.mark.parametrize("failed", [None, RAISED])
def test_nothing_is_asked_about_when_the_only_attempt_has_ended_by_itself(failed):
    driver = started(max_retries=0)
    assert not sent(driver.finish(1, failed=failed), ItemsDoubted)


def test_references_in_an_item_are_acknowledged_to_its_worker():
    driver = started()
    inner = put_object_id(tid(1), 0, 1)
    driver(item(1, nested=(ref(inner, W0),)))
    commands = driver.acknowledged(inner)
    assert sent(commands, ResultsTaken, W0) == [ResultsTaken(task_id=tid(1), attempt=0, index=1)]


def test_when_its_consumer_is_gone_a_generator_is_told_so_at_its_next_item():
    driver = started()
    driver(item(1), dropped(oid(1, 0), oid(1, 1), HANDLE))
    assert sent(driver(item(2)), ItemsRead, W0)[-1].is_wanted is False


def test_who_holds_its_end_lets_it_go_on():
    driver = started(ahead_max=2)
    [told] = sent(driver(dropped(oid(1, 1), HANDLE)), ItemsRead, W0)
    assert told.is_wanted
    assert told.taken > 1_000_000


def test_an_attempt_that_was_given_up_is_told_so_when_it_makes_an_item():
    """Else a method that may be no further ahead, whose caller has lost the connection, kept its actor for ever."""
    driver = started(ahead_max=1)
    driver.worker_died()
    driver.grant(1, request=1)
    [told] = sent(driver(item(1)), ItemsRead, W0)
    assert told == ItemsRead(task_id=tid(1), attempt=0, taken=1 << 62, is_wanted=False)


def test_only_who_may_be_held_back_is_told_what_was_taken():
    for ahead_max, told in ((0, []), (2, [ItemsRead(task_id=tid(1), attempt=0, taken=1, is_wanted=True)])):
        driver = started(ahead_max=ahead_max)
        driver(item(1))
        assert sent(taken(driver, 1), ItemsRead, W0) == told


def test_a_new_attempt_is_told_what_was_taken_before():
    driver = started(ahead_max=1)
    driver(item(1))
    taken(driver, 1)
    driver.worker_died()
    driver.grant(1, request=1)
    [told] = sent(driver(item(1, attempt=1, worker=W1)), ItemsRead, W1)
    assert (told.attempt, told.taken) == (1, 1)


# ---- Items that are lost ---------------------------------------------------------------------------------------------


def lost(driver, index, losses=1, *, was_evicted=False):
    return driver(ObjectDemanded(object_id=oid(1, index), losses=losses, was_evicted=was_evicted))


def test_an_item_that_was_lost_has_the_task_run_again():
    driver = started()
    driver(item(1, inline=False), item(2, inline=False))
    taken(driver, 1)
    driver.finish(1)
    driver(*lost_and_pushed(driver))
    assert state_of(driver, 1) is ValueState.PENDING
    driver(item(1, inline=False, attempt=1))
    assert [state_of(driver, index) for index in (1, 2)] == ["STORED", "STORED"]


def lost_and_pushed(driver, *, was_evicted=False):
    """Item 1 is lost, and its task is pushed again to the worker that it has a lease of."""
    commands = lost(driver, 1, was_evicted=was_evicted) + driver.push_deferred()
    assert [push.attempt for push in sent(commands, TaskPushed, W0)] == [1]
    return ()


def test_an_item_that_an_attempt_has_passed_when_it_is_lost_has_it_run_once_more():
    driver = started()
    driver(item(1, inline=False))
    taken(driver, 1)
    lost(driver, 1)
    assert state_of(driver, 1) is ValueState.PENDING
    commands = driver.finish(1) + driver.push_deferred()
    assert [push.attempt for push in sent(commands, TaskPushed, W0)] == [1]
    driver(item(1, inline=False, attempt=1))
    assert state_of(driver, 1) is ValueState.STORED


def test_an_item_that_is_not_made_again_fails():
    driver = started()
    driver(item(1, inline=False))
    taken(driver, 1)
    driver.finish(1)
    driver(*lost_and_pushed(driver))
    commands = driver.finish(1, attempt=1)
    value = driver.machine.values.table[oid(1, 1)]
    assert value.error.kind is ErrorKind.RECONSTRUCTION_FAILED
    assert "yielded only 0 items when it ran again" in value.error.message
    assert sent(commands, ObjectFailed, HEAD) == [ObjectFailed(object_id=oid(1, 1), error=value.error)]


def test_nodes_are_told_of_an_item_that_is_an_error_when_it_is_made_again():
    driver = started(streaming=Streaming.DYNAMIC)
    driver(item(1, inline=False))
    driver.finish(1, nested=(ref(oid(1, 1)),))
    driver(*lost_and_pushed(driver))
    raised = ErrorInfo(kind=ErrorKind.APPLICATION, message="the store is full")
    commands = driver(replace(item(1, attempt=1), error=raised))
    assert state_of(driver, 1) is ValueState.FAILED
    assert sent(commands, ObjectFailed, HEAD) == [ObjectFailed(object_id=oid(1, 1), error=raised)]


def test_a_generator_that_runs_again_for_an_item_is_closed_when_it_has_made_it():
    driver = started()
    driver(item(1, inline=False), item(2, inline=False))
    taken(driver, 1)
    driver.finish(1)
    driver(dropped(oid(1, 0), oid(1, 2), HANDLE))
    driver(*lost_and_pushed(driver))
    assert sent(driver(item(1, inline=False, attempt=1)), ItemsRead, W0)[-1].is_wanted is False


def two_items_of_which_the_first_is_made_again(*, was_evicted) -> OwnerStepper:
    driver = started()
    driver(item(1, inline=False), item(2, inline=False))
    taken(driver, 1)
    taken(driver, 2)
    driver.finish(1)
    driver(dropped(oid(1, 0), HANDLE))
    driver(*lost_and_pushed(driver, was_evicted=was_evicted))
    return driver


def test_after_the_loss_of_a_node_it_goes_on_to_the_last_item_that_is_kept():
    driver = two_items_of_which_the_first_is_made_again(was_evicted=False)
    assert not sent(driver(item(1, inline=False, attempt=1)), ItemsRead, W0)
    assert sent(driver(item(2, inline=False, attempt=1)), ItemsRead, W0)[-1].is_wanted is False
    assert [state_of(driver, index) for index in (1, 2)] == ["STORED", "STORED"]


def test_an_item_that_is_lost_when_the_generator_was_told_to_make_no_more_has_it_go_on():
    driver = two_items_of_which_the_first_is_made_again(was_evicted=True)
    assert sent(driver(item(1, inline=False, attempt=1)), ItemsRead, W0)[-1].is_wanted is False
    assert sent(lost(driver, 2), ItemsRead, W0)[-1].is_wanted


def test_an_item_that_is_lost_when_the_generator_has_been_closed_has_it_run_once_more():
    driver = two_items_of_which_the_first_is_made_again(was_evicted=True)
    driver(item(1, inline=False, attempt=1))
    lost(driver, 2)
    commands = driver.finish(1, attempt=1) + driver.push_deferred()
    assert [push.attempt for push in sent(commands, TaskPushed, W0)] == [2]
    assert state_of(driver, 2) is ValueState.PENDING
    driver.finish(1, attempt=2)
    assert "yielded only 0 items when it ran again" in driver.machine.values.table[oid(1, 2)].error.message


# ---- Dynamic ---------------------------------------------------------------------------------------------------------


def test_the_items_of_a_dynamic_generator_are_kept_until_its_result_refers_to_them():
    driver = started(streaming=Streaming.DYNAMIC)
    driver(item(1), item(2))
    assert [state_of(driver, index) for index in (1, 2)] == ["INLINE", "INLINE"]
    driver.finish(1, nested=(ref(oid(1, 1)), ref(oid(1, 2))))
    assert [state_of(driver, index) for index in (1, 2)] == ["INLINE", "INLINE"]
    driver(dropped(oid(1, 0)))
    assert not driver.machine.values.table


def test_the_items_of_a_dynamic_generator_that_fails_are_freed():
    driver = started(streaming=Streaming.DYNAMIC)
    driver(item(1))
    driver.finish(1, failed=RAISED)
    driver(dropped(oid(1, 0)))
    assert not driver.machine.values.table
    assert not driver.machine.tasks.records


# ---- Where it runs ---------------------------------------------------------------------------------------------------


def made(index, *, ahead_max=0, nested=(), owner=OTHER):
    result = Result(object_id=oid(1, index), size_bytes=10, inline=True, nested=nested)
    return ItemMade(task_id=tid(1), attempt=0, owner=owner, result=result, ahead_max=ahead_max)


def running() -> OwnerStepper:
    """A worker that runs a generator, task 1, of another process."""
    worker = OwnerStepper(W0)
    worker.pushed(generator(owner=OTHER))
    return worker


def test_items_are_reported_as_they_are_made():
    worker = running()
    [report] = sent(worker(made(1)), ItemReported, OTHER)
    assert (report.worker, report.result.object_id) == (W0, oid(1, 1))


def test_an_item_waits_for_the_borrows_of_its_process_and_so_does_the_end():
    worker = running()
    foreign = put_object_id(tid(9), 0, 1)
    worker.machine.values.references.add((ref(foreign, "node-2/w0"),))
    worker.machine.out.commands.clear()
    assert not sent(worker(made(1)), ItemReported)
    worker(ItemsEnded(task_id=tid(1), attempt=0))
    assert not sent(worker.ran(1), TaskFinished)
    names = [type(message).__name__ for message in sent(worker.acknowledged(foreign), object, OTHER)]
    assert names == ["ItemReported", "TaskFinished"]


def test_a_generator_that_is_ahead_waits_and_lends_its_cpu():
    worker = running()
    worker(made(1, ahead_max=2))
    production = worker.machine.production
    assert production.room_for(tid(1), 0) is None
    worker(made(2, ahead_max=2))
    room = production.room_for(tid(1), 0)
    assert room == stream_room_id(tid(1))
    commands = worker.wait(5, ref(room, W0), fetch=False, of_task=1)
    assert sent(commands, WorkerBlocked)
    commands = worker(ItemsRead(task_id=tid(1), attempt=0, taken=1, is_wanted=True))
    assert [wait.wait_id for wait in of(commands, CompleteWait)] == [5]
    assert production.room_for(tid(1), 0) is None
    worker(made(3, ahead_max=2))
    assert production.room_for(tid(1), 0) == room
    worker(ItemsEnded(task_id=tid(1), attempt=0))
    assert not worker.machine.values.table


def test_what_stands_behind_a_generator_that_waits_is_given_back():
    worker = running()
    worker(made(1, ahead_max=1))
    room = worker.machine.production.room_for(tid(1), 0)
    worker.wait(5, ref(room, W0), fetch=False, of_task=1)
    commands = worker.pushed(task(2, owner=OTHER))
    assert [recalled.tasks for recalled in sent(commands, TasksRecalled, OTHER)] == [(tid(2),)]


def test_news_for_another_attempt_opens_nothing():
    worker = running()
    worker(made(1, ahead_max=1), ItemsRead(task_id=tid(1), attempt=3, taken=9, is_wanted=False))
    assert worker.machine.production.room_for(tid(1), 0) is not None
    assert worker.machine.production.is_wanted(tid(1), 0)


@pytest.mark.parametrize(
    "news", [OwnerDied(address=OTHER), ItemsRead(task_id=tid(1), attempt=0, taken=0, is_wanted=False)]
)
def test_a_generator_that_nobody_wants_is_not_held_back(news):
    worker = running()
    worker(made(1, ahead_max=1), news)
    assert worker.machine.production.room_for(tid(1), 0) is None
    assert not worker.machine.production.is_wanted(tid(1), 0)


def test_references_in_an_item_are_held_until_its_owner_has_them():
    worker = running()
    inner = put_object_id(tid(1), 0, 1)
    worker.machine.values.references.owned(inner)
    worker.machine.values.set_inline(worker.machine.values.table[inner], 1)
    assert inner not in worker.machine.values.table  # nobody holds it
    worker.machine.values.references.owned(inner).local_refs += 1
    worker(made(1, nested=(ref(inner, W0),)), dropped(inner))
    assert inner in worker.machine.values.table
    worker(ResultsTaken(task_id=tid(1), attempt=0, index=1))
    assert not worker.machine.production.in_transit


def test_a_cancelled_generator_that_waits_for_room_is_interrupted():
    worker = running()
    worker(made(1, ahead_max=1))
    room = worker.machine.production.room_for(tid(1), 0)
    worker.wait(5, ref(room, W0), fetch=False, of_task=1)
    commands = worker(TaskUnwanted(task_id=tid(1), attempt=0, force=False, recursive=True))
    assert [type(command).__name__ for command in commands] == ["InterruptTask"]
