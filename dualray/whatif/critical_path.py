"""The critical path of a replay: what its end had waited for, step by step back to its beginning.

From the end of the driver backwards. An execution has computed since its last wait; before that lies the task that
came last of what it waited for. A task began when the last of three was there: its arguments, its submission, and the
worker that another task had; the path goes on with whoever was the last. What lies between (messages, transfers, starts
of workers, nodes that were full) is the task's waiting time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualray.sim.replay.replayed import Step

STRETCHES_MAX = 100_000
_TASK_ID_BYTES = 16
_DRIVER = b""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the critical path, in seconds since the program's begin.

    Attributes:
        name: the function's; "the driver".
        waits: whether it waited in this time to be started, or for what it needed, rather than computed.
        task: whose step it is; the driver's is under no bytes.
        begins: whether it waited to begin.
        objects: what it waited for.
    """

    name: str
    node: str
    began_s: float
    ended_s: float
    waits: bool
    task: bytes = b""
    begins: bool = False
    objects: tuple[bytes, ...] = ()


def critical_path(steps: Mapping[bytes, Step], *, through_workers: bool = True) -> list[Stretch]:
    """The path, in order of time; together as long as the makespan.

    Args:
        through_workers: go on with the task that had the worker before, when it was the last; else only with what the
            task itself needed: then its wait for the worker is a stretch of its own.
    """
    found: list[Stretch] = []
    who, until_ns = _DRIVER, steps[_DRIVER].ended_ns
    seen_ns = until_ns

    def add(step: Step, began_ns: int, *, waits: bool, begins: bool = False, objects: tuple[bytes, ...] = ()) -> None:
        nonlocal seen_ns
        began_ns = max(0, min(began_ns, seen_ns))
        if began_ns < seen_ns:
            found.append(Stretch(step.name, step.node, began_ns / 1e9, seen_ns / 1e9, waits, who, begins, objects))
        seen_ns = began_ns

    while len(found) < STRETCHES_MAX:
        step = steps[who]
        wait = next((it for it in reversed(step.waits) if it[0] < it[1] <= until_ns), None)
        if wait is not None:
            began_ns, ended_ns, objects = wait
            add(step, ended_ns, waits=False)
            makers = [
                maker
                for maker in dict.fromkeys(object_id[:_TASK_ID_BYTES] for object_id in objects)
                if maker in steps and began_ns < steps[maker].ended_ns <= ended_ns
            ]
            if makers:
                last = max(makers, key=lambda maker: steps[maker].ended_ns)
                add(step, steps[last].ended_ns, waits=True, objects=objects)
                who, until_ns = last, steps[last].ended_ns
            else:
                add(step, began_ns, waits=True, objects=objects)
                until_ns = began_ns
            continue
        add(step, step.began_ns, waits=False)
        if who == _DRIVER or seen_ns == 0:
            break
        causes = [(step.submitted_ns, 0, step.parent)]
        causes += [
            (steps[dep[:_TASK_ID_BYTES]].ended_ns, 1, dep[:_TASK_ID_BYTES])
            for dep in step.deps
            if dep[:_TASK_ID_BYTES] in steps
        ]
        if through_workers and step.before in steps:
            causes.append((steps[step.before].ended_ns, 2, step.before))
        at_ns, _, cause = max([it for it in causes if it[0] <= step.began_ns] or causes[:1])
        add(step, at_ns, waits=True, begins=True, objects=step.deps)
        who, until_ns = cause, at_ns
    return found[::-1]


def by_function(path: Sequence[Stretch]) -> list[tuple[str, float, float]]:
    """Of each function on the path: seconds that it computed, and that it waited; the longest first."""
    found: dict[str, list[float]] = {}
    for stretch in path:
        found.setdefault(stretch.name, [0.0, 0.0])[stretch.waits] += stretch.ended_s - stretch.began_s
    return sorted(((name, *both) for name, both in found.items()), key=lambda it: -it[1] - it[2])  # type: ignore[misc]
