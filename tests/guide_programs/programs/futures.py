"""A reference as a future of concurrent.futures."""

import concurrent.futures

import ray


@ray.remote
def power(x):
    return x**3


futures = [power.remote(x).future() for x in range(4)]
concurrent.futures.wait(futures)
print([future.result() for future in futures])
