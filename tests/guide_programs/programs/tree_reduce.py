"""Partial results meet two at a time."""

import ray


@ray.remote
def leaf(i):
    return [i]


@ray.remote
def join(a, b):
    return sorted(a + b)


level = [leaf.remote(i) for i in (5, 3, 8, 1, 9, 2)]
while len(level) > 1:
    level = [join.remote(*level[i : i + 2]) if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
print(ray.get(level[0]))
