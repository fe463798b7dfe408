"""Modelled programs: they come to their end, leave nothing, repeat to the bit, and agree with what is executed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import dualray
from dualray.cli.app import app
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.scenario.fault_model import parse_fault
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.modelled.cluster import ModelledCluster, ModelledProcess, ModelledWorker
from dualray.sim.modelled.programs import PROGRAMS, make_workload, run_workload
from dualray.sim.processes.node import Hardware
from dualray.sim.runtime import SimRuntime

SMALL = {
    "bag": {"tasks": 300},
    "chain": {"length": 20},
    "tree-reduce": {"leaves": 32},
    "shuffle": {"maps": 6, "reduces": 6},
    "map-reduce": {"maps": 6, "reduces": 6},
    "parameter-server": {"workers": 6, "steps": 3},
    "allreduce": {"members": 4, "rounds": 2},
    "rollouts": {"simulators": 6, "batch": 18, "updates": 2},
}


def nodes(count, cpus=8, speed=1.0):
    total = parse_resources(num_cpus=cpus, num_gpus=0, resources=None)
    return [Hardware(total=total, store_bytes=2 * 1024**3, speed=speed)] * count


def run(name, parameters, hardware, *, faults=(), seed=0, **limits):
    """The cluster after the run, and the run."""
    cluster = ModelledCluster(
        config=Config(**limits),
        cost_model=CostModel(),
        seed=seed,
        hardware=hardware,
        faults=[parse_fault(fault) for fault in faults],
    )
    workload = make_workload(name, parameters)
    return cluster, cluster.run(workload.program, workload.calls)


def left_over(cluster):
    """What machines still keep, when all should be gone."""
    for process in cluster.processes.values():
        if isinstance(process, ModelledProcess) and process.is_alive:
            machine = process.machine if isinstance(process.machine, Owner) else process.machine.owner
            if machine is not None:
                yield from machine.values.table
                yield from machine.tasks.records


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_comes_to_its_end_and_leaves_nothing(name):
    cluster, result = run(name, SMALL[name], nodes(5))
    assert result.failed == ""
    assert result.attempts >= result.tasks > 0
    cluster.kernel.run_until(lambda: cluster.kernel.now_ns > 10**12)  # what is under way arrives, and no more
    cluster.check_invariants()
    assert list(left_over(cluster)) == []


REPEAT = """
from tests.sim.modelled.test_modelled import SMALL, nodes, run
for name in SMALL:
    print(name, run(name, SMALL[name], nodes(5))[1].hash)
"""


def test_runs_are_the_same_under_any_hash_seed():
    hashes = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", REPEAT], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        hashes.add(done.stdout)
    [text] = hashes
    assert len(text.splitlines()) == len(SMALL)


def test_another_duration_gives_another_hash():
    assert run("bag", {"tasks": 50}, nodes(2))[1].hash != run("bag", {"tasks": 50, "seconds": 0.2}, nodes(2))[1].hash


def test_a_bag_takes_as_long_as_one_that_is_executed():
    _, modelled = run("bag", {"tasks": 200, "seconds": 0.1}, nodes(3, cpus=4))
    started = dualray.init(mode="sim", nodes=3, num_cpus=4).runtime
    assert isinstance(started, SimRuntime)
    try:
        before_s = started.now_s
        piece = dualray.remote(duration=0.1)(lambda: 1)
        assert sum(dualray.get([piece.remote() for _ in range(200)])) == 200
        executed_s = started.now_s - before_s
    finally:
        dualray.shutdown()
    assert modelled.makespan_ns / 1e9 == pytest.approx(executed_s, rel=0.02)


def test_tiny_tasks_go_several_at_a_time():
    """One kernel event for all that a worker was handed together."""
    cluster, tiny = run("bag", {"tasks": 3000, "seconds": 0.00002}, nodes(1))
    assert tiny.tasks == tiny.attempts == 3000
    assert tiny.events < 2 * 3000, "one by one it would be more than three for each"
    workers = [process for process in cluster.processes.values() if isinstance(process, ModelledWorker)]
    assert not any(isinstance(worker.machine, Owner) or worker.machine.owner for worker in workers), (
        "plain tasks leave the machine folded"
    )


def test_a_node_that_dies_costs_attempts_and_no_results():
    _, result = run("bag", {"tasks": 400}, nodes(5), faults=["kill node-3 at 0.25s"])
    assert result.failed == ""
    assert result.faults
    assert result.retries >= 1
    assert result.attempts > result.tasks == 400


def test_faults_bite_where_they_are_anchored():
    _, result = run("bag", {"tasks": 100}, nodes(3), faults=["kill worker when piece starts 30"])
    assert result.failed == ""
    assert len(result.faults) == 1
    assert result.attempts == 101


def test_a_machine_that_stands_still_goes_on():
    _, calm = run("tree-reduce", {"leaves": 32}, nodes(4))
    _, paused = run("tree-reduce", {"leaves": 32}, nodes(4), faults=["pause node-2 at 0.1s for 0.5s"])
    assert paused.failed == ""
    assert paused.makespan_ns > calm.makespan_ns


def test_objects_that_are_lost_are_made_again():
    _, result = run("tree-reduce", {"leaves": 64}, nodes(6), faults=["kill node-4 at 0.15s"])
    assert result.failed == ""
    assert result.retries > 0


def test_slow_machines_take_longer():
    _, fast = run("bag", {"tasks": 100}, nodes(2))
    _, slow = run("bag", {"tasks": 100}, nodes(2, speed=0.5))
    assert slow.makespan_ns == pytest.approx(2 * fast.makespan_ns, rel=0.05)


@pytest.mark.parametrize(
    ("fault", "takes_s"),
    [
        ("slow node-1 by 5 at 2s for 4s", 13.2),
        ("pause node-1 at 2s for 3s", 13.0),
        ("slow node-1 by 5 when piece starts 1 for 4s", 13.2),
    ],
)
def test_a_task_under_way_goes_on_as_fast_as_its_machine(fault, takes_s):
    _, result = run("bag", {"tasks": 16, "seconds": 10.0}, nodes(2), faults=[fault])
    assert result.makespan_ns / 1e9 == pytest.approx(takes_s, abs=0.05)


def test_a_demand_that_no_node_can_meet_is_refused_at_once():
    with pytest.raises(ValueError, match=r"piece can never run on this cluster: it demands 9 CPU; the nearest"):
        run_workload("bag", {"tasks": 1, "cpus": 9}, hardware=nodes(2))


def test_what_a_lease_costs_does_not_grow_with_the_cluster():
    """Python calls by placement: the policy looks at what has changed, not at all nodes."""
    events = [run("bag", {"tasks": 160, "seconds": 1.0}, nodes(count))[1] for count in (20, 160)]
    idle = [run("bag", {"tasks": 1, "seconds": 1.0}, nodes(count))[1] for count in (20, 160)]
    small, large = (busy.events - quiet.events for busy, quiet in zip(events, idle, strict=True))
    assert large <= 1.1 * small


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["bagg"], "there is no workload 'bagg'. Did you mean 'bag'?"),
        (["bag", "--taks", "5"], "workload bag has no parameter 'taks'. Did you mean 'tasks'?"),
        (["bag", "--tasks", "many"], "workload bag: tasks must be a number, not 'many'"),
        (["bag", "--tasks", "1.5"], "workload bag: tasks must be a whole number, not '1.5'"),
        (["bag", "--seconds=-1"], "workload bag: seconds must be a finite number and not negative, not '-1'"),
        (["bag", "--tasks"], "--tasks needs a value after it"),
        (["bag", "stray"], "'stray' is not an option"),
        (["bag", "--strategy", "RANDOM"], "strategy must be DEFAULT or SPREAD, not 'RANDOM'"),
        (["tree-reduce", "--fan-in", "1"], "fan_in must be 2 or more, not 1"),
        (["bag", "--faults", "kill nobody"], "kill nobody"),
        (["bag", "--scenario", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(args, words):
    done = CliRunner().invoke(app, ["sim", "workload", *args])
    assert done.exit_code == 2
    assert words in done.output.replace("\n", " ")


def test_the_command_line_shows_what_became_of_it():
    done = CliRunner().invoke(app, ["sim", "workload", "bag", "--tasks", "2e2", "--seconds=0.5", "--nodes", "3"])
    assert done.exit_code == 0, done.output
    assert "bag on 3 nodes" in done.output
    assert "event hash" in done.output
    listed = CliRunner().invoke(app, ["sim", "workloads"])
    assert listed.exit_code == 0
    assert "parameter-server" in listed.output


@pytest.mark.parametrize(
    ("fault", "retries"),
    [
        ("kill worker when piece#5 starts", 1),
        ("kill worker when piece ends 7", None),
        ("kill node-2 when task_submitted 9", None),
        ("kill worker when piece starts 2 on node-1", None),
        ("pause worker when piece starts 3 for 5s", 0),
        ("clog node-1 at 0.5s for 1s", 0),
    ],
)
def test_faults_are_anchored_as_where_tasks_are_executed(fault, retries):
    parameters = {"tasks": 40, "seconds": 0.5}
    _, result = run("bag", parameters, nodes(3), faults=[fault])
    assert (result.failed, result.never_happened) == ("", [])
    assert len(result.faults) == 1
    assert retries is None or result.retries == retries
    assert result.hash != run("bag", parameters, nodes(3))[1].hash


def test_a_fault_that_never_happens_is_said():
    fault = "kill worker when nobody starts 1"
    _, result = run("bag", {"tasks": 4, "seconds": 0.5}, nodes(2), faults=[fault])
    assert (result.faults, result.never_happened) == ([], [fault])
