from __future__ import annotations

import os
import re
import signal

import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, ActorError, ActorUnavailableError
from tests.conformance.support import MIB, eventually, get, get_when_up, in_words, resources_are_free

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote(num_cpus=0)
class Slow:
    """Its second life begins when the gate opens."""

    def __init__(self, gate):
        if ray.get_runtime_context().was_current_actor_reconstructed:
            gate.wait()

    def life(self):
        return ray.get_runtime_context().was_current_actor_reconstructed


@ray.remote
class Counter:
    def __init__(self, tally=None):
        self.n = 0
        if tally is not None:
            tally.add()

    def add(self):
        self.n += 1
        return self.n

    def die(self, how="exit"):
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    def die_at_first(self, tally):
        if tally.add(ray.get_runtime_context().get_attempt()) == 1:
            os._exit(3)
        return "second time"

    def large(self):
        return b"x" * MIB

    def wait_for(self, gate):
        gate.wait()


def crash(counter):
    with pytest.raises(ActorError):
        get(counter.die.remote())


# ---- Without restarts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "words"), [("exit", "exited with code 3"), ("signal", "SIGKILL")])
def test_an_actor_that_dies_stays_dead_and_says_why(how, words):
    counter = Counter.remote()
    for ref in (counter.die.remote(how), counter.add.remote()):
        with pytest.raises(ActorDiedError) as caught:
            get(ref)
        assert "Counter" in str(caught.value)
        assert re.search(in_words(words), str(caught.value))
        assert in_words("max_restarts") in str(caught.value)
    with pytest.raises(ActorDiedError, match=in_words(words)):
        get(counter.add.remote())


def test_results_of_a_dead_actor_stay():
    counter = Counter.remote()
    small, large = counter.add.remote(), counter.large.remote()
    ray.wait([small, large], num_returns=2, timeout=10)
    crash(counter)
    assert get(small) == 1
    assert get(large) == b"x" * MIB


def test_a_constructor_that_ends_its_worker():
    @ray.remote
    class Stillborn:
        def __init__(self):
            os._exit(4)

        def method(self):
            return 1

    with pytest.raises(ActorDiedError, match=in_words("exited with code 4")):
        get(Stillborn.remote().method.remote())


def test_the_resources_of_a_dead_actor_are_free_again():
    counter = Counter.options(num_cpus=2).remote()
    get(counter.add.remote())
    crash(counter)
    eventually(resources_are_free, "the dead actor's CPUs are free")


# ---- kill ----------------------------------------------------------------------------------------------------------


def test_kill_ends_an_actor_at_once(gate):
    counter = Counter.remote()
    get(counter.add.remote())
    running, waiting = counter.wait_for.remote(gate), counter.add.remote()
    ray.kill(counter)
    for ref in (running, waiting, counter.add.remote()):
        with pytest.raises(ActorDiedError, match="killed"):
            get(ref)


@ray.remote
def fails():
    raise LookupError("it has failed")


def test_a_call_of_a_dead_actor_says_so_though_its_argument_failed():
    actor = Counter.remote()
    get(actor.add.remote())
    argument = fails.remote()
    ray.wait([argument])
    ray.kill(actor)
    with pytest.raises(ActorDiedError):
        get(actor.add.remote())
    with pytest.raises(ActorDiedError):
        get(actor.die.remote(argument))


def test_calls_after_kill_fail_however_fast_they_are():
    for _ in range(10):
        counter = Counter.remote()
        get(counter.add.remote())
        ray.kill(counter)
        refs = [counter.add.remote() for _ in range(3)]
        for ref in refs:
            with pytest.raises(ActorDiedError, match="killed"):
                get(ref)


def test_kill_may_be_repeated():
    counter = Counter.remote()
    ray.kill(counter)
    ray.kill(counter)
    with pytest.raises(ActorDiedError, match="killed"):
        get(counter.add.remote())


def test_kill_ends_an_actor_that_might_have_come_back():
    counter = Counter.options(max_restarts=5).remote()
    get(counter.add.remote())
    ray.kill(counter)
    with pytest.raises(ActorDiedError, match="killed"):
        get(counter.add.remote())


def test_kill_with_restart_uses_up_a_restart():
    counter = Counter.options(max_restarts=1, max_task_retries=-1).remote()
    assert get(counter.add.remote()) == 1
    ray.kill(counter, no_restart=False)
    eventually(lambda: get(counter.add.remote()) == 1, "the actor has started afresh")
    ray.kill(counter, no_restart=False)

    def is_dead():
        try:
            get(counter.add.remote())
        except ActorDiedError:
            return True
        return False

    eventually(is_dead, "the actor is dead for good")


def test_kill_works_from_a_task():
    @ray.remote
    def kill(counter):
        ray.kill(counter)

    counter = Counter.remote()
    get(kill.remote(counter))

    def add_for_ever():  # the task's wish goes by way of the head, and calls of ours may overtake it
        while True:
            get(counter.add.remote())

    with pytest.raises(ActorDiedError, match="killed"):
        add_for_ever()


# ---- Restarts ------------------------------------------------------------------------------------------------------


def test_an_actor_is_restarted_max_restarts_times(tally):
    counter = Counter.options(max_restarts=2).remote(tally)
    for _ in range(2):
        # A fresh state, made by the constructor with the same arguments.
        assert get_when_up(counter.add.remote) == 1
        with pytest.raises(ActorUnavailableError) as caught:
            get(counter.die.remote())
        assert "exited with code 3" in str(caught.value)
        assert "Counter.die" in str(caught.value)
        assert "max_task_retries" in str(caught.value)
    assert get_when_up(counter.add.remote) == 1
    with pytest.raises(ActorDiedError, match="restarted 2 times"):
        get(counter.die.remote())
    assert tally.count == 3


def test_minus_one_means_restarts_without_end():
    counter = Counter.options(max_restarts=-1).remote()
    for _ in range(4):
        get_when_up(counter.add.remote)
        crash(counter)
    assert get_when_up(counter.add.remote) == 1


def test_a_call_that_is_not_to_be_repeated_does_not_wait_for_a_restart(gate):
    counter = Slow.options(max_restarts=1).remote(gate)
    patient = Slow.options(max_restarts=1, max_task_retries=1).remote(gate)
    assert get([counter.life.remote(), patient.life.remote()]) == [False, False]
    for actor in (counter, patient):
        ray.kill(actor, no_restart=False)
    eventually(lambda: _is_refused(counter), "the actor is restarting")
    late = patient.life.remote()
    with pytest.raises(ActorUnavailableError, match=r"temporarily unavailable.*max_task_retries"):
        get(counter.life.remote())
    assert ray.wait([late], timeout=0.05) == ([], [late])
    gate.open()
    assert get_when_up(counter.life.remote)
    assert get(late)


def _is_refused(actor):
    try:
        get(actor.life.remote())
    except ActorUnavailableError as error:
        return "The actor is restarting" in str(error)
    return False


def test_a_call_that_was_lost_is_repeated_max_task_retries_times(tally):
    counter = Counter.options(max_restarts=1, max_task_retries=1).remote()
    assert get(counter.die_at_first.remote(tally)) == "second time"
    assert tally.notes == ["0", "1"]


def test_calls_behind_the_one_that_crashed_run_in_their_order_in_the_next_life(tally):
    @ray.remote(max_restarts=1, max_task_retries=1)
    class Log:
        def __init__(self):
            self.entries = []

        def append(self, entry):
            if entry == 3 and tally.add() == 1:
                os._exit(1)
            self.entries.append(entry)

        def read(self):
            return self.entries

    log = Log.remote()
    for entry in range(10):
        log.append.remote(entry)
    entries = get(log.read.remote())
    assert entries[-7:] == [3, 4, 5, 6, 7, 8, 9]
    assert entries == sorted(entries)


def test_a_restarted_actor_has_its_resources():
    counter = Counter.options(max_restarts=1, num_cpus=1).remote()
    crash(counter)
    get_when_up(counter.add.remote)
    eventually(lambda: resources_are_free(CPU=1), "the actor holds its CPU again")
    del counter
    eventually(resources_are_free, "the CPU is free")


def test_a_handle_in_another_process_follows_the_actor():
    @ray.remote
    def add(counter):
        return ray.get(counter.add.remote(), timeout=10)

    counter = Counter.options(max_restarts=1).remote()
    assert get(add.remote(counter)) == 1
    crash(counter)

    def follows() -> bool:
        try:
            return get(add.remote(counter)) == 1
        except ActorUnavailableError:  # the other process called it before it had heard of the crash
            return False

    eventually(follows, "the other process has heard of the actor's next life")
    assert get(counter.add.remote()) == 2


# ---- Owners --------------------------------------------------------------------------------------------------------


def test_an_actor_ends_with_the_process_that_made_it():
    @ray.remote
    class Parent:
        def __init__(self):
            self.child = Counter.options(num_cpus=1).remote()

        def give(self):
            ray.get(self.child.add.remote(), timeout=10)
            return self.child

    parent = Parent.remote()
    child = get(parent.give.remote())
    ray.kill(parent)
    with pytest.raises(ActorDiedError, match=in_words("its owner has died", "owner.*died")):  # noqa: PT012 - the news may take a few calls
        for _ in range(500):
            get(child.add.remote())
    eventually(resources_are_free, "the child's CPU is free")


def test_an_actor_ends_with_its_maker_that_still_waited_for_an_argument(gate):
    """No process has called the actor before its maker dies."""

    @ray.remote
    def late():
        gate.wait()

    @ray.remote
    class Parent:
        def give(self):
            return Counter.remote(late.remote())

        def die(self):
            os._exit(3)

    parent = Parent.remote()
    child = get(parent.give.remote())
    with pytest.raises(ActorDiedError):
        get(parent.die.remote())
    with pytest.raises(ActorDiedError, match="its owner has died"):
        get(child.add.remote())


@ray.remote(num_cpus=0)
class Part:
    def value(self):
        return "of the part"


@ray.remote
def make_part_and_object():
    return Part.remote(), [ray.put("of the object")]


def test_an_actor_that_is_killed_takes_nothing_with_it_that_earlier_tasks_have_made():
    made = ray.get([make_part_and_object.remote() for _ in range(4)])
    others = [Counter.options(num_cpus=0).remote() for _ in range(6)]
    assert get([other.add.remote() for other in others]) == [1] * 6
    for other in others:
        ray.kill(other)
    for other in others:
        with pytest.raises(ActorDiedError):
            get(other.add.remote())
    assert get([part.value.remote() for part, _ in made]) == ["of the part"] * 4
    assert get([ref for _, [ref] in made]) == ["of the object"] * 4
