"""Sim mode beside the kernel that it stands on: SimPy's bare timeouts, and a bag of tasks on a virtual cluster.

A task of the bag is a whole one: its function is called, its arguments and result are pickled, it is scheduled, leased,
pushed and recorded. The ratio says what share of the bare kernel's events that leaves for tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import simpy

import dualray
from benchmarks.conftest import Measure, Row

TIMEOUTS = 100_000
BAGS = (
    Row(name="sim_bag_100", operation="empty task, 100 virtual nodes; other: a SimPy timeout", count=2000, rounds=3),
    Row(name="sim_bag_1000", operation="empty task, 1,000 virtual nodes; other: a SimPy timeout", count=2000, rounds=1),
)
NODES = {"sim_bag_100": 100, "sim_bag_1000": 1000}


@pytest.fixture(params=["dualray", "simpy"])
def one_round(request: pytest.FixtureRequest, bag: Row) -> Iterator[tuple[str, Row, Callable[[], object]]]:
    """The peer, its row, and one round of it."""
    if request.param == "simpy":
        row = Row(name=bag.name, operation=bag.operation, count=TIMEOUTS, rounds=3)
        yield "simpy", row, bare_timeouts
        return
    dualray.init(mode="sim", nodes=NODES[bag.name])
    task = dualray.remote(lambda: None)
    yield "dualray", bag, lambda: dualray.get([task.remote() for _ in range(bag.count)])
    dualray.shutdown()


def bare_timeouts() -> None:
    """One process that waits again and again."""

    def wait(environment: simpy.Environment) -> Generator[Any, None, None]:
        for _ in range(TIMEOUTS):
            yield environment.timeout(1)

    environment = simpy.Environment()
    environment.process(wait(environment))
    environment.run()


@pytest.mark.parametrize("bag", BAGS, ids=[bag.name for bag in BAGS])
def test_bag_of_tasks(one_round: tuple[str, Row, Callable[[], object]], measure: Measure) -> None:
    peer, row, run = one_round
    measure(row, peer, run)
