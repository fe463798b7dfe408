"""Right: tasks that may be tried again, on nodes that are killed, drained, paused and slowed down."""

import time

import dualray as ray


@ray.remote(max_retries=5)
def square(number):
    time.sleep(0.2)
    return number * number


ray.init()
print(sum(ray.get([square.remote(number) for number in range(30)], timeout=180)))
