"""Actors whose methods are coroutines, and references that are awaited; in sim mode the loops run on virtual time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time

import pytest

import dualray as ray
from dualray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    DualrayError,
    PendingCallsLimitExceeded,
    TaskCancelledError,
    TaskError,
)
from dualray.util.queue import Empty, Full, Queue
from tests.conformance.support import MIB, eventually, get, get_when_up, in_words, stderr_so_far

pytestmark = pytest.mark.usefixtures("cluster")
WITHIN_S = 20.0


def run(coroutine):
    """`asyncio.run` that is late after WITHIN_S instead of hanging."""

    async def limited():
        return await asyncio.wait_for(coroutine, WITHIN_S)

    return asyncio.run(limited())


@ray.remote
def square(x, seconds=0.0):
    time.sleep(seconds)
    return x * x


@ray.remote
def fail():
    raise KeyError("in a task")


@ray.remote
def slow_child(tally):
    try:
        tally.add("child begun")
        time.sleep(30)
    finally:
        tally.add("child over")


@ray.remote(concurrency_groups={"io": 2, "busy": 1})
class Grouped:
    def __init__(self):
        self.running = self.peak = 0
        self.blocked = threading.Event()

    @ray.method(concurrency_group="io")
    async def io(self, seconds):
        self.running += 1
        self.peak = max(self.peak, self.running)
        await asyncio.sleep(seconds)
        self.running -= 1
        return self.peak

    @ray.method(concurrency_group="busy")
    async def block(self):
        return self.blocked.wait(15)

    @ray.method(concurrency_group="busy", num_returns=2)
    def pair(self):
        return 1, 2

    async def release(self):
        self.blocked.set()
        return "released"


@ray.remote
class Async:
    def __init__(self):
        self.event = asyncio.Event()
        self.lock = asyncio.Lock()
        self.running = self.peak = self.n = 0
        self.log = []

    async def wait(self):
        await self.event.wait()
        return "woken"

    async def set(self):
        self.event.set()

    async def sleep(self, seconds):
        self.running += 1
        self.peak = max(self.peak, self.running)
        before = time.monotonic()
        await asyncio.sleep(seconds)
        self.running -= 1
        return time.monotonic() - before

    async def peaks(self):
        return self.peak

    async def add(self):
        async with self.lock:
            before = self.n
            await asyncio.sleep(0.001)
            self.n = before + 1
        return self.n

    async def note(self, index):
        self.log.append(index)
        await asyncio.sleep(0)

    def noted(self):
        return self.log

    async def squares(self, count):
        return sum(await asyncio.gather(*[square.remote(x) for x in range(count)]))

    async def each(self, refs):
        return [await ref for ref in refs]

    async def first_of(self, count):
        tasks = {asyncio.ensure_future(self._named(x)) for x in range(count)}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return [task.result() for task in done]

    async def _named(self, x):
        return await square.remote(x)

    async def in_order(self, count):
        return [await each for each in asyncio.as_completed([self._named(x) for x in range(count)])]

    async def beside(self):
        return await asyncio.to_thread(lambda: ray.get(square.remote(6)))

    async def ids(self):
        context = ray.get_runtime_context()
        before = context.get_task_id()
        await asyncio.sleep(0.002)
        return before, ray.get_runtime_context().get_task_id(), context.get_task_name(), ray.put(1)

    async def catch(self):
        try:
            await fail.remote()
        except KeyError as error:
            return isinstance(error, TaskError), str(error.cause)

    async def impatient(self):
        try:
            await asyncio.wait_for(square.remote(2, 1.0), 0.05)
        except TimeoutError:
            return "late"

    async def large(self, size, value):
        return bytes(size), len(value)

    async def fail(self):
        raise ValueError("in a coroutine")

    async def cancel_myself(self):
        asyncio.current_task().cancel()
        await asyncio.sleep(1)

    async def call(self, other):
        return await other.squares.remote(3)

    async def until_cancelled(self, tally, child=0):
        try:
            tally.add("begun")
            await (slow_child.remote(tally) if child else asyncio.sleep(30))
        except asyncio.CancelledError:
            tally.add("cancelled")
            raise
        finally:
            tally.add("over")

    async def stubborn(self, tally):
        try:
            tally.add("begun")
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "kept on"

    async def count(self, tally, index):
        tally.add(index)
        while "go on" not in tally.notes:  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.01)
        return index

    async def blocked(self):
        return ray.get(square.remote(3, 0.01)), ray.wait([square.remote(4, 0.01)])[1]

    async def quit(self):
        ray.exit_actor()

    async def die(self):
        os._exit(1)


# ---- Methods -----------------------------------------------------------------------------------------------------


def test_coroutines_wait_for_one_another():
    actor = Async.remote()
    waiting = [actor.wait.remote() for _ in range(20)]
    get(actor.set.remote())
    assert get(waiting) == ["woken"] * 20


def test_a_thousand_sleep_at_the_same_time():
    actor = Async.remote()
    slept = get([actor.sleep.remote(0.3) for _ in range(300)])
    assert min(slept) >= 0.29
    assert get(actor.peaks.remote()) > 100


def test_max_concurrency_limits_coroutines():
    actor = Async.options(max_concurrency=3).remote()
    get([actor.sleep.remote(0.01) for _ in range(12)])
    assert get(actor.peaks.remote()) == 3


def test_calls_start_in_order():
    actor = Async.remote()
    for index in range(100):
        actor.note.remote(index)
    assert get(actor.noted.remote()) == list(range(100))


def test_locks_of_asyncio_hold():
    actor = Async.remote()
    assert get([actor.add.remote() for _ in range(20)]) == list(range(1, 21))


def test_references_are_awaited_in_an_actor():
    actor, other = Async.remote(), Async.remote()
    assert get(actor.squares.remote(10)) == 285
    assert get(actor.each.remote([square.remote(2), ray.put("put"), ray.put(b"x" * MIB)])) == [4, "put", b"x" * MIB]
    assert get(actor.in_order.remote(3)) is not None
    assert len(get(actor.first_of.remote(3))) >= 1
    assert get(actor.call.remote(other)) == 5
    assert get(actor.beside.remote()) == 36
    assert get(actor.impatient.remote()) == "late"
    assert get(actor.catch.remote()) == (True, "'in a task'")
    value, length = get(actor.large.remote(2 * MIB, b"y" * MIB))
    assert (len(value), length) == (2 * MIB, MIB)


def test_each_coroutine_has_ids_of_its_own():
    actor = Async.remote()
    answers = get([actor.ids.remote() for _ in range(10)])
    assert all(before == after and name == "Async.ids" for before, after, name, _ in answers)
    assert len({before for before, *_ in answers}) == 10
    assert len({ref for *_, ref in answers}) == 10


def test_what_a_coroutine_raises():
    actor = Async.remote()
    with pytest.raises(ValueError, match="in a coroutine") as caught:
        get(actor.fail.remote())
    assert caught.value.function_name == "Async.fail"
    with pytest.raises(TaskCancelledError, match="Async\\.cancel_myself raised CancelledError"):
        get(actor.cancel_myself.remote())
    assert get(actor.squares.remote(2)) == 1


# ---- Concurrency groups ------------------------------------------------------------------------------------------


def test_groups_of_coroutines_have_limits_of_their_own():
    actor = Grouped.remote()
    assert max(get([actor.io.remote(0.01) for _ in range(6)])) == 2
    assert get(actor.io.options(concurrency_group="busy").remote(0)) in (1, 2)
    assert get(list(actor.pair.remote())) == [1, 2]


def test_a_group_that_blocks_its_loop_holds_up_no_other():
    actor = Grouped.remote()
    blocked = actor.block.remote()
    assert get(actor.io.remote(0.01)) == 1
    assert get(actor.release.remote()) == "released"
    assert get(blocked) is True


# ---- Cancelling --------------------------------------------------------------------------------------------------


def test_a_coroutine_that_is_cancelled_hears_of_it(tally):
    actor = Async.remote()
    ref = actor.until_cancelled.remote(tally)
    eventually(lambda: tally.notes == ["begun"], "it has begun")
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError, match=r"Async\.until_cancelled"):
        get(ref)
    assert tally.notes == ["begun", "cancelled", "over"]
    assert get(actor.squares.remote(3)) == 5


def test_coroutines_that_wait_for_room_and_those_that_have_just_begun_are_cancelled(tally):
    actor = Async.options(max_concurrency=2).remote()
    refs = [actor.until_cancelled.remote(tally) for _ in range(6)]
    for ref in refs:
        ray.cancel(ref)
    for ref in refs:
        with pytest.raises(TaskCancelledError):
            get(ref)
    assert tally.notes.count("begun") == tally.notes.count("over")
    assert get(actor.squares.remote(3)) == 5


def test_a_coroutine_may_return_all_the_same(tally):
    actor = Async.remote()
    ref = actor.stubborn.remote(tally)
    eventually(lambda: tally.notes == ["begun"], "it has begun")
    ray.cancel(ref)
    assert get(ref) == "kept on"


def test_cancelling_a_coroutine_cancels_what_it_has_submitted(tally):
    actor = Async.remote()
    ref = actor.until_cancelled.remote(tally, child=1)
    eventually(lambda: "child begun" in tally.notes, "its task has begun")
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    eventually(lambda: "child over" in tally.notes, "its task has ended")


def test_who_awaits_what_was_cancelled_hears_of_it(tally):
    actor, other = Async.remote(), Async.remote()
    ref = actor.until_cancelled.remote(tally)
    awaiting = other.each.remote([ref])
    eventually(lambda: tally.notes == ["begun"], "it has begun")
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(awaiting)


def test_a_coroutine_is_not_cancelled_by_force(tally):
    actor = Async.remote()
    ref = actor.until_cancelled.remote(tally)
    with pytest.raises(ValueError, match="not supported for methods of actors"):
        ray.cancel(ref, force=True)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)


# ---- Blocking ----------------------------------------------------------------------------------------------------


def test_who_blocks_the_loop_is_told(capfd):
    actor = Async.remote()
    assert get(actor.blocked.remote()) == (9, [])
    warning = "Async.blocked calls dualray.get() on the event loop of its actor"
    eventually(lambda: warning in stderr_so_far(), "it is told")
    assert get(actor.beside.remote()) == 36
    assert capfd.readouterr().err.count("on the event loop of its actor") == 1


# ---- Ends --------------------------------------------------------------------------------------------------------


def test_exit_actor_in_a_coroutine():
    actor = Async.options(max_restarts=-1).remote()
    waiting = actor.wait.remote()
    before = [actor.sleep.remote(0) for _ in range(3)]
    get(before)
    for ref in (actor.quit.remote(), waiting, actor.sleep.remote(0)):
        with pytest.raises(ActorDiedError, match=r"exit_actor\(\) was called in Async\.quit"):
            get(ref)


def test_when_the_actor_dies_what_is_awaited_fails():
    actor, other = Async.remote(), Async.remote()
    waiting = actor.wait.remote()
    awaiting = other.each.remote([waiting])
    get(actor.sleep.remote(0))
    actor.die.remote()
    with pytest.raises(ActorDiedError):
        get(waiting)
    with pytest.raises(ActorDiedError):
        get(awaiting)


def test_a_restart_with_coroutines_in_flight():
    actor = Async.options(max_restarts=1).remote()
    waiting = [actor.wait.remote() for _ in range(3)]
    get(actor.sleep.remote(0))
    ray.kill(actor, no_restart=False)
    for ref in waiting:
        with pytest.raises(ActorUnavailableError):
            get(ref)
    assert get_when_up(lambda: actor.squares.remote(4)) == 14


def test_coroutines_in_flight_are_made_again(tally):
    actor = Async.options(max_concurrency=3, max_restarts=1, max_task_retries=1).remote()
    counted = [actor.count.remote(tally, index) for index in range(5)]
    eventually(lambda: tally.count >= 3, "three of them run")
    ray.kill(actor, no_restart=False)
    eventually(lambda: tally.count >= 6, "they run again")
    tally.add("go on")
    assert get(counted) == list(range(5))
    assert sorted(tally.notes[:3]) == sorted(tally.notes[3:6]) == ["0", "1", "2"]


def test_max_pending_calls_of_coroutines():
    actor = Async.options(max_pending_calls=3).remote()
    waiting = [actor.wait.remote() for _ in range(3)]
    with pytest.raises(PendingCallsLimitExceeded, match=in_words("max_pending_calls=3", "3")):
        actor.set.remote()
    ray.cancel(waiting[0])
    with pytest.raises(TaskCancelledError):
        get(waiting[0])
    get(actor.set.remote())
    assert get(waiting[1:]) == ["woken"] * 2


# ---- The driver, and tasks ---------------------------------------------------------------------------------------


def test_the_driver_awaits_references():
    async def main():
        one = await square.remote(3)
        more = await asyncio.gather(square.remote(4), square.remote(5, 0.05))
        ticks = 0
        slow = asyncio.ensure_future(square.remote(6, 0.1))
        while not slow.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return one, more, slow.result(), ticks >= 3, await ray.put("put")

    assert run(main()) == (9, [16, 25], 36, True, "put")


def test_what_the_driver_awaits_fails():
    async def main():
        with pytest.raises(KeyError):
            await fail.remote()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(square.remote(1, 1.0), 0.05)
        results = await asyncio.gather(square.remote(2), fail.remote(), return_exceptions=True)
        return results[0], isinstance(results[1], KeyError)

    assert run(main()) == (4, True)


def test_a_task_that_awaits_gives_its_cpu_back():
    @ray.remote(num_cpus=1)
    def parent(depth):
        async def wait():
            return 1 + sum(await asyncio.gather(*[parent.remote(depth - 1) for _ in range(2)]))

        return asyncio.run(wait()) if depth else 1

    assert get(parent.remote(3)) == 15


def test_futures():
    slow, quick = square.remote(7, 0.05).future(), square.remote(8).future()
    assert isinstance(slow, concurrent.futures.Future)
    assert slow.result(timeout=WITHIN_S) == 49
    assert quick.result(timeout=WITHIN_S) == 64
    assert quick.done()
    assert quick.exception() is None
    failed = fail.remote().future()
    assert isinstance(failed.exception(timeout=WITHIN_S), KeyError)
    with pytest.raises(KeyError):
        failed.result()
    late = square.remote(9, 1.0).future()
    with pytest.raises(TimeoutError):
        late.result(timeout=0.05)

    async def main():
        return await asyncio.wrap_future(square.remote(10).future())

    assert run(main()) == 100


def test_a_future_calls_back():
    called = []
    future = square.remote(11, 0.02).future()
    future.add_done_callback(lambda done: called.append(done.result()))
    deadline = time.monotonic() + WITHIN_S
    while not called and time.monotonic() < deadline:
        time.sleep(0.005)
    assert called == [121]


# ---- Queues ------------------------------------------------------------------------------------------------------


def test_a_queue_among_coroutines():
    queue = Queue(maxsize=2)

    async def main():
        async def produce():
            for item in range(10):
                await queue.put_async(item)

        async def consume():
            return [await queue.get_async() for _ in range(10)]

        _, items = await asyncio.gather(produce(), consume())
        with pytest.raises(Empty):
            await queue.get_async(timeout=0.02)
        with pytest.raises(Empty):
            await queue.get_async(block=False)
        await queue.put_async(1)
        await queue.put_async(2)
        with pytest.raises(Full):
            await queue.put_async(3, timeout=0.02)
        with pytest.raises(Full):
            await queue.put_async(3, block=False)
        with pytest.raises(ValueError, match="negative"):
            await queue.get_async(timeout=-1)
        return items, await queue.get_async(), await queue.get_async(timeout=1)

    assert run(main()) == (list(range(10)), 1, 2)
    queue.shutdown()


def test_a_queue_that_ends_while_a_coroutine_waits():
    queue = Queue()

    async def main():
        waiting = asyncio.ensure_future(queue.get_async())
        await asyncio.sleep(0.1)
        ray.kill(queue.actor)
        with pytest.raises(DualrayError):
            await waiting
        return True

    assert run(main())


# ---- The loop of the constructor -----------------------------------------------------------------------------------


@ray.remote
class Looping:
    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.turns = 0
        self.started = asyncio.Event()
        self.turning = asyncio.create_task(self.turn())

    async def turn(self):
        self.started.set()
        while True:
            self.turns += 1
            await asyncio.sleep(0.01)

    async def is_the_same(self):
        await self.started.wait()
        return self.loop is asyncio.get_running_loop()

    async def stop(self):
        self.turning.cancel()
        return self.turns


def test_the_constructor_sees_the_loop_of_the_methods():
    actor = Looping.remote()
    assert get(actor.is_the_same.remote())
    assert get(actor.stop.remote()) > 0


def test_what_the_constructor_schedules_begins_without_a_call(tally):
    @ray.remote
    class Ticking:
        def __init__(self):
            asyncio.get_event_loop().call_later(0.05, tally.add)

        async def unused(self):
            pass

    actor = Ticking.remote()
    eventually(lambda: tally.count == 1, "the timer of the constructor has come")
    del actor


def test_a_constructor_may_get_values():
    @ray.remote
    class Reader:
        def __init__(self, number):
            self.value = ray.get(square.remote(number))

        async def read(self):
            return self.value

    assert get(Reader.remote(3).read.remote()) == 9


def test_an_async_actor_whose_constructor_raises_says_so():
    @ray.remote
    class Broken:
        def __init__(self):
            asyncio.get_running_loop()
            raise KeyError("in the constructor")

        async def unused(self):
            pass

    with pytest.raises(ActorDiedError, match="in the constructor"):
        get(Broken.remote().unused.remote())


def test_a_method_of_an_async_actor_may_return_a_reference():
    @ray.remote
    class Holder:
        def __init__(self):
            self.ref = ray.put(7)

        def plain(self):
            return self.ref

        async def coroutine(self):
            return self.ref

    holder = Holder.remote()
    assert get(get(holder.plain.remote())) == get(get(holder.coroutine.remote())) == 7


@ray.remote
class StopsItsLoop:
    async def stop(self):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "stopped"

    async def call(self):
        return "called"


def test_an_actor_whose_method_stops_its_event_loop_goes_on():
    actor = StopsItsLoop.remote()
    assert get([actor.stop.remote(), actor.call.remote(), actor.stop.remote()]) == ["stopped", "called", "stopped"]
    assert get(actor.call.remote()) == "called"
