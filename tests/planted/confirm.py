"""Planted bugs that exploration has found in sim mode, on real processes: `python -m tests.planted.confirm HUNTS.json`.

HUNTS.json is what `python -m tests.planted.find --json` has written. Each bug's small scenario is run with `dualray
scenario run --mode real` in a package that has the bug, up to ten times:

1. as it was found;
2. with each fault at the event that came last before it in the simulation, instead of at a time. Real processes need
   longer to start, so that the same time is another moment of the program;
3. the same, with slow links: a simulation has many orders of messages, and real processes on one machine have few;
4. and later: these faults around these events, as exploration tries seeds. Every second try has slow links, and every
   third one longer tasks. Later tries have the faults on any node and in any task: real mode
   places tasks elsewhere, and other events happen.

The same rule holds for each bug. A try that fails is a reproduction, if its scenario holds without the bug. What is not
reproduced is printed with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dualray.real import faults as means
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.fault_model import (
    EVENT_ANCHORS,
    OF_OBJECTS,
    OF_WORKERS,
    TASK_ANCHORS,
    Fault,
    FaultKind,
    parse_fault,
)
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.run import load_scenario, run_scenario
from tests.planted.bugs import BUGS
from tests.planted.tree import ROOT, run_in, tree_with

TRIES = 10
TRIES_WITHOUT_FAULTS = 2
TRIES_ON_SAME_NODES = 5
"""Real mode places tasks on other nodes than a simulation, so that later tries have the faults anywhere."""
SLOW_LINKS = "link all delay 40ms jitter 40ms at 0s"
STRETCH = 3.0
RUNS_WITHOUT = 3
"""A scenario that fails now and then without the bug says nothing of it."""
TRY_TIMEOUT_S = 300.0
TIMES_AS_LONG = 6.0
"""A try that takes so many times as long as the scenario without the bug does not end."""
TRY_TIMEOUT_MIN_S = 60.0
NODES_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What became of one bug on real processes; `tries` is the try that failed as it should, 0 for none."""

    name: str
    tries: int
    words: str


def for_real_mode(text: str) -> tuple[str, str]:
    """A small scenario as real mode can run it, and what was changed for that, in words.

    What a simulation models and real processes cannot be given is left out: a network, costs. A fault that real mode
    does not perform is left out, too; then it is the others that must do.

    Raises:
        ValueError: nothing of the scenario's faults can be performed, so that it would say nothing.
    """
    scenario: dict[str, Any] = yaml.safe_load(text)
    faults, left_out = [], []
    for words in scenario.get("faults") or ():
        if not isinstance(words, str):
            faults.append(words)
            continue
        why = means.REFUSED.get(parse_fault(words).kind)
        if why is not None:
            left_out.append(f"'{words}': {why}")
            continue
        faults.append(words)
    if left_out and not faults:
        raise ValueError(f"real mode cannot perform {'; '.join(left_out)}")
    scenario["faults"] = faults
    scenario.pop("swarm", None)
    scenario["expect"] = {"all_faults": False, **_kept(scenario.get("expect") or {})}
    if scenario["workload"].get("function"):
        scenario["expect"].pop("same_as_without_faults", None)
    changed = f"without {'; '.join(left_out)}" if left_out else "as it was found"
    return yaml.safe_dump(scenario, sort_keys=False), changed


def with_result(text: str, scenario: Scenario) -> str:
    """The same scenario with the result of a simulation without faults, for which real mode needs a second cluster."""
    changed: dict[str, Any] = yaml.safe_load(text)
    if changed["expect"].pop("same_as_without_faults", False):
        changed["expect"]["result"] = run_scenario(scenario.with_faults(())).result
    return yaml.safe_dump(changed, sort_keys=False)


def at_events(text: str, events: Sequence[TraceEvent]) -> str:
    """The same scenario with each fault that has a time at the event that came last before that time.

    A fault before the first event keeps its time.

    Args:
        events: of the simulation of this scenario, in order.
    """
    scenario: dict[str, Any] = yaml.safe_load(text)
    faults = []
    for words in scenario["faults"]:
        fault = parse_fault(words) if isinstance(words, str) else None
        anchored = words
        if fault is not None and fault.at_ns is not None and (found := _anchored(fault, fault.at_ns, events)):
            anchored = str(found)
        faults.append(anchored)
    scenario["faults"] = faults
    return yaml.safe_dump(scenario, sort_keys=False)


def _anchored(fault: Fault, at_ns: int, events: Sequence[TraceEvent]) -> Fault | None:
    """The same fault after the last event before this time."""
    counts: Counter[tuple[str, str]] = Counter()
    last = None
    for event in events:
        if event.time_ns > at_ns:
            break
        is_of_task = event.kind in TASK_ANCHORS.values()
        if is_of_task or event.kind in EVENT_ANCHORS:
            last = (str(event.kind), event.name if is_of_task else "", event.time_ns)
            counts[last[:2]] += 1
    if last is None:
        return None
    kind, name, time_ns = last
    start, after_ns = counts[kind, name], (at_ns - time_ns) // 1000 * 1000
    return replace(fault, at_ns=None, event=kind, task_name=name or None, start=start, after_ns=after_ns)


def with_slow_links(text: str) -> str:
    """The same scenario, in which each message between two nodes takes a while."""
    scenario: dict[str, Any] = yaml.safe_load(text)
    return yaml.safe_dump({**scenario, "faults": [SLOW_LINKS, *scenario["faults"]]}, sort_keys=False)


def at_other_moments(
    text: str,
    seed: str,
    *,
    stretch: float = 1.0,
    gpus: Mapping[str, int] | None = None,
    tasks: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """The same scenario with the same kinds of faults, each at another time or at another event of its kind.

    A function of its arguments. The n-th event becomes one of the first 2 n + 3; a time becomes half to twice of it.

    Args:
        stretch: if the tasks' time is given, it and the times of faults are multiplied by this. Starting a process
            then takes less of a task's time, as in a simulation.
        gpus: the GPUs of each node that a fault of a node may hit instead of the node that it names.
        tasks: how long tasks of each name took, in ns. Every second fault that is not of a worker comes in one of them,
            since events such as the third transfer may not happen on real processes.
    """
    draw = random.Random(seed)
    scenario: dict[str, Any] = yaml.safe_load(text)
    kwargs = scenario["workload"].get("kwargs") or {}
    if "seconds" in kwargs:
        kwargs["seconds"] *= stretch
    else:
        stretch = 1.0
    faults = []
    for words in scenario["faults"]:
        if not isinstance(words, str):
            faults.append(words)
            continue
        fault = parse_fault(words)
        if gpus:
            fault = _elsewhere(fault, gpus, draw)
        if tasks and fault.kind not in OF_WORKERS | OF_OBJECTS and draw.random() < 0.5:
            faults.append(str(_in_a_task(fault, tasks, stretch, draw)))
            continue
        if fault.at_ns is not None:
            moved = replace(fault, at_ns=int(fault.at_ns * stretch * draw.uniform(0.5, 2)))
        elif fault.submission:
            moved = replace(fault, submission=draw.randint(1, 2 * fault.submission + 3))
        else:
            moved = replace(fault, start=draw.randint(1, 2 * fault.start + 3))
        faults.append(str(replace(moved, after_ns=int(fault.after_ns * stretch * draw.uniform(0, 2)))))
    scenario["faults"] = faults
    return yaml.safe_dump(scenario, sort_keys=False)


def _in_a_task(fault: Fault, tasks: Mapping[str, Sequence[int]], stretch: float, draw: random.Random) -> Fault:
    """The same fault in the middle of any task, and rather of one that takes long."""
    whole_ns = sum(map(sum, tasks.values())) or 1
    name = draw.choices(list(tasks), [1 / len(tasks) + sum(took) / whole_ns for took in tasks.values()])[0]
    start = draw.randint(1, len(tasks[name]))
    after_ns = int(draw.choice(tasks[name]) * stretch * draw.random()) // 1000 * 1000
    return replace(
        fault,
        at_ns=None,
        submission=0,
        on_node="",
        event="task_started",
        task_name=name,
        start=start,
        after_ns=after_ns,
    )


def _took(events: Sequence[TraceEvent]) -> dict[str, list[int]]:
    """How long the tasks of each name took, in ns."""
    began_ns: dict[str, int] = {}
    took: dict[str, list[int]] = {}
    for event in events:
        if event.kind is TraceKind.TASK_STARTED:
            began_ns[event.subject] = event.time_ns
        elif event.kind is TraceKind.TASK_ENDED and event.subject in began_ns:
            took.setdefault(event.name, []).append(event.time_ns - began_ns.pop(event.subject))
    return took


def _elsewhere(fault: Fault, gpus: Mapping[str, int], draw: random.Random) -> Fault:
    """The same fault of any of these nodes."""
    if fault.node not in gpus:
        return fault
    is_of_gpu = fault.kind is FaultKind.LOSE_GPU
    node = draw.choice([name for name, count in gpus.items() if count or not is_of_gpu])
    return replace(fault, node=node, gpu=draw.randrange(gpus[node]) if is_of_gpu else 0)


def _kept(expect: dict[str, Any]) -> dict[str, Any]:
    return {name: expect[name] for name in ("result", "same_as_without_faults", "error") if name in expect}


def confirm(name: str, text: str) -> Confirmation:
    """Try to reproduce one bug."""
    bug = next(bug for bug in BUGS if bug.name == name)
    try:
        real, changed = for_real_mode(text)
    except ValueError as error:
        return Confirmation(name=name, tries=0, words=f"not run: {error}")
    with tree_with({bug.change.path: bug.change.applied()}) as tree:
        file = tree / "real.yaml"
        file.write_text(real)
        real = with_result(real, load_scenario(file))
        file.write_text(real)
        nodes = len(load_scenario(file).cluster.each_node())
        began_s = time.monotonic()
        failed, said = _run(ROOT, file, TRY_TIMEOUT_S)
        if failed:
            return Confirmation(name=name, tries=0, words=f"it fails without the bug too: {said}")
        timeout_s = min(TRY_TIMEOUT_S, max(TRY_TIMEOUT_MIN_S, TIMES_AS_LONG * (time.monotonic() - began_s)))
        said, number = f"it holds, {changed}", 0
        for number, (how, scenario) in enumerate(_tries(name, tree, real, text), 1):
            file.write_text(scenario)
            failed, said = _run(tree, file, timeout_s)
            if failed:
                for _ in range(RUNS_WITHOUT):
                    failed_without, words = _run(ROOT, file, TRY_TIMEOUT_S)
                    if failed_without:
                        said = f"it fails without the bug too: {words}"
                        break
                else:
                    return Confirmation(name=name, tries=number, words=f"{said} ({nodes} nodes, {changed}{how})")
    return Confirmation(name=name, tries=0, words=f"{said} in {number} tries ({nodes} nodes, {changed})")


def _tries(name: str, tree: Path, real: str, text: str) -> Iterator[tuple[str, str]]:
    """What is tried, in order: how, in words, and the scenario."""
    yield "", real
    if not yaml.safe_load(real)["faults"]:
        for _ in range(TRIES_WITHOUT_FAULTS - 1):
            yield "", real
        yield ", with slow links", with_slow_links(real)
        return
    each_node = load_scenario(tree / "real.yaml").cluster.each_node()
    gpus = {name: int(node.gpus) for name, node in each_node[1:]}  # the driver's node, the first, takes few faults
    events = _simulated(tree, text)
    took = _took(events)
    anchored = at_events(real, events)
    yield ", with its faults at events", anchored
    yield ", with its faults at events and slow links", with_slow_links(anchored)
    for number in range(4, TRIES + 1):
        stretch = STRETCH if number % 3 == 0 else 1.0
        is_anywhere = number > TRIES_ON_SAME_NODES
        moved = at_other_moments(
            anchored,
            f"{name} {number}",
            stretch=stretch,
            gpus=gpus if is_anywhere else None,
            tasks=took if is_anywhere else None,
        )
        if number % 2:
            yield ", with its faults at other moments and slow links", with_slow_links(moved)
        else:
            yield ", with its faults at other moments", moved


def _simulated(tree: Path, text: str) -> list[TraceEvent]:
    """What a simulation of the small scenario with the bug has shown."""
    file, record = tree / "simulated.yaml", tree / "record"
    file.write_text(text)
    words = ["-m", "dualray", "scenario", "run", str(file), "--decision-log", str(record)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        run_in(tree, words, timeout_s=TRY_TIMEOUT_S)
    try:
        return read_traces(record)
    except (OSError, ValueError):  # it has ended before it could write one
        return []


def _run(tree: Path, file: Path, timeout_s: float) -> tuple[bool, str]:
    """Whether the scenario fails on real processes, and how."""
    words = ["-m", "dualray", "scenario", "run", str(file), "--mode", "real"]
    try:
        done = run_in(tree, words, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return True, f"it did not end within {timeout_s:.0f} s"
    if done.returncode == 0:
        return False, "it holds"
    rows = [line for line in done.stdout.splitlines() if line.rstrip(" │").endswith("fails")]
    cells = [" ".join(cell.split()) for row in rows for cell in row.split("│")[1:4:2]]
    said = ": ".join(cells[:2]) or " ".join((done.stderr or done.stdout).split())[-160:]
    return True, re.sub(r"\b[0-9a-f]{8}\b", "#", said)[:160]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.planted.confirm", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("hunts", type=Path, nargs="+", help="written by python -m tests.planted.find --json")
    parser.add_argument("--count", type=int, default=10, help="bugs to try")
    parser.add_argument("--only", default="", help="bugs whose name contains this")
    options = parser.parse_args()
    hunts = [each for path in options.hunts for each in json.loads(path.read_text())]
    known = {bug.name for bug in BUGS}
    hunts = [each for each in hunts if each["fails_again"] and options.only in each["name"] and each["name"] in known]
    reproduced = 0
    for each in hunts[: options.count]:
        found = confirm(each["name"], each["file"])
        reproduced += bool(found.tries)
        outcome = f"reproduced in try {found.tries}" if found.tries else "not reproduced"
        print(f"| {found.name} | {outcome} | {found.words} |", flush=True)
    print(f"{reproduced} of {min(len(hunts), options.count)} reproduced on real processes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
