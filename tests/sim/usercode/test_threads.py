"""Threads of user code in virtual time: when they run, what they share, and what is left of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.server
import os
import platform
import queue
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import pytest

import dualray
from dualray.exceptions import GetTimeoutError, SimulationDeadlockError, TaskCancelledError
from dualray.sim.usercode import watchdog
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


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


def test_a_join_that_is_interrupted_leaves_the_thread_be():
    runtime = simulate()

    def joins() -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(time.sleep, 5)

    waited = dualray.remote(joins).remote()
    time.sleep(1)
    dualray.cancel(waited)
    with pytest.raises(TaskCancelledError):
        dualray.get(waited)
    time.sleep(10)
    assert runtime.now_s > 11


POLLS = {
    "lock": lambda lock, event, future, items: lock.acquire(blocking=False),
    "event": lambda lock, event, future, items: event.is_set(),
    "wait": lambda lock, event, future, items: event.wait(0),
    "future": lambda lock, event, future, items: future.done(),
    "futures": lambda lock, event, future, items: concurrent.futures.wait([future], timeout=0).done,
    "queue": lambda lock, event, future, items: not items.empty(),
}


@pytest.mark.parametrize("what", POLLS)
def test_who_polls_is_answered(what):
    simulate()
    poll = POLLS[what]

    def polls() -> float:
        began, lock, event, items = time.time(), threading.Lock(), threading.Event(), queue.Queue[int]()
        lock.acquire()

        def later() -> None:
            time.sleep(0.1)
            lock.release()
            event.set()
            items.put(1)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = pool.submit(later)
            while not poll(lock, event, future, items):
                pass
        return time.time() - began

    assert run(polls) == pytest.approx(0.1, abs=0.002)


def test_who_polls_the_cluster_is_answered():
    simulate()
    ref = dualray.remote(time.sleep).remote(0.1)
    while not dualray.wait([ref], timeout=0)[0]:
        pass
    other = dualray.remote(time.sleep).remote(0.1)
    while True:
        try:
            assert dualray.get(other, timeout=0) is None
            break
        except GetTimeoutError:
            continue

    async def spin() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 0.01:
            pass
        return loop.time() - began

    assert run(lambda: asyncio.run(spin())) == pytest.approx(0.01, abs=0.002)


def test_an_executor_of_a_loop_is_the_one_that_was_given():
    simulate()

    def main() -> tuple[float, set[str]]:
        names: set[str] = set()

        def note() -> None:
            time.sleep(1)
            names.add(threading.current_thread().name)

        async def all_of_them() -> None:
            loop = asyncio.get_running_loop()
            with concurrent.futures.ThreadPoolExecutor(1, "mine") as pool:
                await asyncio.gather(*[loop.run_in_executor(pool, note) for _ in range(3)])

        began = time.time()
        asyncio.run(all_of_them())
        return time.time() - began, names

    took_s, names = run(main)
    assert took_s == pytest.approx(3, abs=1e-3)
    assert names == {"mine_0"}


def test_methods_that_run_beside_one_another_keep_their_locals():
    simulate()

    @dualray.remote(max_concurrency=2)
    class Server:
        def __init__(self) -> None:
            self.local, self.made = threading.local(), 0

        def serve(self) -> int:
            if not hasattr(self.local, "session"):
                self.local.session, self.made = object(), self.made + 1
            return self.made

    server: Any = Server
    served = server.remote()
    assert [dualray.get(served.serve.remote()) for _ in range(5)] == [1] * 5


def test_a_loop_that_does_not_let_itself_be_ended_is_left():
    simulate()

    def flushes() -> None:
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1)

    run(lambda: threading.Thread(target=flushes, daemon=True).start())
    time.sleep(5)
    dualray.shutdown()


def test_what_an_os_thread_does_is_waited_for():
    asked, answers = queue.Queue[int](), queue.Queue[int]()

    def answer() -> None:
        answers.put(2 * asked.get())

    thread = threading.Thread(target=answer)
    thread.start()
    simulate()
    asked.put(21)
    assert answers.get() == 42
    thread.join()


def test_a_server_of_a_library_is_an_os_thread_in_the_driver():
    runtime = simulate()
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as served:
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        assert run(lambda: 1) == 1
        served.shutdown()
        thread.join()
    assert "threading.Thread.start" in runtime.cluster.witnessed


def test_a_thread_of_the_driver_may_call_serve_forever():
    runtime = simulate()

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"answer")

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as served:

        def serve():
            served.serve_forever(poll_interval=0.01)
            order.append("served")

        order: list[str] = []
        thread = threading.Thread(target=serve)
        thread.start()
        assert run(lambda: 1) == 1
        time.sleep(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{served.server_port}/", timeout=10) as answer:
            assert answer.read() == b"answer"
        served.shutdown()
        thread.join()
        assert order == ["served"]
    assert "threading.Thread.start" in runtime.cluster.witnessed


def test_an_error_of_serve_forever_is_raised_in_the_thread_that_called_it():
    simulate()
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.server_close()
    raised = []

    def serve():
        try:
            server.serve_forever()
        except ValueError as error:
            raised.append(str(error))

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert raised == ["Invalid file descriptor: -1"]


SCRIPT = """
import threading, time, dualray
from concurrent.futures import ThreadPoolExecutor
dualray.init(mode="sim", nodes=2)

@dualray.remote
class Beating:
    def __init__(self):
        self.pool = ThreadPoolExecutor(2)
        self.pool.submit(self.beat)

    def beat(self):
        while True:
            time.sleep(1)

    def read(self):
        return "beats"

beating = Beating.remote()
print(dualray.get(beating.read.remote()))

def last():
    time.sleep(100)
    print("last", round(time.monotonic()))

threading.Thread(target=last).start()
ThreadPoolExecutor(2).submit(last)
"""


def test_an_interpreter_that_ends_waits_for_threads_of_the_driver_alone():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "beats\nlast 100\nlast 100\n", "")


PROCESSES = """
import multiprocessing, os, queue, signal, subprocess, dualray
from concurrent.futures import ProcessPoolExecutor

def square(x):
    return x * x

def refuse(x):
    raise ValueError(x)

if __name__ == "__main__":
    dualray.init(mode="sim")
    plus = dualray.remote(lambda x: x + 1)
    came = queue.Queue()
    with multiprocessing.Pool(2) as pool:
        print(pool.map(square, [1, 2, 3]), dualray.get(plus.remote(1)))
        pool.apply_async(square, (5,), callback=came.put)
        print(came.get())
        pool.apply_async(refuse, (6,), error_callback=came.put)
        print(came.get())
        print(sorted(pool.imap_unordered(square, range(4))))
    child = multiprocessing.Process(target=square, args=(1,))
    child.start()
    child.join()
    print(child.exitcode)
    between = multiprocessing.Queue()
    child = multiprocessing.Process(target=between.put, args=("sent",))
    child.start()
    print(between.get())
    child.join()
    with ProcessPoolExecutor(2) as pool:
        print(list(pool.map(square, [1, 2])), dualray.get(plus.remote(2)))
    sleeps = subprocess.Popen(["sleep", "100"])
    sleeps.terminate()
    print(sleeps.wait() == -signal.SIGTERM)
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        print("not a child of its own")
"""
SAID = """\
[1, 4, 9] 2
25
6
[0, 1, 4, 9]
0
sent
[1, 4] 3
True
not a child of its own
"""


def test_pools_of_processes_serve_the_driver(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, SAID), ended.stderr


def test_who_does_not_wait_is_named(capfd, monkeypatch):
    monkeypatch.setattr(watchdog.Watchdog.__init__, "__kwdefaults__", {"still_s": 0.3})
    simulate()

    def computes() -> None:
        began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        while resource.getrusage(resource.RUSAGE_SELF).ru_utime < began + 1:
            pass

    run(computes)
    dualray.shutdown()
    said = capfd.readouterr().err
    assert "dualray: user code on node-0, at 0.00" in said
    assert "in computes" in said
    simulate()
    computes()
    dualray.shutdown()
    assert "dualray: the driver, at 0.00" in capfd.readouterr().err


def test_signals_are_the_virtual_process_s(tmp_path):
    simulate()
    before = signal.getsignal(signal.SIGTERM)

    def handles() -> tuple[list[int], str, bool]:
        got: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        names = {socket.gethostname(), platform.node(), os.uname().nodename}
        [name] = names
        return got, name, time.clock_gettime(time.CLOCK_MONOTONIC) < 1

    got, name, is_virtual = run(handles)
    assert (got, name[:5], is_virtual) == ([signal.SIGTERM], "node-", True)
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(PermissionError, match="an alarm would interrupt the simulator"):
        run(lambda: signal.alarm(1))


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (lambda: -1, ValueError, "duration returned -1, but must return a number of seconds, at least 0"),
        (lambda: float("nan"), ValueError, "duration returned nan, but must return a number of seconds, at least 0"),
        (lambda: None, TypeError, "duration returned None, but must return a number of seconds, or a distribution"),
        (lambda: "soon", ValueError, "duration: 'soon' is not understood"),
    ],
)
def test_what_a_function_says_of_a_duration_is_checked(said, error, words):
    simulate()
    with pytest.raises(error, match=words):
        dualray.get(dualray.remote(duration=said)(lambda: None).remote())


def test_durations_are_drawn():
    runtime = simulate()
    drawn = dualray.remote(duration="uniform(1s, 3s)", num_cpus=4)(lambda: None)
    took: list[float] = []
    for _ in range(5):
        began_s = runtime.now_s
        dualray.get(drawn.remote())
        took.append(runtime.now_s - began_s)
    assert all(1 <= each < 3.1 for each in took)
    assert len(set(took)) == 5
    with pytest.raises(ValueError, match="there is no distribution 'unifrom'"):
        dualray.remote(duration="unifrom(1s, 3s)")(lambda: None)


def test_a_measured_duration_is_that_of_the_code_alone():
    runtime = simulate()

    def computes(seconds: float) -> None:
        def used() -> float:
            return resource.getrusage(resource.RUSAGE_SELF).ru_utime

        began = used()
        while used() < began + seconds / 2:
            pass
        time.sleep(10)
        began = used()
        while used() < began + seconds / 2:
            pass

    def really_s() -> float:
        with runtime.cluster.fibers.system:
            return time.perf_counter()

    measured = dualray.remote(duration="measured")(computes)
    assert not runtime.cluster.witnessed
    began_s = really_s()
    dualray.get([measured.remote(0.1) for _ in range(4)])
    computing_s = really_s() - began_s  # all four, one after the other, on however busy a machine
    assert 10.09 <= runtime.now_s < 10 + computing_s / 2
    assert "computes, with duration" in runtime.cluster.witnessed["duration=measured"]
