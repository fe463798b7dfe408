"""Supervisors that own workers of their own."""

import ray


@ray.remote(num_cpus=0)
class Worker:
    def work(self, x):
        return x * 10


@ray.remote(num_cpus=0)
class Supervisor:
    def __init__(self, count):
        self.workers = [Worker.remote() for _ in range(count)]

    def work(self, values):
        return ray.get([worker.work.remote(value) for worker, value in zip(self.workers, values, strict=True)])


supervisors = [Supervisor.remote(3) for _ in range(2)]
print(ray.get([each.work.remote([i, i + 1, i + 2]) for i, each in enumerate(supervisors)]))
