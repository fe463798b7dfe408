"""What the error of a task says under the name `ray`: Ray's words, in both modes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = '''\
import dualray.as_ray

dualray.as_ray.install()
import os
import pickle
import re

import ray
from ray._common.test_utils import wait_for_condition

ray.init(num_cpus=2)


def words(ref):
    try:
        ray.get(ref)
    except Exception as error:
        again = pickle.loads(ray.cloudpickle.dumps(error))
        assert str(again) == str(error) and type(again).__name__ == type(error).__name__
        text = re.sub(r"pid=\\d+, ip=[0-9.]+", "HERE", str(error)).replace("\\x1b[36m", "<").replace("\\x1b[39m", ">")
        return error, re.sub(r"^ +[~^]+\\n", "", re.sub(r'".*", line \\d+', "PLACE", text), flags=re.MULTILINE)
    raise AssertionError("no error")


@ray.remote
def divide():
    return 1 / 0


@ray.remote
def outer():
    return ray.get(divide.remote())


error, text = words(divide.remote())
assert text == """<ray::divide()> (HERE)
  File PLACE, in divide
    return 1 / 0
ZeroDivisionError: division by zero""", text
assert isinstance(error, ZeroDivisionError) and error.args == (error.cause,)

_, text = words(outer.remote())
assert text == """<ray::outer()> (HERE)
  File PLACE, in outer
    return ray.get(divide.remote())
ray.exceptions.RayTaskError(ZeroDivisionError): <ray::divide()> (HERE)
  File PLACE, in divide
    return 1 / 0
ZeroDivisionError: division by zero""", text


@ray.remote(num_cpus=0)
def take(x):
    pass


LOST = "  At least one of the input arguments for this task could not be computed:"
error, text = words(take.remote(take.remote(divide.remote())))
assert text == f"""<ray::take()> (HERE)
{LOST}
ray.exceptions.RayTaskError: <ray::take()> (HERE)
{LOST}
ray.exceptions.RayTaskError: <ray::divide()> (HERE)
  File PLACE, in divide
    return 1 / 0
ZeroDivisionError: division by zero""", text
assert isinstance(error, ZeroDivisionError)

ref = divide.remote()
for _ in range(30):
    ref = take.remote(ref)
_, text = words(ref)
assert text.count(LOST) == 21 and "<ray::10 more()> (HERE)" in text, text


@ray.remote
class Named:
    def __init__(self, fails=False):
        if fails:
            raise ValueError("in the constructor")

    def fail(self):
        raise KeyError("x")

    async def wait(self):
        raise KeyError("y")

    def __repr__(self):
        return "a repr"


@ray.remote
class Odd:
    def fail(self):
        raise KeyError("x")

    def __repr__(self):
        return 1 / 0


for name in ("fail", "wait"):
    actor = Named.remote()
    _, text = words(getattr(actor, name).remote())
    heading = f"<ray::Named.{name}()> (HERE, actor_id={actor._actor_id.hex()}, repr=a repr)"
    assert text.startswith(heading), text

_, text = words(Odd.remote().fail.remote())
assert "repr=<Odd, whose repr raised ZeroDivisionError" in text, text

broken = Named.remote(fails=True)
error, text = words(broken.fail.remote())
said = f"The actor died because of an error raised in its creation task, <ray::Named.__init__()> (HERE, actor_id="
assert text.startswith(f"{said}{broken._actor_id.hex()}, repr=Named)\\n  File PLACE, in __init__"), text
assert text.endswith("ValueError: in the constructor") and isinstance(error, ray.exceptions.ActorDiedError)
assert error.actor_init_failed and not error.preempted

ray.kill(actor)
error, text = words(actor.fail.remote())
assert not error.actor_init_failed
assert "The actor is dead because it was killed by `ray.kill`" in text, text

unread = []
ray._private.worker._unhandled_error_handler = unread.append
ref = divide.remote()
ray.wait([ref])
del ref
wait_for_condition(lambda: [type(error) for error in unread] == [ray.exceptions.RayTaskError])
os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"
ref = divide.remote()
ray.wait([ref])
del ref
ray.shutdown()
assert len(unread) == 1
del os.environ["RAY_IGNORE_UNHANDLED_ERRORS"]

from ray.cluster_utils import Cluster


@ray.remote(num_cpus=1)
def large():
    return bytes(1 << 20)


@ray.remote(num_cpus=0, max_restarts=-1)
class Taking:
    def __init__(self, argument):
        pass

    def take(self, argument):
        pass


cluster = Cluster()
cluster.add_node(num_cpus=0, _system_config={"lineage_pinning_enabled": False})
ray.init(address=cluster.address)
far = cluster.add_node(num_cpus=1, resources={"far": 1})
ref = large.remote()
ray.wait([ref], fetch_local=False)
kept = Taking.options(resources={"far": 1}).remote(ref)
ray.get(kept.take.remote(ref))
cluster.remove_node(far, allow_graceful=False)
cluster.add_node(num_cpus=0, resources={"far": 1})


def constructor_has_failed():
    try:
        ray.get(kept.take.remote(1))
    except ray.exceptions.ActorDiedError as error:
        assert error.actor_init_failed
        return True


wait_for_condition(constructor_has_failed)
for argument in (1, ref):
    error, text = words(kept.take.remote(argument))
    assert isinstance(error, ray.exceptions.ActorDiedError), error
    end = "(Its arguments: ObjectReconstructionFailedError) [OBJECT_UNRECONSTRUCTABLE_LINEAGE_DISABLED]"
    assert text.endswith(end), text
error, text = words(ref)
assert isinstance(error, ray.exceptions.ObjectReconstructionFailedError), error
assert text.endswith(" [OBJECT_UNRECONSTRUCTABLE_LINEAGE_DISABLED]"), text
error, text = words(take.remote(take.remote(ref)))
assert isinstance(error, ray.exceptions.RayTaskError), error
assert isinstance(error, ray.exceptions.ObjectReconstructionFailedError), error
assert text.startswith(f"<ray::take()> (HERE)\\n{LOST}\\nray.exceptions.RayTaskError: <ray::take()>"), text
assert text.count(LOST) == 2, text
assert "\\nray.exceptions.ObjectReconstructionFailedError: " in text, text
ray.shutdown()
cluster.shutdown()
'''


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_errors_of_tasks_are_worded_as_ray_words_them(tmp_path, mode):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    variables = os.environ | {"DUALRAY_MODE": mode, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=variables, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


UNREAD = """\
import dualray.as_ray

dualray.as_ray.install()
import os
import time

import ray

ray.init(num_cpus=1)


@ray.remote
def fail():
    raise ValueError(os.environ.get("RAY_IGNORE_UNHANDLED_ERRORS", "unread"))


def drop():
    ref = fail.remote()
    ray.wait([ref])
    del ref
    time.sleep(0.5)


drop()
os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"
drop()
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_rays_variable_keeps_unread_errors_from_being_printed(tmp_path, mode):
    script = tmp_path / "script.py"
    script.write_text(UNREAD)
    variables = os.environ | {"DUALRAY_MODE": mode, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=variables, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ValueError: unread") == done.stderr.count("ValueError: ") == 1, done.stderr
