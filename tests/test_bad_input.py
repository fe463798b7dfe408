"""What a user gets who asks for something that cannot be: an error of its own each, and its message is read.

Both modes, wherever a cluster is needed. Errors that a task or worker brings about are in tests/conformance; here is
what their messages say. What `init` refuses is in tests/conformance/test_init.py, settings in tests/test_settings.py.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator

import pytest

import dualray as ray
from dualray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    DualrayError,
    ObjectStoreFullError,
    PlacementGroupUnschedulableError,
    SerializationError,
    TaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from dualray.util.placement_group import placement_group
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.conformance.support import MIB, MODES, get, start_cluster


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(mode: str) -> Iterator[None]:
    start_cluster(mode, object_store_memory=32 * MIB)
    yield
    ray.shutdown()


@ray.remote
def f(*args, **kwargs):
    return args, kwargs


@ray.remote
class A:
    def __init__(self, *args):
        pass

    def method(self, *args):
        return args

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


def message_of(error_type, call, *args, **kwargs):
    with pytest.raises(error_type) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# ---- Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: f.options(num_cpu=1),
            "f.options() has no option 'num_cpu'. Did you mean 'num_cpus'? Known: num_cpus,",
        ),
        (
            lambda: ray.remote(max_retry=1)(len),
            "remote function len has no option 'max_retry'. Did you mean 'max_retries'",
        ),
        (lambda: A.options(max_restart=1), "A.options() has no option 'max_restart'. Did you mean 'max_restarts'?"),
        (lambda: A.options(num_returns=2), "A.options() has no option 'num_returns'."),
        (lambda: f.options(max_restarts=2), "f.options() has no option 'max_restarts'. Did you mean 'max_retries'?"),
        (lambda: ray.method(num_return=2)(len), "method len has no option 'num_return'. Did you mean 'num_returns'?"),
        (lambda: f.options(num_cpus=-1), "f.options(): num_cpus=-1 must be between 0 and 1,000,000"),
        (lambda: f.options(num_cpus=float("nan")), "num_cpus=nan must be between"),
        (lambda: f.options(num_cpus=float("inf")), "num_cpus=inf must be between"),
        (lambda: f.options(num_cpus=10**9), "num_cpus=1000000000 must be between"),
        (lambda: f.options(num_cpus=0.00001), "num_cpus=1e-05 is below the smallest step, 0.0001"),
        (lambda: f.options(num_cpus="two"), "num_cpus='two' must be a number"),
        (lambda: f.options(num_cpus=True), "num_cpus=True must be a number"),
        (lambda: f.options(resources={"GPU": 1}), "resources has 'GPU'; use num_gpus= instead"),
        (lambda: f.options(resources={"memory": 1}), "resources has 'memory'; use memory= instead"),
        (
            lambda: f.options(memory=-1),
            "f.options(): memory=-1 must be between 0 and 70,368,744,177,664 bytes (64 TiB)",
        ),
        (lambda: f.options(memory="2 parsecs"), "f.options(): memory: '2 parsecs' is not understood"),
        (lambda: A.options(memory=True), "memory=True must be a number of bytes, or a text such as '2GiB'"),
        (lambda: A.options(memory=[1]), "A.options(): memory=[1] must be a number of bytes"),
        (lambda: f.options(resources={"": 1}), "the name of a resource must not be empty"),
        (lambda: f.options(resources={"disk": -2}), "resources['disk']=-2 must be between"),
        (lambda: f.options(resources=["disk"]), "must be a dict of name to amount"),
        (lambda: f.options(num_returns=-1), "num_returns=-1 must be at least 0"),
        (lambda: f.options(num_returns=1.5), "num_returns=1.5 must be an int"),
        (lambda: f.options(num_returns=2**40), "num_returns=1099511627776 must be at most 1,000,000"),
        (
            lambda: f.options(max_retries=2**63),
            "max_retries=9223372036854775808 must be at most 9,223,372,036,854,775,807",
        ),
        (lambda: f.options(max_calls=2**63), "max_calls=9223372036854775808 must be at most"),
        (lambda: A.options(max_restarts=2**63), "max_restarts=9223372036854775808 must be at most"),
        (lambda: A.options(max_concurrency=2**63), "max_concurrency=9223372036854775808 must be at most"),
        (lambda: A.options(max_pending_calls=2**63), "max_pending_calls=9223372036854775808 must be at most"),
        (lambda: f.options(max_retries=-2), "max_retries=-2 must be at least -1"),
        (lambda: f.options(max_retries=None), "max_retries=None must be an int"),
        (lambda: A.options(max_restarts=-2), "max_restarts=-2 must be at least -1"),
        (lambda: A.options(max_task_retries="x"), "max_task_retries='x' must be an int"),
        (
            lambda: f.options(scheduling_strategy="SPRED"),
            "scheduling_strategy='SPRED' must be 'DEFAULT', 'SPREAD' or a",
        ),
        (lambda: f.options(duration=-1), "duration=-1 must not be negative"),
        (lambda: f.options(duration="soon"), "duration: 'soon' is not understood"),
        (lambda: f.options(name=3), "name=3 must be a str"),
        (lambda: f.options(retry_exceptions="yes"), "retry_exceptions='yes' must be True, False or a list"),
    ],
)
def test_a_wrong_option(make, words):
    assert words in message_of((ValueError, TypeError), make)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ray.remote(3), "@remote takes a function or a class, not 3"),
        (lambda: ray.remote(f), "is already remote"),
        (lambda: ray.remote(A), "is already remote"),
        (lambda: ray.remote(len, print), "remote takes one function or one class, but got 2 arguments"),
        (
            lambda: ray.remote(len, num_cpus=1),
            "remote takes either a function or a class, or keyword options, but not both",
        ),
    ],
)
def test_remote_of_something_else(make, words):
    assert words in message_of(TypeError, make)


# ---- Verbs -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ray.get(5), "get takes an ObjectRef or a list of ObjectRefs, not 5 (type int)"),
        (lambda: ray.get("abc"), "get takes an ObjectRef or a list of ObjectRefs, not 'abc' (type str)"),
        (lambda: ray.get(None), "not None (type NoneType)"),
        (lambda: ray.get({ray.put(1)}), "(type set)"),
        (lambda: ray.get([ray.put(1), 7]), "get takes a list of ObjectRefs, but item 1 is 7 (type int)"),
        (lambda: ray.get(f), "(type RemoteFunction)"),
        (lambda: ray.get(A.remote()), "(type ActorHandle)"),
        (lambda: ray.get(ray.put(1), timeout="1"), "timeout='1' must be a number of seconds, or None"),
        (lambda: ray.get(ray.put(1), timeout=-2), "timeout=-2 must not be negative"),
        (lambda: ray.get(ray.put(1), timeout=float("nan")), "timeout=nan must not be negative"),
        (lambda: ray.wait(ray.put(1)), "wait takes a list of ObjectRefs, not ObjectRef("),
        (lambda: ray.wait((ray.put(1),)), "(type tuple)"),
        (lambda: ray.wait([1]), "wait takes a list of ObjectRefs, but item 0 is 1 (type int)"),
        (
            lambda: ray.wait([ray.put(1)], num_returns=0),
            "num_returns=0 must be between 1 and 1, the number of references",
        ),
        (lambda: ray.wait([ray.put(1)], num_returns=2), "num_returns=2 must be between 1 and"),
        (lambda: ray.wait([ray.put(1)], num_returns=True), "num_returns=True must be an int"),
        (lambda: ray.wait([ray.put(1)], timeout=-0.5), "timeout=-0.5 must not be negative"),
        (lambda: ray.put(ray.put(1)), ": use the ObjectRef itself, or put a list"),
        (lambda: ray.kill("actor"), "kill takes an actor handle, not 'actor' (type str)"),
        (lambda: ray.kill(A), "kill takes an actor handle"),
        (lambda: f(), "f is a remote function: call it with f.remote(...)"),
        (lambda: A(), "A is an actor class: to create an actor, call A.remote(...)"),
    ],
)
def test_a_verb_with_something_else(call, words):
    assert words in message_of((TypeError, ValueError), call)


@pytest.mark.usefixtures("cluster")
def test_an_infinite_timeout_waits_without_end():
    assert ray.get(ray.put(1), timeout=float("inf")) == 1
    assert ray.wait([ray.put(1)], timeout=float("inf"))[1] == []


@pytest.mark.usefixtures("cluster")
def test_duplicates_in_wait():
    a, b = ray.put(1), ray.put(2)
    message = message_of(ValueError, ray.wait, [a, b, a])
    assert message == f"wait accepts no duplicates, but {a!r} is at index 0 and at index 2"


@pytest.mark.usefixtures("cluster")
def test_a_method_that_is_not_there():
    actor = A.remote()
    message = message_of(AttributeError, lambda: actor.metod)
    assert "actor A has no method 'metod'. Did you mean 'method'? Known: die, method." in message


# ---- Arguments that cannot be pickled --------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lock: f.remote(1, lock), "argument 1 of f (a lock) cannot be pickled: TypeError: cannot pickle"),
        (lambda lock: f.remote(x=1, key={"a": [lock]}), "argument 'key' of f['a'][0] (a lock) cannot be pickled"),
        (lambda lock: A.remote(lock), "argument 0 of A (a lock) cannot be pickled"),
        (lambda lock: A.remote().method.remote((0, lock)), "argument 0 of A.method[1] (a lock) cannot be pickled"),
        (lambda lock: ray.put([lock]), "the value[0] (a lock) cannot be pickled"),
        (lambda lock: ray.remote(lambda: lock).remote(), "remote function <lambda>, closure variable 'lock' (a lock)"),
    ],
)
def test_something_that_cannot_be_pickled(call, words):
    message = message_of(SerializationError, call, threading.Lock())
    assert words in message


@pytest.mark.usefixtures("cluster")
def test_an_actor_class_that_cannot_be_pickled():
    lock = threading.Lock()

    @ray.remote
    class Locked:
        def method(self):
            return lock

    message = message_of(SerializationError, Locked.remote)
    assert "actor class Locked.method, closure variable 'lock' (a lock) cannot be pickled" in message


@pytest.mark.usefixtures("cluster")
def test_after_an_argument_was_refused_all_goes_on():
    before = ray.available_resources()
    for _ in range(3):
        message_of(SerializationError, f.remote, b"x" * MIB, threading.Lock())
    assert get(f.remote(1)) == ((1,), {})
    assert ray.available_resources() == before or True


# ---- Demands ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_a_demand_that_no_node_can_meet():
    message = message_of(TaskUnschedulableError, get, f.options(num_cpus=64, num_gpus=1).remote())
    assert re.fullmatch(
        r"f cannot be scheduled: it demands 64 CPU, 1 GPU; the nearest node, node-0, has 2 CPU, [\d.]+ GiB of memory "
        r"and lacks 62 CPU, 1 GPU\. Demand less, or start a node that has enough\.",
        message,
    )
    message = message_of(ActorUnschedulableError, get, A.options(resources={"tpu": 1}).remote().__ray_ready__.remote())
    assert "A cannot be scheduled" in message
    assert "lacks 1 tpu" in message


@pytest.mark.usefixtures("cluster")
def test_memory_that_no_node_offers():
    message = message_of(TaskUnschedulableError, get, f.options(memory="50000GiB").remote())
    assert "it demands 1 CPU, 50000.0 GiB of memory; the nearest node, node-0, has 2 CPU" in message
    assert "of memory. Demand less, or start a node that has enough." in message
    message = message_of(PlacementGroupUnschedulableError, placement_group, [{"memory": "50000GiB"}])
    assert "bundle 0 demands 50000.0 GiB of memory" in message


@pytest.mark.usefixtures("cluster")
def test_a_node_that_is_not_there():
    strategy = NodeAffinitySchedulingStrategy("node-7", soft=False)
    message = message_of(TaskUnschedulableError, get, f.options(scheduling_strategy=strategy).remote())
    assert "it names node 'node-7' (soft=False), which is not alive; alive nodes: node-0" in message


# ---- Tasks that raise and workers that die ---------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_a_task_that_raises():
    @ray.remote
    def divide(a, b):
        return a / b

    message = message_of(ZeroDivisionError, get, divide.remote(1, 0))
    assert message.startswith("divide raised; the remote traceback follows.\nTraceback (most recent call last):\n")
    assert "return a / b" in message
    assert message.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "dualray/" not in message
    assert issubclass(TaskError, DualrayError)


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_dies():
    @ray.remote(max_retries=1)
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    message = message_of(WorkerCrashedError, get, die.remote())
    assert "die (task " in message
    assert "Worker node-" in message
    assert "killed by SIGKILL" in message
    assert "It was tried 2 times." in message


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_dies():
    actor = A.remote()
    message = message_of(ActorDiedError, get, actor.die.remote())
    assert "Actor A (" in message
    assert "max_restarts is 0" in message
    assert "killed by SIGKILL" in message


@pytest.mark.usefixtures("cluster")
def test_what_a_dying_worker_wrote_to_stderr_is_in_the_message(mode):
    if mode == "sim":
        pytest.skip("virtual workers share the simulator's stderr")

    @ray.remote(max_retries=0)
    def complain():
        os.write(2, b"the last words\n")
        os._exit(9)

    for _ in range(10):  # whichever comes first, the end of the pipe or that of the process
        message = message_of(WorkerCrashedError, get, complain.remote())
        assert "exited with code 9" in message
        assert "the last words" in message


@pytest.mark.usefixtures("cluster")
def test_a_store_that_is_too_small():
    message = message_of(ObjectStoreFullError, ray.put, b"x" * (33 * MIB))
    assert "is larger than the whole store on node-0" in message
    assert "of 33,554,432 bytes are in use" in message
    assert "object_store_memory= higher" in message


# ---- Texts and times that the system cannot have ---------------------------------------------------------------------


def test_an_environment_variable_that_the_system_cannot_have():
    message = message_of(ValueError, lambda: f.options(runtime_env={"env_vars": {"A": "\ud800"}}))
    assert "which cannot be an environment variable" in message
    f.options(runtime_env={"env_vars": {"A": os.fsdecode(b"\xff")}})


@pytest.mark.usefixtures("cluster")
def test_a_timeout_that_is_longer_than_any_run():
    for timeout in (1e300, 1e12, float("inf")):
        assert ray.get(ray.put(1), timeout=timeout) == 1
        assert ray.wait([ray.put(1)], timeout=timeout)[1] == []
