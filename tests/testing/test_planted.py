"""Exploration finds the bugs that are planted in copies of the package (tests/planted/bugs.py); they become small."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
import yaml

from dualray.report.traces import read_traces
from dualray.shared.scenario.fault_model import parse_fault
from dualray.shared.scenario.file import parse_scenario
from dualray.testing.run import run_scenario
from tests.planted.confirm import at_events, at_other_moments, for_real_mode, with_result, with_slow_links
from tests.planted.find import BUGS, Hunt, hunt
from tests.planted.tree import Change, run_in, tree_with

NAMED = {bug.name: bug for bug in BUGS}
FAST = ("wrong tie-break", "eviction of a pinned object")


def test_there_are_29_and_each_can_be_planted():
    assert len(NAMED) == len(BUGS) >= 29
    for bug in BUGS:
        compile(bug.change.applied(), bug.change.path, "exec")


def test_a_bug_whose_place_has_changed_says_so():
    gone = Change(path="dualray/shared/policies/retry.py", old="no such line", new="")
    with pytest.raises(ValueError, match=r"retry\.py has 0 times, not once, the text of a planted bug: 'no such line'"):
        gone.applied()


def test_every_process_of_a_tree_has_the_change():
    path = "dualray/shared/policies/retry.py"
    with tree_with({path: "FOUND = 17\n"}) as tree:
        words = ["-c", "import json, dualray.shared.policies.retry as it; print(json.dumps([it.FOUND, it.__file__]))"]
        said = run_in(tree, words, timeout_s=60)
        assert json.loads(said.stdout) == [17, str(tree / path)], said.stderr
        assert (tree / "dualray" / "py.typed").exists()
    assert not tree.exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAST)
def test_exploration_finds(name: str):
    found = hunt(NAMED[name], shrink_runs=4)
    assert found.is_found, found
    assert found.holds_without, found.file


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_exploration_finds_them_all_and_the_median_needs_at_most_two_faults():
    hunts: list[Hunt] = [hunt(bug, jobs=2) for bug in BUGS]
    assert [each.name for each in hunts if not each.is_found] == []
    assert [each.name for each in hunts if not each.holds_without] == []
    assert median(len(each.faults) for each in hunts) <= 2


def test_what_real_mode_cannot_do_is_left_out_of_a_small_scenario():
    text = "name: small\ncluster: {nodes: 3}\nworkload: {generate: chain}\nfaults: [%s]\nswarm: {most: 2}\n"
    real, changed = for_real_mode(text % "'skew node-1 by 30s at 1s', 'kill node-2 at 1s'")
    assert [str(fault) for fault in parse_scenario(real, "real").planned()] == ["kill node-2 at 1s"]
    assert changed.startswith("without 'skew node-1 by 30s at 1s': ")
    with pytest.raises(ValueError, match="real mode cannot perform 'skew node-1 by 30s at 1s'"):
        for_real_mode(text % "'skew node-1 by 30s at 1s'")


def test_other_moments_are_of_the_same_faults_and_a_function_of_the_seed():
    text = """
name: small
cluster: {nodes: 3, cpus: 2, gpus: 1}
workload: {generate: bag_of_tasks, kwargs: {tasks: 4, seconds: 0.5}}
faults: [kill worker when piece starts 3 after 200ms, lose gpu 0 of node-1 at 2s, kill node-2 when object_stored 1]
"""
    moved = [at_other_moments(text, str(seed), stretch=3.0) for seed in range(8)]
    assert moved[0] == at_other_moments(text, "0", stretch=3.0)
    assert len(set(moved)) == len(moved)
    for each in moved:
        scenario = parse_scenario(each, "moved")
        first, second, third = (parse_fault(words) for words in yaml.safe_load(each)["faults"])
        assert scenario.workload.kwargs["seconds"] == 1.5
        assert (first.kind, first.task_name, second.kind, third.node) == ("kill worker", "piece", "lose gpu", "node-2")
        assert 1 <= first.start <= 9 and 0 <= first.after_ns <= 1_200_000_000
        assert 3 * 10**9 <= (second.at_ns or 0) <= 12 * 10**9
        assert 1 <= third.start <= 5
    targets = set()
    for seed in range(20):
        elsewhere = at_other_moments(text, str(seed), gpus={"node-1": 0, "node-2": 2})
        _, second, third = (parse_fault(words) for words in yaml.safe_load(elsewhere)["faults"])
        assert second.node == "node-2"  # the only one with GPUs
        targets |= {second.gpu, third.node}
    assert targets == {0, 1, "node-1", "node-2"}
    anchors = set()
    for seed in range(80):
        within = at_other_moments(text, str(seed), stretch=2.0, tasks={"piece": [10**9], "count": [1000, 1000]})
        first, second, _ = (parse_fault(words) for words in yaml.safe_load(within)["faults"])
        assert first.task_name == "piece"  # a fault of a worker stays with its task
        anchors.add((second.task_name, second.start if second.task_name else 0))
        assert second.task_name is None or 0 <= second.after_ns <= 2 * 10**9
    assert anchors == {(None, 0), ("piece", 1), ("count", 1), ("count", 2)}


def test_a_fault_at_a_time_moves_to_the_event_before_it(tmp_path: Path):
    text = """
name: small
cluster: {nodes: [{count: 3}]}
workload: {generate: bag_of_tasks, kwargs: {tasks: 12, seconds: 0.5}}
faults: [pause node-1 at 700ms for 1s, kill worker when piece starts 3, kill node-2 at 1us]
expect: {all_faults: false, same_as_without_faults: true}
"""
    scenario = parse_scenario(text, "small")
    run_scenario(scenario, decision_log=tmp_path)
    events = read_traces(tmp_path)
    first, second, third = yaml.safe_load(at_events(text, events))["faults"]
    anchored = parse_fault(first)
    of_kind = [
        event
        for event in events
        if event.kind == anchored.event and anchored.task_name in (None, event.name) and event.time_ns <= 700_000_000
    ]
    assert anchored.at_ns is None and anchored.start == len(of_kind) > 0
    assert of_kind[-1].time_ns + anchored.after_ns == pytest.approx(700_000_000, abs=1_000)
    assert (second, third) == ("kill worker when piece starts 3", "kill node-2 at 1us")
    assert yaml.safe_load(with_slow_links(text))["faults"][1:] == yaml.safe_load(text)["faults"]
    assert (
        yaml.safe_load(with_result(text, scenario))["expect"]["result"] == run_scenario(scenario.with_faults(())).result
    )


@pytest.mark.slow
def test_a_mutant_is_what_the_tool_says(tmp_path: Path):
    pytest.importorskip("cosmic_ray")
    from tests.mutants import draw

    drawn = list(draw(3, seed=3))
    assert drawn == list(draw(3, seed=3))
    for mutant in drawn:
        assert mutant.path.startswith("dualray/shared/")
        assert f"+++ {mutant.path}" in mutant.diff and mutant.operator.startswith("core/")
        compile(mutant.text, mutant.path, "exec")
