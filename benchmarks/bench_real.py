"""Real mode beside Ray: what one task, one call of an actor, one put and one get cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import dualray
from benchmarks.conftest import MIB, Measure, Row, start

Round = Callable[[], object]
ROWS: list[tuple[Row, Callable[[Any], Round]]] = []


def row(operation: str, **figures: Any) -> Callable[[Callable[[Any], Round]], Callable[[Any], Round]]:
    """Make a row of a function that, given the peer, prepares a program and returns one round of it."""

    def add(prepare: Callable[[Any], Round]) -> Callable[[Any], Round]:
        ROWS.append((Row(name=prepare.__name__, operation=operation, **figures), prepare))
        return prepare

    return add


def empty() -> None:
    """The empty task."""


def _compute_until(done: threading.Event) -> None:
    """A driver's other thread, which holds the interpreter as long as it may."""
    while not done.is_set():
        sum(range(100))


def same(value: Any) -> Any:
    return value


class Empty:
    def call(self) -> None:
        pass


# ---- Tasks -------------------------------------------------------------------------------------------------------


@row("get(f.remote()), empty task, one at a time", count=300)
def tasks_sync(api: Any) -> Round:
    f = api.remote(empty)
    return lambda: [api.get(f.remote()) for _ in range(300)]


@row("the same, beside a thread that computes", count=200)
def tasks_sync_busy(api: Any) -> Round:
    f = api.remote(empty)

    def one_round() -> None:
        done = threading.Event()
        thread = threading.Thread(target=_compute_until, args=(done,))
        thread.start()
        try:
            for _ in range(200):
                api.get(f.remote())
        finally:
            done.set()
            thread.join()

    return one_round


@row("submit 2,000 empty tasks, then one get", count=2000)
def tasks_async(api: Any) -> Round:
    f = api.remote(empty)
    return lambda: api.get([f.remote() for _ in range(2000)])


@row("submit 1,000 tasks and wait for all", count=1000)
def wait_1k(api: Any) -> Round:
    f = api.remote(empty)

    def one_round() -> None:
        refs = [f.remote() for _ in range(1000)]
        ready, _ = api.wait(refs, num_returns=len(refs))
        assert len(ready) == len(refs)

    return one_round


@row("one task with 100 refs as arguments", count=50)
def task_100_args(api: Any) -> Round:
    f = api.remote(lambda *values: len(values))
    refs = [api.put(number) for number in range(100)]

    def one_round() -> None:
        assert api.get([f.remote(*refs) for _ in range(50)]) == [100] * 50

    return one_round


# The first large objects of a session find an arena that is still being given its memory, for half a second.
@row("one task with a 1 MiB array by value", count=50, warm=60)
def task_1MB_arg(api: Any) -> Round:  # noqa: N802  # the row's name in the baselines
    f = api.remote(lambda array: len(array))
    array = np.zeros(MIB, dtype=np.uint8)

    def call(number: int) -> Any:
        array[number::4096] += 1  # it changes before every call
        return f.remote(array)

    def one_round() -> None:
        assert api.get([call(number) for number in range(50)]) == [MIB] * 50

    return one_round


@row("500 tasks, each fed by the one before", count=500)
def chain(api: Any) -> Round:
    f = api.remote(same)

    def one_round() -> None:
        ref = f.remote(7)
        for _ in range(499):
            ref = f.remote(ref)
        assert api.get(ref) == 7

    return one_round


@row("2 tasks that each submit and get 500 tasks", count=1000)
def nested(api: Any) -> Round:
    inner = api.remote(empty)
    get = api.get

    def outer(count: int) -> int:
        return len(get([inner.remote() for _ in range(count)]))

    f = api.remote(outer)

    def one_round() -> None:
        assert api.get([f.remote(500), f.remote(500)]) == [500, 500]

    return one_round


# ---- Actors ------------------------------------------------------------------------------------------------------


@row("get(a.m.remote()), one at a time", count=500)
def actor_sync(api: Any) -> Round:
    actor = api.remote(Empty).remote()
    return lambda: [api.get(actor.call.remote()) for _ in range(500)]


@row("submit 2,000 calls to one actor, then one get", count=2000)
def actor_async(api: Any) -> Round:
    actor = api.remote(Empty).remote()
    return lambda: api.get([actor.call.remote() for _ in range(2000)])


@row("create 20 actors and call each once", unit="s", rounds=3)
def actor_create_20(api: Any) -> Round:
    class Here:
        """Pickled by value, for it is of no module: else 20 workers would import pytest, and that would be the row."""

        def call(self) -> None:
            pass

    cls = api.remote(Here)

    def one_round() -> None:
        actors = [cls.remote() for _ in range(20)]
        api.get([actor.call.remote() for actor in actors])

    return one_round


# ---- Objects -----------------------------------------------------------------------------------------------------


@row("put(0)", count=1000)
def put_small(api: Any) -> Round:
    return lambda: [api.put(0) for _ in range(1000)]


@row("get(ref) of a small object", count=2000)
def get_small(api: Any) -> Round:
    ref = api.put(0)
    return lambda: [api.get(ref) for _ in range(2000)]


@row("put of a 100 MiB uint8 array", unit="GB/s", rounds=10, warm=100, gigabytes=100 * MIB / 1e9)
def put_GBps(api: Any) -> Round:  # noqa: N802  # the row's name in the baselines
    array = np.zeros(100 * MIB, dtype=np.uint8)
    return lambda: api.put(array)


@row("copy of that array in warm memory", unit="GB/s", rounds=10, warm=5, gigabytes=100 * MIB / 1e9)
def memcpy_GBps(api: Any) -> Round:  # noqa: N802  # beside the row above it
    array, copy = np.zeros(100 * MIB, dtype=np.uint8), np.ones(100 * MIB, dtype=np.uint8)
    return lambda: np.copyto(copy, array)


@row("get of that array, zero copy", count=1000)
def get_big(api: Any) -> Round:
    ref = api.put(np.zeros(100 * MIB, dtype=np.uint8))

    def one_round() -> None:
        for _ in range(1000):
            assert api.get(ref).nbytes == 100 * MIB

    return one_round


@row("one get of 10,000 small refs", count=10_000)
def get_10k_refs(api: Any) -> Round:
    refs = [api.put(number) for number in range(10_000)]

    def one_round() -> None:
        assert api.get(refs)[-1] == 9_999

    return one_round


# ---- Running them ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def started(api: Any) -> Iterator[Any]:
    start(api)
    yield api
    api.shutdown()


@pytest.mark.parametrize(("row", "prepare"), ROWS, ids=[row.name for row, _ in ROWS])
def test_row(row: Row, prepare: Callable[[Any], Round], started: Any, measure: Measure) -> None:
    measure(row, started.__name__, prepare(started), warm=row.warm)


PUT_BESIDE_COPY = Row(
    name="put_beside_copy",
    operation="put of a 100 MiB uint8 array; other: a copy of it in warm memory",
    unit="GB/s",
    rounds=30,
    gigabytes=100 * MIB / 1e9,
)


def test_put_beside_copy(started: Any, measure_in_turn: Measure) -> None:
    """What share of the memory's rate a put reaches: by turns, for both move from second to second."""
    if started is not dualray:
        pytest.skip("the other one has rows of its own")
    array, copy = np.zeros(100 * MIB, dtype=np.uint8), np.ones(100 * MIB, dtype=np.uint8)
    copied = partial(np.copyto, copy, array)
    measure_in_turn(PUT_BESIDE_COPY, lambda: dualray.put(array), lambda: None, "memcpy", copied, warm=100)
