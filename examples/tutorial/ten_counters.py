"""Ten counters: actors keep state. Prints ten ones, then [2, 3, 4, 5, 6].

From the tutorial of 2017, in today's vocabulary.

    dualray run examples/tutorial/ten_counters.py
    dualray run examples/tutorial/ten_counters.py --mode sim --nodes 4
"""

import dualray as ray


@ray.remote
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def increment(self) -> int:
        self.value += 1
        return self.value


def main() -> None:
    ray.init()

    # Create ten actors.
    counters = [Counter.remote() for _ in range(10)]  # type: ignore[attr-defined]  # mypy overlooks decorators of classes

    # Increment each counter once and get the results. These tasks all happen in parallel.
    print(ray.get([counter.increment.remote() for counter in counters]))

    # Increment the first counter five times. These tasks are executed serially and share state.
    print(ray.get([counters[0].increment.remote() for _ in range(5)]))
    ray.shutdown()


if __name__ == "__main__":
    main()
