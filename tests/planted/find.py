"""Explores the planted bugs: `python -m tests.planted.find [--only WORDS] [--jobs N] [--json FILE] [--markdown]`.

For each bug: `dualray explore` of its scenario with the bug in, until the first seed that fails; what that says, and
how many faults are left when it has been made small; whether the small scenario fails again when it is run with the
bug; and whether it holds without it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from dualray.shared.scenario.file import dump_scenario
from dualray.shared.scenario.scenario import Swarm
from dualray.testing.run import load_scenario
from tests.planted.bugs import BUGS as OTHERS
from tests.planted.bugs import PlantedBug
from tests.planted.scaling_bugs import SCALING_BUGS
from tests.planted.tree import ROOT, run_in, tree_with

BUGS = (*OTHERS, *SCALING_BUGS)
EXPLORE_TIMEOUT_S = 1800.0
RUN_TIMEOUT_S = 300.0
SEED_TIMEOUT_S = 30
SHRINK_RUNS = 40
"""Faults are taken away first, in fewer than these; what is left makes the workload smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """What became of the hunt for one bug.

    Attributes:
        seeds: seeds until it was found, that one included; 0: the run without faults fails already; None: not found.
        kind: the class of the failure, which says who caught it.
        faults: what is left of them in the small scenario, in words.
        fails_again: the small scenario fails when it is run again with the bug.
        holds_without: it holds without the bug.
        file: the small scenario's text.
    """

    name: str
    scenario: str
    seeds: int | None
    kind: str = ""
    faults: tuple[str, ...] = ()
    fails_again: bool = False
    holds_without: bool = False
    seconds: float = 0.0
    file: str = ""

    @property
    def is_found(self) -> bool:
        """Whether exploration found it, and the small scenario repeats it."""
        return self.seeds is not None and self.fails_again


def hunt(bug: PlantedBug, *, jobs: int = 1, shrink_runs: int = SHRINK_RUNS) -> Hunt:
    """Explore one bug's scenario with the bug in.

    Raises:
        ValueError: the bug cannot be planted, for the code has changed.
        RuntimeError: the command failed in a way that is none of its own.
    """
    began_s = time.monotonic()
    scenario = ROOT / "scenarios" / f"{bug.scenario}.yaml"
    with tree_with({bug.change.path: bug.change.applied()}) as tree:
        output = tree / "failures"
        words = ["-m", "dualray", "explore", str(scenario), "--seeds", str(bug.seeds), "--stop-after", "1"]
        words += ["--jobs", str(jobs), "--seed-timeout", str(SEED_TIMEOUT_S), "--output", str(output)]
        words += ["--shrink-runs", str(shrink_runs)]
        explored = run_in(tree, words, timeout_s=EXPLORE_TIMEOUT_S)
        took_s = time.monotonic() - began_s
        if explored.returncode == 0:
            return Hunt(name=bug.name, scenario=bug.scenario, seeds=None, seconds=took_s)
        if explored.returncode == 2 and "without any fault" in explored.stderr:
            return _found_without_faults(bug, scenario, explored, took_s)
        files = sorted(output.glob("*.yaml"))
        if explored.returncode != 1 or not files:
            raise RuntimeError(f"{bug.name}: explore ended with {explored.returncode}: {explored.stderr[-2000:]}")
        small = load_scenario(files[0])
        said = re.match(r"# Found by `dualray explore`, seed (\d+): (.*?)\.?$", files[0].read_text().splitlines()[0])
        assert said is not None
        return Hunt(
            name=bug.name,
            scenario=bug.scenario,
            seeds=int(said[1]) + 1,
            kind=said[2],
            faults=tuple(str(fault) for fault in small.planned()),
            fails_again=_run(tree, files[0]) != 0,
            holds_without=_holds(files[0]),
            seconds=time.monotonic() - began_s,
            file=files[0].read_text(),
        )


def _found_without_faults(
    bug: PlantedBug, scenario: Path, explored: subprocess.CompletedProcess[str], took_s: float
) -> Hunt:
    """The scenario itself is the small one."""
    said = " ".join(explored.stderr.split("without any fault:")[-1].split())
    kind = re.split(r" [\u2800-\u28ff] ", said)[0][:120]  # behind it, the progress bar
    return Hunt(
        name=bug.name,
        scenario=bug.scenario,
        seeds=0,
        kind=kind,
        fails_again=True,
        holds_without=_run(ROOT, scenario) == 0,
        seconds=took_s,
        file=scenario.read_text(),
    )


def _holds(file: Path) -> bool:
    """Whether exploration finds nothing wrong with a small scenario, as it is, without the bug: it may end with an
    error that its faults excuse."""
    scenario = load_scenario(file)
    calm = file.with_name("as_it_is.yaml")
    calm.write_text(dump_scenario(scenario.model_copy(update={"swarm": Swarm(most=0)})))
    words = ["-m", "dualray", "explore", str(calm), "--seeds", "1", "--no-shrink"]
    return run_in(ROOT, words, timeout_s=RUN_TIMEOUT_S).returncode == 0


def _run(tree: Path, file: Path) -> int:
    return run_in(tree, ["-m", "dualray", "scenario", "run", str(file)], timeout_s=RUN_TIMEOUT_S).returncode


def hunt_all(bugs: Iterable[PlantedBug], *, jobs: int) -> Iterator[Hunt]:
    """Each in turn."""
    for bug in bugs:
        yield hunt(bug, jobs=jobs)


def markdown(hunts: Iterable[Hunt]) -> str:
    """The table of tests/planted/README.md."""
    what = {bug.name: bug.what for bug in BUGS}
    rows = ["| bug | what it does | scenario | seeds | faults left | what caught it |", "|---|---|---|---|---|---|"]
    for each in hunts:
        seeds = "not found" if each.seeds is None else str(each.seeds)
        faults = str(len(each.faults)) + (f" ({'; '.join(each.faults)})" if each.faults else "")
        rows.append(f"| {each.name} | {what.get(each.name, '')} | {each.scenario} | {seeds} | {faults} | {each.kind} |")
    return "\n".join(rows)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted.find", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="bugs whose name contains this")
    parser.add_argument("--from", dest="first", type=int, default=0, help="leave out so many bugs")
    parser.add_argument("--to", dest="last", type=int, default=len(BUGS), help="and those behind so many")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--json", type=Path, help="write what was found, with the small scenarios; read by confirm.py")
    parser.add_argument("--markdown", action="store_true", help="print the table of tests/planted/README.md")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS[options.first : options.last] if options.only in bug.name]
    if not bugs:
        parser.error(f"no bug is called {options.only!r}; there are: {', '.join(bug.name for bug in BUGS)}")
    found = []
    for each in hunt_all(bugs, jobs=options.jobs):
        found.append(each)
        seeds = "NOT FOUND" if each.seeds is None else f"seed {each.seeds}"
        again = "" if each.seeds is None else f", {'fails' if each.fails_again else 'HOLDS'} again"
        again += "" if each.seeds is None or each.holds_without else ", FAILS WITHOUT THE BUG TOO"
        print(
            f"{each.name} ({each.scenario}): {seeds}, {len(each.faults)} faults, {each.kind}{again}; "
            f"{each.seconds:.0f} s",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    caught = [each for each in found if each.is_found]
    middle = median(len(each.faults) for each in caught) if caught else 0
    print(f"{len(caught)} of {len(found)} found and repeated; the median small scenario has {middle:g} faults")
    if options.markdown:
        print(markdown(found))
    return 0 if len(caught) == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
