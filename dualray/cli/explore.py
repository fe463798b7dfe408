"""The command `dualray explore`. Exit codes as in app.py: 1 when a seed has failed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from dualray.cli.declare import Commands, Exit, Option
from dualray.cli.printing import (
    JOBS_HELP,
    SEEDS_HELP,
    AsJson,
    Quiet,
    Verbose,
    count_of,
    mark,
    print_json,
    refuse,
    say,
    show,
    table_of,
)
from dualray.cli.progress import Progress
from dualray.cli.scenario import FAILED, File, load, show_failure
from dualray.shared.scenario.scenario import Scenario
from dualray.shared.units import parse_share
from dualray.testing.explore import Exploration, Finding, explore
from dualray.testing.shrink import RUNS_MAX

SEEDS_LISTED_MAX = 20
app = Commands()


Repeat = Annotated[
    str,
    Option(
        help="Share of the random seeds, such as 5% or 0.05, that `dualray explore` simulates twice to check that "
        "simulations are deterministic. With --repeat 0, `dualray explore` simulates no seed twice."
    ),
]
Output = Annotated[
    Path, Option(help="Directory to which `dualray explore` writes a scenario file for each kind of failure.")
]

ShrinkRuns = Annotated[
    int, Option(min=1, help="Maximum number of simulations that --shrink runs to reduce the faults of one failure.")
]
First = Annotated[
    int,
    Option(
        help="First random seed. With --first 100 --seeds 20, `dualray explore` simulates with the seeds 100 to 119."
    ),
]


@app.add("explore")
def explore_command(
    file: File,
    seeds: Annotated[int, Option(min=1, help=SEEDS_HELP)] = 100,
    first: First = 0,
    jobs: Annotated[int, Option(min=1, max=256, help=JOBS_HELP)] = 1,
    seed_timeout: Annotated[float, Option(min=1, help="Time limit of each simulation, in seconds of real time.")] = 60,
    shrink: Annotated[
        bool, Option(help="For each failing simulation, search for fewer of its faults that cause the same failure.")
    ] = True,
    shrink_runs: ShrinkRuns = RUNS_MAX,
    output: Output = Path("failures"),
    stop_after: Annotated[int, Option(min=1, help="Stop after this number of failing simulations.")] = 10,
    repeat: Repeat = "5%",
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a scenario many times with different random faults, and report the simulations that fail.

    For each kind of failure, `dualray explore` writes a scenario file that causes the failure again with few faults.

    Example: dualray explore scenarios/pi.yaml --seeds 200
    """
    loaded = load(file)
    try:
        share = parse_share(repeat, "--repeat")
    except ValueError as error:
        refuse(error)
    try:
        with Progress(loaded.name, seeds) as progress:

            def advance(state: Exploration) -> None:
                failing = f", {len(state.findings)} failing" if state.findings else ""
                rate = f"{state.seeds_per_s:.1f} seeds/s, {len(state.coverage)} situations reached{failing}"
                progress.update(completed=state.seeds, note=rate)

            found = explore(
                loaded,
                directory=file.parent,
                seeds=range(first, first + seeds),
                jobs=jobs,
                seed_timeout_s=seed_timeout,
                stop_after=stop_after,
                shrink_to=output if shrink else None,
                shrink_runs_max=shrink_runs,
                repeat=share,
                on_progress=advance,
                on_note=lambda words: progress.update(description=words),
            )
    except (ValueError, RuntimeError) as error:  # after the bar has left the terminal
        refuse(error)
    if as_json:
        print_json(_as_json(loaded, found, file))
    else:
        _show_exploration(loaded, found, file, is_verbose=verbose, is_quiet=quiet)
        _show_stop(found, seeds, stop_after, is_quiet=quiet)
    if found.findings:
        raise Exit(FAILED)


def _as_json(loaded: Scenario, found: Exploration, file: Path) -> dict[str, Any]:
    return {
        "scenario": loaded.name,
        "seeds": found.seeds,
        "failing": len(found.findings),
        "seeds_per_s": round(found.seeds_per_s, 3),
        "faults_planned": found.faults_planned,
        "faults_performed": found.faults_performed,
        "repeated": found.repeated,
        "differing": found.differing,
        "findings": [
            {
                "seed": finding.seed,
                "kind": finding.kind,
                "problem": finding.problem,
                "faults": list(finding.faults),
                "repeat_it": _repeat_it(finding, file),
                "traceback": finding.traceback,
                "output": finding.output,
                "story": list(finding.story),
            }
            for finding in found.findings
        ],
        "coverage": {name: {"seeds": seeds, "times": times} for name, (seeds, times) in sorted(found.coverage.items())},
        "never_happened": found.never_happened,
    }


def _repeat_it(finding: Finding, file: Path) -> str:
    return finding.replay or f"dualray explore {file} --first {finding.seed} --seeds 1"


def _show_exploration(loaded: Scenario, found: Exploration, file: Path, *, is_verbose: bool, is_quiet: bool) -> None:
    """Print the verdict first, then the findings, then the coverage."""
    count = len({finding.seed for finding in found.findings})
    verdict = (
        mark(f"{count:,} of {found.seeds:,} seeds fail", "red")
        if count
        else f"{mark('no seed fails', 'green')} of {found.seeds:,}"
    )
    say(f"{loaded.name}: {verdict}; {found.seeds_per_s:.1f} seeds/s")
    if is_quiet:
        return
    for kind, alike in _by_kind(found.findings).items():
        _show_kind(kind, alike, file, is_verbose=is_verbose)
    if found.faults_planned:
        share = found.faults_performed / found.faults_planned
        say(f"faults: {found.faults_planned:,} planned, {found.faults_performed:,} ({share:.0%}) happened")
    elif loaded.swarm.most:
        say(
            "dualray chose no faults: none of the scenario's random faults is possible on this cluster", colour="yellow"
        )
    if found.repeated:
        verdict = mark(f"{found.differing:,} differ", "red") if found.differing else "each second run was the same"
        say(f"{found.repeated:,} of {found.seeds:,} seeds run again: {verdict}")
    if not is_verbose:
        missing = f", {len(found.never_happened)} did not" if found.never_happened else ""
        say(f"coverage: {len(found.coverage)} of the situations that dualray counts happened{missing}; -v lists them")
        return
    table = table_of("Situations that happened", "situation", "seeds", "times")
    for name, (in_seeds, times) in sorted(found.coverage.items()):
        table.add_row(name, f"{in_seeds:,}", f"{times:,}")
    show(table)
    if found.never_happened:
        say(f"situations that never happened: {', '.join(found.never_happened)}", colour="yellow")


def _show_stop(found: Exploration, seeds: int, stop_after: int, *, is_quiet: bool) -> None:
    left = seeds - found.seeds
    if left and len(found.findings) >= stop_after and not is_quiet:
        failing = count_of(len(found.findings), "failing seed")
        say(f"stopped after {failing} (--stop-after {stop_after}): {count_of(left, 'seed')} did not run")


def _by_kind(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Group the failures by kind, because seeds that fail alike probably have one cause. Shrunk seeds come first."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(finding)
    return {kind: sorted(alike, key=lambda finding: not finding.replay) for kind, alike in kinds.items()}


def _show_kind(kind: str, alike: list[Finding], file: Path, *, is_verbose: bool) -> None:
    shown = alike[:SEEDS_LISTED_MAX] if is_verbose else alike[:1]
    for finding in shown:
        say(f"\n{mark(f'seed {finding.seed}', 'red')}: {kind}")
        _show_finding(finding, file)
    if others := alike[len(shown) :]:
        seeds = ", ".join(str(finding.seed) for finding in others[:SEEDS_LISTED_MAX])
        more = f" and {len(others) - SEEDS_LISTED_MAX} more" if len(others) > SEEDS_LISTED_MAX else ""
        each = "" if is_verbose else "; -v shows each"
        say(f"  {count_of(len(others), 'more seed')} failed in the same way: {seeds}{more}{each}")


def _show_finding(finding: Finding, file: Path) -> None:
    say(f"  {finding.problem}")
    show_failure(finding.output, finding.traceback, finding.story)
    for fault in finding.faults:
        say(f"  fault: {fault}")
    say(f"  repeat it: {_repeat_it(finding, file)}")
