"""Tasks that say what they take, and tasks that do not."""

from __future__ import annotations

import os
import time
from itertools import pairwise

import numpy as np

import dualray


@dualray.remote
def fast() -> float:
    return time.time()


@dualray.remote
def slow() -> float:
    return time.time()


def fast_and_slow(*, count: int, own: float | None = None) -> dict[str, list[float]]:
    """What each took, one after the other, in seconds."""

    def times(task) -> list[float]:
        ends = [time.time()]
        for _ in range(count):
            dualray.get(task.remote())
            ends.append(time.time())
        return [after - before for before, after in pairwise(ends)]

    found = {"fast": times(fast), "slow": times(slow), "other": times(slow.options(name="other"))}
    if own is not None:
        found["own"] = times(slow.options(duration=own))
    return found


@dualray.remote(max_retries=0)
def end(how: str) -> None:
    if how == "raises":
        raise ValueError(how)
    if how == "crashes":
        os._exit(1)
    if how in ("cancelled", "waits"):
        time.sleep(3600)


@dualray.remote(max_retries=0)
def after(before: object) -> None:
    """It needs what another task makes."""


def ends(*, how: str) -> str:
    """Tasks that end in one way, of which nobody reads the result."""
    ref = end.remote(how)
    time.sleep(1)
    if how == "cancelled":
        dualray.cancel(ref)
    if how == "waits":
        try:
            dualray.get(after.remote(ref), timeout=1)
        except dualray.exceptions.GetTimeoutError:
            raise RuntimeError(how) from None
    time.sleep(1)
    return how


NAMES = [f"name {number:04}" for number in range(100)]


def any_name() -> str:
    """Another one in each process, and as long."""
    return next(iter(set(NAMES)))


@dualray.remote
def name_of(number: int, given: str = "", padding: int = 0) -> str:
    return (any_name() if number == 3 and not given else f"{given}{number:09}") + " " * padding


def differs(*, where: str) -> object:
    """Something has another content in each process, and the same size."""
    if where == "an argument":
        return dualray.get([name_of.remote(number, any_name()) for number in range(2)])
    if where == "what is put":
        return dualray.get(dualray.put(any_name() * 50_000))[:10]
    if where == "an error":
        try:
            dualray.get(fails.remote())
        except ValueError as error:
            return error.args[0]
    if where == "the driver":
        numbers = dualray.get(dualray.put(np.arange(100_000)))  # in whose memory there are gaps
        return [any_name(), dualray.get(name_of.remote(1)), int(numbers[-1])]
    if where == "a set":
        names: set[str] = dualray.get(as_set.remote())
        return sorted(names)
    padding = 300_000 if where == "a large result" else 0
    return [name[:10] for name in dualray.get([name_of.remote(number, padding=padding) for number in range(6)])]


@dualray.remote(max_retries=0)
def fails() -> None:
    raise ValueError(any_name())


@dualray.remote
def as_set() -> set[str]:
    return set(NAMES)
