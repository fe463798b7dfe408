"""Planted: a task that may be tried without end, and that does something each time."""

import time

import dualray as ray


@ray.remote(num_cpus=0)
class Tally:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

    def paid(self):
        return self.count


@ray.remote(max_retries=-1)
def pay(tally):
    count = ray.get(tally.add.remote(), timeout=60)
    time.sleep(1)  # the receipt is written
    return count


ray.init()
tally = Tally.remote()
ray.get(tally.paid.remote(), timeout=60)  # it is there when the first task pays
paid = ray.get(pay.remote(tally), timeout=120)
if paid > 1:
    raise RuntimeError(f"it was paid {paid} times")
print(paid)
