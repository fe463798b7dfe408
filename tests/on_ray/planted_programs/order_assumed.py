"""Planted: what is ready first is taken for what was submitted first."""

import time

import dualray as ray


@ray.remote
def part(number):
    time.sleep(0.2)
    return number


ray.init()
refs = [part.remote(number) for number in range(3)]
order = []
while refs:
    [done], refs = ray.wait(refs, timeout=60)
    order.append(ray.get(done))
if order != [0, 1, 2]:
    raise RuntimeError(f"the order is {order}")
print(order)
