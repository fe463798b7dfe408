"""The command line for seeing what a run did: `dualray report`, `timeline` and `explain`.

All three read what a recorded run has left (`--decision-log DIR`), of either mode; `explain` also takes a scenario
file, which it runs, and asks a running cluster when neither is given. Exit codes as in app.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from dualray.cli.declare import Argument, Commands, Option
from dualray.cli.printing import (
    LOG_HELP,
    SCENARIO_SEED_HELP,
    SHORT_ID,
    AsJson,
    print_json,
    refuse,
    say,
)
from dualray.cli.state import Address, find_row, opened_state
from dualray.cli.waiting import history_now
from dualray.report.explain import Story, Teller
from dualray.report.find import find_id
from dualray.report.histories import Lives
from dualray.report.record import Record, read_record
from dualray.report.timeline import write_timeline
from dualray.report.traces import read_traces
from dualray.shared.scenario.file import ScenarioError
from dualray.shared.scenario.scenario import Scenario
from dualray.shared.units import time_words
from dualray.testing.expectations import Verdict
from dualray.testing.hindsight import Hindsight, hindsight_of
from dualray.testing.run import load_scenario, run_scenario

MARKS = (
    (b"<!doctype html>", b"dualray"),
    (b"{", b"traceEvents"),
    (b"format: dualray", b"costs:"),
    (b"PAR1", b""),
)
"""How each page, timeline, calibration and record begins, and other text near the beginning or end of the file."""
LOOKED_AT_BYTES = 1 << 16
SCENARIO_SUFFIXES = (".yaml", ".yml")

Directory = Annotated[Path, Argument(help=LOG_HELP)]


def check_outputs(*, report: Path | None, timeline: Path | None, report_option: str = "--report") -> None:
    """Check before a run that the command can write its files.

    Raises:
        ValueError: one cannot; the message names the option, the path, and what is wrong with it.
    """
    if report is not None:
        _check_writable(report, report_option)
    if timeline is not None:
        _check_writable(timeline, "--timeline")


def _check_writable(path: Path, option: str) -> None:
    if path.is_dir():
        raise ValueError(f"{option} {str(path)!r} is a directory; give the path of a file")
    check_ours(path, option)
    is_new = not path.exists()
    try:
        with path.open("a"):
            pass
        if is_new:  # what is refused later leaves nothing
            path.unlink()
    except OSError as error:
        hint = "; create its directory first" if not path.parent.is_dir() else ""
        raise ValueError(f"{option} {str(path)!r} cannot be written: {error.strerror}{hint}") from None


def check_ours(path: Path, option: str) -> None:
    """Check before a run that dualray wrote the existing file, which the command will replace.

    Raises:
        ValueError: it may not.
    """
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            start = file.read(LOOKED_AT_BYTES)
            file.seek(max(0, path.stat().st_size - LOOKED_AT_BYTES))
            end = file.read()
    except OSError:
        return  # it cannot be written either, and that is said
    if start and not any(start.startswith(begin) and mark in start + end for begin, mark in MARKS):
        raise ValueError(
            f"{option} {str(path)!r} exists, and dualray overwrites only files that dualray wrote; remove the file, or "
            "give another path"
        )


def write_outputs(
    record: Record,
    *,
    report: Path | None,
    timeline: Path | None,
    title: str = "",
    subtitle: str = "",
    verdicts: Sequence[Verdict] = (),
) -> None:
    """Write the requested page and timeline, and print their paths.

    Raises:
        ValueError: the record shows nothing, or a file cannot be written; the message names it.
    """
    try:
        if report is not None:
            from dualray.report.page import Check, write_page  # noqa: PLC0415 - numpy, for a page alone

            checks = [Check(what=v.what, expected=v.expected, found=v.found, holds=v.holds) for v in verdicts]
            write_page(record, report, title=title, subtitle=subtitle, checks=checks)
            print(f"{report}: open this page in a browser; the page needs no network")
        if timeline is not None:
            write_timeline(record.events, timeline)
            print(f"{timeline}: {len(record.events):,} trace events; open this file in https://ui.perfetto.dev")
    except OSError as error:
        named = error.filename or " or ".join(str(path) for path in (report, timeline) if path is not None)
        raise ValueError(f"{named} cannot be written: {error.strerror}") from None


def report_command(
    directory: Directory,
    output: Annotated[Path, Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, Option(help="Title of the HTML report.")] = "",
) -> None:
    """Write a report about a finished run as one HTML file, which a browser can show without a network.

    Example: dualray report run1 --output run1.html
    """
    try:
        check_outputs(report=output, timeline=None, report_option="--output")
        write_outputs(read_record(directory), report=output, timeline=None, title=title)
    except ValueError as error:
        refuse(error)


def timeline_command(
    directory: Directory,
    output: Annotated[Path, Option("--output", "-o", help="JSON file to write.")] = Path("timeline.json"),
) -> None:
    """Write the timeline of a finished run as a JSON file that you can open in https://ui.perfetto.dev.

    Example: dualray timeline run1 --output run1.json
    """
    try:
        _check_writable(output, "--output")
        write_outputs(Record(events=read_traces(directory)), report=None, timeline=output)
    except ValueError as error:
        refuse(error)


Wanted = Annotated[
    str,
    Argument(
        metavar="ID",
        help="Task, actor or object to explain: an id, the first characters of an id, or the name of a task.",
    ),
]


ExplainedLog = Annotated[
    Path | None,
    Option(help=f"{LOG_HELP} `dualray explain ID DIR` means the same as `dualray explain ID --log DIR`."),
]


def explain_command(
    wanted: Wanted,
    source: Annotated[
        Path | None,
        Argument(
            metavar="[DIRECTORY|SCENARIO]",
            help="Directory that an earlier run wrote with --decision-log, or a scenario file that "
            "`dualray explain` simulates.",
        ),
    ] = None,
    seed: Annotated[int | None, Option(help=SCENARIO_SEED_HELP)] = None,
    log: ExplainedLog = None,
    regret: Annotated[
        bool,
        Option(
            "--regret",
            help="Simulate the scenario again with the explained task on other nodes, and show how much "
            "shorter or longer the whole run would be.",
        ),
    ] = False,
    address: Address = "auto",
    as_json: AsJson = False,
) -> None:
    """Show the history of a task, an actor or an object, such as why a task waited or ran again.

    The history of an actor shows when the actor's constructor ran, and when the actor restarted. If you give no
    directory and no scenario file, `dualray explain` shows what a task of the running cluster waits for.

    Example: dualray explain train run1
    """
    if source is None and log is None and not regret and seed is None:
        _explain_now(wanted, address, as_json=as_json)
        return
    try:
        if log is not None and source is not None:
            raise ValueError(f"--log {str(log)!r} and {str(source)!r} name two runs; leave one of the two out")
        origin = source or log
        if regret and (origin is None or origin.suffix not in SCENARIO_SUFFIXES):
            raise ValueError(
                "--regret needs a scenario file, not a finished run, because dualray runs the scenario again"
            )
        record = _record_of(origin, seed)
        lives = Lives(record)
        subject = find_id(lives, wanted)
        teller = Teller(lives)
        story = teller.tell(subject)
        hindsight = None
        if regret and origin is not None:
            hindsight = hindsight_of(teller, subject, _scenario_of(origin, seed), origin.parent)
    except ValueError as error:
        refuse(error)
    if as_json:
        of_regret = {} if hindsight is None else {"regret": _regret_as_json(hindsight, lives)}
        print_json(_as_json(story, lives) | of_regret)
    else:
        show_story(story, lives)
        if hindsight is not None:
            show_hindsight(hindsight, lives)


def _explain_now(wanted: str, address: str, *, as_json: bool) -> None:
    """Print what a task of a running cluster does now, and what it waits for."""
    hint = ". To explain a finished run, give a scenario file, or a directory that a run wrote with --decision-log DIR"
    with opened_state(address, None, hint=hint) as found:
        row = find_row(found, "tasks", "task", wanted)
        lines = history_now(row)
    title = f"{row['name']}, task {row['task_id'][:SHORT_ID]}"
    if as_json:
        told: list[dict[str, Any]] = [{"time_s": None, "text": line, "details": []} for line in lines]
        print_json({"id": row["task_id"], "title": title, "lines": told})
        return
    say(title, colour="bold")
    say(row["task_id"], colour="dim")
    for line in lines:
        say(f"  {line}")


def _as_json(story: Story, lives: Lives) -> dict[str, Any]:
    lines = [
        {
            "time_s": None if line.time_ns is None else (line.time_ns - lives.zero_ns) / 1e9,
            "text": line.text,
            "details": list(line.details),
        }
        for line in story.lines
    ]
    return {"id": story.subject, "title": story.title, "lines": lines}


def _record_of(source: Path | None, seed: int | None) -> Record:
    if source is None:
        raise ValueError("--seed needs a scenario file: `dualray explain ID SCENARIO --seed 3`")
    if source.suffix not in SCENARIO_SUFFIXES:
        if seed is not None:
            raise ValueError(
                f"--seed {seed} is only for scenario files, but {str(source)!r} is a finished run; leave out --seed"
            )
        return read_record(source)
    scenario = _scenario_of(source, seed)
    with tempfile.TemporaryDirectory(prefix="dualray-explain-") as temporary:
        run_scenario(scenario, directory=source.parent, decision_log=Path(temporary))
        return read_record(Path(temporary))


def _scenario_of(source: Path, seed: int | None) -> Scenario:
    try:
        scenario = load_scenario(source)
    except ScenarioError as error:
        raise ValueError(str(error)) from None
    return scenario if seed is None else scenario.model_copy(update={"seed": seed})


def _regret_as_json(hindsight: Hindsight, lives: Lives) -> dict[str, Any]:
    return {
        "node": hindsight.node,
        "time_s": (hindsight.time_ns - lives.zero_ns) / 1e9,
        "makespan_s": hindsight.makespan_ns / 1e9,
        "regret_s": hindsight.regret_ns / 1e9,
        "alternatives": [
            {"node": it.node, "saved_s": it.saved_ns / 1e9, "error": it.error} for it in hindsight.alternatives
        ],
        "left_out": hindsight.left_out,
    }


def show_hindsight(hindsight: Hindsight, lives: Lives) -> None:
    """Print how long the run would have taken with each other node."""
    took, when = time_words(hindsight.makespan_ns), _moment(hindsight.time_ns - lives.zero_ns)
    say(f"Other nodes: the head chose {hindsight.node} at {when}, and the run took {took}.")
    for it in hindsight.alternatives:
        if it.error:
            words = f"the run would have failed: {it.error.splitlines()[0]}"
        elif it.saved_ns == 0:
            words = "the run would have taken the same time"
        else:
            share = abs(it.saved_ns) / max(1, hindsight.makespan_ns)
            side = "less" if it.saved_ns > 0 else "more"
            words = f"the run would have taken {time_words(abs(it.saved_ns))} {side} ({share:.1%})"
        say(f"    - on {it.node} {words}", colour="dim")
    if hindsight.left_out:
        say(f"    - {hindsight.left_out} more nodes had room, but dualray did not try them", colour="dim")
    if not hindsight.alternatives:
        say("No other node had room for the task, so dualray compared no other nodes.")
    elif hindsight.regret_ns:
        say(f"With the best other node, the run would have been {time_words(hindsight.regret_ns)} faster.")
    else:
        say("The run would not have been faster with another node.")


def show_story(story: Story, lives: Lives) -> None:
    """Print a history. Its times count from the start of the first node, as the times of faults do."""
    say(story.title, colour="bold")
    say(story.subject, colour="dim")
    kind = "virtual" if lives.record.is_virtual else "real"
    say(f"{kind} time since the start of the first node:", colour="dim")
    for line in story.lines:
        when = "" if line.time_ns is None else _moment(line.time_ns - lives.zero_ns)
        say(f"{when:>14}  {line.text}")
        for detail in line.details:
            say(f"{'':>14}    - {detail}", colour="dim")
    if not lives.record.logs:
        say(
            "The directory has a trace and no decision logs, so dualray does not know why it chose each node.",
            colour="yellow",
        )


def _moment(ns: int) -> str:
    return f"-{time_words(-ns)}" if ns < 0 else time_words(ns)


app = Commands()
app.add("report")(report_command)
app.add("timeline")(timeline_command)
app.add("explain")(explain_command)
