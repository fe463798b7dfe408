"""The default scaling policy beyond what Ray's autoscaler decides: prices, speed, refusals, and its reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.resources import Resources, from_units
from dualray.shared.model.specs import GroupStrategy
from dualray.shared.policies.bin_packing import BinPacking
from dualray.shared.policies.scaling import Demand, Gang, NodeGroupSpec, ScaleDecision, ScaledNode, ScaleView

SECOND_NS = 10**9


def amounts(**resources: float) -> Resources:
    return from_units({name: round(amount * 10_000) for name, amount in resources.items()})


def group(name: str, *, most: int = 100, least: int = 0, price: int = 0, **resources: float) -> NodeGroupSpec:
    return NodeGroupSpec(name=name, total=amounts(**resources), most=most, least=least, price=price)


def node(name: str, of: NodeGroupSpec, *, idle_s: int = 0, is_joined: bool = True, is_busy: bool = False) -> ScaledNode:
    total = dict(of.total.units)
    free = dict.fromkeys(total, 0) if is_busy else total
    return ScaledNode(name=name, group=of.name, total=total, free=free, idle_ns=idle_s * SECOND_NS, is_joined=is_joined)


def choose(*groups: NodeGroupSpec, **said: Any) -> ScaleDecision:
    return BinPacking().choose(ScaleView(groups=groups, **{"nodes": (), "idle_timeout_ns": 60 * SECOND_NS, **said}))


def test_the_cheaper_group_is_launched_for_the_same_work() -> None:
    spot, firm = group("spot", price=120_000, CPU=4), group("firm", price=400_000, CPU=4)
    eight = [Demand(resources=amounts(CPU=1), count=8)]
    assert choose(firm, spot, demands=eight).launches == {"spot": 2}
    assert choose(firm, spot, demands=eight, closed={"spot": "it was refused: no capacity"}).launches == {"firm": 2}
    large = group("large", price=500_000, CPU=16)
    assert choose(spot, large, demands=[Demand(resources=amounts(CPU=1), count=16)]).launches == {"spot": 4}
    assert choose(firm, large, demands=[Demand(resources=amounts(CPU=1), count=16)]).launches == {"large": 1}
    assert choose(firm, large, demands=[Demand(resources=amounts(CPU=1), count=1)]).launches == {"firm": 1}


def test_speed_bounds_what_is_launched_at_a_time_but_for_gangs() -> None:
    cpu = group("cpu", CPU=1)
    many = [Demand(resources=amounts(CPU=1), count=50)]
    assert choose(cpu, demands=many, speed_percent=100).launches == {"cpu": 5}
    busy = [node(f"node-{index}", cpu, is_busy=True) for index in range(20)]
    first = choose(cpu, demands=many, nodes=busy, speed_percent=100)
    assert first.launches == {"cpu": 20}
    [unmet] = first.unmet
    assert unmet.count == 30
    assert unmet.reasons == {"cpu": "as many nodes as upscaling_speed_percent allows are starting"}
    under_way = [node(f"launch-{index}", cpu, is_joined=False) for index in range(20)]
    assert choose(cpu, demands=many, nodes=busy + under_way, speed_percent=100).launches == {}
    gang = Gang(name="gang", bundles=(amounts(CPU=1),) * 9, strategy=GroupStrategy.SPREAD)
    assert choose(cpu, gangs=[gang], speed_percent=100).launches == {"cpu": 9}


def test_a_gang_is_launched_whole_or_not_at_all() -> None:
    cpu = group("cpu", most=3, CPU=1)
    four = Gang(name="gang", bundles=(amounts(CPU=1),) * 4, strategy=GroupStrategy.PACK)
    decision = choose(cpu, gangs=[four])
    assert decision.launches == {}
    assert [unmet.what for unmet in decision.unmet] == ["the gang"]
    apart = Gang(name="apart", bundles=(amounts(CPU=1),) * 3, strategy=GroupStrategy.STRICT_SPREAD)
    assert choose(group("wide", CPU=8), gangs=[apart]).launches == {"wide": 3}
    together = Gang(name="together", bundles=(amounts(CPU=3),) * 2, strategy=GroupStrategy.STRICT_PACK)
    assert choose(group("small", CPU=4), group("wide", CPU=8), gangs=[together]).launches == {"wide": 1}


def test_a_gang_that_is_too_large_says_what_it_needs_of_each_group_and_the_way_out() -> None:
    cpu, gpu, small = group("cpu", most=3, CPU=1), group("gpu", most=1, CPU=4, GPU=1), group("small", CPU=0.5)
    busy = [node("node-1", cpu, is_busy=True)]
    way_out = "raise max, or request fewer or smaller bundles"

    def why(*bundles: Resources, strategy: GroupStrategy = GroupStrategy.PACK, **said: Any) -> dict[str, str]:
        gang = Gang(name="gang", bundles=bundles, strategy=strategy)
        (unmet,) = choose(cpu, gpu, small, gangs=[gang], **said).unmet
        assert unmet.is_whole
        assert unmet.count == len(bundles)
        return dict(unmet.reasons)

    assert why(*[amounts(CPU=1)] * 9, strategy=GroupStrategy.STRICT_SPREAD) == {
        "cpu": f"9 bundles need 9 nodes of this group, but only 3 more may start (max: 3): {way_out}",
        "gpu": f"9 bundles need 9 nodes of this group, but only 1 more may start (max: 1): {way_out}",
        "small": "a node of this group lacks 0.5 CPU",
    }
    assert why(*[amounts(CPU=1)] * 7, nodes=busy)["cpu"] == (
        f"7 bundles need 7 nodes of this group, but only 2 more may start (max: 3): {way_out}"
    )
    assert why(amounts(CPU=1), amounts(GPU=1), amounts(GPU=1)) == {
        "cpu": (
            "1 of 3 bundles needs 1 node of this group, but the other bundles do not fit, "
            "and dualray places all bundles or none"
        ),
        "gpu": f"3 bundles need 2 nodes of this group, but only 1 more may start (max: 1): {way_out}",
        "small": "a node of this group lacks 1 GPU",
    }
    full = [node("node-2", gpu, is_busy=True)]
    together = why(amounts(CPU=2), amounts(CPU=2), strategy=GroupStrategy.STRICT_PACK, nodes=full)
    assert together["cpu"] == "a node of this group lacks 3 CPU"
    assert together["gpu"] == f"2 bundles need 1 node of this group, but no more may start (max: 1): {way_out}"
    assert why(*[amounts(CPU=1)] * 9, closed={"cpu": "it was refused"})["cpu"] == "it was refused"
    (asked,) = choose(cpu, requested=[[Demand(resources=amounts(CPU=1), count=5)]]).unmet
    assert dict(asked.reasons) == {
        "cpu": f"5 bundles need 5 nodes of this group, but only 3 more may start (max: 3): {way_out}"
    }


def test_each_group_says_why_nothing_is_launched() -> None:
    cpu, gpu = group("cpu", most=1, CPU=4), group("gpu", CPU=4, GPU=1)
    demands = [Demand(resources=amounts(CPU=2, GPU=2)), Demand(resources=amounts(CPU=4), count=3)]
    decision = choose(cpu, gpu, demands=demands, nodes=[node("node-1", cpu)], closed={"gpu": "it was refused: quota"})
    assert [(unmet.what, unmet.count, dict(unmet.reasons)) for unmet in decision.unmet] == [
        ("2 CPU, 2 GPU", 1, {"cpu": "a node of this group lacks 2 GPU", "gpu": "a node of this group lacks 1 GPU"}),
        ("4 CPU", 2, {"cpu": "it has 1 node, which is its max", "gpu": "it was refused: quota"}),
    ]


def test_nodes_that_leave_count_in_the_max_that_is_told() -> None:
    """The view's `most` lacks them; people know the max of their file."""
    cpu = group("cpu", most=1, CPU=1)
    busy = [node("node-1", cpu, is_busy=True)]

    def why(size: int, leaving: int) -> str:
        gang = Gang(name="gang", bundles=(amounts(CPU=1),) * size, strategy=GroupStrategy.PACK)
        (unmet,) = choose(cpu, gangs=[gang], nodes=busy, leaving={"cpu": leaving}).unmet
        return unmet.reasons["cpu"]

    way_out = "raise max, or request fewer or smaller bundles"
    none = "nodes of this group, but no more may start (max: 4, 3 leave)"
    assert why(3, 3) == f"3 bundles need 3 {none} until nodes have left"
    assert why(4, 3) == f"4 bundles need 4 {none}: {way_out}"
    assert why(2, 1) == f"2 bundles need 2 nodes of this group, but no more may start (max: 2, 1 leaves): {way_out}"
    one = [Demand(resources=amounts(CPU=1))]
    (unmet,) = choose(cpu, demands=one, nodes=busy, leaving={"cpu": 3}).unmet
    assert unmet.reasons["cpu"] == "it has 4 nodes, which is its max; 3 of these leave"


def test_idle_nodes_leave_down_to_the_least_but_not_those_that_are_needed() -> None:
    cpu = group("cpu", least=1, CPU=4)
    nodes = [node("node-1", cpu, idle_s=61), node("node-2", cpu, idle_s=90), node("node-3", cpu, idle_s=60)]
    assert choose(cpu, nodes=nodes).leaving == {"node-2": "idle for 90 s", "node-1": "idle for 61 s"}
    assert choose(cpu, nodes=nodes[:2]).leaving == {"node-2": "idle for 90 s"}
    assert choose(cpu, nodes=nodes, requested=[[Demand(resources=amounts(CPU=4), count=3)]]).leaving == {}
    assert choose(cpu, nodes=nodes, demands=[Demand(resources=amounts(CPU=2), count=6)]).leaving == {}
    assert choose(cpu, requested=[[Demand(resources=amounts(CPU=4), count=3)]]).launches == {"cpu": 3}


def test_earlier_decisions_change_no_later_one() -> None:
    """It keeps the words for demands: of other groups under the same names they are others."""
    policy = BinPacking()
    demands = [Demand(resources=amounts(CPU=8), count=2), Demand(resources=amounts(GPU=1))]
    for size, gpus in ((4, 0), (8, 0), (4, 1), (4, 0)):
        groups = [group("cpu", most=1, CPU=size), group("gpu", most=0, CPU=1, GPU=gpus)]
        view = ScaleView(groups=groups, nodes=(), demands=demands, idle_timeout_ns=SECOND_NS)
        assert policy.choose(view) == BinPacking().choose(view)


def test_a_full_node_takes_what_needs_nothing() -> None:
    cpu = group("cpu", CPU=1)
    full = node("node-1", cpu, is_busy=True)
    demands = [Demand(resources=amounts(), count=3), Demand(resources=amounts(CPU=1))]
    decision = choose(cpu, nodes=[full], demands=demands)
    assert decision.launches == {"cpu": 1}
    assert choose(cpu, nodes=[full], demands=demands[:1]).launches == {}


CHOICES = st.lists(
    st.tuples(st.sampled_from(["cpu", "gpu", ""]), st.integers(0, 4), st.integers(0, 1), st.sampled_from([0, 60, 61])),
    max_size=8,
)


@given(
    chosen=CHOICES,
    demands=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(1, 4)), max_size=3),
    most=st.integers(0, 5),
    least=st.integers(0, 2),
)
def test_nodes_that_no_demand_fits_and_that_stay_change_nothing(
    chosen: list[tuple[str, int, int, int]], demands: list[tuple[int, int, int]], most: int, least: int
) -> None:
    """They are not looked at for plain demands. An empty request changes no decision, and lets all be looked at."""
    cpu, gpu = group("cpu", most=most, least=min(least, most), CPU=4), group("gpu", most=2, CPU=4, GPU=1)
    totals = {"cpu": dict(cpu.total.units), "gpu": dict(gpu.total.units), "": dict(cpu.total.units)}
    nodes = [
        ScaledNode(
            name=f"node-{index}",
            group=of,
            total=totals[of],
            free={"CPU": cpus * 10_000} | ({"GPU": gpus * 10_000} if of == "gpu" else {}),
            idle_ns=idle_s * SECOND_NS if (cpus, gpus) == (4, 1) else 0,
        )
        for index, (of, cpus, gpus, idle_s) in enumerate(chosen)
    ]
    view = ScaleView(
        groups=(cpu, gpu),
        nodes=nodes,
        demands=[Demand(resources=amounts(CPU=cpus, GPU=gpus), count=count) for cpus, gpus, count in demands],
        idle_timeout_ns=60 * SECOND_NS,
        speed_percent=100,
    )
    assert BinPacking().choose(view) == BinPacking().choose(replace(view, requested=[[]]))
