"""Exploration, shrinking and the check of determinism, on scenarios whose outcome is known."""

from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from dualray.cli.app import app
from dualray.shared.scenario.fault_model import DRAWN_IF_NAMED, NEVER_DRAWN, FaultKind, parse_fault
from dualray.shared.scenario.file import dump_scenario, parse_scenario
from dualray.testing.determinism import check_determinism
from dualray.testing.expectations import judge
from dualray.testing.explore import Judge, explore
from dualray.testing.outcome import Outcome
from dualray.testing.pool import Pool
from dualray.testing.run import load_scenario, run_scenario
from dualray.testing.shrink import shrink
from dualray.testing.swarm import Ground, draw_faults, ground_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def scenario(text):
    return parse_scenario(text, "test.yaml")


BAG = """\
name: bag
cluster: {nodes: 4, cpus: 2}
workload: {generate: bag_of_tasks, kwargs: {tasks: 16, seconds: 0.5, size: 150000, strategy: SPREAD}}
swarm: {kinds: [pause node, partition, slow node, link, restart head], most: 4}
"""


@pytest.mark.parametrize(
    ("violation", "words"),
    [
        (
            "node-1: 20000 units of GPU leased and 10000 free make not 20000",
            "#: # units of GPU leased and # free make not #",
        ),
        ("object 5469fce1:0 is evicted and pinned by ['driver-1']", "object # is evicted and pinned by ['driver-#']"),
        ("store of node-2: 17 bytes counted, 16 held", "store of #"),
    ],
)
def test_the_class_of_a_failure_says_more_than_who_has_failed(violation, words):
    bag = scenario(BAG)
    with Pool(jobs=1, directory=ROOT, timeout_s=60) as pool:
        found = Judge(pool).problem(bag, Outcome(violations=(violation,)))
    assert found == (f"violation: {words}", violation)


def test_seeds_differ_and_each_is_the_same_again():
    bag = scenario(BAG.replace("kinds: [pause node, partition, slow node, link, restart head], ", ""))
    bag.swarm.kinds.extend(sorted(DRAWN_IF_NAMED))
    events = {"transfer_started": 4, "object_stored": 7}
    ground = Ground(ended_ns=10**9, starts={"f": 9, "A.g": 3}, events=events, actors=("A",))
    drawn = [draw_faults(bag, ground, seed) for seed in range(300)]
    assert drawn == [draw_faults(bag, ground, seed) for seed in range(300)]
    assert len(set(drawn)) > 250
    left_out = NEVER_DRAWN | {FaultKind.LOSE_GPU, FaultKind.FILL_MEMORY}
    assert {fault.kind for faults in drawn for fault in faults} == set(FaultKind) - left_out
    assert any(fault.keeps_store for faults in drawn for fault in faults)
    for faults in drawn:
        assert 1 <= len(faults) <= bag.swarm.most
        assert all(parse_fault(str(fault)) == fault for fault in faults)
        parse_scenario(dump_scenario(bag.with_faults(faults)), "drawn")  # which refuses what makes no sense


def test_a_program_that_survives_is_found_to_survive():
    seen = []
    found = explore(scenario(BAG), seeds=range(8), jobs=2, on_progress=lambda state: seen.append(state.seeds))
    assert found.findings == []
    assert seen == list(range(1, 9))
    assert 0 < found.faults_performed <= found.faults_planned
    assert any(name.startswith("fault: ") for name in found.coverage)


def test_a_planted_bug_is_found_made_small_and_repeated_by_one_command(tmp_path):
    planted = scenario(
        BAG.replace("pause node, partition, slow node, link, restart head", "slow node, kill worker").replace(
            "swarm:", 'policies: {retry: "tests.planted.policies:NeverRetries"}\nswarm:'
        )
    )
    found = explore(planted, seeds=range(20), stop_after=1, shrink_to=tmp_path)
    finding = found.findings[0]
    assert finding.kind == "RayTaskError(WorkerCrashedError)"
    assert len(finding.faults) == 1 and finding.faults[0].startswith("kill worker when ")
    (path,) = tmp_path.glob("*.yaml")
    assert finding.replay == f"dualray scenario run {path}"
    small = load_scenario(path)
    assert small.workload.kwargs["tasks"] < 16 and len(small.cluster.each_node()) == 1
    repeated = CliRunner().invoke(app, ["scenario", "run", str(path)])
    assert repeated.exit_code == 1 and "died: killed by SIGKILL" in repeated.output


SCRIPT = """
import dualray

dualray.init()


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Ledger:
    def __init__(self):
        self.total = 0

    def add(self, amount):
        self.total += amount
        return self.total


print("adding")
ledger = Ledger.remote()
totals = dualray.get([ledger.add.remote(1) for _ in range(4)])
assert totals[-1] == 4, "the ledger forgot something"
print(totals[-1])
"""


def test_exploring_a_script_keeps_the_error_its_line_its_values_and_the_story(tmp_path):
    (tmp_path / "led.py").write_text(SCRIPT)
    file = tmp_path / "led.yaml"
    file.write_text(
        "name: led\ncluster: {nodes: 2}\nworkload: {script: led.py}\nexpect: {same_as_without_faults: true}\n"
        "swarm: {kinds: [kill worker], most: 2}\n"
    )
    options = ["--seeds", "40", "--stop-after", "1", "--output", str(tmp_path / "failures"), "--repeat", "10%"]
    explored = CliRunner().invoke(app, ["explore", str(file), *options])
    assert explored.exit_code == 1, explored.output
    (small,) = (tmp_path / "failures").glob("*.yaml")
    repeated = CliRunner().invoke(app, ["scenario", "run", str(small)])
    assert repeated.exit_code == 1
    for said in (explored.stdout, repeated.stdout):
        assert "adding" in said
        assert 'line 20, in <module>\n      assert totals[-1] == 4, "the ledger forgot something"' in said
        assert "AssertionError: the ledger forgot something" in said
        assert "values at line 20:\n    totals = [" in said
        assert "what happened, in virtual time" in said
        assert "is lost with its worker" in said and "fault: kill worker" in said
        assert "click" not in said and "runpy" not in said
    assert explored.stdout.startswith("led: 1 of ")
    assert "AssertionError at led.py:20" in explored.stdout
    assert "each second run was the same" in explored.stdout
    assert "worker ended" not in explored.stdout.partition("coverage: ")[2]
    calm = CliRunner().invoke(app, ["explore", str(file), "--seeds", "1", "-v", "--no-shrink"])
    assert calm.stdout.startswith("led: ") and "Situations that happened" in calm.stdout


def test_a_wrong_result_is_found():
    promise = scenario(
        "name: promise\ncluster: {nodes: 2}\nworkload: {function: 'tests.testing.programs:keeps_a_promise'}\n"
        "faults: [kill worker when attempt starts 2]\nexpect: {same_as_without_faults: true}\nswarm: {most: 0}\n"
    )
    found = explore(promise, seeds=range(1))
    assert [finding.kind for finding in found.findings] == ["wrong result"]
    assert found.findings[0].problem == "its result is 1, but without faults it is 0"


def test_what_the_nodes_that_are_left_cannot_take_is_an_honest_error():
    late = scenario(
        "name: late\ncluster: {nodes: 3, cpus: 2}\nworkload: {function: 'tests.testing.programs:makes_a_group_late'}\n"
        "expect: {same_as_without_faults: true}\nswarm: {kinds: [kill node], most: 4}\n"
    )
    found = explore(late, seeds=range(20))
    assert found.findings == []
    assert found.coverage["program ended with PlacementGroupUnschedulableError"][0] > 3


def test_a_run_that_does_not_end_is_ended_and_said_so():
    spins = scenario("name: spins\nworkload: {function: 'tests.testing.programs:spins'}\n")
    with pytest.raises(
        RuntimeError, match="spins fails without any fault: the run did not end within 3 s of real time"
    ):
        explore(spins, seeds=range(1), seed_timeout_s=3)


def test_what_is_the_same_again_is_no_finding():
    seen = []
    found = explore(
        scenario(BAG), seeds=range(8), jobs=2, repeat=Fraction(1, 4), on_progress=lambda state: seen.append(state.seeds)
    )
    assert (found.findings, found.seeds, found.repeated, found.differing) == ([], 8, 2, 0)
    assert len(seen) == 10


def test_who_is_run_again_is_the_same_wherever_an_exploration_begins():
    quick = scenario("name: quick\ncluster: {nodes: 2}\nworkload: {generate: bag_of_tasks, kwargs: {tasks: 1}}\n")
    ranges = (range(4), range(1, 2), range(2, 3))
    assert [explore(quick, seeds=seeds, repeat=Fraction(1, 2)).repeated for seeds in ranges] == [2, 0, 1]


@pytest.mark.parametrize(
    ("program", "where", "says"),
    [
        ("depends_on_the_hash_seed", "lineage", "driver-1 at "),
        ("depends_on_the_hash_seed_in_its_result_only", "result", '  first run:  {"result": [0, ['),
        ("depends_on_the_runs_before", "result", 'the program at its end, result:\n  first run:  {"result": '),
    ],
)
def test_a_seed_that_is_not_the_same_again_is_found(tmp_path, program, where, says):
    planted = scenario(
        f"name: planted\ncluster: {{nodes: 2}}\nworkload: {{function: 'tests.testing.programs:{program}'}}\n"
        "swarm: {most: 2}\n"
    )
    found = explore(planted, seeds=range(3), repeat=Fraction(1, 2), shrink_to=tmp_path)
    assert (found.seeds, found.repeated, found.differing) == (3, 2, 2)
    assert {(finding.seed, finding.kind) for finding in found.findings if finding.is_of_repetition} == {
        (seed, f"its repetition differs: {where}") for seed in (0, 2)
    }
    differing = next(finding for finding in found.findings if finding.is_of_repetition)
    assert differing.problem.startswith("the first event that differs: ") and says in differing.problem
    path = tmp_path / "planted-seed-0-repeated.yaml"
    assert differing.replay == f"dualray scenario check {path}"
    assert tuple(str(fault) for fault in load_scenario(path).planned()) == differing.faults
    again = check_determinism(load_scenario(path))
    assert again.where == (where if "hash_seed" in program else None), "in new processes nothing has run before"


def test_a_repetition_that_comes_to_no_end_differs():
    planted = scenario("name: hash\nworkload: {function: 'tests.testing.programs:spins_under_a_hash_seed'}\n")
    found = explore(planted, seeds=range(1), seed_timeout_s=8, repeat=Fraction(1))
    assert [finding.kind for finding in found.findings] == ["its repetition differs: end"]
    assert "the second run: the run did not end within 8 s of real time" in found.findings[0].problem


def test_a_run_that_is_recorded_is_the_same_as_one_that_is_not(tmp_path):
    """What exploration repeats it records: that says something of the other seeds only if nobody takes note of it."""
    mixed = load_scenario(ROOT / "scenarios" / "mixed_swarm.yaml")
    ground = ground_of(run_scenario(mixed))
    for seed in range(4):
        faulty = mixed.with_faults(draw_faults(mixed, ground, seed))
        plain, recorded = run_scenario(faulty), run_scenario(faulty, decision_log=tmp_path / str(seed))
        for outcome in (plain, recorded):
            del outcome.counters["messages"]  # of those that change nothing, only a recorded run sends all
        assert plain == recorded


def test_shrinking_takes_away_what_is_not_needed():
    faults = [f"kill node-{number} at {number}.25s" for number in (1, 2, 3)] + ["pause node-2 at 1s for 40s"]
    big = scenario(BAG + f"faults: {faults}\n")

    def fails(candidate):
        kinds = [fault.kind for fault in candidate.planned()]
        return FaultKind.PAUSE_NODE in kinds and candidate.workload.kwargs["tasks"] >= 5

    small = shrink(big, fails)
    assert [str(fault) for fault in small.planned()] == ["pause node-2 at 1s for 1s"]
    assert small.workload.kwargs["tasks"] == 5
    assert len(small.cluster.each_node()) == 3


def test_a_scenario_is_the_same_in_two_processes():
    found = check_determinism(scenario(BAG + "faults: [kill node-2 when piece starts 5, link all jitter 5ms at 1ms]\n"))
    assert found.divergence is None
    rows = {row.name: row for row in found.subsystems}
    assert rows.keys() >= {"clock", "scheduler", "store", "lineage", "membership", "rng", "trace", "result"}
    assert all(row.is_equal and row.events for row in rows.values())


def test_the_first_event_that_differs_is_named():
    found = check_determinism(
        scenario("name: hash\nworkload: {function: 'tests.testing.programs:depends_on_the_hash_seed'}\n")
    )
    assert found.divergence is not None
    assert "the first event that differs: driver-1 at " in found.divergence
    assert "lineage:\n  first run:  TaskSubmitted of 'task-" in found.divergence
    assert not {row.name: row for row in found.subsystems}["lineage"].is_equal


def test_a_result_that_differs_is_named():
    program = "tests.testing.programs:depends_on_the_hash_seed_in_its_result_only"
    found = check_determinism(scenario(f"name: result\nworkload: {{function: '{program}'}}\n"))
    assert found.divergence is not None and "the program" in found.divergence
    assert [row.name for row in found.subsystems if not row.is_equal] == ["clock", "result"]


def test_expectations_that_fail_say_what_was_found():
    strict = scenario(BAG + "expect: {result: [1], makespan: {max: 1ms}, counters: {retries: {min: 3}}}\n")
    verdicts = {verdict.what: verdict for verdict in judge(strict, run_scenario(strict))}
    assert verdicts["ending"].holds and verdicts["invariants"].holds
    assert [what for what, verdict in verdicts.items() if not verdict.holds] == ["result", "makespan", "retries"]
    assert (verdicts["retries"].expected, verdicts["retries"].found) == ("at least 3", "0")


# ---- The command line ----------------------------------------------------------------------------------------------


def invoke(*words):
    return CliRunner().invoke(app, list(words))


def test_the_command_line_lists_checks_and_describes_scenarios():
    listed = invoke("scenario", "list")
    assert listed.exit_code == 0 and "zombie_node.yaml" in listed.output.replace("\n", "")
    assert '"$schema"' in invoke("scenario", "schema").output
    checked = invoke("scenario", "check", "scenarios/incast.yaml")
    assert checked.exit_code == 0 and "equal" in checked.output


def test_what_the_command_line_cannot_use_it_refuses_with_one_line(tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: x\nworkload: {generate: bag_of_taks}\n")
    for command in ("run", "check"):
        refused = invoke("scenario", command, str(wrong))
        assert refused.exit_code == 2
        said = refused.stderr.replace("\n", "")
        assert "wrong.yaml:2: workload: there is no workload 'bag_of_taks'. Did you mean 'bag_of_tasks'?" in said
    assert invoke("scenario", "run", str(tmp_path / "none.yaml")).exit_code == 2
    assert invoke("explore", str(wrong)).exit_code == 2


def test_exploring_says_how_many_seeds_were_the_same_again(tmp_path):
    path = tmp_path / "bag.yaml"
    path.write_text(BAG)
    explored = invoke("explore", str(path), "--seeds", "3", "--repeat", "50%")
    assert explored.exit_code == 0 and "2 of 3 seeds run again: each second run was the same" in explored.output
    assert "run again" not in invoke("explore", str(path), "--seeds", "1", "--repeat", "0").output
    path.write_text("name: hash\nworkload: {function: 'tests.testing.programs:depends_on_the_hash_seed'}\n")
    explored = invoke("explore", str(path), "--seeds", "2", "--output", str(tmp_path / "failures"))
    assert explored.exit_code == 1 and "1 of 2 seeds run again: 1 differ" in explored.output
    assert "seed 0: its repetition differs: lineage" in explored.output
    assert "dualray scenario check" in explored.output
    refused = invoke("explore", str(path), "--repeat", "5")
    assert refused.exit_code == 2 and "--repeat: '5' must be between 0% and 100%" in refused.stderr


def test_a_generated_workload_runs_in_real_mode_too(tmp_path):
    path = tmp_path / "real.yaml"
    path.write_text("name: real\nworkload: {generate: tree_reduce, kwargs: {leaves: 4, seconds: 0.01, size: 200000}}\n")
    simulated = load_scenario(path)
    outcome = run_scenario(simulated)
    real = run_scenario(simulated, mode="real")
    assert outcome.succeeded and real.succeeded and outcome.result == real.result


def test_a_swarm_that_can_draw_nothing_is_said(tmp_path):
    path = tmp_path / "bag.yaml"
    path.write_text(BAG.replace("[pause node, partition, slow node, link, restart head]", "[lose gpu]"))
    shown = CliRunner().invoke(app, ["explore", str(path), "--seeds", "2", "--repeat", "0"])
    assert shown.exit_code == 0
    assert "dualray chose no faults" in shown.output


def test_every_failing_seed_has_a_line_that_repeats_it(tmp_path, monkeypatch):
    path = tmp_path / "broken.yaml"
    path.write_text(
        BAG.replace("pause node, partition, slow node, link, restart head", "kill worker").replace(
            "swarm:", 'policies: {retry: "tests.planted.policies:NeverRetries"}\nswarm:'
        )
    )
    found = explore(load_scenario(path), seeds=range(10), stop_after=3, shrink_to=tmp_path / "failures")
    kinds = [finding.kind for finding in found.findings]
    assert [bool(it.replay) for it in found.findings] == [kind not in kinds[:at] for at, kind in enumerate(kinds)]
    assert len(set(kinds)) < len(kinds)
    shown = CliRunner().invoke(
        app, ["explore", str(path), "--seeds", "10", "--stop-after", "2", "--no-shrink", "--repeat", "0"]
    )
    first, second = found.findings[:2]
    assert f"dualray explore {path} --first {first.seed} --seeds 1" in shown.output
    assert f"1 more seed failed in the same way: {second.seed}" in shown.output
    assert "stopped after 2 failing seeds (--stop-after 2)" in shown.output
