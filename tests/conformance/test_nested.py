from __future__ import annotations

import os

import pytest

import dualray as ray
from tests.conformance.support import WITHIN_S, eventually, get

CLUSTER = {"nodes": 1}
pytestmark = pytest.mark.usefixtures("cluster")

LIMIT_S = WITHIN_S / 2  # of a get inside a task: it fails before the driver's does, and says where it waited


@ray.remote
def fibonacci(n):
    if n < 2:
        return n
    return sum(ray.get([fibonacci.remote(n - 1), fibonacci.remote(n - 2)], timeout=LIMIT_S))


@ray.remote
def depth(n):
    return 0 if n == 0 else 1 + ray.get(depth.remote(n - 1), timeout=LIMIT_S)


@ray.remote
def total(parts):
    """A tree of tasks: each half of the parts is summed by a task of its own."""
    if len(parts) <= 2:
        return sum(parts)
    half = len(parts) // 2
    return sum(ray.get([total.remote(parts[:half]), total.remote(parts[half:])], timeout=LIMIT_S))


@ray.remote
def square(x):
    return x * x


def test_recursion_does_not_deadlock_on_two_cpus():
    assert get(fibonacci.remote(5)) == 5


def test_a_chain_of_blocked_parents_may_be_deeper_than_there_are_cpus():
    assert get(depth.remote(8)) == 8


def test_a_tree_of_tasks():
    assert get(total.remote(list(range(16)))) == 120


def test_more_blocked_parents_than_cpus():
    @ray.remote
    def parent(x):
        return ray.get(square.remote(x), timeout=LIMIT_S)

    assert get([parent.remote(x) for x in range(8)]) == [x * x for x in range(8)]


@pytest.mark.parametrize("verb", ["get", "wait"])
def test_a_blocked_task_gives_its_cpus_back(verb):
    @ray.remote(num_cpus=2)
    def child():
        return "ran"

    @ray.remote(num_cpus=2)
    def parent():
        ref = child.remote()
        if verb == "wait":
            ready, _ = ray.wait([ref], timeout=LIMIT_S)
            assert ready == [ref]
        return ray.get(ref, timeout=LIMIT_S)

    assert get(parent.remote()) == "ran"


def test_a_task_that_was_blocked_takes_its_cpus_again():
    @ray.remote(num_cpus=2)
    def parent():
        ray.get(square.remote(1), timeout=LIMIT_S)
        eventually(lambda: "CPU" not in ray.available_resources(), "the parent's CPUs are taken again", LIMIT_S)

    get(parent.remote())


def test_an_actor_may_wait_for_tasks():
    @ray.remote(num_cpus=1)
    class Worker:
        def squares(self, count):
            return ray.get([square.remote(x) for x in range(count)], timeout=LIMIT_S)

    assert get(Worker.remote().squares.remote(4)) == [0, 1, 4, 9]


def test_an_actor_keeps_its_cpus_while_a_method_waits():
    @ray.remote(num_cpus=2)
    class Holder:
        def ask(self):
            return ray.get(square.remote(3))

    holder = Holder.remote()
    asked = holder.ask.remote()
    assert ray.wait([asked], timeout=1)[0] == []
    ray.kill(holder)
    assert get(square.remote(4)) == 16


def test_a_task_may_return_the_reference_of_its_child():
    @ray.remote
    def parent():
        return square.remote(6)

    inner = get(parent.remote())
    assert isinstance(inner, ray.ObjectRef)
    assert get(inner) == 36


def test_children_outlive_a_parent_that_does_not_wait_for_them(gate):
    @ray.remote
    def child():
        gate.wait()
        return "done"

    @ray.remote
    def parent():
        return [child.remote()]

    [ref] = get(parent.remote())
    assert ray.wait([ref], timeout=0.1) == ([], [ref])
    gate.open()
    assert get(ref) == "done"


def test_a_remote_function_may_be_defined_in_a_task():
    @ray.remote
    def outer(x):
        @ray.remote
        def inner(y):
            return x + y

        return ray.get([inner.remote(y) for y in range(3)], timeout=LIMIT_S)

    assert get(outer.remote(10)) == [10, 11, 12]


def test_a_task_may_make_an_actor_and_return_its_handle():
    @ray.remote
    class Counter:
        def __init__(self):
            self.n = 0

        def add(self):
            self.n += 1
            return self.n

    @ray.remote
    def make():
        counter = Counter.remote()
        ray.get(counter.add.remote(), timeout=LIMIT_S)
        return counter

    counter = get(make.remote())
    assert get(counter.add.remote()) == 2


def test_a_get_of_borrowed_values_that_are_on_the_node_starts_no_further_worker():
    refs = [ray.put(bytes(1 << 20)) for _ in range(10)]

    @ray.remote
    def consume(refs):
        return os.getpid(), sum(map(len, ray.get(refs, timeout=LIMIT_S)))

    results = get([consume.remote(refs) for _ in range(10)])
    assert {total for _, total in results} == {10 << 20}
    assert len({pid for pid, _ in results}) <= 2
