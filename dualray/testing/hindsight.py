"""What another placement would have led to: the run again, with one choice of the head made otherwise.

A simulation decides the same each time. So the lease that a task ran on is found among the head's choices; for each
other node that had room then, the scenario runs once more, and the head answers that node at this one choice. What
follows from it is decided as ever. The difference of the makespans is what the other node would have saved: the regret
of the choice is the largest of these, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dualray.report.explain import Teller
from dualray.shared.machines.head.global_scheduler import GlobalScheduler
from dualray.shared.model.events import LeaseRequested
from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import fits
from dualray.shared.policies.placement import ClusterView, Outcome, Placement
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.run import run_scenario

NODES_MAX = 8
"""Other nodes that are tried, in the order of the policy's ranks."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another node that had room, and by how much sooner the run would have ended; below 0: later. With `error` it
    would have failed."""

    node: str
    saved_ns: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """What became of a choice, and what the others would have led to, the best first.

    Attributes:
        time_ns: when the head chose.
        left_out: how many nodes that had room were not tried.
    """

    node: str
    time_ns: int
    makespan_ns: int
    alternatives: tuple[Alternative, ...]
    left_out: int

    @property
    def regret_ns(self) -> int:
        """What the best other node would have saved; 0: none would have."""
        return max([0, *[it.saved_ns for it in self.alternatives if not it.error]])


def hindsight_of(
    teller: Teller,
    subject: str,
    scenario: Scenario,
    directory: Path,
    *,
    on_run: Callable[[int, int], object] = lambda done, total: None,
) -> Hindsight:
    """The choice of the last node that a task was placed on, and what others would have led to.

    Args:
        teller: of a run of the scenario.
        subject: the task's whole id.
        on_run: called after each run with how many are done, and how many there are.

    Raises:
        ValueError: the head has placed no such lease, or the scenario is a script's.
    """
    if scenario.workload.script is not None:
        raise ValueError(
            "--regret cannot change the placement of a script, which runs in another process. "
            "Use a scenario with a function, a generated workload or a trace"
        )
    found = teller.placement_of(subject)
    if found is None:
        raise ValueError(
            f"the head process chose no node for task or object {subject[:8]}, so dualray cannot try another node. "
            "The head process chooses no node for calls of actors, and for tasks that start on the node of their caller"
        )
    choice, number = found
    usual = _Diversion(choice.request.request_id, number, None)
    before = run_scenario(scenario, directory=directory, on_scheduler=usual.attach)
    others = [node for node in [it.node for it in choice.candidates] if node in usual.had_room and node != usual.node]
    others += [node for node in usual.had_room if node not in others and node != usual.node]
    tried = others[:NODES_MAX]
    alternatives = []
    for done, node in enumerate(tried, 1):
        diversion = _Diversion(choice.request.request_id, number, node)
        after = run_scenario(scenario, directory=directory, on_scheduler=diversion.attach)
        error = after.message if after.error and not before.error else ""
        alternatives.append(Alternative(str(node), before.makespan_ns - after.makespan_ns, error))
        on_run(done, len(tried))
    alternatives.sort(key=lambda it: (bool(it.error), -it.saved_ns, it.node))
    return Hindsight(
        node=str(usual.node),
        time_ns=choice.time_ns,
        makespan_ns=before.makespan_ns,
        alternatives=tuple(alternatives),
        left_out=len(others) - len(tried),
    )


class _Diversion:
    """Answers another node at one choice of a request, or looks at that choice."""

    def __init__(self, request_id: str, number: int, node: NodeID | None) -> None:
        self._request_id = request_id
        self._number = number
        self._instead = node
        self._placed = 0
        self.node: NodeID | None = None
        """Which the policy has answered there."""
        self.had_room: list[NodeID] = []

    def attach(self, scheduler: GlobalScheduler) -> None:
        """From now on."""
        scheduler.instead = self._answer

    def _answer(self, request: LeaseRequested, view: ClusterView, answer: Placement) -> Placement:
        if request.request_id != self._request_id or answer.outcome is not Outcome.SUCCESS:
            return answer
        self._placed += 1
        if self._placed != self._number:
            return answer
        self.node = answer.node
        demand = request.shape.placement
        self.had_room = [node for node, candidate in view.candidates.items() if fits(candidate.free, demand)]
        if self._instead is None:
            return answer
        return Placement(Outcome.SUCCESS, self._instead, "another node than the policy chose, to see what follows")
