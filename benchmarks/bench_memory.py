"""Real mode beside Ray: programs whose data exceed the object store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.conftest import MIB, Measure, Row, start

STORE_BYTES = 120 * MIB
BLOCKS, PARTS = 15, 6
TWO_ROUNDS = Row(
    name="two_rounds",
    operation="30 objects of 8 MiB in a store of 120 MiB, read one and a half times",
    unit="s",
    rounds=5,
)
SHUFFLE = Row(
    name="tight_shuffle", operation="a shuffle of 3 stages of 288 MiB each in a store of 120 MiB", unit="s", rounds=3
)


@pytest.fixture(autouse=True)
def cluster(api: Any) -> Iterator[None]:
    api.shutdown()
    start(api, object_store_memory=STORE_BYTES)
    yield
    api.shutdown()


def base(number: int) -> Any:
    """One object."""
    return np.full(MIB, float(number))


def plus(array: Any, more: float) -> Any:
    """Another one, made of it."""
    return array + more


def two_rounds(api: Any) -> None:
    """A scan over twice the store, and back."""
    make, add = api.remote(base), api.remote(plus)
    first = [make.remote(number) for number in range(BLOCKS)]
    second = [add.remote(ref, 100.0) for ref in first]
    for _ in range(2):
        assert [api.get(ref)[0] for ref in second] == [number + 100.0 for number in range(BLOCKS)]
    assert [api.get(ref)[0] for ref in first] == list(range(BLOCKS))


def stage(number: int, *parts: Any) -> tuple[Any, ...]:
    """A block for each task of the next stage."""
    number = sum(int(part[0]) for part in parts) if parts else number
    return tuple(np.full(MIB, number + place, dtype=np.int64) for place in range(PARTS))


def shuffle(api: Any) -> None:
    """All to all, twice."""
    task = api.remote(num_returns=PARTS)(stage)
    rows = [task.remote(number) for number in range(PARTS)]
    expected = list(range(PARTS))
    for _ in range(2):
        rows = [task.remote(0, *(row[place] for row in rows)) for place in range(PARTS)]
        expected = [sum(number + place for number in expected) for place in range(PARTS)]
    for number, row in zip(expected, rows, strict=True):
        assert [int(api.get(part)[0]) for part in row] == [number + place for place in range(PARTS)]


def test_two_rounds(api: Any, measure: Measure) -> None:
    measure(TWO_ROUNDS, api.__name__, lambda: two_rounds(api))


def test_tight_shuffle(api: Any, measure: Measure) -> None:
    measure(SHUFFLE, api.__name__, lambda: shuffle(api))
