"""What the tests of the vocabulary of 2017 have in common."""

from __future__ import annotations

import dualray.classic as ray

RUNTIMES = ("sim", "real", "inline")
"""Both modes, and PYTHON_MODE."""


def value_of(result):
    """What a call has returned."""
    return ray.get(result)


@ray.remote
def add(x, y=1):
    return x + y


@ray.remote(num_return_vals=3)
def three():
    return 1, 2, 3


@ray.remote
class Counter(object):  # noqa: UP004 - as they were written then
    def __init__(self, value=0):
        self.value = value

    def increment(self, by=1):
        self.value += by
        return self.value

    def place(self):
        return ray.services.get_node_ip_address()
