"""Small work in batches, not one task each."""

import ray


def double(x):
    return 2 * x


@ray.remote
def double_all(xs):
    return [double(x) for x in xs]


numbers = list(range(100))
batches = [double_all.remote(numbers[i : i + 25]) for i in range(0, 100, 25)]
print(sum(sum(batch) for batch in ray.get(batches)))
