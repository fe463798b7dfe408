"""Each worker has its own copy of a global."""

import ray

factor = 3


@ray.remote
def scaled(x):
    return factor * x


print(ray.get(scaled.remote(2)))
factor = 5
print(ray.get(scaled.remote(2)))


@ray.remote
def scaled_anew(x):
    return factor * x


print(ray.get(scaled_anew.remote(2)))
