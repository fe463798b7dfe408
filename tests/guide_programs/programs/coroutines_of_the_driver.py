"""asyncio in the driver and in an actor: gather, timeouts, groups of tasks, threads."""

import asyncio
import time

import ray


@ray.remote(num_cpus=0.5)
def later(value, seconds=0.0):
    time.sleep(seconds)
    if value is None:
        raise LookupError("no value")
    return value


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self):
        self.total = 0
        self.lock = asyncio.Lock()

    async def add(self, ref):
        value = await ref[0]
        async with self.lock:
            before = self.total
            await asyncio.sleep(0)
            self.total = before + value
        return self.total

    async def both(self):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.add([later.remote(value)])) for value in (100, 200)]
        return max(task.result() for task in tasks)

    async def in_a_thread(self):
        return await asyncio.to_thread(lambda: ray.get(later.remote("from a thread")))


async def awaited(ref):
    return await ref


async def main():
    worker = Worker.remote()
    print(await asyncio.gather(later.remote(1), later.remote(2, 0.1)))
    try:
        await asyncio.wait_for(later.remote(3, 5), 0.2)
    except TimeoutError:
        print("too late")
    results = await asyncio.gather(later.remote(4), later.remote(None), return_exceptions=True)
    print([result if isinstance(result, int) else isinstance(result, LookupError) for result in results])
    print(max(await asyncio.gather(*[worker.add.remote([later.remote(value)]) for value in range(10)])))
    print(await worker.both.remote(), await worker.in_a_thread.remote())
    done, pending = await asyncio.wait(
        [asyncio.ensure_future(awaited(later.remote(5))), asyncio.ensure_future(awaited(later.remote(6, 5)))],
        return_when=asyncio.FIRST_COMPLETED,
    )
    print([task.result() for task in done], len(pending))
    for task in pending:
        task.cancel()
    print([await ref for ref in [later.remote(7), later.remote(8)]])


asyncio.run(main())
