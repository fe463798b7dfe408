"""`ray.init`, and the classes that programs hand to it. They are there without the name `ray`."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import subprocess
import sys
from typing import Any

import pytest

import dualray
from dualray.as_ray import initializing
from dualray.as_ray.environments import RuntimeEnv, RuntimeEnvConfig
from dualray.as_ray.ids import JobID, NodeID
from dualray.as_ray.initializing import init
from dualray.as_ray.job_config import JobConfig, LoggingConfig
from dualray.as_ray.system_config import all_limits_of_ray
from dualray.cluster_utils import Cluster
from dualray.util.state import list_objects


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("DUALRAY_MODE", "sim")
    monkeypatch.setattr(initializing, "_named", set())
    yield
    dualray.shutdown()


def test_all_arguments_of_rays_init_are_taken(caplog):
    with init(
        num_cpus=2,
        num_gpus=1,
        resources={"disk": 2},
        labels={"zone": "a"},
        object_store_memory=80 << 20,
        _memory=1 << 30,
        ignore_reinit_error=True,
        include_dashboard=False,
        dashboard_host="127.0.0.1",
        dashboard_port=None,
        configure_logging=True,
        logging_level="info",
        logging_format=None,
        log_to_driver=True,
        namespace="ns",
        runtime_env=RuntimeEnv(env_vars={"A": "1"}),
        enable_resource_isolation=False,
        _system_config={"max_direct_call_object_size": 10},
        _temp_dir=None,
    ) as context:
        assert dualray.cluster_resources()["disk"] == 2
        assert dualray.cluster_resources()["memory"] == 1 << 30
        assert dualray.get_runtime_context().namespace == "ns"
        assert dualray.get_runtime_context().runtime_env == {"env_vars": {"A": "1"}}
        assert context.ray_version == "2.60.0"
        assert context.address_info["node_id"] == dualray.nodes()[0]["NodeID"]
    assert not dualray.is_initialized()
    assert caplog.text == ""


def test_what_has_no_effect_is_named_once(caplog):
    for _ in range(2):
        init(
            include_dashboard=True, _node_name="x", logging_format="%(message)s", _system_config={"abc": 1}
        ).disconnect()
    assert [record.args and next(iter(record.args)) for record in caplog.records] == [
        "include_dashboard",
        "_node_name",
        "logging_format",
        "abc",
    ]


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({"logging_level": "error"}, logging.ERROR),
        ({"logging_level": logging.DEBUG}, logging.DEBUG),
        ({"logging_level": "error", "configure_logging": False}, logging.NOTSET),
        ({}, logging.NOTSET),
    ],
)
def test_the_level_of_the_logger(given, level):
    logger = logging.getLogger("ray")
    before, logger.level = logger.level, logging.NOTSET
    try:
        with init(**given):
            assert logger.level == level
    finally:
        logger.setLevel(before)


def test_values_that_ray_refuses():
    with pytest.raises(ValueError, match="Unknown level: 'LOUD'"):
        init(logging_level="loud")
    for name in ("CPU", "GPU", "memory", "object_store_memory"):
        with pytest.raises(AssertionError, match=f"`{name}` cannot be a custom resource") as refused:
            init(resources={name: 1})
        assert isinstance(refused.value, ValueError)
    with pytest.raises(ValueError, match="must be absolute"):
        init(_temp_dir="relative/path")


def test_settings_of_ray_that_say_where_tasks_run():
    said = {"max_direct_call_object_size": 0, "worker_lease_timeout_milliseconds": 3, "scheduler_spread_threshold": 0.1}
    assert all_limits_of_ray(said) == {
        "inline_bytes_max": 0,
        "locality_bytes_max": 0,
        "lease_idle_ns": 3_000_000,
        "spread_threshold_percent": 10,
    }
    with Cluster(mode="sim") as cluster:
        cluster.add_node(num_cpus=1, _system_config=said)
        cluster.add_node(num_cpus=1, resources={"far": 1})
        with init(address=cluster.address):
            where = dualray.remote(lambda *_: dualray.get_runtime_context().get_node_id())
            small = where.options(num_cpus=0, resources={"far": 1}).remote()
            dualray.wait([small], fetch_local=False)
            assert dualray.get(where.options(num_cpus=0).remote(small)) == "node-1", "its argument lies there"


def test_a_full_store_writes_to_disk_also_without_automatic_spilling(caplog):
    @dualray.remote(num_cpus=1)
    def double(data):
        return data + data

    config = {"automatic_object_spilling_enabled": False}
    with init(num_cpus=1, object_store_memory=100 << 20, _system_config=config):
        assert "'automatic_object_spilling_enabled': ...}) has no effect" in caplog.text
        given = dualray.put(bytes(45_000_000))
        assert len(dualray.get(double.remote(given))) == 90_000_000, "argument and result have no room together"


def test_variables_say_what_system_config_says(monkeypatch):
    monkeypatch.setenv("RAY_max_num_generator_returns", "2")
    monkeypatch.setenv("RAY_lineage_pinning_enabled", "True")

    @dualray.remote(max_retries=0)
    def count(end):
        yield from range(end)

    for start in (init, lambda: dualray.init(**initializing.defaults_of_first_verb())):
        with start():
            assert [dualray.get(ref) for ref in count.remote(2)] == [0, 1]
            with pytest.raises(ValueError, match=r"count has yielded more than 2 items; limits=.'generator_items_max'"):
                [dualray.get(ref) for ref in count.remote(3)]
    monkeypatch.setenv("RAY_max_num_generator_returns", "two")
    with pytest.raises(ValueError, match=r"RAY_max_num_generator_returns='two' must be a number"):
        init()


def test_each_simulation_names_a_session_of_its_own(monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", "/somewhere/else")
    named = []
    for _ in range(2):
        with init(num_cpus=1) as context:
            told = dualray.remote(lambda: dualray.get_runtime_context().get_session_name()).remote()
            named.append(context["session_dir"])
            assert dualray.get(told) == dualray.get_runtime_context().get_session_name() == named[-1].rpartition("/")[2]
            assert dualray.get_runtime_context().get_temp_dir() == "/somewhere/else"
    assert named[0] != named[1]
    with dualray.init(mode="sim") as context:
        assert context["session_dir"] == ""


def test_the_ports_of_a_node_differ():
    with Cluster(mode="sim") as cluster:
        with pytest.raises(ValueError, match="dashboard_port and metrics_export_port are both 30000"):
            cluster.add_node(dashboard_port=30000, metrics_export_port=30000)
        ports: Any = {"redis_port": 30000, "gcs_server_port": 30001}
        with pytest.raises(ValueError, match=r"other processes already use the ports \[30001\] of worker_port_list"):
            cluster.add_node(**ports, worker_port_list="30001,30002")
        with pytest.raises(ValueError, match=r"from 29000 to 30000, include \[30000\], which other"):
            cluster.add_node(**ports, min_worker_port=29000, max_worker_port=30000)
        cluster.add_node(**ports, min_worker_port=29000, max_worker_port=29900, worker_port_list="30002")


def test_where_the_cluster_is(monkeypatch):
    for address in (None, "local", "auto", "10.0.0.1:6379"):
        init(address).disconnect()  # a simulation begins
    monkeypatch.setenv("RAY_ADDRESS", "ray://host:10001")
    with pytest.raises(ConnectionError, match=r"ray://host:10001'\): dualray has no Ray Client"):
        init()
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("DUALRAY_MODE", "real")
    with pytest.raises(ConnectionError, match=r"no node of the cluster at 127\.0\.0\.1:9 runs on this machine"):
        init("127.0.0.1:9")
    assert not dualray.is_initialized()
    with init(local_mode=True) as context:
        assert context.runtime.mode == "sim"
        assert len(dualray.nodes()) == 1


def test_auto_finds_no_cluster(monkeypatch):
    monkeypatch.setenv("DUALRAY_MODE", "real")
    monkeypatch.setattr("dualray.real.cluster.joining.sessions.running", list)
    with pytest.raises(ConnectionError, match=r"no cluster runs on this machine for this user. Call ray.init\(\) to"):
        init(address="auto", num_cpus=1)
    assert not dualray.is_initialized()


def test_auto_starts_a_cluster_under_dualray_run(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import ray\n\nray.init(address='auto', num_cpus=3)\nprint(ray.cluster_resources()['CPU'])\n")
    command = [sys.executable, "-m", "dualray", "run", "--as-ray", "--mode", "real", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout == "3.0\n", ran.stderr


def test_what_init_refuses():
    with pytest.raises(TypeError, match=r"ray.init\(\) has no argument 'num_cpu'. Did you mean 'num_cpus'"):
        init(num_cpu=3)
    with pytest.raises(RuntimeError, match="has no argument '_nonsense'"):
        init(_nonsense=3)
    init()
    with pytest.raises(RuntimeError, match="has already called"):
        init()
    assert init(ignore_reinit_error=True).ray_version == "2.60.0"


def test_a_jobs_config():
    config = JobConfig(runtime_env={"env_vars": {"A": "2"}}, ray_namespace="of job", metadata={"k": "v"})
    with init(job_config=config):
        assert dualray.get_runtime_context().namespace == "of job"
        assert dualray.get_runtime_context().runtime_env == {"env_vars": {"A": "2"}}
    with pytest.raises(ValueError, match="both runtime_env= and job_config="):
        init(job_config=config, runtime_env={"env_vars": {"A": "1"}})
    assert JobConfig.from_json('{"ray_namespace": "n", "metadata": {"a": "b"}}').metadata == {"a": "b"}
    with pytest.raises(ValueError, match="default_actor_lifetime='immortal' must be"):
        JobConfig(default_actor_lifetime="immortal")
    with pytest.raises(TypeError, match="metadata has 'a': 3"):
        JobConfig(metadata={"a": 3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="Invalid encoding type"):
        LoggingConfig(encoding="XML")


def test_an_environment_is_a_dict():
    environment = RuntimeEnv(pip=["requests"], env_vars={"A": "1"}, config=RuntimeEnvConfig(setup_timeout_seconds=9))
    assert environment["pip"] == ["requests"]
    assert environment.has_pip()
    assert not environment.has_conda()
    assert environment.env_vars() == {"A": "1"}
    assert RuntimeEnv.deserialize(environment.serialize()) == environment == pickle.loads(pickle.dumps(environment))
    assert type(pickle.loads(pickle.dumps(environment))) is RuntimeEnv
    with pytest.raises(ValueError, match="'pip' field and 'conda' field"):
        RuntimeEnv(pip=["a"], conda="b")
    with pytest.raises(TypeError, match="must be of type Dict"):
        RuntimeEnv(env_vars={"A": 1})
    with pytest.raises(ValueError, match="greater than zero or equals to -1"):
        RuntimeEnvConfig(setup_timeout_seconds=-5)
    with init(runtime_env=RuntimeEnv(env_vars={"A": "1"}, config={"setup_timeout_seconds": 9})):
        pass
    with pytest.raises(ValueError, match="has both 'pip' and 'uv'"):
        init(runtime_env={"pip": ["numpy"], "uv": ["requests"]})
    with init(runtime_env=RuntimeEnv(pip=["numpy"])):
        pass


def test_ids():
    assert JobID.from_int(3).hex() == "03000000"
    assert JobID.from_int(3).int() == 3
    assert NodeID.nil().is_nil()
    assert NodeID.from_hex("ab" * 28) == NodeID(b"\xab" * 28) == pickle.loads(pickle.dumps(NodeID(b"\xab" * 28)))
    assert NodeID.from_random() != NodeID.from_random()
    assert len(NodeID.from_random().binary()) == NodeID.size() == 28
    assert repr(JobID.from_int(1)) == "JobID(01000000)"
    with pytest.raises(ValueError, match="JobID takes 4 bytes, not 3"):
        JobID(b"abc")


def test_keys_and_values_of_the_cluster():
    from dualray.as_ray import internal_kv as kv

    assert not kv._internal_kv_initialized()
    init()
    assert kv._internal_kv_initialized()
    assert (kv._internal_kv_get("a"), kv._internal_kv_list("a"), kv._internal_kv_del("a")) == (None, [], 0)
    assert not kv._internal_kv_put("ab", "1")
    assert kv._internal_kv_put(b"ab", b"2", overwrite=False)
    assert not kv._internal_kv_put("ac", b"3")
    assert not kv._internal_kv_put("ab", "4", namespace="other")
    assert kv._internal_kv_get("ab") == b"1"
    assert kv._internal_kv_exists("ab", namespace=b"other")
    assert kv._internal_kv_list("a") == [b"ab", b"ac"]
    assert kv._internal_kv_del("a", del_by_prefix=True) == 2
    assert kv._internal_kv_del("ab", namespace="other") == 1
    assert not kv._internal_kv_exists("ab", namespace="other")
    with pytest.raises(TypeError, match="a key must be bytes or str, not 3"):
        kv._internal_kv_get(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the value of 'a' must be bytes or str, not 3"):
        kv._internal_kv_put("a", 3)  # type: ignore[arg-type]


def test_a_demand_that_no_node_can_meet_waits_unless_the_program_says(monkeypatch):
    @dualray.remote(resources={"disk": 1})
    def f():
        pass

    with init():
        assert dualray.wait([f.remote()], timeout=1)[0] == []
    with init(infeasible="raise"), pytest.raises(dualray.exceptions.TaskUnschedulableError):
        dualray.get(f.remote())
    monkeypatch.setenv("DUALRAY_INFEASIBLE", "raise")
    with init(), pytest.raises(dualray.exceptions.TaskUnschedulableError):
        dualray.get(f.remote())
    dualray.shutdown()
    monkeypatch.delenv("DUALRAY_INFEASIBLE")
    assert dualray.wait([f.remote()], timeout=1)[0] == [], "so does one that a verb starts"


def _ask_until_it_has_ended(actor):
    while True:
        dualray.get(actor.__ray_ready__.remote())


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_actors_are_detached_where_the_job_says_so(mode):
    class Made:
        pass

    class Maker:
        def make(self, **options):
            self.made = dualray.remote(Made).options(num_cpus=0, **options).remote()
            return dualray.get(self.made.__ray_ready__.remote()) and self.made

    with init(mode=mode, num_cpus=1, job_config=JobConfig(default_actor_lifetime="detached")):
        maker = dualray.remote(Maker).options(num_cpus=0).remote()
        stays, ends = dualray.get([maker.make.remote(), maker.make.remote(lifetime="non_detached")])
        dualray.kill(maker)
        with pytest.raises(dualray.exceptions.ActorDiedError):
            _ask_until_it_has_ended(ends)
        assert dualray.get(stays.__ray_ready__.remote())


def test_auto_leads_to_the_cluster_that_this_process_has_planned():
    with Cluster(mode="sim") as cluster:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=7)
        with init(address="auto"):
            assert dualray.cluster_resources()["CPU"] == 8
    with init(address="auto", num_cpus=3):
        assert dualray.cluster_resources()["CPU"] == 3, "that one was shut down"


@pytest.mark.parametrize("pins", [False, True])
def test_what_is_lost_is_made_again_unless_the_settings_of_ray_say_that_it_is_not(pins):
    @dualray.remote(num_cpus=1, resources={"far": 1})
    def large():
        return bytes(1 << 20)

    with Cluster(mode="sim") as cluster:
        cluster.add_node(num_cpus=0, _system_config={"lineage_pinning_enabled": pins})
        with init(address=cluster.address):
            far = cluster.add_node(num_cpus=1, resources={"far": 1})
            ref = large.remote()
            dualray.wait([ref], fetch_local=False)
            cluster.remove_node(far, allow_graceful=False)
            cluster.add_node(num_cpus=1, resources={"far": 1})
            if pins:
                assert len(dualray.get(ref)) == 1 << 20
            else:
                with pytest.raises(dualray.exceptions.ObjectLostError):
                    dualray.get(ref)


def test_settings_of_ray_are_those_of_who_starts_the_cluster():
    with Cluster(mode="sim") as cluster:
        cluster.add_node(num_cpus=1, object_store_memory=1e8, _system_config={"max_direct_call_object_size": 10})
        with pytest.raises(ValueError, match="only the program that starts a cluster"):
            init(address=cluster.address, _system_config={"max_direct_call_object_size": 10})
        with init(address=cluster.address):
            ref = dualray.put(bytes(100))
            [row] = list_objects()
            assert (row.object_id, row.state) == (ref.hex(), "STORED"), "it is larger than 10 bytes"


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_objects_are_spilled_to_the_directory_that_the_program_names(mode, tmp_path):
    sizes = [10 << 20] * 6
    with init(mode=mode, num_cpus=1, object_store_memory=30 << 20, object_spilling_directory=tmp_path / "spilled"):
        refs = [dualray.put(bytes(size)) for size in sizes]
        spilled = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert [len(dualray.get(ref)) for ref in refs] == sizes
    if mode == "real":
        assert spilled >= 30 << 20
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_only_an_init_that_connects_sets_the_handler_of_sigterm(mode):
    before = signal.getsignal(signal.SIGTERM)
    try:
        with init(mode=mode, num_cpus=1):
            with pytest.raises(SystemExit) as ended:
                signal.raise_signal(signal.SIGTERM)
            assert ended.value.code == signal.SIGTERM
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            init(ignore_reinit_error=True)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "the program's own handler stays"
    finally:
        signal.signal(signal.SIGTERM, before)


COMPUTES = """
import sys
import threading

import ray

ray.init(num_cpus=1)

@ray.remote
def compute():
    print("computes", flush=True)
    while True:
        pass

if sys.argv[1] == "task":
    ray.get(compute.remote())
else:
    thread = threading.Thread(target=lambda: compute._function())
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("where", ["task", "thread"])
def test_sigterm_ends_a_simulation_whose_task_or_thread_computes(where, tmp_path):
    (tmp_path / "program.py").write_text(COMPUTES)
    command = [sys.executable, "-m", "dualray", "run", "--as-ray", "--mode", "sim", "program.py", where]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == "computes\n"
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=30) == signal.SIGTERM
        finally:
            running.kill()


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_sigterm_ends_a_child_process_that_has_just_begun(mode):
    """Ray's handler would raise while Python's own functions for forks run in the child, which ignore it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with init(mode=mode, num_cpus=1):
            for _ in range(30):
                child = multiprocessing.get_context("fork").Process(target=signal.pause)
                child.start()
                child.terminate()
                child.join()
                assert child.exitcode == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
