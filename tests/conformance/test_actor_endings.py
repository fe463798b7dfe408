"""How actors end by their own will, and how many calls a caller may have under way."""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import sys
import time
from contextlib import suppress

import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, ActorUnavailableError, PendingCallsLimitExceeded
from tests.conformance.support import Gate, eventually, get, get_when_up, in_words, is_on_ray, resources_are_free

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
class Counter:
    def __init__(self):
        self.n = 0

    def add(self):
        self.n += 1
        return self.n

    def slow(self, seconds):
        time.sleep(seconds)
        return self.n

    def hold(self, gate):
        gate.wait()
        return self.n

    def quit(self):
        try:
            ray.exit_actor()
        except Exception:  # noqa: BLE001 - what the test is about: it does not hold up the end
            return "held up"

    def quit_with_a_blocked_child(self, other):
        other.slow.remote(0.05)
        ray.exit_actor()


def leave(how, code):
    if how == "exit_actor":
        ray.exit_actor()
    elif how == "sys.exit":
        sys.exit(code)
    elif how == "os._exit":
        os._exit(code)


@ray.remote(num_cpus=0)
class Leaving:
    def __init__(self, how, tally):
        tally.add("made")
        atexit.register(tally.add, "at exit")
        leave(how, 0)

    def leave(self, how, code=0):
        leave(how, code)


@ray.remote
def exit_in_a_task():
    ray.exit_actor()


def test_exit_actor_ends_the_actor_and_the_calls_behind():
    counter = Counter.options(max_restarts=5, max_task_retries=5).remote()
    before = [counter.add.remote() for _ in range(20)]
    quitting = counter.quit.remote()
    after = [counter.add.remote() for _ in range(3)]
    assert get(before) == list(range(1, 21))
    for ref in (quitting, *after, counter.add.remote()):
        with pytest.raises(
            ActorDiedError, match=in_words(r"exit_actor\(\) was called in Counter\.quit", r"exit_actor\(\) is called")
        ):
            get(ref)


@pytest.mark.parametrize("how", ["exit_actor", "sys.exit"])
def test_an_actor_that_ends_in_its_constructor_is_not_restarted(how, tally):
    actor = Leaving.options(max_restarts=3).remote(how, tally)
    with pytest.raises(ActorDiedError, match=r"exit_actor\(\) was called in the constructor of Leaving"):
        get(actor.leave.remote("not at all"))
    assert tally.notes == ["made", "at exit"]


def test_sys_exit_of_a_method_ends_the_actor_and_another_code_is_a_death(tally):
    actor = Leaving.options(max_restarts=3).remote("later", tally)
    assert get(actor.leave.remote("not at all")) is None
    with pytest.raises(ActorUnavailableError):
        get(actor.leave.remote("sys.exit", 3))
    assert get_when_up(lambda: actor.leave.remote("not at all")) is None
    with pytest.raises(ActorUnavailableError):
        get(actor.leave.remote("os._exit"))
    assert get_when_up(lambda: actor.leave.remote("not at all")) is None
    with pytest.raises(ActorDiedError, match=r"Leaving\.leave\. \(Or it was sys\.exit\(0\)"):
        get(actor.leave.remote("sys.exit"))
    assert tally.notes.count("made") == 3
    assert tally.notes[-1] == "at exit"


def test_ray_terminate_comes_after_the_calls_before_it():
    counter = Counter.options(num_cpus=1, max_restarts=-1).remote()
    before = [counter.slow.remote(0.02), counter.add.remote()]
    ended = counter.__ray_terminate__.remote()
    assert get(before) == [0, 1]
    with pytest.raises(ActorDiedError, match=in_words("__ray_terminate__", r"exit_actor\(\) is called")):
        get(ended)
    eventually(resources_are_free, "what the actor held is free, though a handle is left")


def test_an_actor_that_ends_while_another_caller_waits():
    @ray.remote
    def ask(counter, seconds):
        return ray.get(counter.slow.remote(seconds))

    counter, other = Counter.remote(), Counter.remote()
    get(counter.add.remote())
    asked = [ask.remote(counter, 0.05) for _ in range(2)]
    counter.quit_with_a_blocked_child.remote(other)
    late = ask.remote(counter, 0)
    with pytest.raises(ActorDiedError):
        get(late)
    for ref in asked:  # each has an answer or an error, whoever came first
        try:
            assert get(ref) == 1
        except ActorDiedError:
            pass
    assert get(other.add.remote()) == 1


@ray.remote(num_cpus=0)
class Leaver:
    """Ends in a task of its own event loop, which its constructor or a method creates."""

    def __init__(self, in_constructor=False):
        self.may_leave = asyncio.Event()
        self.task = asyncio.get_event_loop().create_task(self.leave()) if in_constructor else None

    async def leave(self):
        await self.may_leave.wait()
        ray.exit_actor()

    async def start(self):
        self.task = asyncio.create_task(self.leave())

    async def let_it(self):
        self.may_leave.set()

    async def end_with_it(self):
        self.may_leave.set()
        await self.task

    async def ping(self):
        return True


def ping_until_it_has_ended(actor):
    while True:
        with suppress(*([ActorUnavailableError] if is_on_ray() else [])):  # Ray says so of a call that it had sent
            get(actor.ping.remote())


@pytest.mark.parametrize("in_constructor", [False, True])
@pytest.mark.parametrize("ends", ["let_it", "end_with_it"])
def test_exit_actor_ends_the_actor_from_a_task_that_its_code_has_created(in_constructor, ends):
    actor = Leaver.remote(in_constructor)
    if not in_constructor:
        get(actor.start.remote())
    assert get(actor.ping.remote())
    ending = getattr(actor, ends).remote()
    with pytest.raises(ActorDiedError, match=in_words(r"exit_actor\(\) was called", r"exit_actor\(\) is called")):
        ping_until_it_has_ended(actor)
    if ends == "end_with_it":
        with pytest.raises(ActorDiedError):
            get(ending)


def test_exit_actor_outside_an_actor():
    with pytest.raises(TypeError, match=r"exit_actor\(\) was called outside an actor"):
        ray.exit_actor()
    with pytest.raises(TypeError, match="outside an actor"):
        get(exit_in_a_task.remote())


def test_max_pending_calls(gate: Gate):
    counter = Counter.options(max_pending_calls=3).remote()
    get(counter.add.remote())
    pending = [counter.hold.remote(gate) for _ in range(3)]
    with pytest.raises(PendingCallsLimitExceeded, match=r"Counter\.add: this process has 3 calls .*=3"):
        counter.add.remote()
    gate.open()
    assert get(pending) == [1, 1, 1]
    assert get([counter.add.remote() for _ in range(3)]) == [2, 3, 4]


def test_max_pending_calls_is_each_callers(gate: Gate):
    @ray.remote
    def fill(counter, filled):
        refs = [counter.hold.remote(gate) for _ in range(2)]
        try:
            counter.add.remote()
            said = "taken"
        except PendingCallsLimitExceeded:
            said = "refused"
        ray.get(filled.add.remote(said))
        ray.get(refs)

    filled = Notes.remote()
    counter = Counter.options(max_pending_calls=2).remote()
    mine = [counter.hold.remote(gate) for _ in range(2)]
    others = [fill.remote(counter, filled) for _ in range(2)]
    eventually(lambda: get(filled.read.remote()) == ["refused"] * 2, what="both tasks are refused a third call")
    gate.open()
    get(mine + others)


def test_max_pending_calls_goes_with_the_handle(gate: Gate):
    counter = Counter.options(max_pending_calls=2, name="limited").remote()
    found = ray.get_actor("limited")
    mine = [found.hold.remote(gate), counter.hold.remote(gate)]
    with pytest.raises(PendingCallsLimitExceeded):
        found.add.remote()
    gate.open()
    assert get(mine) == [0, 0]


def test_calls_that_fail_count_no_more():
    counter = Counter.options(max_pending_calls=1).remote()
    ray.kill(counter)
    for _ in range(3):
        with pytest.raises(ActorDiedError):
            get(counter.add.remote())


@ray.remote(num_cpus=0)
class Notes:
    def __init__(self):
        self.lines = []

    def add(self, line):
        self.lines.append(line)

    def read(self):
        return self.lines


@ray.remote(num_cpus=0)
class Cleaning:
    def __init__(self, notes):
        self.notes = notes
        atexit.register(self.note, "atexit")
        atexit.register(self.unregistered)
        atexit.unregister(self.unregistered)
        atexit.register(fail)

    def note(self, line):
        ray.get(self.notes.add.remote(line))

    def unregistered(self):
        self.note("unregistered")

    def exit(self):
        ray.actor.exit_actor()

    def __ray_shutdown__(self):
        self.note("shutdown")


@ray.remote(num_cpus=0)
class Registering:
    """It has no __ray_shutdown__."""

    def __init__(self, notes):
        atexit.register(lambda: ray.get(notes.add.remote("atexit")))

    def exit(self):
        ray.actor.exit_actor()


@ray.remote(num_cpus=0)
class Deleted:
    def __init__(self, tally):
        self.tally = tally
        atexit.register(tally.add, "atexit")

    def __del__(self):
        self.tally.add("del")

    def exit(self):
        ray.actor.exit_actor()

    def leave(self, code):
        sys.exit(code)

    def leave_at_once(self):
        os._exit(0)


def fail():
    raise ValueError("raised at exit")


def test_an_actor_cleans_up_when_it_ends_and_is_not_killed():
    def exit_actor(actor):
        ray.wait([actor.exit.remote()])

    def terminate(actor):
        ray.wait([actor.__ray_terminate__.remote()])

    def drop(actor):
        get(actor.__ray_ready__.remote())

    both = ["shutdown", "atexit"]
    for end, cls, noted in (
        (exit_actor, Cleaning, both),
        (terminate, Cleaning, both),
        (drop, Cleaning, both),
        (ray.kill, Cleaning, []),
        (exit_actor, Registering, ["atexit"]),
        (terminate, Registering, ["atexit"]),
    ):
        notes = Notes.remote()
        actor = cls.remote(notes)
        get(actor.__ray_ready__.remote())
        end(actor)
        del actor
        if noted:
            eventually(lambda notes=notes, noted=noted: get(notes.read.remote()) == noted, what="it cleans up")
        else:
            time.sleep(0.2)
            assert get(notes.read.remote()) == []


@pytest.mark.parametrize(
    ("end", "noted"),
    [
        (lambda actor: actor.exit.remote(), ["atexit", "del"]),
        (lambda actor: actor.__ray_terminate__.remote(), ["atexit", "del"]),
        (lambda actor: actor.leave.remote(0), ["atexit", "del"]),
        (lambda actor: actor.leave.remote(3), ["atexit", "del"]),
        (lambda actor: actor.leave.remote("why"), ["atexit", "del"]),
        (lambda actor: actor.__ray_ready__.remote(), ["atexit", "del"]),
        (lambda actor: actor.leave_at_once.remote(), []),
        (ray.kill, []),
    ],
    ids=["exit_actor", "terminate", "exit 0", "exit 3", "exit with words", "last handle", "os._exit", "kill"],
)
def test_an_actor_that_ends_and_is_not_killed_is_deleted(end, noted, tally):
    actor = Deleted.remote(tally)
    get(actor.__ray_ready__.remote())
    ref = end(actor)
    if ref is not None:
        ray.wait([ref], timeout=10)
    del actor, ref
    if noted:
        eventually(lambda: tally.notes == noted, what=f"it notes {noted}")
    else:
        time.sleep(0.2)
        assert tally.notes == []


def test_the_errors_of_an_actor_that_has_ended_name_it():
    counter = Counter.remote()
    get(counter.add.remote())
    ray.kill(counter)
    with pytest.raises(ActorDiedError, match=r"it was killed by `ray\.kill`") as caught:
        get(counter.add.remote())
    assert caught.value.actor_id == counter._actor_id.hex()
    assert pickle.loads(pickle.dumps(caught.value)).actor_id == counter._actor_id.hex()
