"""Remote functions and classes are not called as they are."""

import ray


@ray.remote
def f():
    return 1


@ray.remote
class A:
    def m(self):
        return 1


a = A.remote()
for call in (f, A, a.m):
    try:
        call()
    except TypeError:
        print("TypeError")
