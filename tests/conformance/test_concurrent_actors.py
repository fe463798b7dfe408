"""Actors of which several methods run at a time, on threads; in sim mode the threads are fibers in virtual time."""

from __future__ import annotations

import os
import queue
import threading
import time

import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, ActorUnavailableError, TaskCancelledError
from tests.conformance.support import MIB, eventually, get, get_when_up, resources_are_free

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
class Threaded:
    def __init__(self):
        self.lock = threading.RLock()
        self.event = threading.Event()
        self.items = queue.Queue(maxsize=2)
        self.barrier = threading.Barrier(3)
        self.n = 0
        self.log = []
        self.running = 0
        self.peak = 0

    def wait(self, timeout=None):
        return self.event.wait(timeout)

    def set(self):
        self.event.set()

    def add(self):
        with self.lock, self.lock:
            before = self.n
            time.sleep(0.002)
            self.n = before + 1
        return self.n

    def meet(self):
        return self.barrier.wait(timeout=15)

    def put(self, item):
        self.items.put(item, timeout=15)

    def take(self, timeout=15):
        try:
            return self.items.get(timeout=timeout)
        except queue.Empty:
            return "empty"

    def note(self, index, seconds=0.0):
        with self.lock:
            self.log.append(index)
            self.running += 1
            self.peak = max(self.peak, self.running)
        time.sleep(seconds)
        with self.lock:
            self.running -= 1
        return index

    def count(self, tally, index):
        tally.add(index)
        eventually(lambda: "go on" in tally.notes, "the test lets it go on")
        return index

    def seen(self):
        return self.log, self.peak

    def value(self, value, *_):
        return value

    def ids(self, count):
        context = ray.get_runtime_context()
        first = context.get_task_id()
        values = [ray.get(square.remote(x)) for x in range(count)]
        return first == context.get_task_id(), context.get_task_name(), values, ray.put(count)

    def die(self):
        os._exit(1)

    def quit(self):
        ray.exit_actor()

    def fail(self):
        raise ValueError("failed")


@ray.remote
def square(x):
    time.sleep(0.002)
    return x * x


@ray.remote
def slow(value, seconds=0.1):
    time.sleep(seconds)
    return value


@ray.remote(concurrency_groups={"io": 2, "compute": 1})
class Grouped:
    def __init__(self):
        self.release = threading.Event()

    @ray.method(concurrency_group="io")
    def block(self):
        return self.release.wait(15)

    @ray.method(concurrency_group="io")
    def free(self):
        self.release.set()

    @ray.method(concurrency_group="compute")
    def compute(self):
        return "computed"

    def plain(self):
        return "plain"


def test_methods_wait_for_one_another():
    actor = Threaded.options(max_concurrency=4).remote()
    waiting = [actor.wait.remote() for _ in range(3)]
    get(actor.set.remote())
    assert get(waiting) == [True] * 3


def test_locks_conditions_queues_and_barriers_work():
    actor = Threaded.options(max_concurrency=8).remote()
    assert sorted(get([actor.add.remote() for _ in range(20)])) == list(range(1, 21))
    assert sorted(get([actor.meet.remote() for _ in range(3)])) == [0, 1, 2]
    taken = [actor.take.remote() for _ in range(4)]
    get([actor.put.remote(item) for item in range(6)])
    taken += [actor.take.remote() for _ in range(2)]
    assert sorted(get(taken)) == list(range(6))
    assert get(actor.take.remote(0.05)) == "empty"
    assert get(actor.wait.remote(0.05)) is False


def test_calls_start_in_order_and_at_most_max_concurrency_run():
    actor = Threaded.options(max_concurrency=3).remote()
    assert get([actor.note.remote(index, 0.02) for index in range(12)]) == list(range(12))
    log, peak = get(actor.seen.remote())
    assert peak == 3
    # They begin in order; on real threads one may be overtaken between its beginning and its first line.
    assert all(abs(place - index) < 3 for place, index in enumerate(log))


@ray.remote
class _Echo:
    def say(self, value):
        return value


@ray.remote
class _AsyncEcho:
    async def say(self, value):
        return value


@pytest.mark.parametrize(
    ("cls", "options"),
    [(_AsyncEcho, {}), (_Echo, {"max_concurrency": 2}), (_Echo, {"allow_out_of_order_execution": True})],
)
def test_a_call_whose_argument_is_not_ready_lets_those_behind_it_pass(cls, options):
    gate = Threaded.options(max_concurrency=4).remote()
    late = gate.wait.remote()
    echo = cls.options(num_cpus=0, **options).remote()
    held = echo.say.remote(late)
    refused = echo.say.options(name="refused").remote(gate.wait.remote("no number"))
    assert get([echo.say.remote(number) for number in range(20)]) == list(range(20))
    with pytest.raises(TypeError):
        get(refused)
    cancelled = echo.say.remote(late)
    ray.cancel(cancelled)
    with pytest.raises(TaskCancelledError):
        get(cancelled)
    get(gate.set.remote())
    assert get(held) is True


def test_calls_that_wait_for_arguments_fail_with_their_actor():
    gate = Threaded.options(max_concurrency=4).remote()
    echo = _AsyncEcho.options(num_cpus=0).remote()
    held = [echo.say.remote(gate.wait.remote()) for _ in range(3)]
    ray.kill(echo)
    for ref in (*held, echo.say.remote(gate.wait.remote())):
        with pytest.raises(ActorDiedError):
            get(ref)


def test_results_come_in_any_order():
    actor = Threaded.options(max_concurrency=2).remote()
    waiting = actor.wait.remote()
    assert get(actor.value.remote("quick")) == "quick"
    ready, rest = ray.wait([waiting], timeout=0)
    assert (ready, rest) == ([], [waiting])
    get(actor.set.remote())
    assert get(waiting) is True


def test_a_call_that_waits_for_its_arguments_holds_back_its_callers_next_ones_alone():
    @ray.remote
    def call(actor):
        return ray.get(actor.value.remote("other"))

    actor = Threaded.options(max_concurrency=2).remote()
    get(actor.value.remote(0))
    late = actor.value.remote("late", slow.remote(b"x" * MIB, 0.3))
    behind = actor.value.remote("behind")
    assert get(call.remote(actor)) == "other"
    assert get([late, behind]) == ["late", "behind"]


def test_each_call_has_ids_of_its_own():
    actor = Threaded.options(max_concurrency=4).remote()
    answers = get([actor.ids.remote(5) for _ in range(8)])
    assert {tuple(answer[2]) for answer in answers} == {(0, 1, 4, 9, 16)}
    assert all(answer[0] and answer[1] == "Threaded.ids" for answer in answers)
    kept = [answer[3] for answer in answers]
    assert len(set(kept)) == 8
    assert get(kept) == [5] * 8


def test_large_values_and_errors():
    actor = Threaded.options(max_concurrency=4).remote()
    large = [actor.value.remote(bytes([index]) * MIB) for index in range(4)]
    assert [value[:1] for value in get(large)] == [b"\0", b"\1", b"\2", b"\3"]
    failed = [actor.fail.remote() for _ in range(4)]
    for ref in failed:
        with pytest.raises(ValueError, match="failed"):
            get(ref)
    broken = slow.remote(1, "not a number")
    with pytest.raises(TypeError):
        get(actor.value.remote(1, broken))
    assert get(actor.value.remote(2)) == 2


def test_blocked_threads_give_their_cpu_back():
    actor = Threaded.options(max_concurrency=3, num_cpus=1).remote()
    assert [answer[2] for answer in get([actor.ids.remote(4) for _ in range(3)])] == [[0, 1, 4, 9]] * 3


def test_when_the_actor_dies_all_of_its_calls_fail():
    actor = Threaded.options(max_concurrency=4).remote()
    waiting = [actor.wait.remote() for _ in range(3)]
    get(actor.value.remote(0))
    actor.die.remote()
    for ref in (*waiting, actor.value.remote(1)):
        with pytest.raises(ActorDiedError):
            get(ref)


def test_a_restart_with_several_calls_in_flight():
    actor = Threaded.options(max_concurrency=4, max_restarts=1).remote()
    waiting = [actor.wait.remote() for _ in range(3)]
    get(actor.value.remote(0))
    ray.kill(actor, no_restart=False)
    for ref in waiting:
        with pytest.raises(ActorUnavailableError, match=r"Threaded\.wait.*max_task_retries"):
            get(ref)
    assert get_when_up(actor.seen.remote) == ([], 0)


def test_calls_in_flight_are_made_again(tally):
    actor = Threaded.options(max_concurrency=3, max_restarts=1, max_task_retries=1).remote()
    counted = [actor.count.remote(tally, index) for index in range(6)]
    eventually(lambda: tally.count >= 3, "three of them run")
    ray.kill(actor, no_restart=False)
    eventually(lambda: tally.count >= 6, "they run again")
    tally.add("go on")
    assert get(counted) == list(range(6))
    notes = tally.notes
    assert sorted(notes[:3]) == sorted(notes[3:6]) == ["0", "1", "2"]
    assert sorted(notes[7:]) == ["3", "4", "5"]


def test_exit_actor_with_other_calls_in_flight():
    actor = Threaded.options(max_concurrency=3, max_restarts=-1, max_task_retries=-1).remote()
    waiting = actor.wait.remote()
    assert get(actor.value.remote(1)) == 1
    with pytest.raises(ActorDiedError, match=r"exit_actor\(\) was called in Threaded\.quit"):
        get(actor.quit.remote())
    with pytest.raises(ActorDiedError):
        get(waiting)


def test_cancelling_takes_what_waits_and_leaves_what_runs(tally):
    actor = Threaded.options(max_concurrency=2).remote()
    running = [actor.count.remote(tally, index) for index in range(2)]
    eventually(lambda: tally.count == 2, "both run")
    waiting = [actor.value.remote(index) for index in range(3)]
    for ref in (running[0], waiting[0], waiting[2]):
        ray.cancel(ref)
    for ref in (waiting[0], waiting[2]):
        with pytest.raises(TaskCancelledError, match=r"Threaded\.value"):
            get(ref)
    tally.add("go on")
    with pytest.raises(TaskCancelledError, match=r"Threaded\.count"):
        get(running[0])
    assert get(running[1]) == 1
    assert get(waiting[1]) == 1


def test_a_caller_that_dies_leaves_the_others_alone():
    @ray.remote
    class Caller:
        def call(self, actor):
            self.refs = [actor.wait.remote(0.3) for _ in range(5)]

    actor, caller = Threaded.options(max_concurrency=3).remote(), Caller.remote()
    get(caller.call.remote(actor))  # three of its calls run, the others have no room, and never begin
    ray.kill(caller)
    with pytest.raises(ActorDiedError):
        get(caller.call.remote(actor))
    get(actor.set.remote())
    assert get([actor.value.remote(index) for index in range(6)]) == list(range(6))


def test_groups_have_limits_of_their_own():
    actor = Grouped.remote()
    blocked = [actor.block.remote(), actor.block.remote()]
    assert get([actor.compute.remote(), actor.plain.remote()]) == ["computed", "plain"]
    third = actor.block.remote()
    get(actor.free.options(concurrency_group="compute").remote())
    assert get([*blocked, third]) == [True] * 3


def test_what_is_held_is_given_back():
    actor = Threaded.options(max_concurrency=2, num_cpus=1).remote()
    assert get(actor.value.remote(1)) == 1
    eventually(lambda: resources_are_free(CPU=1), "the actor holds its CPU")
    del actor


def test_zero_stands_for_the_default_as_in_ray():
    actor = Threaded.options(max_concurrency=0, max_pending_calls=0).remote()
    assert get([actor.value.remote(number) for number in range(3)]) == [0, 1, 2]


def test_options_that_an_actor_cannot_have():
    for options, error in (
        ({"max_concurrency": -1}, r"max_concurrency=-1 must be at least 1"),
        ({"concurrency_groups": {"io": 0}}, r"concurrency_groups\['io'\]=0 must be at least 1"),
    ):
        with pytest.raises(ValueError, match=error):
            Threaded.options(**options)
    for options in (
        {"max_concurrency": "2"},
        {"max_concurrency": False},
        {"concurrency_groups": ["io"]},
        {"concurrency_groups": {"": 1}},
        {"scheduling_strategy": 1},
        {"accelerator_type": 3},
    ):
        with pytest.raises(TypeError, match="must be"):
            Threaded.options(**options).remote()
    with pytest.raises(TypeError, match="has no option 'num_cpus'"):
        Threaded.remote().value.options(num_cpus=1)

    class Lost:
        @ray.method(concurrency_group="input")
        def method(self):
            pass

    with pytest.raises(ValueError, match=r"Lost\.method has no concurrency group 'input'\. Did you mean 'inputs'\?"):
        ray.remote(Lost).options(concurrency_groups={"inputs": 1, "x": 2}).remote()
    with pytest.raises(ValueError, match=r"its class defines no concurrency groups"):
        ray.remote(Lost).remote()
    grouped = Grouped.remote()
    with pytest.raises(ValueError, match=r"Grouped\.plain has no concurrency group 'i'"):
        grouped.plain.options(concurrency_group="i").remote()


# ---- Threads ---------------------------------------------------------------------------------------------------------


@ray.remote(max_concurrency=3, concurrency_groups={"io": 2})
class Remembering:
    def __init__(self):
        self.of_thread = threading.local()
        self.constructed_in = threading.get_ident()

    def call(self):
        self.of_thread.calls = getattr(self.of_thread, "calls", 0) + 1
        time.sleep(0.002)
        return threading.get_ident(), self.of_thread.calls

    @ray.method(concurrency_group="io")
    def call_io(self):
        return self.call()

    def made_in(self):
        return self.constructed_in


@pytest.mark.parametrize(("method", "threads"), [("call", 3), ("call_io", 2)])
def test_an_actor_has_its_threads_for_life(method, threads):
    actor = Remembering.remote()
    calls = 0
    last: dict[int, int] = {}
    for _ in range(12):
        for thread, count in get([getattr(actor, method).remote() for _ in range(2 * threads)]):
            calls += 1
            last[thread] = max(count, last.get(thread, 0))
    assert len(last) <= threads
    assert sum(last.values()) == calls == 24 * threads
    assert get(actor.made_in.remote()) not in last


@ray.remote(concurrency_groups={"io": 1, "compute": 1})
class Keeping:
    def __init__(self):
        self.own = threading.local()

    def keep(self, value):
        self.own.value = value
        return threading.get_ident()

    def kept(self):
        return self.own.value, threading.get_ident()


def test_each_group_has_threads_of_its_own():
    actor = Keeping.remote()
    idents = {group: get(actor.keep.options(concurrency_group=group).remote(group)) for group in ("io", "compute")}
    assert idents["io"] != idents["compute"]
    for group, ident in idents.items():
        assert get(actor.kept.options(concurrency_group=group).remote()) == (group, ident)
