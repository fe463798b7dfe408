"""dualray.cancel: a task ends wherever it is, and whoever waits for it hears of it."""

from __future__ import annotations

import os
import time

import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, TaskCancelledError, TaskError
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from dualray.util.state import list_workers
from tests.conformance.support import Gate, Tally, eventually, get, node_ids

pytestmark = pytest.mark.usefixtures("cluster")

LONG_S = 3600.0


@ray.remote(num_cpus=0)
def sleep(tally, note="ran"):
    tally.add(note)
    time.sleep(LONG_S)


@ray.remote(num_cpus=0)
def ready(*values):
    return values


@ray.remote(num_cpus=0)
def hold(gate, tally=None):
    if tally is not None:
        tally.add("held")
    gate.wait()
    return "held"


def started(tally, count=1):
    eventually(lambda: tally.count >= count, f"{count} tasks have started")


def test_a_task_that_runs_is_interrupted(tally: Tally):
    ref = sleep.remote(tally)
    started(tally)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError, match=r"sleep .* was cancelled") as raised:
        get(ref)
    assert raised.value.task_id == ref.task_id()
    assert get(ready.remote(1)) == (1,)


@pytest.mark.parametrize("kind", ["task", "generator", "waiting task"])
def test_the_error_shows_where_the_task_was(tally: Tally, kind):
    @ray.remote(num_returns="streaming")
    def items(tally):
        yield tally.add()
        time.sleep(LONG_S)  # here it was

    @ray.remote(num_cpus=0)
    def waits(tally):
        return ray.get(sleep.remote(tally))  # here it was

    @ray.remote
    def computes(tally):
        tally.add()
        time.sleep(LONG_S)  # here it was

    ref = {"task": computes, "generator": items, "waiting task": waits}[kind].remote(tally)
    needs_it = None if kind == "generator" else ready.remote(ref)
    started(tally)
    first = ref if needs_it is not None else next(ref)
    ray.cancel(ref)
    with pytest.raises(TaskError, match="# here it was") as caught:
        get(first if needs_it is not None else next(ref))
    assert isinstance(caught.value, TaskCancelledError)
    assert type(caught.value.cause) is TaskCancelledError
    if needs_it is not None:
        with pytest.raises(TaskError, match="# here it was") as caught:
            get(needs_it)
        assert isinstance(caught.value, TaskCancelledError)


def test_a_task_that_never_began_has_no_place_to_show(tally: Tally, gate: Gate):
    waits_for_it = ready.remote(sleep.options(name="first").remote(tally))
    ray.cancel(waits_for_it)
    with pytest.raises(TaskCancelledError) as caught:
        get(waits_for_it)
    assert not isinstance(caught.value, TaskError)


def test_it_is_not_tried_again(tally: Tally):
    ref = sleep.options(max_retries=5, retry_exceptions=True).remote(tally)
    started(tally)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    get(ready.remote())
    assert tally.count == 1


def test_a_task_sees_a_keyboard_interrupt_and_may_clean_up(tally: Tally):
    @ray.remote
    def careful():
        try:
            tally.add("began")
            time.sleep(LONG_S)
        except KeyboardInterrupt:
            tally.add("interrupted")
            raise
        finally:
            tally.add("cleaned")

    ref = careful.remote()
    started(tally)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    assert tally.notes == ["began", "interrupted", "cleaned"]


def test_what_a_task_returns_in_spite_of_it_stands(tally: Tally):
    @ray.remote
    def stubborn():
        try:
            tally.add()
            time.sleep(LONG_S)
        except KeyboardInterrupt:
            return "all the same"

    ref = stubborn.remote()
    started(tally)
    ray.cancel(ref)
    assert get(ref) == "all the same"


_SLOW = """
import os
import time
from pathlib import Path
import registry

if "slow" in registry.names:
    raise RuntimeError("this module was imported before")
registry.names.add("slow")
Path(__file__).with_name("began").write_text(str(os.getpid()))
time.sleep(0.5)
Path(__file__).with_name("ended").touch()
"""


def test_an_import_is_not_interrupted(tmp_path):
    (tmp_path / "slow_to_import.py").write_text(_SLOW)
    (tmp_path / "registry.py").write_text("names = set()")

    @ray.remote(runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}})
    def use(seconds):
        import slow_to_import

        time.sleep(seconds)
        return os.getpid(), slow_to_import.registry.names

    ref = use.remote(LONG_S)
    began = tmp_path / "began"
    eventually(began.exists, "the import has begun")
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    assert (tmp_path / "ended").exists()
    assert get(use.remote(0)) == (int(began.read_text()), {"slow"})


def test_a_task_that_computes_is_interrupted(tally: Tally):
    @ray.remote
    def count():
        tally.add()
        n = 0
        while True:
            n += 1
            time.time()  # in virtual time, a step

    ref = count.remote()
    started(tally)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)


def test_a_task_that_waits_in_get_is_interrupted(tally: Tally, gate: Gate):
    @ray.remote
    def parent(gate):
        ref = hold.remote(gate)
        tally.add()
        return ray.get(ref)

    ref = parent.remote(gate)
    started(tally)
    ray.cancel(ref, recursive=False)
    with pytest.raises(TaskCancelledError):
        get(ref)
    gate.open()


def test_a_task_that_waits_for_its_arguments_never_begins(tally: Tally, gate: Gate):
    held = hold.remote(gate)
    ref = sleep.remote(tally, held)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    gate.open()
    assert get(held) == "held"
    assert tally.count == 0


def test_a_task_that_waits_for_a_worker_never_begins(tally: Tally, gate: Gate):
    hogs = [hold.options(num_cpus=1).remote(gate, tally) for _ in range(int(ray.cluster_resources()["CPU"]))]
    started(tally, len(hogs))
    queued = [sleep.options(num_cpus=1).remote(tally) for _ in range(5)]
    for ref in queued:
        ray.cancel(ref)
    for ref in queued:
        with pytest.raises(TaskCancelledError):
            get(ref)
    gate.open()
    assert get(hogs) == ["held"] * len(hogs)
    assert tally.count == len(hogs)


def test_a_task_behind_others_on_its_worker_never_begins(tally: Tally, gate: Gate):
    get([ready.remote() for _ in range(50)])  # tasks are short: several are pushed ahead
    first = [ready.options(name="first").remote(i) for i in range(20)]
    get(first)
    calls = [ready.remote(i) for i in range(200)]
    for ref in calls[1::2]:
        ray.cancel(ref)
    for index, ref in enumerate(calls):
        try:
            assert get(ref) == (index,)
        except TaskCancelledError:
            assert index % 2


def test_tasks_pushed_behind_one_that_holds_are_taken_from_the_queue(tally: Tally, gate: Gate):
    @ray.remote(num_cpus=2)
    def step(gate, tally, index):
        tally.add(index)
        if index == 0:
            gate.wait()
        return index

    strategy = NodeAffinitySchedulingStrategy(min(node_ids()), soft=False)
    step = step.options(scheduling_strategy=strategy)
    gate.open()
    get([step.remote(gate, tally, -1) for _ in range(100)])
    gate.path.unlink()
    before = tally.count
    refs = [step.remote(gate, tally, index) for index in range(10)]
    eventually(lambda: "0" in tally.notes, "the first has begun")
    for ref in refs[1:]:
        ray.cancel(ref)
    for ref in refs[1:]:
        with pytest.raises(TaskCancelledError):
            get(ref)
    gate.open()
    assert get(refs[0]) == 0
    assert tally.count == before + 1


def test_what_needs_its_result_fails_too(tally: Tally):
    ref = sleep.remote(tally)
    after = ready.remote(ref)
    last = ready.remote(after)
    started(tally)
    ray.cancel(ref)
    for each in (ref, after, last):
        with pytest.raises(TaskCancelledError):
            get(each)


def test_force_ends_the_worker(tally: Tally):
    @ray.remote(max_retries=3)
    def deaf():
        while True:
            try:
                if not tally.count:
                    tally.add(ray.get_runtime_context().get_worker_id())
                time.sleep(LONG_S)
            except KeyboardInterrupt:
                tally.add("heard")

    ref = deaf.remote()
    started(tally)
    ray.cancel(ref)
    started(tally, 2)
    ray.cancel(ref, force=True)
    with pytest.raises(TaskCancelledError):
        get(ref)
    assert tally.notes[1:] == ["heard"]
    worker = tally.notes[0]
    eventually(
        lambda: worker not in [row.worker_id for row in list_workers()],
        "its worker has ended",
    )


def test_children_are_cancelled_too(tally: Tally):
    @ray.remote(num_cpus=0)
    def parent(tally, depth):
        if depth == 0:
            return ray.get(sleep.remote(tally))
        return ray.get(parent.remote(tally, depth - 1))

    ref = parent.remote(tally, 2)
    started(tally)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)


def test_children_go_on_when_it_is_not_recursive(tally: Tally, gate: Gate):
    @ray.remote(num_cpus=0)
    def child(gate, tally):
        gate.wait()
        tally.add("child ended")

    @ray.remote(num_cpus=0)
    def parent(gate, tally):
        ref = child.remote(gate, tally)
        tally.add("waits")
        ray.get(ref)

    ref = parent.remote(gate, tally)
    started(tally)
    ray.cancel(ref, recursive=False)
    with pytest.raises(TaskCancelledError):
        get(ref)
    gate.open()
    eventually(lambda: "child ended" in tally.notes, "the child has ended")


def test_a_task_that_has_ended_is_not_changed():
    ref = ready.remote(1)
    assert get(ref) == (1,)
    ray.cancel(ref)
    ray.cancel(ref, force=True)
    assert get(ref) == (1,)


def test_a_borrower_may_cancel(tally: Tally):
    @ray.remote(num_cpus=0)
    def end(refs):
        ray.cancel(refs[0])

    ref = sleep.remote(tally)
    started(tally)
    get(end.remote([ref]))
    with pytest.raises(TaskCancelledError):
        get(ref)


def test_wait_returns_what_was_cancelled(tally: Tally):
    ref = sleep.remote(tally)
    started(tally)
    ray.cancel(ref)
    assert ray.wait([ref], timeout=20) == ([ref], [])


def test_a_task_that_catches_the_error_of_its_child_goes_on(tally: Tally):
    @ray.remote(num_cpus=0)
    def parent(tally):
        ref = sleep.remote(tally)
        eventually(lambda: tally.count >= 1, "the child has begun")
        ray.cancel(ref)
        try:
            ray.get(ref)
        except TaskCancelledError:
            return "told"

    assert get(parent.remote(tally)) == "told"


def test_an_error_that_a_task_makes_of_it_is_its_own(tally: Tally):
    @ray.remote(num_cpus=0)
    def parent(tally):
        ref = sleep.remote(tally)
        ray.cancel(ref)
        ray.get(ref)

    with pytest.raises(TaskError) as caught:
        get(parent.remote(tally))
    assert isinstance(caught.value, TaskCancelledError)


def test_a_method_that_waits_never_begins_and_one_that_runs_goes_on(tally: Tally, gate: Gate):
    @ray.remote(num_cpus=0)
    class Worker:
        def hold(self, gate, tally):
            tally.add("held")
            gate.wait()
            return "held"

        def note(self, tally):
            tally.add("noted")

    actor = Worker.remote()
    runs = actor.hold.remote(gate, tally)
    started(tally)
    waits = [actor.note.remote(tally) for _ in range(3)]
    for ref in (runs, *waits):
        ray.cancel(ref)
    for ref in waits:
        with pytest.raises(TaskCancelledError):
            get(ref)
    gate.open()
    with pytest.raises(TaskCancelledError):  # what it returns is for nobody
        get(runs)
    assert tally.notes == ["held"]
    assert get(actor.note.remote(tally)) is None


def test_a_method_behind_an_argument_that_never_comes_gives_way(tally: Tally, gate: Gate):
    @ray.remote(num_cpus=0)
    class Echo:
        def echo(self, value):
            return value

    actor = Echo.remote()
    held = hold.remote(gate)
    first, second = actor.echo.remote(held), actor.echo.remote(2)
    ray.cancel(first)
    assert get(second) == 2
    with pytest.raises(TaskCancelledError):
        get(first)
    gate.open()


def test_force_is_refused_for_methods(tally: Tally, gate: Gate):
    @ray.remote(num_cpus=0)
    class Holder:
        def hold(self, gate):
            gate.wait()

    actor = Holder.remote()
    ref = actor.hold.remote(gate)
    with pytest.raises(ValueError, match=r"force=True is not supported for methods of actors, and Holder\.hold is one"):
        ray.cancel(ref, force=True)
    gate.open()
    get(ref)


def test_what_cannot_be_cancelled_is_refused_in_words():
    with pytest.raises(ValueError, match="cancel takes the reference of a task's result"):
        ray.cancel(ray.put(1))
    with pytest.raises(TypeError, match="cancel takes an ObjectRef, not 1"):
        ray.cancel(1)


def test_the_child_of_a_method_can_be_cancelled_while_the_actor_lives(tally: Tally):
    @ray.remote(num_cpus=0)
    class Parent:
        def begin(self, tally):
            self.ref = sleep.remote(tally)

        def end(self):
            ray.cancel(self.ref)
            try:
                ray.get(self.ref)
            except TaskCancelledError:
                return "cancelled"

    actor = Parent.remote()
    get(actor.begin.remote(tally))
    started(tally)
    assert get(actor.end.remote()) == "cancelled"


def test_a_call_of_a_killed_actor_and_its_cancellation_end_alike(tally: Tally, gate: Gate):
    @ray.remote(num_cpus=0)
    class Holder:
        def hold(self, gate, tally):
            tally.add()
            gate.wait()

    actor = Holder.remote()
    ref = actor.hold.remote(gate, tally)
    started(tally)
    ray.cancel(ref)
    ray.kill(actor)
    with pytest.raises((ActorDiedError, TaskCancelledError)):
        get(ref)
    gate.open()


# ---- What runs may ask -----------------------------------------------------------------------------------------------


def wait_until_cancelled(started):
    started.add()
    deadline = time.monotonic() + 30
    while not ray.get_runtime_context().is_canceled():
        if time.monotonic() > deadline:
            return "never cancelled"
        time.sleep(0.01)
    return "asked"


@ray.remote
class Patient:
    def __init__(self):
        self.found = []

    def wait(self, started):
        self.found.append(wait_until_cancelled(started))
        return "a result that nobody gets"

    def seen(self):
        return self.found

    def asks(self):
        return ray.get_runtime_context().is_canceled()


@pytest.mark.parametrize("max_concurrency", [1, 3])
def test_a_method_that_goes_on_may_ask(tally, max_concurrency):
    patient = Patient.options(max_concurrency=max_concurrency).remote()
    waiting = patient.wait.remote(tally)
    eventually(lambda: tally.count == 1, "the method runs")
    ray.cancel(waiting)
    with pytest.raises(TaskCancelledError):
        get(waiting)
    assert get(patient.seen.remote()) == ["asked"]
    assert get(patient.asks.remote()) is False


def test_a_task_that_catches_the_interrupt_may_ask(tally):
    @ray.remote
    def stubborn(started):
        try:
            started.add()
            time.sleep(30)
        except KeyboardInterrupt:
            return ray.get_runtime_context().is_canceled()

    ref = stubborn.remote(tally)
    eventually(lambda: tally.count == 1, "the task runs")
    ray.cancel(ref)
    assert get(ref) is True


def test_a_coroutine_is_cancelled_and_does_not_ask():
    @ray.remote
    class Loop:
        async def asks(self):
            return ray.get_runtime_context().is_canceled()

    with pytest.raises(RuntimeError, match="not supported in async actors"):
        get(Loop.remote().asks.remote())


def test_the_driver_was_never_called():
    with pytest.raises(RuntimeError, match="called in the driver"):
        ray.get_runtime_context().is_canceled()
