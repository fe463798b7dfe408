"""Tasks that call themselves and share what they have computed in an actor."""

import ray


@ray.remote(num_cpus=0)
class Memory:
    def __init__(self):
        self.values, self.hits = {}, 0

    def find(self, key):
        self.hits += key in self.values
        return self.values.get(key)

    def keep(self, key, value):
        return self.values.setdefault(key, value)

    def size(self):
        return len(self.values)


@ray.remote(num_cpus=0.1)
def fibonacci(n, memory):
    if n < 2:
        return n
    known = ray.get(memory.find.remote(n))
    if known is None:
        parts = ray.get([fibonacci.remote(n - 1, memory), fibonacci.remote(n - 2, memory)])
        known = ray.get(memory.keep.remote(n, sum(parts)))
    return known


@ray.remote
def is_even(n):
    return n == 0 or ray.get(is_odd.remote(n - 1))


@ray.remote
def is_odd(n):
    return n != 0 and ray.get(is_even.remote(n - 1))


memory = Memory.remote()
print(ray.get(fibonacci.remote(7, memory)), ray.get(memory.size.remote()))
print(ray.get([is_even.remote(4), is_odd.remote(4)]))
