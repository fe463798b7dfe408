"""Child processes that a simulated driver starts: pools, queues and managers of `multiprocessing`, and `subprocess`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext

import pytest

import dualray as ray


@ray.remote
def double(value: int) -> int:
    return 2 * value


@ray.remote
def slow() -> str:
    time.sleep(1.0)
    return "done"


def square(value: int) -> int:
    return value * value


def answer(questions: multiprocessing.Queue[int], answers: multiprocessing.Queue[int]) -> None:
    answers.put(questions.get() + 1)


def sleep_and_tell(_: int) -> bool:
    before = time.perf_counter()
    time.sleep(0.2)
    return time.perf_counter() - before >= 0.2


@pytest.fixture(autouse=True)
def simulation() -> Iterator[None]:
    ray.init(mode="sim", num_cpus=2)
    yield
    assert ray.get(double.remote(2)) == 4
    ray.shutdown()


@pytest.fixture(params=["fork", "spawn"])
def context(request: pytest.FixtureRequest) -> BaseContext:
    return multiprocessing.get_context(request.param)


def test_a_pool(context: BaseContext) -> None:
    with context.Pool(2) as pool:
        assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
        assert pool.apply_async(square, (3,)).get(timeout=60) == 9
        assert ray.get([double.remote(number) for number in pool.imap(square, range(3))]) == [0, 2, 8]
    with context.Pool(2) as pool:
        pool.close()
        pool.join()


@pytest.mark.timeout(30)
def test_tasks_go_on_while_a_pool_is_idle() -> None:
    """Its threads wait for pipes by the real clock. By the virtual one, the task's second would take a quarter of an
    hour."""
    with multiprocessing.Pool(2):
        started_s = time.monotonic()
        assert ray.get(slow.remote()) == "done"
        assert 1.0 <= time.monotonic() - started_s < 2.0


def test_a_pool_of_futures() -> None:
    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, range(5))) == [0, 1, 4, 9, 16]
        assert all(pool.map(sleep_and_tell, range(2))), "a child's clock is its machine's"


def test_queues_and_a_process(context: BaseContext) -> None:
    questions, answers = context.Queue(), context.Queue()
    child = context.Process(target=answer, args=(questions, answers))  # type: ignore[attr-defined]
    child.start()
    questions.put(1)
    assert answers.get() == 2
    child.join()
    assert child.exitcode == 0


def test_a_manager() -> None:
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        shared["a"] = 1
        assert dict(shared) == {"a": 1}


def test_a_child_can_be_ended() -> None:
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    child.start()
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM
    program = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    program.terminate()
    assert program.wait() == -signal.SIGTERM
    with pytest.raises(PermissionError, match="processes that it started"):
        os.kill(1, signal.SIGTERM)
