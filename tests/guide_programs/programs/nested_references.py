"""A task returns a reference: whoever reads it reads twice."""

import ray


@ray.remote
def make():
    return ray.put([1, 2, 3])


@ray.remote
def wrap(references):
    return [type(each).__name__ for each in references]


inner = ray.get(make.remote())
print(type(inner).__name__, ray.get(inner))
print(ray.get(wrap.remote([inner, 5])))
