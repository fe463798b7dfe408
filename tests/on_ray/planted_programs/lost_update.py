"""Planted: the actor's sum lives in its memory alone, and a restart begins at 0."""

import dualray as ray


@ray.remote(num_cpus=0, max_restarts=1, max_task_retries=-1)
class Counter:
    def __init__(self):
        self.sum = 0

    def add(self):
        self.sum += 1
        return self.sum


ray.init()
counter = Counter.remote()
last = 0
for _ in range(20):
    last = ray.get(counter.add.remote(), timeout=60)
if last != 20:
    raise RuntimeError(f"updates were lost: the sum is {last}")
print(last)
