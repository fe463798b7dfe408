from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.sim.cost.cost_model import CostModel
from dualray.sim.cost.rates import time_ns
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.network.conditions import Impairment
from dualray.sim.network.flows import Transfer
from dualray.sim.network.network import Channel, Network
from dualray.sim.network.topologies import LinkKey, Mesh, Nic, NodeKey, Racks, Star

MB = 1_000_000
SIMGRID = json.loads((Path(__file__).parents[2] / "data" / "simgrid_flows.json").read_text())["cases"]


def run_out(kernel: Kernel) -> None:
    assert kernel.run_until(lambda: False) is False


class Cluster:
    """A network and a log of what arrived when."""

    def __init__(self, *, topology: Any = None, head: NodeKey | None = None, **parameters: int) -> None:
        self.cost = CostModel(**parameters)
        self.kernel = Kernel()
        self.network = Network(self.kernel, self.cost, topology=topology, head=head)
        self.channels: dict[tuple[str, str], Channel] = {}
        self.log: list[tuple[Any, int]] = []

    def note(self, name: Any) -> None:
        self.log.append((name, self.kernel.now_ns))

    def noting(self, name: Any) -> Callable[[], None]:
        return lambda: self.note(name)

    def send(self, src: NodeKey, dst: NodeKey, size_bytes: int, name: Any, *, src_process: str = "") -> None:
        pair = (f"{src}{src_process}", f"{dst}")
        channel = self.channels.get(pair)
        if channel is None:
            channel = self.channels[pair] = Channel(src, dst, src_process=pair[0], dst_process=pair[1])
        self.network.message(channel, size_bytes, self.note, name)

    def transfer(self, src: NodeKey, dst: NodeKey, size_bytes: int, name: Any) -> Transfer:
        return self.network.transfer(src, dst, size_bytes, self.noting(name), on_lost=self.noting((name, "lost")))


# -- the cost model ----------------------------------------------------------------------------------------------


def test_every_parameter_has_a_unit_a_default_and_a_source() -> None:
    params = CostModel.params()
    assert [param.name for param in params] == list(CostModel.__dataclass_fields__)
    for param in params:
        assert param.name.endswith({"ns": "_ns", "bytes/s": "_bytes_per_s"}[param.unit])
        assert param.default == getattr(CostModel(), param.name)
        assert len(param.source) > 10


@pytest.mark.parametrize("parameters", [{"submit_ns": -1}, {"submit_ns": 1.5}, {"nic_bytes_per_s": 0}])
def test_a_parameter_that_makes_no_sense_is_refused(parameters: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        CostModel(**parameters)


def test_times_are_exact_integers_rounded_up() -> None:
    assert time_ns(1, 10**9) == 1
    assert time_ns(1, 3 * 10**9) == 1
    assert time_ns(0, 1) == 0
    assert time_ns(10**18, 1_250_000_000) == 8 * 10**17
    assert CostModel(memory_bytes_per_s=10**9).copy_ns(100) == 100


# -- messages ----------------------------------------------------------------------------------------------------


def test_a_message_takes_latency_software_and_its_bytes() -> None:
    cluster = Cluster(
        local_message_ns=5, node_message_ns=20, head_message_ns=30, nic_latency_ns=100, nic_bytes_per_s=10**9
    )
    cluster.network = Network(cluster.kernel, cluster.cost, head="head")
    cluster.send(1, 1, 0, "local")
    cluster.send(1, 2, 0, "node to node")
    cluster.send(1, 3, 1000, "with bytes")
    cluster.send(1, "head", 0, "to the head")
    cluster.send("head", 1, 0, "from the head")
    cluster.send("head", "head", 0, "within the head")
    run_out(cluster.kernel)
    assert sorted(cluster.log, key=str) == [
        ("from the head", 230),
        ("local", 5),
        ("node to node", 220),
        ("to the head", 230),
        ("with bytes", 1220),
        ("within the head", 5),
    ]
    assert (cluster.network.messages_sent, cluster.network.messages_dropped) == (6, 0)
    assert cluster.network.message_ns(1, 3, 1000) == 1220


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 10 * MB), st.integers(0, 10**5)),
        max_size=60,
    )
)
def test_messages_between_two_processes_keep_their_order(sent: list[tuple[int, int, int, int]]) -> None:
    cluster = Cluster()
    for number, (src, dst, size_bytes, pause_ns) in enumerate(sent):
        cluster.kernel.call_after(pause_ns, lambda: None)
        cluster.kernel.step()
        cluster.send(src, dst, size_bytes, (src, dst, number))
    run_out(cluster.kernel)
    assert len(cluster.log) == len(sent)
    for src in range(4):
        for dst in range(4):
            numbers = [name[2] for name, _ in cluster.log if name[:2] == (src, dst)]
            assert numbers == sorted(numbers)


def test_a_large_message_does_not_delay_another_process() -> None:
    cluster = Cluster()
    cluster.send(1, 2, 100 * MB, "large")
    cluster.send(1, 2, 10, "same process")
    cluster.send(1, 2, 10, "other process", src_process="b")
    run_out(cluster.kernel)
    assert [name for name, _ in cluster.log] == ["other process", "large", "same process"]
    assert cluster.log[1][1] == cluster.log[2][1]


def test_a_channel_takes_new_sizes_and_new_routes_at_once() -> None:
    nics = {2: Nic(bytes_per_s=10**9, latency_ns=50_000)}
    cost = CostModel(nic_bytes_per_s=10**9, nic_latency_ns=50_000)
    cluster = Cluster(topology=Star(cost, nics=nics), nic_bytes_per_s=10**9, nic_latency_ns=50_000)
    arrived = []
    for size_bytes, latency_ns in ((0, 50_000), (1000, 50_000), (1000, 90_000), (0, 90_000)):
        nics[2] = Nic(bytes_per_s=10**9, latency_ns=latency_ns)
        cluster.network.routes_changed()
        began_ns = cluster.kernel.now_ns
        cluster.send(1, 2, size_bytes, "message")
        assert (
            cluster.network.message_ns(1, 2, size_bytes)
            == cluster.cost.node_message_ns + 50_000 + latency_ns + size_bytes
        )
        run_out(cluster.kernel)
        arrived.append(cluster.log[-1][1] - began_ns)
    software_ns = cluster.cost.node_message_ns
    assert arrived == [software_ns + each for each in (100_000, 101_000, 141_000, 140_000)]


# -- transfers ---------------------------------------------------------------------------------------------------


def test_one_flow_has_the_whole_link() -> None:
    cluster = Cluster(nic_bytes_per_s=10**9, nic_latency_ns=50_000)
    transfer = cluster.transfer(1, 2, 10**9, "done")
    assert transfer.rate_bytes_per_s == 0
    run_out(cluster.kernel)
    assert cluster.log == [("done", 100_000 + 10**9)]
    assert transfer.over


def test_two_flows_into_a_node_share_its_nic_and_the_second_speeds_up() -> None:
    cluster = Cluster(nic_bytes_per_s=10**9, nic_latency_ns=0)
    cluster.transfer(1, 3, 100 * MB, "short")
    cluster.transfer(2, 3, 300 * MB, "long")
    run_out(cluster.kernel)
    assert cluster.log == [("short", 200 * MB), ("long", 400 * MB)]


def test_a_flow_that_is_limited_elsewhere_leaves_its_share_to_the_others() -> None:
    slow = {4: Nic(bytes_per_s=200 * MB, latency_ns=7)}
    cluster = Cluster(nic_latency_ns=0, topology=Star(CostModel(nic_latency_ns=0), nics=slow))
    limited, free = cluster.transfer(1, 4, 10**9, "limited"), cluster.transfer(1, 3, 10**9, "free")
    cluster.kernel.run_until(lambda: limited.rate_bytes_per_s > 0)
    cluster.kernel.run_until(lambda: free.rate_bytes_per_s != 1_250 * MB)
    assert (limited.rate_bytes_per_s, free.rate_bytes_per_s) == (200 * MB, 1_050 * MB)


def test_within_a_node_a_transfer_copies_memory() -> None:
    cluster = Cluster(memory_bytes_per_s=10**9)
    cluster.transfer(1, 1, 500, "copied")
    run_out(cluster.kernel)
    assert cluster.log == [("copied", 500)]


def test_an_empty_transfer_takes_its_latency() -> None:
    cluster = Cluster(nic_latency_ns=10)
    cluster.transfer(1, 2, 0, "empty")
    run_out(cluster.kernel)
    assert cluster.log == [("empty", 20)]


def test_a_cancelled_transfer_gives_its_share_back_and_has_no_fate() -> None:
    cluster = Cluster(nic_bytes_per_s=10**9, nic_latency_ns=0)
    cancelled = cluster.transfer(1, 3, 100 * MB, "cancelled")
    waiting = cluster.transfer(2, 4, 100 * MB, "waiting")
    cluster.transfer(2, 3, 100 * MB, "kept")
    assert waiting.cancel() is True
    cluster.kernel.call_after(100 * MB, cancelled.cancel)
    run_out(cluster.kernel)
    assert cluster.log == [("kept", 150 * MB)]
    assert cancelled.cancel() is False
    assert cancelled.moved_bytes() == 50 * MB
    assert cancelled.rate_bytes_per_s == 0


def test_on_done_may_start_the_next_transfer() -> None:
    cluster = Cluster(nic_bytes_per_s=10**9, nic_latency_ns=0)

    def next_one() -> None:
        cluster.note("first")
        cluster.transfer(2, 1, 50, "second")

    cluster.network.transfer(1, 2, 50, next_one)
    run_out(cluster.kernel)
    assert cluster.log == [("first", 50), ("second", 100)]


# -- cuts --------------------------------------------------------------------------------------------------------


def test_a_cut_loses_what_is_under_way_and_what_is_sent_meanwhile() -> None:
    cluster = Cluster(nic_latency_ns=100, node_message_ns=0)
    cluster.send(1, 2, 0, "to it")
    cluster.send(2, 1, 0, "from it")
    cluster.send(2, 2, 0, "within it")
    cluster.send(1, 3, 0, "past it")
    cluster.kernel.call_after(10, cluster.network.cut, 2)
    cluster.kernel.call_after(20, cluster.send, 1, 2, 0, "meanwhile")
    cluster.kernel.call_after(30, cluster.network.heal, 2)
    cluster.kernel.call_after(40, cluster.send, 1, 2, 0, "after it healed")
    cluster.kernel.call_after(50, cluster.network.cut, 4)
    run_out(cluster.kernel)
    assert cluster.log == [("past it", 200), ("after it healed", 240)]
    assert cluster.network.messages_dropped == 4


def test_a_cut_loses_transfers_and_frees_their_share() -> None:
    cluster = Cluster(nic_bytes_per_s=10**9, nic_latency_ns=10)
    cluster.transfer(2, 3, 100 * MB, "from the dead")
    cluster.transfer(1, 3, 100 * MB, "kept")
    cluster.kernel.call_after(100 * MB, cluster.network.cut, 2)
    cluster.kernel.call_after(100 * MB + 5, cluster.transfer, 1, 2, 10, "to the dead")
    cluster.kernel.call_after(200 * MB, cluster.network.heal, 2)
    cluster.kernel.call_after(200 * MB, cluster.transfer, 1, 2, 10, "to the living")
    run_out(cluster.kernel)
    assert [name for name, _ in cluster.log] == [
        ("from the dead", "lost"),
        ("to the dead", "lost"),
        "kept",
        "to the living",
    ]
    assert cluster.log[0][1] == 100 * MB + 20
    assert cluster.log[2][1] == pytest.approx(150 * MB, abs=100)
    assert cluster.network.flows._links == {}
    assert cluster.network.flows._transfers == {}


def test_a_transfer_that_waits_for_its_latency_is_lost_with_its_node() -> None:
    cluster = Cluster(nic_latency_ns=100)
    cluster.transfer(1, 2, 10, "lost")
    cluster.network.transfer(1, 2, 10, cluster.noting("lost, and nobody asked"))
    cluster.kernel.call_after(50, cluster.network.cut, 1)
    run_out(cluster.kernel)
    assert cluster.log == [(("lost", "lost"), 250)]


# -- fairness: properties ------------------------------------------------------------------------------------------


def in_racks(*, hosts: int, nic: Nic, uplink_bytes_per_s: int | None, count: int = 256) -> Star:
    """Hosts 0, 1, ... in racks of so many; without an uplink's bandwidth on one switch."""
    nics = dict.fromkeys(range(count), nic)
    if uplink_bytes_per_s is None:
        return Star(CostModel(), nics)
    rack_of = {host: host // hosts for host in range(count)}
    uplink = Nic(bytes_per_s=uplink_bytes_per_s, latency_ns=0)
    return Racks(CostModel(), nics, rack_of=rack_of, uplinks=dict.fromkeys(rack_of.values(), uplink))


NICS = st.dictionaries(
    st.integers(0, 7), st.builds(Nic, bytes_per_s=st.integers(1, 10**10), latency_ns=st.integers(0, 10**6))
)
FLOWS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 50 * MB), st.integers(0, 20 * MB)),
    min_size=1,
    max_size=25,
)
TOPOLOGIES = st.one_of(
    NICS.map(lambda nics: Star(CostModel(), nics)),
    NICS.map(lambda nics: Mesh(CostModel(), nics)),
    st.builds(
        in_racks,
        hosts=st.sampled_from([2, 4]),
        nic=st.builds(Nic, bytes_per_s=st.integers(10**8, 10**10), latency_ns=st.just(10_000)),
        uplink_bytes_per_s=st.one_of(st.none(), st.integers(10**8, 10**10)),
    ),
)


def assert_max_min_fair(topology: Any, flows: list[Transfer]) -> None:
    """No link is overfull, and each flow crosses a full link on which nobody has more (Bertsekas, Gallager 6.5)."""
    on_link: dict[LinkKey, list[Transfer]] = {}
    for flow in flows:
        for link in topology.links(flow.src_node, flow.dst_node):
            on_link.setdefault(link, []).append(flow)
    full = []
    for link, sharing in on_link.items():
        used, capacity = sum(flow.rate_bytes_per_s for flow in sharing), topology.bytes_per_s(link)
        assert used <= capacity * (1 + 1e-9)
        if used >= capacity * (1 - 1e-9):
            full.append(link)
    for flow in flows:
        assert any(
            link in full and flow.rate_bytes_per_s >= max(it.rate_bytes_per_s for it in on_link[link]) * (1 - 1e-9)
            for link in topology.links(flow.src_node, flow.dst_node)
        )


@given(TOPOLOGIES, FLOWS, st.randoms(use_true_random=False))
def test_rates_are_max_min_fair_and_bytes_are_conserved(
    topology: Any, planned: list[tuple[int, int, int, int]], chance: random.Random
) -> None:
    """At every change of the flows; a flow's end comes when exactly its bytes are through."""
    cluster = Cluster(topology=topology)
    kernel, since_ns = cluster.kernel, 0
    flows: list[Transfer] = []
    by_number: dict[int, Transfer] = {}
    moved: dict[Transfer, float] = {}

    def start(number: int, src: int, dst: int, size_bytes: int) -> None:
        by_number[number] = cluster.transfer(src, dst, size_bytes, number)
        flows.append(by_number[number])

    for number, (src, dst, size_bytes, start_ns) in enumerate(planned):
        kernel.call_after(start_ns, start, number, src, dst, size_bytes)
    cancelled = 0
    while kernel.events_pending:
        rates = {flow: flow.rate_bytes_per_s for flow in flows}
        kernel.step()
        for flow, rate in rates.items():
            moved[flow] = moved.get(flow, 0.0) + rate * (kernel.now_ns - since_ns) / 1e9
        since_ns = kernel.now_ns
        if kernel.peek() > kernel.now_ns:  # between instants: inside one, shares are yet to be computed
            flowing = [flow for flow in flows if not flow.over and flow._links]
            assert_max_min_fair(topology, flowing)
            for flow in flowing:
                assert flow.moved_bytes() == pytest.approx(moved.get(flow, 0.0), rel=1e-6, abs=1)
                assert 0 <= flow.moved_bytes() <= flow.size_bytes + 1
            if flowing and chance.random() < 0.05:
                cancelled += chance.choice(flowing).cancel()
    assert len(cluster.log) + cancelled == len(planned)
    for number, _ in cluster.log:
        flow = by_number[number]
        capacity = max(topology.bytes_per_s(link) for link in topology.links(flow.src_node, flow.dst_node))
        rounding = 2 + 2e-9 * capacity  # the end is rounded up to a nanosecond
        assert moved[flow] == pytest.approx(flow.size_bytes, rel=1e-6, abs=rounding)
    assert cluster.network.flows._links == {}
    assert cluster.network.flows._transfers == {}


@pytest.mark.parametrize("case", SIMGRID, ids=lambda case: f"{case['case']}-{case['pattern']}")
def test_flows_end_when_simgrids_do(case: dict[str, Any]) -> None:
    """Within 1 % of each flow's duration (in fact within 0.002 %)."""
    platform = case["topology"]
    uplink = platform["rack_uplink_bytes_per_s"]
    topology = in_racks(
        hosts=platform["hosts_per_rack"],
        nic=Nic(
            bytes_per_s=int(platform["nic_bytes_per_s"]),
            latency_ns=round(platform["nic_latency_s"] * 1e9),
        ),
        uplink_bytes_per_s=None if uplink is None else int(uplink),
    )
    cluster = Cluster(topology=topology)
    for number, flow in enumerate(case["flows"]):
        cluster.kernel.call_after(
            round(flow["start_s"] * 1e9), cluster.transfer, flow["src"], flow["dst"], flow["bytes"], number
        )
    run_out(cluster.kernel)
    assert len(cluster.log) == len(case["flows"])
    for number, finish_ns in cluster.log:
        flow = case["flows"][number]
        took_s, expected_s = finish_ns / 1e9 - flow["start_s"], flow["finish_s"] - flow["start_s"]
        assert took_s == pytest.approx(expected_s, rel=0.01)


def test_the_default_star_is_simgrids_star() -> None:
    case = next(it for it in SIMGRID if it["topology"]["racks"] == 1 and it["pattern"] == "shuffle")
    platform = case["topology"]
    cluster = Cluster(
        nic_bytes_per_s=int(platform["nic_bytes_per_s"]),
        nic_latency_ns=round(platform["nic_latency_s"] * 1e9),
    )
    for number, flow in enumerate(case["flows"]):
        cluster.kernel.call_after(
            round(flow["start_s"] * 1e9), cluster.transfer, flow["src"], flow["dst"], flow["bytes"], number
        )
    run_out(cluster.kernel)
    for number, finish_ns in cluster.log:
        assert finish_ns / 1e9 == pytest.approx(case["flows"][number]["finish_s"], rel=0.001)


# -- topologies --------------------------------------------------------------------------------------------------


def two_racks(*, uplink: Nic | None = None, **parameters: int) -> Cluster:
    """Nodes 1 and 2 in one rack, 3 and 4 in another, 5 in none; cards of 1 GB/s, uplinks of 0.5 GB/s."""
    uplink = uplink or Nic(bytes_per_s=500 * MB, latency_ns=0)
    costs = {"nic_bytes_per_s": 10**9, "nic_latency_ns": 0, **parameters}
    rack_of = {1: "a", 2: "a", 3: "b", 4: "b"}
    return Cluster(
        topology=Racks(CostModel(**costs), rack_of=rack_of, uplinks={"a": uplink, "b": uplink}),
        **costs,
    )


def test_what_leaves_a_rack_shares_its_uplink_and_what_stays_in_it_does_not() -> None:
    cluster = two_racks()
    cluster.transfer(1, 3, 100 * MB, "out of the rack")
    cluster.transfer(2, 4, 100 * MB, "out of the rack, too")
    cluster.transfer(3, 1, 100 * MB, "the other way")
    cluster.transfer(4, 3, 100 * MB, "within the other rack")
    run_out(cluster.kernel)
    # Into node 3 come 250 MB/s from the first rack; what it gets from its own has the rest of its card.
    assert sorted(cluster.log, key=lambda it: (it[1], it[0])) == [
        ("within the other rack", pytest.approx(133_333_334, abs=1)),
        ("the other way", 200 * MB),
        ("out of the rack", 400 * MB),
        ("out of the rack, too", 400 * MB),
    ]


def test_what_is_in_no_rack_hangs_on_the_core() -> None:
    cluster = two_racks(uplink=Nic(bytes_per_s=500 * MB, latency_ns=300), nic_latency_ns=10, node_message_ns=0)
    latency_ns = cluster.network.topology.latency_ns
    assert [latency_ns(1, dst) for dst in (1, 2, 3, 5)] == [0, 20, 620, 320]
    assert (latency_ns(5, 1), latency_ns(5, 5), latency_ns(5, 6)) == (320, 0, 20)
    assert cluster.network.message_ns(1, 2, 1000) == 20 + 1000
    assert cluster.network.message_ns(1, 5, 1000) == 320 + 2000
    topology = cluster.network.topology
    assert topology.links(5, 1) == (("out", 5), ("down", "a"), ("in", 1))
    assert topology.links(1, 5) == (("out", 1), ("up", "a"), ("in", 5))
    assert topology.links(5, 6) == (("out", 5), ("in", 6))
    assert topology.links(1, 1) == (("memory", 1),)


def test_in_a_mesh_flows_between_different_nodes_do_not_compete() -> None:
    cost = CostModel(nic_bytes_per_s=10**9, nic_latency_ns=50)
    slow = {4: Nic(bytes_per_s=100 * MB, latency_ns=7)}
    cluster = Cluster(topology=Mesh(cost, slow))
    for src in (1, 2):
        cluster.transfer(src, 3, 100 * MB, src)
    cluster.transfer(3, 1, 100 * MB, "back")
    cluster.transfer(1, 4, 100 * MB, "slow")
    cluster.transfer(5, 6, 100 * MB, "shared")
    cluster.transfer(5, 6, 100 * MB, "shared, too")
    run_out(cluster.kernel)
    assert dict(cluster.log) == {
        1: 100 * MB + 100,
        2: 100 * MB + 100,
        "back": 100 * MB + 100,
        "slow": 1000 * MB + 57,
        "shared": 200 * MB + 100,
        "shared, too": 200 * MB + 100,
    }
    assert cluster.network.message_ns(1, 4, 100) == cost.node_message_ns + 57 + 1000


def test_a_bad_link_of_a_node_is_no_bad_uplink_of_a_rack_of_that_name() -> None:
    costs = CostModel(nic_bytes_per_s=10**9, nic_latency_ns=0)
    uplink = Nic(bytes_per_s=500 * MB, latency_ns=0)
    rack_of = {"a": "b", "b": "a", "c": "a"}
    cluster = Cluster(topology=Racks(costs, rack_of=rack_of, uplinks={"a": uplink, "b": uplink}))
    cluster.network.impair("a", Impairment(bandwidth=0.1))
    cluster.transfer("a", "b", 100 * MB, "from the bad one")
    cluster.transfer("c", "a", 100 * MB, "to the bad one")
    cluster.transfer("d", "b", 300 * MB, "over the uplinks of racks a")
    cluster.kernel.call_after(500 * MB, cluster.network.impair, "b", Impairment(bandwidth=0.5))
    run_out(cluster.kernel)
    assert dict(cluster.log) == {
        "from the bad one": 1000 * MB,
        "to the bad one": 1000 * MB,
        "over the uplinks of racks a": 300 * MB * 10 // 4,
    }


def test_a_bad_link_makes_each_link_of_a_mesh_worse_that_ends_there() -> None:
    cluster = Cluster(topology=Mesh(CostModel(nic_bytes_per_s=10**9, nic_latency_ns=0)), nic_latency_ns=0)
    for src, dst in ((1, 2), (2, 1), (1, 3), (2, 3)):
        cluster.transfer(src, dst, 100 * MB, (src, dst))
    cluster.kernel.call_after(50 * MB, cluster.network.impair, 1, Impairment(bandwidth=0.5))
    cluster.kernel.call_after(50 * MB, cluster.network.impair, 2, Impairment(bandwidth=0.25))
    run_out(cluster.kernel)
    assert dict(cluster.log) == {(1, 2): 250 * MB, (2, 1): 250 * MB, (1, 3): 150 * MB, (2, 3): 250 * MB}


def test_rates_are_told_of_cards_alone() -> None:
    for cluster, told in ((two_racks(), {("out", 1), ("in", 3)}), (Cluster(topology=Mesh(CostModel())), set())):
        heard: list[tuple[str, Any]] = []
        cluster.network.flows.on_rate = lambda kind, node, rate, heard=heard: heard.append((kind, node))
        cluster.transfer(1, 3, 100 * MB, "done")
        run_out(cluster.kernel)
        assert set(heard) == told


# -- determinism -------------------------------------------------------------------------------------------------


def whole_run() -> str:
    """Fibers, messages, transfers, a cut and randomness; returns a hash of all that happened."""
    import time
    from random import random as draw

    from dualray.sim.kernel.fibers import FiberScheduler
    from dualray.sim.usercode.isolation import Isolation
    from dualray.sim.usercode.virtual_time import VirtualTime

    class Owner:
        def __init__(self, node: str) -> None:
            self.pid, self.hostname = 4_200_000, node

    cluster = Cluster()
    fibers = FiberScheduler(cluster.kernel)
    fibers.adopt_current(Owner("driver"), seed=b"driver")
    nodes = [f"node-{number}" for number in range(12)]

    def move(node: str, peer: str) -> object:
        me = fibers.current()
        assert me is not None
        cluster.network.transfer(
            node,
            peer,
            int(draw() * 10 * MB),
            lambda: fibers.wake(me, "done"),
            on_lost=lambda: fibers.wake(me, "lost"),
        )
        return fibers.park()

    def work(node: str) -> None:
        for step in range(6):
            peer = nodes[int(draw() * len(nodes))]
            cluster.send(node, peer, int(draw() * 10**5), (node, peer, step))
            cluster.note((node, peer, move(node, peer), draw(), time.time()))
            time.sleep(draw() / 100)

    with Isolation(cluster.kernel, fibers, also=VirtualTime(cluster.kernel, fibers).substitutions()) as standing:
        for function in (move, work):
            standing.rewrite_function(function)
        for node in nodes:
            fibers.spawn(Owner(node), functools.partial(work, node), seed=node.encode())
        cluster.kernel.call_after(10 * MB, cluster.network.cut, "node-3")
        cluster.kernel.call_after(40 * MB, cluster.network.heal, "node-3")
        time.sleep(10)
        outcomes = {name[2] for name, _ in cluster.log if len(name) == 5}
    fibers.close()
    assert outcomes == {"done", "lost"}
    story = repr((cluster.log, cluster.kernel.now_ns, cluster.kernel.events_performed))
    return hashlib.sha256(story.encode()).hexdigest()


def test_two_runs_are_equal_whatever_the_hash_seed() -> None:
    root = Path(__file__).parents[3]
    hashes = [whole_run(), whole_run()]
    for hash_seed in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "-c", "from tests.sim.network.test_network import whole_run; print(whole_run())"],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ended.stderr == ""
        hashes.append(ended.stdout.strip())
    assert len(set(hashes)) == 1
