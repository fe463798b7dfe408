"""An actor that outlives its handles, until it is killed."""

import ray


@ray.remote(num_cpus=0)
class Store:
    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values.get(key)


@ray.remote
def make():
    store = Store.options(name="store", lifetime="detached").remote()
    ray.get(store.set.remote("a", 1))


ray.get(make.remote())
store = ray.get_actor("store")
print(ray.get(store.get.remote("a")))
ray.kill(store)
try:
    ray.get(store.get.remote("a"))
except ray.exceptions.RayActorError:
    print("killed")
