"""The placement groups of the cluster: which nodes have reserved which bundles.

Theory of operation. A group is noted when its owner asks for it (PENDING). The policy chooses nodes for all of its
bundles at once, from what the head believes to be free; each of these nodes is then asked to reserve its bundle, and
says with its next report whether it has. When all have, the group is CREATED; when one has not, the others give theirs
back, and the group waits for the next news of free resources. What is asked for and not answered counts as taken.

A bundle that is reserved is offered by its node under names of its own (model/resources.py), so that leases in it are
placed, counted and granted like any others. When a node dies, its bundles are placed again, beside those that are left
(RESCHEDULING); tasks that want them wait. When a group is REMOVED, or its owner dies, what runs in it ends.

In a closed cluster a group that the nodes can never take is refused at once, or, when nodes have died since,
INFEASIBLE: then what waits for it fails. In an open cluster it waits for other nodes.

Relies on: each BundleWanted is answered once, unless the node dies.
Guarantees: all bundles or none, but for those lost since; a removed group holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.model.commands import WriteRecord
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    BundlesUnwanted,
    PlacementGroupNoted,
    PlacementGroupRequested,
)
from dualray.shared.model.ids import Address, NodeID, PlacementGroupID, job_of, own_namespace, short
from dualray.shared.model.resources import BUNDLE, Resources, fits, in_plain_names, shortfall
from dualray.shared.model.specs import WHOLE_GROUP, BundleReport, LeaseShape, NodeInfo, PlacementGroupSpec
from dualray.shared.model.states import GROUP, GroupState
from dualray.shared.policies.bundles import choose_nodes, has_no_node, why_never
from dualray.shared.policies.placement import Candidate, Outcome, Placement

_WAITING = (GroupState.PENDING, GroupState.RESCHEDULING)


def _its_maker(spec: PlacementGroupSpec) -> Address:
    return spec.owner


class GroupRecord:
    """One group as the head sees it."""

    __slots__ = (
        "asked",
        "attempt",
        "creation_ns",
        "ends_with",
        "is_mixed",
        "placed",
        "reason",
        "requested_ns",
        "spec",
        "state",
    )

    def __init__(self, spec: PlacementGroupSpec, requested_ns: int, ends_with: Address) -> None:
        self.spec = spec
        self.ends_with = ends_with
        """The process whose end removes the group, unless it is detached."""
        self.state = GroupState.PENDING
        self.placed: dict[int, NodeID] = {}
        """Bundles that are reserved, and where."""
        self.attempt = 0
        self.asked: dict[int, NodeID] = {}
        """Bundles of the present attempt whose nodes have not answered."""
        self.reason = "it has just been asked for"
        kinds = {tuple(name for name, _ in bundle.units) for bundle in spec.bundles}
        self.is_mixed = len(kinds) > 1
        """Whether some bundles have resources that others have not."""
        self.requested_ns = requested_ns
        self.creation_ns = 0
        """How long it took until it was created for the first time."""

    @property
    def words(self) -> str:
        name = f" {self.spec.name!r}" if self.spec.name else ""
        return f"placement group{name} {short(self.spec.group_id)}"


class PlacementGroups:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        config: Config,
        nodes: Callable[[], tuple[NodeInfo, ...]],
        candidates: Mapping[NodeID, Candidate],
        reserve: Callable[[NodeID, PlacementGroupID, int, Resources, int], None],
    ) -> None:
        self.out = out
        self.config = config
        self._nodes = nodes
        self._candidates = candidates
        self._reserve = reserve
        self.records: dict[PlacementGroupID, GroupRecord] = {}
        self.waiting: dict[PlacementGroupID, None] = {}
        """PENDING and RESCHEDULING ones, in order of arrival."""
        self.namespace_of: Callable[[int], str] = own_namespace
        """The namespace of a job, in which its groups have their names. The head knows what drivers have said."""
        self.ends_with: Callable[[PlacementGroupSpec], Address] = _its_maker
        """The process whose end removes a group. The head knows the drivers and the actors."""

    # ---- Asked for -------------------------------------------------------------------------------------------

    def on_requested(self, event: PlacementGroupRequested) -> None:
        """Note a group and try to place it."""
        spec = event.spec
        record = GroupRecord(spec, self.out.now_ns, self.ends_with(spec))
        why = self._why_refused(record)
        if why is not None:
            error = ErrorInfo(
                kind=ErrorKind.GROUP_UNSCHEDULABLE, message=f"The {record.words} cannot be created: {why}."
            )
            self.out.send(spec.owner, PlacementGroupNoted(wait_id=event.wait_id, error=error))
            return
        self.records[spec.group_id] = record
        self.waiting[spec.group_id] = None
        self._write(record)
        self.out.send(spec.owner, PlacementGroupNoted(wait_id=event.wait_id))
        self._try(record)

    def _why_refused(self, record: GroupRecord) -> str | None:
        spec = record.spec
        if len(spec.bundles) > self.config.bundles_max:
            return f"it has {len(spec.bundles)} bundles, but the limit bundles_max is {self.config.bundles_max}"
        if spec.name and self.named(spec.name, self._namespace_of_group(spec)) is not None:
            return f"a group exists with the name {spec.name!r}: remove that group, or choose another name"
        return why_never(spec, {}, self._nodes()) if self.config.infeasible == "raise" else None

    def named(self, name: str, namespace: str) -> GroupRecord | None:
        """The group of this name in a namespace that has not been removed."""
        for record in self.records.values():
            if (
                record.spec.name == name
                and record.state is not GroupState.REMOVED
                and self._namespace_of_group(record.spec) == namespace
            ):
                return record
        return None

    def _namespace_of_group(self, spec: PlacementGroupSpec) -> str:
        """The namespace of the job that made a group."""
        return self.namespace_of(job_of(spec.group_id))

    def try_all(self) -> None:
        """Resources may have become free, or nodes have joined or gone."""
        for group_id in list(self.waiting):
            self._try(self.records[group_id])

    def _try(self, record: GroupRecord) -> None:
        if record.asked:
            return
        places = choose_nodes(record.spec, record.placed, self._candidates)
        if places is None:
            record.reason = "there is no room for all of its bundles now"
            return
        record.attempt += 1
        record.asked = dict(sorted(places.items()))
        record.reason = "its nodes have been asked to reserve it"
        for index, node in record.asked.items():
            self._reserve(node, record.spec.group_id, index, record.spec.bundles[index], record.attempt)

    # ---- Answers ---------------------------------------------------------------------------------------------

    def on_report(self, node: NodeID, report: BundleReport) -> None:
        """A node has reserved a bundle, or has not, or has lost it."""
        record = self.records.get(report.group_id)
        is_current = record is not None and report.attempt == record.attempt and record.asked.get(report.index) == node
        if record is None or not is_current:
            if record is not None and not report.is_reserved and record.placed.get(report.index) == node:
                del record.placed[report.index]
                self._lost(record)
            return
        del record.asked[report.index]
        if report.is_reserved:
            record.placed[report.index] = node
        else:
            record.reason = f"{node} had no room for bundle {report.index} after all"
        self._settle(record)

    def _settle(self, record: GroupRecord) -> None:
        """When the last node of an attempt has answered, or died: created, or given back."""
        if record.asked:
            return
        if record.state is GroupState.REMOVED:
            self._give_back(record, tuple(record.placed))
        elif len(record.placed) == len(record.spec.bundles):
            record.creation_ns = record.creation_ns or max(self.out.now_ns - record.requested_ns, 1)
            self._become(record, GroupState.CREATED)
        elif record.state is GroupState.PENDING:  # of one that lost bundles, those that it has stay
            self._give_back(record, tuple(record.placed))

    def _give_back(self, record: GroupRecord, indices: tuple[int, ...]) -> None:
        is_removed = record.state is GroupState.REMOVED
        by_node: dict[NodeID, list[int]] = {}
        for index in indices:
            by_node.setdefault(record.placed.pop(index), []).append(index)
        for node, given in by_node.items():
            unwanted = BundlesUnwanted(group_id=record.spec.group_id, indices=tuple(given), is_removed=is_removed)
            self.out.send(Address(node), unwanted)

    # ---- Lost and removed ------------------------------------------------------------------------------------

    def on_node_died(self, node: NodeID) -> None:
        """Its bundles are to be placed elsewhere."""
        for record in self.records.values():
            asked = [index for index, place in record.asked.items() if place == node]
            lost = [index for index, place in record.placed.items() if place == node]
            for index in asked:
                del record.asked[index]
            for index in lost:
                del record.placed[index]
            if lost:
                self._lost(record)
            if asked:
                self._settle(record)
        if self.config.infeasible == "raise":
            for group_id in list(self.waiting):
                self._check_feasible(self.records[group_id])

    def _check_feasible(self, record: GroupRecord) -> None:
        why = None if record.asked else why_never(record.spec, record.placed, self._nodes())
        if why is not None:
            record.reason = why
            self._become(record, GroupState.INFEASIBLE)

    def _lost(self, record: GroupRecord) -> None:
        record.reason = "some of its bundles were lost"
        if record.state in (GroupState.CREATED, GroupState.INFEASIBLE):
            self._become(record, GroupState.RESCHEDULING)

    def on_nodes_changed(self) -> None:
        """What was infeasible may not be so any more."""
        for record in self.records.values():
            if record.state is GroupState.INFEASIBLE:
                if why_never(record.spec, record.placed, self._nodes()) is None:
                    self._become(record, GroupState.RESCHEDULING)

    def remove(self, group_id: PlacementGroupID) -> None:
        """The group is not wanted any more."""
        record = self.records.get(group_id)
        if record is None or record.state is GroupState.REMOVED:
            return
        self._become(record, GroupState.REMOVED)
        self._give_back(record, tuple(record.placed))  # what is asked for and not answered follows

    def owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        """Groups that are not detached end with their job, or with the actor that made them."""
        for group_id, record in list(self.records.items()):
            if not record.spec.is_detached and is_dead(record.ends_with):
                self.remove(group_id)

    def _become(self, record: GroupRecord, state: GroupState) -> None:
        record.state = GROUP.check(record.state, state, record.spec.group_id, record.words)
        if state in _WAITING:
            self.waiting[record.spec.group_id] = None
        else:
            self.waiting.pop(record.spec.group_id, None)
        self._write(record)

    def _write(self, record: GroupRecord) -> None:
        fields = (("name", record.spec.name), ("state", str(record.state)), ("strategy", str(record.spec.strategy)))
        self.out.add(WriteRecord(table="placement_groups", key=record.spec.group_id.hex(), fields=fields))

    # ---- Leases in groups ------------------------------------------------------------------------------------

    def choose(self, shape: LeaseShape) -> Placement:
        """The node for a lease in a group: of the bundle that it names, or of any that has room."""
        strategy = shape.strategy
        assert strategy.group is not None
        record = self.records.get(strategy.group)
        if record is None:
            return Placement(Outcome.INFEASIBLE, reason=f"placement group {short(strategy.group)} is not known")
        if record.state is GroupState.REMOVED:
            return Placement(Outcome.INFEASIBLE, reason=f"the {record.words} was removed")
        why = _why_too_large(record, shape)
        if why is not None:
            return Placement(Outcome.INFEASIBLE, reason=why)
        wanted = range(len(record.spec.bundles)) if strategy.bundle < 0 else (strategy.bundle,)
        places = dict.fromkeys(record.placed[index] for index in wanted if index in record.placed)
        if strategy.bundle == WHOLE_GROUP and record.state is not GroupState.CREATED:
            places.clear()
        if record.state is GroupState.INFEASIBLE and len(places) == 0:
            return Placement(Outcome.INFEASIBLE, reason=f"the {record.words} can never be placed: {record.reason}")
        if record.state is GroupState.PENDING or not places:
            return Placement(Outcome.FAILED, reason=f"the {record.words} is {record.state}: {record.reason}")
        nodes = list(places)
        if strategy.bundle < 0 and record.is_mixed:  # a node with a GPU for the group is for those that need it
            with_room = [node for node in nodes if self._has_room(node, shape)]
            nodes = sorted(with_room, key=lambda node: self._left_unused(node, shape, record))
        for node in nodes:
            if self._has_room(node, shape):
                return Placement(Outcome.SUCCESS, node, "placement group: a bundle that has room")
        return Placement(Outcome.FAILED, reason=f"its bundles of the {record.words} are busy")

    def _has_room(self, node: NodeID, shape: LeaseShape) -> bool:
        candidate = self._candidates.get(node)
        return candidate is not None and fits(candidate.free, shape.placement)

    def _left_unused(self, node: NodeID, shape: LeaseShape, record: GroupRecord) -> int:
        """How many kinds of resources the group has free there of which the lease demands nothing."""
        demanded = {name for name, _ in shape.placement.units}
        suffix = f"{BUNDLE}{record.spec.group_id.hex()}"
        free = self._candidates[node].free
        return sum(amount > 0 and name.endswith(suffix) and name not in demanded for name, amount in free.items())

    def is_over(self, shape: LeaseShape) -> bool:
        """Whether a lease is in a group that will never be there again."""
        group = shape.strategy.group
        if group is None:
            return False
        record = self.records.get(group)
        return record is None or record.state is GroupState.REMOVED

    # ---- For people ------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Every group that there ever was, in order."""
        return [
            {
                "placement_group_id": group_id.hex(),
                "name": record.spec.name,
                "ray_namespace": self._namespace_of_group(record.spec),
                "state": str(record.state),
                "strategy": str(record.spec.strategy),
                "is_detached": record.spec.is_detached,
                "creator": record.spec.owner,
                "attempts": record.attempt,
                "creation_ns": record.creation_ns,
                "is_infeasible": record.state in _WAITING and self._is_infeasible(record),
                "reason": record.reason if record.state not in (GroupState.CREATED, GroupState.REMOVED) else "",
                "bundles": [
                    {"index": index, "resources": bundle.as_floats(), "node_id": record.placed.get(index, "")}
                    for index, bundle in enumerate(record.spec.bundles)
                ],
            }
            for group_id, record in self.records.items()
        ]

    def _is_infeasible(self, record: GroupRecord) -> bool:
        """Whether Ray's table calls it infeasible: some bundle fits no node, whatever the others take."""
        return not record.asked and has_no_node(record.spec, record.placed, self._nodes())

    def explain(self) -> list[str]:
        """In words, which groups wait, and why."""
        return [
            f"the {self.records[group_id].words} of {self.records[group_id].spec.owner} waits: "
            f"{self.records[group_id].reason}"
            for group_id in self.waiting
        ]

    def check_invariants(self) -> None:
        for group_id, record in self.records.items():
            ensure(
                (record.state in _WAITING) == (group_id in self.waiting),
                "group {} and the waiting ones disagree",
                group_id,
            )
            ensure(
                not set(record.placed) & set(record.asked), "a bundle of group {} is reserved and asked for", group_id
            )
            ensure(
                record.state is not GroupState.CREATED or len(record.placed) == len(record.spec.bundles),
                "group {} is created and lacks a bundle",
                group_id,
            )


def _why_too_large(record: GroupRecord, shape: LeaseShape) -> str | None:
    bundles = record.spec.bundles
    index = shape.strategy.bundle
    if index >= len(bundles):
        return f"the {record.words} has {len(bundles)} bundles, but bundle {index} was requested"
    demand = in_plain_names(shape.placement)
    if index >= 0:
        lacks = shortfall(dict(bundles[index].units), demand)
        if lacks.units:
            return f"it demands {demand}; bundle {index} of the {record.words} has {bundles[index]} and lacks {lacks}"
        return None
    if not any(fits(dict(bundle.units), demand) for bundle in bundles):
        return f"it demands {demand}, and no bundle of the {record.words} has that"
    return None
