"""Resources that are reserved together."""

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

group = placement_group([{"CPU": 1}, {"CPU": 1, "special": 1}], strategy="PACK")
print(ray.get(group.ready()) == group, group.wait(10), group.bundle_count, group.bundle_specs)


@ray.remote(num_cpus=1)
def inside():
    return ray.util.get_current_placement_group() is not None


strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
print(ray.get(inside.options(scheduling_strategy=strategy).remote()), ray.get(inside.remote()))
print(placement_group_table(group)["state"])
remove_placement_group(group)
print(ray.util.get_current_placement_group())
