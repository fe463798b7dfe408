"""Programs for exploration that check for themselves what they were promised, whatever goes wrong around them.

Each returns the same whatever happens to nodes and workers, or ends with an error that the failure model allows; what
breaks a promise raises `BrokenPromise`, which it does not. (They are run by `actors_swarm.yaml` and its neighbours.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

import dualray

RETRIES = 2


class BrokenPromise(AssertionError):
    """dualray has done what it says that it never does."""


# ---- Actors: calls in order, within each life ----------------------------------------------------------------------


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Ledger:
    """Notes who called, and whether each caller's calls come in the order in which they were made."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}

    def note(self, caller: str, index: int) -> bool:
        """Whether the call came after those that this caller made before it."""
        is_in_order = self.last.get(caller, -1) < index
        self.last[caller] = index
        return is_in_order

    def page(self, content: int, size: int) -> Any:
        """A block of bytes."""
        return np.full(size, content, dtype=np.uint8)


@dualray.remote(max_retries=-1, duration=0.5)
def write(name: str, ledger: Any, calls: int) -> int:
    """Call an actor many times at once; how many calls it was."""
    caller = f"{name}, attempt {dualray.get_runtime_context().get_attempt()}"
    answers = dualray.get([ledger.note.remote(caller, index) for index in range(calls)])
    if not all(answers):
        raise BrokenPromise(f"the calls of {caller} came out of order: {answers}")
    return len(answers)


@dualray.remote(max_retries=-1, duration=0.05)
def read(pages: list[Any]) -> int:
    """What is on pages to which it gets references only."""
    return sum(int(page[0]) for page in dualray.get(pages))


def ledgers(*, actors: int = 3, writers: int = 3, calls: int = 8, pages: int = 4, size: int = 150_000) -> Any:
    """Actors that several tasks call; pages of theirs that go from process to process as references."""
    made: list[Any] = [Ledger.remote() for _ in range(actors)]  # type: ignore[attr-defined]
    written = [
        write.remote(f"writer {number} of ledger {place}", ledger, calls)
        for place, ledger in enumerate(made)
        for number in range(writers)
    ]
    sums = []
    for ledger in made:
        refs = [ledger.page.remote(content, size) for content in range(pages)]
        sums.append(read.remote(refs))
    ordered = [made[0].note.remote("driver", index) for index in range(calls)]
    if not all(dualray.get(ordered)):
        raise BrokenPromise("the driver's calls came out of order")
    return [dualray.get(written), dualray.get(sums)]


# ---- Tasks whose retries are bounded -------------------------------------------------------------------------------


@dualray.remote(max_retries=RETRIES, duration=0.3)
def try_again(content: int, size: int, *before: Any) -> Any:
    """A block; it is an error to be tried more often than was said."""
    attempt = dualray.get_runtime_context().get_attempt()
    if attempt > RETRIES:
        raise BrokenPromise(f"attempt {attempt} of a task with max_retries={RETRIES}")
    return np.full(size, content, dtype=np.uint8)


def bounded(*, tasks: int = 24, rounds: int = 3, size: int = 200_000) -> list[int]:
    """Rounds of tasks that may be tried thrice; each needs one of the round before. All are read twice."""
    blocks = [try_again.remote(index, size) for index in range(tasks)]
    for _ in range(rounds - 1):
        blocks = [try_again.remote(index, size, block) for index, block in enumerate(blocks)]
    return [sum(int(block[0]) for block in dualray.get(blocks[at : at + 4])) for at in range(0, tasks, 4) for _ in "12"]


# ---- One large object that everybody wants -------------------------------------------------------------------------


@dualray.remote(max_retries=-1, duration=0.2)
def large(content: int, size: int) -> Any:
    """A large block."""
    return np.full(size, content, dtype=np.uint8)


@dualray.remote(max_retries=-1, duration=0.2, scheduling_strategy="SPREAD")
def look(place: int, *blocks: Any) -> int:
    """What is in large blocks."""
    return place + sum(int(block[-1]) for block in blocks)


def broadcast(*, blocks: int = 3, readers: int = 12, size: int = 12_000_000) -> list[int]:
    """Every node wants the same large blocks, at about the same time."""
    made = [large.remote(content, size) for content in range(blocks)]
    return dualray.get([look.remote(place, *made) for place in range(readers)])
