from __future__ import annotations

import os
import pickle
import time

import pytest

import dualray as ray
from dualray.exceptions import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ActorError,
    ActorHandleNotFoundError,
)
from dualray.util import list_named_actors
from tests.conformance.support import eventually, get, in_words

CLUSTER = {"namespace": "shop"}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
class Counter:
    def __init__(self, start=0):
        self.n = start

    def add(self):
        self.n += 1
        return self.n

    def slow(self, seconds):
        time.sleep(seconds)
        return self.n

    def names(self):
        context = ray.get_runtime_context()
        return context.get_actor_name(), context.namespace

    @ray.method(num_returns=2)
    def pair(self):
        return 1, 2

    def make(self, name, **options):
        return Counter.options(name=name, **options).remote(50)

    def leave(self):
        os._exit(1)

    def myself(self):
        return ray.get_runtime_context().current_actor


@ray.remote
def add_with(handles):
    return ray.get(handles[0].add.remote())


@ray.remote
def add_by_name(name, namespace=None):
    return ray.get(ray.get_actor(name, namespace).add.remote())


@ray.remote
def namespace_of_a_task():
    context = ray.get_runtime_context()
    return context.namespace, context.get_actor_name()


@ray.remote
def make_and_leave(name, lifetime=None):
    counter = Counter.options(name=name, lifetime=lifetime).remote(10)
    return ray.get(counter.add.remote())


@ray.remote
def slow_value(value):
    time.sleep(0.2)
    return value


def is_free(name):
    try:
        ray.get_actor(name)
    except ValueError:
        return True
    return False


def can_have(name):
    """Whether a new actor can have the name; it ends."""
    try:
        counter = Counter.options(name=name).remote()
    except ValueError:
        return False
    get(counter.add.remote())
    end(counter)
    return True


def end(*handles):
    for handle in handles:
        ray.kill(handle)
    del handle, handles
    eventually(lambda: not list_named_actors(all_namespaces=True), "the names are free again")


def test_an_actor_is_found_by_its_name():
    counter = Counter.options(name="found").remote()
    get(counter.add.remote())
    other = ray.get_actor("found")
    assert get(other.add.remote()) == 2
    assert other == counter
    assert get(list(other.pair.remote())) == [1, 2]
    assert get(add_by_name.remote("found")) == 3
    end(counter)


def test_a_name_that_is_taken():
    counter = Counter.options(name="taken").remote()
    with pytest.raises(
        ValueError, match=in_words(r"'taken' is already taken in namespace 'shop', by actor Counter", "taken")
    ) as caught:
        Counter.options(name="taken").remote()
    assert isinstance(caught.value, ActorAlreadyExistsError)
    assert not isinstance(caught.value, ActorError)  # as in Ray
    other = Counter.options(name="taken", namespace="elsewhere").remote(5)
    assert get([counter.add.remote(), other.add.remote()]) == [1, 6]
    end(counter, other)


def test_a_name_that_nobody_has_names_the_nearest():
    counter = Counter.options(name="parameters").remote()
    with pytest.raises(
        ValueError, match=r"look up actor with name 'paramters' .* Did you mean 'parameters'\?"
    ) as caught:
        ray.get_actor("paramters")
    assert isinstance(caught.value, ActorHandleNotFoundError)
    with pytest.raises(ValueError, match=r"Namespace 'shop' has an actor with this name"):
        ray.get_actor("parameters", namespace="other")
    with pytest.raises(ValueError, match=r"Names of actors in this namespace: parameters"):
        ray.get_actor("xyz")
    end(counter)


def test_get_if_exists_makes_one_and_finds_it():
    options = {"name": "shared", "get_if_exists": True}
    first, second = Counter.options(**options).remote(), Counter.options(**options).remote(100)
    assert first == second
    assert get([first.add.remote(), second.add.remote()]) == [1, 2]
    end(first)


def test_one_of_many_that_want_the_same_name_gets_it():
    @ray.remote
    def join(name):
        counter = Counter.options(name=name, get_if_exists=True, lifetime="detached").remote()
        return ray.get(counter.add.remote())

    assert sorted(get([join.remote("race") for _ in range(6)])) == [1, 2, 3, 4, 5, 6]
    end(ray.get_actor("race"))


def test_a_name_stands_for_the_actor_from_the_start():
    counter = Counter.options(name="late").remote(slow_value.remote(7))
    assert get(ray.get_actor("late").add.remote()) == 8
    end(counter)


def test_a_name_is_free_when_its_actor_has_ended():
    counter = Counter.options(name="again").remote()
    get(counter.add.remote())
    ray.kill(counter)
    counter = Counter.options(name="again").remote(5)  # the kill was first
    assert get(counter.add.remote()) == 6
    get(counter.add.remote())
    del counter
    eventually(lambda: is_free("again"), "the name is free, for the last handle is gone")


def is_taken(name):
    """Whether a new actor cannot have the name, for an actor that was lost still has handles."""
    with pytest.raises(ValueError, match=in_words(r"taken .* its handles still hold the name", "taken")):
        Counter.options(name=name, get_if_exists=False).remote()
    return True


def test_a_lost_actor_keeps_its_name_until_its_last_handle_is_gone():
    counter = Counter.options(name="lost").remote()
    with pytest.raises(ActorDiedError):
        get(counter.leave.remote())
    assert list_named_actors() == []
    assert is_taken("lost")
    for found in (ray.get_actor("lost"), Counter.options(name="lost", get_if_exists=True).remote()):
        assert found == counter
        with pytest.raises(ActorDiedError):
            get(found.add.remote())
    del counter, found
    eventually(lambda: can_have("lost"), "its last handle is gone")


def test_kill_frees_the_name_of_a_lost_actor():
    counter = Counter.options(name="killed").remote()
    with pytest.raises(ActorDiedError):
        get(counter.leave.remote())
    assert is_taken("killed")
    ray.kill(counter)
    eventually(lambda: can_have("killed"), "the actor was killed")


def test_a_lost_detached_actor_frees_its_name():
    counter = Counter.options(name="apart", lifetime="detached").remote()
    with pytest.raises(ActorDiedError):
        get(counter.leave.remote())
    eventually(lambda: can_have("apart"), "no handle keeps a detached actor")


def test_a_handle_that_was_found_does_not_keep_the_actor():
    counter = Counter.options(name="kept").remote()
    found = ray.get_actor("kept")
    shared = Counter.options(name="kept", get_if_exists=True).remote()
    assert get([counter.add.remote(), found.add.remote(), shared.add.remote()]) == [1, 2, 3]
    again = pickle.loads(pickle.dumps(found))
    assert get(again.add.remote()) == 4
    del shared
    assert get(counter.add.remote()) == 5, "a weak handle that goes takes nothing with it"
    del counter
    eventually(lambda: is_free("kept"), "its last handle that counts is gone")
    for handle in (found, again):
        with pytest.raises(ActorDiedError, match="all references to the actor were removed"):
            get(handle.add.remote())


def test_an_actors_handle_to_itself_does_not_keep_it():
    counter = Counter.options(name="itself").remote()
    itself = get(counter.myself.remote())
    assert get(itself.add.remote()) == 1
    del counter
    eventually(lambda: is_free("itself"), "its last handle that counts is gone")
    with pytest.raises(ActorDiedError):
        get(itself.add.remote())


def test_a_handle_that_was_found_can_be_passed_on():
    counter = Counter.options(name="passed").remote()
    assert get(add_with.remote([ray.get_actor("passed")])) == 1
    assert get(add_with.remote([counter])) == 2
    end(counter)


def test_an_actor_whose_constructor_raises_frees_its_name():
    class Broken:
        def __init__(self):
            raise RuntimeError("broken")

        def ping(self):
            return 1

    broken = ray.remote(Broken).options(name="broken").remote()
    with pytest.raises(ActorDiedError, match="broken"):
        get(broken.ping.remote())
    assert is_free("broken")
    failed = ray.remote(Broken).options(name="broken").remote()
    with pytest.raises(ActorDiedError):
        get(failed.ping.remote())


def test_a_detached_actor_outlives_its_maker_and_its_handles():
    assert get(make_and_leave.remote("stays", "detached")) == 11
    maker = Counter.remote()
    made = get(maker.make.remote("from_actor", lifetime="detached"))
    get(made.add.remote())
    ray.kill(maker)
    del made
    assert get(add_by_name.remote("stays")) == 12
    assert get(add_by_name.remote("from_actor")) == 52
    end(ray.get_actor("stays"), ray.get_actor("from_actor"))


def test_an_actor_that_is_not_detached_ends_with_its_maker():
    maker = Counter.remote()
    made = get(maker.make.remote("goes"))
    assert get(made.add.remote()) == 51
    ray.kill(maker)
    with pytest.raises(ActorDiedError, match=in_words("its owner has died", "owner.*died")):
        get([made.slow.remote(0.05) for _ in range(40)])
    eventually(lambda: is_free("goes"), "the name is free")
    assert get(make_and_leave.remote("local")) == 11
    eventually(lambda: is_free("local"), "the task's handle was the last one")


def test_a_detached_actor_without_a_name_is_kept_too():
    counter = Counter.options(lifetime="detached").remote()
    assert get(counter.add.remote()) == 1
    ray.kill(counter)
    with pytest.raises(ActorDiedError, match="killed"):
        get(counter.add.remote())


def test_the_name_stays_while_the_actor_restarts():
    counter = Counter.options(name="phoenix", max_restarts=1, max_task_retries=1).remote(3)
    assert get(counter.add.remote()) == 4
    ray.kill(counter, no_restart=False)
    with pytest.raises(ValueError, match="taken"):
        Counter.options(name="phoenix").remote()
    eventually(lambda: get(ray.get_actor("phoenix").add.remote()) == 4, "its next life counts from the start")
    end(counter)


def test_a_detached_actor_restarts_without_its_maker():
    get(make_and_leave.remote("none", None))

    @ray.remote
    def make():
        Counter.options(name="reborn", lifetime="detached", max_restarts=-1, max_task_retries=-1).remote(ray.put(20))
        return ray.get(ray.get_actor("reborn").add.remote())

    assert get(make.remote()) == 21
    ray.kill(ray.get_actor("reborn"), no_restart=False)
    eventually(lambda: get(add_by_name.remote("reborn")) >= 21, "it counts on")
    end(ray.get_actor("reborn"))


def test_the_context_knows_name_and_namespace():
    assert ray.get_runtime_context().namespace == "shop"
    assert ray.get_runtime_context().get_actor_name() is None
    assert get(namespace_of_a_task.remote()) == ("shop", None)
    named = Counter.options(name="n", namespace="garden").remote()
    plain = Counter.remote()
    assert get(named.names.remote()) == ("n", "shop")
    assert get(plain.names.remote()) == ("", "shop")
    made = get(named.make.remote("child"))  # in the namespace of its job
    assert get(add_by_name.remote("child", "shop")) == 51
    end(made, named)


def test_named_actors_are_listed():
    assert list_named_actors() == []
    a, b = Counter.options(name="a").remote(), Counter.options(name="b", namespace="garden").remote()
    assert list_named_actors() == ["a"]
    assert list_named_actors(all_namespaces=True) == [
        {"name": "a", "namespace": "shop"},
        {"name": "b", "namespace": "garden"},
    ]
    end(a, b)


def test_options_that_an_actor_cannot_have():
    for options, error in (
        ({"name": ""}, r"name='' is not allowed, because an Actor name cannot be an empty string"),
        ({"namespace": ""}, r"namespace='' is not allowed"),
        ({"lifetime": "forever"}, r"lifetime='forever' must be 'detached'"),
        ({"get_if_exists": True}, r"get_if_exists=True needs name="),
        ({"max_pending_calls": -2}, r"max_pending_calls=-2 must be at least 1"),
    ):
        with pytest.raises(ValueError, match=error):
            Counter.options(**options).remote()
    for options in ({"name": 3}, {"namespace": 3}, {"get_if_exists": 1, "name": "x"}, {"max_pending_calls": "1"}):
        with pytest.raises(TypeError, match="must be"):
            Counter.options(**options)
    for name in (None, 3):
        with pytest.raises(TypeError, match="must be a str"):
            ray.get_actor(name)
    with pytest.raises(ValueError, match="must not be empty"):
        ray.get_actor("")
