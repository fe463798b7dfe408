"""An error that comes through two tasks."""

import ray


@ray.remote
def inner():
    return 1 / 0


@ray.remote
def outer():
    return ray.get(inner.remote())


try:
    ray.get(outer.remote())
except ZeroDivisionError as error:
    print("ZeroDivisionError", "division by zero" in str(error), "inner" in str(error), "outer" in str(error))
