"""Predictions for clusters that grow and shrink, beside clusters of a fixed size: makespan, cost, node-hours, and for
how long nodes were on their way.

Each is a replay of a recorded run, with the autoscaler of the core and a simulated provider. What the file says of its
groups is kept: start-up times, refusals, spot nodes, and the least time that a node is paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from dualray.recording.calibration import Calibration
from dualray.shared.model.config import Config
from dualray.shared.nearest import nearest
from dualray.shared.scenario.growth import Growth
from dualray.shared.units import parse_time_ns, time_words
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.network.topologies import wiring_of_scenario
from dualray.sim.processes.node import Hardware
from dualray.sim.replay.replay import ReplayCluster
from dualray.sim.replay.replayed import Replayed
from dualray.sim.runtime import hardware_of_scenario, machine_groups
from dualray.whatif.durations import Durations, own_durations
from dualray.whatif.intervals import posterior_of
from dualray.whatif.predict import cold_start_ns
from dualray.whatif.predicted import Trace

HOUR_NS: Final = 3600 * 10**9
COLUMNS: Final = ("cluster", "makespan", "cost", "node-hours", "waited", "launched", "at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingRow:
    """One cluster: medians over the seeds.

    Attributes:
        words: what it is.
        makespan_s: from the program's begin to its end.
        cost: of all nodes until then, in the currency of the prices; None where no group has one.
        node_hours: for which nodes are paid, those that were launched from their launch on.
        waited_s: for how long at least one node was on its way.
        launched, nodes_most: nodes that were launched; of all, those that there were at a time at most.
        lacks: why the program did not come to its end; empty when it did.
    """

    words: str
    makespan_s: float
    cost: float | None
    node_hours: float
    waited_s: float
    launched: int
    nodes_most: int
    lacks: str = ""

    def cells(self) -> list[str]:
        """The row for a table."""
        if self.lacks:
            return [self.words, "cannot run", "", "", "", "", ""]
        return [
            self.words,
            f"{self.makespan_s:,.1f} s",
            "" if self.cost is None else f"{self.cost:,.2f}",
            f"{self.node_hours:,.3f}",
            f"{self.waited_s:,.1f} s",
            f"{self.launched:,}",
            f"{self.nodes_most:,}",
        ]


def with_prices(growth: Growth, prices: Mapping[str, float]) -> Growth:
    """The same with these prices of groups, for one node for an hour.

    Raises:
        ValueError: a group that there is not, with the nearest name.
    """
    groups = dict(growth.cluster.scaling)
    for name, price in prices.items():
        if name not in groups:
            raise ValueError(f"price: the cluster has no group {name!r}{nearest(name, groups)}")
        groups[name] = groups[name].model_copy(update={"price": price})
    return growth.model_copy(update={"cluster": growth.cluster.model_copy(update={"scaling": groups})})


def parse_prices(text: str) -> dict[str, float]:
    """`"cpu=0.40,gpu=2.80"` as prices by group.

    Raises:
        ValueError: it is no such text.
    """
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not equals or not name.strip() or not 0 <= price < float("inf"):
            raise ValueError(
                f"price: {part!r} must be a group and the price of its nodes for an hour, such as cpu=0.40"
            )
        prices[name.strip()] = price
    return prices


def predict_growing(
    trace: Trace,
    growth: Growth,
    *,
    idle_timeouts: Sequence[str] = (),
    seeds: int = 1,
    calibration: Calibration | None = None,
    cores: float | None = None,
    host_cores: float | None = None,
    cold_start: str | float | None = "recorded",
    fixed: Sequence[str] = ("min", "max"),
) -> list[GrowingRow]:
    """Replay a recorded run on a cluster that grows, once for each idle timeout, and on fixed ones.

    Args:
        idle_timeouts: such as "1m"; none: that of the file.
        seeds: how often each is replayed; the first time with the recorded times, then with drawn ones.
        calibration: what was measured of the machines in question.
        cores, host_cores: physical ones; see `predict`.
        cold_start: how long a launched node's first workers take to be there after it has joined ("300ms", or
            seconds); "recorded": as long as those of the recorded run did.
        fixed: which clusters of a fixed size stand beside: with the least and with the most nodes of each group.

    Raises:
        ValueError: a time that is none.
    """
    wanted = [(f"grows, {text} idle", parse_time_ns(text, "--idle-timeout")) for text in idle_timeouts]
    if not wanted:
        own_ns = growth.limits.get("idle_timeout_ns", Config().idle_timeout_ns)
        wanted = [(f"grows, {time_words(own_ns)} idle", own_ns)]
    replays = _Replays(trace, growth, seeds, calibration, cores, host_cores, cold_start_ns(cold_start, trace.graph))
    rows = [replays.row(words, idle_ns) for words, idle_ns in wanted]
    for which in fixed:
        count, hardware, price = _fixed(growth, which)
        if count:
            rows.append(replays.fixed_row(f"fixed, {which}: {count:,}", hardware, price))
    return rows


def _fixed(growth: Growth, which: str) -> tuple[int, list[Hardware], float]:
    """A cluster of a fixed size: its nodes, and what all of them cost an hour."""
    scaling = growth.cluster.scaling
    base = hardware_of_scenario(growth)
    price = sum(group.min * group.price for group in scaling.values())
    if which == "max":
        kinds = machine_groups(growth.cluster)
        base += [kinds[name].hardware for name, group in scaling.items() for _ in range(group.max - group.min)]
        price = sum(group.max * group.price for group in scaling.values())
    return len(base), base, price


class _Replays:
    """What all replays of one call share."""

    def __init__(
        self,
        trace: Trace,
        growth: Growth,
        seeds: int,
        calibration: Calibration | None,
        cores: float | None,
        host_cores: float | None,
        cold_ns: int,
    ) -> None:
        self._graph = trace.graph
        self._growth = growth
        self._seeds = seeds
        cost_model = CostModel()
        if calibration is not None:
            cost_model = cost_model.with_changes(calibration.costs, "calibration")
        self._posterior = posterior_of(cost_model, calibration, {})
        self._draws = Durations(trace.graph) if seeds > 1 else None
        self._cores = cores
        self._host_cores = host_cores
        self._groups = {
            name: replace(group, hardware=replace(group.hardware, cold_start_ns=cold_ns))
            for name, group in machine_groups(growth.cluster).items()
        }
        self._has_prices = any(group.price for group in growth.cluster.scaling.values())

    def row(self, words: str, idle_ns: int) -> GrowingRow:
        """A cluster that grows."""
        limits = self._growth.limits | {"idle_timeout_ns": idle_ns}
        found = [
            self._replay(seed, hardware_of_scenario(self._growth), limits, self._groups) for seed in range(self._seeds)
        ]
        least = sum(group.min * group.price for group in self._growth.cluster.scaling.values())
        return self._row(words, found, [it.cost + least * it.makespan_ns / HOUR_NS for it in found])

    def fixed_row(self, words: str, hardware: Sequence[Hardware], price: float) -> GrowingRow:
        """A cluster of a fixed size."""
        limits = {name: value for name, value in self._growth.limits.items() if name != "autoscaler_groups"}
        found = [self._replay(seed, hardware, limits, {}) for seed in range(self._seeds)]
        return self._row(words, found, [price * it.makespan_ns / HOUR_NS for it in found])

    def _replay(
        self, seed: int, hardware: Sequence[Hardware], limits: Mapping[str, Any], growing: Mapping[str, Any]
    ) -> Replayed:
        cost_model, slowdown = self._posterior.drawn(seed)
        cluster = ReplayCluster(
            self._graph,
            config=Config(**{**limits, "inline_bytes_max": self._graph.inline_bytes_max}),
            cost_model=replace(cost_model),
            seed=seed,
            hardware=hardware,
            scale_of=self._draws.scale_of(seed) if self._draws is not None else own_durations,
            cores=self._cores,
            host_cores=self._host_cores,
            slowdown=slowdown,
            wiring=wiring_of_scenario(self._growth.cluster),
            growing=growing,
        )
        return cluster.run()

    def _row(self, words: str, found: Sequence[Replayed], costs: Sequence[float]) -> GrowingRow:
        return GrowingRow(
            words=words,
            makespan_s=median(it.makespan_ns for it in found) / 1e9,
            cost=median(costs) if self._has_prices else None,
            node_hours=median(it.node_ns for it in found) / HOUR_NS,
            waited_s=median(it.waited_ns for it in found) / 1e9,
            launched=int(median(it.launched for it in found)),
            nodes_most=int(median(it.nodes_most for it in found)),
            lacks=next((it.failed for it in found if it.failed), ""),
        )
