"""Tasks that say what they take, and tasks that do not."""

from __future__ import annotations

import os
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
    second = after.remote(ref) if how == "waits" else None
    time.sleep(1)
    if how == "cancelled":
        dualray.cancel(ref)
    if how == "waits":
        try:
            dualray.get(second, timeout=1)
        except dualray.exceptions.GetTimeoutError:
            raise RuntimeError(how) from None
    time.sleep(1)
    return how
