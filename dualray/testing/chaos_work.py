"""The workload of a chaos run: rounds of tasks, large objects and actors, each with a result that no fault may change.

A lane is a function of a round's number. Lanes run side by side, each on a thread of its own, round after round; the
results must be those of the same rounds without faults, which sim mode gives. `ledger` checks what a result cannot
show: that an actor which keeps state has executed each call at most once, and one caller's in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import dualray
from dualray.exceptions import ActorError, WorkerCrashedError
from dualray.testing.workloads import SURVIVORS, WORKLOADS, map_reduce, mixed, rollouts, tree_reduce

Lane = Callable[[int], Any]
"""The result of a round, as JSON has it."""

MIXED = "mixed"
DISTINCT_ROUNDS = 3
"""After so many rounds the same ones come again: so many expected results there are."""


@dualray.remote(max_restarts=-1, max_task_retries=0)
class Ledger:
    """Keeps state: how many entries this life of it has."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    def enter(self, entry: int) -> list[int]:
        """All entries of this life, this one last."""
        self.entries.append(entry)
        return self.entries


def ledger(*, calls: int = 30, seconds: float = 0.01, window: int = 4) -> str:
    """Calls of an actor that keeps state, `window` of them under way at a time.

    A call whose actor has died may fail. Of those that are answered, each must find in the actor the calls before it
    of this life, once and in order.
    """
    actor = cast(Any, Ledger).remote()
    answers: list[list[int]] = []
    waiting: list[Any] = []
    for entry in range(calls):
        waiting.append(actor.enter.remote(entry))
        if len(waiting) == window or entry == calls - 1:
            answers += [found for ref in waiting if (found := _answer(ref)) is not None]
            waiting.clear()
    last: list[int] = []
    for found in answers:
        if found != sorted(set(found)):
            return f"an actor executed calls twice, or out of order: {found}"
        is_same_life = last and found[0] == last[0]
        if is_same_life and found[: len(last)] != last:
            return f"an actor lost entries without a restart: {last}, then {found}"
        if last and not is_same_life and found[0] <= last[-1]:
            return f"a restarted actor executed calls that had run before the restart: {last}, then {found}"
        last = found
    return "in order"


def _answer(ref: Any) -> list[int] | None:
    try:
        found: list[int] = dualray.get(ref)
    except (ActorError, WorkerCrashedError):
        return None
    return list(found)


def _tasks(number: int) -> Any:
    return mixed(tasks=12, seconds=0.03, size=200_000, seed=number)


def _objects(number: int) -> Any:
    blocks = map_reduce(maps=6, reduces=4, seconds=0.05, size=1_500_000, skew=0.5, seed=number)
    return [blocks, tree_reduce(leaves=8, fan_in=2, seconds=0.03, size=4_000_000, seed=number)]


def _actors(number: int) -> Any:
    return [rollouts(batch=12, simulators=2, updates=2, seconds=0.03, size=150_000, seed=number), ledger()]


def lanes(workload: str) -> Mapping[str, Lane]:
    """The lanes of a workload: `mixed` has three, a generated workload of dualray/testing/workloads.py is one.

    Raises:
        ValueError: there is no such workload, or faults may change its result.
    """
    if workload == MIXED:
        return {"tasks": _tasks, "objects": _objects, "actors": _actors}
    if workload not in SURVIVORS:
        why = "faults may change its result" if workload in WORKLOADS else "no workload has this name"
        raise ValueError(f"workload {workload!r}: {why}; choose one of {', '.join(sorted(SURVIVORS))}")
    return {workload: lambda number: WORKLOADS[workload](seed=number)}


TASKS: Mapping[str, tuple[str, ...]] = {MIXED: ("piece", "count", "branch", "map", "reduce", "leaf", "node")}
"""Names of tasks of which every round starts some: anchors for kills of workers."""
ACTORS: Mapping[str, tuple[str, ...]] = {MIXED: ("Simulator", "Ledger")}


def expected(work: Mapping[str, Lane], seed: int) -> dict[str, list[Any]]:
    """Of each lane, the results of its distinct rounds without faults, in sim mode.

    Raises:
        AlreadyInitializedError: this process is already connected to a cluster.
    """
    dualray.init(mode="sim", nodes=3, num_cpus=2, seed=seed)
    try:
        return {name: [lane(number) for number in range(DISTINCT_ROUNDS)] for name, lane in work.items()}
    finally:
        dualray.shutdown()
