"""The items before an error are there; the error is the next item, and then it ends."""

import ray


@ray.remote(max_retries=0)
def broken():
    yield 1
    yield 2
    raise ValueError("third")


items = broken.remote()
print(ray.get(next(items)), ray.get(next(items)))
try:
    ray.get(next(items))
except ValueError as error:
    print("ValueError", type(error.cause).__name__, error.cause)
try:
    next(items)
except StopIteration:
    print("ended")
