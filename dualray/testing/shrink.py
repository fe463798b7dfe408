"""Makes a failing scenario small: first the faults, then the workload, then the cluster, as long as it still fails.

Faults are taken out in halves, quarters and so on (Zeller and Hildebrandt's ddmin, 2002); those that stay are made
shorter. Whole numbers among the workload's arguments are halved, then lowered by one; the cluster loses the nodes that
no fault names. What has become smaller may allow more: the rounds go on until one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dualray.shared.scenario.cluster import ClusterModel, NodeGroup
from dualray.shared.scenario.fault_model import Fault
from dualray.shared.scenario.scenario import Scenario

RUNS_MAX = 300
"""Runs that making one failure small may take."""

SECOND_NS = 1_000_000_000


class _Budget:
    """Counts runs, and says that everything is well when there are no more."""

    def __init__(self, fails: Callable[[Scenario], bool], runs_max: int) -> None:
        self._fails = fails
        self.left = runs_max

    def fails(self, candidate: Scenario) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        return self._fails(candidate)


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], *, runs_max: int = RUNS_MAX) -> Scenario:
    """The smallest scenario found that still fails, in `runs_max` runs; what was given, if `fails` denies even that."""
    budget = _Budget(fails, runs_max)
    if not budget.fails(scenario):
        return scenario
    while True:
        before = scenario
        scenario = _fewer_faults(scenario, budget)
        for smaller in (_simpler_faults, _smaller_workloads, _smaller_clusters):
            scenario = _first_that_fails(scenario, smaller, budget)
        if scenario == before:
            return scenario


def _fewer_faults(scenario: Scenario, budget: _Budget) -> Scenario:
    faults = list(scenario.planned())
    size = len(faults)
    while size >= 1:
        at = 0
        while at < len(faults):
            fewer = faults[:at] + faults[at + size :]
            if budget.fails(scenario.with_faults(fewer)):
                faults = fewer
            else:
                at += size
        size = size // 2 if size > 1 else 0
    return scenario.with_faults(faults)


def _first_that_fails(
    scenario: Scenario, candidates: Callable[[Scenario], Iterator[Scenario]], budget: _Budget
) -> Scenario:
    """Take the first candidate that fails, and look for candidates of that, until none fails."""
    found = True
    while found:
        found = False
        for candidate in candidates(scenario):
            if candidate != scenario and budget.fails(candidate):
                scenario, found = candidate, True
                break
    return scenario


def _simpler_faults(scenario: Scenario) -> Iterator[Scenario]:
    faults = scenario.planned()
    for place, fault in enumerate(faults):
        for simpler in _simpler(fault):
            yield scenario.with_faults([*faults[:place], simpler, *faults[place + 1 :]])


def _simpler(fault: Fault) -> Iterator[Fault]:
    if fault.for_ns is not None and fault.for_ns > SECOND_NS:
        yield replace(fault, for_ns=max(SECOND_NS, fault.for_ns // 2 // SECOND_NS * SECOND_NS))
    if fault.after_ns:
        yield replace(fault, after_ns=0)
        for unit_ns in (SECOND_NS, SECOND_NS // 10, SECOND_NS // 1000):
            if fault.after_ns % unit_ns and fault.after_ns > unit_ns:
                yield replace(fault, after_ns=fault.after_ns // unit_ns * unit_ns)
    if fault.start > 1:
        yield replace(fault, start=1)
        yield replace(fault, start=fault.start // 2)
    for unit_ns in (SECOND_NS, SECOND_NS // 10, SECOND_NS // 1000):
        if fault.at_ns is not None and fault.at_ns % unit_ns and fault.at_ns > unit_ns:
            yield replace(fault, at_ns=fault.at_ns // unit_ns * unit_ns)
    for names in ("nodes", "others"):
        sides: Sequence[str] = getattr(fault, names)
        if len(sides) > 1:
            for place in range(len(sides)):
                fewer = (*sides[:place], *sides[place + 1 :])
                yield replace(fault, nodes=fewer) if names == "nodes" else replace(fault, others=fewer)


def _smaller_workloads(scenario: Scenario) -> Iterator[Scenario]:
    for name, value in scenario.workload.kwargs.items():
        if isinstance(value, bool) or not isinstance(value, int) or value <= 1 or name == "seed":
            continue
        for smaller in dict.fromkeys((value // 2, value * 3 // 4, value - 1)):
            kwargs = {**scenario.workload.kwargs, name: smaller}
            yield scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"kwargs": kwargs})})


def _smaller_clusters(scenario: Scenario) -> Iterator[Scenario]:
    nodes = scenario.cluster.each_node()
    named = {name for fault in scenario.planned() for name in fault.named_nodes}
    least = 1 + max((index for index, (name, _) in enumerate(nodes) if name in named), default=0)
    for count in dict.fromkeys((least, (least + len(nodes)) // 2, len(nodes) - 1)):
        if least <= count < len(nodes):
            yield scenario.model_copy(update={"cluster": _first_nodes(scenario.cluster, count)})


def _first_nodes(cluster: ClusterModel, count: int) -> ClusterModel:
    groups: list[NodeGroup] = []
    wanted = count
    for group in cluster.nodes:
        taken = min(group.count, count)
        if taken:
            groups.append(group.model_copy(update={"count": taken}))
            count -= taken
    topology = cluster.topology
    if topology.racks is not None and topology.racks > wanted:
        topology = topology.model_copy(update={"racks": wanted})
    return cluster.model_copy(update={"nodes": groups, "topology": topology})
