"""Threads, and what they are made with, in tasks, actors and the driver: the same in both modes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import re
import sys
import sysconfig
import threading
import time
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

import dualray as ray
from dualray.exceptions import WorkerCrashedError
from tests.conformance.support import get, in_words

CLUSTER = {"num_cpus": 4}
pytestmark = pytest.mark.usefixtures("cluster")
PAUSE_S = 0.05


@ray.remote
def double(value):
    time.sleep(PAUSE_S)
    return 2 * value


def on_threads(function, arguments):
    """What a function returns for each argument, each on a thread, in the order of the arguments."""
    returned = {}

    def call(argument):
        returned[argument] = function(argument)

    threads = [threading.Thread(target=call, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(thread.is_alive() for thread in threads)
    return [returned[argument] for argument in arguments]


@ray.remote
def doubles(arguments):
    return on_threads(lambda argument: get(double.remote(argument)), arguments)


def test_threads_of_a_task_call_the_cluster():
    assert get(doubles.remote((1, 2, 3))) == [2, 4, 6]


def test_so_do_threads_of_the_driver():
    assert on_threads(lambda argument: get(double.remote(argument)), (1, 2, 3)) == [2, 4, 6]


@ray.remote
def pooled():
    def pause(seconds):
        time.sleep(seconds)
        return seconds

    long, short = 4 * PAUSE_S, PAUSE_S
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        done = [it.result() for it in concurrent.futures.as_completed([pool.submit(pause, s) for s in (long, short)])]
        ready, rest = concurrent.futures.wait(
            [pool.submit(pause, s) for s in (short, long)], return_when=concurrent.futures.FIRST_COMPLETED
        )
        mapped = list(pool.map(pause, (long, short)))
    with ThreadPool(2) as of_multiprocessing:
        mapped += of_multiprocessing.map(pause, [short, long])
    return done, [it.result() for it in ready], len(rest), mapped


def test_pools_of_threads():
    long, short = 4 * PAUSE_S, PAUSE_S
    assert get(pooled.remote()) == ([short, long], [short], 1, [long, short, short, long])


@ray.remote
def handed_over():
    simple, bounded, given = queue.SimpleQueue(), queue.Queue(maxsize=1), []
    was_set, ready = threading.Event(), threading.Condition()

    def consume():
        given.append(simple.get())
        given.append(bounded.get())
        was_set.wait()
        with ready:
            given.append("last")
            ready.notify()

    consumer = threading.Thread(target=consume)
    consumer.start()
    simple.put(1)
    bounded.put(2)
    bounded.put(3)  # there is room when the second one was taken
    was_set.set()
    with ready:
        ready.wait_for(lambda: "last" in given)
    consumer.join()
    with pytest.raises(queue.Empty):
        simple.get(timeout=PAUSE_S)
    return given, bounded.get(block=False)


def test_queues_events_and_conditions():
    assert get(handed_over.remote()) == ([1, 2, "last"], 3)


@ray.remote
def identities():
    here = threading.current_thread()
    names, idents = [], []

    def note():
        names.append(threading.current_thread().name)
        idents.append(threading.get_ident())

    threads = [threading.Thread(target=note, name=name) for name in ("first", "second")]
    for thread in threads:
        thread.start()
        thread.join()
    return (
        here is threading.main_thread(),
        here in threading.enumerate(),
        names,
        idents == [thread.ident for thread in threads],
        threading.get_ident() not in idents,
    )


def test_a_thread_knows_which_it_is():
    assert get(identities.remote()) == (True, True, ["first", "second"], True, True)


@ray.remote
def kept_apart():
    mine, seen = threading.local(), []
    mine.value = "main"

    def set_it(value):
        seen.append(hasattr(mine, "value"))
        mine.value = value
        time.sleep(PAUSE_S)
        return mine.value

    return on_threads(set_it, ("first", "second")), seen, mine.value


def test_threads_have_locals_of_their_own():
    assert get(kept_apart.remote()) == (["first", "second"], [False, False], "main")


@ray.remote(max_retries=0)
def ends_badly(how):
    def end():
        if how == "raises":
            raise ValueError("of a thread")
        if how == "exits":
            sys.exit(3)
        os._exit(3)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    if how == "ends the process":
        time.sleep(60)
    return "went on"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["raises", "exits"])
def test_what_a_thread_raises_ends_the_thread_alone(how):
    assert get(ends_badly.remote(how)) == "went on"


def test_a_thread_can_end_its_process():
    with pytest.raises(WorkerCrashedError, match=in_words("exited with code 3")):
        get(ends_badly.remote("ends the process"))


@ray.remote
class Beating:
    def __init__(self):
        self.beats = 0
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while True:
            time.sleep(PAUSE_S)
            self.beats += 1

    def read(self):
        return self.beats


def test_a_thread_goes_on_between_calls():
    beating = Beating.remote()
    before = get(beating.read.remote())
    time.sleep(10 * PAUSE_S)
    assert get(beating.read.remote()) >= before + 2


# ---- Environments ------------------------------------------------------------------------------------------------


@ray.remote
class Surrounded:
    def change(self, directory):
        os.environ["DUALRAY_TEST_OF_THREADS"] = "changed"
        os.environ.pop("PATH")
        os.chdir(directory)

    def read(self):
        return os.environ.get("DUALRAY_TEST_OF_THREADS"), os.environ.get("PATH"), os.getcwd()  # noqa: PTH109


def test_variables_and_the_directory_are_each_process_s_own(tmp_path):
    here = os.getcwd()  # noqa: PTH109
    path = os.environ["PATH"]
    first, second = Surrounded.remote(), Surrounded.remote()
    get(first.change.remote(str(tmp_path)))
    assert get(first.read.remote()) == ("changed", None, str(tmp_path))
    seen, second_path, second_directory = get(second.read.remote())
    assert (seen, second_directory) == (None, here)
    assert second_path is not None
    assert ("DUALRAY_TEST_OF_THREADS" in os.environ, os.environ["PATH"], os.getcwd()) == (False, path, here)  # noqa: PTH109


LIBRARY = """
import threading

import dualray


def call_in_a_thread(call, tell):
    threading.Thread(target=lambda: tell(call(dualray)), daemon=True).start()
"""


def test_a_thread_of_a_library_that_imports_dualray_can_call_it():
    library = {"__name__": "made_library", "__file__": f"{sysconfig.get_path('purelib')}/made_library.py"}
    exec(compile(LIBRARY, library["__file__"], "exec"), library)
    told = queue.Queue()
    library["call_in_a_thread"](lambda dualray: dualray.get(double.remote(2)), told.put)
    assert told.get() == 4

    async def answer():
        loop, told_here = asyncio.get_running_loop(), asyncio.Queue()

        def tell(value):
            asyncio.run_coroutine_threadsafe(told_here.put(value), loop).result()

        library["call_in_a_thread"](lambda dualray: dualray.get(double.remote(3)), tell)
        return await told_here.get()

    assert asyncio.run(answer()) == 6


def test_locks_are_printed_as_pythons_are():
    @ray.remote
    def words():
        one, other = threading.Lock(), threading.Lock()
        with other:
            return repr(one), repr(other), repr(threading.RLock())

    free, taken, again = get(words.remote())
    assert re.fullmatch("<unlocked _thread.lock object at 0x[0-9a-f]+>", free)
    assert re.fullmatch("<locked _thread.lock object at 0x[0-9a-f]+>", taken)
    assert re.fullmatch("<unlocked _thread.RLock object .*count=0 at 0x[0-9a-f]+>", again)
    assert free.split()[-1] != taken.split()[-1]


@pytest.mark.skipif(not hasattr(threading.RLock(), "_recursion_count"), reason="this Python's locks have no count")
def test_a_lock_says_how_often_its_holder_has_it():
    @ray.remote
    def counts():
        lock: Any = threading.RLock()
        seen = [lock._recursion_count()]
        with lock, lock:
            seen.append(lock._recursion_count())
        return [*seen, lock._recursion_count()]

    assert get(counts.remote()) == [0, 2, 0]
