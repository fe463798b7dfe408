"""Programs and rows that the tests of dualray/report share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dualray as ray
from dualray.shared.proof.trace import TraceEvent, TraceKind

MIB = 1024 * 1024


def simulate(program: Callable[[], Any], log: Path, *, nodes: int = 3, faults: Sequence[str] = ()) -> Any:
    """Run a program on a virtual cluster that leaves its logs in a directory; what it returned."""
    ray.init(mode="sim", nodes=nodes, num_cpus=2, decision_log=log, faults=list(faults), durations="fixed")
    try:
        return program()
    finally:
        ray.shutdown()


@ray.remote(scheduling_strategy="SPREAD", max_retries=-1)
def load(number: int) -> Any:
    return np.full(MIB // 8, float(number))


@ray.remote(scheduling_strategy="SPREAD", max_retries=-1)
def augment(rows: Any) -> Any:
    return rows + 1.0


@ray.remote(max_retries=-1)
def digest(rows: Any) -> float:
    return float(rows.sum())


def two_steps(count: int) -> tuple[list[float], list[float]]:
    """Objects of two lineage steps, the first of which is dropped; all are read twice by tasks."""
    made = [augment.remote(load.remote(number)) for number in range(count)]
    first = ray.get([digest.remote(rows) for rows in made])
    return first, [ray.get(digest.remote(rows)) for rows in made]


class Rows:
    """Writes a trace by hand: `rows.stored("node-1/w0", make(1))`."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []

    def add(self, kind: TraceKind, process: str, subject: str, **fields: Any) -> None:
        self.events.append(TraceEvent(1000 * len(self.events), kind, process, subject, **fields))

    def submitted(self, task: str, *deps: str) -> None:
        self.add(TraceKind.TASK_SUBMITTED, "driver-1", task, name="f", deps=deps)

    def ran(self, process: str, task: str, attempt: int = 0) -> None:
        self.add(TraceKind.TASK_STARTED, process, task, name="f", amount=attempt)
        self.add(TraceKind.TASK_ENDED, process, task, name="f", amount=attempt)

    def stored(self, process: str, object_id: str, amount: int = MIB) -> None:
        self.add(TraceKind.OBJECT_STORED, process, object_id, amount=amount)

    def moved(self, source: str, target: str, object_id: str, amount: int = MIB) -> None:
        self.add(TraceKind.TRANSFER_STARTED, source, object_id, other=target, amount=amount)
        self.add(TraceKind.TRANSFER_ENDED, target, object_id, other=source, amount=amount)

    def deleted(self, node: str, object_id: str) -> None:
        self.add(TraceKind.OBJECT_DELETED, node, object_id)

    def killed(self, node: str) -> None:
        self.add(TraceKind.FAULT, node, node, name="kill node")

    def retried(self, task: str, reason: str, attempt: int = 1) -> None:
        self.add(TraceKind.TASK_RETRIED, "driver-1", task, other=reason, amount=attempt)


def task(number: int) -> str:
    """A task's id, as traces have it."""
    return f"{number:032x}"


def result(number: int) -> str:
    """The id of what that task returns."""
    return task(number) + "00000000"


def was_put(number: int) -> str:
    """The id of an object that was put."""
    return task(number) + "80000001"
