"""Locks, pools and locals of modules in a simulation, and all that was made in one afterwards."""

from __future__ import annotations

import _thread
import concurrent.futures
import importlib
import os
import queue
import sys
import threading
import time
from typing import Any

import pytest

import dualray
from tests.sim.usercode import module_locks


def simulate(**settings) -> Any:
    return dualray.init(mode="sim", nodes=2, num_cpus=4, **settings)


def run(function, *args):
    return dualray.get(dualray.remote(function).remote(*args))


@pytest.fixture(autouse=True)
def _ends():
    yield
    dualray.shutdown()


def test_locks_of_a_module_are_each_process_s_own():
    simulate()
    assert run(module_locks.hold_on_threads, 3) == pytest.approx(3, abs=1e-3)
    refs = [dualray.remote(module_locks.hold).options(num_cpus=1).remote() for _ in range(3)]
    assert dualray.get(refs) == pytest.approx([1, 1, 1], abs=1e-3)


def test_so_are_those_of_a_module_that_a_task_imports(monkeypatch):
    monkeypatch.delitem(sys.modules, "tests.sim.usercode.module_locks")
    simulate()

    def hold() -> float:
        seconds: float = importlib.import_module("tests.sim.usercode.module_locks").hold_on_threads(3)
        return seconds

    assert run(hold) == pytest.approx(3, abs=1e-3)


def test_a_pool_of_a_module_is_each_process_s_own():
    simulate()
    took_s, names = run(module_locks.pooled, 4)
    assert took_s == pytest.approx(2, abs=1e-3)
    assert names == {"of-module_0", "of-module_1"}
    dualray.shutdown()
    assert module_locks.POOL._threads == set()
    assert module_locks.POOL.submit(int, "3").result() == 3


def standing() -> tuple[Any, ...]:
    """What a simulation replaces, as it is now."""
    return (
        threading.Lock,
        threading.RLock,
        threading.local,
        threading.Thread.start,
        threading.get_ident,
        queue.SimpleQueue,
        concurrent.futures.Future,
        concurrent.futures.ThreadPoolExecutor.submit,
        module_locks.LOCK,
        vars(module_locks.Guarded)["lock"],
    )


def test_everything_is_as_it_was_afterwards():
    before = standing()
    simulate()
    assert type(threading.Lock()).__module__ == "dualray.sim.usercode.locks"
    assert all(now is not then for now, then in zip(standing(), before, strict=True))
    assert isinstance(queue.SimpleQueue(), queue.SimpleQueue)
    left = threading.Thread(target=threading.Event().wait)
    left.start()
    never_began = threading.Thread(target=int)
    never_began.start()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    waiting = pool.submit(threading.Event().wait)
    dualray.shutdown()
    assert standing() == before
    for thread in (left, never_began):
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert waiting.done()


def test_a_lock_of_a_simulation_serves_os_threads_afterwards():
    simulate()
    lock, again = threading.Lock(), threading.RLock()
    dualray.shutdown()
    order: list[str] = []

    def second() -> None:
        with lock, again:
            order.append("second")

    with lock, again, again:
        thread = threading.Thread(target=second)
        thread.start()
        assert not lock.acquire(timeout=0.05)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


@pytest.mark.parametrize("took", [module_locks.hold_default, module_locks.hold_stripe, module_locks.hold_cache])
def test_locks_of_modules_wherever_they_are_kept(took):
    simulate()

    def twice() -> float:
        began = time.time()
        threads = [threading.Thread(target=took) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.time() - began

    assert run(twice) == pytest.approx(2, abs=1e-3)
    assert run(module_locks.notified)
    refs = [dualray.remote(took).remote() for _ in range(3)]
    dualray.get(refs)
    dualray.shutdown()
    assert isinstance(module_locks.STRIPES["one"][0], type(threading.Lock()))


def test_proxies_are_not_asked():
    before = vars(module_locks)["PROXY"]
    simulate()
    assert run(module_locks.hold) == pytest.approx(1, abs=1e-3)
    assert vars(module_locks)["PROXY"] is before


def test_a_local_of_a_module_is_each_thread_s_own():
    simulate()
    refs = [dualray.remote(module_locks.locals_of_threads).options(num_cpus=4).remote() for _ in range(2)]
    assert dualray.get(refs) == [([False, False], "at import", 1)] * 2
    assert module_locks.LOCAL.made == "at import"
    assert isinstance(module_locks.LOCAL, threading.local)
    with pytest.raises(AttributeError, match="has no attribute 'count'"):
        _ = module_locks.LOCAL.count
    with pytest.raises(dualray.exceptions.SerializationError, match=r"cannot pickle '_thread\._local' object"):
        dualray.put(module_locks.LOCAL)
    dualray.shutdown()
    assert type(module_locks.LOCAL) is threading.local


def test_a_pool_serves_one_process_and_one_simulation():
    def use() -> bool:
        futures = [module_locks.pool_made_late().submit(os.getpid) for _ in range(3)]
        return {future.result() for future in futures} == {os.getpid()}

    for _ in range(2):
        simulate()
        assert dualray.get([dualray.remote(use).remote() for _ in range(3)]) == [True] * 3
        dualray.shutdown()
    assert use()


def test_a_worker_of_pytest_xdist_waits_for_tests_beside_a_simulation():
    """Its queue is made before, and filled by an OS thread. A cluster of a module lasts from one test to the next."""
    remote, execnet = pytest.importorskip("xdist.remote"), pytest.importorskip("execnet")
    tests = remote.TestQueue(execnet.gateway_base.get_execmodel("thread"))
    begins = threading.Event()

    def fill() -> None:
        begins.wait(60)
        time.sleep(0.2)
        tests.put(3)

    _thread.start_new_thread(fill, ())  # as execnet starts its own
    simulate()
    assert run(len, "four") == 4
    begins.set()
    assert tests.get() == 3
    assert run(len, "four") == 4
