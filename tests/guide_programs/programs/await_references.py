"""A driver, and an actor, that await references."""

import asyncio

import ray


@ray.remote
def double(x):
    return 2 * x


@ray.remote
class Adder:
    async def add(self, refs):
        return sum(await asyncio.gather(*refs))


async def main():
    values = await asyncio.gather(*[double.remote(i) for i in range(4)])
    return values, await Adder.remote().add.remote([double.remote(5), double.remote(6)])


print(asyncio.run(main()))
