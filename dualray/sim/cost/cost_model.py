"""The cost model: every number that the simulator assumes of the virtual cluster, in one place.

Theory of operation
-------------------
`CostModel` is plain data. Each field carries its unit at the end of its name (`_ns`: integer nanoseconds;
`_bytes_per_s`), a default, and the source of that default, so that `params()` can print the table that a
reader of a simulated figure is owed. Nothing here is a measurement of the machine that runs the simulation:
a run on a laptop and one on a server give the same times. `dualray calibrate` replaces the defaults
by what a real run showed, and a scenario file by what it says.

"speed notes" and "platform facts" name the two pages of measurements with which the project began, taken on
a 2-core Linux machine under CPython 3.11; an "assumption" is one that nobody has measured yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from dualray.shared.nearest import nearest
from dualray.shared.units import parse_rate_bytes_per_s, parse_time_ns
from dualray.sim.cost.rates import time_ns

if TYPE_CHECKING:
    from dualray.shared.scenario.scenario import (
        Scenario,  # it imports pydantic, which a run without a scenario does not need
    )

__all__ = ["CostModel", "Param"]


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of the cost model, as tables show it."""

    name: str
    unit: str
    default: int
    source: str


def _param(default: int, source: str) -> Any:
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The parameters of the virtual cluster. All are ints >= 0, and rates are > 0; anything else is refused.

    A message between nodes takes the latency of the links on its route, `node_message_ns` (or
    `head_message_ns`), and its bytes at the speed of the NIC; one within a node takes `local_message_ns`
    and its bytes at the speed of memory.
    """

    local_message_ns: int = _param(
        23_000, "speed notes: an extra hop through the node manager (two messages) adds 46 us to a sync call"
    )
    node_message_ns: int = _param(
        23_000, "as local_message_ns: only the software's share; nic_latency_ns adds that of the links"
    )
    head_message_ns: int = _param(23_000, "as node_message_ns, for messages to and from the head")
    nic_bytes_per_s: int = _param(1_250_000_000, "10 Gbit/s, each direction of each NIC: the default of scenario files")
    nic_latency_ns: int = _param(50_000, "two NICs give 100 us between nodes, the default of scenario files")
    transfer_ns: int = _param(0, "assumption: fixed cost of starting a transfer between nodes, beyond its messages")
    transfer_bytes_per_s: int = _param(
        100_000_000_000, "assumption: no limit; the highest rate that the software at both ends allows one transfer"
    )
    memory_bytes_per_s: int = _param(
        6_000_000_000,
        "platform facts: writing warm shared memory, 6 to 9 GB/s (put and seal copy at this speed)",
    )
    disk_bytes_per_s: int = _param(500_000_000, "assumption: a SATA SSD (spilling writes and reads at this speed)")
    submit_ns: int = _param(3_400, "speed notes: tasks_async with books, 291,000 tasks/s through one driver")
    schedule_ns: int = _param(1_700, "assumption: a placement costs its scheduler what a push costs a driver")
    dispatch_ns: int = _param(1_700, "speed notes: tasks_async bare, 578,000 pushes/s from one driver")
    seal_ns: int = _param(5_000, "assumption: the fixed cost of a put or seal; the copy comes on top")
    worker_start_ns: int = _param(
        1_200_000, "speed notes: fork of a warm template (a spawned Python with numpy takes 86 ms)"
    )
    node_rejoin_ns: int = _param(
        500_000_000, "how often a daemon of real mode checks whether the head answers, before it restarts a node"
    )
    task_duration_ns: int = _param(
        1_000_000, "assumption: 1 ms for a task without a known duration, plus the time that its body sleeps"
    )

    def __post_init__(self) -> None:
        for it in fields(self):
            value = getattr(self, it.name)
            if type(value) is not int or value < 0:
                raise ValueError(f"the cost {it.name} must be an int of at least 0, not {value!r}")
            if value == 0 and it.name.endswith("_bytes_per_s"):
                raise ValueError(f"the cost {it.name} must be above 0")

    @classmethod
    def params(cls) -> list[Param]:
        """Every parameter with its unit, default and source, in the order of declaration."""
        defaults = cls()
        return [
            Param(
                name=it.name,
                unit="bytes/s" if it.name.endswith("_bytes_per_s") else "ns",
                default=getattr(defaults, it.name),
                source=it.metadata["source"],
            )
            for it in fields(cls)
        ]

    def with_changes(self, changes: Mapping[str, str | int], what: str = "costs") -> CostModel:
        """The same with some parameters changed: ints in their units, or texts with units (`5ms`, `10Gbps`).

        Raises:
            ValueError: an unknown parameter (with the nearest), or a value that it cannot have.
        """
        if not changes:
            return self
        known = [it.name for it in fields(self)]
        values: dict[str, int] = {}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"{what}: the cost model has no parameter {name!r}{nearest(name, known)}")
            if isinstance(value, str):
                parse = parse_rate_bytes_per_s if name.endswith("_bytes_per_s") else parse_time_ns
                value = parse(value, f"{what}: {name}")
            values[name] = value
        return replace(self, **values)

    def with_scenario(self, scenario: Scenario) -> CostModel:
        """The same model with what a scenario says: the network of its cluster, and its `costs`.

        Raises:
            ValueError: as `with_changes`.
        """
        network = scenario.cluster.network
        changed = replace(self, nic_bytes_per_s=network.bandwidth, nic_latency_ns=network.latency // 2)
        return changed.with_changes(scenario.costs, f"scenario {scenario.name}, costs")

    def copy_ns(self, size_bytes: int) -> int:
        """Time to copy `size_bytes` at memory bandwidth, rounded up."""
        return time_ns(size_bytes, self.memory_bytes_per_s)
