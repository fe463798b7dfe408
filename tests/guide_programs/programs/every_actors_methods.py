"""What every actor has beside its own methods."""

import ray


@ray.remote
class Plain:
    def __init__(self):
        self.value = 7


plain = Plain.remote()
print(ray.get(plain.__ray_ready__.remote()))
print(ray.get(plain.__ray_call__.remote(lambda self, by: self.value * by, 6)))
print(ray.get(plain.__ray_call__.remote(lambda self: type(self).__name__)))
