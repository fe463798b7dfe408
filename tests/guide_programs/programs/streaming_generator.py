"""Items of a generator, as they come."""

import ray


@ray.remote
def count(limit):
    for i in range(limit):
        yield i * i


items = count.remote(5)
print(type(items).__name__)
print([ray.get(item) for item in items])
