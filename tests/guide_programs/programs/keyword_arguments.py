"""Arguments by name, with defaults, starred."""

import ray


@ray.remote
def describe(a, b=2, *rest, c, **more):
    return a, b, rest, c, sorted(more.items())


print(ray.get(describe.remote(1, c=3)))
print(ray.get(describe.remote(1, 5, 6, 7, c=ray.put(3), d=4)))
for arguments, named in (((), {"c": 1}), ((1,), {})):
    try:
        describe.remote(*arguments, **named)
    except TypeError:
        print("TypeError")
