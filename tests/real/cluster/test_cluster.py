"""Several nodes with real processes: joining, failures, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import dualray
from dualray.cluster_utils import Cluster, ClusterNode
from dualray.exceptions import ActorDiedError, ActorUnavailableError, DualrayError
from dualray.real.session.session import GATEWAY_FILE, SHARED_MEMORY
from dualray.real.store.object_store import ARENA_FILE
from dualray.util import list_named_actors
from dualray.util.state import list_actors

pytestmark = pytest.mark.leak_check

FAST = {"heartbeat_timeout_ns": 400_000_000, "suspicion_ns": 1_000_000_000}
"""So that the death of a node is noticed before a test's patience ends."""
DEADLINE_S = 30.0


def eventually(condition: Callable[[], Any], what: str, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s:g} s in vain until {what}"
        time.sleep(0.02)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head's node with one CPU, and this process as a driver."""
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1, "limits": FAST}) as started:
        yield started


@dualray.remote
def node_id() -> str:
    return dualray.get_runtime_context().get_node_id()


@dualray.remote
def slow_square(x: int, marks: str) -> int:
    Path(marks, f"{x}-{os.getpid()}").touch()
    time.sleep(1.0)
    return x * x


@dualray.remote
def ones(count: int, seed: int = 1) -> np.ndarray:
    return np.full(count, seed, dtype=np.float64)


@dualray.remote
def total(array: np.ndarray) -> float:
    return float(array.sum())


def states() -> dict[str, tuple[bool, int]]:
    return {row["NodeID"]: (row["Alive"], row["Incarnation"]) for row in dualray.nodes()}


def log_of(node: ClusterNode, name: str) -> str:
    return (node.directory / "logs" / f"{name}.log").read_text()


# ---- Joining -----------------------------------------------------------------------------------------------------


def test_each_node_has_its_own_store_and_directory(cluster) -> None:
    one, two = cluster.add_node(object_store_memory="64MiB"), cluster.add_node(object_store_memory="64MiB")
    assert len({node.directory for node in (cluster.head_node, one, two)}) == 3
    assert len({node.address for node in (cluster.head_node, one, two)}) == 3


def test_where_no_cluster_runs_a_driver_is_told_how_to_start_one() -> None:
    with pytest.raises(DualrayError, match=r"no cluster runs on this machine .* `dualray start --head`"):
        dualray.init(address="auto")
    with pytest.raises(DualrayError, match=r"no node of the cluster at 127.0.0.1:9 .*start --address 127.0.0.1:9"):
        dualray.init(address="127.0.0.1:9")


def test_a_driver_that_joins_brings_no_resources() -> None:
    with pytest.raises(ValueError, match=r"joins a running cluster, and cannot set num_cpus, seed"):
        dualray.init(address="127.0.0.1:9", num_cpus=2, seed=1)


# ---- The end of nodes ----------------------------------------------------------------------------------------------


def test_a_frozen_node_comes_back_as_its_next_incarnation(cluster, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=2, resources={"r": 1})
    cluster.wait_for_nodes()
    refs = [slow_square.remote(x, str(tmp_path)) for x in range(6)]
    eventually(lambda: len(list(tmp_path.iterdir())) >= 3, "tasks run on both nodes")
    node.freeze()
    assert dualray.get(refs, timeout=60) == [x * x for x in range(6)], "others do its work"
    assert states()["node-1"] == (False, 0)
    assert "node-1 does not answer" in log_of(cluster.head_node, "head")
    node.thaw()
    eventually(lambda: states()["node-1"] == (True, 1), "it has joined again")
    assert "ends: the head declared incarnation 0 of node-1 dead" in log_of(node, "node-1")
    again = "node-1 joined the cluster again as incarnation 1"
    eventually(lambda: again in log_of(node, "daemon"), "its daemon says so")
    assert dualray.get(node_id.options(resources={"r": 1}).remote()) == "node-1"


def command_of(process: psutil.Process) -> list[str]:
    """What a process was started with; nothing when it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_a_node_that_is_killed_while_it_joins_again_tries_once_more(cluster) -> None:
    node = cluster.add_node(num_cpus=1, resources={"r": 1})
    cluster.wait_for_nodes()
    node.freeze()
    eventually(lambda: states()["node-1"] == (False, 0), "it is counted as dead")
    gateway = node.directory / GATEWAY_FILE
    gateway.rename(gateway.with_name("elsewhere"))  # its next life finds no way to the head, and so does not join
    node.thaw()

    def next_life() -> list[psutil.Process]:
        return [process for process in node.processes() if command_of(process)[-2:] == ["node-1", "1"]]

    eventually(next_life, "it is started again")
    next_life()[0].kill()
    gateway.with_name("elsewhere").rename(gateway)
    store = SHARED_MEMORY / node.directory.name
    store.mkdir(mode=0o700, exist_ok=True)
    (store / ARENA_FILE).touch(mode=0o600)  # as a life that was killed leaves it
    eventually(lambda: states()["node-1"] == (True, 2), "it has joined again")
    assert dualray.get(node_id.options(resources={"r": 1}).remote()) == "node-1"


def test_a_node_that_is_silent_for_less_than_its_suspicion_stays(cluster) -> None:
    node = cluster.add_node(num_cpus=1, resources={"r": 1})
    assert dualray.get(node_id.options(resources={"r": 1}).remote()) == "node-1"
    node.freeze()
    eventually(lambda: "node-1 does not answer" in log_of(cluster.head_node, "head"), "the silence is noticed")
    node.thaw()
    eventually(lambda: "node-1 answers again" in log_of(cluster.head_node, "head"), "its end is noticed")
    assert dualray.get(node_id.options(resources={"r": 1}).remote()) == "node-1"
    assert states()["node-1"] == (True, 0)


def test_the_death_of_the_head_ends_its_nodes(cluster) -> None:
    node = cluster.add_node()
    [head] = [
        process
        for process in cluster.head_node.processes(daemon=True)
        if "dualray.real.processes.head" in command_of(process)
    ]
    running = ones.remote(10)
    dualray.get(running)
    head.kill()
    with pytest.raises(DualrayError, match=r"the (head process|node manager node-0) is gone"):
        dualray.get(slow_square.remote(1, tempfile.gettempdir()), timeout=30)
    eventually(lambda: not node.directory.exists(), "the other node has ended")
    with pytest.raises(DualrayError, match=r"the (head process|node manager node-0) is gone"):
        node_id.remote()  # a function that is not in the function table yet


def test_the_death_of_a_daemon_ends_its_node_and_removes_its_files(cluster) -> None:
    node = cluster.add_node()
    processes = node.processes()
    os.kill(node.pid, signal.SIGKILL)
    eventually(lambda: not any(process.is_running() for process in processes), "its processes have ended")
    eventually(lambda: not node.directory.exists(), "its directory is gone")
    eventually(lambda: states()["node-1"][0] is False, "the head has noticed")


def test_a_driver_whose_nodes_files_are_gone_hears_that_the_node_may_have_ended(cluster) -> None:
    """The error named only a program that cleans the temporary directory, also after `dualray stop`."""
    dualray.get(node_id.remote())
    while cluster.head_node.directory.exists():  # its processes write there meanwhile
        shutil.rmtree(cluster.head_node.directory, ignore_errors=True)
    slow = slow_square.options(num_cpus=0)
    with pytest.raises(DualrayError, match=r"is gone: node node-0 of this machine has ended, or"):
        dualray.get([slow.remote(number, tempfile.gettempdir()) for number in range(4)], timeout=60)


@pytest.mark.slow  # the node waits 10 s for the process
def test_a_frozen_process_ends_with_its_node() -> None:
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1}) as started:
        dualray.get(node_id.remote())
        assert started.head_node is not None
        processes = started.head_node.processes(daemon=True)
        [frozen] = [each for each in processes if "dualray.real.processes.head" in command_of(each)]
        dualray.shutdown()
        frozen.suspend()
    eventually(lambda: not any(process.is_running() for process in processes), "all processes have ended")


# ---- Drivers -----------------------------------------------------------------------------------------------------

OTHER_DRIVER = """
    import sys, time
    import dualray
    dualray.init(address=sys.argv[1])

    @dualray.remote
    def busy():
        time.sleep(0.05)
        return time.monotonic()

    @dualray.remote
    class Actor:
        def ping(self):
            return dualray.get_runtime_context().get_node_id()

    actor = Actor.options(num_cpus=0).remote()
    print("READY", dualray.get(actor.ping.remote()), flush=True)
    {rest}
"""


@contextlib.contextmanager
def other_driver(tmp_path: Path, address: str, rest: str) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "other.py"
    script.write_text(textwrap.dedent(OTHER_DRIVER).format(rest=rest))
    driver = subprocess.Popen([sys.executable, str(script), address], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline().startswith("READY")
        yield driver
    finally:
        driver.kill()
        driver.communicate()


@pytest.mark.parametrize("ending", ["in order", "SIGKILL"])
def test_one_drivers_end_leaves_the_others_work_alone(cluster, tmp_path: Path, ending: str) -> None:
    cluster.add_node(num_cpus=2)
    kept = ones.remote(1 << 16)
    with other_driver(tmp_path, cluster.address, "[busy.remote() for _ in range(100)]; input()") as driver:
        mine = [slow_square.remote(x, str(tmp_path)) for x in range(3)]
        if ending == "SIGKILL":
            driver.kill()
        else:
            driver.terminate()
        driver.wait(20)
        assert dualray.get(mine, timeout=60) == [0, 1, 4]
    assert dualray.get(total.remote(kept)) == 1 << 16
    eventually(lambda: dualray.available_resources().get("CPU") == 3, "what the other had leased is free again")


def test_two_drivers_share_the_cluster(cluster, tmp_path: Path) -> None:
    @dualray.remote
    def busy() -> float:
        time.sleep(0.05)
        return time.monotonic()

    cluster.add_node(num_cpus=1)
    rest = "print(dualray.get([busy.remote() for _ in range(60)])[-1], flush=True)"
    with other_driver(tmp_path, cluster.address, rest) as driver:
        mine = max(dualray.get([busy.remote() for _ in range(60)], timeout=60))
        assert driver.stdout is not None
        others = float(driver.stdout.readline())
        # 120 tasks of 50 ms on 2 CPUs take 3 s. Were one served after the other, they would end 1.5 s apart.
        assert abs(mine - others) < 1.0


@pytest.mark.parametrize("ending", ["in order", "SIGKILL"])
def test_a_detached_actor_outlives_its_driver(cluster, tmp_path: Path, ending: str) -> None:
    cluster.add_node(num_cpus=1)
    rest = (
        "stays = Actor.options(name='stays', lifetime='detached', namespace='shop', max_restarts=-1, num_cpus=1)"
        ".remote()\n"
        "goes = Actor.options(name='goes', namespace='shop', num_cpus=0).remote()\n"
        "print(dualray.get(stays.ping.remote()), dualray.get(goes.ping.remote()), flush=True)\n"
        "time.sleep(600)"
    )
    with other_driver(tmp_path, cluster.address, rest) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline()
        goes = dualray.get_actor("goes", namespace="shop")
        assert dualray.get(goes.ping.remote(), timeout=DEADLINE_S)
        assert sorted(row["name"] for row in list_named_actors(all_namespaces=True)) == ["goes", "stays"]
        if ending == "SIGKILL":
            driver.kill()
        else:
            driver.terminate()
        driver.wait(20)
    with pytest.raises(ActorDiedError, match="its owner has died"):
        eventually(lambda: not _answers(goes), "the actor ends with its driver")
    stays = dualray.get_actor("stays", namespace="shop")
    where = dualray.get(stays.ping.remote(), timeout=DEADLINE_S)
    assert list_named_actors(all_namespaces=True) == [{"name": "stays", "namespace": "shop"}]
    dualray.kill(stays, no_restart=False)  # what it needs to come back is not its driver's
    # A call may overtake the wish to kill, which goes by way of the head: an answer proves no restart.
    eventually(
        lambda: [row.num_restarts for row in list_actors(filters=[("name", "=", "stays")])] == [1], "it restarts"
    )
    eventually(lambda: _answers(stays), "the actor is up again")
    dualray.shutdown()
    dualray.init(address=cluster.address, namespace="shop")
    assert dualray.get_runtime_context().namespace == "shop"
    stays = dualray.get_actor("stays")
    assert dualray.get(stays.ping.remote(), timeout=DEADLINE_S) in {where, "node-0", "node-1"}
    dualray.kill(stays)
    eventually(lambda: dualray.available_resources().get("CPU") == 2, "the actor's CPU is free again")


def _answers(actor: Any) -> bool:
    try:
        return bool(dualray.get(actor.ping.remote(), timeout=DEADLINE_S))
    except ActorUnavailableError:
        return False


def test_drivers_have_numbers_of_their_own(cluster) -> None:
    first = dualray.get_runtime_context().get_worker_id()
    dualray.shutdown()
    dualray.init(address=cluster.address)
    second = dualray.get_runtime_context().get_worker_id()
    assert (first, second) == ("driver-2@node-0", "driver-3@node-0")


# ---- By hand -----------------------------------------------------------------------------------------------------


def dualray_command(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dualray", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.fixture
def stop() -> Iterator[None]:
    yield
    stopped = dualray_command("stop")
    assert stopped.returncode == 0, stopped.stderr


def address_in(output: str) -> str:
    return output.split("of the cluster at ")[1].split(maxsplit=1)[0]


def test_a_cluster_by_hand(stop, tmp_path: Path) -> None:
    head = dualray_command("start", "--head", "--port", "0", "--num-cpus", "1", "--num-workers", "1")
    assert head.returncode == 0, head.stderr
    address = address_in(head.stdout)
    secret = Path(head.stdout.split("secret: ")[1].split()[0])
    assert secret.stat().st_mode & 0o777 == 0o600
    copy = tmp_path / "secret"
    copy.write_bytes(secret.read_bytes())
    copy.chmod(0o600)
    node = dualray_command(
        "start",
        "--address",
        address,
        "--num-cpus",
        "1",
        "--resources",
        '{"r": 1}',
        "--memory",
        "2000GiB",
        "--secret-file",
        str(copy),
    )
    assert node.returncode == 0, node.stderr
    shown = dualray_command("status")
    assert "node-0" in shown.stdout and "node-1" in shown.stdout, shown.stdout + shown.stderr
    assert "2000.0 GiB / 2000.0 GiB" in " ".join(shown.stdout.split()), shown.stdout
    runtime = dualray.init(address=address)
    try:
        assert dualray.get(node_id.options(resources={"r": 1}).remote()) == "node-1"
        assert dualray.get(node_id.options(memory="2000GiB").remote()) == "node-1"
        assert runtime.core.node == "node-0"
        dualray.get(dualray.remote(lambda: print("from a task")).options(resources={"r": 1}).remote())
        logs = Path(node.stdout.split("logs: ")[1].split()[0])
        eventually(
            lambda: any("from a task" in path.read_text() for path in logs.glob("node-1-w*.out")),
            "what a task prints is in its node's logs",
        )
    finally:
        dualray.shutdown()
    environment = {"DUALRAY_ADDRESS": "auto"}
    program = "import dualray; dualray.init(); print(len(dualray.nodes()))"
    joined = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )
    assert joined.stdout == "2\n", joined.stderr
    stopped = dualray_command("stop")
    assert stopped.stdout.count("stopped") == 2
    assert "no cluster runs on this machine" in dualray_command("status").stderr


def test_without_the_secret_nobody_joins(stop, tmp_path: Path) -> None:
    head = dualray_command("start", "--head", "--port", "0", "--num-cpus", "1", DUALRAY_SECRET="the right secret of it")
    assert head.returncode == 0, head.stderr
    address = address_in(head.stdout)
    refused = dualray_command("start", "--address", address, DUALRAY_SECRET="another secret of theirs")
    assert refused.returncode == 2
    assert "have different cluster secrets" in refused.stderr
    short = dualray_command("start", "--address", address, DUALRAY_SECRET="short")
    assert "needs at least 16" in short.stderr
    readable = tmp_path / "secret"
    readable.write_text("the right secret of it")
    readable.chmod(0o644)
    told = dualray_command("start", "--address", address, "--secret-file", str(readable))
    assert "can be read by other users" in told.stderr
    taken = dualray_command("start", "--head", "--port", address.rpartition(":")[2])
    assert taken.returncode == 2
    assert "Address already in use" in taken.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "needs either --head"),
        (("--head", "--address", "a:1"), "needs either --head"),
        (("--address", "nowhere"), "--address='nowhere' must be host:port"),
        (("--address", "127.0.0.1:9", "--port", "3"), "--num-redis-shards and --autoscale need --head"),
        (("--head", "--object-manager-port", "3"), "--object-manager-port is for nodes that join"),
        (("--head", "--resources", "{"), "must be JSON"),
        (("--head", "--num-cpus", "-1"), "num_cpus"),
        (("--address", "127.0.0.1:9"), "needs the secret of the cluster"),
        (
            ("--address", "127.0.0.1:9", "--secret-file", "/missing"),
            "--secret-file /missing cannot be read: No such file or directory",
        ),
        (("--head", "--tls-cert", "one.pem"), "must be given together; add --tls-key and --tls-ca"),
    ],
)
def test_what_start_refuses(args: tuple[str, ...], message: str) -> None:
    refused = dualray_command("start", *args)
    assert refused.returncode == 2
    assert message in refused.stderr


def test_where_nobody_listens_a_node_says_so() -> None:
    refused = dualray_command("start", "--address", "127.0.0.1:9", DUALRAY_SECRET="a secret, and long enough")
    assert refused.returncode == 2
    assert "no cluster answers at 127.0.0.1:9" in refused.stderr
    assert not [process for process in psutil.Process().children(recursive=True) if process.is_running()]


def test_what_rays_cluster_knows() -> None:
    """Its spelling, and its arguments that say nothing here."""
    with Cluster(True, False, {"num_cpus": 1, "dashboard_port": 8265}, shutdown_at_exit=True) as started:
        node = started.add_node(True, num_cpus=1, node_name="second", _system_config={})
        assert started.list_all_nodes() == [started.head_node, node]
        assert node.unique_id == node.node_id
        names = [process.pid for _, process in node.live_processes()]
        assert node.pid in names
        assert len(names) > 1
        assert node.remaining_processes_alive()
        with pytest.raises(TypeError, match=r"Cluster.add_node has no argument 'num_cpu'\. Did you mean 'num_cpus'"):
            started.add_node(num_cpu=1)
        started.remove_node(node)
        assert not node.any_processes_alive()
        assert not node.remaining_processes_alive()


def test_nodes_may_outlive_the_process_that_started_them() -> None:
    script = "from dualray.cluster_utils import Cluster\nprint(Cluster(True, shutdown_at_exit=False).head_node.pid)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    daemon = psutil.Process(int(printed.stdout))
    try:
        assert daemon.is_running()
        assert "dualray.real.cluster.daemon" in daemon.cmdline()
    finally:
        daemon.terminate()
        psutil.wait_procs([daemon], timeout=20)
    assert not daemon.is_running()


def test_who_is_connected_to_nothing_can_wait_for_the_nodes_too() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as alone:
        alone.add_node(num_cpus=1)
        alone.wait_for_nodes()
        assert not dualray.is_initialized()
        alone.connect()
        rows = dualray.nodes()
        assert [row["NodeManagerAddress"] for row in rows] == ["127.0.0.1", "127.0.0.1"]
        assert {row["NodeManagerHostname"] for row in rows} == {socket.gethostname()}
