"""Planted: an object that is larger than the store."""

import numpy as np

import dualray as ray

ray.init()
print(float(ray.get(ray.put(np.ones(150 * 1024 * 1024 // 8)), timeout=60)[0]))
