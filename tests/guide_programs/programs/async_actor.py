"""Coroutines of one actor run beside one another."""

import asyncio

import ray


@ray.remote
class Meeting:
    def __init__(self):
        self.here = 0
        self.full = asyncio.Event()

    async def join(self, wanted):
        self.here += 1
        if self.here == wanted:
            self.full.set()
        await self.full.wait()
        return self.here


meeting = Meeting.remote()
print(ray.get([meeting.join.remote(5) for _ in range(5)]))
