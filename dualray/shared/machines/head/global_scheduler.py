"""The global scheduler: which node serves a lease that an owner's own node could not, or should not.

Theory of operation. Each request is offered to a policy, one lease at a time: NODE_AFFINITY and SPREAD have theirs, one
in a placement group goes to a bundle of it (placement_groups.py), labels narrow the choice of all the others, arguments
in the stores bring in locality, everything else is the configured policy. The answer is a node (the request is
forwarded there), not now (it waits here, in order, until a node reports free resources or joins), or never (it is
refused; in an open cluster it waits all the same).

What a node is believed to have free is what it last reported, less what was placed there and is neither allocated nor
settled yet: so one report that is late cannot make two placements of one CPU. What is allocated waits for a worker, and
the report counts it: an actor that takes nothing while it lives keeps nobody from being placed while it starts. What
was not settled when its node died is placed again; a later life of the node, which it may still come to, does not take
it. A placement that waits for an argument of which no copy exists takes nothing: else the task that makes the argument
again might find no room. Nor does one whose argument only silent nodes hold: others use the resources meanwhile. A
request with such an argument is not placed before one of these nodes is heard again, or is dead.

Several drivers share the cluster: of what waits, the driver that holds the fewest leases is served first. While one
waits that has less than its share, another that has more gives a lease back every `lease_turn_ns`, as soon as what it
pushed there is done; two drivers thus take turns even on one CPU. A worker that submits tasks is no driver, and stands
in line as it came.

A machine and a node that do not reach one another (reach.py) are parted for `PARTED_PATIENCES` times
`link_patience_ns`: nothing of that machine is placed there, whatever is free. A request that no other node could ever
take waits until then, and is tried there again; when it turns out that they are parted still, it is refused. So are a
node that waits for an object and one whose copy cannot be brought there (directory.py): what processes of the one wait
for on the other is given back then, and placed anew. What is to run on a node if possible runs in its reach if not.

Relies on: each node settles each placed request once for each lease.
Guarantees: a request is with one node, or waiting here, or refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.head.placement_groups import PlacementGroups
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import BundleWanted, LeaseRefused, LeaseRequested, ResourcesReported, TurnWanted
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, PlacementGroupID, RequestID, is_driver, node_of
from dualray.shared.model.resources import Resources, fits, without_bundles
from dualray.shared.model.specs import LeaseShape, NodeInfo, StrategyKind
from dualray.shared.policies import load_policy
from dualray.shared.policies.affinity import AffinityPlacement
from dualray.shared.policies.feasibility import why_infeasible
from dualray.shared.policies.labels import LabelPlacement
from dualray.shared.policies.locality import LocalityPlacement
from dualray.shared.policies.placement import Candidate, Candidates, ClusterView, Outcome, Placement, PlacementPolicy
from dualray.shared.policies.spread import SpreadPlacement

TURN_TIMER = "turn"
PARTED_TIMER = "parted"
PARTED_PATIENCES = 6
"""So often `link_patience_ns` two nodes are taken to be out of one another's reach; then it is tried again."""


class NodeView:
    """A node as the head believes it to be."""

    __slots__ = (
        "allocated",
        "candidate",
        "free",
        "held",
        "info",
        "placed",
        "reported",
        "reserving",
        "room",
        "stalled",
        "total_units",
    )

    def __init__(self, info: NodeInfo) -> None:
        self.info = info
        self.total_units = dict(info.total.units)
        """What it reports when nobody uses it."""
        self.reported = dict(info.total.units)
        self.free = dict(self.reported)
        self.placed: dict[RequestID, list[LeaseRequested]] = {}
        """One entry for each lease placed here and not settled."""
        self.allocated: dict[RequestID, int] = {}
        """Of how many of these leases the last report counts the resources."""
        self.stalled: dict[RequestID, None] = {}
        """Of these, the ones that wait for an argument of which no copy exists."""
        self.held: dict[str, int] = {}
        """Of each driver, its leases here."""
        self.reserving: dict[tuple[PlacementGroupID, int], Resources] = {}
        """Bundles that the node was asked to reserve, and has not answered."""
        self.candidate = candidate_of(info, self.free)
        self.room: dict[str, int] | None = None
        """What others may take of it, until that changes: see `offered`."""

    @property
    def is_in_use(self) -> bool:
        """Whether it holds a lease or a bundle, or is about to."""
        return bool(self.placed or self.reserving or self.held) or self.reported != self.total_units

    def offered(self) -> dict[str, int]:
        """What is free, never below nothing, without the bundles. It is not changed: another one takes its place."""
        if self.room is None:
            self.room = {name: max(units, 0) for name, units in without_bundles(self.free).items()}
        return self.room

    def take(self, demand: Resources) -> None:
        self.room = None
        for name, amount in demand.units:
            self.free[name] = self.free.get(name, 0) - amount

    def recount(self) -> None:
        """What is free: the last report, less what is placed, not allocated, not settled and not stalled."""
        self.room = None
        self.free.clear()
        self.free.update(self.reported)
        for resources in self.reserving.values():
            self.take(resources)
        for request_id in self.placed:
            for request in self.uncounted(request_id):
                self.take(request.shape.placement)

    def uncounted(self, request_id: RequestID) -> list[LeaseRequested]:
        """Of what was placed, that which will take resources and has not yet."""
        return [] if request_id in self.stalled else self.placed[request_id][self.allocated.get(request_id, 0) :]

    def allocate(self, request_id: RequestID) -> None:
        """The node has taken the resources of one lease."""
        self.allocated[request_id] = self.allocated.get(request_id, 0) + 1

    def settle(self, request_id: RequestID) -> None:
        """The node has granted or refused one lease."""
        requests = self.placed[request_id]
        requests.pop()
        if self.allocated.get(request_id):
            self.allocated[request_id] -= 1
        if not requests:
            del self.placed[request_id]
            self.allocated.pop(request_id, None)
            self.stalled.pop(request_id, None)


def candidate_of(info: NodeInfo, free: dict[str, int]) -> Candidate:
    """A node as policies see it."""
    return Candidate(node=info.node, total=dict(info.total.units), free=free, labels=info.all_labels())


class GlobalScheduler:
    """See the module. `groups` are the placement groups."""

    def __init__(
        self,
        *,
        out: Outbox,
        config: Config,
        nodes: Callable[[], tuple[NodeInfo, ...]],
        local_bytes: Callable[[LeaseShape], Mapping[NodeID, int]],
        copies_on: Callable[[ObjectID], Collection[NodeID]],
        is_gone: Callable[[Address], bool],
    ) -> None:
        self.out = out
        self.config = config
        self._nodes = nodes
        self._local_bytes = local_bytes
        self._copies_on = copies_on
        self._is_gone = is_gone
        self.views: dict[NodeID, NodeView] = {}
        self.silent: dict[NodeID, None] = {}
        """Nodes that the head suspects."""
        self.candidates = Candidates()
        self.pending: deque[LeaseRequested] = deque()
        self.placed_count = 0
        self.spread_count = 0
        """Of them, those with the strategy SPREAD: other placements between two of these do not turn their round."""
        self._drivers: dict[Address, None] = {}
        """Those that have ever asked: with one alone there is nothing to share."""
        self._turn_is_due = False
        self.on_waiting: Callable[[], None] = lambda: None
        """Told when a request begins to wait."""
        self.home_of: Callable[[Address], NodeID] = node_of
        """The node on whose machine a process runs. The head says of drivers."""
        self.who_holds: Callable[[LeaseRequested], str] = lambda request: ""
        """In words, who holds what a request waits for, when that may be for ever."""
        self.why_not_launched: Callable[[LeaseShape], str] = lambda shape: ""
        """In words, which nodes are launched for what waits, or why none is; "" where none are ever launched."""
        self.on_choice: Callable[[LeaseRequested, PlacementPolicy, ClusterView, Placement], None] | None = None
        """Shown each choice, when a log is replayed to explain it."""
        self.instead: Callable[[LeaseRequested, ClusterView, Placement], Placement] | None = None
        """Asked for another answer to each choice, when a run is repeated to see what that leads to."""
        default: PlacementPolicy = load_policy(config.placement_policy)
        self._default = default
        self._locality = LocalityPlacement(default)
        self._affinity = AffinityPlacement(default)
        self._spread = SpreadPlacement()
        self.groups = PlacementGroups(
            out=out, config=config, nodes=nodes, candidates=self.candidates, reserve=self._reserve_bundle
        )
        self.parted: dict[tuple[NodeID, NodeID], tuple[int, int]] = {}
        """Pairs of nodes that do not reach one another: until when, and how often in a row."""
        # Worklist that the head machine drains: refusals of what the head itself asked for (actors).
        self.refused_actors: deque[LeaseRefused] = deque()

    # ---- Requests --------------------------------------------------------------------------------------------

    def request(self, request: LeaseRequested) -> None:
        """Place what can be placed; the rest waits, or is refused. What a dead process asked for is forgotten."""
        if self._is_gone(request.owner):
            return
        if is_driver(request.owner):
            self._drivers[request.owner] = None
        left = self._place(request)
        if left:
            self.pending.append(_with_count(request, left))
            self._see_to_turns()
            self.on_waiting()

    def _place(self, request: LeaseRequested) -> int:
        """Place leases one by one; how many are left to wait. Those that follow one another to the same node go there
        together."""
        left, count = request.count, 0
        node: NodeID | None = None
        refusal: Placement | None = None
        while left:
            answer = self._choose(request)
            if answer.outcome is not Outcome.SUCCESS:
                refusal = answer
                break
            assert answer.node is not None
            if answer.node != node:
                if node is not None:
                    self._forward(request, node, count)
                node, count = answer.node, 0
            self._book(request, node)
            count += 1
            left -= 1
        if node is not None:
            self._forward(request, node, count)
        if (
            refusal is not None
            and refusal.outcome is Outcome.INFEASIBLE
            and (self.config.infeasible == "raise" or self._is_final(request.shape))
        ):
            self._refuse(_with_count(request, left), refusal.reason)
            return 0
        return left

    def _is_final(self, shape: LeaseShape) -> bool:
        """Whether no node that joins could take it, either: as in Ray, it names a node that is gone or too small, or a
        placement group that is."""
        return shape.strategy.only_node is not None or self.groups.is_over(shape)

    def _choose(self, request: LeaseRequested) -> Placement:
        for hint in request.shape.deps if self.silent else ():
            copies = self._copies_on(hint.object_id)
            if copies and all(node in self.silent for node in copies):
                why = f"one of its arguments is only on {' and '.join(copies)}, and the head hears nothing from there"
                return Placement(Outcome.FAILED, reason=why)
        if not self.parted:
            return self._choose_among(request, self.candidates)
        return self._choose_in_reach(request, self.home_of(request.owner))

    def _choose_in_reach(self, request: LeaseRequested, home: NodeID) -> Placement:
        """As if the nodes were not there that the owner's cannot reach."""
        away, strategy = self._away_from(home), request.shape.strategy
        if strategy.soft and strategy.node is not None:
            further = away | self._away_from(strategy.node)
            near = {node: candidate for node, candidate in self.candidates.items() if node not in further}
            answer = self._choose_among(request, near)
            if answer.outcome is not Outcome.INFEASIBLE:
                return answer
        if not away:
            return self._choose_among(request, self.candidates)
        is_in_group = strategy.kind is StrategyKind.PLACEMENT_GROUP
        others = {node: candidate for node, candidate in self.candidates.items() if node not in away}
        answer = self._choose_among(request, self.candidates if is_in_group else others)
        if answer.outcome is Outcome.FAILED or (answer.outcome is Outcome.SUCCESS and answer.node not in away):
            return answer
        if not is_in_group:
            answer = self._choose_among(request, self.candidates)
        if answer.outcome is Outcome.INFEASIBLE:
            return answer  # wherever
        demand = request.shape.placement
        able = [node for node in away if fits(self.candidates[node].total, demand)] or list(away)
        names = " and ".join(able)
        why = f"{home} and {names}, which could run it, cannot reach one another, although the head reaches both"
        lasts = all(away[node] > 1 for node in able)
        return Placement(Outcome.INFEASIBLE if lasts else Outcome.FAILED, reason=why)

    def _away_from(self, home: NodeID) -> dict[NodeID, int]:
        """The nodes that are out of a node's reach, and how often in a row."""
        away: dict[NodeID, int] = {}
        for node in self.candidates:
            until_ns, times = self.parted.get(_pair(home, node), (0, 0))
            if until_ns > self.out.now_ns:
                away[node] = times
        return away

    def owners_waiting(self, node: NodeID) -> list[Address]:
        """Whose requests were placed on a node and are not settled."""
        view = self.views.get(node)
        placed = view.placed.values() if view is not None else ()
        return list(dict.fromkeys(requests[0].owner for requests in placed))

    def part(self, one: NodeID, other: NodeID) -> None:
        """Two nodes do not reach one another."""
        now_ns, lasts_ns = self.out.now_ns, PARTED_PATIENCES * self.config.link_patience_ns
        until_ns, times = self.parted.get(_pair(one, other), (0, 0))
        if until_ns > now_ns:
            return  # the other one has noticed, too
        self.parted[_pair(one, other)] = (now_ns + lasts_ns, times + 1)
        self._arm_parted_timer()
        self.retry_pending()

    def on_parted_timer(self) -> None:
        """Some may reach one another again: if they do for as long as they have not, it is as if nothing had been."""
        now_ns, lasts_ns = self.out.now_ns, PARTED_PATIENCES * self.config.link_patience_ns
        for pair in [pair for pair, (until_ns, _) in self.parted.items() if until_ns + lasts_ns <= now_ns]:
            del self.parted[pair]
        if self.parted:
            self._arm_parted_timer()
        self.retry_pending()

    def _arm_parted_timer(self) -> None:
        now_ns, lasts_ns = self.out.now_ns, PARTED_PATIENCES * self.config.link_patience_ns
        next_ns = min(until_ns if until_ns > now_ns else until_ns + lasts_ns for until_ns, _ in self.parted.values())
        self.out.add(ArmTimer(timer=PARTED_TIMER, delay_ns=next_ns - now_ns))

    def _choose_among(self, request: LeaseRequested, candidates: Mapping[NodeID, Candidate]) -> Placement:
        shape = request.shape
        if shape.strategy.kind is StrategyKind.PLACEMENT_GROUP:
            return self.groups.choose(shape)
        local_bytes: Mapping[NodeID, int] = {}
        policy: PlacementPolicy = self._default
        if shape.strategy.kind is StrategyKind.NODE_AFFINITY:
            policy = self._affinity
        elif shape.strategy.kind is StrategyKind.SPREAD:
            policy = self._spread
        elif shape.deps:
            policy = self._locality
            local_bytes = self._local_bytes(shape)
        if shape.strategy.labels or shape.strategy.preferred:
            policy = LabelPlacement(policy)
        view = ClusterView(
            candidates=candidates,
            spread_threshold_percent=self.config.spread_threshold_percent,
            local_bytes=local_bytes,
            round_robin=self.spread_count if shape.strategy.kind is StrategyKind.SPREAD else self.placed_count,
        )
        answer = policy.choose(shape, view, request.via)
        if self.instead is not None:
            answer = self.instead(request, view, answer)
        if self.on_choice is not None:
            self.on_choice(request, policy, view, answer)
        return answer

    def _book(self, request: LeaseRequested, node: NodeID) -> None:
        """Count one lease of a request as placed on a node."""
        view = self.views[node]
        if self._is_stalled(request):
            view.stalled[request.request_id] = None
        else:
            view.take(request.shape.placement)
            self.candidates.touch(node)
        view.placed.setdefault(request.request_id, []).append(request)
        self.placed_count += 1
        self.spread_count += request.shape.strategy.kind is StrategyKind.SPREAD

    def _forward(self, request: LeaseRequested, node: NodeID, count: int) -> None:
        """Tell a node of leases of a request that are booked there."""
        placed = LeaseRequested(
            request_id=request.request_id,
            owner=request.owner,
            shape=request.shape,
            count=count,
            placed=True,
            incarnation=self.views[node].info.incarnation,
            via=request.via,
        )
        self.out.send(Address(node), placed)

    def _reserve_bundle(
        self, node: NodeID, group: PlacementGroupID, index: int, resources: Resources, attempt: int
    ) -> None:
        """Ask a node to reserve a bundle, and count that as taken until it answers."""
        view = self.views[node]
        view.reserving[group, index] = resources
        view.take(resources)
        self.candidates.touch(node)
        wanted = BundleWanted(
            group_id=group, index=index, resources=resources, attempt=attempt, incarnation=view.info.incarnation
        )
        self.out.send(Address(node), wanted)

    def _is_stalled(self, request: LeaseRequested) -> bool:
        return any(all(node in self.silent for node in self._copies_on(hint.object_id)) for hint in request.shape.deps)

    def on_copies_lost(self) -> None:
        """The last copy of some object is gone, or out of reach: what was placed and needs it is stalled."""
        for view in self.views.values():
            stalled = [
                request_id
                for request_id, requests in view.placed.items()
                if request_id not in view.stalled and self._is_stalled(requests[0])
            ]
            if stalled:
                view.stalled.update(dict.fromkeys(stalled))
                view.recount()
                self.candidates.touch(view.info.node)
        self.retry_pending()

    def _refuse(self, request: LeaseRequested, reason: str) -> None:
        why = why_infeasible(request.shape, self._nodes()) or reason
        is_actor = request.owner == HEAD
        if self.groups.is_over(request.shape):
            kind = ErrorKind.ACTOR_GROUP_REMOVED if is_actor else ErrorKind.TASK_GROUP_REMOVED
        else:
            kind = ErrorKind.ACTOR_UNSCHEDULABLE if is_actor else ErrorKind.TASK_UNSCHEDULABLE
        error = ErrorInfo(
            kind=kind,
            message=f"{request.shape.name} cannot be scheduled: {why}.",
        )
        refusal = LeaseRefused(request_id=request.request_id, count=request.count, error=error)
        if is_actor:
            self.refused_actors.append(refusal)
        else:
            self.out.send(request.owner, refusal)

    def retry_pending(self) -> None:
        """Resources may have become free: offer them to what waits, in order. Of requests that are alike, the first
        that finds no room speaks for the others."""
        if self.groups.waiting:
            self.groups.try_all()
        if not self.pending:
            return
        if len(self._drivers) > 1 and len(self._drivers_waiting()) > 1:
            self._serve_drivers()
        waiting, self.pending = self.pending, deque()
        no_room: set[LeaseShape] = set()  # membership only; never iterated
        for request in waiting:
            left = request.count if request.shape in no_room else self._place(request)
            if left:
                no_room.add(request.shape)
                self.pending.append(_with_count(request, left))
        self._see_to_turns()

    # ---- Several drivers -------------------------------------------------------------------------------------

    def _drivers_waiting(self) -> dict[Address, LeaseRequested]:
        """Of each driver that waits, what it has waited for longest."""
        waiting: dict[Address, LeaseRequested] = {}
        for request in self.pending:
            if is_driver(request.owner):
                waiting.setdefault(request.owner, request)
        return waiting

    def _held(self) -> dict[Address, int]:
        """Of each driver, the leases that it has or is about to have."""
        held: dict[Address, int] = {}
        for view in self.views.values():
            for owner, count in view.held.items():
                held[Address(owner)] = held.get(Address(owner), 0) + count
            for requests in view.placed.values():
                owner = requests[0].owner
                if is_driver(owner):
                    held[owner] = held.get(owner, 0) + len(requests)
        return held

    def _serve_drivers(self) -> None:
        """Place leases one by one, always for the driver that has the fewest; who finds no room is done."""
        held = self._held()
        waiting = self._drivers_waiting()
        while waiting:
            owner = min(waiting, key=lambda driver: (held.get(driver, 0), driver))
            request = waiting[owner]
            if self._place(_with_count(request, 1)):
                del waiting[owner]
                continue
            held[owner] = held.get(owner, 0) + 1
            position = self.pending.index(request)
            if request.count > 1:
                self.pending[position] = waiting[owner] = _with_count(request, request.count - 1)
            else:
                del self.pending[position]
                following = self._drivers_waiting().get(owner)
                if following is None:
                    del waiting[owner]
                else:
                    waiting[owner] = following

    def _unfair(self) -> tuple[NodeID, Address] | None:
        """A driver that is to give a lease back to one that waits and has less, and the node on which."""
        waiting = self._drivers_waiting() if len(self._drivers) > 1 else {}
        if not waiting:
            return None
        held = self._held()
        poor = min(waiting, key=lambda driver: (held.get(driver, 0), driver))
        others = [driver for driver in held if driver != poor]
        if not others:
            return None
        rich = max(others, key=lambda driver: (held[driver], driver))
        if held[rich] <= held.get(poor, 0) or held[rich] == held.get(poor, 0) + 1 > 1:
            return None
        demand = waiting[poor].shape.placement
        nodes = [
            (view.held[rich], node)
            for node, view in self.views.items()
            if view.held.get(rich) and fits(view.candidate.total, demand)
        ]
        return (max(nodes)[1], rich) if nodes else None

    def _see_to_turns(self) -> None:
        """While somebody has more than a driver that waits, look again after each turn."""
        if not self._turn_is_due and self._unfair() is not None:
            self._turn_is_due = True
            self.out.add(ArmTimer(timer=TURN_TIMER, delay_ns=self.config.lease_turn_ns))

    def on_turn(self) -> None:
        """A turn is over."""
        self._turn_is_due = False
        unfair = self._unfair()
        if unfair is not None:
            node, rich = unfair
            self.out.send(Address(node), TurnWanted(owner=rich))
        self._see_to_turns()

    # ---- Nodes -----------------------------------------------------------------------------------------------

    def on_node_joined(self, info: NodeInfo) -> None:
        """A node's resources count from now on."""
        view = self.views[info.node] = NodeView(info)
        self.candidates[info.node] = view.candidate
        self.groups.on_nodes_changed()
        self.retry_pending()

    def on_node_silent(self, node: NodeID) -> None:
        """Its copies may be lost: see the module."""
        self.silent[node] = None
        self.on_copies_lost()

    def on_node_heard(self, node: NodeID) -> None:
        """Its copies can be had again. What is stalled stays so: it starts as soon as its arguments have come."""
        self.silent.pop(node, None)
        self.retry_pending()

    def on_node_draining(self, node: NodeID) -> None:
        """Place nothing there any more."""
        self.candidates.remove(node)
        self.retry_pending()

    def on_drain_given_up(self, node: NodeID) -> None:
        """Place things there again."""
        view = self.views[node]
        view.candidate = candidate_of(view.info, view.free)
        self.candidates[node] = view.candidate
        self.groups.on_nodes_changed()
        self.retry_pending()

    def on_node_changed(self, info: NodeInfo) -> None:
        """A node offers less than it did (what is free there it reports): what can never be met now is refused."""
        view = self.views.get(info.node)
        if view is not None and view.info.incarnation == info.incarnation:
            view.info = info
            view.total_units = dict(info.total.units)
            view.candidate = candidate_of(info, view.free)
            if info.node in self.candidates:  # else it is about to leave
                self.candidates[info.node] = view.candidate
            self.retry_pending()

    def on_reported(self, event: ResourcesReported) -> None:
        """A node says what it has free and which placements are settled."""
        view = self.views.get(event.node)
        if view is None or view.info.incarnation != event.incarnation:
            return
        # What is not in `placed` was placed on an earlier life of the node, and placed again since.
        for request_id in event.allocated:
            if request_id in view.placed:
                view.allocate(request_id)
        for request_id in event.settled:
            if request_id in view.placed:
                view.settle(request_id)
        for report in event.bundles:
            view.reserving.pop((report.group_id, report.index), None)
            self.groups.on_report(event.node, report)
        view.reported = event.available
        view.held = event.held
        view.recount()
        self.candidates.touch(event.node)
        self.retry_pending()

    def on_node_died(self, node: NodeID) -> None:
        """What was placed there and not settled is placed again; what now can never be met is refused."""
        view = self.views.pop(node, None)
        self.silent.pop(node, None)
        if view is None:
            return
        self.candidates.remove(node)
        self.groups.on_node_died(node)
        for requests in view.placed.values():
            for request in requests:
                self.request(_with_count(request, 1))
        self.retry_pending()

    def owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        """Nobody waits for what they had asked for."""
        self.groups.owners_died(is_dead)
        self.pending = deque(request for request in self.pending if not is_dead(request.owner))
        for driver in [driver for driver in self._drivers if is_dead(driver)]:
            del self._drivers[driver]

    # ---- Why does it wait? -----------------------------------------------------------------------------------

    def explain(self) -> list[str]:
        """In words, what waits here and why."""
        return [
            f"{request.count} x {request.shape.name} of {request.owner} waits for {request.shape.placement}: "
            + "; ".join(filter(None, self._reasons(request)))
            for request in self.pending
        ] + self.groups.explain()

    def _reasons(self, request: LeaseRequested) -> tuple[str, str, str]:
        placement, launched = self._choose(request), self.why_not_launched(request.shape)
        is_none_now = launched and placement.outcome is Outcome.INFEASIBLE
        reason = "no node that is there could take it" if is_none_now else placement.reason
        return reason, self.who_holds(request), launched

    def check_invariants(self) -> None:
        self.groups.check_invariants()
        for node, view in self.views.items():
            expected = dict(view.reported)
            for resources in view.reserving.values():
                for name, amount in resources.units:
                    expected[name] = expected.get(name, 0) - amount
            for request_id, requests in view.placed.items():
                ensure(bool(requests), "node {} has an empty placement", node)
                ensure(view.allocated.get(request_id, 0) <= len(requests), "node {} allocates too much", node)
                for request in view.uncounted(request_id):
                    for name, amount in request.shape.placement.units:
                        expected[name] = expected.get(name, 0) - amount
            ensure(expected == view.free, "node {} is believed to have {} free, not {}", node, view.free, expected)


def _pair(one: NodeID, other: NodeID) -> tuple[NodeID, NodeID]:
    return (one, other) if one < other else (other, one)


def _with_count(request: LeaseRequested, count: int) -> LeaseRequested:
    return LeaseRequested(
        request_id=request.request_id,
        owner=request.owner,
        shape=request.shape,
        count=count,
        via=request.via,
    )
