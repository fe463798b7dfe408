"""Programs and policies with one source of nondeterminism each: docs/determinism.md has the table."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import dualray
from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, not_placed

NAMES = [f"name-{number}" for number in range(12)]


@dualray.remote
def same(value: Any) -> Any:
    return value


def set_order():
    """Tasks are submitted in the order of a set."""
    return sorted(dualray.get([same.options(name=name).remote(name) for name in set(NAMES)]))


def wall_clock():
    """`datetime.now()` cannot be replaced."""
    return dualray.get(dualray.remote(lambda: datetime.now().isoformat()).remote())  # noqa: DTZ005


def virtual_clock():
    """`time.time()` is the virtual clock's."""
    return dualray.get(dualray.remote(lambda: (time.time(), time.strftime("%H:%M"))).remote())[0]


def address():
    """The address of an object."""
    return dualray.get(dualray.remote(lambda: id(object()) >> 4).remote())


def uuid1():
    """Of the machine and its clock."""
    return dualray.get(dualray.remote(lambda: str(uuid.uuid1())).remote())


def listdir():
    """Files are listed by name, whatever the file system says."""

    def listing() -> list[list[str]]:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            for name in NAMES[::-1]:
                (directory / name).touch()
            return [
                os.listdir(directory),  # noqa: PTH208  # it is what is looked at
                [entry.name for entry in os.scandir(directory)],
                [path.name for path in directory.iterdir()],
                [path.name for path in directory.glob("*")],
                next(os.walk(directory))[2],
            ]

    found = dualray.get(dualray.remote(listing).remote())
    assert all(names == sorted(NAMES) for names in found), found
    return found


def thread():
    """A thread takes part."""

    def race() -> list[str]:
        seen: list[str] = []

        def run(name: str, pause: float) -> None:
            for _ in range(5):
                time.sleep(pause + random.random() / 100)
                seen.append(name)

        racers = [threading.Thread(target=run, args=(name, 0.01 / len(name))) for name in NAMES]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        return seen

    return dualray.get(dualray.remote(race).remote())


def os_thread():
    """A library takes part that has threads of its own."""

    def write() -> bool:
        import tensorflow as tf

        with tempfile.TemporaryDirectory() as directory, tf.Graph().as_default() as graph:
            tf.compat.v1.summary.FileWriter(directory, graph).close()
            return any(Path(directory).iterdir())

    return dualray.get(dualray.remote(write).remote())


def unseeded_random():
    """`random.Random()` without a seed takes that of the task."""
    return dualray.get(dualray.remote(lambda: random.Random().random()).remote())


def environment():
    """A variable that is another one elsewhere."""
    return dualray.get(dualray.remote(lambda: os.environ["USER"]).remote())


def dict_of_sets():
    """The values of a dict are sets."""
    groups = {"first": set(NAMES), "second": {"x"}}
    return [name for group in groups.values() for name in group]


def float_sum():
    """A sum of floats in the order of a set."""
    weights = {name: 0.1 * 3**place for place, name in enumerate(NAMES)}
    return sum(weights[name] for name in set(NAMES))


# ---- In a machine ---------------------------------------------------------------------------------------------------


def spread():
    """A program for the policies below."""
    return sorted(dualray.get([same.remote(number) for number in range(24)]))


class _Chooses:
    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        free = [node for node, candidate in view.candidates.items() if fits(candidate.free, shape.placement)]
        if not free:
            return not_placed(shape, view)
        return Placement(Outcome.SUCCESS, self.one_of(free), "planted")

    def one_of(self, nodes: list[NodeID]) -> NodeID:
        raise NotImplementedError


class SetOrderPolicy(_Chooses):
    """The first of a set."""

    def one_of(self, nodes: list[NodeID]) -> NodeID:
        return next(iter(set(nodes)))


class WallClockPolicy(_Chooses):
    """By the real clock: machines are no user code. By its nanoseconds: choices follow one another so evenly that two
    runs chose the same by its microseconds one time in forty."""

    def one_of(self, nodes: list[NodeID]) -> NodeID:
        return nodes[time.time_ns() * 2654435761 // 65536 % len(nodes)]


class UnseededRandomPolicy(_Chooses):
    """By a generator that nobody seeds."""

    def one_of(self, nodes: list[NodeID]) -> NodeID:
        return random.choice(nodes)
