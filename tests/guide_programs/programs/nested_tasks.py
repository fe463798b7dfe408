"""A task that makes tasks, and reads them."""

import ray


@ray.remote
def square(x):
    return x * x


@ray.remote
def sum_of_squares(count):
    return sum(ray.get([square.remote(i) for i in range(count)]))


print(ray.get([sum_of_squares.remote(n) for n in (3, 5, 8)]))
