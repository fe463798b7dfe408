"""Availability of spot machines, as a file says it, and the faults that follow from it: `--faults spot.json`.

The format is that of github.com/skypilot-org/spot-traces: a JSON object with `metadata`, of which `gap_seconds` counts,
and `data`: how many machines could be had, tick by tick.

    {"metadata": {"gap_seconds": 300}, "data": [4, 4, 3, 0, 2, 4]}

The first node, where the driver runs, is on demand, and is always there. All other nodes are spot machines: the k-th of
them goes when fewer than k can be had, and is back, empty, when k can be had again. A run begins at a tick at which it
can have all of its nodes; each seed draws another one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dualray.shared.scenario.fault_model import Fault, FaultKind

_ENDING = ".json"


def is_spot(path: str) -> bool:
    """Whether a file of faults is one of spot machines; scenario files are YAML."""
    return path.endswith(_ENDING)


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """How many machines could be had, every `gap_ns`."""

    path: str
    gap_ns: int
    counts: tuple[int, ...]

    def starts(self, machines: int) -> list[int]:
        """The ticks at which so many machines can be had."""
        return [tick for tick, count in enumerate(self.counts) if count >= machines]

    def faults(self, nodes: int, seed: int) -> tuple[Fault, ...]:
        """What happens to the spot machines among so many nodes, in a run that begins at a tick that the seed draws.

        Raises:
            ValueError: so many machines could never be had.
        """
        machines = nodes - 1
        starts = self.starts(machines)
        if not starts:
            most = max(self.counts)
            raise ValueError(
                f"{self.path}: {machines} spot machines could never be had, at most {most}: ask for at most "
                f"{most + 1} nodes"
            )
        start = starts[Random(f"spot {seed}").randrange(len(starts))]
        return tuple(fault for machine in range(1, nodes) for fault in self._faults_of(machine, start))

    def _faults_of(self, machine: int, start: int) -> list[Fault]:
        found = []
        gone_at: int | None = None
        for tick in range(start, len(self.counts) + 1):
            is_there = tick < len(self.counts) and self.counts[tick] >= machine
            if gone_at is None and tick < len(self.counts) and not is_there:
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


def load_spot(path: str) -> SpotTrace:
    """Read such a file.

    Raises:
        ValueError: it cannot be read, or is of another format; one line says what is wrong.
    """
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"faults {path!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    metadata = content.get("metadata") if isinstance(content, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 < gap <= 10**7:
        raise ValueError(f"{path}: metadata.gap_seconds={gap!r} must be a number of seconds above 0")
    data = content.get("data")
    if not isinstance(data, list) or not data:
        raise ValueError(f"{path}: data must be a list of how many machines could be had, tick by tick")
    for index, count in enumerate(data):
        if type(count) is not int or count < 0:
            raise ValueError(f"{path}: data[{index}]={count!r} must be a whole number of machines")
    return SpotTrace(path, round(gap * 1e9), tuple(data))
