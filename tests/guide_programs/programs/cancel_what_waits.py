"""A task that has not begun, and one that needs its result."""

import time

import ray


@ray.remote(num_cpus=0)
def wait_for(refs):
    ray.get(refs)


@ray.remote
def slow():
    time.sleep(60)


@ray.remote
def use(x):
    return x


blocked = slow.remote()
dependant = use.remote(blocked)
ray.cancel(dependant)
try:
    ray.get(dependant)
except ray.exceptions.TaskCancelledError:
    print("TaskCancelledError")
ray.cancel(blocked, force=True)
try:
    ray.get(blocked)
except (ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError):
    print("ended")
