"""The command line for scenarios: `dualray scenario run | check | list | new | schema`.

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
from typing import Annotated, Any

from dualray.cli.declare import Argument, Commands, Exit, Option
from dualray.cli.printing import (
    DECISION_LOG_HELP,
    MODE_HELP,
    REPORT_HELP,
    SCENARIO_SEED_HELP,
    AsJson,
    Quiet,
    print_json,
    refuse,
    say,
    say_aside,
    show,
    table_of,
)
from dualray.cli.seeing import check_outputs, write_outputs
from dualray.report.record import read_record
from dualray.shared.scenario.file import ScenarioError, json_schema
from dualray.shared.scenario.scenario import Scenario
from dualray.shared.units import time_words
from dualray.testing.determinism import check_determinism
from dualray.testing.expectations import Verdict, judge
from dualray.testing.outcome import Outcome
from dualray.testing.run import load_scenario, run_scenario
from dualray.testing.stories import stories_of
from dualray.text_tables import Coloured

FAILED = 1
SCENARIOS = Path("scenarios")
OUTPUT_LINES_MAX = 30
"""Most lines that a command shows from the end of a failing program's output."""

scenario = Commands(
    "scenario",
    help="Work with scenario files. A scenario file describes a cluster, a workload, faults and expectations.",
)

File = Annotated[Path, Argument(help="YAML file with a scenario: a cluster, a program, faults and expected results.")]
Seed = Annotated[int | None, Option(help=SCENARIO_SEED_HELP)]
Timeline = Annotated[
    Path | None,
    Option(
        help="JSON file to which the command writes a timeline of the run. To see the timeline, open the "
        "JSON file in https://ui.perfetto.dev."
    ),
]


def load(path: Path, seed: int | None = None) -> Scenario:
    """Load the scenario of a file. The command ends if the file is not a scenario."""
    try:
        loaded = load_scenario(path)
    except ScenarioError as error:
        refuse(error)
    return loaded if seed is None else loaded.model_copy(update={"seed": seed})


@scenario.add("run")
def run_command(
    file: File,
    mode: Annotated[str, Option(help=MODE_HELP)] = "sim",
    seed: Seed = None,
    decision_log: Annotated[Path | None, Option(help=DECISION_LOG_HELP)] = None,
    report: Annotated[
        Path | None,
        Option(
            help=f"{REPORT_HELP} The report of `dualray scenario run` shows charts of the run, and whether the run met "
            "each expectation of the scenario."
        ),
    ] = None,
    timeline: Timeline = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run the program of a scenario (a YAML file), and check that the run meets the scenario's expectations.

    Example: dualray scenario run first.yaml --report first.html
    """
    loaded = load(file, seed)
    if mode not in ("sim", "real", "ray"):
        refuse(f"--mode {mode!r} must be sim, real or ray")
    if mode == "ray" and (report or timeline or decision_log):
        refuse("--report, --timeline and --decision-log cannot be used with --mode ray: Ray writes no decision logs")
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
            failed = not all(verdict.holds for verdict in verdicts)
            story = _story(loaded, file, mode, outcome, decision_log) if failed and not quiet else []
            if as_json:
                print_json(_as_json(loaded, outcome, verdicts, story))
            elif quiet:
                print(f"{loaded.name}, seed {loaded.seed}: {'fails' if failed else 'holds'}")
            else:
                _show_run(loaded, outcome, verdicts, mode)
                if failed:
                    show_failure("", outcome.traceback, story)
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
            refuse(error)
    if failed:
        raise Exit(FAILED)


def _as_json(loaded: Scenario, outcome: Outcome, verdicts: Sequence[Verdict], story: Sequence[str]) -> dict[str, Any]:
    return {
        "scenario": loaded.name,
        "seed": loaded.seed,
        "holds": all(verdict.holds for verdict in verdicts),
        "expectations": [
            {"what": each.what, "expected": each.expected, "found": each.found, "holds": each.holds}
            for each in verdicts
        ],
        "makespan_s": outcome.makespan_ns / 1e9,
        "error": list(outcome.error),
        "message": outcome.message,
        "traceback": outcome.traceback,
        "output": outcome.output,
        "faults": list(outcome.performed),
        "faults_missed": list(outcome.missed),
        "counters": outcome.counters,
        "remarks": list(outcome.remarks),
        "story": list(story),
    }


def _story(loaded: Scenario, file: Path, mode: str, outcome: Outcome, record: Path | None) -> list[str]:
    """Print what happened to the tasks, actors and objects of a failure. A simulation runs again to find out."""
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
    if outcome.output:
        say(outcome.output.rstrip())
    table = table_of(f"{loaded.name}, seed {loaded.seed}", "expectation", "expected", "found", "verdict")
    for verdict in verdicts:
        mark = Coloured("holds", "green") if verdict.holds else Coloured("fails", "red")
        table.add_row(verdict.what, verdict.expected, verdict.found, mark)
    show(table)
    for fault in outcome.performed:
        say(f"fault: {fault}")
    counts = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in outcome.counters.items() if value)
    took = (
        f"virtual time: {time_words(outcome.makespan_ns)}"
        if mode == "sim"
        else f"time: {outcome.makespan_ns / 1e9:.2f} s"
    )
    say(f"{took}. {counts}")
    for remark in outcome.remarks:
        say(remark, colour="yellow")


@scenario.add("check")
def check_command(file: File, seed: Seed = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Simulate a scenario twice with the same seed, and check that both runs make the same scheduling decisions.

    The two simulations of `dualray scenario check` have different values of PYTHONHASHSEED, on which the order of a
    Python set may depend.

    Example: dualray scenario check first.yaml
    """
    loaded = load(file, seed)
    try:
        found = check_determinism(loaded, directory=file.parent)
    except (ValueError, RuntimeError) as error:
        refuse(error)
    if as_json:
        rows = [
            {"subsystem": row.name, "events": row.events, "hashes": [row.first, row.second], "is_equal": row.is_equal}
            for row in found.subsystems
        ]
        divergence = None if found.divergence is None else str(found.divergence)
        print_json({"scenario": loaded.name, "seed": loaded.seed, "subsystems": rows, "divergence": divergence})
    else:
        words = "all decisions equal" if found.divergence is None else "decisions differ"
        print(f"{loaded.name}, seed {loaded.seed}: {words}")
    if not (as_json or quiet):
        table = table_of("", "subsystem", "events", "hash", "hash of the other run", "verdict")
        for row in found.subsystems:
            mark = Coloured("equal", "green") if row.is_equal else Coloured("differs", "red")
            table.add_row(row.name, f"{row.events:,}", row.first, row.second, mark)
        show(table)
    if found.divergence is not None:
        if not as_json:
            print(found.divergence)
        raise Exit(FAILED)


@scenario.add("list")
def list_command(
    directory: Annotated[Path, Argument(help="Directory that contains the scenario files to list.")] = SCENARIOS,
    as_json: AsJson = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the names of the scenario files.")] = False,
) -> None:
    """List the scenario files (YAML files that describe simulations) in a directory.

    Example: dualray scenario list scenarios
    """
    files = sorted(directory.glob("*.yaml"))
    if not files:
        refuse(f"the directory {str(directory)!r} has no *.yaml file; `dualray scenario new` writes a first one")
    rows: list[dict[str, Any]] = []
    wrong = []
    for path in files:
        try:
            loaded = load_scenario(path)
        except ScenarioError as error:
            wrong.append(str(error))
            continue
        rows.append(
            {
                "file": path.name,
                "nodes": len(loaded.cluster.each_node()),
                "workload": loaded.workload.words,
                "faults": len(loaded.planned()),
                "description": loaded.description,
            }
        )
    if as_json:
        print_json(rows)
    elif quiet:
        print("\n".join(row["file"] for row in rows))
    else:
        table = table_of(f"Scenarios in {directory}", "file", "nodes", "workload", "faults", "what it shows")
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        show(table)
    for problem in wrong:
        say_aside(problem)
    if wrong:
        raise Exit(FAILED)


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


@scenario.add("new")
def new_command(
    name: Annotated[
        str, Argument(help="Name of the two new files: the program NAME.py and the scenario file NAME.yaml.")
    ] = "first",
) -> None:
    """Write a small example program, and a scenario file that runs the program on a simulated cluster.

    Example: dualray scenario new && dualray scenario run first.yaml
    """
    file, script = Path(f"{name}.yaml"), Path(f"{name}.py")
    if existing := next((path for path in (file, script) if path.exists()), None):
        refuse(f"{str(existing)!r} exists already; give another name, as in: dualray scenario new {name}2")
    try:
        script.write_text(FIRST_PROGRAM.replace("first.py", script.name))
        file.write_text(FIRST_SCENARIO.format(file=file, name=file.stem, script=script.name))
    except OSError as error:
        refuse(f"{str(file)!r} cannot be written: {error.strerror}")
    print(f"{script} and {file}: now try dualray scenario run {file}")


@scenario.add("schema")
def schema_command() -> None:
    """Print the JSON schema of scenario files, so that your editor can check a scenario file as you type.

    Example: dualray scenario schema > scenario.schema.json
    """
    print(json.dumps(json_schema(), indent=2))


def show_failure(output: str, traceback: str, story: Sequence[str]) -> None:
    """Print the program's output, the place of the failure, and the history of the tasks and objects in the failure."""
    for title, lines in (
        ("the program printed:", output.splitlines()),
        ("", traceback.splitlines()),
        ("what happened, in virtual time since the start of the first node:", story),
    ):
        if lines and title:
            say(f"  {title}")
        for line in lines[-OUTPUT_LINES_MAX:] if title.startswith("the program") else lines:
            say(f"    {line}" if title else f"  {line}")
