"""`dualray stack`: where each worker is, also one that hangs."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import dualray as ray
from dualray.real.observe.stacks import STACK_SIGNAL, WorkerStacks, ask, without_ours
from dualray.real.session import session as sessions
from tests.conformance.support import eventually, get

WITHIN_S = 20.0


@pytest.fixture
def stacks_directory():
    ray.init(mode="real", num_cpus=4)
    mine = f"dualray-{os.getpid()}-"
    [session] = [session for session in sessions.all_running() if session.directory.name.startswith(mine)]
    yield session.stacks
    ray.shutdown()


@ray.remote
def sleeps():
    here_it_sleeps()


def here_it_sleeps():
    time.sleep(60)


@ray.remote
def hangs(path):
    Path(path).touch()
    mutex = ctypes.create_string_buffer(64)  # zeros are PTHREAD_MUTEX_INITIALIZER
    for _ in range(2):  # the second time for ever, with the interpreter's lock: no Python code runs in this process
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


@ray.remote(max_concurrency=2)
class Threaded:
    def waits(self):
        threading.Event().wait(60)

    def pid(self):
        return os.getpid()


@ray.remote
class Async:
    async def waits(self):
        await asyncio.gather(self.leaf(), self.leaf())

    async def leaf(self):
        await asyncio.sleep(60)


@ray.remote
def pid():
    return os.getpid()


def runs(directory: Path, what: str) -> WorkerStacks | None:
    found = [answer for answer in ask(directory, WITHIN_S) if answer.is_whole and f"runs {what} (task " in answer.words]
    return found[0] if found else None


def stacks_of(directory: Path, what: str, *functions: str) -> str:
    """What a worker says that runs `what`, when it has come as far as that."""
    said: list[str] = []

    def has_come() -> bool:
        answer = runs(directory, what)
        if answer is not None and all(f" in {function}\n" in answer.words for function in functions):
            said.append(without_ours(answer.words))
        return bool(said)

    eventually(has_come, f"{what} is in {functions}", WITHIN_S)
    return said[0]


def test_each_worker_says_where_it_is(stacks_directory):
    threaded, coroutines = Threaded.remote(), Async.remote()
    refs = [sleeps.remote(), threaded.waits.remote(), coroutines.waits.remote()]
    of_task = stacks_of(stacks_directory, "sleeps", "here_it_sleeps", "sleeps")
    assert [line.rpartition(" in ")[2] for line in of_task.splitlines()[1:3]] == ["here_it_sleeps", "sleeps"]
    assert "dualray" + os.sep + "real" not in of_task
    assert " in waits\n" in stacks_of(stacks_directory, "Threaded.waits", "waits")
    of_coroutines = stacks_of(stacks_directory, "Async.waits", "waits", "leaf")
    assert of_coroutines.count(" in leaf") == 2
    assert of_coroutines.count("Coroutine ") == 3
    done = subprocess.run(
        [sys.executable, "-m", "dualray", "stack"], capture_output=True, text=True, timeout=60, check=True
    )
    for words in (" in here_it_sleeps", "runs Threaded.waits (task ", " in leaf", f"{stacks_directory.parent}, node-0"):
        assert words in done.stdout
    full = subprocess.run(
        [sys.executable, "-m", "dualray", "stack", "--full"], capture_output=True, text=True, timeout=60, check=True
    )
    assert len(full.stdout) > 2 * len(done.stdout)
    assert len(refs) == 3


def test_a_worker_that_hangs_still_says_where(stacks_directory, tmp_path):
    ref = hangs.remote(str(tmp_path / "begun"))
    eventually((tmp_path / "begun").exists, "it hangs")
    found: list[WorkerStacks] = []

    def has_said() -> bool:
        found[:] = [answer for answer in ask(stacks_directory, WITHIN_S) if " in hangs\n" in answer.words + "\n"]
        return bool(found) and not found[0].is_whole

    eventually(has_said, "it has said where it is", WITHIN_S)
    assert without_ours(found[0].words).splitlines()[-1].endswith(" in hangs")
    ray.cancel(ref, force=True)


def test_a_pid_of_somebody_else_gets_no_signal(stacks_directory):
    here = get(pid.remote())
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (stacks_directory / f"node-0%2Fw9.{other.pid}").touch()
        assert other.pid not in [answer.pid for answer in ask(stacks_directory, WITHIN_S)]
        assert here in [answer.pid for answer in ask(stacks_directory, WITHIN_S)]
        assert other.poll() is None
    finally:
        other.communicate(b"\n", timeout=WITHIN_S)
    assert other.returncode == 0


def test_a_worker_that_is_stopped_does_not_answer(stacks_directory):
    threaded = Threaded.remote()
    here = get(threaded.pid.remote())
    os.kill(here, signal.SIGSTOP)
    [answer] = [answer for answer in ask(stacks_directory, 0.5) if answer.pid == here]
    assert (answer.words, answer.is_whole) == ("", False)
    os.kill(here, signal.SIGCONT)
    assert get(threaded.pid.remote()) == here


def test_the_signal_disturbs_no_call(stacks_directory):
    @ray.remote
    def count():
        total = 0
        for index in range(300_000):
            total += index
        return total

    refs = [count.remote() for _ in range(20)]
    for _ in range(10):
        ask(stacks_directory, WITHIN_S)
    assert get(refs) == [sum(range(300_000))] * 20
    assert STACK_SIGNAL not in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM)


def test_without_a_cluster_it_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "dualray", "stack"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "No real cluster of this user runs on this machine" in done.stdout
    assert "a debugger in the driver" in done.stdout
