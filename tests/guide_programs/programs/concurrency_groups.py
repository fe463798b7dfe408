"""Groups of methods with limits of their own."""

import asyncio

import ray


@ray.remote(concurrency_groups={"io": 2, "compute": 1})
class Grouped:
    def __init__(self):
        self.event = asyncio.Event()

    @ray.method(concurrency_group="io")
    async def io(self):
        return "io"

    @ray.method(concurrency_group="compute")
    async def compute(self):
        return "compute"

    async def plain(self):
        return "plain"


grouped = Grouped.remote()
print(ray.get([grouped.io.remote(), grouped.compute.remote(), grouped.plain.remote()]))
print(ray.get(grouped.plain.options(concurrency_group="io").remote()))
