"""Small things that programs for Ray do: the same program in both modes, under the name `ray`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.as_ray.programs import printed_by

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import dualray.as_ray

dualray.as_ray.install()
import asyncio
import os
import pickle
import time

import ray
import ray.util.state
from ray._private.test_utils import wait_for_pid_to_exit
from ray._private.state_api_test_utils import invoke_state_api, invoke_state_api_n
from ray.util.multiprocessing import Pool
from ray.util.placement_group import PlacementGroup
from ray.util.state import list_actors


def odd(x):
    if x % 2 == 0:
        raise ValueError(x)
    return x


class Two(Exception):
    def __init__(self, one, two):
        self.one, self.two = one, two

    def __reduce__(self):
        return Two, (self.one, self.two)


ray.init(num_cpus=2)
with Pool(2) as pool:
    assert list(map(repr, pool.imap(odd, range(4)))) == ["ValueError(0)", "1", "ValueError(2)", "3"]
    assert sorted(map(repr, pool.imap_unordered(odd, range(3)))) == ["1", "ValueError(0)", "ValueError(2)"]
    try:
        pool.map(odd, range(2))
    except ValueError as error:
        assert error.args == (0,)
    else:
        raise AssertionError("map raises")

made = ray.exceptions.RayTaskError(function_name="f", traceback_str="where", cause=Two(1, 2), pid=1, ip="10.0.0.1")
both = pickle.loads(ray.cloudpickle.dumps(made.make_dual_exception_instance()))
assert isinstance(both, Two) and isinstance(both, ray.exceptions.RayTaskError)
assert (both.one, both.two, both.traceback_str, both.function_name) == (1, 2, "where", "f")

cancelled = ray.exceptions.TaskCancelledError(error_message="no longer wanted")
assert str(cancelled) == "no longer wanted" == cancelled.error_message

from ray.util.queue import Queue, _QueueActor


class OwnQueueActor(_QueueActor):
    def twice(self):
        return 2 * self.qsize()


queue = Queue(2)
queue.shutdown()
queue.actor = ray.remote(OwnQueueActor).remote(2)
queue.put("item")
assert ray.get(queue.actor.twice.remote()) == 2 and queue.get() == "item"


@ray.remote
class Waits:
    async def forever(self):
        await asyncio.sleep(10_000)


call = Waits.remote().forever.remote()
while not ray.util.state.list_tasks(filters=[("name", "=", "Waits.forever"), ("state", "=", "RUNNING")]):
    time.sleep(0.01)
ray.cancel(call)
try:
    ray.get(call)
except ray.exceptions.RayTaskError as error:
    assert isinstance(error, ray.exceptions.TaskCancelledError)
    first, last = str(error).splitlines()
    assert "ray::Waits.forever()" in first
    assert last.startswith(f"ray.exceptions.TaskCancelledError: Task: TaskID({call.task_id().hex()}) was cancelled.")
else:
    raise AssertionError("a cancelled call raises")
for kind in ("streaming", "dynamic"):
    try:
        ray.remote(num_returns=kind)(lambda: iter([1]))
    except ValueError as error:
        assert f"num_returns='{kind}' can only be used with generator functions (" in str(error)
    else:
        raise AssertionError("a plain function is no generator")


class Closed:
    def __repr__(self):
        return "a closed thing"

    def __reduce__(self):
        raise TypeError("it stays here")


closed = Closed()


@ray.remote
def takes(value):
    pass


@ray.remote
def captures():
    return closed


@ray.remote
class Takes:
    def __init__(self, value):
        pass

    def method(self, value):
        return closed


LINE = "=" * 80
for call, what in (
    (lambda: ray.put(closed), "the put value a closed thing"),
    (lambda: takes.remote(closed), "the argument a closed thing for a task or actor __main__.takes"),
    (lambda: captures.remote(), "the function __main__.captures"),
    (lambda: Takes.remote(1), "the actor class __main__.Takes.__init__"),
):
    try:
        call()
    except TypeError as error:
        said = str(error)
        assert said.startswith(f"Could not serialize {what}:\\n{LINE}\\nChecking Serializability of "), said
        assert "TypeError: it stays here" in said and said.endswith(LINE), said
    else:
        raise AssertionError(what)


@ray.remote(num_cpus=0)
class Actor:
    pass


actors = [Actor.remote() for _ in range(3)]
ray.get([actor.__ray_ready__.remote() for actor in actors])
named = [("class_name", "=", Actor.__ray_metadata__.class_name), ("state", "=", "ALIVE")]
assert len(invoke_state_api(lambda rows: len(rows) == 3, list_actors, filters=named)) == 3
invoke_state_api_n(lambda rows: len(rows) == 3, list_actors, filters=named)
try:
    invoke_state_api(lambda rows: False, list_actors)
except AssertionError as error:
    assert "list_actors has answered" in str(error)
else:
    raise AssertionError("it is not right")

@ray.remote(num_cpus=0)
class Named:
    def pid(self):
        return os.getpid()


for _ in range(2):
    actor = Named.options(name="once").remote()
    pid = ray.get(actor.pid.remote())
    del actor
    wait_for_pid_to_exit(pid)  # its name is free then

nowhere = PlacementGroup(ray.PlacementGroupID.from_random())
assert nowhere.bundle_specs == []
ray.util.remove_placement_group(nowhere)
assert ray.util.placement_group_table(nowhere) == {}
print("all of it")
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_what_programs_for_ray_do(mode: str):
    assert printed_by(PROGRAM, mode) == "all of it"


ENVIRONMENTS = """\
import os

import dualray.as_ray

dualray.as_ray.install()
import ray

ray.init(num_cpus=1, runtime_env={"LOCAL_DEV_MODE": "1", "env_vars": {"COLOUR": "blue"}})


@ray.remote
def colour():
    return os.environ["COLOUR"], ray.get_runtime_context().worker.mode


assert ray.get(colour.remote()) == ("blue", ray.WORKER_MODE)
changed = colour.options(runtime_env={"env_var": {}, "env_vars": {"COLOUR": "red"}})
assert [ray.get(changed.remote())[0] for _ in range(2)] == ["red", "red"]
print("all of it")
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_unknown_keys_of_a_runtime_environment_are_ignored_with_a_warning(mode: str):
    *said_here, last = printed_by("import sys; sys.stderr = sys.stdout\n" + ENVIRONMENTS, mode).splitlines()
    assert last == "all of it"
    said = "\n".join(said_here)
    assert said.count("has no key 'LOCAL_DEV_MODE', so dualray ignores it.") == 1
    assert said.count("has no key 'env_var', so dualray ignores it. Did you mean 'env_vars'?") == 1
