"""A shuffle: each mapper returns a part for each reducer."""

import collections

import ray

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "the", "cat"] * 3
MAPPERS, REDUCERS = 4, 3


@ray.remote(num_returns=REDUCERS)
def partition(words):
    parts = [collections.Counter() for _ in range(REDUCERS)]
    for word in words:
        parts[len(word) % REDUCERS][word] += 1
    return parts


@ray.remote
def merge(*parts):
    return dict(sorted(sum(parts, collections.Counter()).items()))


@ray.remote
def total(*counts):
    return sum(sum(each.values()) for each in counts)


mapped = [partition.remote(WORDS[start::MAPPERS]) for start in range(MAPPERS)]
reduced = [merge.remote(*column) for column in zip(*mapped, strict=True)]
for counts in ray.get(reduced):
    print(counts)
print(ray.get(total.remote(*reduced)), len(WORDS))
whole = partition.options(num_returns=1).remote(WORDS)
print([sum(part.values()) for part in ray.get(whole)])
