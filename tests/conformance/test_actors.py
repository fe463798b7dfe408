from __future__ import annotations

import decimal
import time

import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, ActorError, DualrayError, TaskError
from tests.conformance.support import MIB, eventually, get, in_words, mark_of_process, resources_are_free

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
class Counter:
    """Counts."""

    def __init__(self, start=0, *, step=1):
        self.n = start
        self.step = step

    def add(self):
        self.n += self.step
        return self.n

    def fail(self):
        raise ValueError(f"at {self.n}")

    def slow_add(self, seconds):
        before = self.n
        time.sleep(seconds)
        self.n = before + self.step
        return self.n

    def where(self):
        return mark_of_process()


@ray.remote
class Log:
    def __init__(self):
        self.entries = []

    def append(self, entry, *_):
        self.entries.append(entry)

    def read(self):
        return self.entries


class Animal:
    kind = "animal"

    def __init__(self, name):
        self.name = name

    def describe(self):
        return f"{self.name} the {self.kind}"

    def speak(self):
        return "..."


class Dog(Animal):
    kind = "dog"

    def speak(self):
        return super().speak() + "woof"

    @staticmethod
    def legs():
        return 4

    @classmethod
    def kind_of(cls):
        return cls.kind

    @ray.method(num_returns=2)
    def pair(self):
        return self.name, self.kind

    @ray.method(num_returns=0)
    def nothing(self):
        self.name = "changed"

    def _hidden(self):
        return "hidden"

    def __call__(self, x):
        return x + 1


@ray.remote
def add_through(counter, times=1):
    return [ray.get(counter.add.remote(), timeout=10) for _ in range(times)][-1]


@ray.remote
def slow(value):
    time.sleep(0.2)
    return value


# ---- State and calls -----------------------------------------------------------------------------------------------


def test_an_actor_keeps_its_state_between_calls():
    counter = Counter.remote()
    assert [get(counter.add.remote()) for _ in range(3)] == [1, 2, 3]


def test_each_actor_has_a_state_and_a_process_of_its_own():
    a, b = Counter.remote(), Counter.remote(100)
    assert get([a.add.remote(), b.add.remote(), a.add.remote()]) == [1, 101, 2]
    assert get(a.where.remote()) != get(b.where.remote())
    assert get(a.where.remote()) == get(a.where.remote())


def test_constructor_arguments_may_be_references():
    assert get(Counter.remote(slow.remote(5), step=ray.put(2)).add.remote()) == 7


def test_ten_actors_that_name_no_resources_live_on_few_cpus():
    counters = [Counter.remote(index) for index in range(6)]
    assert get([counter.add.remote() for counter in counters]) == [1, 2, 3, 4, 5, 6]


def test_calls_of_one_caller_start_in_the_order_in_which_they_were_made():
    log = Log.remote()
    for index in range(100):
        log.append.remote(index)
    assert get(log.read.remote()) == list(range(100))


def test_a_call_whose_argument_is_late_holds_back_those_behind_it():
    log = Log.remote()
    log.append.remote("first", slow.remote(None))
    log.append.remote("second")
    assert get(log.read.remote()) == ["first", "second"]


def test_each_of_several_callers_has_its_order():
    @ray.remote
    def write(log, who, count):
        ray.get([log.append.remote((who, index)) for index in range(count)], timeout=10)

    log = Log.remote()
    get([write.remote(log, who, 30) for who in "ab"])
    entries = get(log.read.remote())
    for who in "ab":
        assert [index for name, index in entries if name == who] == list(range(30))


def test_an_actor_does_one_thing_at_a_time():
    counter = Counter.remote()
    assert sorted(get([counter.slow_add.remote(0.02) for _ in range(5)])) == [1, 2, 3, 4, 5]


def test_a_method_that_raises_does_not_end_the_actor():
    counter = Counter.remote()
    get(counter.add.remote())
    with pytest.raises(ValueError, match="at 1") as caught:
        get(counter.fail.remote())
    assert isinstance(caught.value, TaskError)
    assert caught.value.function_name == "Counter.fail"
    assert get(counter.add.remote()) == 2


def test_large_arguments_and_results_go_through_an_actor():
    log = Log.remote()
    log.append.remote(b"a" * MIB)
    log.append.remote(ray.put(b"b" * MIB))
    assert get(log.read.remote()) == [b"a" * MIB, b"b" * MIB]


# ---- Methods -------------------------------------------------------------------------------------------------------


def test_methods_are_inherited_overridden_static_and_of_the_class():
    dog = ray.remote(Dog).remote("Rex")
    assert get(dog.describe.remote()) == "Rex the dog"
    assert get(dog.speak.remote()) == "...woof"
    assert get(dog.legs.remote()) == 4
    assert get(dog.kind_of.remote()) == "dog"
    assert get(dog._hidden.remote()) == "hidden"
    assert get(dog.__call__.remote(1)) == 2


def test_num_returns_of_a_method():
    dog = ray.remote(Dog).remote("Rex")
    name, kind = dog.pair.remote()
    assert get([name, kind]) == ["Rex", "dog"]
    assert get(dog.pair.options(num_returns=1).remote()) == ("Rex", "dog")
    assert dog.nothing.remote() is None
    assert get(dog.describe.remote()) == "changed the dog"


def test_a_method_that_returns_a_wrong_number_of_values():
    dog = ray.remote(Dog).remote("Rex")
    for ref in dog.pair.options(num_returns=3).remote():
        with pytest.raises(ValueError, match=r"Dog\.pair has num_returns=3, but returned 2 values"):
            get(ref)


def test_a_methods_duration_is_said_where_it_is_defined():
    dog = ray.remote(Dog).remote("Rex")
    with pytest.raises(ValueError, match=r"cannot set duration=2. To set the duration, put @dualray.method"):
        dog.pair.options(duration=2)


def test_a_method_that_does_not_exist_names_the_nearest():
    dog = ray.remote(Dog).remote("Rex")
    with pytest.raises(AttributeError, match=r"has no method 'speek'.*Did you mean 'speak'"):
        dog.speek.remote()


def test_calling_directly_says_how_to_call():
    with pytest.raises(TypeError, match=r"Counter is an actor class: to create an actor, call Counter\.remote"):
        Counter()
    counter = Counter.remote()
    with pytest.raises(TypeError, match=r"call it with \.add\.remote"):
        counter.add()


def test_a_class_keeps_its_docstring_and_can_be_made_remote_with_options():
    assert Counter.__doc__ == "Counts."
    assert get(ray.remote(num_cpus=1)(Dog).remote("Rex").legs.remote()) == 4
    assert get(Counter.options(name="other").remote().add.remote()) == 1


# ---- Handles -------------------------------------------------------------------------------------------------------


def test_a_handle_can_be_passed_to_tasks():
    counter = Counter.remote()
    assert get(add_through.remote(counter, 2)) == 2
    get([add_through.remote(counter) for _ in range(4)])
    assert get(counter.add.remote()) == 7


def test_a_handle_can_be_passed_inside_other_values_and_to_actors():
    @ray.remote
    class Caller:
        def keep(self, table):
            self.counter = table["counter"][0]

        def call(self):
            return ray.get(self.counter.add.remote(), timeout=10)

    counter, caller = Counter.remote(), Caller.remote()
    get(caller.keep.remote({"counter": [counter]}))
    assert get(caller.call.remote()) == 1
    assert get(counter.add.remote()) == 2
    del counter
    assert get(caller.call.remote()) == 3


def test_a_handle_can_be_returned_and_put():
    @ray.remote
    def give_back(counter):
        return counter

    counter = Counter.remote()
    same = get(give_back.remote(counter))
    assert same == counter
    assert hash(same) == hash(counter)
    assert get(get(ray.put([counter]))[0].add.remote()) == 1
    assert get(same.add.remote()) == 2


def test_an_actor_may_make_actors_of_its_own_class():
    @ray.remote(num_cpus=0)
    class Branch:
        def __init__(self, depth):
            self.below = Branch.remote(depth - 1) if depth else None

        def depth(self):
            return 1 + get(self.below.depth.remote()) if self.below else 0

    assert get(Branch.remote(2).depth.remote()) == 2


def test_an_actor_may_make_actors():
    @ray.remote
    class Parent:
        def __init__(self):
            self.children = [Counter.remote(10 * index) for index in range(2)]

        def add_all(self):
            return ray.get([child.add.remote() for child in self.children], timeout=10)

        def child(self):
            return self.children[1]

    parent = Parent.remote()
    assert get(parent.add_all.remote()) == [1, 11]
    child = get(parent.child.remote())
    assert get(child.add.remote()) == 12


def test_an_actor_ends_when_its_last_handle_goes():
    counter = Counter.options(num_cpus=1).remote()
    get(counter.add.remote())
    eventually(lambda: resources_are_free(CPU=1), "the actor holds its CPU")
    same = counter
    del counter
    assert get(same.add.remote()) == 2
    del same
    eventually(resources_are_free, "the actor's CPU is free again")


def test_calls_that_were_made_are_done_though_the_handle_is_gone():
    ref = Counter.remote().slow_add.remote(0.1)
    assert get(ref) == 1
    refs = [Counter.remote(index).add.remote() for index in range(3)]
    assert get(refs) == [1, 2, 3]


def test_a_handle_in_a_stored_value_keeps_the_actor():
    box = ray.put({"counter": Counter.remote()})
    time.sleep(0.1)
    assert get(get(box)["counter"].add.remote()) == 1
    assert get(get(box)["counter"].add.remote()) == 2


def test_a_handle_that_a_running_task_has_keeps_the_actor(gate):
    @ray.remote
    def later(counter):
        gate.wait()
        return ray.get(counter.add.remote(), timeout=10)

    counter = Counter.remote()
    get(counter.add.remote())
    ref = later.remote(counter)
    del counter
    time.sleep(0.1)
    gate.open()
    assert get(ref) == 2


# ---- Constructors that fail ----------------------------------------------------------------------------------------


def test_a_constructor_that_raises_is_told_by_every_call():
    @ray.remote
    class Broken:
        def __init__(self, why):
            raise RuntimeError(f"no good: {why}")

        def method(self):
            return 1

    broken = Broken.remote("the reason")
    for _ in range(2):
        with pytest.raises(ActorDiedError) as caught:
            get(broken.method.remote())
        message = str(caught.value)
        assert "Broken" in message
        assert "RuntimeError: no good: the reason" in message
        assert "in __init__" in message
    assert isinstance(caught.value, ActorError)
    assert isinstance(caught.value, DualrayError)


def test_a_constructor_argument_that_failed_is_told_by_every_call():
    @ray.remote
    def fail():
        raise KeyError("the argument")

    counter = Counter.remote(fail.remote())
    with pytest.raises(
        ActorDiedError, match=in_words(r"(?s)an argument failed.*KeyError: 'the argument'", "KeyError: 'the argument'")
    ) as caught:
        get(counter.add.remote())
    assert in_words("was not created") in str(caught.value)


@ray.remote
class Named:
    def name(self):
        return ray.get_runtime_context().get_task_name()

    def fail(self):
        raise ValueError("no")


def test_a_name_is_what_a_call_and_its_errors_are_called():
    actor = Named.remote()
    names = [actor.name.options(name="good").remote(), actor.name.remote(), actor.name.options(name="a.b").remote()]
    assert get(names) == ["good", "Named.name", "a.b"]
    with pytest.raises(TaskError, match=r"good raised"):
        get(actor.fail.options(name="good").remote())


@ray.remote
class Rounding:
    def __init__(self, digits):
        decimal.getcontext().prec = digits

    def third(self):
        return str(decimal.Decimal(1) / 3)

    def set(self, digits):
        decimal.getcontext().prec = digits


def test_calls_of_an_actor_share_the_context_of_its_thread():
    """The precision of decimal numbers, for example: the next call sees what the constructor or a call has set."""
    actor, other = Rounding.remote(6), Rounding.remote(3)
    assert get(actor.third.remote()) == "0.333333"
    get(actor.set.remote(4))
    assert get([actor.third.remote(), other.third.remote()]) == ["0.3333", "0.333"]
    ray.kill(actor)
    ray.kill(other)
    assert decimal.getcontext().prec == 28
