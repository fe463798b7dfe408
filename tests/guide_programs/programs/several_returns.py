"""A task with several results, and with none."""

import ray


@ray.remote(num_returns=3)
def three():
    return 1, "two", [3]


@ray.remote(num_returns=0)
def nothing():
    return None


print(ray.get(list(three.remote())))
print(nothing.remote())
print(len(three.options(num_returns=1).remote().__class__.__name__))
