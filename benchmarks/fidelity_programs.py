"""The programs of `benchmarks.fidelity`, and what runs them: six shapes in two sizes, and those of fidelity_drawn.py.

    python -m benchmarks.fidelity_programs record DIRECTORY [NAME ...]     one file each, with one CPU
    python -m benchmarks.fidelity_programs run ADDRESS REPEATS [NAME ...]  in a cluster; a line of JSON for each run
    python -m benchmarks.fidelity_programs record-on-ray ADDRESS DIRECTORY [NAME ...]
    python -m benchmarks.fidelity_programs run-on-ray ADDRESS REPEATS [NAME ...]
    python -m benchmarks.fidelity_programs once-on-ray ADDRESS NAME        the first program of a new cluster

A run's time is that of the program: from when `init` has returned to when it calls `shutdown`, as in a record.
Functions are this script's own (`__main__`), so that workers get them by value, as with any user's script.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import dualray as ray
from benchmarks import fidelity_drawn

MIB = 1 << 20
SLOWED_MAX = 0.15
"""By how much a fixed piece of computing may be slower beside a run that counts."""
HOLD_S = 0.5
"""So long each of the first tasks takes on Ray: it starts a worker for each that waits."""
PAUSE_S = 0.3
"""In which the cluster ends a driver's workers and begins new ones: that is nobody else's use of the machine."""


def busy(seconds: float) -> None:
    """Compute for so long: CPU time, wherever it comes from."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@ray.remote
def compute(seconds: float) -> int:
    busy(seconds)
    return 1


@ray.remote
def step(array: Any, seconds: float) -> Any:
    time.sleep(seconds / 2)
    busy(seconds / 2)
    return array + 1.0


@ray.remote
def leaf(count: int, seconds: float) -> Any:
    time.sleep(seconds / 2)
    busy(seconds / 2)
    return np.ones(count)


@ray.remote
def add(one: Any, other: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return one + other


@ray.remote
def split(index: int, count: int, parts: int) -> Any:
    data = np.random.default_rng(index).random(count)
    data.sort()
    time.sleep(0.03)
    found = np.array_split(data, parts)
    return found if parts > 1 else found[0]


@ray.remote
def merge(*parts: Any) -> float:
    data = np.concatenate(parts)
    data.sort()
    time.sleep(0.03)
    return float(data[-1])


@ray.remote
def gradient(weights: Any, seconds: float) -> Any:
    time.sleep(0.7 * seconds)
    busy(0.3 * seconds)
    return weights * 0.01


@ray.remote
class ParameterServer:
    def __init__(self, count: int) -> None:
        self.weights = np.zeros(count)

    def apply(self, *gradients: Any) -> Any:
        for each in gradients:
            self.weights = self.weights + each
        return self.weights


@ray.remote
class Simulator:
    """Holds a state, and works on it."""

    def __init__(self) -> None:
        self.steps = 0

    def work(self, weights: Any, seconds: float) -> Any:
        self.steps += 1
        time.sleep(0.7 * seconds)
        busy(0.3 * seconds)
        return weights[:1000] * 0.5


@ray.remote
def inner(seconds: float) -> int:
    time.sleep(seconds / 2)
    busy(seconds / 2)
    return 1


@ray.remote
def outer(count: int, seconds: float) -> int:
    busy(0.005)
    return int(sum(ray.get([inner.remote(seconds) for _ in range(count)])))


def bag(tasks: int, seconds: float) -> float:
    """Independent tasks that compute, none as long as the other."""
    return float(sum(ray.get([compute.remote(seconds * (0.5 + (index * 7 % 11) / 10)) for index in range(tasks)])))


def chain(links: int, count: int) -> float:
    """Each needs what the one before has made."""
    array = ray.put(np.zeros(count))
    for _ in range(links):
        array = step.remote(array, 0.02)
    return float(ray.get(array)[0])


def tree(leaves: int, count: int) -> float:
    """Arrays are made, and added two by two."""
    level = [leaf.remote(count, 0.05) for _ in range(leaves)]
    while len(level) > 1:
        level = [add.remote(one, other, 0.02) for one, other in zip(level[::2], level[1::2], strict=True)]
    return float(ray.get(level[0])[0])


def shuffle(parts: int, count: int) -> float:
    """Every reducer needs a part of what each mapper has made."""
    mapped = [split.options(num_returns=parts).remote(index, count, parts) for index in range(parts)]
    return float(sum(ray.get([merge.remote(*[of[index] for of in mapped]) for index in range(parts)])))


def server(steps: int, workers: int) -> float:
    """An actor has the weights; actors work with them, and tasks make gradients of them."""
    holder: Any = ParameterServer.options(num_cpus=0).remote(MIB // 8)  # type: ignore[attr-defined]
    simulators: list[Any] = [Simulator.options(num_cpus=0.2).remote() for _ in range(2)]  # type: ignore[attr-defined]
    weights = holder.apply.remote()
    for _ in range(steps):
        worked = [each.work.remote(weights, 0.02) for each in simulators]
        gradients = [gradient.options(num_cpus=0.5).remote(weights, 0.03) for _ in range(workers)]
        ray.get(worked)
        weights = holder.apply.remote(*gradients)
    return float(ray.get(weights)[0])


def nested(outers: int, inners: int) -> float:
    """Tasks that wait for tasks of their own."""
    return float(sum(ray.get([outer.remote(inners, 0.03) for _ in range(outers)])))


PROGRAMS: dict[str, Callable[[], float]] = {
    "bag, small": lambda: bag(40, 0.03),
    "bag, large": lambda: bag(120, 0.025),
    "chain, small": lambda: chain(40, MIB // 8),
    "chain, large": lambda: chain(90, MIB // 32),
    "tree, small": lambda: tree(16, MIB // 8),
    "tree, large": lambda: tree(32, 2 * MIB // 8),
    "shuffle, small": lambda: shuffle(6, 4 * MIB // 8),
    "shuffle, large": lambda: shuffle(8, 8 * MIB // 8),
    "server, small": lambda: server(8, 4),
    "server, large": lambda: server(16, 6),
    "nested, small": lambda: nested(8, 4),
    "nested, large": lambda: nested(12, 6),
}


def program(name: str) -> Callable[[], float]:
    """What runs the program of a name: one of PROGRAMS, or a drawn one."""
    return PROGRAMS[name] if name in PROGRAMS else fidelity_drawn.program(name)


def record(directory: Path, names: list[str]) -> None:
    """Record each with one CPU."""
    for name in names:
        ray.init(mode="real", num_cpus=1, record=directory / f"{name}.parquet", log_to_driver=False)
        try:
            program(name)()
        finally:
            ray.shutdown()


def hold() -> None:
    """Keep a worker busy, so that the next task starts another one."""
    time.sleep(HOLD_S)


@contextmanager
def on_ray(address: str, *, has_workers: bool = True) -> Iterator[None]:
    """Join a cluster of Ray's. has_workers: each CPU has a worker before the program begins, which takes Ray a second.

    The program's `init` then uses this connection, so that a record has the program alone.
    """
    import ray as plain  # noqa: PLC0415 - only who measures Ray has it

    plain.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="fidelity")
    try:
        if has_workers:
            held = plain.remote(scheduling_strategy="SPREAD")(hold)
            for _ in range(2):
                plain.get([held.remote() for _ in range(round(plain.cluster_resources()["CPU"]))])
        yield
    finally:
        plain.shutdown()


def record_on_ray(address: str, directory: Path, names: list[str]) -> None:
    """Record each on a cluster of Ray's."""
    for name in names:
        with on_ray(address):
            ray.init(mode="ray", record=directory / f"{name}.parquet")
            try:
                program(name)()
            finally:
                ray.shutdown()


def probe_s() -> float:
    """What a fixed piece of computing takes now."""
    took = []
    for _ in range(5):
        begun_s = time.perf_counter()
        sum(index * index for index in range(100_000))
        took.append(time.perf_counter() - begun_s)
    return sorted(took)[2]


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Join a cluster of dualray's."""
    ray.init(mode="real", address=address, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def joined_on_ray(address: str) -> Iterator[None]:
    """Join a cluster of Ray's, in mode "ray"."""
    with on_ray(address):
        ray.init(mode="ray")
        try:
            yield
        finally:
            ray.shutdown()


Join = Callable[[str], AbstractContextManager[None]]


def run(join: Join, address: str, repeats: int, names: list[str]) -> None:
    """Run each so often, and say how long it took, and how much slower than at its best the machine was before and
    after; those that were disturbed run again, twice as often at most."""
    best_s = min(probe_s() for _ in range(5))
    calm = dict.fromkeys(names, 0)
    for repeat in range(2 * repeats):
        for name in names:
            if calm[name] >= repeats:
                continue
            before_s = probe_s()
            with join(address):
                begun_s = time.perf_counter()
                result = program(name)()
                took_s = time.perf_counter() - begun_s
            time.sleep(PAUSE_S)
            after_s = probe_s()
            best_s = min(best_s, before_s, after_s)
            slowed = max(before_s, after_s) / best_s - 1
            calm[name] += slowed < SLOWED_MAX
            line = {"name": name, "repeat": repeat, "took_s": took_s, "slowed": slowed, "result": result}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "record":
        record(Path(given[0]), given[1:] or list(PROGRAMS))
    elif what == "once-on-ray":
        with on_ray(given[0], has_workers=False):
            ray.init(mode="ray")
            program(given[1])()
            ray.shutdown()
    elif what == "record-on-ray":
        record_on_ray(given[0], Path(given[1]), given[2:] or list(PROGRAMS))
    else:
        run(joined_on_ray if what == "run-on-ray" else joined, given[0], int(given[1]), given[2:] or list(PROGRAMS))
