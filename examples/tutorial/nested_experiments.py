"""Nested experiments: tasks that launch tasks, and wait for them. Prints [45, 55, 65, 75, 85].

From the tutorial of 2017, in today's vocabulary. A task that waits gives its CPU back meanwhile: the program ends even
where there are fewer CPUs than experiments.

    dualray run examples/tutorial/nested_experiments.py
    dualray run examples/tutorial/nested_experiments.py --mode sim --nodes 4
"""

import dualray as ray


@ray.remote
def sub_experiment(i: int, j: int) -> int:
    # Run the jth sub-experiment for the ith experiment.
    return i + j


@ray.remote
def run_experiment(i: int) -> int:
    # Launch tasks to perform 10 sub-experiments in parallel.
    sub_results = [sub_experiment.remote(i, j) for j in range(10)]
    # Return the sum of the results of the sub-experiments.
    return sum(ray.get(sub_results))


def main() -> None:
    ray.init()
    results = [run_experiment.remote(i) for i in range(5)]
    print(ray.get(results))
    ray.shutdown()


if __name__ == "__main__":
    main()
