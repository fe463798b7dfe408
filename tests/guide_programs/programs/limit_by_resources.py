"""At most two tasks at a time hold the resource."""

import time

import ray


@ray.remote(num_cpus=0)
class Gauge:
    def __init__(self):
        self.now = self.most = 0

    def enter(self):
        self.now += 1
        self.most = max(self.most, self.now)

    def leave(self):
        self.now -= 1

    def value(self):
        return self.most


@ray.remote(num_cpus=0, resources={"special": 1})
def hold(gauge):
    ray.get(gauge.enter.remote())
    time.sleep(0.05)
    ray.get(gauge.leave.remote())


gauge = Gauge.remote()
ray.get([hold.remote(gauge) for _ in range(6)])
print(ray.get(gauge.value.remote()) <= 2)
