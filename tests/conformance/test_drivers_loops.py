"""Event loops of the driver's own: made before the cluster, or running when it starts."""

from __future__ import annotations

import asyncio
import time

import pytest

import dualray as ray
from dualray.util.queue import Empty, Queue


@ray.remote
def put(queue, item):
    time.sleep(0.05)
    queue.put(item)


async def use(queue):
    put.remote(queue, 5)
    first = await queue.get_async()
    await queue.put_async(6)
    with pytest.raises(Empty):
        await Queue().get_async(timeout=0.05)
    second = await asyncio.wait_for(queue.get_async(), 20)
    third, _ = await asyncio.gather(queue.get_async(), queue.put_async(7))
    return first, second, third


def test_a_queue_under_a_loop_that_was_there_before(start):
    loop = asyncio.new_event_loop()
    try:
        start()
        assert loop.run_until_complete(use(Queue())) == (5, 6, 7)
        assert loop.run_until_complete(use(Queue())) == (5, 6, 7)
        ray.shutdown()
        before = time.monotonic()
        loop.run_until_complete(asyncio.sleep(0.02))
        assert time.monotonic() - before > 0.019
    finally:
        loop.close()


def test_a_cluster_that_starts_under_a_running_loop(start):
    async def main():
        start()
        before = time.monotonic()
        await asyncio.sleep(0.05)
        assert time.monotonic() - before > 0.049
        found = await use(Queue())
        ray.shutdown()
        await asyncio.sleep(0.01)
        return found

    assert asyncio.run(main()) == (5, 6, 7)


def test_threads_of_a_drivers_loop_end_with_it(start):
    async def main():
        return await asyncio.to_thread(lambda: ray.get(ray.put(8)))

    start()
    assert asyncio.run(main()) == 8
