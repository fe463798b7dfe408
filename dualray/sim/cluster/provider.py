"""The provider of virtual machines: carries out what the autoscaler orders, as a cloud would.

A launch takes the start-up time of its group, drawn from the seed and its id; it may be refused (a share of them, or
all beyond a quota), or never come up. A spot machine is reclaimed after a while: its node is told so long before, and
leaves in good order if it can. A machine that is given back takes the shut-down time of its group until it is gone.
Each is paid from its launch until it is gone, by the second, and counts towards the quota for as long.

An id is carried out once, however often it is ordered.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from dualray.shared.model.events import DrainAsked, LaunchesFailed
from dualray.shared.model.ids import NodeID
from dualray.shared.model.specs import LAUNCH_LABEL, NODE_GROUP_LABEL
from dualray.shared.scenario.distributions import Distribution
from dualray.sim.cluster.outages import FallibleCluster
from dualray.sim.processes.node import Hardware

REFUSAL_NS: Final = 1_000_000_000
"""After which a launch that is refused is known to be."""
HOUR_NS: Final = 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGroup:
    """What the provider has of one group.

    Attributes:
        hardware: of each machine.
        start_up: from its launch until it joins.
        shut_down: from the moment at which it is given back until it is gone.
        refused, stuck: the shares of launches that are refused, and that never come up, 0 to 1.
        quota: machines at a time, whatever the group's most; None: no end.
        reclaimed: for how long a spot machine is lent; None: for good.
        notice_ns: so long before that its node is told.
        price: of one for an hour, in millionths.
        paid_least_ns: each is paid for so long at least.
    """

    hardware: Hardware
    start_up: Distribution
    shut_down: Distribution
    refused: float = 0.0
    stuck: float = 0.0
    quota: int | None = None
    reclaimed: Distribution | None = None
    notice_ns: int = 120_000_000_000
    price: int = 0
    paid_least_ns: int = 60_000_000_000


class Machine:
    """One machine that was launched, from its launch on.

    Attributes:
        node: its node, once it has come up.
        ended_ns: when it was given back, or taken away.
        gone_ns: until when it is paid; later than `ended_ns` where it takes time to shut down.
    """

    __slots__ = ("ended_ns", "gone_ns", "group", "joined_ns", "launch_id", "node", "started_ns")

    def __init__(self, launch_id: str, group: str, started_ns: int) -> None:
        self.launch_id = launch_id
        self.group = group
        self.started_ns = started_ns
        self.joined_ns: int | None = None
        self.ended_ns: int | None = None
        self.gone_ns: int | None = None
        self.node: NodeID | None = None


class Provider:
    """See the module. `machines` are all that were ever launched and not refused, by id."""

    def __init__(self, cluster: FallibleCluster, groups: Mapping[str, MachineGroup], *, seed: int) -> None:
        self._cluster = cluster
        self._groups = groups
        self._seed = seed
        self.machines: dict[str, Machine] = {}
        self.refused: dict[str, str] = {}
        """Launches that were refused, and why."""
        self._held = dict.fromkeys(groups, 0)
        """Of each group, the machines that have not ended."""
        self._shutting_down: dict[str, list[int]] = {group: [] for group in groups}
        """Of each group, when those that have ended will be gone: a heap."""

    # ---- Orders ----------------------------------------------------------------------------------------------

    def launch(self, group: str, launch_ids: tuple[str, ...]) -> None:
        """Start a machine for each id."""
        for launch_id in launch_ids:
            if launch_id not in self.machines and launch_id not in self.refused:
                self._launch_one(group, launch_id)

    def _launch_one(self, group: str, launch_id: str) -> None:
        known, kernel = self._groups[group], self._cluster.kernel
        uniform = self._chance(launch_id)
        is_refused, is_stuck = uniform() < known.refused, uniform() < known.stuck
        if is_refused or (known.quota is not None and self._there_are(group) >= known.quota):
            why = "there is no capacity" if is_refused else f"the quota is {known.quota}"
            self.refused[launch_id] = why
            failed = LaunchesFailed(group=group, launch_ids=(launch_id,), reason=why)
            kernel.call_after(REFUSAL_NS, self._cluster.head.handle, failed)
            return
        machine = self.machines[launch_id] = Machine(launch_id, group, kernel.now_ns)
        self._held[group] += 1
        if not is_stuck:
            kernel.call_after(known.start_up.sample_ns(uniform), self._boot, machine, uniform)

    def _there_are(self, group: str) -> int:
        """How many machines of a group are not gone."""
        ending = self._shutting_down[group]
        while ending and ending[0] <= self._cluster.kernel.now_ns:
            heapq.heappop(ending)
        return self._held[group] + len(ending)

    def _chance(self, launch_id: str) -> Callable[[], float]:
        return random.Random(f"{self._seed}:{launch_id}").random

    def _boot(self, machine: Machine, uniform: Callable[[], float]) -> None:
        if machine.ended_ns is not None:
            return
        known = self._groups[machine.group]
        labels = dict(known.hardware.labels) | {NODE_GROUP_LABEL: machine.group, LAUNCH_LABEL: machine.launch_id}
        hardware = replace(known.hardware, labels=tuple(sorted(labels.items())))
        process = self._cluster.outages.add_node(hardware)
        machine.joined_ns = self._cluster.kernel.now_ns
        machine.node = NodeID(process.node)
        if known.reclaimed is not None:
            life_ns = known.reclaimed.sample_ns(uniform)
            call = partial(self._cluster.kernel.call_after, daemon=True)
            call(max(life_ns - known.notice_ns, 0), process.handle, DrainAsked())
            call(life_ns, self._reclaim, machine)

    def _reclaim(self, machine: Machine) -> None:
        if machine.ended_ns is None and machine.node is not None:
            self._end(machine, 0)  # the provider takes it: from now on others pay
            self._cluster.outages.kill_node(machine.node)

    def terminate(self, launch_id: str) -> None:
        """Give a machine back; its node, if it still lives, goes with it."""
        machine = self.machines.get(launch_id)
        if machine is not None and machine.ended_ns is None:
            uniform = self._chance(f"{launch_id}:end")  # of its own: what else is drawn for it stays the same
            self._end(machine, self._groups[machine.group].shut_down.sample_ns(uniform))
            if machine.node is not None:
                self._cluster.outages.kill_node(machine.node)

    def _end(self, machine: Machine, shut_down_ns: int) -> None:
        machine.ended_ns = self._cluster.kernel.now_ns
        machine.gone_ns = machine.ended_ns + shut_down_ns
        self._held[machine.group] -= 1
        heapq.heappush(self._shutting_down[machine.group], machine.gone_ns)
        if machine.node is not None:
            self._cluster.outages.given_back[machine.node] = None

    # ---- What it cost ----------------------------------------------------------------------------------------

    def node_ns(self, group: str | None = None) -> int:
        """For how long machines were paid until now, start-up and shut-down included, each for its least time at
        least."""
        now_ns, total = self._cluster.kernel.now_ns, 0
        for machine in self.machines.values():
            if group in (None, machine.group):
                end_ns = now_ns if machine.gone_ns is None else min(machine.gone_ns, now_ns)
                total += max(end_ns - machine.started_ns, self._groups[machine.group].paid_least_ns)
        return total

    def waited_ns(self) -> int:
        """For how long at least one machine was on its way, until now."""
        spans = [(each.started_ns, each.joined_ns or each.ended_ns) for each in self.machines.values()]
        now_ns, total, until_ns = self._cluster.kernel.now_ns, 0, 0
        for began_ns, end_ns in sorted((began, now_ns if end is None else end) for began, end in spans):
            total += max(end_ns - max(began_ns, until_ns), 0)
            until_ns = max(until_ns, end_ns)
        return total

    def nodes_most(self) -> int:
        """How many machines there were at a time, at most, from their launch to their end."""
        changes = [(each.started_ns, 1) for each in self.machines.values()]
        changes += [(each.ended_ns, -1) for each in self.machines.values() if each.ended_ns is not None]
        count = most = 0
        for _, change in sorted(changes):
            count += change
            most = max(most, count)
        return most

    def counters(self) -> dict[str, int]:
        """What a run with groups counts beside all others; see `dualray.shared.scenario.expect.COUNTERS`."""
        return {
            "nodes_launched": len(self.machines),
            "launches_refused": len(self.refused),
            "node_seconds": round(self.node_ns() / 1e9),
        }

    def cost(self) -> float:
        """Of all machines until now, in the currency of the prices."""
        return sum(self.node_ns(name) / HOUR_NS * group.price / 1e6 for name, group in self._groups.items())
