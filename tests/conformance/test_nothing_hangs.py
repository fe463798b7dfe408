"""Whatever a call waits for may die, be cancelled, or never come: the call ends, and says what became of it.

docs/api/waiting.md lists all of them, with the tests of other modules.
"""

from __future__ import annotations

import gc
import os
import time

import pytest

import dualray as ray
from dualray.cli.waiting import add_reasons, history_now
from dualray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    OwnerDiedError,
    TaskCancelledError,
    WorkerCrashedError,
)
from dualray.util import ActorPool, explain
from dualray.util.multiprocessing import Pool
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.state import list_tasks
from tests.conformance.support import eventually, get, in_words, resources_are_free

CLUSTER = {"nodes": 1}
pytestmark = pytest.mark.usefixtures("cluster")

LONG_S = 3600.0
SOON_S = 0.15


@pytest.fixture(autouse=True)
def nothing_is_held_by_cycles(quick_collections, cluster):
    """An exception that was caught holds the frames of its test, and with them handles, until garbage collection: that
    comes before the cluster is looked at."""
    yield
    gc.collect()


@ray.remote
def echo(value, *others):
    return value


@ray.remote(num_cpus=0)
def sleep(tally):
    tally.add()
    time.sleep(LONG_S)


@ray.remote(num_cpus=0, max_retries=0)
def die():
    os._exit(3)


@ray.remote(num_cpus=0)
def read(refs):
    return ray.get(refs[0])


@ray.remote(num_cpus=0)
class Partner:
    def answer(self, value=1):
        return value

    def sleep(self, tally):
        tally.add()
        time.sleep(LONG_S)

    def ask(self, partner):
        return ray.get(partner.answer.remote())

    def own(self, tally):
        """A reference to what will not be there for a long time."""
        return [sleep.remote(tally)]

    def own_waiting(self):
        return [echo.remote(5)]


@pytest.fixture
def holder():
    """An actor that holds all CPUs, and does nothing."""
    actor = Partner.options(num_cpus=2).remote()
    get(actor.answer.remote())
    yield actor
    ray.kill(actor)


def says(ref, *words):
    """Have `get` time out, until its error says all of `words`: a worker may have to start first."""
    message = ""

    def says_so():
        nonlocal message
        with pytest.raises(GetTimeoutError) as caught:
            ray.get(ref, timeout=SOON_S)
        message = str(caught.value)
        return all(each in message for each in words)

    try:
        eventually(says_so, "the error says so")
    except AssertionError:
        pytest.fail(f"it does not say {words}: {message}")


# ---- A late get says why -------------------------------------------------------------------------------------------


def test_a_late_get_names_who_holds_the_cpus(holder):
    ref = echo.remote(1)
    says(ref, "computed by echo", "waits for a worker with 1 CPU", "CPU is held by Partner on node-0/w", "(2 CPU)")
    ray.kill(holder)
    assert get(ref) == 1


def test_a_late_get_follows_the_chain_of_arguments(holder):
    first = echo.remote(1)
    last = echo.remote(2, echo.remote(3, first))
    says(
        last,
        "which waits for its arguments",
        f"object {first.hex()[:8]}:0 is computed by echo",
        "CPU is held by Partner",
    )
    ray.cancel(first)


def test_a_late_get_names_what_its_actor_does_instead(tally):
    partner = Partner.remote()
    running = partner.sleep.remote(tally)
    says(partner.answer.remote(), "runs Partner.sleep now")
    says(running, "runs it")
    ray.kill(partner)


def test_a_late_get_of_a_call_of_an_actor_that_finds_no_place(holder):
    late = Partner.options(num_cpus=1).remote()
    says(
        late.answer.remote(),
        "(PENDING)",
        "CPU is held by Partner on node-0/w",
        "the head says: 1 x Partner of head waits for 1 CPU",
    )


def test_a_late_get_of_a_call_of_an_actor_whose_constructor_waits(tally):
    @ray.remote(num_cpus=0)
    class Late:
        def __init__(self, value):
            self.value = value

        def answer(self):
            return self.value

    argument = sleep.remote(tally)
    late = Late.remote(argument)
    says(
        late.answer.remote(), "the actor is created by Late", f"{argument.hex()[:8]}:0 is computed by sleep", "runs it"
    )
    ray.cancel(argument)
    with pytest.raises(ActorDiedError, match="an argument"):
        get(late.answer.remote())


def test_a_late_get_of_a_borrowed_reference_asks_its_owner(holder):
    partner = Partner.remote()
    [borrowed] = get(partner.own_waiting.remote())
    says(borrowed, "says that object", "computed by echo", "CPU is held by Partner")


def test_a_late_get_of_what_a_blocked_task_makes(holder):
    ref = echo.remote(1)
    says(read.remote([ref]), f"runs it, and waits: object {ref.hex()[:8]}")
    ray.kill(holder)
    assert get(ref) == 1


def test_a_late_get_of_an_actor_that_waits_for_itself():
    partner = Partner.remote()
    says(partner.ask.remote(partner), "runs it, and waits: object", "computed by Partner.answer")
    ray.kill(partner)


def test_a_program_can_ask_why_a_value_is_not_there(holder):
    ref = echo.remote(1)
    assert "computed by echo" in explain(ref)
    eventually(lambda: "CPU is held by Partner on node-0/w" in explain(ref), "it says who holds the CPU")
    partner = Partner.remote()
    [borrowed] = get(partner.own_waiting.remote())
    assert "says that object" in explain(borrowed)
    ray.kill(holder)
    assert get(ref) == 1
    assert explain(ref) == f"object {ref.hex()} is ready"
    assert "ready" in explain(ray.put(1))
    with pytest.raises(TypeError, match="explain takes an ObjectRef"):
        explain(1)


def test_another_process_can_ask_why_a_task_waits(holder):
    """As `dualray explain ID` does: it holds no reference to what the task returns."""

    @ray.remote(num_cpus=0)
    def ask(name):
        [row] = list_tasks(filters=[("name", "=", name)])
        add_reasons([row])
        return row["state"], row["waiting_reason"], history_now(row)

    ref = echo.options(name="blocked").remote(1)
    later = echo.options(name="later").remote(ref)
    eventually(lambda: get(ask.remote("blocked"))[1], "the head knows that it waits")
    state, reason, lines = get(ask.remote("blocked"))
    assert (state, lines[0]) == ("PENDING_NODE_ASSIGNMENT", "The task waits for a worker.")
    assert reason.startswith("1 CPU: every node that could take it is busy")
    assert any(line.startswith("CPU is held by Partner on node-0/w") for line in lines)
    state, reason, lines = get(ask.remote("later"))
    assert (state, lines[0]) == ("PENDING_ARGS_AVAIL", "The task waits for its arguments.")
    assert reason == f"the result of task ({ref.hex()[:8]})"
    assert any("which waits for its arguments" in line for line in lines)
    ray.kill(holder)
    assert get(later) == 1


def test_a_late_get_in_a_task_says_why_too(holder):
    @ray.remote(num_cpus=0)
    def impatient(refs):
        ray.get(refs[0], timeout=SOON_S)

    ref = echo.remote(1)
    with pytest.raises(GetTimeoutError, match="CPU is held by Partner"):
        get(impatient.remote([ref]))


# ---- What is waited for dies ---------------------------------------------------------------------------------------


def test_a_nested_get_ends_with_the_death_of_what_it_waits_for():
    @ray.remote(num_cpus=0)
    def parent():
        try:
            ray.get(die.remote())
        except WorkerCrashedError:
            return "heard of it"

    assert get(parent.remote()) == "heard of it"
    with pytest.raises(WorkerCrashedError, match="die"):
        get(read.remote([die.remote()]))


def test_a_nested_get_ends_when_what_it_waits_for_is_cancelled(tally):
    ref = sleep.remote(tally)
    reading = read.remote([ref])
    eventually(lambda: tally.count == 1, "the task runs")
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(reading)


def test_a_get_of_a_borrowed_reference_ends_with_its_owner(tally):
    partner = Partner.remote()
    borrowed = get(partner.own.remote(tally))
    reading = read.remote(borrowed)
    eventually(lambda: tally.count == 1, "the task runs")
    ray.kill(partner)
    with pytest.raises(OwnerDiedError, match=in_words("which owned it, died", "owner has exited")):
        get(borrowed)
    with pytest.raises(OwnerDiedError):
        get(reading)


def test_a_wait_for_several_counts_those_that_die_are_cancelled_or_killed(tally):
    partner = Partner.remote()
    cancelled, killed = sleep.remote(tally), partner.sleep.remote(tally)
    eventually(lambda: tally.count == 2, "both run")
    ray.cancel(cancelled)
    ray.kill(partner)
    refs = [cancelled, killed, die.remote()]
    ready, rest = ray.wait(refs, num_returns=3, timeout=20)
    assert (ready, rest) == (refs, [])
    for ref, error in zip(refs, (TaskCancelledError, ActorDiedError, WorkerCrashedError), strict=True):
        with pytest.raises(error):
            get(ref)


def test_a_wait_for_more_than_ever_come_ends_at_its_timeout(holder):
    there, never = ray.put(1), echo.remote(2)
    assert ray.wait([there, never], num_returns=2, timeout=SOON_S) == ([there], [never])
    ray.cancel(never)
    assert ray.wait([there, never], num_returns=2, timeout=20) == ([there, never], [])


def test_calls_of_an_actor_that_finds_no_place_end_when_it_is_killed(holder):
    late = Partner.options(num_cpus=2).remote()
    ref = late.answer.remote()
    assert ray.wait([ref], timeout=0.1)[0] == []
    ray.kill(late)
    with pytest.raises(ActorDiedError, match="killed"):
        get(ref)


def test_a_call_that_waits_for_an_argument_ends_with_its_actor(tally):
    partner = Partner.remote()
    argument = sleep.remote(tally)
    ref = partner.answer.remote(argument)
    ray.kill(partner)
    with pytest.raises(ActorDiedError):
        get(ref)
    ray.cancel(argument)


def test_a_named_actor_that_finds_no_place_is_found_and_can_be_killed(holder):
    late = Partner.options(num_cpus=2, name="late").remote()
    found = ray.get_actor("late")
    ref = found.answer.remote()
    ray.kill(found)
    with pytest.raises(ActorDiedError):
        get(ref)
    del late
    eventually(lambda: _is_unknown("late"), "the name is free")


def _is_unknown(name):
    try:
        ray.get_actor(name)
    except ValueError:
        return True
    return False


def test_killing_and_cancelling_what_has_ended_does_nothing(tally):
    partner = Partner.remote()
    done = partner.answer.remote()
    assert get(done) == 1
    for _ in range(2):
        ray.kill(partner)
        ray.cancel(done)
    assert get(done) == 1


def test_a_group_that_can_wait_for_ever_waits_no_longer_than_it_is_told(holder):
    group = placement_group([{"CPU": 1}])
    assert not group.wait(timeout_seconds=SOON_S)
    says(group.ready(), "there is no room for all of its bundles now")
    remove_placement_group(group)


def test_a_group_is_ready_when_who_held_its_place_dies(holder):
    group = placement_group([{"CPU": 2}])
    ready = group.ready()
    assert ray.wait([ready], timeout=0.1)[0] == []
    ray.kill(holder)
    get(ready)
    remove_placement_group(group)
    eventually(resources_are_free, "the group is removed")


# ---- Utilities -----------------------------------------------------------------------------------------------------


def leave(number):
    if number == 3:
        os._exit(3)
    return number


def test_a_pools_result_ends_with_the_process_that_was_to_make_it():
    with Pool(processes=2) as pool:
        with pytest.raises(ActorDiedError):
            pool.map_async(leave, range(6), chunksize=1).get(timeout=20)


def test_an_actor_pools_next_result_ends_with_its_actor(tally):
    partners = [Partner.remote(), Partner.remote()]
    pool = ActorPool(partners)
    pool.submit(lambda actor, _: actor.sleep.remote(tally), None)
    eventually(lambda: tally.count == 1, "it runs")
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=SOON_S)
    for partner in partners:
        ray.kill(partner)
    with pytest.raises(ActorDiedError):
        pool.get_next(timeout=20)
