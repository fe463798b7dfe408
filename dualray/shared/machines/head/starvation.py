"""Reports demands that wait for resources of actors, once: an actor keeps its resources for life, idle or not.

Theory of operation. A task waits for a place until others have ended, which needs no word. But what actors hold comes
back only when one of them ends, and that may be never. When a request has waited on the head for `wait_told_ns` or
longer, and could not be placed though all tasks of the cluster had ended, whoever has made it is told: what is waited
for, who holds it, and the ways out. Each process hears it once for each function or class and demand. Nothing is
looked at anew unless requests have come or actors were made since: so a cluster at rest has no timers.

Relies on: the global scheduler says when a request begins to wait (`on_waiting`), the head when an actor has its place.
Guarantees: nobody is told who could be served when running tasks end; nobody is told twice.
"""

from __future__ import annotations

from collections.abc import Callable

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.head.actors import Actors
from dualray.shared.machines.head.global_scheduler import GlobalScheduler
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.events import LeaseRequested, WaitExplained
from dualray.shared.model.ids import HEAD, Address, NodeID, RequestID
from dualray.shared.model.resources import Resources, fits
from dualray.shared.model.specs import StrategyKind
from dualray.shared.model.states import ActorState

WAITS_TIMER = "waits"
HOLDERS_MAX = 5
"""So many actors are named; of the others, how many there are."""


class Starvation:
    """See the module."""

    def __init__(self, *, out: Outbox, config: Config, scheduler: GlobalScheduler, actors: Actors) -> None:
        self.out = out
        self.config = config
        self.scheduler = scheduler
        self.actors = actors
        self._is_armed = False
        self._seen: dict[RequestID, None] = {}
        """What waited when the timer was last due."""
        self._told: dict[tuple[Address, str, Resources], None] = {}

    def on_waiting(self) -> None:
        """Something may have begun to wait for what an actor holds."""
        if not self._is_armed and self.actors.records and self.scheduler.pending:
            self._is_armed = True
            self.out.add(ArmTimer(timer=WAITS_TIMER, delay_ns=self.config.wait_told_ns))

    def on_timer(self) -> None:
        """What waited already the last time has waited for long."""
        self._is_armed = False
        before = self._seen
        self._seen = {request.request_id: None for request in self.scheduler.pending}
        for request in self.scheduler.pending:
            if request.request_id in before:
                self._look_at(request)
        if any(request_id not in before for request_id in self._seen):
            self.on_waiting()

    def owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        """Nobody tells them anything any more."""
        for key in [key for key in self._told if is_dead(key[0])]:
            del self._told[key]

    def _look_at(self, request: LeaseRequested) -> None:
        who = self._maker(request)
        key = (who, request.shape.name, request.shape.placement)
        words = "" if who == HEAD or key in self._told else self.explain(request)
        if words:
            self._told[key] = None
            told = f"{request.shape.name} has waited for long for {request.shape.placement}: {words}"
            self.out.send(who, WaitExplained(words=told))

    def _maker(self, request: LeaseRequested) -> Address:
        """The process that has submitted the task, or made the actor; the head, of a detached one."""
        return request.owner if request.owner != HEAD else self.actors.made_by(request.request_id)

    def explain(self, request: LeaseRequested) -> str:
        """In words, which actors hold what a request waits for; "" when it waits for something else, too."""
        strategy, demand = request.shape.strategy, request.shape.placement
        if strategy.group is not None or not demand.units:
            return ""
        holders: list[str] = []
        held = self._held()
        for node, view in self.scheduler.views.items():
            is_other = strategy.kind is StrategyKind.NODE_AFFINITY and not strategy.soft and strategy.node != node
            if is_other or not fits(view.candidate.total, demand):
                continue
            total = dict(view.candidate.total)
            for name, worker, resources in held.get(node, ()):
                for resource, units in resources.units:
                    total[resource] = total.get(resource, 0) - units
                if any(resources.get(resource) for resource, _ in demand.units):
                    holders.append(f"{name} on {worker} ({resources})")
            if fits(total, demand):
                return ""
        if not holders:
            return ""
        more = f" and {len(holders) - HOLDERS_MAX} others" if len(holders) > HOLDERS_MAX else ""
        return (
            f"these actors hold it until they end: {', '.join(holders[:HOLDERS_MAX])}{more}. End an actor "
            "(dualray.kill, or drop its last handle), give actors less (num_cpus=0 takes no CPU), or start more "
            "nodes"
        )

    def _held(self) -> dict[NodeID, list[tuple[str, Address, Resources]]]:
        """For each node, the actors that hold something there."""
        held: dict[NodeID, list[tuple[str, Address, Resources]]] = {}
        for record in self.actors.records.values():
            if record.node is None or record.worker is None or record.spec is None or record.state is ActorState.DEAD:
                continue
            resources = record.spec.template.resources
            if resources.units:
                holder = (record.spec.template.name, record.worker, resources)
                held.setdefault(record.node, []).append(holder)
        return held
