"""Threads of user code in virtual time: when they run, what they share, and what is left of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import queue
import random
import sys
import threading
import time
from typing import Any

import pytest

import dualray
from dualray.exceptions import SimulationDeadlockError
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.sim import module_locks


def simulate(**settings) -> Any:
    return dualray.init(mode="sim", nodes=2, num_cpus=4, **settings)


def run(function, *args):
    return dualray.get(dualray.remote(function).remote(*args))


@pytest.fixture(autouse=True)
def _ends():
    yield
    dualray.shutdown()


def test_threads_sleep_at_the_same_virtual_time():
    simulate()

    def sleep() -> tuple[float, list[str]]:
        began, woken = time.time(), []

        def pause(name: str, seconds: float) -> None:
            time.sleep(seconds)
            woken.append(name)

        threads = [threading.Thread(target=pause, args=each) for each in (("long", 3), ("short", 1), ("middle", 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.time() - began, woken

    took_s, woken = run(sleep)
    assert woken == ["short", "middle", "long"]
    assert took_s == pytest.approx(3, abs=1e-4)


def test_a_timeout_is_virtual():
    simulate()

    def wait() -> float:
        began = time.time()
        assert not threading.Event().wait(1_000)
        thread = threading.Thread(target=time.sleep, args=(1_000_000,), daemon=True)
        thread.start()
        thread.join(timeout=1_000)
        assert thread.is_alive()
        with pytest.raises(queue.Empty):
            queue.SimpleQueue().get(timeout=1_000)
        return time.time() - began

    assert run(wait) == pytest.approx(3_000, abs=0.1)


def test_queues_can_be_inherited_from_and_subscripted():
    simulate()

    def subclassed() -> tuple[list[int], bool]:
        class Named(queue.SimpleQueue[int]):
            name = "named"

        class Own(threading.local):
            value = 0

        named, own, taken = Named(), Own(), []

        def take() -> None:
            own.value += 1
            taken.append(named.get())
            taken.append(own.value)

        thread = threading.Thread(target=take)
        thread.start()
        own.value = 7
        named.put(5)
        thread.join()
        return taken, isinstance(named, queue.SimpleQueue)

    assert run(subclassed) == ([5, 1], True)


def test_asyncio_and_threads():
    simulate()

    def mixed() -> tuple[list[str], float]:
        said: list[str] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()

            def beside() -> None:
                waiting = asyncio.run_coroutine_threadsafe(asyncio.sleep(1, "from a thread"), loop)
                said.append(waiting.result())

            thread = threading.Thread(target=beside)
            thread.start()
            await asyncio.to_thread(time.sleep, 2)
            said.append("main")

        began = time.time()
        asyncio.run(main())
        inner = threading.Thread(target=lambda: said.append(asyncio.run(asyncio.sleep(1, "a loop of its own"))))
        inner.start()
        inner.join()
        return said, time.time() - began

    said, took_s = run(mixed)
    assert said == ["from a thread", "main", "a loop of its own"]
    assert took_s == pytest.approx(3, abs=1e-3)


def racing() -> list[Any]:
    """Depends on the order in which threads run, on their randomness, names and identities, and on a set of futures."""
    seen: list[Any] = []

    def race() -> None:
        for _ in range(5):
            time.sleep(random.random())
            seen.append((threading.current_thread().name, threading.get_ident(), random.random()))

    threads = [threading.Thread(target=race) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done, _ = concurrent.futures.wait([pool.submit(threading.current_thread) for _ in range(50)])
        seen += [future.result().name for future in done]
    return seen


def test_the_order_of_threads_is_the_seed_s():
    runs = []
    for seed in (1, 1, 2):
        simulate(seed=seed)
        threading.Thread(target=int).start()  # counted in its process alone
        runs.append(run(racing))
        dualray.shutdown()
    assert runs[0] == runs[1]
    assert [name for name, _, _ in runs[0][:25]] != [name for name, _, _ in runs[2][:25]]


class Told:
    def __init__(self) -> None:
        self.times: list[float] = []

    def add(self, now_s: float) -> None:
        self.times.append(now_s)

    def read(self) -> list[float]:
        return self.times


def test_a_task_that_leaves_a_thread_behind_is_over_and_the_thread_is_not():
    runtime = simulate()
    kept = dualray.remote(Told).remote()

    def leave() -> float:
        def later() -> None:
            time.sleep(5)
            dualray.get(kept.add.remote(time.time()))

        threading.Thread(target=later).start()
        return time.time()

    ended_s = run(leave)
    assert runtime.now_s < 1
    time.sleep(10)
    assert dualray.get(kept.read.remote()) == [pytest.approx(ended_s + 5, abs=0.01)]


def test_a_thread_dies_with_its_worker():
    simulate(faults=["kill node-1 at 5s"])
    told = (
        dualray.remote(Told).options(scheduling_strategy=NodeAffinitySchedulingStrategy("node-0", soft=False)).remote()
    )

    @dualray.remote(max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy("node-1", soft=False))
    def leave() -> None:
        def tick() -> None:
            while True:
                time.sleep(1)
                dualray.get(told.add.remote(time.time()))

        threading.Thread(target=tick).start()

    dualray.get(leave.remote())
    time.sleep(30)
    assert len(dualray.get(told.read.remote())) == 4


def test_a_program_with_threads_left_is_examined():
    runtime = simulate()

    def leave() -> None:
        def tick() -> None:
            while True:
                time.sleep(1)

        threading.Thread(target=tick, daemon=True).start()

    run(leave)
    examined = runtime.examine()
    assert (examined.violations, examined.leaks) == ([], None)


def test_a_deadlock_names_who_waits_and_where():
    simulate()
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=lambda: lock.acquire())
    thread.start()
    with pytest.raises(SimulationDeadlockError) as raised:
        thread.join()
    said = str(raised.value)
    assert f"driver-1 waits: Thread.join() in {__file__}, line " in said
    assert f"driver-1 waits: Lock.acquire() in {__file__}, line " in said
    lock.release()
    thread.join()


# ---- What was made before -------------------------------------------------------------------------------------------


def test_locks_of_a_module_are_each_process_s_own():
    simulate()
    assert run(module_locks.hold_on_threads, 3) == pytest.approx(3, abs=1e-3)
    refs = [dualray.remote(module_locks.hold).options(num_cpus=1).remote() for _ in range(3)]
    assert dualray.get(refs) == pytest.approx([1, 1, 1], abs=1e-3)


def test_so_are_those_of_a_module_that_a_task_imports(monkeypatch):
    monkeypatch.delitem(sys.modules, "tests.sim.module_locks")
    simulate()

    def hold() -> float:
        seconds: float = importlib.import_module("tests.sim.module_locks").hold_on_threads(3)
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


def test_everything_is_as_it_was_afterwards():
    before = (
        threading.Lock,
        threading.RLock,
        threading.local,
        threading.Thread.start,
        threading.get_ident,
        queue.SimpleQueue,
        vars(concurrent.futures.Future).get("__hash__"),
        module_locks.LOCK,
        vars(module_locks.Guarded)["lock"],
    )
    simulate()
    assert type(threading.Lock()).__module__ == "dualray.sim.locks"
    assert module_locks.LOCK is not before[7]
    assert isinstance(queue.SimpleQueue(), queue.SimpleQueue)
    left = threading.Thread(target=threading.Event().wait)
    left.start()
    never_began = threading.Thread(target=int)
    never_began.start()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    waiting = pool.submit(threading.Event().wait)
    dualray.shutdown()
    assert before == (
        threading.Lock,
        threading.RLock,
        threading.local,
        threading.Thread.start,
        threading.get_ident,
        queue.SimpleQueue,
        vars(concurrent.futures.Future).get("__hash__"),
        module_locks.LOCK,
        vars(module_locks.Guarded)["lock"],
    )
    for thread in (left, never_began):
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert waiting.done() or not waiting.running()


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


def test_threads_say_nothing_when_the_simulation_ends(capfd):
    simulate()

    def leave() -> None:
        pool = concurrent.futures.ThreadPoolExecutor(2)
        pool.submit(time.sleep, 1_000)
        leave.pool = pool  # type: ignore[attr-defined]
        threading.Thread(target=time.sleep, args=(1_000,)).start()

    run(leave)
    dualray.shutdown()
    assert capfd.readouterr().err == ""
