"""`get` that gives up."""

import time

import ray


@ray.remote
def never():
    time.sleep(60)


ref = never.remote()
try:
    ray.get(ref, timeout=0.1)
except ray.exceptions.GetTimeoutError as error:
    print("GetTimeoutError", isinstance(error, TimeoutError))
ray.cancel(ref, force=True)
