"""What the store holds cannot be written."""

import numpy as np
import ray


@ray.remote
def write(values):
    try:
        values[0] = 1
    except ValueError as error:
        return str(error)
    return "written"


print(ray.get(write.remote(ray.put(np.zeros(100_000)))))
mine = ray.get(ray.put(np.zeros(100_000)))
print(mine.flags.writeable, mine.copy().flags.writeable)
