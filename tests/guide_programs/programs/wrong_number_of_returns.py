"""A task that returns too few values."""

import ray


@ray.remote(num_returns=2, max_retries=0)
def one():
    return (1,)


first, second = one.remote()
for ref in (first, second):
    try:
        ray.get(ref)
    except ValueError as error:
        print("ValueError", "num_returns=2" in str(error) or "2" in str(error))
