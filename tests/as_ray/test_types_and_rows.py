"""Names of types, and fields of the rows of the state API, under the name `ray`: the same program in both modes."""

from __future__ import annotations

import pytest

from tests.as_ray.programs import printed_by

TYPES = """\
import dualray.as_ray

dualray.as_ray.install()
import pickle

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError


@ray.remote
def fail():
    raise BaseExceptionGroup("two", [ValueError(1), KeyboardInterrupt()])


context = ray.init(num_cpus=2)
names = [type(context).__name__]
try:
    ray.get(fail.remote())
except RayTaskError as error:
    names.append(type(error).__name__)
    assert type(pickle.loads(pickle.dumps(error))) is RayTaskError
for made in (RayError("x"), RayActorError("y")):
    names.append(type(pickle.loads(pickle.dumps(made))).__name__)
print(*names, repr(context).partition("(")[0])
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_types_have_rays_names(mode: str):
    assert printed_by(TYPES, mode) == "RayContext RayTaskError RayError RayActorError RayContext"


ROWS = """\
import dualray.as_ray

dualray.as_ray.install()
import os
import time

import ray
from ray.util.state import get_objects, get_task, list_actors, list_tasks, list_workers
from ray.util.state import summarize_actors, summarize_tasks

ray.init(num_cpus=4, log_to_driver=False)


@ray.remote(max_retries=0)
def raises():
    raise ValueError


@ray.remote(max_retries=0)
def dies():
    os._exit(1)


@ray.remote
def sleeps():
    time.sleep(60)


@ray.remote
def pid():
    return os.getpid()


@ray.remote
class Actor:
    def pid(self):
        return os.getpid()

    def dies(self):
        os._exit(1)

    def later(self):
        pass


actor, other = Actor.remote(), Actor.remote()
pids, _ = ray.get([pid.remote(), actor.pid.remote()])
other_pid = ray.get(other.pid.remote())
asleep = sleeps.remote()
while not any(row.state == "RUNNING" for row in list_tasks(filters=[("name", "=", "sleeps")])):
    time.sleep(0.01)
ray.cancel(asleep)
for ref in (raises.remote(), dies.remote(), asleep, actor.dies.remote(), actor.later.remote()):
    try:
        ray.get(ref)
    except ray.exceptions.RayError:
        pass
kinds = {row.name: row.error_type for row in list_tasks() if row.name != "Actor.pid"}
print(*(kinds[name] for name in ("raises", "dies", "sleeps", "Actor.dies", "Actor.later", "pid")))
[found] = list_tasks(filters=[("error_type", "=", "TASK_EXECUTION_EXCEPTION")])
assert found.name == "raises" and get_task(found.task_id).error_type == "TASK_EXECUTION_EXCEPTION"
assert found.error_message.split("(pid=")[0].splitlines() == ["User exception:", "ray::raises() "]
[row] = list_tasks(filters=[("name", "=", "pid")])
assert row.worker_pid == pids
[alive] = list_actors(filters=[("state", "=", "ALIVE")])
assert alive.pid == other_pid
workers = list_workers()
assert other_pid in [row.pid for row in workers]
ended = {row.exit_type: row.exit_detail for row in list_workers(detail=True) if row.state == "DEAD"}
assert "exit code 1" in ended["SYSTEM_ERROR"], ended
os.kill(other_pid, 9)
for _ in range(300):
    details = [row.exit_detail for row in list_workers(detail=True) if row.pid == other_pid]
    if details and "OOM" in str(details[0]):
        break
    time.sleep(0.1)
assert "SIGKILL" in details[0] and "OOM" in details[0], details
kept = ray.put(b"x" * 1_000_000)
[stored] = get_objects(kept.hex())
assert stored.object_size > 1_000_000 and stored.pid == os.getpid()
assert get_objects("00" * 20) == []
tasks, actors = summarize_tasks()["cluster"], summarize_actors()["cluster"]
assert tasks["summary"]["pid"] == {
    "func_or_class_name": "pid", "type": "NORMAL_TASK", "state_counts": {"FINISHED": 1}
}, tasks
assert (tasks["total_tasks"], tasks["total_actor_tasks"], tasks["summary_by"]) == (4, 4, "func_name"), tasks
assert tasks["total_actor_scheduled"] >= 1
assert tasks["summary"]["Actor.__init__"]["type"] == "ACTOR_CREATION_TASK", tasks
assert {row.name for row in list_tasks(filters=[("type", "=", "ACTOR_CREATION_TASK")])} == {"Actor.__init__"}
assert actors["summary"]["Actor"] == {"class_name": "Actor", "state_counts": {"DEAD": 2}}, actors
assert (actors["total_actors"], actors["summary_by"]) == (2, "class")
[driver] = [row for row in workers if row.worker_type == "DRIVER"]
assert driver.pid == os.getpid()
assert all(isinstance(row.pid, int) for row in workers if row.state != "STARTING")
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_rows_have_rays_kinds_of_errors_and_pids(mode: str):
    printed = "TASK_EXECUTION_EXCEPTION WORKER_DIED TASK_CANCELLED ACTOR_DIED ACTOR_DIED None"
    assert printed_by(ROWS, mode) == printed


ANNOTATED = """\
import dualray.as_ray

dualray.as_ray.install()
import ray
from ray.actor import ActorClass, ActorHandle, ActorProxy


class Counter:
    @ray.method
    def add(self, amount: int) -> int:
        return amount + 1


def called(counter: ActorHandle[Counter]) -> int:
    return ray.get(counter.add.remote(2))


ray.init(num_cpus=1)
CounterActor: ActorClass[Counter] = ray.remote(Counter)
counter: ActorProxy[Counter] = CounterActor.remote()
ref: ray.ObjectRef[int] = counter.add.remote(1)
print(ray.get(ref), called(counter))
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_annotations_of_rays_guide(mode: str):
    assert printed_by(ANNOTATED, mode) == "2 3"


CHANGED_VERSION = """\
import dualray.as_ray

dualray.as_ray.install()
import ray
from ray.cluster_utils import Cluster

cluster = Cluster(head_node_args={"num_cpus": 1}, initialize_head=True)
ray.__version__ = "1.0"
try:
    ray.init(address=cluster.address)
except RuntimeError as error:
    assert "ray.__version__ = '2.60.0', and this program has set ray.__version__ to '1.0'" in str(error), error
else:
    raise AssertionError("it has joined")
ray.__version__ = "2.60.0"
ray.init(address=cluster.address)
assert ray.cluster_resources()["CPU"] == 1
ray.shutdown()
cluster.shutdown()
ray.__version__ = "1.0"
of_its_own = Cluster()
of_its_own.add_node(num_cpus=2)
ray.init(address=of_its_own.address)
assert ray.cluster_resources()["CPU"] == 2
ray.shutdown()
of_its_own.shutdown()
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_a_program_that_has_changed_rays_version_joins_no_cluster(mode: str):
    assert printed_by(CHANGED_VERSION, mode) == ""
