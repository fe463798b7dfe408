"""Files of the availability of spot machines: what follows from them, and scenarios that name one."""

from __future__ import annotations

import pytest

from dualray.shared.scenario.fault_model import FaultKind
from dualray.shared.scenario.file import ScenarioError, dump_scenario, parse_scenario
from dualray.shared.scenario.scenario import Scenario
from dualray.shared.scenario.spot import parse_spot

TRACE = '{"metadata": {"gap_seconds": 10}, "data": [2, 2, 0, 2], "prices": [1, 3, 9, 2]}'
HOUR_NS = 3_600 * 10**9


def read(text: str, trace: str = TRACE) -> Scenario:
    """A scenario of three nodes with these faults."""
    files = {"spot.json": trace}
    return parse_scenario(f"{HEAD}{text}\n", "spot.yaml", files.__getitem__)


HEAD = "name: spot\ncluster: {nodes: 3}\nworkload: {generate: tree_reduce}\n"


def test_a_scenario_takes_its_faults_from_a_file_of_availability():
    scenario = read("faults: {trace: spot.json, format: skypilot-spot}")
    trace = parse_spot(TRACE, "spot.json")
    for seed in range(8):
        of_seed = scenario.model_copy(update={"seed": seed})
        assert of_seed.planned() == trace.faults(3, seed)
    starts = {trace.start(3, seed) for seed in range(30)}
    assert starts == {0, 1, 3}
    first = next(seed for seed in range(30) if trace.start(3, seed) == 1)
    faults = trace.faults(3, first)
    assert [(it.node, it.kind, it.at_ns, it.for_ns) for it in faults] == [
        ("node-1", FaultKind.REBOOT_NODE, 10 * 10**9, 10 * 10**9),
        ("node-2", FaultKind.REBOOT_NODE, 10 * 10**9, 10 * 10**9),
    ]


def test_it_may_be_one_of_a_list_and_is_written_as_the_faults_that_it_stands_for():
    scenario = read("faults: [kill node-1 at 2s, {trace: spot.json, format: skypilot-spot}]")
    again = parse_scenario(dump_scenario(scenario), "again.yaml")
    assert again.planned() == scenario.planned()
    assert len(again.planned()) >= 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("faults: {trace: spot.json}", "faults from a trace take only the keys trace and format"),
        (
            "faults: {trace: spot.json, format: skypilot-spot, at: 3s}",
            "faults from a trace take only the keys trace and format",
        ),
        ("faults: {trace: spot.json, format: other}", "skypilot-spot"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(text, words):
    with pytest.raises(ScenarioError, match=words) as caught:
        read(text)
    assert "spot.yaml:4" in str(caught.value)


def test_a_file_that_cannot_be_used_is_refused_with_the_place_that_names_it():
    text = "faults: {trace: spot.json, format: skypilot-spot}"
    with pytest.raises(ScenarioError, match=r"spot.yaml:4.*one for each number in data"):
        read(text, '{"metadata": {"gap_seconds": 10}, "data": [2, 2], "prices": [1]}')
    with pytest.raises(
        ScenarioError,
        match=r"the trace never has 2 spot machines at the same time, but at most 1\. Give the cluster at most 2",
    ):
        read(text, '{"metadata": {"gap_seconds": 10}, "data": [1, 0]}')
    with pytest.raises(
        ScenarioError, match=r"'spot.json' must be the name of a file in the same directory as the scenario"
    ):
        parse_scenario(f"{HEAD}{text}\n", "spot.yaml")


def test_machines_cost_what_they_cost_at_the_time_while_they_are_there():
    trace = parse_spot('{"metadata": {"gap_seconds": 3600}, "data": [2, 0, 1], "prices": [1, 3, 2]}', "spot.json")
    seed = next(seed for seed in range(30) if trace.start(3, seed) == 0)
    assert trace.cost(3, seed, HOUR_NS // 2) == pytest.approx(2 * 1 * 0.5)
    assert trace.cost(3, seed, 2 * HOUR_NS) == pytest.approx(2.0)  # in the second hour there was none
    assert trace.cost(3, seed, 4 * HOUR_NS) == pytest.approx(2.0 + 2 * 2.0)  # the last tick goes on
