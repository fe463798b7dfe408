"""Map and reduce."""

from collections import Counter

import ray

texts = ["the quick brown fox", "the lazy dog", "the fox and the dog"]


@ray.remote
def count(text):
    return Counter(text.split())


@ray.remote
def merge(*counts):
    return sum(counts, Counter())


print(sorted(ray.get(merge.remote(*[count.remote(text) for text in texts])).items()))
