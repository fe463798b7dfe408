"""A task is tried again for the errors that it names."""

import ray


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.n = 0

    def next(self):
        self.n += 1
        return self.n


@ray.remote(max_retries=4, retry_exceptions=[ConnectionError])
def flaky(counter, fails):
    n = ray.get(counter.next.remote())
    if n <= fails:
        raise ConnectionError(f"attempt {n}")
    return n


print(ray.get(flaky.remote(Counter.remote(), 2)))
try:
    ray.get(flaky.options(max_retries=1).remote(Counter.remote(), 5))
except ConnectionError as error:
    print("ConnectionError", error.cause)
