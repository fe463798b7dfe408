"""A node that is named and is not there: a task fails at once, unless another node will do."""

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

HERE = ray.get_runtime_context().get_node_id()
NOWHERE = "a" * 56


@ray.remote
def task():
    return "ran"


@ray.remote
class Actor:
    def method(self):
        return "ran"


def told(ref):
    try:
        return ray.get(ref, timeout=30)
    except ray.exceptions.RayError as error:
        return type(error).__name__


for node, soft in ((HERE, False), (NOWHERE, True), (NOWHERE, False)):
    strategy = NodeAffinitySchedulingStrategy(node, soft=soft)
    print(soft, told(task.options(scheduling_strategy=strategy).remote()))
    print(soft, told(Actor.options(scheduling_strategy=strategy).remote().method.remote()))
strategy = NodeAffinitySchedulingStrategy(HERE, soft=False)
print(told(task.options(num_cpus=100, scheduling_strategy=strategy).remote()))
