"""A task whose process dies is tried again."""

import os

import ray


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.n = 0

    def next(self):
        self.n += 1
        return self.n


@ray.remote(max_retries=2)
def dies_once(counter):
    if ray.get(counter.next.remote()) == 1:
        os._exit(1)
    return "done"


@ray.remote(max_retries=0)
def dies():
    os._exit(1)


print(ray.get(dies_once.remote(Counter.remote())))
try:
    ray.get(dies.remote())
except ray.exceptions.WorkerCrashedError:
    print("WorkerCrashedError")
