"""Groups of nodes that grow and shrink, as a scenario file says them."""

from __future__ import annotations

import pytest

import dualray
from dualray.shared.scenario.file import ScenarioError, dump_scenario, parse_growth, parse_scenario

HEAD = "name: a\nworkload: {function: a:b}\n"


def parsed(cluster: str):
    return parse_scenario(f"{HEAD}cluster: {cluster}\n", "a.yaml")


def test_groups_begin_with_their_least_and_carry_their_label():
    scenario = parsed("{cpus: 8, groups: {cpu: {min: 2, max: 4, price: 0.4}, gpu: {max: 1, gpus: 1, cpus: 2}}}")
    assert [(name, group.cpus, group.labels) for name, group in scenario.cluster.each_node()] == [
        ("node-0", 8, {"ray.io/node-group": "cpu"}),
        ("node-1", 8, {"ray.io/node-group": "cpu"}),
    ]
    cpu, gpu = scenario.cluster.scaling_specs()
    assert (cpu.name, cpu.least, cpu.most, cpu.price, str(cpu.total)) == ("cpu", 2, 4, 400_000, "8 CPU")
    assert (gpu.name, gpu.least, gpu.most, gpu.price, str(gpu.total)) == ("gpu", 0, 1, 0, "2 CPU, 1 GPU")
    assert scenario.limits["infeasible"] == "wait"
    assert parse_scenario(dump_scenario(scenario), "again.yaml").cluster == scenario.cluster


def test_nodes_that_are_said_come_first_and_one_is_there_where_no_group_has_any():
    assert len(parsed("{nodes: 2, groups: {cpu: {min: 1, max: 4}}}").cluster.each_node()) == 3
    assert len(parsed("{groups: {cpu: {max: 4}}}").cluster.each_node()) == 1


@pytest.mark.parametrize(
    "cluster",
    [
        "{nodes: 1, groups: {cpu: {min: 1, max: 4}}}",
        "{cpus: 8, nodes: [{count: 2, cpus: 4}, {count: 1}], groups: {cpu: {min: 1, max: 4, cpus: 4, gpus: 0}}}",
        "{speed: 2, gpus: 1, groups: {cpu: {max: 4, speed: 1, gpus: 0}}}",
    ],
)
def test_what_is_said_and_is_the_default_too_is_written(cluster):
    scenario = parsed(cluster)
    again = parse_scenario(dump_scenario(scenario), "again.yaml")
    assert again.cluster.each_node() == scenario.cluster.each_node()
    assert again.cluster.scaled() == scenario.cluster.scaled()
    assert parse_scenario(dump_scenario(again, as_json=True), "json.yaml").cluster == scenario.cluster


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("{groups: {cpu: {min: 3, max: 2}}}", "max: 2 is less than min: 3"),
        ("{groups: {cpu: {min: 3}}}", "key 'max' is missing"),
        ("{groups: {cpu: {max: -1}}}", "is too little: at least 0"),
        ("{groups: {cpu: {max: 3, count: 2}}}", "the key count is only for nodes"),
        ("{groups: {cpu: {max: 3, start: 4s}}}", "unknown key 'start' in cluster.groups.cpu"),
        ("{groups: {'a b': {max: 3}}}", "'a b' cannot be the name of a group"),
        ("{groups: {cpu: {max: 3, refused: 2}}}", "is too much: at most 1"),
        (
            "{groups: {cpu: {max: 3, start_up: 5m}}}",
            (
                "a.yaml:3: cluster.groups.cpu.start_up: no node would join: start_up is 300s, and the autoscaler "
                "gives up a launch after 300s; raise launch_timeout_ns under config, or shorten start_up"
            ),
        ),
        (
            "{groups: {cpu: {max: 3, start_up: 'normal(10m, 1m)'}}}",
            "fewer than 1% of its nodes would join: start_up is normal(600s, 60s)",
        ),
    ],
)
def test_what_is_wrong_with_a_group_is_said(cluster, message):
    with pytest.raises(ScenarioError) as caught:
        parsed(cluster)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "cluster: {groups: {cpu: {max: 3, start_up: 299s}}}",
        "cluster: {groups: {cpu: {max: 3, start_up: 10m}}}\nconfig: {launch_timeout_ns: 900000000000}",
        "cluster: {groups: {cpu: {max: 3, start_up: 'normal(6m, 1m)'}}}",
        "cluster: {groups: {cpu: {max: 0, start_up: 10m}}}",
    ],
)
def test_a_start_up_that_the_launch_timeout_allows_is_no_mistake(text):
    assert parse_scenario(HEAD + text, "a.yaml").cluster.scaling
    assert parse_growth(text, "a.yaml").cluster.scaling


def test_a_growth_file_and_its_limits_say_which_launches_would_be_given_up():
    text = "cluster: {groups: {cpu: {max: 3, start_up: %s}}}\nconfig: {launch_timeout_ns: 60000000000}"
    with pytest.raises(ScenarioError, match=r"a.yaml:1: cluster.groups.cpu.start_up: no node would join: .* after 60s"):
        parse_growth(text % "2m", "a.yaml")
    scenario = parse_scenario(HEAD + text % "30s", "a.yaml")
    with pytest.raises(ValueError, match=r"group cpu: no node would join: start_up is 30s, .* after 20s"):
        dualray.init(mode="sim", scenario=scenario, limits={"launch_timeout_ns": 20 * 10**9})


def test_the_text_of_the_groups_is_nobodys_to_write():
    with pytest.raises(ScenarioError, match="write the groups under cluster"):
        parse_scenario(f"{HEAD}config: {{autoscaler_groups: ''}}\n", "a.yaml")
