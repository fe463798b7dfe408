"""The cost model: every number that the simulator assumes of the virtual cluster, in one place.

Theory of operation
-------------------
`CostModel` is plain data. Each field carries its unit at the end of its name (`_ns`: integer nanoseconds;
`_bytes_per_s`), a default, and the source of that default, so that `params()` can print the table that a
reader of a simulated figure is owed. Nothing here is a measurement of the machine that runs the simulation:
a run on a laptop and one on a server give the same times. `dualray calibrate` replaces the defaults
by what a real run showed, and a scenario file by what it says.

The source of a default says "measured" for a measurement on a 2-core Linux machine under CPython 3.11. The source says
"assumption" for a number that nobody has measured yet.
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
        23_000, "measured: two more messages, through the node manager, make a call 46 us longer"
    )
    node_message_ns: int = _param(
        23_000, "the same as local_message_ns: the time of the software, without the latency of the links"
    )
    head_message_ns: int = _param(23_000, "the same as node_message_ns, for messages to and from the head")
    nic_bytes_per_s: int = _param(
        1_250_000_000, "10 Gbit/s in each direction of a node's link, the default of scenario files"
    )
    nic_latency_ns: int = _param(
        50_000, "latency of one node's link; two nodes are 100 us apart, the default of scenario files"
    )
    transfer_ns: int = _param(0, "assumption: fixed cost of starting a transfer between nodes, beyond its messages")
    transfer_bytes_per_s: int = _param(
        100_000_000_000, "assumption: the software at both ends of a transfer does not limit its rate"
    )
    memory_bytes_per_s: int = _param(
        6_000_000_000,
        "measured: put() copies into shared memory at 6 to 9 GB/s",
    )
    disk_bytes_per_s: int = _param(500_000_000, "assumption: a SATA SSD stores the spilled objects")
    submit_ns: int = _param(3_400, "measured: one driver submits 291,000 tasks per second")
    schedule_ns: int = _param(
        1_700, "assumption: placing a task takes the head as long as sending a task takes a driver"
    )
    dispatch_ns: int = _param(1_700, "measured: one driver sends 578,000 tasks per second to workers")
    seal_ns: int = _param(5_000, "assumption: fixed time for storing an object, in addition to the time of the copy")
    keep_ns: int = _param(
        0,
        "computing of the node manager and the head for each stored object, beside what runs; only a prediction counts "
        "it, and `dualray calibrate` measures it",
    )
    worker_start_ns: int = _param(1_200_000, "measured: forking a process that has imported numpy")
    node_rejoin_ns: int = _param(
        500_000_000, "in real mode, a node checks this often whether the head answers, before the node restarts"
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
