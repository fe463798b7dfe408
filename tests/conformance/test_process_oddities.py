"""What a task does to its process stays there, in both modes; what a simulation cannot have is refused by name."""

from __future__ import annotations

import asyncio
import copyreg
import os
import sched
import signal
import sys
import threading
import time

import pytest

import dualray as ray
from dualray.exceptions import TaskCancelledError, TaskError, WorkerCrashedError
from tests.conformance.support import get

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def two():
    return 2


def mask_now() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_keyboard_interrupt_that_a_task_raises_cancels_it_and_is_not_tried_again(tally):
    @ray.remote(max_retries=3, retry_exceptions=True)
    def interrupts():
        tally.add()
        raise KeyboardInterrupt

    with pytest.raises(TaskCancelledError, match="interrupts raised KeyboardInterrupt, which cancels a task") as raised:
        get(interrupts.remote())
    assert isinstance(raised.value, TaskError)
    assert "in interrupts" in str(raised.value)
    assert tally.count == 1
    assert get(two.remote()) == 2


def test_a_keyboard_interrupt_that_a_method_raises_leaves_its_actor_alive():
    @ray.remote
    class Interrupts:
        def plain(self):
            raise KeyboardInterrupt

        def items(self):
            yield 1
            raise KeyboardInterrupt

        def two(self):
            return 2

    actor = Interrupts.remote()
    with pytest.raises(TaskCancelledError):
        get(actor.plain.remote())
    first, second = actor.items.remote()
    assert get(first) == 1
    with pytest.raises(TaskCancelledError):
        get(second)
    assert get(actor.two.remote()) == 2


def test_a_generator_exit_that_a_task_raises_is_its_error(tally):
    @ray.remote(max_retries=3)
    def leaves():
        tally.add()
        raise GeneratorExit("over")

    @ray.remote
    def leaves_early():
        yield 1
        raise GeneratorExit("early")

    with pytest.raises(GeneratorExit, match="over") as raised:
        get(leaves.remote())
    assert isinstance(raised.value, TaskError)
    assert tally.count == 1
    first, second = leaves_early.remote()
    assert get(first) == 1
    with pytest.raises(GeneratorExit, match="early"):
        get(second)


def test_a_tasks_umask_is_its_workers():
    before = mask_now()

    @ray.remote
    class Masks:
        def set(self, mask):
            os.umask(mask)

        def get(self):
            return mask_now()

    actors = [Masks.remote(), Masks.remote()]
    get(actors[0].set.remote(0o057))
    assert get([actor.get.remote() for actor in actors]) == [0o057, before]
    assert mask_now() == before


class ExitsWhenItIsLoaded:
    def __reduce__(self):
        return sys.exit, (3,)


def test_a_result_that_exits_when_it_is_loaded_raises_what_it_raises():
    @ray.remote
    def makes():
        return ExitsWhenItIsLoaded()

    with pytest.raises(SystemExit) as left:
        get(makes.remote())
    assert type(left.value) is SystemExit
    assert left.value.code == 3
    assert get(two.remote()) == 2


@pytest.mark.parametrize("mode", ["sim"], indirect=True, scope="module")
@pytest.mark.parametrize("closes", [lambda: os.closerange(0, 3), lambda: os.close(1)], ids=["closerange", "close"])
def test_a_simulated_task_is_refused_descriptors_that_are_the_interpreters(closes):
    @ray.remote(max_retries=0)
    def task():
        closes()

    with pytest.raises(TaskError, match="all virtual processes share the descriptors of the process that simulates"):
        get(task.remote())
    os.write(1, b"")
    assert get(two.remote()) == 2


def test_a_task_may_close_what_it_has_opened():
    @ray.remote
    def task():
        reads, writes = os.pipe()
        os.write(writes, b"x")
        os.close(writes)
        data = os.read(reads, 2)
        os.close(reads)
        return data

    assert get(task.remote()) == b"x"


def test_an_endless_generator_of_coroutines_lets_its_consumer_run():
    """Its items take no time: in a simulation the consumer never got the first."""

    @ray.remote
    class Counts:
        async def endless(self):
            item = 0
            while True:
                yield item
                item += 1

        def plain(self):
            item = 0
            while True:
                yield item
                item += 1

        async def two(self):
            return 2

    actor = Counts.remote()
    for method in (actor.endless, actor.plain):
        for ref in method.options(num_returns="streaming").remote():
            if get(ref) == 3:
                break
    assert get(actor.two.remote()) == 2


def said_in_a_fork(does) -> str:
    """What a forked child of this process has to say of it: the answer, or the error."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(does())
        except BaseException as error:  # noqa: BLE001 - nothing of pytest may run on in a child
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_forked_child_of_the_driver_cannot_use_the_cluster():
    """In real mode it waited for ever, for threads of its parent; a simulation named its greenlets."""
    ref = ray.put(2)
    words = "A forked process cannot use the cluster of its parent."
    for use in (lambda: get(two.remote()), lambda: get(ref), lambda: ray.put(1), ray.nodes):
        said = said_in_a_fork(use)
        assert said.startswith("NotInitializedError: ")
        assert words in said
    assert said_in_a_fork(ray.is_initialized) == "False"
    assert get(two.remote()) == get(ref) == 2


def test_a_signal_that_the_driver_sends_to_itself_calls_its_handler():
    received = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        thread = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
        thread.start()
        thread.join()
        time.sleep(0.1)
        assert received == [signal.SIGUSR1] * 3
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_class_that_its_library_makes_anew_stays_one_class():
    # As DEAP does it: copyreg knows how to make the class, and a process that reads it puts it into the library.
    class Meta(type):
        def __new__(cls, name, base, members):
            return super().__new__(cls, name, (base,), members)

        def __init__(cls, name, base, members):
            super().__init__(name, (base,), members)
            cls.made_of = (name, base, members)

    def make(name, base, members):
        made = type.__call__(Meta, name, base, {**members, "__module__": "sched"})
        setattr(sched, name, made)
        return made

    copyreg.pickle(Meta, lambda cls: (make, cls.made_of))
    try:
        individual = make("Individual", list, {})

        @ray.remote
        def total(values):
            return sum(values), type(values).__name__

        first = individual([1, 2])
        assert get(total.remote(individual([3]))) == (3, "Individual")
        assert get(total.remote(first)) == (3, "Individual")  # of a class that no longer is in the library, it fails
        assert sched.Individual is individual
    finally:
        del copyreg.dispatch_table[Meta], sched.Individual


@ray.remote(max_retries=0)
def signal_itself(number):
    os.kill(os.getpid(), number)
    time.sleep(0.05)
    return signal.Signals(number).name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG])
def test_signals_that_do_nothing_to_a_worker(number):
    assert get(signal_itself.remote(number)) == number.name


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM])
def test_signals_that_end_a_worker(number):
    with pytest.raises(WorkerCrashedError):
        get(signal_itself.remote(number))


def test_a_worker_has_the_handlers_that_it_sets():
    @ray.remote
    def handlers():
        received = []
        before = signal.signal(signal.SIGINT, lambda *_: received.append("handled"))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        signal.signal(signal.SIGINT, before)
        os.kill(os.getpid(), signal.SIGINT)
        return before is signal.SIG_IGN, received

    assert get(handlers.remote()) == (True, ["handled"])


def test_a_task_factory_of_an_async_actor_holds_up_no_call():
    """A factory that returned nothing left the calls without an answer, for ever."""

    @ray.remote
    class Odd:
        async def set_factory(self):
            asyncio.get_running_loop().set_task_factory(lambda loop, coroutine, **named: coroutine.close())
            return "set"

        async def one(self):
            return 1

    actor = Odd.remote()
    assert get(actor.set_factory.remote()) == "set"
    assert get([actor.one.remote() for _ in range(3)]) == [1] * 3
