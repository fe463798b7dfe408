"""`wait` gives what is ready, in the order of the list."""

import time

import ray


@ray.remote
def sleepy(x):
    time.sleep(0.02 * x)
    return x


refs = [sleepy.remote(x) for x in (1, 0, 2)]
seen = []
while refs:
    ready, refs = ray.wait(refs)
    seen += ray.get(ready)
print(sorted(seen), len(seen))
