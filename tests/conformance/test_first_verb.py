"""A verb before `init` starts a cluster with the defaults, as in Ray; so do other ways to begin."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import dualray as ray
from dualray.exceptions import AlreadyInitializedError, NotInitializedError
from dualray.util.multiprocessing import Pool
from dualray.util.placement_group import placement_group


@ray.remote
def add(x, y=1):
    return x + y


@ray.remote
class Counter:
    def __init__(self, value=0):
        self.value = value


@pytest.fixture(autouse=True)
def nothing_runs(mode, monkeypatch):
    monkeypatch.setenv("DUALRAY_MODE", mode)
    assert not ray.is_initialized()
    yield
    ray.shutdown()


@pytest.mark.parametrize(
    "verb",
    [
        lambda: ray.put(1),
        lambda: ray.get([]),
        lambda: ray.wait([]),
        lambda: ray.get(add.remote(1)),
        lambda: Counter.remote(),
        lambda: ray.get_gpu_ids(),
        lambda: ray.get_runtime_context(),
        lambda: placement_group([{"CPU": 1}]),
    ],
    ids=["put", "get", "wait", "remote", "actor", "get_gpu_ids", "get_runtime_context", "placement_group"],
)
def test_the_first_verb_starts_a_cluster(mode, verb):
    verb()
    assert ray.is_initialized()
    assert ray.get_runtime_context().mode == mode
    with pytest.raises(AlreadyInitializedError):
        ray.init()


def test_a_lookup_that_fails_has_started_one_too():
    with pytest.raises(ValueError, match="nobody"):
        ray.get_actor("nobody")
    assert ray.is_initialized()


def test_a_pool_starts_one():
    with Pool(1) as pool:
        assert pool.map(len, ["a", "bb"]) == [1, 2]


def test_arguments_are_checked_before_a_cluster_is_started():
    for call in (lambda: ray.get(1), lambda: ray.wait(1), lambda: ray.kill(None), lambda: ray.cancel(1)):
        with pytest.raises(TypeError):
            call()
    assert not ray.is_initialized()


def test_threads_that_come_first_together_start_one_cluster(mode):
    if mode == "sim":
        pytest.skip("a simulation runs in the thread that starts it")
    found, barrier = [], threading.Barrier(4)

    def first():
        barrier.wait()
        found.append(ray.get(add.remote(len(found), 0)))

    threads = [threading.Thread(target=first) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len([row for row in ray.nodes() if row["Alive"]]) == 1


def test_a_finalizer_starts_none():
    caught = []

    class Late:
        def __del__(self):
            try:
                ray.put(1)
            except NotInitializedError as error:
                caught.append(str(error))

    Late()
    assert "a finalizer cannot start a cluster" in caught[0]
    assert not ray.is_initialized()


def test_a_setting_forbids_it(monkeypatch):
    monkeypatch.setenv("DUALRAY_AUTO_INIT", "0")
    with pytest.raises(NotInitializedError, match=r"auto_init=False \(set by: environment\) does not allow put"):
        ray.put(1)
    assert not ray.is_initialized()


def test_a_script_without_init_runs_and_leaves_nothing(tmp_path, mode):
    script = tmp_path / "script.py"
    script.write_text(
        "import dualray as ray\n"
        "@ray.remote\n"
        "def double(x):\n"
        "    return 2 * ray.get(ray.put(x))\n"
        "print(ray.get(double.remote(21)), ray.get_runtime_context().mode)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == f"42 {mode}\n"


# ---- What init returns ---------------------------------------------------------------------------------------------


def test_init_returns_the_addresses_as_a_mapping():
    context = ray.init(num_cpus=1)
    assert context["address"] == context.address_info["address"]
    assert set(context) >= {"node_ip_address", "node_id", "gcs_address", "session_dir", "webui_url", "redis_address"}
    assert context.address_info["node_id"] == ray.nodes()[0]["NodeID"]
    assert context["node_ip_address"] == ray.nodes()[0]["NodeManagerAddress"]
    assert context.python_version.split(".")[0] == "3"
    assert context.ray_version == context.dualray_version == ray.__version__
    assert context.dashboard_url == ""
    assert "ClusterContext(mode=" in repr(context)
    with pytest.raises(KeyError):
        context["nothing"]


def test_what_init_returns_ends_the_cluster():
    with ray.init(num_cpus=1) as context:
        assert ray.get(add.remote(1)) == 2
    assert not ray.is_initialized()
    context.disconnect()


def test_the_address_local_is_a_cluster_of_its_own(mode, monkeypatch):
    if mode == "real":
        monkeypatch.setenv("DUALRAY_ADDRESS", "127.0.0.1:1")
    ray.init("local", num_cpus=1)
    assert ray.get(add.remote(1)) == 2


def test_arguments_of_ray_that_mean_nothing_here_are_accepted():
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", dashboard_port=8265, _temp_dir="/tmp/ray")
    assert ray.get(add.remote(1)) == 2


def test_an_unknown_argument_names_the_nearest():
    with pytest.raises(TypeError, match=r"init\(\) has no argument 'num_cpu'. Did you mean 'num_cpus'\?"):
        ray.init(num_cpu=2)
    with pytest.raises(
        TypeError,
        match=r"no argument local_mode, because Ray removed this argument\. .* use init\(mode='sim'\)",
    ):
        ray.init(local_mode=True)
    assert not ray.is_initialized()


# ---- Decorators ----------------------------------------------------------------------------------------------------


def test_a_decorator_without_options_in_its_parentheses_is_refused():
    with pytest.raises(TypeError, match=r"write @remote, or @remote\(num_cpus=2\)"):
        ray.remote()


def test_a_coroutine_is_no_task():
    async def wait():
        return 1

    with pytest.raises(
        ValueError,
        match=r"is an 'async def' function, but only methods of actors can be async.*asyncio.run\(wait\(\)\)",
    ):
        ray.remote(wait)


# ---- Types of errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [lambda: ray.get(3), lambda: ray.get([3]), lambda: ray.kill(3)])
def test_a_wrong_type_is_an_error_of_python_and_of_ray(call):
    for kind in (TypeError, ValueError):
        with pytest.raises(kind):
            call()
