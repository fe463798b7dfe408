"""Programs that are recorded, and a policy of a user's own."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np

import dualray as ray
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, not_placed


def everything(mode: str) -> float:
    """Tasks, puts, waits, actors, nested tasks and large objects, small enough for real processes."""

    @ray.remote(duration=0.02)
    def make(size: int) -> Any:
        if mode == "real":
            time.sleep(0.02)
        return np.ones(size)

    @ray.remote(duration=0.01)
    def add(one: Any, other: Any) -> Any:
        return one + other

    @ray.remote(duration=0.01)
    def inner(number: int) -> int:
        return number

    @ray.remote(duration=0.01)
    def outer() -> int:
        return sum(ray.get([inner.remote(number) for number in range(3)]))

    @ray.remote
    class Counter:
        def __init__(self) -> None:
            self.value = 0

        def add(self, amount: int) -> int:
            self.value += amount
            return self.value

    counter = cast(Any, Counter).remote()
    big = ray.put(np.zeros(50_000))
    waiting = [make.remote(50_000) for _ in range(4)]
    while waiting:
        _, waiting = ray.wait(waiting)
        counter.add.remote(1)
    total = ray.get(add.remote(big, make.remote(50_000))).sum() + ray.get(outer.remote())
    return float(total + ray.get(counter.add.remote(1)))


class LastNodeFirst:
    """A placement policy: the last node that has room."""

    def choose(self, shape: Any, view: ClusterView, via: Any) -> Placement:
        from dualray.shared.model.resources import fits

        for node, candidate in reversed(list(view.candidates.items())):
            if fits(candidate.free, shape.placement):
                return Placement(Outcome.SUCCESS, node, "the last one")
        return not_placed(shape, view)


class Careless:
    """A placement policy with a mistake."""

    def choose(self, shape: Any, view: ClusterView, via: Any) -> Any:
        return view.candidates["no-such-node"]  # type: ignore[index]


class NoPolicy:
    """Chooses nothing."""


class NeedsArguments(LastNodeFirst):
    """Cannot be made by its name alone."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
