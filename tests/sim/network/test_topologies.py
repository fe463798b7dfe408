"""How a scenario's nodes are connected, and what programs see of it."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

import dualray
from dualray.cli.app import app
from dualray.shared.scenario.file import ScenarioError, dump_scenario, parse_scenario
from dualray.shared.scenario.scenario import Scenario
from dualray.shared.units import parse_time_ns
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.network.topologies import Mesh, Racks, Star, wiring_of_scenario
from dualray.testing.run import run_scenario
from dualray.testing.shrink import _first_nodes


def scenario(topology: str, *, nodes: str = "8", rest: str = "workload: {generate: chain}") -> Scenario:
    text = f"name: x\ncluster:\n  nodes: {nodes}\n  network: {{bandwidth: 1Gbps, latency: 100us}}\n"
    return parse_scenario(f"{text}  topology: {topology}\n{rest}\n", "x.yaml")


def racks(said: Scenario) -> dict[str, Any]:
    return {node: group.labels.get("rack") for node, group in said.cluster.each_node()}


def test_nodes_are_dealt_to_racks_in_consecutive_blocks() -> None:
    assert list(racks(scenario("{racks: 3}")).values()) == [f"rack-{it}" for it in (0, 0, 0, 1, 1, 1, 2, 2)]
    groups = "[{count: 2, rack: b}, {rack: a, cpus: 8}, {rack: b}]"
    named = scenario("{uplink: 2Gbps}", nodes=groups)
    assert list(racks(named).values()) == ["b", "b", "a", "b"]
    assert [group.cpus for _, group in named.cluster.each_node()] == [4, 4, 8, 4]
    assert set(racks(scenario("star")).values()) == set(racks(scenario("mesh")).values()) == {None}


def test_an_uplink_has_what_the_links_of_its_rack_have_together_but_for_the_oversubscription() -> None:
    def uplink_of(said: Scenario, rack: str) -> int:
        topology = wiring_of_scenario(said.cluster)(CostModel(), {})
        assert isinstance(topology, Racks)
        return topology.bytes_per_s(("up", rack))

    assert uplink_of(scenario("{racks: 2}"), "rack-1") == 500_000_000
    assert uplink_of(scenario("{racks: 2, oversubscription: 2.5}"), "rack-1") == 200_000_000
    assert uplink_of(scenario("{racks: 3, oversubscription: 2}"), "rack-2") == 125_000_000
    assert uplink_of(scenario("{racks: 2, uplink: 2Gbps}"), "rack-1") == 250_000_000
    groups = "[{count: 2, rack: a}, {count: 2, rack: b, network: {bandwidth: 10Gbps}}]"
    assert uplink_of(scenario("{oversubscription: 2}", nodes=groups), "b") == 1_250_000_000
    assert wiring_of_scenario(scenario("star").cluster) is Star
    assert wiring_of_scenario(scenario("mesh").cluster) is Mesh


@pytest.mark.parametrize("topology", ["mesh", "star", "{racks: 4, oversubscription: 4}", "{racks: 4, uplink: 1Gbps}"])
def test_a_topology_is_written_and_read_back(topology: str) -> None:
    said = scenario(topology)
    assert parse_scenario(dump_scenario(said), "again") == said


@pytest.mark.parametrize(
    ("topology", "nodes", "message"),
    [
        ("{racks: 0}", "8", "x.yaml:5: cluster.topology.racks: 0 is too little: at least 1"),
        (
            "{racks: 9}",
            "8",
            "x.yaml:5: cluster.topology.racks: 9 racks are too many for 8 nodes: each rack",
        ),
        (
            "{racks: 2, oversubscription: 0.5}",
            "8",
            "x.yaml:5: cluster.topology.oversubscription: 0.5 is too little: at least 1.0",
        ),
        (
            "{racks: 2, oversubscription: 2, uplink: 1Gbps}",
            "8",
            (
                "x.yaml:5: cluster.topology: oversubscription and uplink both set the speed of a rack's uplink; "
                "leave one of the two out"
            ),
        ),
        ("{racks: 2, uplink: 0bps}", "8", "x.yaml:5: cluster.topology.uplink: '0bps' is too little: at least 1"),
        (
            "{rack: 2}",
            "8",
            "x.yaml:5: unknown key 'rack' in cluster.topology. Did you mean 'racks'?",
        ),
        ("ring", "8", "x.yaml:5: cluster.topology: 'ring' is not known; known are star, racks, mesh"),
        (
            "7",
            "8",
            "x.yaml:5: cluster.topology: the topology 7 must be star, mesh, or racks such as {racks: 4",
        ),
        (
            "{latency: 1us}",
            "8",
            "x.yaml:5: cluster.topology: give the number of racks, or give each group of nodes",
        ),
        (
            "{latency: 1us}",
            "[{rack: a}, {count: 2}]",
            "x.yaml:5: cluster.topology: give the number of racks, or give each group of nodes",
        ),
        (
            "{racks: 2}",
            "[{rack: a}, {rack: b}]",
            "x.yaml:5: cluster.topology.racks: leave this key out, because the groups of nodes name their racks",
        ),
        (
            "mesh",
            "[{count: 2}, {rack: b}]",
            (
                "x.yaml:3: cluster.nodes[1]: the key rack needs a topology with racks, as in cluster: {topology: "
                "{oversubscription: 4}}"
            ),
        ),
        (
            "{racks: 2}",
            "[{count: 2}, {labels: {rack: b}}]",
            "x.yaml:3: cluster.nodes[1]: dualray sets the label rack itself; give the group rack: NAME instead",
        ),
    ],
)
def test_a_topology_that_makes_no_sense_is_refused_in_one_line(topology: str, nodes: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(topology, nodes=nodes)
    assert str(refused.value).startswith(message)


def test_faults_and_placement_know_racks_by_their_label() -> None:
    rest = "workload: {generate: chain}\nfaults:\n  - {at: 1s, kill: rack=rack-1}"
    said = scenario("{racks: 3}", rest=rest)
    assert [str(fault) for fault in said.planned()] == [f"kill node-{number} at 1s" for number in (3, 4, 5)]
    with pytest.raises(ScenarioError, match=r"no node has the label 'rack=rack-7'. Did you mean 'rack=rack-"):
        scenario("{racks: 3}", rest=rest.replace("rack-1", "rack-7"))
    dualray.init(mode="sim", scenario=scenario("{racks: 3}"))
    labels = [node["Labels"] for node in dualray.nodes()]
    dualray.shutdown()
    assert [it["rack"] for it in labels] == [f"rack-{it}" for it in (0, 0, 0, 1, 1, 1, 2, 2)]


def test_a_shuffle_takes_longer_across_oversubscribed_racks_and_less_in_a_mesh() -> None:
    rest = "workload: {generate: shuffle, kwargs: {maps: 16, reduces: 16, seconds: 0.01, size: 200000}}"
    took = {
        topology: run_scenario(scenario(topology, rest=rest)).makespan_ns
        for topology in (
            "star",
            "mesh",
            "{racks: 2}",
            "{racks: 1, oversubscription: 8}",
            "{racks: 2, oversubscription: 4}",
        )
    }
    assert took["{racks: 1, oversubscription: 8}"] == took["star"]  # only what goes to the head leaves the rack
    assert took["{racks: 2}"] == pytest.approx(took["star"], rel=0.001)  # links that are full at once, but for rounding
    assert took["mesh"] < took["star"] < took["{racks: 2, oversubscription: 4}"]


def test_a_modelled_program_takes_the_topology_of_its_scenario(tmp_path: Any) -> None:
    def time_of(topology: str) -> str:
        file = tmp_path / "x.yaml"
        file.write_text(dump_scenario(scenario(topology)))
        command = ["sim", "workload", "shuffle", "--maps", "8", "--reduces", "8", "--size", "1000000"]
        done = CliRunner().invoke(app, [*command, "--scenario", str(file)])
        assert done.exit_code == 0
        [line] = [line for line in done.stdout.splitlines() if "virtual time" in line]
        return line.strip("│ ")  # how wide the table is says its longest line

    assert time_of("star") == time_of("{racks: 1}")
    assert len({time_of("star"), time_of("mesh"), time_of("{racks: 2, oversubscription: 4}")}) == 3


def test_the_head_of_a_modelled_program_is_on_the_network_of_its_scenario(tmp_path: Any) -> None:
    """Its nodes were, and the head was not."""

    def seconds_of(latency: str) -> float:
        file = tmp_path / "x.yaml"
        groups = "{count: 2, cpus: 1, network: {bandwidth: 10Gbps, latency: 100us}}"
        head = f"network: {{bandwidth: 10Gbps, latency: {latency}}}"
        file.write_text(f"name: x\ncluster: {{nodes: [{groups}], {head}}}\nworkload: {{generate: chain}}\n")
        command = ["sim", "workload", "bag", "--tasks", "4", "--seconds", "0.5", "--scenario", str(file)]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        [line] = [line for line in done.stdout.splitlines() if "virtual time" in line]
        return parse_time_ns(line.strip("│ ").split()[-1], "virtual time") / 1e9

    assert seconds_of("400ms") > seconds_of("100us") + 0.2


def test_fewer_nodes_have_no_more_racks_than_nodes() -> None:
    cluster = scenario("{racks: 4, oversubscription: 2}").cluster
    assert (_first_nodes(cluster, 5).topology.racks, _first_nodes(cluster, 3).topology.racks) == (4, 3)
