"""One actor, made by whoever comes first."""

import ray


@ray.remote
class Shared:
    def __init__(self, by):
        self.by = by

    def made_by(self):
        return self.by


first = Shared.options(name="shared", get_if_exists=True).remote("first")
second = Shared.options(name="shared", get_if_exists=True).remote("second")
print(ray.get([first.made_by.remote(), second.made_by.remote()]), first == second)
