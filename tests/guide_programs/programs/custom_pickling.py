"""Objects that say how they travel."""

import ray


class Handle:
    def __init__(self, name):
        self.name = name
        self.lock = __import__("threading").Lock()

    def __reduce__(self):
        return Handle, (self.name,)


@ray.remote
def name_of(handle):
    return handle.name, type(handle.lock).__name__


print(ray.get(name_of.remote(Handle("mine"))))
try:
    ray.put(__import__("threading").Lock())
except TypeError:
    print("TypeError")
