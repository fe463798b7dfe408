"""What a placement group cannot be."""

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

for bundles, named in (
    ([], {}),
    ([{}], {}),
    ([{"CPU": 1}], {"strategy": "WRONG"}),
    ([{"CPU": 1}], {"lifetime": "long"}),
):
    try:
        placement_group(bundles, **named)
    except ValueError:
        print("ValueError")


@ray.remote(num_cpus=1)
def f():
    return 1


group = placement_group([{"CPU": 1}])
for index, cpus in ((3, 1), (-2, 1), (0, 4)):
    try:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        f.options(num_cpus=cpus, scheduling_strategy=strategy).remote()
    except ValueError:
        print("ValueError", index, cpus)
remove_placement_group(group)
