"""Beginning and ending: what `init` refuses, what comes before it, and what is left after `shutdown`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest

import dualray as ray
from dualray.exceptions import (
    ActorHandleEndedError,
    ActorHandleNotFoundError,
    ActorUnschedulableError,
    AlreadyInitializedError,
    DualrayError,
    NotInitializedError,
    ReferenceEndedError,
    TaskCancelledError,
    TaskUnschedulableError,
)
from tests.conformance.support import MIB, MODES, get, options_for, start_cluster


@pytest.fixture
def nothing_started() -> Iterator[None]:
    assert not ray.is_initialized()
    yield
    left_behind = ray.is_initialized()
    ray.shutdown()
    assert not left_behind, "what was refused must not leave a cluster behind"


@ray.remote
def f(*args, **kwargs):
    return args, kwargs


@ray.remote
class A:
    def method(self):
        return 1


def message_of(error_type, call, *args, **kwargs):
    with pytest.raises(error_type) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.usefixtures("nothing_started")
@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("nodes", lambda: ray.nodes()),
        ("cluster_resources", lambda: ray.cluster_resources()),
        ("available_resources", lambda: ray.available_resources()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_question_before_init(verb, call):
    message = message_of(NotInitializedError, call)
    assert message == f"{verb} was called before dualray.init(). Call dualray.init() first."


@pytest.mark.usefixtures("nothing_started")
def test_exit_actor_before_init_is_outside_an_actor():
    message = message_of(TypeError, ray.exit_actor)
    assert "was called outside an actor" in message


@pytest.mark.usefixtures("nothing_started")
def test_shutdown_before_init_does_nothing():
    ray.shutdown()
    ray.shutdown()


def test_init_twice(start, mode):
    start()
    message = message_of(AlreadyInitializedError, ray.init, mode=mode)
    assert "has already called dualray.init()" in message
    assert "dualray.shutdown()" in message
    assert "ignore_reinit_error=True" in message
    assert ray.init(mode=mode, ignore_reinit_error=True) == ray.init(ignore_reinit_error=True)
    assert get(f.remote()) == ((), {})


def test_a_reference_of_a_cluster_that_was_shut_down_is_a_value_error(start):
    start()
    old = [ray.put(1), ray.put(bytes(1 << 20))]
    ray.shutdown()
    start()
    uses = {
        "Ray objects whose owner is unknown": (ray.get, lambda ref: ray.get([ray.put(0), ref])),
        "Ray object whose owner is unknown": (lambda ref: ray.wait([ref]), lambda ref: ray.remote(len).remote(ref)),
    }
    for words, calls in uses.items():
        for use in calls:
            for ref in old:
                with pytest.raises(ValueError, match=f"belongs to a cluster that was shut down.*{words}") as caught:
                    use(ref)
                assert isinstance(caught.value, ReferenceEndedError)


def test_a_reference_of_a_cluster_that_was_shut_down_is_never_ready(start):
    start()
    old = ray.put(1)
    ray.shutdown()
    start()
    new = [ray.put(2), ray.put(3)]
    assert ray.wait([old, *new]) == (new[:1], [old, new[1]])
    assert ray.wait([new[0], old, new[1]], num_returns=3) == (new, [old])
    assert ray.wait([new[0], old], num_returns=2, timeout=0) == (new[:1], [old])


def test_a_handle_of_a_cluster_that_was_shut_down(start):
    start()
    old = A.options(name="old", lifetime="detached").remote()
    get(old.method.remote())
    ray.shutdown()
    start()
    for use in (ray.kill, lambda handle: handle.method.remote(), lambda handle: f.remote(handle)):
        with pytest.raises(ActorHandleNotFoundError, match="ActorHandle objects are not valid across Ray sessions"):
            use(old)
    with pytest.raises(ActorHandleEndedError, match="it's from a different cluster"):
        old.method.remote()


def test_a_timeout_of_minus_one_is_none_as_in_ray(start):
    start()
    assert ray.get(ray.put(1), timeout=-1) == 1
    assert ray.get([ray.put(2)], timeout=-1) == [2]
    with pytest.raises(ValueError, match="must not be negative"):
        ray.wait([ray.put(1)], timeout=-1)


def test_init_after_shutdown(start):
    for _ in range(2):
        start(num_cpus=1)
        assert ray.is_initialized()
        assert get(f.remote(1)) == ((1,), {})
        ray.shutdown()
        assert not ray.is_initialized()
        ray.shutdown()


def test_references_of_a_cluster_that_is_gone(mode):
    start_cluster(mode)
    ref, actor = ray.put(b"x" * MIB), A.remote()
    get(actor.method.remote())
    ray.shutdown()
    assert "shut down" in message_of(DualrayError, ray.get, ref)
    assert "before dualray.init()" in message_of(NotInitializedError, actor.method.remote)
    assert not ray.is_initialized()
    start_cluster(mode)
    try:
        assert isinstance(ref, ray.ObjectRef)
        for call in (lambda: ray.get(ref, timeout=5), lambda: ray.wait([ref], timeout=5), lambda: f.remote(ref)):
            assert "shut down" in message_of(DualrayError, call)
        assert "shut down" in message_of(DualrayError, lambda: actor.method.remote())
    finally:
        ray.shutdown()


@pytest.mark.usefixtures("nothing_started")
@pytest.mark.parametrize("started_mode", MODES)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_cpus": -1}, "num_cpus=-1 must be between 0 and 1,000,000"),
        ({"num_cpus": float("nan")}, "num_cpus=nan must be between"),
        ({"num_gpus": 1.5}, "an amount above 1 must be a whole number"),
        ({"resources": {"CPU": 1}}, "resources has 'CPU'; use num_cpus= instead"),
        ({"resources": {"disk": -1}}, "resources['disk']=-1 must be between"),
        ({"resources": {"disk": "lots"}}, "resources['disk']='lots' must be a number"),
        ({"object_store_memory": 10}, "at least 1 MiB"),
        (
            {"limits": {"push_windw_max": 1}},
            "limits has the unknown limit 'push_windw_max'. Did you mean 'push_window_max'?",
        ),
        ({"limits": {"placement_policy": "nowhere:Policy"}}, "module 'nowhere' cannot be imported"),
        ({"limits": {"eviction_policy": "dualray.shared.policies.eviction.lru:Lru"}}, "has no 'Lru'"),
        ({"limits": {"retry_policy": "no colon"}}, "must be written 'package.module:Class'"),
        ({"mode": "simm"}, "mode='simm' must be 'real', 'sim' or 'ray'. Did you mean 'sim'?"),
    ],
    ids=str,
)
def test_init_refuses_what_cannot_be_and_starts_nothing(started_mode, changes, words):
    message = message_of((ValueError, TypeError), ray.init, **(options_for(started_mode) | changes))
    assert words in message


@pytest.mark.usefixtures("nothing_started")
@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (["kill node-9 at 1s"], "the cluster has no node 'node-9'; the nodes are node-0 to node-2"),
        (["kill node-0 at 1s"], "node-0 runs the driver"),
        (["explode node-1 at 1s"], "fault 'explode node-1 at 1s' is not understood"),
        (["kill node-1 at 5 parsecs"], "'5 parsecs' is not understood; write a number with one of"),
    ],
)
def test_bad_faults(faults, words):
    assert words in message_of(ValueError, ray.init, mode="sim", nodes=3, faults=faults)


@pytest.mark.usefixtures("nothing_started")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"mode": "real", "nodes": 3},
            "init(nodes=...) works only in sim mode, but mode='real' was given; leave out nodes=",
        ),
        ({"mode": "real", "faults": ["kill node-1 at 1s"]}, "init(faults=...) works only in sim mode"),
        ({"mode": "sim", "num_redis_shards": 1}, "init(num_redis_shards=...) works only in real mode"),
    ],
)
def test_an_argument_of_the_other_mode(arguments, words):
    assert words in message_of(ValueError, ray.init, **arguments)


def test_an_argument_of_the_other_mode_where_the_mode_came_from_outside(mode, monkeypatch):
    monkeypatch.setenv("DUALRAY_MODE", mode)
    other = {"num_redis_shards": 1} if mode == "sim" else {"nodes": 3, "faults": []}
    with pytest.warns(UserWarning, match="init ignores") as warned:
        ray.init(num_cpus=1, **other)
    try:
        [warning] = warned
        assert "init ignores" in str(warning.message)
        assert f"mode {mode!r}, from environment" in str(warning.message)
        assert warning.filename == __file__
        assert get(f.remote(1)) == ((1,), {})
    finally:
        ray.shutdown()


@pytest.mark.usefixtures("nothing_started")
def test_a_bad_config_file(tmp_path, monkeypatch):
    (tmp_path / "dualray.toml").write_text("mod = 'sim'\n")
    monkeypatch.chdir(tmp_path)
    assert message_of(ValueError, ray.init) == "dualray.toml: unknown setting 'mod'. Did you mean 'mode'?"


@pytest.mark.usefixtures("nothing_started")
def test_an_argument_that_init_does_not_have():
    assert "num_cpu" in message_of(TypeError, ray.init, mode="sim", num_cpu=1)


def test_no_warning_is_given_for_what_is_right(mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start_cluster(mode)
        get(f.remote(1))
        ray.shutdown()


def test_shutdown_while_tasks_run_and_references_live(start, gate):
    @ray.remote
    def wait_long():
        gate.wait()

    start()
    refs = [wait_long.remote() for _ in range(3)]
    actor = A.remote()
    value = get(ray.put(b"x" * MIB))
    ray.shutdown()
    assert len(value) == MIB
    del refs, actor


def test_the_environment_of_the_driver_is_left_alone(start):
    before = dict(os.environ)
    start()
    get(f.remote(1))
    ray.shutdown()
    assert dict(os.environ) == before


def test_gpus_that_the_driver_may_see_are_hidden_from_tasks_that_asked_for_none(start, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    start(num_gpus=0)
    assert get(ray.remote(lambda: os.environ.get("CUDA_VISIBLE_DEVICES")).remote()) == ""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_an_infeasible_demand_may_wait(start):
    start(infeasible="wait")

    @ray.remote(num_cpus=1000)
    def huge():
        pass

    ref = huge.remote()
    assert ray.wait([ref], timeout=0.1) == ([], [ref])
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=20)


@pytest.mark.parametrize(("offered", "fits"), [(2.2, 2.9), (0.2, 0.5)])
def test_parts_of_a_byte_of_memory_are_dropped(start, offered, fits):
    start(num_cpus=1, memory=offered)
    nothing = ray.remote(lambda: None)
    assert ray.get(nothing.options(memory=fits).remote(), timeout=20) is None
    with pytest.raises(TaskUnschedulableError):
        ray.get(nothing.options(memory=fits + 1).remote(), timeout=20)


def test_a_demand_for_one_node_does_not_wait_for_others(start):
    start(infeasible="wait", num_cpus=1)

    @ray.remote
    def where():
        return ray.get_runtime_context().get_node_id()

    @ray.remote
    class Place:
        def where(self):
            return ray.get_runtime_context().get_node_id()

    here = {"ray.io/node-id": ray.get(where.remote())}
    gone = {"ray.io/node-id": "node-99"}
    assert ray.get(where.options(label_selector=here).remote()) == here["ray.io/node-id"]
    for options in ({"label_selector": gone}, {"label_selector": here, "resources": {"absent": 1}}):
        with pytest.raises(TaskUnschedulableError):
            ray.get(where.options(**options).remote(), timeout=20)
        with pytest.raises(ActorUnschedulableError):
            ray.get(Place.options(**options).remote().where.remote(), timeout=20)
    either = {"ray.io/node-id": f"in(node-99,{here['ray.io/node-id']})"}
    assert ray.get(where.options(label_selector=either).remote()) == here["ray.io/node-id"]


def test_what_an_infeasible_demand_does_is_one_of_two(mode):
    with pytest.raises(ValueError, match="infeasible='hope' must be 'raise' or 'wait'"):
        ray.init(mode=mode, infeasible="hope")
