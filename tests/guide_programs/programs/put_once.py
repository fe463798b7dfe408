"""A large argument is put once, and passed by reference."""

import numpy as np
import ray

array = np.arange(200_000)
ref = ray.put(array)


@ray.remote
def total(values, start):
    return int(values[start:].sum())


print(ray.get([total.remote(ref, start) for start in (0, 199_998, 200_000)]))
