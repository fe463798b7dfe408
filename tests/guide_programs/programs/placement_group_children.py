"""Children of a task stay in its group, where it says so."""

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

group = placement_group([{"CPU": 2}])
ray.get(group.ready())


@ray.remote
def child():
    return ray.util.get_current_placement_group() is not None


@ray.remote
def parent():
    return ray.get(child.remote())


for captures in (True, False):
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=captures)
    print(captures, ray.get(parent.options(scheduling_strategy=strategy).remote()))
remove_placement_group(group)
