"""A prediction: the recorded run, a row for each configuration, and the choices that follow from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dualray.recording.calibration import Calibration
from dualray.recording.graph import Graph
from dualray.shared.model.config import Config
from dualray.shared.model.resources import CPU, GPU
from dualray.shared.units import parse_time_ns, time_words
from dualray.sim.replay.replayed import Replayed
from dualray.whatif.causes import Cause, causes_of
from dualray.whatif.compare import Difference, difference, of_configuration
from dualray.whatif.configurations import Configuration
from dualray.whatif.critical_path import Stretch, critical_path
from dualray.whatif.intervals import within
from dualray.whatif.spot import is_spot

SCALING_SHARE = 0.6
"""A share of the ideal speedup: CPUs that bring more than this share are worth their price."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run, loaded from its file."""

    path: Path
    graph: Graph

    @property
    def words(self) -> str:
        """The run in words."""
        facts = self.graph.facts
        counts = [len(self.graph.tasks), len({it.name for it in self.graph.templates}), len(facts["nodes"])]
        tasks, functions, nodes = (
            f"{count:,} {what}{'' if count == 1 else 's'}"
            for count, what in zip(counts, ("task", "function", "node"), strict=True)
        )
        return f"{tasks} of {functions}, {_seconds(self.graph.makespan_ns)} on {nodes} ({facts['machine']})"

    @property
    def own(self) -> Configuration:
        """The cluster that it was recorded on, as far as a configuration can say it."""
        return own_configuration(self.graph)


def own_configuration(graph: Graph) -> Configuration:
    """The cluster that a program was recorded on, as far as a configuration can say it."""
    nodes = graph.facts["nodes"]
    first = next(iter(nodes.values()))
    return Configuration(
        nodes=len(nodes),
        cpus=first["resources"].get(CPU, 0),
        gpus=first["resources"].get(GPU, 0),
        store_bytes=first["object_store"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is predicted for one configuration: the median over the seeds, and for the makespan a 90 % interval.

    Attributes:
        makespan_s, low_s, high_s: from the program's begin to its end; intervals.py says what the interval is made of.
        utilisation: of all CPUs, 0 to 1.
        moved_bytes, spilled_bytes: between nodes, and to disk.
        remade_s: time that was lost with nodes and workers, or spent on doing work again.
        cost: nodes by price by hours; None without a price.
        lacks: why the program cannot run there, or did not come to its end; empty when it did.
        store_peak_bytes, heap_peak_bytes: on the node where it is most: of its store, and of its workers' own memory; 0
            when the record does not know what tasks hold.
        killed: whom the memory monitor ends with the first seed: when (ns), the node, and what ran there.
        outside: why this lies outside of what was calibrated, for each reason a line.
    """

    configuration: Configuration
    makespan_s: float
    low_s: float
    high_s: float
    utilisation: float
    moved_bytes: int
    spilled_bytes: int
    evictions: int
    remade_s: float
    attempts: int
    cost: float | None
    lacks: str = ""
    outside: tuple[str, ...] = ()
    store_peak_bytes: int = 0
    heap_peak_bytes: int = 0
    killed: tuple[tuple[int, str, str], ...] = ()

    def plain(self) -> dict[str, Any]:
        """The row as plain values, the configuration's among them."""
        own = {name: getattr(self, name) for name in Row.__dataclass_fields__ if name != "configuration"}
        return {**asdict(self.configuration), **own}


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """What a node needs at least, in bytes.

    Attributes:
        store_bytes: the smallest store that does not spill.
        heap_bytes: the most that its workers hold by themselves at once; 0: the record does not know it.
        memory_bytes: the smallest memory with which the monitor ends nobody; 0: as above.
    """

    store_bytes: int
    heap_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices for an hour: of a node, of each of its GPUs in addition, and of a spot machine. None: unknown."""

    node: float | None = None
    gpu: float = 0.0
    spot: float | None = None


_WITHOUT_END = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The rows of a sweep, in the order of its configurations; `runs` has every replay.

    `check_s` is what the replay takes on the cluster on which the program was recorded, in seconds, to be held against
    what the record took; None when that was a simulation, or the replay failed.
    """

    trace: Trace
    rows: Sequence[Row]
    runs: Sequence[tuple[Configuration, int, Replayed]]
    calibration: Calibration | None = None
    job: Any = field(default=None, repr=False)
    check_s: float | None = None
    cold_start_s: float = 0.0
    """The time that the first workers take to start, if the cluster starts with the program."""
    prices: Prices = Prices()

    def chosen(self, deadline: str | float | None = None) -> Row | None:
        """The row to choose: the cheapest that meets the deadline, else the knee, else the fastest."""
        found = self.cheapest(deadline) if deadline is not None else None
        return found or self.knee() or min(self.possible, key=lambda row: row.makespan_s, default=None)

    def critical_path(self, row: Row) -> list[Stretch]:
        """What the end of the program waits for on this row's cluster, step by step: one more replay."""
        steps = self.job.replay(row.configuration, 0, with_steps=True).steps
        return critical_path(steps)

    def chance(self, row: Row, deadline: str | float) -> float:
        """The share of the seeds with which a row's program ends within a deadline ("10min", or seconds)."""
        deadline_ns = parse_time_ns(deadline, "deadline") if isinstance(deadline, str) else round(deadline * 1e9)
        replays = of_configuration(self.runs, row.configuration)
        return sum(not it.failed and it.makespan_ns <= deadline_ns for it in replays) / len(replays)

    def probability(self, row: Row, deadline: str | float) -> float:
        """How likely a run on a row's cluster ends within a deadline: the mean over the seeds, of which each has the
        model's own error about it."""
        deadline_s = parse_time_ns(deadline, "deadline") / 1e9 if isinstance(deadline, str) else float(deadline)
        noise = 0.0 if self.calibration is None else self.calibration.noise
        times_s = [0.0 if it.failed else it.makespan_ns / 1e9 for it in of_configuration(self.runs, row.configuration)]
        return within(deadline_s, times_s, nodes=row.configuration.nodes, noise=noise, outside=len(row.outside))

    def likely(self, deadline: str | float, probability: float, *, on_spot: bool) -> Row | None:
        """The cheapest row on spot machines, or on demand, that ends within a deadline with at least this probability;
        None: there is none."""
        rows = [row for row in self.possible if is_spot(row.configuration.faults) == on_spot]
        meeting = [row for row in rows if self.probability(row, deadline) >= probability]
        return min(meeting, key=_price_key, default=None)

    def memory(self, row: Row) -> MemoryNeeds:
        """What the program would hold on this row's cluster if there were no end to store and memory: one more replay.

        Raises:
            ValueError: the program cannot run there at all.
        """
        config = replace(row.configuration, store_bytes=_WITHOUT_END, memory_bytes=0)
        replayed = self.job.replay(config, 0)
        if replayed.failed:
            raise ValueError(f"the program cannot run on {config.words}: {replayed.failed}")
        percent = Config().memory_limit_percent
        least_bytes = -(-replayed.peak_bytes * 100 // percent) if replayed.heap_peak_bytes else 0
        return MemoryNeeds(replayed.store_peak_bytes, replayed.heap_peak_bytes, least_bytes)

    def compare(self, one: Row, other: Row) -> Difference:
        """By how much the other is faster, paired over the seeds.

        Raises:
            ValueError: the program cannot run on one of them.
        """
        both = (of_configuration(self.runs, row.configuration) for row in (one, other))
        return difference(*both)

    def causes(self, row: Row) -> list[Cause]:
        """Split the makespan of this row by cause, as a table that adds up to it with the first seed: one more
        replay."""
        replayed = self.job.replay(row.configuration, 0, with_steps=True)
        return causes_of(replayed, self.job.posterior.costs, cold_start_ns=self.job.cold_start_ns)

    def to_arrow(self) -> Any:
        """The rows as a `pyarrow.Table`."""
        import pyarrow as pa  # noqa: PLC0415 - only who asks for it needs it

        return pa.Table.from_pylist([row.plain() for row in self.rows])

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`."""
        return self.to_arrow().to_pandas()

    @property
    def possible(self) -> list[Row]:
        """The rows in which the program ends."""
        return [row for row in self.rows if not row.lacks]

    def knee(self) -> Row | None:
        """Where more CPUs begin to help little: of the fastest rows for each number of CPUs in all, the one that lies
        farthest below the line from the fewest to the most, both axes scaled to 1. None below three numbers of CPUs,
        and where the CPUs beyond that row still bring more than SCALING_SHARE of what they could."""
        best: dict[float, Row] = {}
        for row in self.possible:
            capacity = row.configuration.nodes * row.configuration.cpus
            if capacity not in best or row.makespan_s < best[capacity].makespan_s:
                best[capacity] = row
        points = sorted(best.items())
        if len(points) < 3:
            return None
        (first_x, first), (last_x, last) = points[0], points[-1]
        drop_s = first.makespan_s - last.makespan_s
        if drop_s <= 0.05 * first.makespan_s:
            return first

        def below(point: tuple[float, Row]) -> float:
            x = (point[0] - first_x) / (last_x - first_x)
            return (first.makespan_s - point[1].makespan_s) / drop_s - x

        knee_x, knee = max(points, key=below)
        speedup = knee.makespan_s / last.makespan_s
        return None if speedup > SCALING_SHARE * last_x / knee_x else knee

    @property
    def is_scaling(self) -> bool:
        """Whether there are three numbers of CPUs or more, and the most of them is still worth its CPUs."""
        numbers = {row.configuration.nodes * row.configuration.cpus for row in self.possible}
        return len(numbers) >= 3 and self.knee() is None

    def cheapest(self, deadline: str | float) -> Row | None:
        """The cheapest row that meets a deadline ("10min", or seconds) with all of its interval; without prices, that
        with the fewest CPUs by its time. None when none does."""
        deadline_s = parse_time_ns(deadline, "deadline") / 1e9 if isinstance(deadline, str) else float(deadline)
        meeting = [row for row in self.possible if row.high_s <= deadline_s]
        return min(meeting, key=_price_key, default=None)


def _price_key(row: Row) -> tuple[float, float]:
    it = row.configuration
    capacity = it.nodes * (it.cpus + 20 * it.gpus) * row.makespan_s
    return (row.cost if row.cost is not None else capacity, row.makespan_s)


def _seconds(ns: int) -> str:
    return time_words(round(ns, -6))
