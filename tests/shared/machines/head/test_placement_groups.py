"""Placement groups at the head and on nodes: events in, commands out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.machines.head.head import Head
from dualray.shared.machines.node.node import Node
from dualray.shared.model.commands import Send, StartWorker, StopWorker
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    BundlesUnwanted,
    BundleWanted,
    DriverJoined,
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    NodeJoined,
    PeerLost,
    PlacementGroupNoted,
    PlacementGroupRequested,
    PlacementGroupUnwanted,
    ResourcesReported,
    RowsRequested,
    WorkerDied,
    WorkerExited,
    WorkerReady,
)
from dualray.shared.model.ids import Address, NodeID, PlacementGroupID, RequestID, WaitID
from dualray.shared.model.resources import Resources, demand_in_group
from dualray.shared.model.specs import (
    BundleReport,
    GroupStrategy,
    LeaseShape,
    NodeInfo,
    PlacementGroupSpec,
    Strategy,
    StrategyKind,
)
from dualray.shared.policies.bundles import choose_nodes, why_never
from dualray.shared.policies.placement import Candidate

DRIVER = Address("driver-1")
GROUP = PlacementGroupID(b"g" * 16)


def amounts(**units: float) -> Resources:
    return parse_resources(num_cpus=units.get("cpu"), num_gpus=units.get("gpu"), resources=None)


def spec(*bundles: Resources, strategy: GroupStrategy = GroupStrategy.PACK, **options) -> PlacementGroupSpec:
    return PlacementGroupSpec(group_id=GROUP, bundles=bundles, strategy=strategy, owner=DRIVER, **options)


def lease(demand: Resources, index: int = -1, count: int = 1) -> LeaseRequested:
    inside = demand_in_group(demand, GROUP, index)
    strategy = Strategy(kind=StrategyKind.PLACEMENT_GROUP, group=GROUP, bundle=index)
    shape = LeaseShape(resources=inside, placement=inside, strategy=strategy, name="f")
    return LeaseRequested(request_id=RequestID(f"r{index}"), owner=DRIVER, shape=shape, count=count)


class HeadSteps:
    """A head with two nodes of two CPUs and a driver; nodes answer only when the test does it for them."""

    def __init__(self, nodes: int = 2, **limits) -> None:
        self.machine = Head(config=Config(**limits))
        for index in range(nodes):
            total = amounts(cpu=2)
            info = NodeInfo(node=NodeID(f"node-{index}"), incarnation=0, total=total, store_bytes=1)
            self(NodeJoined(info=info))
        self(DriverJoined(address=DRIVER, node=NodeID("node-0")))

    def __call__(self, event) -> list:
        commands = self.machine.handle(event, 0)
        self.machine.check_invariants()
        return commands

    def ask(self, group: PlacementGroupSpec) -> list:
        return self(PlacementGroupRequested(wait_id=WaitID(0), spec=group))

    def answer(self, wanted: BundleWanted, node: str, *, yes: bool = True, free: float = 1) -> list:
        report = BundleReport(group_id=wanted.group_id, index=wanted.index, attempt=wanted.attempt, is_reserved=yes)
        units = dict(amounts(cpu=free).units)
        if yes:
            units |= dict(demand_in_group(wanted.resources, wanted.group_id, wanted.index).units)
        return self(ResourcesReported(node=NodeID(node), incarnation=0, available=units, bundles=(report,)))

    @property
    def state(self) -> str:
        return str(self.machine.scheduler.groups.records[GROUP].state)


def sent(commands: list, kind: type) -> list:
    return [
        (command.to, command.message)
        for command in commands
        if isinstance(command, Send) and isinstance(command.message, kind)
    ]


ONE = amounts(cpu=1)


# ---- The head --------------------------------------------------------------------------------------------------------


def test_a_group_is_noted_and_its_nodes_are_asked():
    head = HeadSteps()
    commands = head.ask(spec(ONE, ONE, strategy=GroupStrategy.STRICT_SPREAD))
    assert sent(commands, PlacementGroupNoted) == [(DRIVER, PlacementGroupNoted(wait_id=WaitID(0)))]
    wanted = sent(commands, BundleWanted)
    assert [(to, message.index) for to, message in wanted] == [("node-0", 0), ("node-1", 1)]
    assert head.state == "PENDING"
    for to, message in wanted:
        head.answer(message, to)
    assert head.state == "CREATED"


def test_a_bundle_is_asked_of_one_life_of_a_node():
    head = HeadSteps(nodes=1)
    [(_, wanted)] = sent(head.ask(spec(ONE)), BundleWanted)
    assert (wanted.attempt, wanted.incarnation) == (1, 0)
    info = NodeInfo(node=NodeID("node-0"), incarnation=3, total=amounts(cpu=2), store_bytes=1)
    [(to, wanted)] = sent(head(NodeJoined(info=info)), BundleWanted)
    assert (to, wanted.attempt, wanted.incarnation) == ("node-0", 2, 3)


def test_what_is_asked_for_and_not_answered_counts_as_taken():
    head = HeadSteps()
    head.ask(spec(amounts(cpu=2), amounts(cpu=1)))
    plain = LeaseShape(resources=ONE, placement=ONE, name="g")
    commands = head(LeaseRequested(request_id=RequestID("p"), owner=DRIVER, shape=plain, count=2))
    assert [to for to, _ in sent(commands, LeaseRequested)] == ["node-1"]


def test_when_one_node_refuses_the_others_give_theirs_back():
    head = HeadSteps()
    (first, second) = sent(head.ask(spec(ONE, ONE, strategy=GroupStrategy.STRICT_SPREAD)), BundleWanted)
    assert sent(head.answer(first[1], "node-0"), BundlesUnwanted) == []
    commands = head.answer(second[1], "node-1", yes=False, free=0)
    assert sent(commands, BundlesUnwanted) == [
        ("node-0", BundlesUnwanted(group_id=GROUP, indices=(0,), is_removed=False))
    ]
    assert head.state == "PENDING"
    commands = head(ResourcesReported(node=NodeID("node-1"), incarnation=0, available=dict(ONE.units)))
    assert [message.attempt for _, message in sent(commands, BundleWanted)] == [2, 2]


def test_late_answers_of_an_earlier_attempt_are_dropped():
    head = HeadSteps()
    (first, second) = sent(head.ask(spec(ONE, ONE, strategy=GroupStrategy.STRICT_SPREAD)), BundleWanted)
    head.answer(second[1], "node-1", yes=False, free=0)
    head.answer(first[1], "node-0")
    commands = head(ResourcesReported(node=NodeID("node-1"), incarnation=0, available=dict(ONE.units)))
    again = sent(commands, BundleWanted)
    head.answer(second[1], "node-1")  # the first attempt's answer, once more
    assert head.state == "PENDING"
    for to, message in again:
        head.answer(message, to)
    assert head.state == "CREATED"


def test_a_node_that_dies_before_it_answers_does_not_hold_up_the_group():
    head = HeadSteps(nodes=3)
    (first, second) = sent(head.ask(spec(ONE, ONE, strategy=GroupStrategy.STRICT_SPREAD)), BundleWanted)
    head.answer(first[1], "node-0")
    commands = head(PeerLost(address=Address("node-1")))
    assert second[0] == "node-1"
    assert [to for to, _ in sent(commands, BundleWanted)][-1:] == ["node-2"] or head.state == "PENDING"


def test_a_group_that_is_removed_before_its_nodes_answer_gets_nothing():
    head = HeadSteps()
    (first, second) = sent(head.ask(spec(ONE, ONE, strategy=GroupStrategy.STRICT_SPREAD)), BundleWanted)
    head.answer(first[1], "node-0")
    commands = head(PlacementGroupUnwanted(group_id=GROUP))
    assert [to for to, _ in sent(commands, BundlesUnwanted)] == ["node-0"]
    commands = head.answer(second[1], "node-1")
    assert [to for to, _ in sent(commands, BundlesUnwanted)] == ["node-1"]
    assert head.state == "REMOVED"


def test_leases_wait_for_the_group_and_are_refused_when_it_is_removed():
    head = HeadSteps()
    [(to, wanted)] = sent(head.ask(spec(ONE)), BundleWanted)
    assert sent(head(lease(ONE, 0, count=2)), LeaseRequested) == []
    commands = head.answer(wanted, to)
    assert [(to, message.count) for to, message in sent(commands, LeaseRequested)] == [("node-0", 1)]
    commands = head(PlacementGroupUnwanted(group_id=GROUP))
    [(to, refused)] = sent(commands, LeaseRefused)
    assert (to, refused.count, refused.error.kind) == (DRIVER, 1, ErrorKind.TASK_GROUP_REMOVED)


def test_a_lease_in_a_group_that_nobody_knows_is_refused():
    head = HeadSteps(infeasible="wait")
    [(_, refused)] = sent(head(lease(ONE)), LeaseRefused)
    assert "is not known" in refused.error.message


def test_what_can_never_be_is_refused_in_a_closed_cluster_and_waits_in_an_open_one():
    [(_, noted)] = sent(HeadSteps().ask(spec(amounts(cpu=3))), PlacementGroupNoted)
    assert noted.error.kind is ErrorKind.GROUP_UNSCHEDULABLE
    head = HeadSteps(infeasible="wait")
    [(_, noted)] = sent(head.ask(spec(amounts(cpu=3))), PlacementGroupNoted)
    assert noted.error is None
    big = NodeInfo(node=NodeID("node-9"), incarnation=0, total=amounts(cpu=4), store_bytes=1)
    assert [to for to, _ in sent(head(NodeJoined(info=big)), BundleWanted)] == ["node-9"]


def test_a_group_ends_with_its_driver_unless_it_is_detached():
    for is_detached, state in ((False, "REMOVED"), (True, "PENDING")):
        head = HeadSteps()
        head.ask(spec(ONE, is_detached=is_detached))
        head(PeerLost(address=DRIVER))
        assert head.state == state


def test_a_group_that_a_task_made_ends_with_the_driver_of_its_job():
    for job, states in ((1, ("PENDING", "REMOVED")), (2, ("REMOVED", "REMOVED"))):  # nobody knows a driver of job 2
        head = HeadSteps()
        group_id = PlacementGroupID(b"g" * 12 + job.to_bytes(4, "big"))
        head.ask(replace(spec(ONE), group_id=group_id, owner=Address("node-1/w0")))
        group = head.machine.scheduler.groups.records[group_id]
        for gone, state in zip(
            (
                WorkerDied(worker=Address("node-1/w0"), node=NodeID("node-1"), reason="it was killed"),
                PeerLost(address=DRIVER),
            ),
            states,
            strict=True,
        ):
            head(gone)
            assert str(group.state) == state


def test_rows_are_told_in_words():
    head = HeadSteps()
    head.ask(spec(ONE, name="mine"))
    [command] = head(RowsRequested(wait_id=WaitID(1), requester=DRIVER, table="placement_groups"))
    assert '"name": "mine"' in command.message.rows[0]
    assert head(RowsRequested(wait_id=WaitID(2), requester=DRIVER, table="weather"))[0].message.rows == ()


# ---- A node ----------------------------------------------------------------------------------------------------------


class NodeSteps:
    """A node with four CPUs and two GPUs, and one worker that is ready."""

    def __init__(self) -> None:
        self.machine = Node(
            node=NodeID("node-0"),
            incarnation=0,
            total=amounts(cpu=4, gpu=2),
            store_bytes=1,
            config=Config(workers_prestarted=0),
        )
        self.workers: list[Address] = []

    def __call__(self, event) -> list:
        commands = self.machine.handle(event, 0)
        self.machine.check_invariants()
        for command in list(commands):
            if isinstance(command, StartWorker):
                commands += self(WorkerReady(worker=command.worker))
        return commands

    def reserve(self, index: int, resources: Resources, attempt: int = 1) -> BundleReport:
        commands = self(BundleWanted(group_id=GROUP, index=index, resources=resources, attempt=attempt, incarnation=0))
        [(_, reported)] = sent(commands, ResourcesReported)
        [report] = reported.bundles
        return report

    def grant(self, demand: Resources, index: int = -1) -> list:
        request = lease(demand, index)
        placed = LeaseRequested(request_id=request.request_id, owner=DRIVER, shape=request.shape, count=1, placed=True)
        return sent(self(placed), LeaseGranted)


def test_a_node_drops_what_was_asked_of_another_life():
    node = NodeSteps()
    wanted = BundleWanted(group_id=GROUP, index=0, resources=ONE, attempt=1, incarnation=1)
    assert node(wanted) == []
    assert node.machine.scheduler.resources.bundles == {}


def test_a_node_reserves_what_fits_and_refuses_the_rest():
    node = NodeSteps()
    assert node.reserve(0, amounts(cpu=3, gpu=1)).is_reserved
    assert not node.reserve(1, amounts(cpu=2)).is_reserved
    assert node.reserve(1, amounts(cpu=1, gpu=1), attempt=2).is_reserved
    assert node.machine.scheduler.free["CPU"] == 0
    assert node.machine.scheduler.resources.devices_free == {0: 0, 1: 0}


def test_gpus_in_pieces_are_no_whole_gpu():
    node = NodeSteps()
    assert node.reserve(0, amounts(gpu=0.5)).is_reserved
    assert node.reserve(1, amounts(gpu=1)).is_reserved
    assert node.reserve(2, amounts(gpu=0.5)).is_reserved
    node = NodeSteps()
    assert node.reserve(0, amounts(gpu=0.5)).is_reserved
    assert node.reserve(1, amounts(gpu=0.75)).is_reserved
    assert not node.reserve(2, amounts(gpu=1)).is_reserved


def test_a_lease_takes_from_its_bundle_and_gives_back_to_it():
    node = NodeSteps()
    node.reserve(0, amounts(cpu=1, gpu=1))
    [(_, granted)] = node.grant(amounts(cpu=1, gpu=1), 0)
    assert granted.device_ids == (0,)
    assert node.grant(amounts(cpu=1), 0) == []
    commands = node(WorkerExited(worker=granted.worker, reason="killed"))
    assert len(sent(commands, LeaseGranted)) == 1


def test_what_is_unwanted_is_had_back_when_its_workers_have_ended():
    node = NodeSteps()
    node.reserve(0, amounts(cpu=2))
    [(_, granted)] = node.grant(amounts(cpu=1), 0)
    waiting = lease(amounts(cpu=2), 0)
    node(LeaseRequested(request_id=RequestID("w"), owner=DRIVER, shape=waiting.shape, count=1, placed=True))
    commands = node(BundlesUnwanted(group_id=GROUP, indices=(0,), is_removed=True))
    assert [command.worker for command in commands if isinstance(command, StopWorker)] == [granted.worker]
    assert [to for to, _ in sent(commands, LeaseRequested)] == ["head"]
    assert node.machine.scheduler.free["CPU"] == amounts(cpu=2).get("CPU")
    commands = node(WorkerExited(worker=granted.worker, reason="stopped"))
    [(to, died)] = sent(commands, LeasedWorkerDied)
    assert (to, died.error.kind) == (DRIVER, ErrorKind.TASK_GROUP_REMOVED)
    assert dict(node.machine.scheduler.free) == dict(amounts(cpu=4, gpu=2).units)
    assert node.machine.scheduler.resources.bundles == {}


def test_a_lease_for_a_bundle_that_is_not_here_goes_back_to_the_head():
    node = NodeSteps()
    request = lease(ONE, 0)
    commands = node(
        LeaseRequested(request_id=request.request_id, owner=DRIVER, shape=request.shape, count=1, placed=True)
    )
    assert [to for to, _ in sent(commands, LeaseRequested)] == ["head"]


# ---- The policy ------------------------------------------------------------------------------------------------------


@st.composite
def groups_and_nodes(draw):
    bundles = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    free = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    strategy = draw(st.sampled_from(GroupStrategy))
    return spec(*(amounts(cpu=units) for units in bundles), strategy=strategy), free


@given(groups_and_nodes())
def test_a_choice_fits_and_keeps_its_strategy(drawn):
    group, free = drawn
    nodes = {
        NodeID(f"node-{index}"): Candidate(
            node=NodeID(f"node-{index}"), total=dict(amounts(cpu=units).units), free=dict(amounts(cpu=units).units)
        )
        for index, units in enumerate(free)
    }
    places = choose_nodes(group, {}, nodes)
    infos = [
        NodeInfo(node=node, incarnation=0, total=Resources(tuple(candidate.total.items())), store_bytes=1)
        for node, candidate in nodes.items()
    ]
    assert (places is None) == (why_never(group, {}, infos) is not None)
    if places is None:
        return
    assert sorted(places) == list(range(len(group.bundles)))
    for node, candidate in nodes.items():
        here = sum(group.bundles[index].get("CPU") for index, place in places.items() if place == node)
        assert here <= candidate.free.get("CPU", 0)
    count = len(set(places.values()))
    if group.strategy is GroupStrategy.STRICT_PACK:
        assert count == 1
    elif group.strategy is GroupStrategy.STRICT_SPREAD:
        assert count == len(group.bundles)


@given(groups_and_nodes())
def test_what_fits_somehow_is_found(drawn):
    """Against all placements that there are, of small groups."""
    group, free = drawn
    bundles = [bundle.get("CPU") for bundle in group.bundles][:4]
    small = spec(*group.bundles[:4], strategy=group.strategy)
    units = [amounts(cpu=each).get("CPU") for each in free][:4]
    nodes = {
        NodeID(f"node-{index}"): Candidate(node=NodeID(f"node-{index}"), total={"CPU": each}, free={"CPU": each})
        for index, each in enumerate(units)
    }

    def fits_somehow(left: list[int], room: list[int], used: tuple[int, ...]) -> bool:
        if not left:
            return True
        for node in range(len(room)):
            if room[node] < left[0]:
                continue
            if small.strategy is GroupStrategy.STRICT_SPREAD and node in used:
                continue
            if small.strategy is GroupStrategy.STRICT_PACK and used and node not in used:
                continue
            rest = [*room[:node], room[node] - left[0], *room[node + 1 :]]
            if fits_somehow(left[1:], rest, (*used, node)):
                return True
        return False

    assert (choose_nodes(small, {}, nodes) is not None) == fits_somehow(bundles, units, ())
