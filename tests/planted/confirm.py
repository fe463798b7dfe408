"""Planted bugs that exploration has found in sim mode, on real processes: `python -m tests.planted.confirm HUNTS.json`.

HUNTS.json is what `python -m tests.planted.find --json` has written. Each bug's small scenario is run with `dualray
scenario run --mode real` in a package that has the bug, up to eight times: first as it was found, then with its faults
at other moments. Real processes reach the n-th event in another order than a simulation, so the same fault must be
tried around it, as exploration tries seeds. A try that fails is a reproduction, if its scenario holds without the bug.
What is not reproduced is printed with the reason.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dualray.real import faults as means
from dualray.shared.scenario.fault_model import parse_fault
from dualray.testing.run import load_scenario
from tests.planted.bugs import BUGS
from tests.planted.tree import ROOT, run_in, tree_with

TRIES = 8
TRIES_AS_FOUND = 2
STRETCH = 3.0
RUNS_WITHOUT = 3
"""A scenario that fails now and then without the bug says nothing of it."""
TRY_TIMEOUT_S = 300.0
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


def at_other_moments(text: str, seed: str, *, stretch: float = 1.0) -> str:
    """The same scenario with the same faults of the same targets, each at another time or at another event of its kind.

    A function of its arguments. The n-th event becomes one of the first 2 n + 3; a time becomes half to twice of it.

    Args:
        stretch: if the tasks' time is given, it and the times of faults are multiplied by this. Starting a process
            then takes less of a task's time, as in a simulation.
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
        if fault.at_ns is not None:
            moved = replace(fault, at_ns=int(fault.at_ns * stretch * draw.uniform(0.5, 2)))
        elif fault.submission:
            moved = replace(fault, submission=draw.randint(1, 2 * fault.submission + 3))
        else:
            moved = replace(fault, start=draw.randint(1, 2 * fault.start + 3))
        faults.append(str(replace(moved, after_ns=int(fault.after_ns * stretch * draw.uniform(0, 2)))))
    scenario["faults"] = faults
    return yaml.safe_dump(scenario, sort_keys=False)


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
        has_faults = bool(yaml.safe_load(real)["faults"])
        nodes = len(load_scenario(file).cluster.each_node())
        said = f"it holds, {changed}"
        for number in range(1, (TRIES if has_faults else TRIES_AS_FOUND) + 1):
            if number > TRIES_AS_FOUND:
                stretch = STRETCH if number % 2 else 1.0
                file.write_text(at_other_moments(real, f"{name} {number}", stretch=stretch))
            failed, said = _run(tree, file)
            if failed:
                for _ in range(RUNS_WITHOUT):
                    failed_without, words = _run(ROOT, file)
                    if failed_without:
                        return Confirmation(name=name, tries=0, words=f"it fails without the bug too: {words}")
                changed += "" if number <= TRIES_AS_FOUND else ", with its faults at other moments"
                return Confirmation(name=name, tries=number, words=f"{said} ({nodes} nodes, {changed})")
    return Confirmation(name=name, tries=0, words=f"{said} in {number} tries ({nodes} nodes, {changed})")


def _run(tree: Path, file: Path) -> tuple[bool, str]:
    """Whether the scenario fails on real processes, and how."""
    words = ["-m", "dualray", "scenario", "run", str(file), "--mode", "real"]
    try:
        done = run_in(tree, words, timeout_s=TRY_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return True, f"it did not end within {TRY_TIMEOUT_S:g} s"
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
