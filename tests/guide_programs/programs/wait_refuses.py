"""What `wait` does not take."""

import ray

ref = ray.put(1)
for arguments, named in (
    ((ref,), {}),
    (([ref, ref],), {}),
    (([ref],), {"num_returns": 2}),
    (([ref],), {"num_returns": 0}),
):
    try:
        ray.wait(*arguments, **named)
    except (TypeError, ValueError) as error:
        print(type(error).__name__)
