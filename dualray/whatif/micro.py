"""The programs with which `dualray calibrate` measures a machine.

A program is a row of phases. It ends each with a small `put`, which costs next to nothing: so its record, and what is
replayed of it, tell when each ended, and a run that is not recorded returns its own times. Functions are defined
inside, so that workers get them by value and import nothing of this package for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualray import api

MIB = 1 << 20
_NOTES_S = 0.12
"""Actors end with their handles; what they have noted while they were recorded is written soon, not at once."""
THERE = "there"
"""A resource that only the second of two nodes has."""


@dataclass(frozen=True, slots=True)
class MicroRun:
    """A program.

    Attributes:
        run: performs it in the runtime that there is, `scale` times as much as it must; returns when each phase
            ended, in seconds of `time.perf_counter`, the first entry being its begin. The second argument says by which
            options tasks go to the other node, of two.
        phases: their names, in order; those that begin with "+" are held out: no parameter is fitted to them; those
            that begin with "-" are preparations, and not looked at.
    """

    name: str
    run: Callable[[float, Mapping[str, Any]], list[float]]
    phases: tuple[str, ...]


def _marker() -> tuple[list[float], Callable[[], None]]:
    times: list[float] = []

    def mark() -> None:
        times.append(time.perf_counter())
        api.put(None)

    return times, mark


ONE_NODE_PHASES = (
    "-warm-up",
    "empty tasks, one by one",
    "chain of empty tasks",
    "chain of arrays",
    "fan-out of empty tasks",
    "-actor",
    "calls of an actor, one by one",
    "calls of an actor, all at once",
    "put 256 KiB",
    "put 2 MiB",
    "put 16 MiB",
    "results of 2 MiB",
    "start of workers",
    "computing, one by one",
    "computing, side by side",
    "computing of results of 1 MiB, side by side",
    "+tree of sums",
    "+tasks with puts",
    "+actors that compute",
)


def _one_node(scale: float, there: Mapping[str, Any]) -> list[float]:
    """On one node: with one CPU while it is recorded, with one for each core while it is measured."""
    times, mark = _marker()

    @api.remote
    def empty(*_: Any) -> None:
        return None

    @api.remote
    def make(count: int) -> Any:
        return np.ones(count)

    @api.remote
    def compute(seconds: float) -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < seconds:
            pass

    @api.remote
    def computed(seconds: float) -> Any:
        begun = time.thread_time()
        while time.thread_time() - begun < seconds:
            pass
        return np.ones(MIB // 8)

    @api.remote
    def add(one: Any, other: Any) -> Any:
        return one + other

    @api.remote
    class Actor:
        def ping(self) -> int:
            return 1

        def compute(self, seconds: float) -> None:
            begun = time.thread_time()
            while time.thread_time() - begun < seconds:
                pass

    def many(count: int) -> int:
        return max(2, round(count * scale))

    new_actor: Any = Actor.options(num_cpus=0).remote  # type: ignore[attr-defined]
    mark()
    api.get([compute.remote(0.02) for _ in range(4)] + [make.remote(1), add.remote(1, 1), computed.remote(0.003)])
    mark()
    _call_tasks(empty.remote, make.remote, add.remote, many, mark)
    _call_an_actor(new_actor, many, mark)
    _move_values(make.remote, many, mark)
    actors = []
    for _ in range(many(4)):
        actors.append(new_actor())
        api.get(actors[-1].ping.remote())
    mark()
    _compute(compute.remote, computed.remote, many, mark)
    _run_programs(make.remote, add.remote, many, mark)
    api.get([each.compute.remote(0.01) for _ in range(many(3)) for each in actors[:2]])
    mark()
    time.sleep(_NOTES_S)
    return times


Many = Callable[[int], int]
Mark = Callable[[], object]


def _call_tasks(call: Any, make: Any, add: Any, many: Many, mark: Mark) -> None:
    """Empty tasks one by one, a chain of them, a chain with arrays, and all at once."""
    for _ in range(many(60)):
        api.get(call())
    mark()
    ref = call()
    for _ in range(many(60)):
        ref = call(ref)
    api.get(ref)
    del ref
    mark()
    array = make(MIB // 4 // 8)
    for _ in range(many(25)):
        array = add(array, 1.0)
    api.get(array)
    del array
    mark()
    api.get([call() for _ in range(many(250))])
    mark()


def _call_an_actor(new_actor: Any, many: Many, mark: Mark) -> None:
    """One that is made, then called one by one, and all at once."""
    actor = new_actor()
    api.get(actor.ping.remote())
    mark()
    for _ in range(many(60)):
        api.get(actor.ping.remote())
    mark()
    api.get([actor.ping.remote() for _ in range(many(200))])
    mark()


def _move_values(make: Any, many: Many, mark: Mark) -> None:
    """Values that are put, of three sizes, and large results."""
    for size, count in ((MIB // 4, 16), (2 * MIB, 8), (16 * MIB, 3)):
        data = np.ones(size // 8)
        for _ in range(many(count)):
            api.put(data)
        mark()
    for _ in range(many(4)):
        api.get(make(2 * MIB // 8))
    mark()


def _compute(compute: Any, computed: Any, many: Many, mark: Mark) -> None:
    """Tasks that compute, one by one and side by side, and such with results for the store."""
    for _ in range(many(3)):
        api.get(compute(0.02))
    mark()
    api.get([compute(0.02) for _ in range(many(8))])
    mark()
    refs = [computed(0.003) for _ in range(many(30))]
    api.wait(refs, num_returns=len(refs))
    del refs
    mark()


def _run_programs(make: Any, add: Any, many: Many, mark: Mark) -> None:
    """A tree of sums, and tasks whose arguments are put."""
    level = [make(MIB // 8) for _ in range(8)]
    while len(level) > 1:
        level = [add(one, other) for one, other in zip(level[::2], level[1::2], strict=True)]
    api.get(level[0])
    del level
    mark()
    parts = [add(api.put(np.ones(MIB // 8)), 1.0) for _ in range(many(6))]
    while parts:
        _, parts = api.wait(parts)
    mark()


TWO_NODES_PHASES = (
    "-warm-up",
    "empty tasks on another node, one by one",
    "1 MiB to another node",
    "8 MiB to another node",
    "32 MiB to another node",
    "8 MiB from another node",
    "+tasks there that compute with what is here",
)


def _two_nodes(scale: float, there: Mapping[str, Any]) -> list[float]:
    """With the resource THERE: on the only node while it is recorded, on a second one while it is measured."""
    times, mark = _marker()

    @api.remote(**there)
    def empty() -> None:
        return None

    @api.remote(**there)
    def size_of(array: Any) -> int:
        return len(array)

    @api.remote(**there)
    def make(count: int) -> Any:
        return np.ones(count)

    @api.remote(**there)
    def work(array: Any) -> float:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.01:
            pass
        return float(array[0])

    def many(count: int) -> int:
        return max(2, round(count * scale))

    mark()
    api.get([empty.remote(), size_of.remote([1]), make.remote(1), work.remote([1])])
    mark()
    for _ in range(many(40)):
        api.get(empty.remote())
    mark()
    for size, count in ((MIB, 8), (8 * MIB, 4), (32 * MIB, 2)):
        data = np.ones(size // 8)
        for _ in range(many(count)):
            api.get(size_of.remote(api.put(data)))
        mark()
    for _ in range(many(3)):
        api.get(make.remote(MIB))
    mark()
    api.get([work.remote(api.put(np.ones(MIB // 8))) for _ in range(many(6))])
    mark()
    return times


_PIECES = 24
_PIECES_APART = 2
"""At each end of those that are computed side by side: nobody begins, or ends, at the same moment as the others."""


def company(cores: int) -> tuple[list[float], list[float]]:
    """What a fixed piece of computing takes, in seconds: alone, and while as many compute as there are cores.

    It is a loop of Python's and a sort, within a core's own caches. What needs the memory itself suffers more from
    company.
    """

    @api.remote
    def compute(pieces: int) -> list[float]:
        took_s = []
        data = np.random.default_rng(0).random(1 << 14)
        for _ in range(pieces):
            begun_s = time.perf_counter()
            sum(number * number for number in range(20_000))
            for _ in range(4):
                np.sort(data)
            took_s.append(time.perf_counter() - begun_s)
        return took_s

    api.get([compute.remote(_PIECES_APART) for _ in range(cores)])
    alone_s: list[float] = api.get(compute.remote(_PIECES))
    beside = api.get([compute.remote(_PIECES + 2 * _PIECES_APART) for _ in range(cores)])
    return alone_s, [piece for pieces in beside for piece in pieces[_PIECES_APART:-_PIECES_APART]]


ONE_NODE = MicroRun("one node", _one_node, ONE_NODE_PHASES)
TWO_NODES = MicroRun("two nodes", _two_nodes, TWO_NODES_PHASES)
