"""What is not ready in time stays in the second list."""

import time

import ray


@ray.remote
def quick():
    return "quick"


@ray.remote
def slow():
    time.sleep(5)


late, soon = slow.remote(), quick.remote()
print(ray.get(soon))
ready, left = ray.wait([late, soon], num_returns=2, timeout=0.2)
print(ready == [soon], left == [late])
ray.cancel(late, force=True)
