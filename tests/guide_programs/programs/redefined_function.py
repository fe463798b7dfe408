"""The name may mean another function later."""

import ray


@ray.remote
def f():
    return "first"


first = f.remote()


@ray.remote
def f():
    return "second"


print(ray.get([first, f.remote()]))
