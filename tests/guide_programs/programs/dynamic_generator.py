"""A number of results that only the task knows."""

import ray


@ray.remote(num_returns="dynamic")
def split(text):
    yield from text.split()


words = ray.get(split.remote("a few words more"))
print([ray.get(word) for word in words])
