"""A handle that cloudpickle has pickled keeps its actor, one that pickle has pickled does not."""

import gc
import pickle
import time

import ray
from ray import cloudpickle


@ray.remote(num_cpus=0)
class Store:
    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values.get(key)


@ray.remote
def read(pickled, key):
    return ray.get(cloudpickle.loads(pickled).get.remote(key))


def read_or_error(handle, key):
    try:
        return ray.get(handle.get.remote(key))
    except ray.exceptions.RayActorError as error:
        return type(error).__name__


def new_store():
    store = Store.remote()
    ray.get(store.set.remote("k", 1))
    return store


store = new_store()
pickled = cloudpickle.dumps({"store": store})
del store
gc.collect()
time.sleep(1)
print("cloudpickle:", read_or_error(cloudpickle.loads(pickled)["store"], "k"))

store = new_store()
print("in a task:", ray.get(read.remote(cloudpickle.dumps(store), "k")))

copied = pickle.loads(pickle.dumps(store))
print("equal:", copied == store, len({copied, store}))
del store
gc.collect()
print("copy alone:", read_or_error(copied, "k"))

store = new_store()
pickled = pickle.dumps(store)
del store
gc.collect()
for _ in range(200):
    found = read_or_error(pickle.loads(pickled), "k")
    if found != 1:
        break
    time.sleep(0.1)
print("pickle:", found)
