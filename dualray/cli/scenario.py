"""The command line for scenarios: `dualray scenario run | check | list | schema`, and `dualray explore`.

Exit codes as in app.py: 0; 1 when an expectation, a check or a seed has failed; 2 when the command was given something
that it cannot use.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from dualray.cli.seeing import check_outputs, write_outputs
from dualray.report.record import read_record
from dualray.shared.scenario.file import ScenarioError, json_schema
from dualray.shared.scenario.scenario import Scenario
from dualray.shared.units import parse_share, time_words
from dualray.testing.determinism import check_determinism
from dualray.testing.expectations import Verdict, judge
from dualray.testing.explore import Exploration, Finding, explore
from dualray.testing.outcome import Outcome
from dualray.testing.run import load_scenario, run_scenario
from dualray.testing.shrink import RUNS_MAX
from dualray.testing.stories import stories_of

FAILED = 1
UNUSABLE = 2
SCENARIOS = Path("scenarios")
SEEDS_LISTED_MAX = 20
OUTPUT_LINES_MAX = 30
"""Of what a failing program printed: the last ones."""

scenario = typer.Typer(help="Scenario files: a cluster, a workload, faults and expectations.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A scenario file.")]
Seed = Annotated[int | None, typer.Option(help="Replaces the seed of the scenario file.")]


def _refuse(why: object) -> NoReturn:
    Console(stderr=True).print(f"dualray: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(UNUSABLE)


def _load(path: Path, seed: int | None = None) -> Scenario:
    try:
        loaded = load_scenario(path)
    except ScenarioError as error:
        _refuse(error)
    return loaded if seed is None else loaded.model_copy(update={"seed": seed})


@scenario.command("run")
def run_command(
    file: File,
    mode: Annotated[str, typer.Option(help="sim, or real: on real processes of this machine.")] = "sim",
    seed: Seed = None,
    decision_log: Annotated[Path | None, typer.Option(help="Directory for decision logs and the trace.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page about the run: one HTML file.")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Write a timeline for https://ui.perfetto.dev.")] = None,
) -> None:
    """Run a scenario, and compare what becomes of it with what it expects."""
    loaded = _load(file, seed)
    if mode not in ("sim", "real"):
        _refuse(f"mode {mode!r} must be sim or real")
    with contextlib.ExitStack() as stack:
        try:
            check_outputs(report=report, timeline=timeline)
            if decision_log is None and (report is not None or timeline is not None):
                decision_log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualray-scenario-")))
            outcome = run_scenario(loaded, directory=file.parent, mode=mode, decision_log=decision_log)
            reference = None
            if loaded.expect.same_as_without_faults:
                reference = run_scenario(loaded.with_faults(()), directory=file.parent, mode=mode)
            verdicts = judge(loaded, outcome, reference, mode=mode)
            _show_run(loaded, outcome, verdicts, mode)
            if not all(verdict.holds for verdict in verdicts):
                _show_failure(Console(), "", outcome.traceback, _story(loaded, file, mode, outcome, decision_log))
            if decision_log is not None and (report is not None or timeline is not None):
                write_outputs(
                    read_record(decision_log),
                    report=report,
                    timeline=timeline,
                    title=f"{loaded.name}, seed {loaded.seed}",
                    subtitle=loaded.description,
                    verdicts=verdicts,
                )
        except ValueError as error:
            _refuse(error)
    if not all(verdict.holds for verdict in verdicts):
        raise typer.Exit(FAILED)


def _story(loaded: Scenario, file: Path, mode: str, outcome: Outcome, record: Path | None) -> list[str]:
    """What happened to the tasks, actors and objects that a failed run is about: a simulation is run again for it."""
    with contextlib.ExitStack() as stack:
        if record is None:
            if mode != "sim":
                return []
            record = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualray-scenario-")))
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                run_scenario(loaded, directory=file.parent, decision_log=record)
        try:
            return stories_of(record, outcome.message)
        except ValueError:  # a run that died early has left no record to read
            return []


def _show_run(loaded: Scenario, outcome: Outcome, verdicts: Sequence[Verdict], mode: str) -> None:
    console = Console()
    if outcome.output:
        console.print(outcome.output.rstrip(), markup=False, highlight=False, soft_wrap=True)
    table = _table(f"{loaded.name}, seed {loaded.seed}", "expectation", "expected", "found", "verdict")
    for verdict in verdicts:
        mark = "[green]holds" if verdict.holds else "[red]fails"
        table.add_row(verdict.what, escape(verdict.expected), escape(verdict.found), mark)
    console.print(table)
    for fault in outcome.performed:
        console.print(f"fault: {fault}", markup=False, highlight=False)
    counts = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in outcome.counters.items() if value)
    took = (
        f"virtual time: {time_words(outcome.makespan_ns)}"
        if mode == "sim"
        else f"time: {outcome.makespan_ns / 1e9:.2f} s"
    )
    console.print(f"{took}. {counts}", markup=False, highlight=False)
    for remark in outcome.remarks:
        console.print(remark, style="yellow", markup=False, highlight=False, soft_wrap=True)


@scenario.command("check")
def check_command(file: File, seed: Seed = None) -> None:
    """Run a scenario in two processes with different PYTHONHASHSEED: every decision must be the same."""
    loaded = _load(file, seed)
    try:
        found = check_determinism(loaded, directory=file.parent)
    except (ValueError, RuntimeError) as error:
        _refuse(error)
    table = _table(f"{loaded.name}, seed {loaded.seed}", "subsystem", "events", "hash", "hash of the other run", "")
    for row in found.subsystems:
        mark = "[green]equal" if row.is_equal else "[red]differs"
        table.add_row(row.name, f"{row.events:,}", row.first, row.second, mark)
    Console().print(table)
    if found.divergence is not None:
        print(found.divergence)
        raise typer.Exit(FAILED)


@scenario.command("list")
def list_command(
    directory: Annotated[Path, typer.Argument(help="Where scenario files are.")] = SCENARIOS,
) -> None:
    """List the scenario files of a directory."""
    files = sorted(directory.glob("*.yaml"))
    if not files:
        _refuse(f"there is no *.yaml in {str(directory)!r}; `dualray scenario new` writes a first one")
    table = _table(f"Scenarios in {directory}", "file", "nodes", "workload", "faults", "what it shows")
    wrong = []
    for path in files:
        try:
            loaded = load_scenario(path)
        except ScenarioError as error:
            wrong.append(str(error))
            continue
        nodes = len(loaded.cluster.each_node())
        table.add_row(path.name, str(nodes), loaded.workload.words, str(len(loaded.planned())), loaded.description)
    Console().print(table)
    for problem in wrong:
        print(problem)
    if wrong:
        raise typer.Exit(FAILED)


FIRST_PROGRAM = '''"""Adds up squares that tasks compute. Run it with: python first.py"""

import dualray as ray


@ray.remote(max_retries=3)
def square(number):
    return number * number


print(sum(ray.get([square.remote(number) for number in range(20)])))
'''

FIRST_SCENARIO = """\
# Three virtual nodes run first.py, and one dies. Try:
#   dualray scenario run {file}
#   dualray explore {file}
name: {name}
cluster: {{nodes: 3, cpus: 2}}
workload: {{script: {script}}}
faults:
- kill node-1 when square starts 5
expect: {{same_as_without_faults: true}}
"""


@scenario.command("new")
def new_command(
    name: Annotated[str, typer.Argument(help="The files' name, without .yaml.")] = "first",
) -> None:
    """Write a small program and a scenario for it, to start from.

    Example: dualray scenario new && dualray scenario run first.yaml
    """
    file, script = Path(f"{name}.yaml"), Path(f"{name}.py")
    if existing := next((path for path in (file, script) if path.exists()), None):
        _refuse(f"{str(existing)!r} exists; give another name, as in: dualray scenario new {name}2")
    try:
        script.write_text(FIRST_PROGRAM.replace("first.py", script.name))
        file.write_text(FIRST_SCENARIO.format(file=file, name=file.stem, script=script.name))
    except OSError as error:
        _refuse(f"{file} cannot be written: {error.strerror}")
    print(f"{script} and {file}: now try dualray scenario run {file}")


@scenario.command("schema")
def schema_command() -> None:
    """Print the JSON schema of scenario files, for editors."""
    print(json.dumps(json_schema(), indent=2))


# ---- explore -------------------------------------------------------------------------------------------------------


def explore_command(
    file: File,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 100,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes at once.")] = 1,
    seed_timeout: Annotated[float, typer.Option(min=1, help="Seconds of wall time for one seed.")] = 60,
    shrink: Annotated[bool, typer.Option(help="Shrink each kind of failure to a file.")] = True,
    shrink_runs: Annotated[int, typer.Option(min=1, help="Maximum runs per shrink.")] = RUNS_MAX,
    output: Annotated[Path, typer.Option(help="Directory for the files of shrunk failures.")] = Path("failures"),
    stop_after: Annotated[int, typer.Option(min=1, help="Failing seeds after which to stop.")] = 10,
    repeat: Annotated[
        str, typer.Option(help="Share of the seeds run again with another PYTHONHASHSEED: 5%, 0.05; 0 for none.")
    ] = "5%",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also list what was reached, and how often.")
    ] = False,
) -> None:
    """Run a scenario under new random faults for each seed, and shrink each kind of failure to few faults.

    Example: dualray explore scenarios/pi.yaml --seeds 200
    """
    loaded = _load(file)
    try:
        share = parse_share(repeat, "--repeat")
    except ValueError as error:
        _refuse(error)
    with _progress() as progress:
        bar = progress.add_task(loaded.name, total=seeds, rate="")

        def advance(state: Exploration) -> None:
            failing = f", [red]{len(state.findings)} failing" if state.findings else ""
            rate = f"{state.seeds_per_s:.1f} seeds/s, {len(state.coverage)} counters reached{failing}"
            progress.update(bar, completed=state.seeds, rate=rate)

        def note(words: str) -> None:
            progress.update(bar, description=words)

        try:
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
                on_note=note,
            )
        except (ValueError, RuntimeError) as error:
            _refuse(error)
    _show_exploration(loaded, found, file, is_verbose=verbose)
    if found.findings:
        raise typer.Exit(FAILED)


def _progress() -> Progress:
    """A bar on stderr that leaves nothing behind."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _show_exploration(loaded: Scenario, found: Exploration, file: Path, *, is_verbose: bool) -> None:
    """The verdict first, then the findings, then what was covered."""
    console = Console()
    count = len(found.findings)
    verdict = (
        f"[red]{count:,} of {found.seeds:,} seeds fail[/]" if count else f"[green]no seed fails[/] of {found.seeds:,}"
    )
    console.print(f"{escape(loaded.name)}: {verdict}; {found.seeds_per_s:.1f} seeds/s", highlight=False)
    for finding in found.findings[:SEEDS_LISTED_MAX]:
        _show_finding(console, finding, file)
    if len(found.findings) > SEEDS_LISTED_MAX:
        console.print(f"and {len(found.findings) - SEEDS_LISTED_MAX} more failing seeds")
    if found.faults_planned:
        share = found.faults_performed / found.faults_planned
        console.print(f"faults: {found.faults_planned:,} planned, {found.faults_performed:,} ({share:.0%}) happened")
    elif loaded.swarm.most:
        console.print("no fault was planned: nothing that may be drawn can happen on this cluster", style="yellow")
    if found.repeated:
        verdict = f"[red]{found.differing:,} differ" if found.differing else "all the same"
        console.print(f"{found.repeated:,} of {found.seeds:,} seeds run again: {verdict}", highlight=False)
    if not is_verbose:
        missing = f", {len(found.never_happened)} did not" if found.never_happened else ""
        console.print(
            f"coverage: {len(found.coverage)} situations were reached{missing}; -v lists them", highlight=False
        )
        return
    table = _table("What was reached", "situation", "seeds", "times")
    for name, (in_seeds, times) in sorted(found.coverage.items()):
        table.add_row(escape(name), f"{in_seeds:,}", f"{times:,}")
    console.print(table)
    if found.never_happened:
        console.print(f"never happened: {', '.join(found.never_happened)}", style="yellow")


def _show_finding(console: Console, finding: Finding, file: Path) -> None:
    console.print(f"\n[red]seed {finding.seed}[/]: {escape(finding.kind)}", highlight=False)
    console.print(f"  {finding.problem}", markup=False, highlight=False, soft_wrap=True)
    _show_failure(console, finding.output, finding.traceback, finding.story)
    for fault in finding.faults:
        console.print(f"  fault: {fault}", markup=False, highlight=False, soft_wrap=True)
    replay = finding.replay or f"dualray explore {file} --first {finding.seed} --seeds 1"
    console.print(f"  repeat it: {replay}", markup=False, highlight=False, soft_wrap=True)


def _show_failure(console: Console, output: str, traceback: str, story: Sequence[str]) -> None:
    """What the program printed, where it failed, and what had happened to the tasks and objects it is about."""
    for title, lines in (
        ("the program printed:", output.splitlines()),
        ("", traceback.splitlines()),
        ("what happened, in virtual time since the start of the first node:", story),
    ):
        if lines and title:
            console.print(f"  {title}", markup=False, highlight=False)
        for line in lines[-OUTPUT_LINES_MAX:] if title.startswith("the program") else lines:
            console.print(f"    {line}" if title else f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=escape(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


app = typer.Typer(add_completion=False)
app.command("explore")(explore_command)
