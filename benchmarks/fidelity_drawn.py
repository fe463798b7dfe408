"""Programs that a generator draws for `benchmarks.fidelity`: eight of each seed, one of each shape.

A name such as `drawn 7.3` says the seed and the place; it is the same program wherever it is drawn. What is drawn is
plain data (`Drawn`): shape, how many calls, how long each takes and how much of that it sleeps, the sizes of arguments
and results. The bodies sleep and compute; none looks at the clock of the machine to decide anything.

"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import dualray as ray

KIB = 1 << 10
COUNT = 8
"""Programs of a seed."""
PREFIX = "drawn "
WORK_S = (1.0, 3.0)
"""What all calls of a program take together, one after the other."""
SHORTEST_S, LONGEST_S = 0.01, 0.06
"""What a call takes."""
ASLEEP = (0.0, 0.3, 0.5, 0.7, 1.0)
"""Shares of a call's time in which it sleeps."""
SIZES = (0, 1 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB, 2048 * KIB)
"""Of arguments and results, in bytes: some travel with their tasks, and some lie in the stores."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One program.

    Attributes:
        calls: how many, all in all.
        width: how many go side by side: of a level, of a stage, within a call.
        seconds: what a call takes, one after the other and then again from the first.
        asleep: the share of that in which it sleeps.
        size_bytes: of what calls return, and others get.
        number: where its own draws go on.
    """

    shape: str
    calls: int
    width: int
    seconds: tuple[float, ...]
    asleep: float
    size_bytes: int
    number: int

    def __str__(self) -> str:
        shortest, longest = min(self.seconds), max(self.seconds)
        took = f"{shortest * 1e3:.0f}" if len(self.seconds) == 1 else f"{shortest * 1e3:.0f} to {longest * 1e3:.0f}"
        return (
            f"{self.shape}: {self.calls} calls, {self.width} wide, {took} ms each, asleep {self.asleep:.0%} of it, "
            f"{self.size_bytes // KIB} KiB each"
        )


def names_of(seed: int) -> list[str]:
    """The names of the programs of a seed."""
    return [f"{PREFIX}{seed}.{index}" for index in range(COUNT)]


def drawn(name: str) -> Drawn:
    """The program of a name.

    Raises:
        ValueError: it is no such name.
    """
    seed, _, index = name.removeprefix(PREFIX).partition(".")
    if not name.startswith(PREFIX) or not (seed.isdigit() and index.isdigit()) or int(index) >= COUNT:
        raise ValueError(f"{name!r} is no program: say `{PREFIX}SEED.INDEX`, with an index from 0 to {COUNT - 1}")
    shapes = list(SHAPES)
    Random(f"shapes {seed}").shuffle(shapes)
    rng = Random(f"program {seed}.{index}")
    longest = rng.uniform(SHORTEST_S * 2, LONGEST_S)
    seconds = tuple([round(rng.uniform(SHORTEST_S, longest), 4) for _ in range(rng.choice((1, 2, 5)))])
    calls = round(rng.uniform(*WORK_S) / (sum(seconds) / len(seconds)))
    return Drawn(
        shape=shapes[int(index)],
        calls=max(8, min(calls, 200)),
        width=rng.choice((2, 3, 4, 6, 8)),
        seconds=seconds,
        asleep=rng.choice(ASLEEP),
        size_bytes=rng.choice(SIZES),
        number=rng.randrange(1 << 30),
    )


def program(name: str) -> Callable[[], float]:
    """What runs the program of a name; it returns a number, the same in each run."""
    made = drawn(name)
    return lambda: SHAPES[made.shape](made)


# ---- What calls do -------------------------------------------------------------------------------------------------


def work(seconds: float, asleep: float) -> None:
    """Sleep for a share of the time, and compute for the rest of it."""
    time.sleep(seconds * asleep)
    until = time.thread_time() + seconds * (1.0 - asleep)
    while time.thread_time() < until:
        pass


@ray.remote
def make(seconds: float, asleep: float, size_bytes: int, *arguments: Any) -> Any:
    """Work, whatever the arguments are, and return so many bytes."""
    work(seconds, asleep)
    return np.ones(max(1, size_bytes // 8))


@ray.remote
def by_size(seconds_per_mib: float, asleep: float, array: Any) -> float:
    """Work longer with a larger array."""
    work(seconds_per_mib * array.nbytes / (KIB * KIB), asleep)
    return float(array[0])


@ray.remote
def split(seconds: float, asleep: float, size_bytes: int, parts: int) -> Any:
    """Work, and return so many parts."""
    work(seconds, asleep)
    return [np.ones(max(1, size_bytes // 8 // parts)) for _ in range(parts)]


@ray.remote
def calls_others(count: int, seconds: float, asleep: float, size_bytes: int) -> float:
    """Call others, and wait for them."""
    arrays: list[Any] = ray.get([make.remote(seconds, asleep, size_bytes) for _ in range(count)])
    return float(sum(each[0] for each in arrays))


@ray.remote
class Stage:
    """A stage of a pipeline: how long it works is its own."""

    def __init__(self, seconds: float, asleep: float) -> None:
        self.seconds = seconds
        self.asleep = asleep

    def do(self, array: Any) -> Any:
        work(self.seconds, self.asleep)
        return array + 1.0


# ---- Shapes --------------------------------------------------------------------------------------------------------


def _seconds(made: Drawn, number: int) -> float:
    return made.seconds[number % len(made.seconds)]


def _total(refs: Sequence[Any]) -> float:
    return float(sum(float(np.asarray(each).flat[0]) for each in ray.get(list(refs))))


def bag(made: Drawn) -> float:
    """Calls that need nothing of each other."""
    return _total([make.remote(_seconds(made, number), made.asleep, made.size_bytes) for number in range(made.calls)])


def tree(made: Drawn) -> float:
    """Calls whose results are put together, `width` of them at a time, until one is left."""
    width = min(made.width, 4)
    leaves = max(width, made.calls * (width - 1) // width)
    level = [make.remote(_seconds(made, number), made.asleep, made.size_bytes) for number in range(leaves)]
    while len(level) > 1:
        groups = [level[first : first + width] for first in range(0, len(level), width)]
        level = [
            make.remote(_seconds(made, number), made.asleep, made.size_bytes, *group)
            for number, group in enumerate(groups)
        ]
    return _total(level)


def shuffle(made: Drawn) -> float:
    """Every call of the second half gets a part of what each of the first half has made."""
    parts = min(max(2, made.calls // 2), 12)
    mapped = [
        split.options(num_returns=parts).remote(_seconds(made, number), made.asleep, made.size_bytes, parts)
        for number in range(parts)
    ]
    reduced = [
        make.remote(_seconds(made, number), made.asleep, 0, *[each[number] for each in mapped])
        for number in range(parts)
    ]
    return _total(reduced)


def pipeline(made: Drawn) -> float:
    """Arrays go through three actors, of which each takes a time of its own."""
    rng = Random(made.number)
    stages: list[Any] = [
        Stage.options(num_cpus=0.3).remote(rng.uniform(SHORTEST_S, LONGEST_S), made.asleep)  # type: ignore[attr-defined]
        for _ in range(3)
    ]
    arrays = []
    for _ in range(max(5, made.calls // 3)):
        array = ray.put(np.zeros(max(1, made.size_bytes // 8)))
        for stage in stages:
            array = stage.do.remote(array)
        arrays.append(array)
    return _total(arrays)


def nested(made: Drawn) -> float:
    """Calls that wait for calls of their own."""
    count = max(2, made.calls // made.width)
    each = (made.asleep, made.size_bytes)
    return _total([calls_others.remote(made.width, _seconds(made, number), *each) for number in range(count)])


def rounds(made: Drawn) -> float:
    """The driver keeps `width` calls going: whenever one ends, it begins another."""
    begun = min(made.width, made.calls)
    waiting = [make.remote(_seconds(made, number), made.asleep, made.size_bytes) for number in range(begun)]
    total = 0.0
    while waiting:
        ready, waiting = ray.wait(waiting)
        total += _total(ready)
        if begun < made.calls:
            waiting.append(make.remote(_seconds(made, begun), made.asleep, made.size_bytes))
            begun += 1
    return total


def sized(made: Drawn) -> float:
    """Calls that take as long as their argument is large: one of four sizes."""
    arrays = [ray.put(np.ones(64 * KIB // 8 * factor)) for factor in (1, 2, 4, 8)]
    per_mib = 16.0 * sum(made.seconds) / len(made.seconds) / 3.75  # a call then takes what the others do, on average
    return _total([by_size.remote(per_mib, made.asleep, arrays[number * 7 % 4]) for number in range(made.calls)])


def layers(made: Drawn) -> float:
    """Layers of calls, of which each needs up to three of the layer before."""
    rng = Random(made.number)
    level: list[Any] = []
    for number in range(max(2, made.calls // made.width)):
        level = [
            make.remote(
                _seconds(made, number + place),
                made.asleep,
                made.size_bytes,
                *rng.sample(level, min(len(level), rng.randint(1, 3))),
            )
            for place in range(made.width)
        ]
    return _total(level)


SHAPES: dict[str, Callable[[Drawn], float]] = {
    each.__name__: each for each in (bag, tree, shuffle, pipeline, nested, rounds, sized, layers)
}
