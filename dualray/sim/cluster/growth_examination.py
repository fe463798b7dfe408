"""What must hold of a cluster that grows and shrinks, whatever its autoscaler believes: its provider and the trace say
it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from dualray.shared.machines.autoscaler.autoscaler import Autoscaler
from dualray.shared.model.ids import Address, NodeID, node_of
from dualray.shared.policies.scaling import ScaleDecision, ScaleView
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.sim.cluster.provider import Machine

NEWS_NS = 4_000_000_000
"""So late the head may hear what a node does: a fault may hold its messages up for as long."""


class GrowthWatch:
    """Notes when nodes were sent off, for `wrong`."""

    def __init__(self, autoscaler: Autoscaler) -> None:
        self._autoscaler = autoscaler
        self._sent_off: list[tuple[int, NodeID, int]] = []
        """When, which, and what the idle timeout was."""
        autoscaler.on_decision = self._note

    def _note(self, view: ScaleView, decision: ScaleDecision) -> None:
        counts = {group.name: -group.most for group in view.groups}
        for node in view.nodes:
            counts[node.group] = counts.get(node.group, 0) + 1
        for node in view.nodes:
            if node.name in decision.leaving and counts[node.group] <= 0:  # else its group has too many
                self._sent_off.append((self._autoscaler.out.now_ns, NodeID(node.name), view.idle_timeout_ns))

    def wrong(self, machines: Iterable[Machine], trace: Iterable[TraceEvent]) -> list[str]:
        """In words, when nothing happens any more."""
        return [
            *self._autoscaler.wrong_at_rest(),
            *_unknown(machines, self._autoscaler),
            *_used(self._sent_off, trace),
        ]


def _unknown(machines: Iterable[Machine], autoscaler: Autoscaler) -> Iterator[str]:
    """Each machine is paid for as long as the head counts on it."""
    for machine in machines:
        what = f"{machine.launch_id} of group {machine.group}"
        if machine.ended_ns is None and machine.launch_id not in autoscaler.launches:
            yield f"{what} is paid for, but the head has no record of it"
        if machine.ended_ns is not None and machine.launch_id in autoscaler.launches:
            yield f"{what} has ended, but the head still counts it"


def _used(sent_off: Iterable[tuple[int, NodeID, int]], trace: Iterable[TraceEvent]) -> Iterator[str]:
    """No node is sent off within its idle timeout since a task of it, or since it joined."""
    uses: dict[NodeID, list[int]] = {}
    for event in trace:
        if event.kind is TraceKind.NODE_STARTED:
            uses.setdefault(NodeID(str(event.subject)), []).append(event.time_ns)
        elif event.kind is TraceKind.TASK_STARTED or event.kind is TraceKind.TASK_ENDED:
            uses.setdefault(node_of(Address(event.process)), []).append(event.time_ns)
    for times in uses.values():
        times.sort()
    for time_ns, node, timeout_ns in sent_off:
        times = uses.get(node, [])
        before = bisect_left(times, time_ns - NEWS_NS)
        if before and times[before - 1] > time_ns - timeout_ns:
            since_s = (time_ns - times[before - 1]) / 1e9
            timeout_s = timeout_ns / 1e9
            yield f"{node} was removed {since_s:g} s after its last use, but the idle timeout is {timeout_s:g} s"
