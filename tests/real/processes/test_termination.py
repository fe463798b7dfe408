"""SIGTERM sent to a worker: user code leaves its blocks, and calls that run beside others end first, as in Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, WorkerCrashedError
from tests.conformance.support import eventually


@pytest.fixture(autouse=True)
def _cluster():
    ray.init(num_cpus=4)
    yield
    ray.shutdown()


@ray.remote(max_retries=0)
def sleeps(folder: Path) -> None:
    try:
        (folder / "pid").write_text(str(os.getpid()))
        time.sleep(600)
    except SystemExit as error:
        (folder / "code").write_text(str(error.code))
        raise
    finally:
        (folder / "left").touch()


@ray.remote(max_retries=0)
def waits(folder: Path, never: list[ray.ObjectRef[None]]) -> None:
    try:
        (folder / "pid").write_text(str(os.getpid()))
        ray.get(never)
    except SystemExit as error:
        (folder / "code").write_text(str(error.code))
        raise
    finally:
        (folder / "left").write_text(ray.get(ray.put("")))  # the cluster can still be asked


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_task_leaves_its_blocks(is_waiting, tmp_path):
    (tmp_path / "other").mkdir()
    never = sleeps.remote(tmp_path / "other")
    task = waits.remote(tmp_path, [never]) if is_waiting else sleeps.remote(tmp_path)
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the task runs")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    with pytest.raises(WorkerCrashedError, match="killed by SIGTERM"):
        ray.get(task, timeout=60)
    assert (tmp_path / "code").read_text() == "1"
    assert (tmp_path / "left").exists()
    ray.cancel(never, force=True)


class Gate:
    """Methods that wait for a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pid(self) -> int:
        return os.getpid()

    def until_open(self) -> None:
        while not (self.folder / "open").exists():
            time.sleep(0.01)


@ray.remote(max_concurrency=3)
class Threads(Gate):
    def wait(self, number: int) -> int:
        (self.folder / str(number)).touch()
        self.until_open()
        return ray.get(ray.put(number))


@ray.remote
class Coroutines(Gate):
    async def wait(self, number: int) -> int:
        (self.folder / str(number)).touch()
        await asyncio.to_thread(self.until_open)
        return await ray.put(number)


@pytest.mark.parametrize("actor_class", [Threads, Coroutines], ids=["threads", "coroutines"])
def test_methods_that_run_end_first_and_no_other_begins(actor_class, tmp_path):
    actor = actor_class.remote(tmp_path)
    pid = ray.get(actor.pid.remote())
    running = [actor.wait.remote(number) for number in (1, 2)]
    eventually(lambda: (tmp_path / "1").exists() and (tmp_path / "2").exists(), "both methods run")
    os.kill(pid, signal.SIGTERM)
    later = []
    for _ in range(100):  # until the signal is there, the actor answers
        later.append(actor.pid.remote())
        if not ray.wait([later[-1]], timeout=0.5)[0]:
            break
    (tmp_path / "open").touch()
    assert ray.get(running, timeout=60) == [1, 2]
    with pytest.raises(ActorDiedError, match="killed by SIGTERM"):
        ray.get(later[-1], timeout=60)


@ray.remote
def forks() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    os.kill(pid, signal.SIGTERM)
    return os.waitpid(pid, 0)[1]


def test_a_process_that_a_task_has_forked_ends_by_the_signal():
    assert ray.get(forks.remote(), timeout=60) == signal.SIGTERM
