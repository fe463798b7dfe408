"""An error is of the user's class, and of Ray's."""

import ray


class Mine(Exception):
    pass


@ray.remote
def fail():
    raise Mine("in a task")


@ray.remote
def use(x):
    return x


for ref in (fail.remote(), use.remote(fail.remote())):
    try:
        ray.get(ref)
    except Mine as error:
        print(type(error).__name__, isinstance(error, ray.exceptions.RayTaskError), repr(error.cause))
