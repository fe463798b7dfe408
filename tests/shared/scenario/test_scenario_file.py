"""What a scenario file may say, and the one line that is said of a wrong one."""

from __future__ import annotations

import json
import pickle

import pytest

from dualray.shared.scenario.distributions import Distribution, parse_distribution
from dualray.shared.scenario.fault_model import Fault, FaultKind
from dualray.shared.scenario.file import ScenarioError, dump_scenario, json_schema, parse_scenario
from dualray.shared.scenario.file_faults import FaultModel
from dualray.testing.run import load_scenario

GOOD = """\
name: pong
cluster:
  nodes:
    - {count: 2, cpus: 18, labels: {rack: a}}
    - {count: 3, cpus: 8, gpus: 4, labels: {rack: b}, network: {bandwidth: 25Gbps, latency: 50us}}
  object_store: 20GiB
workload:
  generate: bag_of_tasks
  kwargs: {tasks: 5}
config: {push_window_max: 8}
policies: {placement: "dualray.shared.policies.spread:SpreadPlacement"}
costs: {worker_start_ns: 5ms}
durations: {piece: 2s, "Net.*": "lognormal(2s, 0.5)"}
faults:
  - kill node-2 at 3s
  - {at: 1s, partition: [node-1, node-2], heal_after: 3s}
  - {when: {task_started: piece, index: 40}, kill: worker}
  - {every: 2s, times: 2, reboot: rack=b, for: 1s}
expect:
  makespan: {max: 60s}
  counters: {tasks: 5, retries: {max: 3}}
"""


def parse(text: str = GOOD):
    return parse_scenario(text, "pong.yaml")


def refusal(old: str, new: str) -> str:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(ScenarioError) as refused:
        parse(text)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_a_scenario_says():
    scenario = parse()
    nodes = dict(scenario.cluster.each_node())
    assert list(nodes) == ["node-0", "node-1", "node-2", "node-3", "node-4"]
    assert (nodes["node-1"].cpus, nodes["node-2"].cpus, nodes["node-2"].gpus) == (18, 8, 4)
    assert nodes["node-0"].object_store == nodes["node-4"].object_store == 20 * 1024**3
    assert nodes["node-4"].network.bandwidth == 25_000_000_000 // 8
    assert scenario.limits["placement_policy"].endswith("SpreadPlacement")
    assert scenario.durations["piece"] == Distribution("constant", 2_000_000_000)
    assert scenario.expect.counters["tasks"].has(5) and not scenario.expect.counters["tasks"].has(6)


def test_a_fault_with_several_nodes_and_times_is_several_faults():
    planned = parse().planned()
    assert planned[:2] == (
        Fault(kind=FaultKind.KILL_NODE, node="node-2", at_ns=3_000_000_000),
        Fault(kind=FaultKind.PARTITION, nodes=("node-1", "node-2"), at_ns=1_000_000_000, for_ns=3_000_000_000),
    )
    assert [str(fault) for fault in planned[3:]] == [
        f"reboot node-{node} at {second}s for 1s" for node in (2, 3, 4) for second in (2, 4)
    ]


def test_a_scenario_is_written_and_read_back():
    scenario = parse()
    assert parse(dump_scenario(scenario)) == scenario
    expanded = scenario.with_faults(scenario.planned())
    assert parse(dump_scenario(expanded)) == expanded
    assert parse(dump_scenario(expanded)).planned() == scenario.planned()
    assert pickle.loads(pickle.dumps(expanded)).planned() == scenario.planned()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "object_store",
            "object_stor",
            "pong.yaml:6: unknown key 'object_stor' in cluster. Did you mean 'object_store'?",
        ),
        ("count: 2", "cout: 2", "pong.yaml:4: unknown key 'cout' in cluster.nodes[0]. Did you mean 'count'?"),
        ("heal_after", "heal_afer", "pong.yaml:16: unknown key 'heal_afer' in faults[1]. Did you mean 'heal_after'?"),
        ("20GiB", "20", "pong.yaml:6: cluster.object_store: 20 has no unit; write for example 1GiB"),
        ("20GiB", "20Gigs", "pong.yaml:6: cluster.object_store: a size: '20Gigs' is not understood; write a number"),
        ("25Gbps", "25s", "a rate: '25s' is a time; write for example 10Gbps or 1.25GB/s"),
        ("25Gbps", "25Gbit", "a rate: '25Gbit' is not understood; write a number with one of bps, kbps, Mbps, Gbps"),
        ("20GiB", "20KiB", "pong.yaml:6: cluster.object_store: 20.0 KiB is too little: at least 1.0 MiB"),
        ("cpus: 18", "cpus: many", "pong.yaml:4: cluster.nodes[0].cpus: 'many' must be a number"),
        (
            "{max: 3}",
            "some",
            "expect.counters.retries: 'some' must be a whole number, or a range such as",
        ),
        ("{max: 60s}", "{max: 0s}", "expect.makespan: no run can meet this expectation: max is 0s"),
        ("name: pong", "name: pong\nname: p", "the key 'name' is given twice"),
        (
            "expect:\n",
            "expect:\n  error: {type: ObjectLostErorr}\n",
            "dualray and Python have no error 'ObjectLostErorr'. Did you mean",
        ),
        (
            "cluster:\n",
            "swarm: {kinds: [kill nodes]}\ncluster:\n",
            "'kill nodes' is not known. Did you mean 'kill",
        ),
        ("max: 60s", "max: 60", "pong.yaml:20: expect.makespan.max: 60 has no unit; write for example 2.5s"),
        ("count: 2", "count: 0", "pong.yaml:4: cluster.nodes[0].count: 0 is too little: at least 1"),
        ("kill node-2", "kill node-9", "the cluster has no node 'node-9'; the nodes are node-0 to node-4"),
        ("kill node-2", "kill node-0", "node-0 runs the driver, so this fault would end the program"),
        ("node-2 at 3s", "node-2 at 90s", "comes after the run's end: expect.makespan allows 60s at most"),
        ("rack=b, for", "rack=c, for", "no node has the label 'rack=c'. Did you mean 'rack=b'?"),
        ("reboot: rack=b, for: 1s", "reboot: rack=b", "the fault needs a duration, as in 'for 3s'"),
        ("kill: worker", "kill: worker, slow: node-1", "a fault needs exactly one of kill, kill_actor, reboot"),
        ("at: 1s, part", "part", "pong.yaml:16: faults[1]: a fault needs exactly one of at, every and when, not none"),
        ("[node-1, node-2]", "[node-0]", "the driver, on node-0, would lose the head"),
        ("retries:", "retires:", "dualray has no counter 'retires'. Did you mean 'retries'?"),
        ("{max: 3}", "{max: 3, min: 5}", "min must not be above max"),
        (
            "counters:",
            "figures: {rate: {min: 5, max: 4}}\n  counters:",
            "expect.figures.rate: min must not be above max",
        ),
        ("counters:", "figures: {rate: {mx: 5}}\n  counters:", "unknown key 'mx' in expect.figures.rate"),
        ("{max: 60s}", "{max: 60s, min: 70s}", "min must not be above max"),
        ("tasks: 5, re", "faults: {min: 50}, re", "no run can meet this expectation: 9 faults are planned"),
        (
            "push_window_max",
            "push_windw_max",
            "dualray has no limit 'push_windw_max'. Did you mean 'push_window_max'?",
        ),
        ("push_window_max: 8", "push_window_max: many", "'many' must be of type int, like 64"),
        ("push_window_max: 8", "push_window_max: 0", "0 must be between 1 and "),
        ("SpreadPlacement", "SpredPlacement", "module 'dualray.shared.policies.spread' has no 'SpredPlacement'"),
        ("placement:", "placemnt:", "dualray has no policy for 'placemnt'. Did you mean 'placement'?"),
        ("lognormal(2s, 0.5)", "lognorm(2s, 0.5)", "there is no distribution 'lognorm'; write 2.5s, uniform(1s, 3s)"),
        ("generate:", "function:", "pong.yaml:7: workload: function 'bag_of_tasks' must be written module:name"),
        ("name: pong\n", "", "pong.yaml:1: key 'name' is missing"),
        ("cluster:\n", "cluster\n", "pong.yaml:"),
        (GOOD, "[]", "pong.yaml:1: a scenario must be a mapping with name, cluster, workload"),
        ("cpus: 18", "cpus: [", "the file is not valid YAML"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_place(old, new, message):
    assert message in refusal(old, new)


def test_the_schema_knows_every_key():
    schema = json_schema()
    text = json.dumps(schema)
    assert {"name", "cluster", "workload", "faults", "expect"} <= schema["properties"].keys()
    assert all(f'"{field.alias or name}"' in text for name, field in FaultModel.model_fields.items())


@pytest.mark.parametrize(
    ("text", "low_ns", "high_ns"),
    [
        ("2s", 2e9, 2e9),
        ("uniform(1s, 3s)", 1e9, 3e9),
        ("exponential(2s)", 0, 60e9),
        ("exponential(2s, 5s)", 0, 5e9),
        ("normal(2s, 100ms)", 1.2e9, 2.8e9),
        ("lognormal(2s, 0.5)", 0.05e9, 60e9),
        ("pareto(1s, 1.5)", 1e9, 1e15),
    ],
)
def test_draws_of_a_distribution_lie_where_they_should(text, low_ns, high_ns):
    distribution = parse_distribution(text)
    assert parse_distribution(str(distribution)) == distribution
    draws = [distribution.sample_ns(lambda number=number: number / 1000) for number in range(1000)]
    assert low_ns <= min(draws) <= max(draws) <= high_ns
    assert draws == sorted(draws)


def test_a_partition_may_have_the_driver_and_the_head_on_one_side():
    for sides in ("[node-0, head]", "[node-0, node-1, head]", "[node-1], from: [node-2]"):
        [_, fault, *_] = parse(GOOD.replace("[node-1, node-2]", sides)).planned()
        assert fault.kind is FaultKind.PARTITION


def test_what_comes_about_every_so_often_is_drawn_from_the_seed():
    text = GOOD.replace("every: 2s, times: 2", "every: 2s ± 500ms, times: 4")
    at = {
        seed: [fault.at_ns for fault in parse(text + f"seed: {seed}\n").planned() if "reboot" in str(fault)][:4]
        for seed in (1, 2)
    }
    assert at[1] != at[2]
    for times in at.values():
        assert all(abs(it - (number + 1) * 2_000_000_000) <= 500_000_000 for number, it in enumerate(times))
        assert times == sorted(times)
    with pytest.raises(ValueError, match="`spread` needs `every`, and must be shorter"):
        parse(GOOD.replace("every: 2s, times: 2", "every: 2s ± 3s, times: 2"))


def test_a_fault_of_the_file_behind_its_last_line_is_refused_in_one_line():
    with pytest.raises(ScenarioError, match=r"x\.yaml:2: the file is not valid YAML: could not find expected ':'"):
        parse_scenario("name: x\nEOF\n", "x.yaml")


NINE_TIMES_NINE = "a0: &a0 [x]\n" + "".join(
    f"a{index}: &a{index} [{', '.join([f'*a{index - 1}'] * 9)}]\n" for index in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NINE_TIMES_NINE, "with its aliases written out, this has more than 1,000,000 parts"),
        ("&a\nname: x\ncluster: *a\n", "a mapping or list contains itself"),
        ("name: " + "[" * 300 + "]" * 300, "mappings and lists are nested more than 100 deep"),
        ("name: " + "{a: " * 20_000 + "1" + "}" * 20_000, "mappings and lists are nested more than 100 deep"),
        ("seed: " + "9" * 6_000, "a number of 6,000 digits is not understood"),
    ],
    ids=["aliases", "itself", "deep", "deeper", "digits"],
)
def test_a_file_that_would_take_all_time_or_memory_is_refused_in_one_line(text, message):
    with pytest.raises(ScenarioError, match=r"^hostile\.yaml:\d+: the file is not valid YAML: ") as refused:
        parse_scenario(text, "hostile.yaml")
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_is_not_utf_8_is_refused_in_one_line(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ScenarioError, match="cannot be read: it is not text in UTF-8"):
        load_scenario(path)


@pytest.mark.parametrize("policy", ["os:abort", "..x:Y"])
def test_no_function_is_called_in_the_place_of_a_policy(policy):
    assert policy in refusal("dualray.shared.policies.spread:SpreadPlacement", policy)
