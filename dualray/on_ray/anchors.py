"""Logical anchors of faults on Ray: where a call begins or ends, the layer asks who counts.

A scenario that runs with `--mode ray` starts a `Watcher`, an actor without CPUs, and names it in the environment. A
worker that begins or ends a call that the plan names tells it, and goes on when the fault has been performed: so a
fault bites at the same place as in the other modes. It kills itself; what takes others is performed by who runs the
scenario (dualray/testing/ray_run.py). A program that runs without a plan asks nobody.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray

NAMESPACE = "dualray-faults"
NAME = "watcher"
VARIABLE = "DUALRAY_FAULT_WATCHER"
"""Names the watcher to a driver."""
_PATIENCE_S = 20.0
"""So long a call waits for a fault that it has brought about."""
STARTED, ENDED, SUBMITTED = "task_started", "task_ended", "task_submitted"
_KILL = "kill"


class Anchor(NamedTuple):
    """Of one fault of the plan: the `nth` event of a kind, of a name or "" for any, on a node or "" for any.

    submission: it is of the call that was submitted as this one; 0: `nth` counts. is_suicide: the worker dies of it.
    is_later: it comes some time after the event, and nobody waits for it.
    """

    fault: int
    event: str
    name: str
    node: str
    nth: int
    submission: int
    is_suicide: bool
    is_later: bool


class Passed(NamedTuple):
    """An anchor that was passed: by which process, on which node."""

    fault: int
    node: str
    pid: int


class Watched(NamedTuple):
    """What workers know of the plan: who counts, and which names it wants to hear of; "" for all."""

    watcher: Any
    names: frozenset[str]

    def wants(self, name: str) -> bool:
        """Whether a call of this name is of interest."""
        return "" in self.names or name in self.names or f"{name.partition('.')[0]}." in self.names


class Watcher:
    """Counts events, and holds up who has passed an anchor until the fault has been performed."""

    def __init__(self, anchors: Sequence[Anchor], names: Sequence[str]) -> None:
        self._anchors = [Anchor(*each) for each in anchors]
        self._names = tuple(names)
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._submitted: Counter[str] = Counter()
        self._numbers: dict[bytes, int] = {}
        self._is_new = asyncio.Event()
        self._passed: list[Passed] = []
        self._performed: dict[int, asyncio.Event] = {}
        self._actors: dict[str, dict[int, str]] = {}

    async def names(self) -> tuple[str, ...]:
        """Which names are of interest."""
        return self._names

    async def tell(self, event: str, name: str, node: str, pid: int, task: bytes) -> str:
        """Something has happened; what the caller is to do to itself, once others are done with."""
        if event == SUBMITTED:
            self._submitted[name] += 1
            self._numbers[task] = self._submitted[name]
            self._is_new.set()
            self._is_new = asyncio.Event()
        if "." in name and event == STARTED:
            workers = self._actors.setdefault(name.partition(".")[0], {})
            workers.pop(pid, None)
            workers[pid] = node
        for each_name in {name, ""}:
            for each_node in {node, ""}:
                self._counts[event, each_name, each_node] += 1
        order = ""
        for anchor in [each for each in self._anchors if each.event == event and each.name in ("", name)]:
            if not await self._is_passed(anchor, event, node, task):
                continue
            self._anchors.remove(anchor)
            done = self._performed[anchor.fault] = asyncio.Event()
            self._passed.append(Passed(anchor.fault, node, pid))
            if anchor.is_suicide:
                order = _KILL
            elif not anchor.is_later:
                await _within_patience(done)
        return order

    async def _is_passed(self, anchor: Anchor, event: str, node: str, task: bytes) -> bool:
        if anchor.node not in ("", node):
            return False
        if not anchor.submission:
            return self._counts[event, anchor.name, anchor.node] >= anchor.nth
        while task not in self._numbers:  # its caller has not told of it yet
            if not await _within_patience(self._is_new):
                return False
        return self._numbers[task] == anchor.submission

    async def take(self) -> tuple[list[Passed], dict[str, dict[int, str]]]:
        """Anchors that were passed since the last time; and the workers that have run methods, by class."""
        passed, self._passed = self._passed, []
        return passed, self._actors

    async def performed(self, fault: int) -> None:
        """A fault has been performed: who has brought it about goes on."""
        if fault in self._performed:
            self._performed[fault].set()

    async def started(self) -> dict[str, int]:
        """How many calls of each name have begun."""
        return {name: count for (event, name, node), count in self._counts.items() if event == STARTED and not node}


async def _within_patience(event: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(event.wait(), _PATIENCE_S)
    except TimeoutError:
        return False
    return True


def watched() -> Watched | None:
    """What the environment of this driver says of a plan; None: there is none."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    watcher = ray.get_actor(name, NAMESPACE)
    return Watched(watcher, frozenset(ray.get(watcher.names.remote())))


def tell(plan: Watched, event: str, name: str, task: bytes) -> None:
    """Tell of an event, and do what it brings about."""
    node = ray.get_runtime_context().get_node_id()
    if ray.get(plan.watcher.tell.remote(event, name, node, os.getpid(), task)) == _KILL:
        os.kill(os.getpid(), signal.SIGKILL)


def anchored(plan: Watched, call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A call that tells when it begins and ends."""
    if not plan.wants(name):
        return call

    def run(*args: Any, **kwargs: Any) -> Any:
        task = ray._private.worker.global_worker.core_worker.get_current_task_id().binary()
        tell(plan, STARTED, name, task)
        try:
            return call(*args, **kwargs)
        finally:
            tell(plan, ENDED, name, task)

    return run
