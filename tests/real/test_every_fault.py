"""Every kind of fault on real processes, and in a simulation: the same file, the same outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualray.real import faults as means
from dualray.shared.scenario.fault_model import FaultKind, parse_fault
from dualray.testing.expectations import judge
from dualray.testing.real_faults import check_plan
from dualray.testing.run import load_scenario, run_scenario

pytestmark = [pytest.mark.leak_check, pytest.mark.timeout(180)]

LIMITS = "config: {heartbeat_timeout_ns: 1000000000, suspicion_ns: 2000000000, link_patience_ns: 1000000000}"
TREE = "{generate: tree_reduce, kwargs: {leaves: 12, seconds: 0.1, size: 300000}}"
BAG = "{generate: bag_of_tasks, kwargs: {tasks: 24, seconds: 0.1, size: 400000, strategy: SPREAD}}"
SHUFFLE = "{generate: shuffle, kwargs: {maps: 8, reduces: 8, seconds: 0.1, size: 60000}}"
SAME = "{same_as_without_faults: true}"
THREE = "{nodes: 3, cpus: 2}"
CASES = {
    "a partition that ends": (THREE, SHUFFLE, ["partition node-1 when map starts 2 for 500ms"], SAME),
    "a partition in one direction": (THREE, SHUFFLE, ["partition node-1 to node-2 when map starts 2 for 500ms"], SAME),
    "a partition after which a node is dead": (THREE, TREE, ["partition node-2 when leaf starts 4 for 6s"], SAME),
    "a node that nothing reaches": (THREE, SHUFFLE, ["clog node-1 when map ends 2 for 500ms"], SAME),
    "a slow link": (THREE, SHUFFLE, ["link node-1 bandwidth 0.05 latency 20 when map starts 1"], SAME),
    "a link that loses segments": (THREE, SHUFFLE, ["link node-2 loss 0.02 when map starts 1"], SAME),
    "delays, one overtaking another": (THREE, TREE, ["link all delay 5ms jitter 10ms reorder 0.3 at 1ms"], SAME),
    "messages that come twice": (THREE, TREE, ["link all duplicate 0.5 at 1ms"], SAME),
    "an object that is lost": (THREE, TREE, ["lose object when object_stored 3"], SAME),
    "an object that has changed": (
        "{nodes: 2, cpus: 2}",
        "{function: 'scenarios.programs:check_blocks', kwargs: {blocks: 4, size: 300000}}",
        ["corrupt object when object_stored 2"],
        "{result: {whole: 3, damaged: 1}}",
    ),
    "a full store": (
        "{nodes: 3, cpus: 2, object_store: 16MiB}", BAG, ["fill node-1 to 0.9 when piece starts 2 for 1s"], SAME,
    ),
    "a full disk": (
        "{nodes: 2, cpus: 2, object_store: 4MiB}", TREE, ["fill disk of node-1 when leaf starts 2 for 1s"], SAME,
    ),
    "a node manager that can open no more files": (
        THREE, TREE, ["limit files of node-1 when leaf starts 2 for 1s"], SAME,
    ),
    "full memory": (
        "{nodes: [{cpus: 2, memory: 4GiB}, {count: 2, cpus: 2, memory: 4GiB}]}",
        BAG,
        ["fill memory of node-1 to 1.0 when piece starts 3 for 600ms"],
        SAME,
    ),
    "a GPU that is lost": (
        "{nodes: [{cpus: 2}, {count: 2, cpus: 2, gpus: 2}]}",
        "{generate: bag_of_tasks, kwargs: {tasks: 10, seconds: 0.2, cpus: 1, gpus: 1}}",
        ["lose gpu 1 of node-1 when piece starts 4"],
        SAME,
    ),
    "nodes that are added": ("{nodes: 2, cpus: 1}", BAG, ["add 1 node when piece starts 3"], SAME),
}  # fmt: skip

SLOW = {
    "a partition in one direction",
    "a node that nothing reaches",
    "a link that loses segments",
    "messages that come twice",
    "a full store",
    "full memory",
}
"""Cases that other cases resemble."""


def write(directory: Path, cluster: str, workload: str, faults: list[str], expect: str) -> Path:
    path = directory / "scenario.yaml"
    listed = "".join(f"  - {fault}\n" for fault in faults)
    path.write_text(
        f"name: case\ncluster: {cluster}\n{LIMITS}\nworkload: {workload}\nfaults:\n{listed}expect: {expect}\n"
    )
    return path


@pytest.mark.parametrize("case", [pytest.param(it, marks=pytest.mark.slow if it in SLOW else ()) for it in CASES])
def test_a_fault_has_the_same_outcome_in_both_modes(tmp_path: Path, case: str) -> None:
    scenario = load_scenario(write(tmp_path, *CASES[case]))
    reference = run_scenario(scenario.with_faults(())) if "same" in CASES[case][3] else None
    for mode in ("sim", "real"):
        outcome = run_scenario(scenario, mode=mode, directory=Path.cwd())
        verdicts = judge(scenario, outcome, reference, mode=mode)
        assert [verdict for verdict in verdicts if not verdict.holds] == [], mode
        assert len(outcome.performed) == 1, mode


@pytest.mark.slow
def test_a_node_that_reboots_with_its_store_has_its_objects_again(tmp_path: Path) -> None:
    """What only it had is not made again."""
    cluster = "{nodes: [{cpus: 0}, {cpus: 2}], object_store: 64MiB}"
    workload = "{function: 'scenarios.programs:read_much_later', kwargs: {blocks: 6, size: 300000, seconds: 12.0}}"
    fault = "reboot node-1 with its store at 3s for 500ms"
    scenario = load_scenario(write(tmp_path, cluster, workload, [fault], SAME))
    reference = run_scenario(scenario.with_faults(()), directory=Path.cwd())
    for mode in ("sim", "real"):
        outcome = run_scenario(scenario, mode=mode, directory=Path.cwd())
        verdicts = judge(scenario, outcome, reference, mode=mode)
        assert [verdict for verdict in verdicts if not verdict.holds] == [], mode
        assert outcome.counters["reconstructions"] == 0, mode
        assert len(outcome.performed) == 1


def test_a_clock_cannot_be_skewed_on_real_processes() -> None:
    assert set(means.REFUSED) == {FaultKind.SKEW_CLOCK, FaultKind.HOLD_CALL}
    with pytest.raises(
        ValueError, match=r"does not perform the fault skew clock: all programs of a machine share its clock"
    ):
        means.refuse(parse_fault("skew node-1 by 30s at 1s"))


@pytest.mark.parametrize(
    "words", ["clog node-0", "partition node-0", "partition head to node-0", "partition node-1,head"]
)
def test_head_and_first_node_are_on_one_machine(words: str) -> None:
    fault = parse_fault(f"{words} at 1s for 1s")
    with pytest.raises(ValueError, match=r"the head runs on node-0's machine"):
        check_plan([fault], ["node-0", "node-1"])


def test_a_fault_names_nodes_that_are_there() -> None:
    with pytest.raises(ValueError, match=r"the cluster has no node 'node-7'; the nodes are node-0, node-1"):
        check_plan([parse_fault("partition node-1 from node-7 at 1s for 1s")], ["node-0", "node-1"])
