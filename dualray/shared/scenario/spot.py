"""Availability of spot machines, as a file says it, and the faults that follow from it.

The format is that of github.com/skypilot-org/spot-traces: a JSON object with `metadata`, of which `gap_seconds` counts,
and `data`: how many machines could be had, tick by tick. `prices`, if it is there, says what one costs for an hour,
tick by tick; it is an addition of this program.

    {"metadata": {"gap_seconds": 300}, "data": [4, 4, 3, 0, 2, 4], "prices": [0.9, 0.9, 1.1, 1.6, 1.2, 0.9]}

The first node, where the driver runs, is on demand, and is always there. All other nodes are spot machines: the k-th of
them goes when fewer than k can be had, and is back, empty, when k can be had again. A run begins at a tick at which it
can have all of its nodes; each seed draws another one. After the last tick nothing changes any more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dualray.shared.scenario.fault_model import Fault, FaultKind
from dualray.shared.seeding import stream_seed

SKYPILOT = "skypilot-spot"
"""The name of the format."""
_GAP_S_MAX = 10**7


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """How many machines could be had, every `gap_ns`, and what one cost for an hour (empty: nobody knows)."""

    path: str
    gap_ns: int
    counts: tuple[int, ...]
    prices: tuple[float, ...] = ()

    def starts(self, machines: int) -> list[int]:
        """The ticks at which so many machines can be had."""
        return [tick for tick, count in enumerate(self.counts) if count >= machines]

    def start(self, nodes: int, seed: int) -> int:
        """The tick at which a run on so many nodes begins.

        Raises:
            ValueError: this number of machines was never available.
        """
        machines = nodes - 1
        starts = self.starts(machines)
        if not starts:
            most = max(self.counts)
            raise ValueError(
                f"{self.path}: the trace never has {machines} spot machines at the same time, but at most {most}. "
                f"Give the cluster at most {most + 1} nodes"
            )
        return starts[stream_seed(b"%d" % seed, b"spot") % len(starts)]

    def faults(self, nodes: int, seed: int) -> tuple[Fault, ...]:
        """What happens to the spot machines among so many nodes, in a run that begins at the tick that the seed draws.

        Raises:
            ValueError: this number of machines was never available.
        """
        start = self.start(nodes, seed)
        return tuple(fault for machine in range(1, nodes) for fault in self._faults_of(machine, start))

    def cost(self, nodes: int, seed: int, takes_ns: int) -> float:
        """What the spot machines among so many nodes cost in a run that takes so long: each counts while it is there,
        at the price of the time. The file must have prices."""
        start, total = self.start(nodes, seed), 0.0
        last = len(self.counts) - 1
        for tick in range(start, last + 1):
            begins_ns = (tick - start) * self.gap_ns
            if begins_ns >= takes_ns:
                break
            ends_ns = takes_ns if tick == last else min(takes_ns, begins_ns + self.gap_ns)
            there = min(self.counts[tick], nodes - 1)
            total += there * self.prices[tick] * (ends_ns - begins_ns) / _NS_PER_HOUR
        return total

    def _faults_of(self, machine: int, start: int) -> list[Fault]:
        found = []
        gone_at: int | None = None
        for tick in range(start, len(self.counts)):
            is_there = self.counts[tick] >= machine
            if gone_at is None and not is_there:
                gone_at = tick
            elif gone_at is not None and is_there:
                found.append(self._fault(machine, gone_at - start, tick - gone_at))
                gone_at = None
        if gone_at is not None:
            found.append(self._fault(machine, gone_at - start, None))
        return found

    def _fault(self, machine: int, after: int, ticks: int | None) -> Fault:
        return Fault(
            kind=FaultKind.REBOOT_NODE if ticks is not None else FaultKind.KILL_NODE,
            node=f"node-{machine}",
            at_ns=after * self.gap_ns,
            for_ns=None if ticks is None else ticks * self.gap_ns,
        )


_NS_PER_HOUR = 3_600 * 10**9


def parse_spot(text: str, path: str) -> SpotTrace:
    """Read the text of such a file.

    Raises:
        ValueError: it is of another format; one line says what is wrong.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    metadata = content.get("metadata") if isinstance(content, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 < gap <= _GAP_S_MAX:
        raise ValueError(f"{path}: metadata.gap_seconds={gap!r} must be a number of seconds, above 0")
    data = content.get("data")
    if not isinstance(data, list) or not data:
        raise ValueError(f"{path}: data must be a list with the number of available machines in each interval")
    for index, count in enumerate(data):
        if type(count) is not int or count < 0:
            raise ValueError(f"{path}: data[{index}]={count!r} must be a whole number of machines")
    prices = content.get("prices", [])
    if not isinstance(prices, list) or len(prices) not in (0, len(data)):
        raise ValueError(f"{path}: prices must be a list of {len(data)} prices, one for each number in data")
    for index, price in enumerate(prices):
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
            raise ValueError(
                f"{path}: prices[{index}]={price!r} must be the price of a machine for an hour, at least 0"
            )
    return SpotTrace(path, round(gap * 1e9), tuple(data), tuple([float(price) for price in prices]))
