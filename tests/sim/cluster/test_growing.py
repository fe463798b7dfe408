"""Nodes that join a simulation: by a fault, or launched by the autoscaler."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dualray
from dualray import runtime
from dualray.autoscaler import request_resources
from dualray.report.proof import check_directory
from dualray.shared.scenario.fault_model import parse_fault
from dualray.shared.scenario.file import ScenarioError, parse_scenario
from dualray.testing.run import load_scenario, run_scenario

SCENARIO = """
name: grows
cluster: {cpus: 2, groups: {cpu: {min: 1, max: 5, start_up: 10s, price: 3.6, %s}}}
workload: {function: a:b}
durations: {where: 4s}
config: {idle_timeout_ns: 20000000000, launch_cooldown_ns: 5000000000, launch_timeout_ns: 30000000000, %s}
"""


@dualray.remote
def where(number: int = 0) -> str:
    return dualray.get_runtime_context().get_node_id()


def alive() -> list[str]:
    return [row["NodeID"] for row in dualray.nodes() if row["Alive"]]


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    def started(group: str = "", config: str = "", **settings: Any) -> Any:
        text = SCENARIO % (group or "paid_least: 60s", config or "autoscaler_turn_ns: 100000000")
        dualray.init(mode="sim", scenario=parse_scenario(text, "grows.yaml"), **settings)
        running: Any = runtime.current_or_none()
        return running.cluster

    yield started
    dualray.shutdown()


# ---- Faults ------------------------------------------------------------------------------------------------------


def test_nodes_that_a_fault_adds_run_what_waits_for_them() -> None:
    faults = ["add 2 nodes at 10s", "remove node-2 at 20s"]
    with dualray.init(mode="sim", num_cpus=1, resources={"r": 1}, faults=faults):
        apart = dualray.util.placement_group([{"r": 1}] * 3, strategy="STRICT_SPREAD")
        assert apart.wait(timeout_seconds=30), "it waited for the nodes that were to come"
        assert sorted(alive()) == ["node-0", "node-1", "node-2"]
        dualray.util.remove_placement_group(apart)
        time.sleep(20)
        assert sorted(alive()) == ["node-0", "node-1"]
        addresses = [row["NodeManagerAddress"] for row in dualray.nodes()]
        assert len(set(addresses)) == 3


def test_a_fault_may_be_of_a_node_that_another_fault_adds_and_one_that_never_happened_is_told() -> None:
    dualray.init(mode="sim", faults=["add 1 node at 1s", "kill node-1 when where starts 9"])
    time.sleep(2)
    assert sorted(alive()) == ["node-0", "node-1"]
    with pytest.warns(UserWarning, match="never happened: kill node-1 when where starts 9: no task is called 'where'"):
        dualray.shutdown()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add 0 nodes at 1s", "the number of nodes to add must be between 1 and 10,000"),
        ("add 2 nodes at 1s for 3s", "'add nodes' does not end"),
        ("add nodes at 1s", "is not understood"),
    ],
)
def test_what_cannot_be_added_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_fault(text)


def test_faults_that_add_nodes_read_back_as_they_were_written() -> None:
    for text in ("add 1 node at 5s", "add 4 nodes of gpu when train starts 40", "drain node-3 at 20s"):
        assert str(parse_fault(text)) == text
    assert parse_fault("remove node-3 at 20s") == parse_fault("drain node-3 at 20s")


def test_a_scenario_knows_which_nodes_will_be_there() -> None:
    text = "name: a\nworkload: {function: a:b}\ncluster: {nodes: 2}\nfaults: [%s]\n"
    scenario = parse_scenario(text % "add 2 nodes at 1s, kill node-3 at 2s", "a.yaml")
    assert scenario.limits == {"infeasible": "wait"}
    with pytest.raises(ScenarioError, match="the cluster has no node 'node-4'"):
        parse_scenario(text % "add 2 nodes at 1s, kill node-4 at 2s", "a.yaml")
    with pytest.raises(ScenarioError, match="the cluster has no group 'gpu'"):
        parse_scenario(text % "add 2 nodes of gpu at 1s", "a.yaml")
    with pytest.raises(ValueError, match="the cluster has no group 'gpu'"):
        dualray.init(mode="sim", faults=["add 2 nodes of gpu at 1s"])
    dualray.shutdown()


# ---- The autoscaler ----------------------------------------------------------------------------------------------


def test_a_cluster_grows_for_a_burst_and_shrinks_after_it(start, tmp_path) -> None:
    cluster = start(decision_log=tmp_path)
    places = dualray.get([where.remote(number) for number in range(40)])
    assert len(set(places)) == 5
    assert len(alive()) == 5
    provider = cluster.provider
    assert len(provider.machines) == 4
    time.sleep(25)
    assert alive() == ["node-0"]
    assert all(machine.ended_ns is not None for machine in provider.machines.values())
    assert provider.node_ns() == sum(
        max(machine.ended_ns - machine.started_ns, 60 * 10**9) for machine in provider.machines.values()
    )
    assert provider.cost() == pytest.approx(provider.node_ns() / 1e9 * 0.001)
    dualray.shutdown()
    assert check_directory(tmp_path).is_exact, "the decisions of nodes that came later can be derived again"


def test_what_no_group_can_take_says_why(start) -> None:
    start()
    ref = where.options(num_cpus=8).remote()
    assert dualray.wait([ref], timeout=5)[0] == []
    assert "cpu: a node of this group lacks 6 CPU" in dualray.util.explain(ref)


def test_refused_and_stuck_launches_are_made_up_for(start) -> None:
    cluster = start(group="refused: 0.4, stuck: 0.3")
    assert len(dualray.get([where.remote(number) for number in range(60)])) == 60
    provider = cluster.provider
    assert provider.refused
    assert any(machine.node is None and machine.ended_ns is not None for machine in provider.machines.values())
    time.sleep(100)
    assert alive() == ["node-0"]


def test_a_quota_leaves_the_rest_waiting_and_spot_nodes_are_replaced(start) -> None:
    cluster = start(group="quota: 2, reclaimed: 30s, notice: 6s")
    assert len(dualray.get([where.remote(number) for number in range(60)])) == 60
    provider = cluster.provider
    assert set(provider.refused.values()) == {"the quota is 2"}
    assert len(provider.machines) > 2
    assert max(len([one for one in provider.machines.values() if one.ended_ns is None]), 0) <= 2


def test_a_machine_is_paid_and_counts_towards_the_quota_until_it_has_shut_down(start: Callable[..., Any]) -> None:
    """Nodes that leave are given back at once, and are gone 30 s later: until then nothing takes their place."""
    cluster = start(group="quota: 2, shut_down: 30s, paid_least: 1s")
    assert len(dualray.get([where.remote(number) for number in range(20)])) == 20
    provider = cluster.provider
    time.sleep(21)  # they have been idle for longer than idle_timeout_ns
    first = list(provider.machines.values())
    assert len(first) == 2
    assert {machine.gone_ns - machine.ended_ns for machine in first} == {30 * 10**9}
    refused = len(provider.refused)
    assert len(dualray.get([where.remote(number) for number in range(20)])) == 20
    later = [machine for machine in provider.machines.values() if machine not in first]
    assert later
    assert len(provider.refused) > refused, "the quota was still used up"
    assert all(machine.started_ns >= min(one.gone_ns for one in first) for machine in later)
    time.sleep(100)
    machines = provider.machines.values()
    assert provider.node_ns() == sum(machine.gone_ns - machine.started_ns for machine in machines)


def test_a_machine_that_shuts_down_is_paid_until_now(start: Callable[..., Any]) -> None:
    cluster = start(group="shut_down: 1h, paid_least: 1s")
    dualray.get([where.remote(number) for number in range(8)])
    provider = cluster.provider
    time.sleep(25)
    assert alive() == ["node-0"]
    before_ns, launched = provider.node_ns(), len(provider.machines)
    assert launched > 0
    time.sleep(10)
    assert provider.node_ns() - before_ns == launched * 10 * 10**9


def test_a_spot_machine_that_is_taken_away_is_not_paid_for_its_shut_down(start: Callable[..., Any]) -> None:
    cluster = start(group="reclaimed: 15s, notice: 1s, shut_down: 30s, paid_least: 1s")
    dualray.get([where.options(duration="12s", max_retries=-1).remote(n) for n in range(16)])
    ended = [machine for machine in cluster.provider.machines.values() if machine.ended_ns is not None]
    taken = [machine for machine in ended if machine.ended_ns - machine.joined_ns == 15 * 10**9]
    assert taken
    assert {machine.gone_ns - machine.ended_ns for machine in taken} == {0}
    left = [machine for machine in ended if machine not in taken]
    assert {machine.gone_ns - machine.ended_ns for machine in left} <= {30 * 10**9}, "these left in good order"


def test_the_head_that_stands_still_launches_nothing_twice(start) -> None:
    cluster = start(faults=["restart head at 5s for 8s", "pause head at 15s for 3s"])
    assert len(dualray.get([where.remote(number) for number in range(40)])) == 40
    assert len(cluster.provider.machines) == 4
    assert len(alive()) == 5


# ---- Planted bugs ------------------------------------------------------------------------------------------------

BUGS = {
    "IgnoresTheMost": "nodes, and may have",
    "ForgetsLaunches": "nodes, and may have",
    "TiresEarly": "is to leave",
    "LetsTheLastGo": "gets fewer nodes than its least",
    "InsistsOnTheRefused": "is launched though",
    "KeepsOneInReserve": "launched though nothing waits",
    "IgnoresGangs": "the driver still waits",
    "SplitsGangs": "the driver still waits",
    "TakesTheFullForFree": "the driver still waits",
}
SEEDS = 12


@pytest.mark.parametrize("name", BUGS)
def test_a_policy_that_decides_wrongly_is_found_without_any_fault(name: str) -> None:
    """Within a few seeds, of which each draws which launches are refused and how long the others take."""
    root = Path(__file__).parents[3]
    scenario = load_scenario(root / "scenarios" / "growing_swarm.yaml")
    planted = scenario.model_copy(update={"policies": {"autoscaler": f"tests.planted.scaling:{name}"}})
    for seed in range(SEEDS):
        said = repr(run_scenario(planted.model_copy(update={"seed": seed}), directory=root / "scenarios"))
        if BUGS[name] in said:
            return
    pytest.fail(f"not found in {SEEDS} seeds")


# ---- request_resources -------------------------------------------------------------------------------------------


def test_a_request_launches_before_anything_waits_and_ends_when_it_is_taken_back(start: Callable[..., Any]) -> None:
    start()
    request_resources(num_cpus=4, bundles=[{"CPU": 2}])
    time.sleep(15)
    assert len(alive()) == 3
    time.sleep(100)
    assert len(alive()) == 3, "nobody has used them for long, and the request stands"
    request_resources()
    time.sleep(40)
    assert len(alive()) == 1


def test_a_request_from_a_task_is_the_programs(start: Callable[..., Any]) -> None:
    @dualray.remote(num_cpus=0)
    def asks() -> None:
        request_resources(bundles=[{"CPU": 2}] * 2)

    start()
    dualray.get(asks.remote())
    time.sleep(100)
    assert len(alive()) == 2


def test_a_request_with_labels_launches_of_the_group_that_has_them(start: Callable[..., Any]) -> None:
    start("labels: {zone: a}")
    request_resources(bundles=[{"CPU": 1}] * 3, bundle_label_selectors=[{"zone": "a"}, {}, {"zone": "in(b)"}])
    time.sleep(20)
    assert len(alive()) == 1, "one of them has no node that could be, and a request goes whole or not at all"
    request_resources(bundles=[{"CPU": 2}] * 3, bundle_label_selectors=[{"zone": "a"}, {}, {"zone": "!b"}])
    time.sleep(20)
    assert len(alive()) == 3


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"num_cpus": 1.5}, TypeError, "num_cpus=1.5 must be an int"),
        ({"num_cpus": True}, TypeError, "num_cpus=True must be an int"),
        ({"num_cpus": -1}, ValueError, "num_cpus=-1 must be 0 to 10,000,000"),
        ({"bundles": {"CPU": 1}}, TypeError, "must be a list of dicts"),
        ({"bundles": [1]}, TypeError, "bundle 0 is 1, but must be a dict"),
        ({"bundles": [{"CPU": 1}, {"CPU": "many"}]}, TypeError, "bundle 1: "),
        ({"bundles": [{"CPU": -1}]}, ValueError, "bundle 0: "),
        ({"bundles": [{}]}, ValueError, "bundle 0, {}, requests no resources"),
        ({"bundle_label_selectors": [{"zone": "a"}]}, ValueError, "has 1 selectors for 0 bundles"),
        ({"bundles": [{"CPU": 1}], "bundle_label_selectors": {"zone": "a"}}, TypeError, "must be a list of dicts"),
        ({"bundles": [{"CPU": 1}], "bundle_label_selectors": [{"zone": 1}]}, TypeError, "must both be str"),
        (
            {"bundles": [{f"r{n}": 1} for n in range(1001)]},
            ValueError,
            "1001 different bundles, but the limit bundles_max allows at most 1000",
        ),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    start: Callable[..., Any], said: dict[str, Any], error: type[Exception], message: str
) -> None:
    start()
    with pytest.raises(error, match=re.escape(message)):
        request_resources(**said)


# ---- A quota that fails half-way -----------------------------------------------------------------------------------


def groups() -> dict[str, Any]:
    return runtime.current("groups").verbs.head_rows("autoscaler")[0]


def test_what_a_quota_leaves_of_a_gang_is_used_by_others_or_given_back(start: Callable[..., Any]) -> None:
    cluster = start("quota: 2")
    gang = dualray.util.placement_group([{"CPU": 2}] * 5, strategy="STRICT_SPREAD")
    assert not gang.wait(timeout_seconds=15)
    assert len(alive()) == 3, "two were launched, and two refused"
    assert "the quota is 2" in groups()["refused"]
    assert len(set(dualray.get([where.remote(number) for number in range(6)]))) == 3, "others use them"
    launched = len(cluster.provider.machines)
    time.sleep(200)
    assert not gang.wait(timeout_seconds=1)
    assert len(cluster.provider.machines) <= launched + 2 * 200 // 20, "they are tried again, not hoarded"
    dualray.util.remove_placement_group(gang)
    time.sleep(60)
    assert len(alive()) == 1, "what was launched was given back"
    held = [machine for machine in cluster.provider.machines.values() if machine.ended_ns is None]
    assert held == []


def test_a_head_that_is_away_while_nodes_are_launched_doubles_none_and_loses_none(start: Callable[..., Any]) -> None:
    cluster = start(faults=["pause head at 2s for 3s", "restart redis at 6s for 2s"])
    assert len(dualray.get([where.remote(number) for number in range(40)])) == 40
    launched = list(cluster.provider.machines)
    assert len(launched) == len(set(launched)) == 4
    time.sleep(60)
    assert len(alive()) == 1
    assert all(machine.ended_ns is not None for machine in cluster.provider.machines.values())


# ---- Nodes whose processes own something -----------------------------------------------------------------------------


@dualray.remote(max_retries=0)
def makes(megabytes: int) -> list[Any]:
    return [dualray.put(bytes(megabytes << 20))]


def test_a_node_whose_worker_owns_an_object_stays_until_nobody_wants_that(start: Callable[..., Any]) -> None:
    start("object_store: 64MiB")
    request_resources(num_cpus=6)
    time.sleep(15)
    assert len(alive()) == 3
    made = dualray.get([makes.options(scheduling_strategy="SPREAD").remote(1) for _ in range(3)])
    request_resources()
    time.sleep(120)
    assert len(alive()) == 3, "owners of what is wanted are not drained away"
    (row,) = runtime.current("groups").verbs.head_rows("autoscaler")
    assert len(row["kept"]) == 2
    assert all("its processes own 1 objects, which would be lost with it" in words for words in row["kept"])
    assert [len(dualray.get(inner)) for (inner,) in made] == [1 << 20] * 3
    del made
    time.sleep(120)
    assert len(alive()) == 1
    assert runtime.current("groups").verbs.head_rows("autoscaler")[0]["kept"] == []
