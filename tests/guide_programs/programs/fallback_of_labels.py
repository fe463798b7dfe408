"""A selector that no node meets gives way to the next."""

import ray


@ray.remote
def f():
    return "ran"


options = {"label_selector": {"nowhere": "at-all"}, "fallback_strategy": [{"label_selector": {}}]}
print(ray.get(f.options(**options).remote()))
try:
    f.options(fallback_strategy=[{"memory": 1}])
except ValueError:
    print("ValueError")
