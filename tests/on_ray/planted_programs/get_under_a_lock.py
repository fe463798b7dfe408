"""Planted: an actor holds its only thread while it waits for a task, whose second attempt asks the same actor."""

import dualray as ray


@ray.remote(max_retries=2)
def load(store):
    if ray.get_runtime_context().get_attempt():
        return ray.get(store.state.remote(), timeout=30)
    return 1


@ray.remote(num_cpus=0)
class Store:
    def state(self):
        return 2

    def refresh(self, own):
        return ray.get(load.remote(own), timeout=10)


ray.init()
store = Store.remote()
print(ray.get(store.refresh.remote(store), timeout=60))
