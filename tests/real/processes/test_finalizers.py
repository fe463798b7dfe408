"""Finalizers of user code that call verbs, run by the garbage collector wherever it happens to run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """\
import faulthandler
import gc
import sys

import dualray as ray

faulthandler.dump_traceback_later(60, exit=True)
ray.init(mode="real", num_cpus=1)
ref = ray.put(1)
finished = []


@ray.remote(num_cpus=0)
def same(x):
    return x


@ray.remote(num_cpus=0)
class Actor:
    def same(self, x):
        return x


actor = Actor.remote()
VERBS = {
    "get": lambda: ray.get(same.remote(1)),
    "call": lambda: actor.same.remote(1),
    "put": lambda: ray.put(2),
    "wait": lambda: ray.wait([same.remote(1)], timeout=60),
    "kill": lambda: ray.kill(Actor.remote()),
}


class InACycle:
    def __init__(self, verb):
        self.me, self.verb = self, verb

    def __del__(self):
        self.verb()
        finished.append(1)


gc.set_threshold(7)  # a collection within nearly every step
for i in range(100):
    InACycle(VERBS[sys.argv[1]])
    assert ray.get([same.remote(i), actor.same.remote(i)]) == [i, i]
    ray.put([i])
gc.collect()
assert len(finished) == 100, len(finished)
assert gc.isenabled()
gc.disable()
assert ray.get(same.remote(1)) == 1
assert not gc.isenabled()
ray.shutdown()
"""


@pytest.mark.parametrize("verb", ["get", "call", "put", "wait", "kill"])
def test_a_finalizer_may_call_a_verb(verb):
    environment = os.environ | {"DUALRAY_LOG_TO_DRIVER": "1"}
    program = [sys.executable, "-c", PROGRAM, verb]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
