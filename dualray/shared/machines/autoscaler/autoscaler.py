"""The autoscaler: which nodes are launched, and which leave.

Theory of operation. Whatever may change a decision (a demand that waits, a node that joins, dies or reports, a refusal)
makes one due within `autoscaler_turn_ns`; several changes share it. Before it, the owners of what waits are asked how
much more of it they hold back, for they ask for a few leases at a time. Then the policy is shown all nodes, launches
under way and demands, and its answer is carried out: `LaunchNodes` for the provider, `DrainAsked` for nodes that are to
leave. Nothing is looked at in between: the timer is armed for the next moment at which something is due by itself, as
when a node will have been idle for `idle_timeout_ns`. So a cluster at rest has no timers.

Each launch has an id, and is REQUESTED until a node joins that carries the id as a label. The provider may refuse it
(`LaunchesFailed`): then its group is closed for `launch_cooldown_ns`. One that has not joined within
`launch_timeout_ns` is given up, and its machine given back; if it joins all the same it is told to leave. When a node
dies that was launched, its machine is given back (`TerminateNode`). A provider carries out an id once, however often it
is told: what is repeated after an outage of the head launches nothing twice.

A node was last used when it last reported, or was last found to hold a lease, a bundle or an actor. Nodes of drivers
and nodes of no group never leave. Neither does one whose processes own stored objects, for these would be lost with
their owners: it is looked at again an idle timeout later.

Relies on: the head says who joins, dies and reports; a provider answers each launch by a node or by a refusal, or
never, which counts as a refusal.
Guarantees: never more nodes of a group, with those under way and those that leave, than its most; no node is told to
leave within its idle timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

from dualray.shared.machines.autoscaler.groups import groups_of
from dualray.shared.machines.autoscaler.views import view_to_text
from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.model.commands import ArmTimer, CancelTimer, LaunchNodes, TerminateNode
from dualray.shared.model.config import Config
from dualray.shared.model.events import BacklogReported, BacklogWanted, DrainAsked, LaunchesFailed
from dualray.shared.model.ids import HEAD, Address, NodeID
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import LAUNCH_LABEL, NODE_GROUP_LABEL, LabelTerm, LeaseShape, NodeInfo, StrategyKind
from dualray.shared.model.states import LAUNCH, LaunchState
from dualray.shared.policies import load_policy
from dualray.shared.policies.scaling import (
    Demand,
    Gang,
    NodeGroupSpec,
    ScaleDecision,
    ScaledNode,
    ScaleView,
    ScalingPolicy,
    demand_words,
    request_words,
)

AUTOSCALER_TIMER: Final = "autoscaler"
START_UPS_MOST: Final = 100
"""Of each group, the last launches of which it is told how long their nodes took to join."""


class ClusterSupply(Protocol):
    """What the head tells of its cluster."""

    def rooms(self) -> list[tuple[NodeInfo, dict[str, int]]]:
        """The nodes that are alive and stay, with what is free there."""

    def in_use(self) -> dict[NodeID, None]:
        """Nodes that hold a lease, a bundle, an actor or a driver, or are about to."""

    def owned_on(self, nodes: Collection[NodeID]) -> dict[NodeID, int]:
        """How many stored objects processes of these nodes own, which would be lost with them."""

    def waiting(self) -> list[tuple[Address, LeaseShape, int]]:
        """Leases that wait for a node: for whom, and how many."""

    def gangs(self) -> list[Gang]:
        """Placement groups that wait for nodes."""


class Launch:
    """One node that was asked for."""

    __slots__ = ("asked_ns", "group", "launch_id", "node", "state")

    def __init__(self, launch_id: str, group: str, asked_ns: int) -> None:
        self.launch_id = launch_id
        self.group = group
        self.asked_ns = asked_ns
        self.state = LaunchState.REQUESTED
        self.node: NodeID | None = None

    def become(self, state: LaunchState) -> None:
        self.state = LAUNCH.check(self.state, state, self.launch_id, f"a node of group {self.group}")


class Autoscaler:
    """See the module."""

    def __init__(self, *, out: Outbox, config: Config, supply: ClusterSupply) -> None:
        self.out = out
        self.config = config
        self.supply = supply
        self.groups: tuple[NodeGroupSpec, ...] = groups_of(config.autoscaler_groups)
        self.policy: ScalingPolicy = load_policy(config.autoscaler_policy)
        self.launches: dict[str, Launch] = {}
        """Those under way, and those whose node is there, by id."""
        self.launched_count = 0
        self.start_ups_ns: dict[str, list[int]] = {group.name: [] for group in self.groups}
        """By group, from a launch until its node has joined, of the last ones."""
        self._ended_ns = dict.fromkeys(self.start_ups_ns, 0)
        """By group, from a launch until its end, of all that have ended."""
        self.leaving: dict[NodeID, str] = {}
        """Nodes that were told to leave and are still there, each with its group."""
        self.kept: dict[NodeID, str] = {}
        """Nodes that were to leave and stay, each with the reason; they are looked at again an idle timeout later."""
        self.last_use_ns: dict[NodeID, int] = {}
        self.requested: dict[Address, tuple[Demand, ...]] = {}
        """What each process wants the cluster to be large enough for."""
        self.decision = ScaleDecision()
        """The last one."""
        self._closed: dict[str, tuple[int, str]] = {}
        """Groups of which no node can be had: until when, and why."""
        self._due_ns: int | None = None
        self._asked: dict[Address, None] = {}
        """Owners that were asked for what they hold back, and have not answered."""
        self._is_asking = False
        self._in_use: dict[NodeID, None] = {}
        """As of the last decision."""
        self._known: dict[NodeID, tuple[NodeInfo, ScaledNode]] = {}
        """The nodes, as the policy was shown them last."""
        self._backlog: dict[Address, dict[LeaseShape, int]] = {}
        self.on_decision: Callable[[ScaleView, ScaleDecision], None] | None = None
        """Shown each decision, when a log is replayed to explain it."""

    # ---- What happens ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Something has changed: decide soon."""
        due_ns = self.out.now_ns + self.config.autoscaler_turn_ns
        if not self._is_asking and (self._due_ns is None or self._due_ns > due_ns):
            self._arm(due_ns)

    def on_joined(self, info: NodeInfo) -> None:
        """A node is there."""
        self.last_use_ns[info.node] = self.out.now_ns
        launch_id = dict(info.labels).get(LAUNCH_LABEL)
        if launch_id is not None:
            launch = self.launches.get(launch_id)
            if launch is not None and launch.state is LaunchState.REQUESTED:
                launch.become(LaunchState.JOINED)
                launch.node = info.node
                took_ns = self.out.now_ns - launch.asked_ns
                self.start_ups_ns[launch.group] = [*self.start_ups_ns[launch.group][1 - START_UPS_MOST :], took_ns]
            else:  # it was given up, or its node was taken for dead
                self._send_off(info.node, _group_of(info), for_good=True)
        self.look()

    def on_died(self, info: NodeInfo) -> None:
        """A node is gone: so is its machine, if it was launched."""
        self.last_use_ns.pop(info.node, None)
        self._known.pop(info.node, None)
        self.kept.pop(info.node, None)
        self.leaving.pop(info.node, None)
        launch_id = dict(info.labels).get(LAUNCH_LABEL)
        if launch_id is not None:
            launch = self.launches.pop(launch_id, None)
            if launch is not None:
                launch.become(LaunchState.ENDED)
                self._ended_ns[launch.group] += self.out.now_ns - launch.asked_ns
            self.out.add(TerminateNode(launch_id=launch_id, node=info.node))
        self.look()

    def on_drain_given_up(self, node: NodeID, why: str) -> None:
        """A node that was told to leave stays."""
        self.leaving.pop(node, None)
        self.last_use_ns[node] = self.out.now_ns
        self.kept[node] = f"its drain was given up: {why}"
        self.look()

    def on_reported(self, node: NodeID) -> None:
        """Something has happened there: it was in use until now."""
        self.last_use_ns[node] = self.out.now_ns
        self.look()

    def on_failed(self, event: LaunchesFailed) -> None:
        """The provider has refused some nodes."""
        for launch_id in event.launch_ids:
            launch = self.launches.get(launch_id)
            if launch is not None and launch.state is LaunchState.REQUESTED:
                self._close(launch, f"the provider refused a node: {event.reason}")
        self.look()

    def request(self, process: Address, demands: tuple[Demand, ...]) -> None:
        """The cluster is to be large enough for these, until the process says otherwise or ends."""
        if demands:
            self.requested[process] = demands
        else:
            self.requested.pop(process, None)
        self.look()

    def owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        """Nobody wants anything for them any more."""
        for process in [process for process in self.requested if is_dead(process)]:
            del self.requested[process]
        for process in [process for process in self._asked if is_dead(process)]:
            del self._asked[process]
        self.look()

    def _close(self, launch: Launch, why: str) -> None:
        launch.become(LaunchState.FAILED)
        del self.launches[launch.launch_id]
        self._closed[launch.group] = (self.out.now_ns + self.config.launch_cooldown_ns, why)

    # ---- When ------------------------------------------------------------------------------------------------

    def _arm(self, due_ns: int) -> None:
        self._due_ns = due_ns
        self.out.add(ArmTimer(timer=AUTOSCALER_TIMER, delay_ns=max(due_ns - self.out.now_ns, 0)))

    def on_timer(self) -> None:
        """A decision is due: ask owners first, and decide when they have answered, or have had their time."""
        self._due_ns = None
        if self._is_asking:
            self._decide()
            return
        self._backlog.clear()
        self._asked = {owner: None for owner, _, _ in self.supply.waiting() if owner != HEAD}
        if not self._asked:
            self._decide()
            return
        self._is_asking = True
        for owner in self._asked:
            self.out.send(owner, BacklogWanted())
        self._arm(self.out.now_ns + self.config.autoscaler_turn_ns)

    def on_backlog(self, event: BacklogReported) -> None:
        """An owner says how many tasks wait behind the leases that it has asked for."""
        if not self._is_asking or event.owner not in self._asked:
            return
        del self._asked[event.owner]
        self._backlog[event.owner] = dict(zip(event.shapes, event.counts, strict=True))
        if not self._asked:
            self.out.add(CancelTimer(timer=AUTOSCALER_TIMER))
            self._due_ns = None
            self._decide()

    # ---- The decision ----------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._is_asking = False
        self._asked.clear()
        self._give_up()
        view = self._view()
        decision = self.decision = self.policy.choose(view)
        check_decision(view, decision)
        if self.on_decision is not None:
            self.on_decision(view, decision)
        for group, count in decision.launches.items():
            self._launch(group, count)
        leaves = decision.leaving
        groups = {node.name: node.group for node in view.nodes if node.name in leaves} if leaves else {}
        leaving = [NodeID(name) for name in decision.leaving]
        owned = self.supply.owned_on(leaving) if leaving else {}
        for name in leaving:
            if name in owned:
                self.last_use_ns[name] = self.out.now_ns
                self.kept[name] = f"its processes own {owned[name]} objects, which would be lost with it"
            else:
                self.kept.pop(name, None)
                self._send_off(name, groups[name])
        self._arm_next(view)

    def _launch(self, group: str, count: int) -> None:
        launch_ids = tuple([f"launch-{self.launched_count + index}" for index in range(1, count + 1)])
        self.launched_count += count
        for launch_id in launch_ids:
            self.launches[launch_id] = Launch(launch_id, group, self.out.now_ns)
        self.out.add(LaunchNodes(group=group, launch_ids=launch_ids))

    def _send_off(self, node: NodeID, group: str, *, for_good: bool = False) -> None:
        self.leaving[node] = group
        self.out.send(Address(node), DrainAsked(is_cancellable=not for_good))

    def _give_up(self) -> None:
        """Launches whose node has not joined in time."""
        timeout_ns = self.config.launch_timeout_ns
        for launch in list(self.launches.values()):
            if launch.state is LaunchState.REQUESTED and self.out.now_ns - launch.asked_ns >= timeout_ns:
                self._close(launch, f"{launch.launch_id} did not join within {timeout_ns / 1e9:g} s")
                self.out.add(TerminateNode(launch_id=launch.launch_id))

    def _view(self) -> ScaleView:
        now_ns = self.out.now_ns
        in_use = self._in_use = self.supply.in_use()
        leaving, last_use_ns, known = self.leaving, self.last_use_ns, self._known
        nodes = []
        for info, free in self.supply.rooms():  # there may be thousands: see `python -m benchmarks.scaling`
            name = info.node
            if name in leaving:
                continue
            if name in in_use:
                last_use_ns[name] = now_ns
                idle_ns = 0
            else:
                idle_ns = now_ns - last_use_ns.get(name, now_ns)
            row = known.get(name)
            if row is None or row[0] is not info or row[1].free is not free or row[1].idle_ns != idle_ns:
                row = known[name] = info, _scaled_node(info, free, idle_ns)
            nodes.append(row[1])
        specs = {group.name: group for group in self.groups}
        for launch in self.launches.values():
            if launch.state is LaunchState.REQUESTED:
                spec = specs[launch.group]
                total = dict(spec.total.units)
                nodes.append(
                    ScaledNode(
                        name=launch.launch_id,
                        group=launch.group,
                        total=total,
                        free=total,
                        labels=dict(spec.labels),
                        is_joined=False,
                    )
                )
        return ScaleView(
            groups=self._groups_now(),
            nodes=nodes,
            demands=self._demands(),
            gangs=self.supply.gangs(),
            requested=list(self.requested.values()),
            idle_timeout_ns=self.config.idle_timeout_ns,
            speed_percent=self.config.upscaling_speed_percent,
            closed={group: why for group, (until_ns, why) in self._closed.items() if until_ns > now_ns},
            leaving=dict(Counter(self.leaving.values())),
        )

    def _groups_now(self) -> list[NodeGroupSpec]:
        """Nodes that leave are there until they have left: no others take their place."""
        going = Counter(self.leaving.values())
        return [
            NodeGroupSpec(
                name=group.name,
                total=group.total,
                labels=group.labels,
                least=min(group.least, max(group.most - going[group.name], 0)),
                most=max(group.most - going[group.name], 0),
                price=group.price,
            )
            for group in self.groups
        ]

    def _demands(self) -> list[Demand]:
        """Of what waits, that which a new node could take; by shape, with what owners hold back."""
        counts: dict[tuple[Resources, tuple[LabelTerm, ...]], list[int]] = {}
        held_back = {owner: dict(counts) for owner, counts in self._backlog.items()}
        for owner, shape, count in self.supply.waiting():
            strategy = shape.strategy
            if strategy.kind is StrategyKind.PLACEMENT_GROUP or strategy.only_node is not None:
                continue
            if owner in held_back:
                count += held_back[owner].pop(shape, 0)
            counts.setdefault((shape.placement, strategy.labels), []).append(count)
        return [Demand(resources=key[0], labels=key[1], count=sum(each)) for key, each in counts.items()]

    def _arm_next(self, view: ScaleView) -> None:
        """The next moment at which something is due by itself."""
        config, now_ns = self.config, self.out.now_ns
        held = view.count_by_group()
        joined = held - Counter([node.group for node in view.nodes if not node.is_joined])
        shrinks = {group.name for group in view.groups if joined[group.name] > group.least}
        idle = [node for node in view.nodes if node.name not in self._in_use] if shrinks else []
        due = [
            now_ns + config.idle_timeout_ns - node.idle_ns + 1
            for node in idle
            if node.is_joined and node.group in shrinks and node.idle_ns <= config.idle_timeout_ns
        ]
        due += [launch.asked_ns + config.launch_timeout_ns for launch in self._under_way()]
        short = [group.name for group in view.groups if held[group.name] < group.least]
        for group, (until_ns, _) in self._closed.items():
            if until_ns > now_ns and (self.decision.unmet or group in short):
                due.append(until_ns)
        if due:
            self._arm(min(due))

    def _under_way(self) -> list[Launch]:
        return [launch for launch in self.launches.values() if launch.state is LaunchState.REQUESTED]

    # ---- For people ------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Every group: its nodes, what is under way, and why none can be had."""
        joined: dict[str, int] = {}
        for info, _ in self.supply.rooms():
            joined[_group_of(info)] = joined.get(_group_of(info), 0) + 1
        leaving = list(self.leaving.values())
        starting = [launch.group for launch in self._under_way()]
        held_ns = dict.fromkeys(self._ended_ns, 0)
        for launch in self.launches.values():
            held_ns[launch.group] += self.out.now_ns - launch.asked_ns
        return [
            {
                "group": group.name,
                "min": group.least,
                "max": group.most,
                "nodes": joined.get(group.name, 0) - leaving.count(group.name),
                "launching": starting.count(group.name),
                "leaving": leaving.count(group.name),
                "resources": group.total.as_floats(),
                "price_per_hour": group.price / 1e6,
                "node_seconds": (self._ended_ns[group.name] + held_ns[group.name]) / 1e9,
                "start_ups_s": [took_ns / 1e9 for took_ns in self.start_ups_ns[group.name]],
                "refused": self._closed[group.name][1] if self._is_closed(group.name) else "",
                "kept": [f"{name}: {why}" for name, why in self.kept.items() if self._belongs(name, group.name)],
            }
            for group in self.groups
        ]

    def _belongs(self, node: NodeID, group: str) -> bool:
        return node in self._known and self._known[node][1].group == group

    def demand_rows(self) -> list[dict[str, Any]]:
        """What waits for nodes, or was requested: each with why no node is launched for it; "" when one is, or has
        room."""
        unmet = {each.what: _words(each.reasons) for each in self.decision.unmet}
        rows: list[dict[str, Any]] = []
        for demand in self._demands():
            words = demand_words(demand.resources, demand.labels)
            rows.append({"demand": words, "count": demand.count, "not_launched": unmet.get(words, "")})
        for gang in self.supply.gangs():
            words = f"the {gang.name}"
            rows.append({"demand": words, "count": 1, "not_launched": unmet.get(words, "")})
        for process, demands in self.requested.items():
            bundles = ", ".join(f"{each.count} x {demand_words(each.resources, each.labels)}" for each in demands)
            words = request_words(sum(each.count for each in demands))
            row = {"demand": f"request of {process}: {bundles}", "count": 1, "not_launched": unmet.get(words, "")}
            rows.append(row)
        return rows

    def launch_rows(self) -> list[dict[str, Any]]:
        """The launches whose nodes have not joined."""
        return [
            {"launch": each.launch_id, "group": each.group, "for_s": (self.out.now_ns - each.asked_ns) / 1e9}
            for each in self._under_way()
        ]

    def view_rows(self) -> list[dict[str, Any]]:
        """One row: what the policy would be shown now, as `view_of` reads it, and which policy that is."""
        return [{"view": view_to_text(self._view()), "policy": self.config.autoscaler_policy}]

    def _is_closed(self, group: str) -> bool:
        return group in self._closed and self._closed[group][0] > self.out.now_ns

    def why_not(self, shape: LeaseShape) -> str:
        """In words, by group, why no node is launched for a lease that waits, or how many are on their way."""
        what = demand_words(shape.placement, shape.strategy.labels)
        unmet = next((each for each in self.decision.unmet if each.what == what), None)
        if unmet is not None:
            return f"no node is launched for it: {_words(unmet.reasons)}"
        coming = Counter([each.group for each in self._under_way()])
        could = [group.name for group in self.groups if group.name in coming and group.could_take(shape)]
        words = [f"{coming[name]} of group {name}" for name in could]
        return f"nodes are starting: {', '.join(words)}" if words else ""

    def explain(self) -> list[str]:
        """In words, of each demand that no launch will meet, why not, by group."""
        return [f"no node is launched for {unmet}: {_words(unmet.reasons)}" for unmet in self.decision.unmet]

    def wrong_at_rest(self) -> list[str]:
        """What must not be when nothing happens any more, and no timer runs: in words."""
        used = self.supply.in_use()
        joined = Counter([_group_of(info) for info, _ in self.supply.rooms()])
        spare = Counter([_group_of(info) for info, _ in self.supply.rooms() if info.node not in used])
        wrong = [f"{each.launch_id} is under way, and nobody looks after it" for each in self._under_way()]
        wrong += [f"{node} is to leave, and does not" for node in self.leaving]
        for group in self.groups:
            count = joined[group.name]
            if count < group.least:
                wrong.append(f"group {group.name} has {count} nodes, and its min is {group.least}")
            elif not self.requested and min(count - group.least, spare[group.name]) > 0:
                wrong.append(f"group {group.name} keeps idle nodes: it has {count}, and its min is {group.least}")
        return wrong

    def check_invariants(self) -> None:
        for launch_id, launch in self.launches.items():
            ensure(launch.launch_id == launch_id, "launch {} is filed under {}", launch.launch_id, launch_id)
            ensure(
                (launch.node is None) == (launch.state is LaunchState.REQUESTED), "launch {} and its node", launch_id
            )
        counts: dict[str, int] = {}
        for info, _ in self.supply.rooms():
            if LAUNCH_LABEL in dict(info.labels):
                counts[_group_of(info)] = counts.get(_group_of(info), 0) + 1
        for launch in self.launches.values():
            if launch.state is LaunchState.REQUESTED:
                counts[launch.group] = counts.get(launch.group, 0) + 1
        for group in self.groups:
            ensure(
                counts.get(group.name, 0) <= group.most + len(self.leaving),
                "group {} has {} nodes that were launched, and may have {}",
                group.name,
                counts.get(group.name, 0),
                group.most,
            )


def check_decision(view: ScaleView, decision: ScaleDecision) -> None:
    """What must hold of every decision, whichever policy has made it.

    Raises:
        InvariantViolation: it does not.
    """
    counts = view.count_by_group()
    nodes = {node.name: node for node in view.nodes} if decision.leaving else {}
    specs = {group.name: group for group in view.groups}
    for name, why in decision.leaving.items():
        group, idle_ns = nodes[name].group, nodes[name].idle_ns
        is_extra = group in specs and counts[group] > specs[group].most
        ensure(
            is_extra or idle_ns > view.idle_timeout_ns,
            "{} is to leave ({}), and was idle for {} ns only",
            name,
            why,
            idle_ns,
        )
        counts[group] -= 1
        ensure(
            group in specs and counts[group] >= specs[group].least, "group {} gets fewer nodes than its least", group
        )
    unmet_whole = sum(1 for unmet in decision.unmet if unmet.is_whole)
    waits = bool(view.demands) or len(view.gangs) + len(view.requested) > unmet_whole
    for group, count in decision.launches.items():
        ensure(group in specs, "there is no group {} to launch a node of", group)
        ensure(group not in view.closed, "a node of group {} is launched though {}", group, view.closed.get(group))
        now = counts[group] + count
        ensure(now <= specs[group].most, "group {} gets {} nodes, and may have {}", group, now, specs[group].most)
        ensure(
            waits or now <= specs[group].least, "nodes of group {} are launched though nothing waits for them", group
        )


def _scaled_node(info: NodeInfo, free: dict[str, int], idle_ns: int) -> ScaledNode:
    total, labels = dict(info.total.units), info.all_labels()
    return ScaledNode(name=info.node, group=_group_of(info), total=total, free=free, labels=labels, idle_ns=idle_ns)


def _group_of(info: NodeInfo) -> str:
    return dict(info.labels).get(NODE_GROUP_LABEL, "")


def _words(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{group}: {why}" for group, why in reasons.items()) or "there are no groups of nodes"
