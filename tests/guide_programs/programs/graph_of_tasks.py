"""A graph that is made first and executed later."""

import ray
from ray.dag import InputNode, MultiOutputNode


@ray.remote
def plus(a, b):
    return a + b


@ray.remote
def times(a, b):
    return a * b


with InputNode() as value:
    graph = MultiOutputNode([plus.bind(value, 1), times.bind(plus.bind(value, 2), 10)])
print(ray.get(graph.execute(3)), ray.get(graph.execute(5)))
