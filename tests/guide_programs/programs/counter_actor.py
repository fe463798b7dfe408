"""State that lives with an actor; calls in their order."""

import ray


@ray.remote
class Counter:
    def __init__(self, start=0):
        self.n = start

    def add(self, by=1):
        self.n += by
        return self.n


counter = Counter.remote(10)
print(ray.get([counter.add.remote() for _ in range(3)]), ray.get(counter.add.remote(by=5)))
other = Counter.options(num_cpus=0).remote()
print(ray.get(other.add.remote(2)))
