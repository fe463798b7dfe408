"""Generators as tasks and as methods: items come as they are made, errors in the middle, consumers that stop."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    SerializationError,
    TaskCancelledError,
    WorkerCrashedError,
)
from dualray.util.state import list_objects
from tests.conformance.support import MIB, Gate, Tally, eventually, get, in_words

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def count(items, tally=None):
    for item in range(items):
        if tally is not None:
            tally.add(item)
        yield item


@ray.remote
def held(gate, items=3):
    """The first item at once, the others behind the gate."""
    yield 0
    gate.wait()
    yield from range(1, items)


@ray.remote
def arrays(items, megabytes=1):
    for item in range(items):
        yield np.full(megabytes * MIB // 8, item)


@ray.remote
def broken(items, error):
    yield from range(items)
    raise error


@ray.remote
def add(*values):
    return sum(values)


def values_of(generator):
    return [get(ref) for ref in generator]


# ---- Items -----------------------------------------------------------------------------------------------------------


def test_a_generator_function_streams():
    generator = count.remote(4)
    assert isinstance(generator, ray.ObjectRefGenerator)
    refs = list(generator)
    assert all(isinstance(ref, ray.ObjectRef) for ref in refs)
    assert len(set(refs)) == 4
    assert get(refs) == [0, 1, 2, 3]
    with pytest.raises(StopIteration):
        next(generator)


def test_one_that_yields_nothing():
    generator = count.remote(0)
    assert list(generator) == []
    assert generator.is_finished()


def test_items_are_there_before_the_generator_has_ended(gate: Gate):
    generator = held.remote(gate)
    assert get(next(generator)) == 0
    assert generator._next_sync(timeout_s=0.05) is None
    assert not generator.is_finished()
    gate.open()
    assert values_of(generator) == [1, 2]
    assert generator.is_finished()


def test_large_items_and_none():
    @ray.remote
    def mixed():
        yield np.arange(MIB)
        yield None
        yield {"a": np.ones(MIB)}

    first, nothing, last = mixed.remote()
    assert get(first)[-1] == MIB - 1
    assert get(nothing) is None
    assert get(last)["a"].sum() == MIB


def test_items_are_arguments_and_can_be_passed_on():
    @ray.remote
    def read(refs):
        return ray.get(refs)

    refs = list(count.remote(3))
    assert get(add.remote(*refs)) == 3
    assert get(read.remote(refs)) == [0, 1, 2]


def test_items_may_hold_references():
    @ray.remote
    def boxes():
        for item in range(3):
            yield [ray.put(item)]

    assert [get(get(ref)[0]) for ref in boxes.remote()] == [0, 1, 2]


def test_a_generator_passes_references_on_that_it_was_given():
    @ray.remote
    def relay(refs):
        yield from refs

    inner = [ray.put("a"), add.remote(1, 2)]
    outer = list(relay.remote(inner))
    assert [get(get(ref)) for ref in outer] == ["a", 3]


def test_num_returns_streaming_takes_any_iterator_and_nothing_else():
    @ray.remote(num_returns="streaming")
    def letters():
        return iter("ab")

    @ray.remote(num_returns="streaming")
    def listed():
        return [1, 2]

    assert values_of(letters.remote()) == ["a", "b"]
    [only] = listed.remote()
    with pytest.raises(TypeError, match="listed has num_returns='streaming', but returned a list, not a generator"):
        get(only)


def test_a_number_of_returns_splits_a_generator():
    assert get(count.options(num_returns=3).remote(3)) == [0, 1, 2]


def test_options_that_no_generator_can_have():
    with pytest.raises(ValueError, match="'streaming' or 'dynamic'"):
        count.options(num_returns="stream")
    with pytest.raises(ValueError, match="works only for generators, but num_returns is 1"):
        add.options(_generator_backpressure_num_objects=2).remote()
    with pytest.raises(ValueError, match="backpressure_num_objects=0 is not allowed"):
        count.options(_generator_backpressure_num_objects=0)


def test_completed_is_ready_at_the_end(gate: Gate):
    generator = held.remote(gate)
    with pytest.raises(GetTimeoutError):
        ray.get(generator.completed(), timeout=0.05)
    gate.open()
    assert get(generator.completed()) is None
    assert values_of(generator) == [0, 1, 2]


def test_get_gives_the_generator_back_and_wait_looks_at_its_next_item(gate: Gate):
    slow, done = held.remote(gate), count.remote(1)
    assert ray.get(slow) is slow
    next(slow)
    ready, rest = ray.wait([slow, done], num_returns=1, timeout=20)
    assert (ready, rest) == ([done], [slow])
    gate.open()
    ready, rest = ray.wait([slow, done], num_returns=2, timeout=20)
    assert ready == [slow, done]
    assert values_of(done) == [0]
    ready, _ = ray.wait([done], timeout=20)  # it has ended: `next` would not wait
    assert ready == [done]


def test_next_ready(gate: Gate):
    generator = held.remote(gate, items=1)
    get(next(generator))
    assert not generator.next_ready()
    gate.open()
    get(generator.completed())
    assert not generator.next_ready()  # as in Ray
    assert list(generator) == []
    assert not generator.next_ready()
    eventually(count.remote(1).next_ready, "its item is there")


def test_nested_generators():
    @ray.remote(num_cpus=0)
    def twice(items):
        for ref in count.options(num_cpus=0).remote(items):
            yield 2 * ray.get(ref)

    assert values_of(twice.remote(4)) == [0, 2, 4, 6]


def test_a_generator_cannot_be_passed_on_or_put():
    generator = count.remote(2)
    with pytest.raises((SerializationError, TypeError), match="cannot be passed to another process"):
        add.remote(generator)
    with pytest.raises((SerializationError, TypeError), match="cannot be passed to another process"):
        ray.put(generator)
    assert values_of(generator) == [0, 1]


def test_async_for():
    async def read():
        return [await ref async for ref in count.remote(4)]

    assert asyncio.run(read()) == [0, 1, 2, 3]


# ---- Errors ----------------------------------------------------------------------------------------------------------


def test_an_error_in_the_middle_is_the_next_item():
    generator = broken.remote(2, ValueError("half way"))
    first, second, failing = list(generator)
    assert get([first, second]) == [0, 1]
    with pytest.raises(ValueError, match="half way"):
        get(failing)
    with pytest.raises(ValueError, match="half way"):
        get(generator.completed())


def test_an_error_before_the_first_item():
    [failing] = broken.remote(0, KeyError("none"))
    with pytest.raises(KeyError):
        get(failing)


def test_an_item_that_cannot_be_pickled():
    @ray.remote
    def bad():
        yield 1
        yield (item for item in "ab")

    first, failing = bad.remote()
    assert get(first) == 1
    with pytest.raises(Exception, match=in_words("item 1 of bad", "cannot pickle")):
        get(failing)


def test_retry_exceptions_gives_no_item_twice(tally: Tally):
    @ray.remote(retry_exceptions=True, max_retries=2)
    def flaky():
        attempt = tally.add()
        yield "a"
        yield "b"
        if attempt < 3:
            raise ValueError(attempt)
        yield "c"

    assert values_of(flaky.remote()) == ["a", "b", "c"]
    assert tally.count == 3


def test_a_failed_argument_is_the_first_item():
    @ray.remote
    def fail():
        raise ValueError("argument")

    [failing] = count.remote(fail.remote())
    with pytest.raises(ValueError, match="argument"):
        get(failing)


# ---- Deaths ----------------------------------------------------------------------------------------------------------


def test_the_death_of_the_worker_gives_no_item_twice(tally: Tally):
    @ray.remote(max_retries=1)
    def dies():
        first_time = tally.add() == 1
        yield "a"
        yield np.full(MIB, 7)
        if first_time:
            time.sleep(0.2)
            os._exit(3)
        yield "c"

    generator = dies.remote()
    first, second = next(generator), next(generator)
    assert get(first) == "a"
    assert [get(ref) for ref in generator] == ["c"]
    assert get(second)[0] == 7
    assert tally.count == 2
    assert [first.hex()[-8:], second.hex()[-8:]] == ["00000001", "00000002"]


def test_without_retries_the_death_of_the_worker_is_the_next_item():
    @ray.remote(max_retries=0)
    def dies():
        yield "a"
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
        yield "b"

    first, failing = dies.remote()
    assert get(first) == "a"
    with pytest.raises(WorkerCrashedError):
        get(failing)


def test_the_death_of_the_consumer_ends_the_generator(tally: Tally):
    @ray.remote(num_cpus=0)
    def endless():
        try:
            while True:
                tally.add("item")
                yield 1
                time.sleep(0.01)
        finally:
            tally.add("closed")

    @ray.remote(num_cpus=0, max_retries=0)
    def consume():
        generator = endless.remote()
        next(generator)
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        get(consume.remote())

    def has_stopped():
        before = tally.count
        time.sleep(0.2)
        return tally.count == before

    eventually(has_stopped, "the generator has ended")


# ---- Cancelling and dropping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
def test_cancel(tally: Tally, force):
    @ray.remote
    def slow():
        yield 1
        tally.add("waits")
        time.sleep(3600)
        yield 2

    generator = slow.remote()
    first = next(generator)
    eventually(lambda: tally.count == 1, "it waits")
    ray.cancel(generator, force=force)
    [failing] = generator
    with pytest.raises(TaskCancelledError):
        get(failing)
    assert get(first) == 1


def test_cancel_while_it_waits_for_its_consumer(tally: Tally):
    @ray.remote(_generator_backpressure_num_objects=1)
    def eager():
        try:
            for item in range(10):
                tally.add(item)
                yield item
        finally:
            tally.add("closed")

    generator = eager.remote()
    eventually(generator.next_ready, "it has made an item")  # its note is made before it
    ray.cancel(generator)
    refs = list(generator)
    assert get(refs[0]) == 0
    with pytest.raises(TaskCancelledError):
        get(refs[1])
    assert tally.notes == ["0", "closed"]


def test_when_its_consumer_stops_the_generator_is_closed(tally: Tally):
    @ray.remote
    def endless():
        try:
            item = 0
            while True:
                yield item
                item += 1
                time.sleep(0.01)
        finally:
            tally.add("closed")

    for ref in endless.remote():
        if get(ref) == 3:
            break
    eventually(lambda: tally.notes == ["closed"], "the generator is closed")


def test_when_its_consumer_stops_one_that_is_held_back_is_closed(tally: Tally):
    @ray.remote(_generator_backpressure_num_objects=2)
    def eager():
        try:
            for _ in range(100):
                yield np.zeros(MIB // 8)
        finally:
            tally.add("closed")

    generator = eager.remote()
    get(next(generator))
    del generator
    eventually(lambda: tally.notes == ["closed"], "the generator is closed")


def test_who_holds_its_end_lets_it_go_on(tally: Tally):
    done = count.remote(5, tally).completed()
    assert get(done) is None
    assert tally.count == 5


def test_items_that_nobody_takes_are_freed():
    generator = arrays.remote(3)
    get(generator.completed())
    taken = next(generator)
    del generator
    eventually(lambda: len(_large_objects()) == 1, "the items that were not taken are freed")
    assert get(taken)[0] == 0
    del taken
    eventually(lambda: not _large_objects(), "all items are freed")


def _large_objects():
    return [row for row in list_objects() if row.size_bytes >= MIB]


# ---- Backpressure ----------------------------------------------------------------------------------------------------


def test_backpressure_holds_a_generator_back(tally: Tally):
    generator = count.options(_generator_backpressure_num_objects=2).remote(6, tally)
    eventually(lambda: tally.count == 2, "it has made as many items as it may")
    time.sleep(0.1)
    assert tally.count == 2
    next(generator)
    eventually(lambda: tally.count == 3, "it goes on")
    time.sleep(0.1)
    assert tally.count == 3
    assert values_of(generator) == [1, 2, 3, 4, 5]


def test_one_that_is_held_back_lends_its_cpu(cluster, tally: Tally):
    nodes, cpus = cluster.nodes, int(cluster.cpus)
    every_cpu = [count.options(_generator_backpressure_num_objects=1).remote(2, tally) for _ in range(nodes * cpus)]
    eventually(lambda: tally.count == len(every_cpu), "all of them wait")
    assert get(add.remote(1, 1)) == 2
    assert [values_of(generator) for generator in every_cpu] == [[0, 1]] * len(every_cpu)


def test_two_that_are_held_back_can_be_read_in_turn():
    one, other = (count.options(_generator_backpressure_num_objects=1).remote(5) for _ in range(2))
    assert [get([a, b]) for a, b in zip(one, other, strict=True)] == [[item, item] for item in range(5)]


# ---- Dynamic ---------------------------------------------------------------------------------------------------------


def test_dynamic_returns_one_reference_to_all_items():
    ref = count.options(num_returns="dynamic").remote(3)
    assert isinstance(ref, ray.ObjectRef)
    items = get(ref)
    assert isinstance(items, ray.DynamicObjectRefGenerator)
    assert len(items) == 3
    assert [get(item) for item in items] == [0, 1, 2]
    assert [get(item) for item in items] == [0, 1, 2]


def test_dynamic_items_are_passed_on_and_outlive_the_reference():
    @ray.remote
    def total(items):
        return sum(int(array[0]) for array in ray.get(list(items)))

    ref = arrays.options(num_returns="dynamic").remote(4)
    assert get(total.remote(ref)) == 6
    items = get(ref)
    del ref
    assert get(items[3])[0] == 3
    del items
    eventually(lambda: not _large_objects(), "all items are freed")


def test_dynamic_an_error_is_the_last_item():
    items = list(get(broken.options(num_returns="dynamic").remote(2, ValueError("half way"))))
    assert get(items[:2]) == [0, 1]
    with pytest.raises(ValueError, match="half way"):
        get(items[2])


def test_dynamic_without_a_reader_nothing_is_left(tally: Tally):
    @ray.remote(num_returns="dynamic")
    def unread():
        yield np.zeros(MIB)
        yield np.zeros(MIB)
        tally.add()

    unread.remote()
    eventually(lambda: tally.count == 1, "it has made all items")
    eventually(lambda: not _large_objects(), "all items are freed")


# ---- Actors ----------------------------------------------------------------------------------------------------------


@ray.remote
class Source:
    def __init__(self):
        self.made = 0

    def items(self, number):
        for item in range(number):
            self.made += 1
            yield item

    @ray.method(num_returns="dynamic")
    def all(self, number):
        yield from range(number)

    def how_many(self):
        return self.made

    def die(self):
        yield 1
        time.sleep(0.2)
        os._exit(1)


def test_a_method_streams():
    source = Source.remote()
    assert values_of(source.items.remote(3)) == [0, 1, 2]
    assert get(source.how_many.remote()) == 3
    assert [get(ref) for ref in get(source.all.remote(2))] == [0, 1]


def test_a_method_is_held_back():
    source = Source.remote()
    generator = source.items.options(_generator_backpressure_num_objects=2).remote(5)
    assert values_of(generator) == [0, 1, 2, 3, 4]


def test_the_death_of_an_actor_is_the_next_item():
    source = Source.remote()
    first, failing = source.die.remote()
    assert get(first) == 1
    with pytest.raises(ActorDiedError):
        get(failing)


@ray.remote
class AsyncSource:
    async def items(self, number):
        for item in range(number):
            await asyncio.sleep(0.001)
            yield item

    async def fail(self):
        yield 1
        raise ValueError("async")

    async def wait(self, tally):
        try:
            yield 1
            tally.add("waits")
            await asyncio.sleep(3600)
        finally:
            tally.add("closed")

    async def relay(self, number):
        async for ref in count.options(num_cpus=0).remote(number):
            yield 10 * await ref


def test_asynchronous_generators():
    source = AsyncSource.remote()
    one, other = source.items.remote(5), source.items.options(_generator_backpressure_num_objects=1).remote(5)
    assert values_of(one) == [0, 1, 2, 3, 4]
    assert values_of(other) == [0, 1, 2, 3, 4]
    first, failing = source.fail.remote()
    assert get(first) == 1
    with pytest.raises(ValueError, match="async"):
        get(failing)
    assert values_of(source.relay.remote(3)) == [0, 10, 20]


def test_an_asynchronous_generator_is_cancelled(tally: Tally):
    source = AsyncSource.remote()
    generator = source.wait.remote(tally)
    first = next(generator)
    eventually(lambda: tally.count == 1, "it waits")
    ray.cancel(generator)
    [failing] = generator
    with pytest.raises(TaskCancelledError):
        get(failing)
    assert get(first) == 1
    assert values_of(source.items.remote(2)) == [0, 1]
    assert tally.notes == ["waits", "closed"]


def test_a_generator_without_end_or_time_lets_its_consumer_take_items():
    """In a simulation it made items at one moment of virtual time, for ever."""

    class Counter:
        def count(self):
            item = 0
            while True:
                yield item
                item += 1

    method = ray.remote(Counter).remote().count.options(num_returns="streaming")
    for generator in (ray.remote(Counter.count).options(num_returns="streaming").remote(None), method.remote()):
        for item, ref in enumerate(generator):
            assert get(ref) == item
            if item == 2_500:
                break
        del generator
