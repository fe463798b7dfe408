"""What can go wrong, as data: one fault is what happens, to whom, and when.

A fault is anchored in time (`at`, since init) or, better, at a logical event: the n-th start of a task of some name,
counted over the whole cluster, so that the same fault bites at the same place in every run and in both modes.

In words:  kill node-5 at 2.5s
           kill node-5 when Network.gradient starts 40
           kill worker when step starts 3            (the worker that starts it)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from dualray.shared.model.config import SECOND_NS
from dualray.shared.units import parse_time_ns


class FaultKind(StrEnum):
    KILL_NODE = "kill node"
    KILL_WORKER = "kill worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Exactly one of `at_ns` and `task_name` is given; `start` counts from 1."""

    kind: FaultKind
    node: str = ""
    at_ns: int | None = None
    task_name: str | None = None
    start: int = 1

    def __str__(self) -> str:
        target = self.node if self.kind is FaultKind.KILL_NODE else "worker"
        if self.at_ns is not None:
            seconds, rest_ns = divmod(self.at_ns, SECOND_NS)
            places = f".{rest_ns:09d}".rstrip("0") if rest_ns else ""
            return f"kill {target} at {seconds}{places}s"
        return f"kill {target} when {self.task_name} starts {self.start}"


_FORM = re.compile(
    r"kill\s+(?P<target>\S+)\s+(?:at\s+(?P<at>.+)|when\s+(?P<task>\S+)\s+starts\s+(?P<start>[0-9]+))", re.ASCII
)


def parse_fault(text: str) -> Fault:
    """A fault in words; see the module.

    Raises:
        ValueError: the words are not understood, a worker is to be killed without a task, or the count is 0.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"fault {text!r} is not understood; write 'kill node-5 at 2.5s', 'kill node-5 when f starts 40' or "
            f"'kill worker when f starts 3'"
        )
    target, at, task, start = match["target"], match["at"], match["task"], match["start"]
    at_ns = parse_time_ns(at, f"fault {text!r}") if at is not None else None
    if start is not None and int(start) < 1:
        raise ValueError(f"fault {text!r}: starts are counted from 1")
    if target == "worker":
        if task is None:
            raise ValueError(f"fault {text!r}: say which worker, by the task that it starts: 'when f starts 3'")
        return Fault(kind=FaultKind.KILL_WORKER, task_name=task, start=int(start))
    return Fault(kind=FaultKind.KILL_NODE, node=target, at_ns=at_ns, task_name=task, start=int(start) if start else 1)
