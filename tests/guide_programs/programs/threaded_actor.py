"""Methods of one actor on threads."""

import threading

import ray


@ray.remote(max_concurrency=3)
class Barrier:
    def __init__(self):
        self.barrier = threading.Barrier(3)

    def meet(self):
        self.barrier.wait(30)
        return "met"


barrier = Barrier.remote()
print(ray.get([barrier.meet.remote() for _ in range(3)]))
