"""Replays: as the simulation that was recorded; on other clusters; and what is refused."""

from __future__ import annotations

import html
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dualray as ray
from dualray import whatif
from dualray.cli.app import app
from dualray.sim.kernel.cores import Cores
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.replay.model_process import ModelProcess
from dualray.testing.workloads import workload
from dualray.whatif.answers import verdicts_of
from dualray.whatif.page import _series as page_series
from dualray.whatif.page import page
from dualray.whatif.predicted import Trace
from tests.whatif.programs import everything

COMMAND = [sys.executable, "-m", "dualray", "predict"]
OWN = "tests.whatif.programs:LastNodeFirst"


def record(path: Path, name: str, nodes: int, kwargs: dict[str, Any]) -> float:
    """Run a workload in simulation, and record it; seconds of virtual time."""
    started: Any = ray.init(mode="sim", nodes=nodes, num_cpus=2, record=path)
    try:
        began_s = started.now_s
        workload(name, kwargs)()
        return float(started.now_s - began_s)
    finally:
        ray.shutdown()


SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("bag_of_tasks", {"tasks": 40, "spread": 0.5}),
    ("chain", {"length": 10}),
    ("tree_reduce", {"leaves": 16}),
    ("shuffle", {"maps": 6, "reduces": 6}),
    ("parameter_server", {"workers": 4, "steps": 3}),
    ("nested", {"depth": 2}),
    ("rollouts", {"batch": 8, "simulators": 2, "updates": 2}),
    ("mixed", {"tasks": 12}),
]
PARTS_OF_MIXED = ("bag_of_tasks", "chain", "nested", "tree_reduce")
"""`mixed` does what these do."""
MARKED_SHAPES = [
    pytest.param(name, kwargs, id=name, marks=pytest.mark.slow if name in PARTS_OF_MIXED else ())
    for name, kwargs in SHAPES
]


@pytest.mark.parametrize(("name", "kwargs"), MARKED_SHAPES)
def test_a_replay_takes_as_long_as_the_simulation_of_that_cluster(tmp_path, name, kwargs):
    record(tmp_path / "one.parquet", name, 1, kwargs)
    for nodes in (1, 3):
        simulated_s = record(tmp_path / "real.parquet", name, nodes, kwargs)
        # A simulation has a core for each worker, also for those that have waited and go on beside others.
        [row] = whatif.predict(tmp_path / "one.parquet", nodes=[nodes], cpus=[2], cores=99, seeds=1, jobs=1).rows
        assert not row.lacks
        assert row.makespan_s == pytest.approx(simulated_s, rel=0.1)


@pytest.mark.parametrize(("name", "kwargs"), MARKED_SHAPES)
def test_short_cuts_change_nothing(tmp_path, monkeypatch, name, kwargs):
    record(tmp_path / "run.parquet", name, 1, kwargs)
    found = []
    for takes_them in (True, False):
        monkeypatch.setattr(ModelProcess, "takes_short_cuts", takes_them)
        runs = whatif.predict(tmp_path / "run.parquet", nodes=[1, 3], cpus=[2], seeds=2, jobs=1).runs
        found.append([replayed for _, _, replayed in runs])
    assert found[0] == found[1]


def test_memory_bounds_what_runs_at_once_in_a_replay_too(tmp_path):
    ray.init(mode="sim", num_cpus=4, memory="5GiB", record=tmp_path / "run.parquet")
    task = ray.remote(memory="2GiB", duration=1.0)(abs)
    ray.get([task.remote(x) for x in range(8)])
    ray.shutdown()
    rows = whatif.predict(tmp_path / "run.parquet", nodes=[1, 2], cores=99, seeds=1, jobs=1).rows
    assert [round(row.makespan_s) for row in rows] == [4, 2]


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("bag") / "bag.parquet"
    record(path, "bag_of_tasks", 1, {"tasks": 64, "spread": 0.5, "size": 300_000})
    return whatif.load(path)


def test_a_sweep_finds_knee_and_cheapest(bag, tmp_path):
    seen = []
    found = whatif.predict(
        bag, nodes=[1, 2, 4, 16, 40], cpus=[2], seeds=2, jobs=2, price=1.0, on_done=lambda *state: seen.append(state)
    )
    assert len(found.rows) == 5
    assert seen[-1] == (10, 10)
    times = [row.makespan_s for row in found.rows]
    assert times[0] > 1.8 * times[1] > 3 * times[2]
    for row in found.rows:
        assert row.low_s <= row.makespan_s <= row.high_s
        assert row.cost == pytest.approx(row.configuration.nodes * row.makespan_s / 3600)
        assert 0 < row.utilisation <= 1
    assert found.rows[0].low_s < found.rows[0].high_s  # seeds draw
    knee = found.knee()
    assert knee is not None
    assert knee.configuration.nodes in (4, 16)
    factor = 40 / knee.configuration.nodes
    assert verdicts_of(found, None)[0].endswith(
        f"; {factor:.3g} times as many CPUs take {found.rows[-1].makespan_s:.4g} s."
    )
    scaling = replace(found, rows=found.rows[:3])
    assert scaling.knee() is None
    assert verdicts_of(scaling, None)[0].startswith("No knee: more CPUs still make the program faster. Fastest: 4 ")
    deadline_s = found.rows[1].high_s
    cheapest = found.cheapest(deadline_s)
    assert cheapest is not None
    assert cheapest.cost == min(row.cost or 0 for row in found.possible if row.high_s <= deadline_s)
    assert found.cheapest("1ms") is None
    assert found.to_arrow().num_rows == 5
    assert list(found.to_pandas()["nodes"]) == [1, 2, 4, 16, 40]
    found.write_page(tmp_path / "page.html", deadline="10min")
    text = (tmp_path / "page.html").read_text()
    assert "Cheapest within 10min" in text
    assert "Knee" in text
    assert "http-equiv" in text


def test_the_same_sweep_gives_the_same_numbers(bag):
    asked: dict[str, Any] = {"nodes": [1, 3], "cpus": [2], "seeds": 2}
    alone, together = (whatif.predict(bag, jobs=jobs, **asked).rows for jobs in (1, 2))
    assert alone == together


def test_a_policy_of_ones_own_is_compared_with_ours(tmp_path):
    record(tmp_path / "run.parquet", "bag_of_tasks", 1, {"tasks": 4})
    found = whatif.predict(
        tmp_path / "run.parquet", nodes=[8], cpus=[2], policy=["hybrid", "spread", OWN], seeds=1, jobs=1
    )
    runs = {config.policy: replayed.by_node for config, _, replayed in found.runs}
    assert all(not row.lacks for row in found.rows)
    assert runs[OWN].keys() == {"node-0", "node-6", "node-7"}  # what the node leaves to the head goes to the last
    assert runs["hybrid"].keys() == {"node-0", "node-1", "node-2", "node-3"}


@pytest.mark.parametrize("mode", ["sim", "real"])
def test_the_same_policy_runs_in_both_modes(mode):
    ray.init(mode=mode, num_cpus=1, limits={"placement_policy": OWN})
    try:
        assert ray.get([ray.remote(lambda x: x + 1).remote(number) for number in range(4)], timeout=20) == [1, 2, 3, 4]
    finally:
        ray.shutdown()


def test_a_policy_that_fails_is_named_with_the_place(tmp_path):
    record(tmp_path / "run.parquet", "bag_of_tasks", 1, {"tasks": 4})
    [row] = whatif.predict(tmp_path / "run.parquet", policy=["tests.whatif.programs:Careless"], seeds=1, jobs=1).rows
    assert "with the policy tests.whatif.programs:Careless the replay has failed at programs.py:" in row.lacks
    assert "KeyError: 'no-such-node'" in row.lacks


def test_a_small_store_spills_or_evicts_or_goes_in_circles(tmp_path):
    record(tmp_path / "run.parquet", "tree_reduce", 1, {"leaves": 16, "size": 4_000_000})
    stores, evictions = ["24MiB", "40MiB", "1GiB"], ["spill", "lru"]
    found = whatif.predict(tmp_path / "run.parquet", store=stores, eviction=evictions, seeds=1, jobs=1)
    by = {(row.configuration.store_bytes >> 20, row.configuration.eviction): row for row in found.rows}
    assert by[40, "spill"].spilled_bytes > 0
    assert by[40, "spill"].attempts == 32
    assert by[40, "lru"].evictions > 0
    assert by[40, "lru"].attempts > 32
    assert by[40, "lru"].remade_s > 0
    assert by[1024, "spill"].spilled_bytes == by[1024, "lru"].evictions == 0
    assert "lost each time before" in by[24, "lru"].lacks
    assert len(found.possible) == 5


def test_a_slower_network_takes_longer(tmp_path):
    record(tmp_path / "run.parquet", "shuffle", 1, {"size": 2_000_000})
    found = whatif.predict(tmp_path / "run.parquet", nodes=[4], network=["1Gbps", "10Gbps"], seeds=1, jobs=1)
    slow, fast = found.rows
    assert slow.moved_bytes > 0
    assert slow.makespan_s > 1.2 * fast.makespan_s


def test_faults_of_a_scenario_cost_time(bag, tmp_path):
    scenario = tmp_path / "faults.yaml"
    scenario.write_text(
        "name: faults\ncluster: {nodes: 3}\nworkload: {generate: bag_of_tasks}\n"
        "faults:\n  - {at: 300ms, kill: node-2}\n"
        "  - {when: {task_started: piece, index: 5}, kill: worker}\n"
    )
    found = whatif.predict(bag, nodes=[3, 1], cpus=[2], faults=["", scenario], seeds=1, jobs=1)
    plain, hurt, _, too_small = found.rows
    assert not hurt.lacks
    assert hurt.attempts > plain.attempts
    assert hurt.remade_s > 0
    assert hurt.makespan_s > plain.makespan_s
    assert "the cluster has no node 'node-2'" in too_small.lacks


@pytest.mark.parametrize(
    ("fault", "takes_s"),
    [("slow node-1 by 5 at 2s for 4s", 13.2), ("pause node-1 at 2s for 3s", 13.0), ("slow node-1 by 2 at 8s", 12.0)],
)
def test_a_task_under_way_goes_on_as_fast_as_its_machine(tmp_path, fault, takes_s):
    scenario = tmp_path / "pace.yaml"
    scenario.write_text(f"name: pace\ncluster: {{nodes: 2}}\nworkload: {{generate: bag_of_tasks}}\nfaults: [{fault}]\n")
    record(tmp_path / "run.parquet", "bag_of_tasks", 2, {"tasks": 4, "seconds": 10.0})
    found = whatif.predict(tmp_path / "run.parquet", nodes=[2], cpus=[2], faults=[scenario], seeds=1, jobs=1)
    assert found.rows[0].makespan_s == pytest.approx(takes_s, abs=0.1)


def test_a_cluster_in_which_the_program_cannot_run_says_what_lacks(tmp_path):
    record(tmp_path / "run.parquet", "bag_of_tasks", 1, {"tasks": 4, "cpus": 2, "size": 30_000_000})
    found = whatif.predict(tmp_path / "run.parquet", cpus=[1, 2], store=["8MiB", "1GiB"], seeds=1, jobs=1)
    lacks = {(row.configuration.cpus, row.configuration.store_bytes): row.lacks for row in found.rows}
    assert "piece can never run: it demands 2 CPU" in lacks[1, 2**30]
    assert "lacks 1 CPU" in lacks[1, 2**30]
    assert "use a larger store" in lacks[2, 2**23]
    assert not lacks[2, 2**30]
    assert len(found.possible) == 1


@pytest.fixture(scope="module")
def everything_recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("all") / "run.parquet"
    ray.init(mode="sim", num_cpus=2, record=path)
    try:
        everything("sim")
    finally:
        ray.shutdown()
    return path


def test_the_command_shows_a_table_and_answers(everything_recorded, tmp_path):
    done = subprocess.run(
        [*COMMAND, everything_recorded, "--nodes", "1,2", "--cpus", "2,4", "--price", "2", "--deadline", "1min"]
        + ["--policy", f"hybrid,{OWN}", "--report", tmp_path / "page.html", "--seeds", "2"]
        + ["--causes", "--what-would-help", "--memory-needs"],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert "Cheapest within 1min" in done.stdout
    assert done.stdout.count(OWN) >= 4
    assert "Causes of the makespan on 1 x " in done.stdout
    assert "The smallest store that does not spill: " in done.stdout
    assert "│ compute " in done.stdout
    assert "│ one more node " in done.stdout
    assert (tmp_path / "page.html").stat().st_size > 1_000_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "best"], "policy 'best' is unknown: use one of hybrid, spread, locality"),
        (["--policy", "no.such:Policy"], "module 'no.such' cannot be imported"),
        (["--policy", "tests.whatif.programs:Missing"], "has no 'Missing'"),
        (["--policy", "tests.whatif.programs:NoPolicy"], "has no method 'choose'"),
        (["--cold-start", "soon"], "cold_start: 'soon' is not understood"),
        (["--eviction", "fifo"], "eviction policy 'fifo' is unknown"),
        (["--nodes", "two"], "nodes: 'two' is not a whole number"),
        (["--nodes", "0"], "nodes: '0' must be a whole number from 1"),
        (["--store", "1 gallon"], "store: '1 gallon' is not understood"),
        (["--network", "10GiB"], "network: '10GiB' is a size"),
        (
            ["--faults", "kill node-1 at 2s"],
            "--faults 'kill node-1 at 2s' is a fault, but `dualray predict` reads faults only from files",
        ),
        (["--fault-files", "missing.yaml"], "the file 'missing.yaml' with faults cannot be read"),
        (["--strict"], "strict=True needs a calibration"),
        (["--deadline", "soon"], "--deadline: 'soon' is not understood"),
        (["--calibration", "missing.yaml"], "calibration 'missing.yaml' cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(everything_recorded, arguments, words):
    done = CliRunner().invoke(app, ["predict", str(everything_recorded), *arguments])
    assert done.exit_code == 2
    refusals = [line for line in done.stderr.splitlines() if line.startswith("dualray: ")]
    assert len(refusals) == 1
    assert words in refusals[0]
    assert "Traceback" not in done.stderr


def test_one_row_fits_and_the_earlier_name_of_an_option_still_works(everything_recorded):
    arguments = ["--nodes", "2", "--cpus", "2", "--seeds", "1", "--faults", "none"]
    done = subprocess.run(
        [*COMMAND, everything_recorded, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    assert "`dualray predict` has renamed --faults" in done.stderr
    [row] = [line for line in done.stdout.splitlines() if line.startswith("│")]
    assert row.startswith("│ 2 x 2 CPUs ")
    assert "Also: " in done.stdout


def test_cores_are_shared_fairly():
    kernel = Kernel()
    ended: dict[str, int] = {}

    def run(cores: Cores, name: str, work_ns: int, weight: float = 1.0) -> Any:
        return cores.run(work_ns, weight, lambda: ended.__setitem__(name, kernel.now_ns))

    cores = Cores(kernel.calendar, 2)
    for name in "abcd":
        run(cores, name, 1_000_000)
    run(cores, "sleeper", 1_500_000, 0.0)
    lost = run(cores, "lost", 9_000_000)
    kernel.call_after(500_000, cores.cancel, lost)
    kernel.run_until(lambda: False)
    assert "lost" not in ended
    assert ended["sleeper"] == 1_500_000  # what sleeps needs no core
    # Five shared two cores for 0.5 ms, then four did: 0.2 ms of work are done, and 0.8 ms take 1.6 ms.
    assert all(ended[name] == pytest.approx(2_100_000, abs=2) for name in "abcd")
    ended.clear()
    slowed = Cores(kernel.calendar, 4, slowdown=0.1)
    began_ns = kernel.now_ns
    run(slowed, "a", 1_000_000)
    run(slowed, "b", 1_000_000)
    kernel.run_until(lambda: False)
    assert ended["a"] - began_ns == pytest.approx(1_100_000, abs=2)


@pytest.mark.parametrize(("name", "kwargs"), SHAPES, ids=[name for name, _ in SHAPES])
def test_a_critical_path_is_as_long_as_the_makespan(tmp_path, name, kwargs):
    record(tmp_path / "one.parquet", name, 1, kwargs)
    found = whatif.predict(tmp_path / "one.parquet", nodes=[2], cpus=[2], seeds=1, jobs=1)
    [row] = found.rows
    path = found.critical_path(row)
    assert path[0].began_s == pytest.approx(0.0, abs=1e-9)
    assert path[-1].ended_s == pytest.approx(row.makespan_s)
    assert all(before.ended_s == after.began_s for before, after in pairwise(path))


def test_the_critical_path_of_a_chain_is_the_chain(tmp_path):
    record(tmp_path / "chain.parquet", "chain", 1, {"length": 10})
    found = whatif.predict(tmp_path / "chain.parquet", nodes=[2], cpus=[2], seeds=1, jobs=1)
    path = found.critical_path(found.rows[0])
    computing = [stretch for stretch in path if not stretch.waits and stretch.name != "the driver"]
    assert len(computing) == 11, "the first link and ten more"
    found.write_page(tmp_path / "page.html")
    assert "Critical path of 2 x 2 CPUs" in (tmp_path / "page.html").read_text()


def test_a_policy_that_cannot_be_made_is_refused_and_locality_can(tmp_path):
    record(tmp_path / "chain.parquet", "chain", 1, {"length": 2})
    with pytest.raises(ValueError, match=r"'tests.whatif.programs:NeedsArguments' cannot be created without arguments"):
        whatif.predict(tmp_path / "chain.parquet", policy=["tests.whatif.programs:NeedsArguments"])
    [row] = whatif.predict(tmp_path / "chain.parquet", nodes=[2], policy=["locality"], seeds=1, jobs=1).rows
    assert not row.lacks


def test_the_page_opens_with_the_answer_and_has_a_line_for_each_number_of_nodes(everything_recorded):
    found = whatif.predict(everything_recorded, nodes=[1, 2], cpus=[1, 2], seeds=1, jobs=1)
    answer = verdicts_of(found, None)[0]
    text = page(found)
    assert text.index(f"<p>{html.escape(answer)}</p>") < text.index("</header>")
    assert [sorted({row.configuration.nodes for row in rows}) for rows in page_series(found.rows).values()] == [
        [1],
        [2],
    ]
    assert 'name="viewport"' in text
    assert '"displayModeBar": false' in text
