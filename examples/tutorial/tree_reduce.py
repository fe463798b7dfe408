"""Tree reduce: a hundred arrays are made by tasks, and added up by tasks that take two of them each.

From the tutorial of 2017, in today's vocabulary. No array passes through this program on its way to the sum.

    dualray run examples/tutorial/tree_reduce.py
    dualray run examples/tutorial/tree_reduce.py --mode sim --nodes 4
"""

import numpy as np
from numpy.typing import NDArray

import dualray as ray


@ray.remote
def generate_data(seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=1000)


@ray.remote
def aggregate_data(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return x + y


def main() -> None:
    ray.init()

    # Generate some data. This launches 100 tasks, and the resulting data will be distributed around the cluster.
    data = [generate_data.remote(seed) for seed in range(100)]

    # Perform a tree reduce.
    while len(data) > 1:
        data.append(aggregate_data.remote(data.pop(0), data.pop(0)))

    # Fetch the result.
    total = ray.get(data[0])
    print(f"{total.size} numbers, each the sum of 100: their mean is {total.mean():.6f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
