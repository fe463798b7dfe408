"""A crawler that starts tasks as it finds pages, with at most two of them in the network at a time."""

import asyncio
import time

import ray


@ray.remote(num_cpus=0)
class Limit:
    def __init__(self, most):
        self.places = asyncio.Semaphore(most)
        self.inside = self.peak = 0

    async def enter(self):
        await self.places.acquire()
        self.inside += 1
        self.peak = max(self.peak, self.inside)

    async def leave(self):
        self.inside -= 1
        self.places.release()

    async def report(self):
        return self.peak


@ray.remote(num_cpus=0.5)
def fetch(page, limit):
    ray.get(limit.enter.remote())
    try:
        time.sleep(0.05)
        if page == "/a/b":
            raise ConnectionError(page)
        return [f"{page}/{link}" for link in "ab"] if page.count("/") < 3 else []
    finally:
        limit.leave.remote()


limit = Limit.remote(2)
seen = {""}
failed = []
pages = {fetch.remote("", limit): ""}
while pages:
    [ready], _ = ray.wait(list(pages))
    page = pages.pop(ready)
    try:
        links = ray.get(ready)
    except ConnectionError as error:
        failed.append((page, str(error).splitlines()[-1]))
        continue
    for link in links:
        if link not in seen:
            seen.add(link)
            pages[fetch.remote(link, limit)] = link
print(len(seen), sorted(seen)[-2:])
print(failed)
print(ray.get(limit.report.remote()) <= 2)
