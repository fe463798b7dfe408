"""Event loops on virtual time: what only a simulation promises of coroutines."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

import dualray as ray
from dualray.exceptions import SimulationDeadlockError
from dualray.util.queue import Queue

HOUR_S = 3600.0


@pytest.fixture
def simulation():
    ray.init(mode="sim", nodes=2, num_cpus=2, seed=7)
    yield
    ray.shutdown()


@ray.remote
def slow(value, seconds):
    time.sleep(seconds)
    return value


@ray.remote(concurrency_groups={"io": 2})
class Async:
    async def sleep(self, seconds):
        before = time.monotonic()
        await asyncio.sleep(seconds)
        return time.monotonic() - before

    async def late(self, seconds):
        before = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.remote(1, HOUR_S), seconds)
        return time.monotonic() - before

    async def spin(self):
        before = time.monotonic()
        while time.monotonic() - before < 0.001:  # noqa: ASYNC110 - what is tested
            await asyncio.sleep(0)
        return "over"

    async def get_of(self, handle):
        return ray.get(handle[0].sleep.remote(1))

    async def await_of(self, handle):
        return await handle[0].sleep.remote(1)

    @ray.method(concurrency_group="io")
    async def get_of_other_group(self, handle):
        return ray.get(handle[0].sleep.remote(1))

    async def connect(self):
        reader, _ = await asyncio.open_connection("127.0.0.1", 1)
        return reader

    async def race(self, count):
        order = []

        async def one(index):
            await asyncio.sleep(0.001 * (index % 3))
            order.append(await slow.remote(index, 0.001 * (index % 4)))

        await asyncio.gather(*[one(index) for index in range(count)])
        return order


def test_hours_take_no_time(simulation):
    actor = Async.remote()
    before = time.monotonic()
    refs = [actor.sleep.remote(hours * HOUR_S) for hours in range(1, 11)]
    assert ray.get(refs) == pytest.approx([hours * HOUR_S for hours in range(1, 11)], abs=1e-6)
    assert time.monotonic() - before == pytest.approx(10 * HOUR_S, abs=1.0)  # at the same time, in virtual time


def test_a_timeout_comes_at_its_instant(simulation):
    actor = Async.remote()
    assert ray.get(actor.late.remote(0.25)) == pytest.approx(0.25, abs=1e-6)

    async def main():
        before = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.remote(1, HOUR_S), 1.5)
        return time.monotonic() - before

    assert asyncio.run(main()) == pytest.approx(1.5, abs=1e-6)


def test_a_loop_that_only_turns_does_not_hang(simulation):
    assert ray.get(Async.remote().spin.remote()) == "over"


def test_a_coroutine_that_gets_from_its_own_group_is_a_deadlock(simulation):
    actor = Async.remote()
    with pytest.raises(SimulationDeadlockError, match=r"Async\.get_of on node-\S+ waits: .*Async\.sleep"):
        ray.get(actor.get_of.remote([actor]))


def test_awaiting_ones_own_actor_is_none(simulation):
    actor = Async.remote()
    assert ray.get(actor.await_of.remote([actor])) == pytest.approx(1.0, abs=1e-6)
    assert ray.get(actor.get_of_other_group.remote([actor])) == pytest.approx(1.0, abs=1e-6)


def test_sockets_are_refused(simulation):
    with pytest.raises(NotImplementedError, match=r"create_connection: an event loop of a simulation has no sockets"):
        ray.get(Async.remote().connect.remote())


def test_the_order_of_events_depends_on_the_seed_alone():
    orders = []
    for _ in range(2):
        ray.init(mode="sim", nodes=2, num_cpus=2, seed=7)
        orders.append(ray.get(Async.remote().race.remote(20)))
        ray.shutdown()
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(20))


class Counts:
    async def items(self):
        for number in range(4):
            await asyncio.sleep(1.0)
            yield number

    async def touch(self):
        return "touched"


def test_a_dead_process_says_nothing_while_its_coroutines_unwind():
    """What the generator raises when its loop is torn down is no answer: the call is tried again elsewhere."""
    ray.init(mode="sim", nodes=2, faults=["kill worker when Counts.touch starts 1"])
    try:
        actor = ray.remote(max_restarts=1, max_task_retries=1)(Counts).remote()
        items = actor.items.options(num_returns="streaming").remote()
        time.sleep(2.5)
        touched = actor.touch.remote()
        assert [ray.get(item) for item in items] == [0, 1, 2, 3]
        assert ray.get(touched) == "touched"
    finally:
        ray.shutdown()


def test_a_loop_made_before_the_simulation_waits_in_virtual_time():
    loop = asyncio.new_event_loop()
    reader, writer = os.pipe()
    try:
        ray.init(mode="sim", num_cpus=2)

        async def an_hour():
            before = asyncio.get_running_loop().time()
            await asyncio.gather(asyncio.sleep(HOUR_S), slow.remote(1, HOUR_S))
            return asyncio.get_running_loop().time() - before

        assert loop.run_until_complete(an_hour()) == pytest.approx(HOUR_S, abs=1)

        async def read():
            found = asyncio.get_running_loop().create_future()
            loop.add_reader(reader, lambda: found.set_result(os.read(reader, 9)))
            assert await slow.remote(2, 1) == 2
            os.write(writer, b"read")
            data = await found
            loop.remove_reader(reader)
            return data

        assert loop.run_until_complete(read()) == b"read"
        with pytest.raises(SimulationDeadlockError, match=r"Queue|is owned by"):
            loop.run_until_complete(Queue().get_async())
    finally:
        ray.shutdown()
        loop.close()
        os.close(reader)
        os.close(writer)


def test_each_simulation_has_an_event_loop_of_its_own():
    async def sleep():
        await asyncio.sleep(3600)
        return asyncio.get_running_loop()

    asyncio.set_event_loop(mine := asyncio.new_event_loop())
    try:
        loops = []
        for _ in range(2):
            with ray.init(mode="sim", nodes=1):
                asyncio.set_event_loop(loop := asyncio.new_event_loop())
                loops.append(asyncio.get_event_loop().run_until_complete(sleep()))
                loop.close()
            assert asyncio.get_event_loop() is mine, "the loop from before the simulation is back"
        assert loops[0] is not loops[1]
    finally:
        asyncio.set_event_loop(None)
        mine.close()
