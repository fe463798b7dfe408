"""The autoscaler as a part of the head: events in, launches and drains out."""

from __future__ import annotations

from typing import Any

import pytest

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.autoscaler.autoscaler import AUTOSCALER_TIMER, START_UPS_MOST, check_decision
from dualray.shared.machines.autoscaler.groups import groups_of, groups_to_text
from dualray.shared.machines.autoscaler.views import view_of, view_to_text
from dualray.shared.machines.head.head import ANNOUNCE_TIMER
from dualray.shared.model.commands import ArmTimer, CancelTimer, LaunchNodes, Send, TerminateNode
from dualray.shared.model.events import (
    BacklogReported,
    BacklogWanted,
    DrainAsked,
    DriverJoined,
    DriverLeft,
    LaunchesFailed,
    NodeDied,
    NodeDraining,
    NodeEmptied,
    NodeJoined,
    NodeReleased,
    NodesDied,
    PeerLost,
    PlacementGroupRequested,
    ResourcesWanted,
    TimerFired,
    WorkerDied,
)
from dualray.shared.model.ids import Address, NodeID, PlacementGroupID, WaitID
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import (
    LAUNCH_LABEL,
    NODE_GROUP_LABEL,
    GroupStrategy,
    LabelOperator,
    LabelTerm,
    NodeInfo,
    PlacementGroupSpec,
    Strategy,
    StrategyKind,
)
from dualray.shared.policies.scaling import Demand, Gang, NodeGroupSpec, ScaleDecision, ScaledNode, ScaleView
from tests.shared.builders import DRIVER, HeadStepper, cpus, info, of, oid, sends, shape

SECOND_NS = 10**9
NO_ROOM = (
    "9 bundles need 9 nodes of this group, but only 4 more may start (max: 4): raise max, or request fewer or smaller "
    "bundles"
)
CPU = NodeGroupSpec(name="cpu", total=cpus(2), most=4)


class Grower(HeadStepper):
    """A head with a driver on node-0, which has two CPUs and belongs to no group."""

    def __init__(self, *groups: NodeGroupSpec, **limits: Any) -> None:
        text = groups_to_text(groups or (CPU,))
        super().__init__(info("node-0"), autoscaler_groups=text, infeasible="wait", **limits)
        self(DriverJoined(address=DRIVER, node=NodeID("node-0")))
        self.report("node-0", NOTHING)

    def decide(self, *backlog: tuple[Any, int]) -> list[Any]:
        """Let the time come, and the driver answer what it holds back."""
        commands = self(TimerFired(timer=AUTOSCALER_TIMER))
        if any(name == BacklogWanted.__name__ for _, name in sends(commands)):
            commands += self(
                BacklogReported(
                    owner=DRIVER,
                    shapes=tuple(each for each, _ in backlog),
                    counts=tuple(count for _, count in backlog),
                )
            )
        return commands

    def join(self, number: int, launch: str, *, group: str = "cpu", total: Any = None) -> list[Any]:
        labels = ((LAUNCH_LABEL, launch), (NODE_GROUP_LABEL, group))
        node = NodeInfo(
            node=NodeID(f"node-{number}"), incarnation=0, total=total or cpus(2), store_bytes=1000, labels=labels
        )
        return self(NodeJoined(info=node))


def launched(commands: list[Any]) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.group, each.launch_ids) for each in of(commands, LaunchNodes)]


def drained(commands: list[Any]) -> list[str]:
    return [to for to, name in sends(commands) if name == DrainAsked.__name__]


def delay(commands: list[Any]) -> int | None:
    """When it is looked again."""
    timers = [each for each in commands if isinstance(each, ArmTimer | CancelTimer) and each.timer == AUTOSCALER_TIMER]
    return timers[-1].delay_ns if timers and isinstance(timers[-1], ArmTimer) else None


def test_what_waits_is_launched_for_with_what_its_owner_holds_back() -> None:
    head = Grower()
    assert delay(head.ask(count=2)) is None, "the report of node-0 had armed it already"
    assert launched(head.decide((shape(), 3))) == [("cpu", ("launch-1", "launch-2", "launch-3"))]
    head.join(1, "launch-1")
    head.report("node-1", NOTHING)
    assert launched(head.decide()) == [], "two are under way, and nothing waits"


def test_a_launch_that_joins_is_no_launch_any_more_and_its_death_gives_its_machine_back() -> None:
    head = Grower()
    head.ask()
    head.decide()
    head.join(1, "launch-1")
    assert of(head(PeerLost(address=Address("node-1"))), TerminateNode) == [
        TerminateNode(launch_id="launch-1", node=NodeID("node-1"))
    ]
    again = head.decide()
    assert launched(again) == [("cpu", ("launch-2",))], "an id is used once"


def leave(head: Grower, *numbers: int) -> list[Any]:
    """These nodes drain, and end when they may."""
    for number in numbers:
        head(NodeDraining(node=NodeID(f"node-{number}"), incarnation=0))
        emptied = head(NodeEmptied(node=NodeID(f"node-{number}"), incarnation=0, needed=()))
        assert NodeReleased.__name__ in [name for _, name in sends(emptied)]
    return [command for number in numbers for command in head(PeerLost(address=Address(f"node-{number}")))]


def deaths(commands: list[Any]) -> list[tuple[str, Any]]:
    return [(each.to, each.message) for each in of(commands, Send) if isinstance(each.message, NodeDied | NodesDied)]


def grown(nodes: int) -> Grower:
    """A head with so many nodes that were launched, after the news of them."""
    head = Grower(NodeGroupSpec(name="cpu", total=cpus(2), most=9))
    head(wanted(nodes + 1))
    head.decide()
    for number in range(1, nodes + 1):
        head.join(number, f"launch-{number}")
    for _ in range(2):
        head.now_ns += SECOND_NS
        head(TimerFired(timer=ANNOUNCE_TIMER))
    return head


def test_nodes_that_leave_in_order_at_a_time_are_announced_in_one_message() -> None:
    head = grown(4)
    first, *rest = deaths(leave(head, 1, 2, 3))
    assert [to for to, _ in [first, *rest]] == ["node-0", "node-2", "node-3", "node-4", "driver-1"], "node-1 at once"
    assert {message.node for _, message in [first, *rest]} == {"node-1"}
    told = deaths(head(TimerFired(timer=ANNOUNCE_TIMER)))
    assert [to for to, _ in told] == ["node-0", "node-4", "driver-1"]
    (news,) = {id(message): message for _, message in told}.values()
    assert (news.nodes, news.incarnations) == (("node-2", "node-3"), (0, 0))
    assert deaths(head(TimerFired(timer=ANNOUNCE_TIMER))) == []


@pytest.mark.parametrize("why", ["killed", "has a value", "not launched"])
def test_a_node_that_somebody_may_miss_is_announced_at_once(why: str) -> None:
    head = grown(4)
    deaths(leave(head, 1))
    if why == "has a value":
        head.added(oid(2), "node-2")
        news = leave(head, 3)
        assert {message.node for _, message in deaths(news)} == set(), "node-3 has none"
        head(NodeDraining(node=NodeID("node-2"), incarnation=0))
        news = head(PeerLost(address=Address("node-2")))
    elif why == "killed":
        news = head(PeerLost(address=Address("node-2")))
    else:
        head(NodeJoined(info=info("node-9")))
        news = leave(head, 9)
    assert {message.node for _, message in deaths(news)} == {"node-9" if why == "not launched" else "node-2"}


def test_a_node_that_joins_hears_of_all_that_have_left_in_one_message() -> None:
    head = grown(3)
    leave(head, 1, 2)
    head.decide()
    told = [message for to, message in deaths(head.join(4, "launch-4")) if to == "node-4"]
    assert told == [NodesDied(nodes=(NodeID("node-1"), NodeID("node-2")), incarnations=(0, 0))]


def test_how_long_nodes_took_to_join_is_kept_of_the_last_launches() -> None:
    head = Grower(NodeGroupSpec(name="cpu", total=cpus(2), most=200))
    assert head.machine.state_rows.of("autoscaler")[0]["start_ups_s"] == []
    head(wanted(151))
    assert len(launched(head.decide())[0][1]) == 150
    asked_ns = head.now_ns
    for number in range(1, 151):
        head.now_ns = asked_ns + number * SECOND_NS
        head.join(number, f"launch-{number}")
    took_s = head.machine.state_rows.of("autoscaler")[0]["start_ups_s"]
    assert (len(took_s), took_s[0] // 1, took_s[-1] // 1) == (START_UPS_MOST, 51, 150)


def test_nodes_are_counted_from_their_launch_until_their_end() -> None:
    head = Grower()
    head(wanted(3))
    head.decide()
    began_ns = head.now_ns
    head.join(1, "launch-1")
    head.join(2, "launch-2")
    head.now_ns = began_ns + 5 * SECOND_NS
    head(PeerLost(address=Address("node-1")))
    head.now_ns = began_ns + 8 * SECOND_NS
    head.report("node-2", cpus(2))
    (row,) = head.machine.state_rows.of("autoscaler")
    assert row["node_seconds"] == pytest.approx(13, abs=0.1)


def test_a_refused_group_is_left_alone_for_a_while() -> None:
    head = Grower(CPU, NodeGroupSpec(name="dear", total=cpus(2), most=1), launch_cooldown_ns=30 * SECOND_NS)
    head.ask(shape(cpus(2)), count=3)
    assert launched(head.decide()) == [("cpu", ("launch-1", "launch-2", "launch-3"))]
    head(LaunchesFailed(group="cpu", launch_ids=("launch-2", "launch-3"), reason="the quota is 1"))
    assert launched(head.decide()) == [("dear", ("launch-4",))]
    assert any("refused a node: the quota is 1" in words for words in head.machine.explain())
    head.now_ns += 31 * SECOND_NS
    assert launched(head.decide()) == [("cpu", ("launch-5",))]


def test_a_group_below_its_least_is_launched_for_again_when_it_has_cooled_down() -> None:
    """Nothing waits, and nothing else happens."""
    head = Grower(NodeGroupSpec(name="cpu", total=cpus(2), least=1, most=4), launch_cooldown_ns=30 * SECOND_NS)
    assert launched(head.decide()) == [("cpu", ("launch-1",))]
    head(LaunchesFailed(group="cpu", launch_ids=("launch-1",), reason="the quota is 0"))
    assert delay(head.decide()) == 30 * SECOND_NS
    assert head.machine.autoscaler is not None
    assert head.machine.autoscaler.wrong_at_rest() == ["group cpu has 0 nodes, and its min is 1"]
    head.now_ns += 30 * SECOND_NS
    assert launched(head.decide()) == [("cpu", ("launch-2",))]
    head.join(1, "launch-2")
    head.report("node-1", cpus(2))
    assert head.machine.autoscaler.wrong_at_rest() == []


def test_a_launch_that_never_joins_is_given_up_and_told_to_leave_when_it_comes() -> None:
    head = Grower(launch_timeout_ns=60 * SECOND_NS, launch_cooldown_ns=SECOND_NS)
    head.ask()
    assert delay(head.decide()) == 60 * SECOND_NS
    head.now_ns += 60 * SECOND_NS
    given_up = head.decide()
    assert of(given_up, TerminateNode) == [TerminateNode(launch_id="launch-1")]
    assert launched(given_up) == [], "its group cools down"
    head.now_ns += SECOND_NS
    assert launched(head.decide()) == [("cpu", ("launch-2",))]
    assert drained(head.join(1, "launch-1")) == ["node-1"]


def test_an_idle_node_leaves_after_its_timeout_and_not_before() -> None:
    head = Grower(idle_timeout_ns=10 * SECOND_NS)
    head.ask()
    head.decide()
    head.join(1, "launch-1")
    head.report("node-1", NOTHING, allocated=("driver-1#0",))
    head.decide()
    head.now_ns += 100 * SECOND_NS
    head.report("node-1", cpus(2), "driver-1#0")
    assert delay(head.decide()) == 10 * SECOND_NS + 1
    head.now_ns += 10 * SECOND_NS
    assert drained(head.decide()) == []
    head.now_ns += 1
    assert drained(head.decide()) == ["node-1"]
    assert drained(head.decide()) == [], "it is told once"
    assert head.machine.autoscaler.rows()[0]["leaving"] == 1


def test_a_group_that_waits_for_nodes_that_leave_names_the_max_of_the_file() -> None:
    head = Grower(idle_timeout_ns=SECOND_NS)
    head.ask()
    head.decide()
    head.join(1, "launch-1")
    head.report("node-1", cpus(2), "driver-1#0")
    head.now_ns += 10 * SECOND_NS
    assert drained(head.decide()) == ["node-1"]
    spec = PlacementGroupSpec(
        group_id=PlacementGroupID(b"g" * 20), bundles=(cpus(2),) * 4, strategy=GroupStrategy.STRICT_SPREAD, owner=DRIVER
    )
    head(PlacementGroupRequested(spec=spec, wait_id=WaitID(1)))
    assert launched(head.decide()) == []
    (demand,) = head.machine.state_rows.of("demands")
    assert demand["not_launched"] == (
        "cpu: 4 bundles need 4 nodes of this group, but only 3 more may start (max: 4, 1 leaves) until nodes have left"
    )


def test_a_group_waits_whole_and_a_task_in_it_is_no_demand() -> None:
    head = Grower()
    group_id = PlacementGroupID(b"g" * 20)
    spec = PlacementGroupSpec(
        group_id=group_id, bundles=(cpus(2),) * 3, strategy=GroupStrategy.STRICT_SPREAD, owner=DRIVER
    )
    head(PlacementGroupRequested(spec=spec, wait_id=WaitID(1)))
    inside = Strategy(kind=StrategyKind.PLACEMENT_GROUP, group=group_id)
    head.ask(shape(cpus(1), strategy=inside), count=8)
    assert [len(ids) for _, ids in launched(head.decide())] == [3]


def wanted(count: int, *, requester: Address = DRIVER, job: int = 1, zone: str = "", size: int = 2) -> ResourcesWanted:
    terms = (LabelTerm(key="zone", operator=LabelOperator.IN, values=(zone,)),) if zone else ()
    bundles = (cpus(size),) if count else ()
    counts, selectors = (count,) * len(bundles), (terms,) * len(bundles)
    return ResourcesWanted(requester=requester, job=job, bundles=bundles, counts=counts, selectors=selectors)


def test_requested_resources_are_kept_until_they_are_not_wanted() -> None:
    head = Grower(idle_timeout_ns=SECOND_NS)
    head(wanted(2))
    assert launched(head.decide()) == [("cpu", ("launch-1",))], "node-0 is large enough for one"
    head.join(1, "launch-1")
    head.now_ns += 100 * SECOND_NS
    assert drained(head.decide()) == []
    head(wanted(0))
    assert drained(head.decide()) == ["node-1"]


def test_a_request_is_its_jobs_and_ends_with_its_driver() -> None:
    head = Grower(idle_timeout_ns=SECOND_NS)
    head(wanted(2, requester=Address("node-0/w1")))
    assert launched(head.decide()) == [("cpu", ("launch-1",))]
    head.join(1, "launch-1")
    head(WorkerDied(worker=Address("node-0/w1"), node=NodeID("node-0"), reason=""))
    head.now_ns += 100 * SECOND_NS
    assert drained(head.decide()) == [], "the worker that called is gone, and its job is not"
    head(DriverLeft(address=DRIVER))
    assert drained(head.decide()) == ["node-1"]


def test_a_request_of_an_actor_that_outlives_its_driver_is_its_own() -> None:
    head = Grower(idle_timeout_ns=SECOND_NS)
    head(DriverLeft(address=DRIVER))
    head(wanted(2, requester=Address("node-0/w1")))
    assert launched(head.decide()) == [("cpu", ("launch-1",))]
    head(WorkerDied(worker=Address("node-0/w1"), node=NodeID("node-0"), reason=""))
    assert head.machine.autoscaler is not None
    assert head.machine.autoscaler.requested == {}


def test_what_one_job_asks_for_in_vain_is_nothing_to_another_and_says_why() -> None:
    head = Grower()
    other = Address("driver-2")
    head(DriverJoined(address=other, node=NodeID("node-0")))
    head(wanted(9))
    head(wanted(1, requester=other, job=2, zone="b"))
    assert launched(head.decide()) == []
    assert head.machine.explain()[-2:] == [
        f"no node is launched for the 9 bundles that request_resources asked for: cpu: {NO_ROOM}",
        "no node is launched for the 1 bundle that request_resources asked for: cpu: its labels do not meet zone=b",
    ]
    head(wanted(3, requester=other, job=2))
    assert launched(head.decide()) == [("cpu", ("launch-1", "launch-2"))]


def test_nobody_has_a_timer_where_nothing_is_due() -> None:
    head = Grower()
    assert delay(head.decide()) is None
    head.ask(shape(cpus(64)))
    assert delay(head.decide()) is None
    assert head.machine.explain()[-1] == "no node is launched for 1 x 64 CPU: cpu: a node of this group lacks 62 CPU"


def test_groups_come_back_from_their_text() -> None:
    groups = (CPU, NodeGroupSpec(name="gpu", total=cpus(8), labels=(("zone", "a"),), least=1, most=2, price=2_800_000))
    assert groups_of(groups_to_text(groups)) == groups
    assert groups_to_text(()) == ""
    assert groups_of("") == ()
    with pytest.raises(ValueError, match="does not describe groups of nodes"):
        groups_of('[{"name": "cpu"}]')


def node(name: str, *, idle_s: int = 0) -> ScaledNode:
    total = dict(CPU.total.units)
    return ScaledNode(name=name, group="cpu", total=total, free=total, idle_ns=idle_s * SECOND_NS)


@pytest.mark.parametrize(
    ("said", "decision", "message"),
    [
        ({"demands": [Demand(resources=cpus(2))]}, {"launches": {"cpu": 4}}, "group cpu gets 5 nodes, and may have 4"),
        ({}, {"launches": {"cpu": 1}}, "nodes of group cpu are launched though nothing waits"),
        ({"demands": [Demand(resources=cpus(2))]}, {"launches": {"gpu": 1}}, "there is no group gpu"),
        (
            {"demands": [Demand(resources=cpus(2))], "closed": {"cpu": "of a refusal"}},
            {"launches": {"cpu": 1}},
            "a node of group cpu is launched though of a refusal",
        ),
        ({}, {"leaving": {"node-1": "bored"}}, r"node-1 is to leave \(bored\), and was idle for 30"),
        (
            {"groups": [NodeGroupSpec(name="cpu", total=cpus(2), least=1, most=4)], "idle_timeout_ns": SECOND_NS},
            {"leaving": {"node-1": "idle"}},
            "group cpu gets fewer nodes than its least",
        ),
    ],
)
def test_a_policy_that_decides_wrongly_is_found(said: Any, decision: Any, message: str) -> None:
    view = ScaleView(
        **{"groups": [CPU], "nodes": [node("node-1", idle_s=30)], "idle_timeout_ns": 60 * SECOND_NS, **said}
    )
    with pytest.raises(InvariantViolation, match=message):
        check_decision(view, ScaleDecision(**decision))


# ---- For people ------------------------------------------------------------------------------------------------------


def test_what_waits_and_what_is_under_way_is_told() -> None:
    head = Grower()
    head.ask(shape(cpus(2)), count=2)
    head(wanted(9))
    head.ask(shape(cpus(64)), request="driver-1#1")
    head.decide()
    head.machine.out.now_ns += 3 * SECOND_NS
    rows = head.machine.state_rows
    assert rows.of("launches") == [{"launch": f"launch-{n}", "group": "cpu", "for_s": 3.0} for n in (1, 2)]
    assert rows.of("demands") == [
        {"demand": "2 CPU", "count": 2, "not_launched": ""},
        {"demand": "64 CPU", "count": 1, "not_launched": "cpu: a node of this group lacks 62 CPU"},
        {"demand": "request of driver-1: 9 x 2 CPU", "count": 1, "not_launched": f"cpu: {NO_ROOM}"},
    ]
    (row,) = rows.of("scale_view")
    assert row["policy"] == "dualray.shared.policies.bin_packing:BinPacking"
    assert view_of(row["view"]).requested == [[Demand(resources=cpus(2), count=9)]]


def test_a_view_comes_back_from_its_text() -> None:
    terms = (LabelTerm(key="zone", operator=LabelOperator.NOT_IN, values=("a", "b")),)
    gpu = NodeGroupSpec(name="gpu", total=cpus(8), labels=(("zone", "a"),), least=1, most=2, price=2_800_000)
    gang = Gang(
        name="placement group",
        bundles=(cpus(1), cpus(2)),
        strategy=GroupStrategy.STRICT_SPREAD,
        selectors=(terms, ()),
        nodes=("node-1",),
    )
    view = ScaleView(
        groups=[CPU, gpu],
        nodes=[node("node-1", idle_s=3)],
        demands=[Demand(resources=cpus(2), labels=terms, count=7)],
        gangs=[gang],
        requested=[[Demand(resources=cpus(4), count=2)]],
        idle_timeout_ns=5,
        speed_percent=100,
        closed={"gpu": "of a refusal"},
        leaving={"gpu": 2},
    )
    assert view_of(view_to_text(view)) == view


def test_a_node_whose_drain_was_given_up_takes_work_again_and_says_why() -> None:
    head = Grower(idle_timeout_ns=SECOND_NS)
    head.ask()
    head.decide()
    head.join(1, "launch-1")
    head.report("node-1", cpus(2), "driver-1#0")
    head.now_ns += 10 * SECOND_NS
    assert drained(head.decide()) == ["node-1"]
    head(NodeDraining(node=NodeID("node-1"), incarnation=0))
    assert sends(head.ask(request="driver-1#1")) == [], "it is to leave, and node-0 is full"
    again = head(NodeDraining(node=NodeID("node-1"), incarnation=0, given_up="its disk was full"))
    assert ("node-1", "LeaseRequested") in sends(again)
    (row,) = head.machine.state_rows.of("autoscaler")
    assert row["kept"] == ["node-1: its drain was given up: its disk was full"]
    assert row["leaving"] == 0
    assert head(NodeDraining(node=NodeID("node-1"), incarnation=0, given_up="again")) == [], "it is known"
