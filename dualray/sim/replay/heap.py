"""The memory that a worker of a replay holds by itself: what its tasks held at most when they were recorded.

A worker that has done nothing holds what the least of the record held. While a task runs, it holds the task's peak. An
actor keeps what its last call held; any other worker gives it back when the task ends.
"""

from __future__ import annotations

from dualray.recording.graph import Graph, Script
from dualray.shared.model.ids import Address
from dualray.sim.cost.memory import NodeMemory


class NoHeap:
    """Of a driver, and where the record does not know what tasks hold."""

    __slots__ = ()

    def begins(self, script: Script) -> None:
        """A task begins."""

    def ends(self, *, is_actor: bool) -> None:
        """It has ended."""


class Heap(NoHeap):
    """See the module."""

    __slots__ = ("_address", "_held_bytes", "_least_bytes", "_memory")

    def __init__(self, graph: Graph, memory: NodeMemory, address: Address) -> None:
        self._memory = memory
        self._address = address
        self._least_bytes = graph.worker_bytes
        self._held_bytes = 0
        self._hold(self._least_bytes)  # a worker that waits for its first task holds as much as one that has none

    def begins(self, script: Script) -> None:
        self._hold(script.peak_bytes)

    def ends(self, *, is_actor: bool) -> None:
        if not is_actor:
            self._hold(self._least_bytes)

    def _hold(self, size_bytes: int) -> None:
        if size_bytes != self._held_bytes:
            self._memory.take(self._address, size_bytes - self._held_bytes)
            self._held_bytes = size_bytes
