"""What is left after a real run, and invariants that do not hold, are found as in a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import dualray
from dualray.shared.machines.base import Machine
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, SpaceRequested, Started
from dualray.shared.model.ids import FIRST_DRIVER, put_object_id, root_task_id, short
from dualray.shared.proof.decision_log import DecisionLog, MachineSpec
from dualray.testing.replicas import Replicas
from dualray.testing.run import load_scenario, run_scenario
from tests.planted.bugs import BUGS
from tests.planted.tree import run_in, tree_with

pytestmark = [pytest.mark.leak_check, pytest.mark.timeout(180)]


class Stays:
    def here(self) -> int:
        return 1


STAYS: Any = dualray.remote(num_cpus=0)(Stays)


def leaves_an_actor() -> int:
    """A program whose detached actor outlives it."""
    return int(dualray.get(STAYS.options(lifetime="detached", name="stays").remote().here.remote()))


def leaves_nothing() -> int:
    return int(dualray.get(STAYS.remote().here.remote()))


def _scenario(tmp_path: Path, function: str) -> Path:
    path = tmp_path / f"{function}.yaml"
    module = "tests.real.test_examination"
    path.write_text(f"name: left\ncluster: {{nodes: 2, cpus: 1}}\nworkload: {{function: '{module}:{function}'}}\n")
    return path


@pytest.mark.parametrize("mode", ["sim", pytest.param("real", marks=pytest.mark.slow)])  # it waits for the rest to go
def test_an_actor_that_is_left_is_named(tmp_path: Path, mode: str) -> None:
    outcome = run_scenario(load_scenario(_scenario(tmp_path, "leaves_an_actor")), mode=mode)
    assert outcome.result == 1
    assert outcome.leaks is not None
    assert any("the head keeps actor" in leak and "ALIVE" in leak for leak in outcome.leaks), outcome.leaks
    assert outcome.violations == ()


@pytest.mark.parametrize("mode", ["sim", "real"])
def test_nothing_is_left_of_an_actor_without_handles(tmp_path: Path, mode: str) -> None:
    outcome = run_scenario(load_scenario(_scenario(tmp_path, "leaves_nothing")), mode=mode)
    assert (outcome.result, outcome.leaks, outcome.violations) == (1, (), ())


LOST_GPU = """
name: lost
cluster: {nodes: [{cpus: 2}, {count: 2, cpus: 2, gpus: 2}]}
workload: {generate: bag_of_tasks, kwargs: {tasks: 10, seconds: 0.2, cpus: 1, gpus: 1}}
faults: [lose gpu 1 of node-1 when piece starts 4]
"""


@pytest.mark.slow
def test_a_broken_invariant_of_a_real_machine_is_found(tmp_path: Path) -> None:
    """The program succeeds all the same: no task has asked for the GPU that is counted twice."""
    path = tmp_path / "lost.yaml"
    path.write_text(LOST_GPU)
    bug = next(bug for bug in BUGS if bug.name == "double lease")
    with tree_with({bug.change.path: bug.change.applied()}) as tree:
        done = run_in(tree, ["-m", "dualray.cli", "scenario", "run", str(path), "--mode", "real"], timeout_s=150)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "units of GPU leased" in done.stdout, done.stdout


def test_logs_are_followed_while_they_are_written(tmp_path: Path) -> None:
    spec = MachineSpec(kind="node", address="node-0", node="node-0", config=Config(), store_bytes=1 << 20)
    replicas, machine = Replicas(tmp_path), cast(Machine, spec.make())
    object_id = put_object_id(root_task_id("0", 1), 0, 1)
    room = SpaceRequested(
        object_id=object_id, size_bytes=10, owner=FIRST_DRIVER, requester=FIRST_DRIVER, remakeable=False
    )
    with (tmp_path / "node-0.decisions").open("wb", buffering=0) as sink:
        log = DecisionLog(sink, spec, seed="0")
        events: list[Event] = [Started(), room]
        for number, event in enumerate(events):
            replicas.look()
            assert replicas.left(["node-0"], FIRST_DRIVER) == []
            log.record(event, number, machine.handle(event, number))
        replicas.look()
    assert replicas.left(["node-0"], FIRST_DRIVER) == [f"node-0 keeps 1 objects: {short(object_id)}"]
    assert replicas.violations() == []
