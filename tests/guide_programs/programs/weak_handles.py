"""A handle that was found does not keep its actor."""

import time

import ray


@ray.remote(num_cpus=0)
class Brief:
    def ping(self):
        return "here"


brief = Brief.options(name="brief").remote()
found = ray.get_actor("brief")
print(ray.get([brief.ping.remote(), found.ping.remote()]))
del brief
for _ in range(200):
    try:
        ray.get(found.ping.remote())
    except ray.exceptions.ActorDiedError:
        print("gone with its last handle")
        break
    time.sleep(0.05)
