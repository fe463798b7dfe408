"""Tasks that say what they take, and tasks that do not."""

from __future__ import annotations

import time
from itertools import pairwise

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
