"""A scenario with an error in it: one line, that a newcomer understands, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dualray.cli.app import app
from dualray.shared.scenario.file import dump_scenario, json_schema, parse_scenario
from dualray.testing.expectations import judge
from dualray.testing.run import run_scenario

GOOD = """\
name: good
cluster: {nodes: 4, cpus: 2}
workload: {generate: bag_of_tasks, kwargs: {tasks: 5}}
faults:
  - {at: 2ms, reboot: node-1, back_after: 1s}
expect:
  makespan: {max: 60s}
"""

BAD = {
    "an unknown key": ("cpus: 2", "cpu: 2", "2: unknown key 'cpu' in cluster. Did you mean 'cpus'?"),
    "an unknown key at the top": ("faults:", "fautls:", "4: unknown key 'fautls'. Did you mean 'faults'?"),
    "an unknown key of a fault": ("reboot:", "rebot:", "5: unknown key 'rebot' in faults[0]. Did you mean 'reboot'?"),
    "a wrong unit": ("2ms", "2GB", "5: faults[0].at: a time: '2GB' is a size; write for example 2.5s or 300ms"),
    "no unit": ("60s", "60", "7: expect.makespan.max: 60 has no unit; write for example 2.5s"),
    "a wrong unit of a cost": (
        "expect:",
        "costs: {worker_start_ns: 5GB}\nexpect:",
        "6: costs.worker_start_ns: '5GB' is a size; write for example 2.5s or 300ms",
    ),
    "an unknown cost": (
        "expect:",
        "costs: {worker_start: 5ms}\nexpect:",
        "6: costs.worker_start: the cost model has no parameter 'worker_start'. Did you mean 'worker_start_ns'?",
    ),
    "what belongs to another fault": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, kill: node-1, by: 3.0}",
        "5: faults[0]: by can be used with slow and skew, but not with kill",
    ),
    "a link to somewhere": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, link: node-1, to: node-2, latency: 10.0}",
        "5: faults[0]: to can be used with partition, but not with link",
    ),
    "a link that does not change": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, link: node-1}",
        (
            "5: faults[0]: a fault of a link needs one or more of "
            "bandwidth, delay, drop, duplicate, jitter, latency, loss, reorder"
        ),
    ),
    "a worker of no task": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, slow: worker, by: 3.0}",
        (
            "5: faults[0]: 'slow worker by 3.0 at 0.002s': the fault needs a task that runs on the worker, as in "
            "'when f starts 3'"
        ),
    ),
    "a worker that reboots": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{when: {task_started: piece}, reboot: worker, back_after: 1s}",
        "5: faults[0]: reboot takes nodes; the faults of worker are: kill and restart and pause and slow",
    ),
    "a clogged head": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, clog: head}",
        "5: faults[0]: clog takes nodes; the faults of head are: kill and pause and slow and restart",
    ),
    "a head among nodes": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, kill: [head, node-1]}",
        "5: faults[0]: kill: head cannot be in a list with other names; write a separate fault for head",
    ),
    "an object at a time": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, lose: object}",
        (
            "5: faults[0]: 'lose object at 0.002s': the fault needs an event that stores or sends the copy, as in "
            "'when object_stored 3'; transfer_ended and object_spilled also work"
        ),
    ),
    "a submission that is counted as well": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{when: {task_started: piece, index: 2, submission: 3}, kill: node-1}",
        "5: faults[0].when: the key submission needs task_started or task_ended, and excludes index and event",
    ),
    "an anchor on an unknown node": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{when: {task_started: piece, node: node-9}, kill: node-1}",
        "5: faults[0]: the cluster has no node 'node-9'; the nodes are node-0 to node-3",
    ),
    "the store of what does not reboot": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, pause: node-1, for: 1s, store: kept}",
        "5: faults[0]: store can be used with reboot and restart, but not with pause",
    ),
    "the store of a head": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, restart: head, back_after: 1s, store: kept}",
        "5: faults[0]: 'restart head at 0.002s for 1s': only the reboot of a node can keep the store",
    ),
    "what no program survives among what is drawn": (
        "expect:",
        "swarm: {kinds: [kill node, kill head]}\nexpect:",
        "6: swarm.kinds: a random choice of faults cannot include kill head; write this fault under faults",
    ),
    "every so often, and not how often": (
        "at: 2ms",
        "every: 2ms",
        "5: faults[0]: `every` needs `times`, the number of faults",
    ),
    "an unknown node": (
        "node-1",
        "node-9",
        "5: faults[0]: the cluster has no node 'node-9'; the nodes are node-0 to node-3",
    ),
    "a fault after the end": (
        "2ms",
        "90s",
        "5: faults[0]: 'reboot node-1 at 90s for 1s' comes after the run's end: expect.makespan allows 60s at most",
    ),
    "a fault after the time limit": (
        "at: 2ms",
        "at: 20s",
        "5: faults[0]: 'reboot node-1 at 20s for 1s' comes after the run's end: the time limit is 10s",
    ),
    "an impossible expectation": (
        "{max: 60s}",
        "{min: 70s, max: 60s}",
        "7: expect.makespan: min must not be above max",
    ),
    "an expectation beyond the time limit": (
        "{max: 60s}",
        "{min: 20s}",
        "7: expect.makespan: no run can meet this expectation: the time limit of the run is 10s",
    ),
    "more faults than there are": (
        "expect:",
        "expect:\n  counters: {faults: {min: 3}}",
        "7: expect.counters.faults: no run can meet this expectation: 1 fault is planned",
    ),
    "an unknown counter in short": (
        "makespan: {max: 60s}",
        "tasks_lots: 0",
        "7: unknown key 'tasks_lots' in expect. Did you mean 'tasks_lost'?",
    ),
    "a counter in short that is wrong": (
        "makespan: {max: 60s}",
        "no_leak: true\n  retries: many",
        "8: expect.retries: 'many' must be a whole number, or a range such as {min: 1, max: 5}",
    ),
    "a counter in short that is impossible": (
        "makespan: {max: 60s}",
        "retries: {min: 5, max: 1}",
        "7: expect.retries: min must not be above max",
    ),
    "more faults than there are, in short": (
        "makespan: {max: 60s}",
        "faults: {min: 3}",
        "7: expect.faults: no run can meet this expectation: 1 fault is planned",
    ),
    "a counter that is said twice": (
        "makespan: {max: 60s}",
        "retries: 0\n  counters: {retries: 0}",
        "6: expect: retries is given both in expect and in expect.counters; leave one of the two out",
    ),
    "a partition's word of another fault": (
        "{at: 2ms, reboot: node-1, back_after: 1s}",
        "{at: 2ms, slow: node-1, by: 2.0, heal_after: 1s}",
        "5: faults[0]: heal_after can be used with partition and link, but not with slow",
    ),
    "a distribution without quotes": (
        "expect:",
        "durations: {piece: uniform(1s, 3s)}\nexpect:",
        "6: durations.piece: YAML splits a text at its comma; write the text in quotes: 'uniform(1s, 3s)'",
    ),
    "two of them": (
        "expect:",
        "durations:\n  {piece: uniform(1s, 3s), count: normal(2s, 3s)}\nexpect:",
        "7: durations.piece: YAML splits a text at its comma; write the text in quotes: 'uniform(1s, 3s)'",
    ),
    "one in a list": (
        "{tasks: 5}",
        "{tasks: 5, strategy: [exponential(1s, 3s)]}",
        (
            "3: workload.kwargs.strategy[0]: YAML splits a text at its comma; write the text in quotes: "
            "'exponential(1s, 3s)'"
        ),
    ),
    "an argument with a unit": (
        "tasks: 5",
        "tasks: 5, seconds: 200ms",
        "3: workload.kwargs.seconds: '200ms' must be a number of seconds, without a unit: 0.2",
    ),
    "a size with a unit": (
        "{generate: bag_of_tasks, kwargs: {tasks: 5}}",
        "\n  generate: bag_of_tasks\n  kwargs:\n    tasks: 5\n    size: 200kB",
        "7: workload.kwargs.size: '200kB' must be a whole number of bytes, without a unit: 200000",
    ),
    "an argument of another type": (
        "tasks: 5",
        "tasks: 5.5",
        "3: workload.kwargs.tasks: 5.5 must be a whole number",
    ),
    "an unknown argument of a function": (
        "{generate: bag_of_tasks, kwargs: {tasks: 5}}",
        "{function: 'tests.testing.timed_programs:fast_and_slow', kwargs: {cuont: 5}}",
        "3: workload.kwargs: fast_and_slow has no 'cuont'. Did you mean 'count'?",
    ),
    "a missing argument of a function": (
        "{generate: bag_of_tasks, kwargs: {tasks: 5}}",
        "{function: 'tests.testing.timed_programs:fast_and_slow'}",
        "3: workload.kwargs: fast_and_slow needs 'count'",
    ),
    "an unknown argument": (
        "tasks: 5",
        "task: 5",
        "3: workload.kwargs: bag_of_tasks has no 'task'. Did you mean 'tasks'?",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD)
def test_a_bad_scenario_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    if "time limit" in message:
        text += "time_limit: 10s\n"
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = CliRunner().invoke(app, ["scenario", "run", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"dualray: {path}:{message}\n"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kill node-1 at 90s", "'kill node-1 at 90s' comes after the program's end: the program took 0.1"),
        (
            "kill worker when piece starts 400",
            "'kill worker when piece starts 400' never happened: piece started 5 times",
        ),
        (
            "kill worker when peice starts 4",
            "'kill worker when peice starts 4' never happened: peice started 0 times. Did you mean 'piece'?",
        ),
        ("kill node-1 when object_evicted 2", "never happened: there were 0 such events"),
        ("kill actor Nobody at 1ms", "'kill actor Nobody at 0.001s' found no target"),
    ],
)
def test_a_fault_that_never_came_says_why(fault, words):
    scenario = parse_scenario(
        GOOD.replace("  - {at: 2ms, reboot: node-1, back_after: 1s}", f"  - {fault}").replace("{max: 60s}", "{}"), "x"
    )
    (verdict,) = (it for it in judge(scenario, run_scenario(scenario)) if it.what == "faults")
    assert not verdict.holds
    assert words in verdict.found


DESIGNED = """\
name: lost-and-made-again
seed: 7
cluster: {nodes: 6, cpus: 4, object_store: 1GiB, network: {bandwidth: 10Gbps, latency: 100us}}
workload: {generate: shuffle, kwargs: {maps: 12, reduces: 12, seconds: 1.0, size: 200000}}
faults:
  - {at: 1500ms, kill: node-3}
  - {at: 1600ms, partition: [node-1, node-2], heal_after: 3s}
  - {when: {task_started: reduce, index: 4}, kill: worker}
expect:
  makespan: {max: 60s}
  tasks_lost: 0
  reconstructions: {min: 1}
"""


def test_counters_may_stand_without_their_mapping(tmp_path):
    path = tmp_path / "designed.yaml"
    path.write_text(DESIGNED)
    done = CliRunner().invoke(app, ["scenario", "run", str(path)])
    assert done.exit_code == 0, done.stdout
    assert "tasks_lost" in done.stdout
    scenario = parse_scenario(DESIGNED, "designed.yaml")
    assert parse_scenario(dump_scenario(scenario), "again.yaml").expect == scenario.expect
    assert {"tasks_lost", "retries"} <= json_schema()["$defs"]["Expect"]["properties"].keys()


@pytest.mark.parametrize(
    ("ending", "lost"),
    [("nothing", 0), ("raises", 0), ("cancelled", 0), ("crashes", 1), ("waits", 2)],
)
def test_tasks_that_are_lost_are_counted(ending, lost):
    text = f"name: lost\nworkload: {{function: 'tests.testing.timed_programs:ends', kwargs: {{how: {ending}}}}}\n"
    outcome = run_scenario(parse_scenario(text, "lost.yaml"))
    assert outcome.counters["tasks_lost"] == lost
