"""The result of a replay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Step:
    """What one execution did and when, for the critical path: times since the program's begin, in ns.

    Attributes:
        parent, submitted_ns, deps: who submitted it, when, and which objects it was given; the driver has none.
        before: who ran on its worker before it.
        waits: began, ended, objects, of whatever it waited for.
        computing: began, ended, of whatever it computed, and how long that takes alone.
        lost: began, ended, of attempts that did not end well.
    """

    name: str
    node: str
    parent: bytes = b""
    submitted_ns: int = 0
    deps: tuple[bytes, ...] = ()
    began_ns: int = 0
    ended_ns: int = 0
    before: bytes = b""
    waits: list[tuple[int, int, tuple[bytes, ...]]] = field(default_factory=list)
    computing: list[tuple[int, int, float]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)

    def begin_again(self, now_ns: int) -> None:
        """Another attempt begins."""
        self.lost.append((self.began_ns, now_ns))
        self.waits.clear()
        self.computing.clear()


@dataclass(frozen=True, slots=True)
class Move:
    """An object has come to a node from another one, or has gone to its disk or come from there; times as a Step's."""

    object_id: bytes
    node: str
    began_ns: int
    ended_ns: int
    is_disk: bool


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What became of a replay; times in ns, sizes in bytes.

    Attributes:
        makespan_ns: from the program's begin to its end; up to the failure of one that failed.
        since_ns: as makespan, from the first submission of the function that was asked for.
        busy_ns: CPU-time asked for by what ran: each attempt's time on its worker by its CPUs; of an actor's calls,
            what they used.
        cpu_ns: CPUs of the living nodes, by the makespan.
        lost_ns: time of attempts that were lost or done again.
        store_peak_bytes, heap_peak_bytes, peak_bytes: on the node where it is most: of its store, of its workers' own
            memory, and of both at once; peaks of workers are 0 when the record does not know them.
        killed: whom the memory monitor has ended: when, since the program's begin, the node, and what ran there.
        node_ns: for how long nodes were paid, those that were launched from their launch on; `cost` is theirs.
        waited_ns: for how long nodes were on their way.
        launched, nodes_most: nodes that were launched, and how many there were of all at a time at most.
        failed: why the program could not go on, in words; empty when it ended well.
    """

    makespan_ns: int = 0
    since_ns: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0
    lost_ns: int = 0
    tasks: int = 0
    attempts: int = 0
    moved_bytes: int = 0
    spilled_bytes: int = 0
    evictions: int = 0
    faults: int = 0
    store_peak_bytes: int = 0
    heap_peak_bytes: int = 0
    peak_bytes: int = 0
    killed: list[tuple[int, str, str]] = field(default_factory=list)
    node_ns: int = 0
    cost: float = 0.0
    waited_ns: int = 0
    launched: int = 0
    nodes_most: int = 0
    failed: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    by_node: dict[str, int] = field(default_factory=dict)
    """Of each node, `busy_ns`."""
    spans: list[tuple[str, str, str, int, int, int]] | None = None
    """On demand: name, node, worker, began, ended, attempt."""
    steps: dict[bytes, Step] | None = None
    """On demand: by task; the driver's is under no bytes."""
    moves: list[Move] | None = None
    """On demand, with the steps."""
    marks: list[int] = field(default_factory=list)
    """When the driver made its small puts, since the program's begin: with these a program marks its own phases."""
