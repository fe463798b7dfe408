"""Fractions of a CPU, and of resources of one's own."""

import ray


@ray.remote(num_cpus=0.25, resources={"special": 0.5})
def part(x):
    return x, sorted(ray.get_runtime_context().get_assigned_resources().items())


print(ray.get(part.remote(1)))
for wrong in ({"num_cpus": -1}, {"resources": {"CPU": 1}}, {"num_cpus": 0.00001}, {"unknown_option": 1}):
    try:
        ray.get(part.options(**wrong).remote(1))
    except (ValueError, TypeError):
        print("refused", sorted(wrong))
