"""The command line for faults on real processes: `dualray chaos`.

Exit codes as in app.py: 0; 1 when a result was wrong, something hung, a fault could not be performed, anything was left
behind, or the recorded decisions cannot be derived again; 2 when the command was given something that it cannot use.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

from dualray.cli.declare import Commands, Exit, Option
from dualray.cli.printing import (
    DECISION_LOG_HELP,
    DRY_RUN_HELP,
    FAULTS_HELP,
    NODES_HELP,
    SEED_HELP,
    AsJson,
    print_json,
    refuse,
    say,
    say_aside,
    show,
)
from dualray.cli.progress import Progress
from dualray.exceptions import DualrayError
from dualray.report.proof import Proof, check_directory
from dualray.shared.scenario.fault_model import Fault, parse_fault
from dualray.testing.chaos import Soak, schedule, soak
from dualray.text_tables import Table

FAILED = 1
_LINES_SHOWN = 20

app = Commands()


def _end(number: int, frame: object) -> NoReturn:
    """SIGTERM ends a run as Ctrl-C does: paused processes are resumed, and end."""
    signal.signal(number, signal.SIG_IGN)  # ignore further signals, because cleaning up takes a while
    raise SystemExit(128 + number)


Workload = Annotated[
    str,
    Option(
        help="Test program to run: mixed (with tasks, large objects and actors), or another of dualray's "
        "test programs, such as shuffle."
    ),
]
Records = Annotated[
    Path | None,
    Option(
        "--decision-log",
        "--record",
        help=f"{DECISION_LOG_HELP} Without --decision-log, `dualray chaos` writes the events and decisions "
        "to a temporary directory.",
    ),
]
Faults = Annotated[
    list[str] | None,
    Option(
        "--faults",
        "--fault",
        help=f"{FAULTS_HELP} If you set faults with --faults, `dualray chaos` injects no random faults.",
    ),
]
Patience = Annotated[
    float,
    Option(
        min=1,
        help="Time without progress, in seconds, after which `dualray chaos` reports that the test program hangs.",
    ),
]


@app.add("chaos")
def chaos_command(
    seed: Annotated[
        int, Option(min=0, help=f"{SEED_HELP} Two runs of `dualray chaos` with the same seed inject the same faults.")
    ] = 0,
    random_faults: Annotated[int, Option(min=1, help="Number of random faults to inject.")] = 300,
    nodes: Annotated[
        int,
        Option(
            min=1,
            help=f"{NODES_HELP} The random faults of `dualray chaos` never kill node-0, which runs the cluster's "
            "head process and the test program.",
        ),
    ] = 3,
    workload: Workload = "mixed",
    decision_log: Records = None,
    faults: Faults = None,
    patience: Patience = 60,
    dry_run: Annotated[
        bool, Option("--dry-run", help=f"{DRY_RUN_HELP} With --dry-run, `dualray chaos` lists the planned faults.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Kill, pause and slow down processes of a cluster while a test program runs, and check the program's results.

    Example: dualray chaos --random-faults 20 --nodes 2
    """
    try:
        plan = _plan(faults or [], seed=seed, random_faults=random_faults, nodes=nodes, workload=workload)
    except ValueError as error:
        refuse(error)
    if dry_run:
        _show_plan(plan, as_json=as_json)
        return
    record = decision_log
    if record is not None and any(record.glob("*.decisions")):
        refuse(f"--decision-log {str(record)!r} has the logs of an earlier run; give a new or empty directory")
    with contextlib.ExitStack() as undo:
        undo.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _end))
        cleaning = undo.enter_context(contextlib.ExitStack())
        if record is None:
            record = Path(tempfile.mkdtemp(prefix="dualray-chaos-"))
            cleaning.callback(shutil.rmtree, record)
        try:
            found = _soak(plan, workload=workload, nodes=nodes, record=record, seed=seed, patience_s=patience)
            proof = check_directory(record)
        except (DualrayError, ValueError) as error:
            refuse(error)
        _show(found, proof, as_json=as_json)
        if found.is_right and proof.is_exact:
            return
        cleaning.pop_all()
        say_aside(f"decision logs and traces: {record}")
        if not faults:
            of_workload = "" if workload == "mixed" else f" --workload {workload}"
            same = f"--seed {seed} --random-faults {random_faults} --nodes {nodes}{of_workload}"
            say_aside(f"to see the faults: dualray chaos {same} --dry-run")
    raise Exit(FAILED)


def _plan(faults: list[str], *, seed: int, random_faults: int, nodes: int, workload: str) -> tuple[Fault, ...]:
    if not faults:
        return schedule(seed=seed, faults=random_faults, nodes=nodes, workload=workload)
    if faults[0].isdigit():
        raise ValueError(
            f"--faults {faults[0]} must be a fault, such as 'kill node-1 at 2s'. For {faults[0]} faults at random, "
            f"use --random-faults {faults[0]}"
        )
    return tuple(map(parse_fault, faults))


def _soak(plan: tuple[Fault, ...], *, workload: str, nodes: int, record: Path, seed: int, patience_s: float) -> Soak:
    with Progress("faults", len(plan)) as progress:

        def show(words: str) -> None:
            progress.say(f"  {words}")

        def advance(so_far: Soak) -> None:
            news = f"{so_far.tasks:,} tasks, {so_far.rounds.total():,} rounds, {so_far.retries:,} retries"
            progress.update(completed=len(so_far.performed), note=news)

        return soak(
            plan,
            workload=workload,
            nodes=nodes,
            record=record,
            seed=seed,
            patience_s=patience_s,
            on_fault=show,
            on_progress=advance,
        )


def _as_json(found: Soak, proof: Proof) -> dict[str, Any]:
    return {
        **asdict(found),
        "rounds": dict(found.rounds),
        "is_right": found.is_right and proof.is_exact,
        "decisions": proof.decisions,
        "differences": {name: str(difference) for name, difference in proof.differences.items()},
        "actions_matched": proof.matched,
        "orphans": proof.orphans,
    }


def _show_plan(plan: tuple[Fault, ...], *, as_json: bool) -> None:
    if as_json:
        print_json({"faults": [str(fault) for fault in plan]})
    else:
        print(*plan, sep="\n")


def _show(found: Soak, proof: Proof, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(found, proof))
        return
    table = Table(title=f"Chaos: {found.seconds:.0f} s", has_head=False)
    table.add_column()
    table.add_column(justify="right")
    rounds = ", ".join(f"{name} {count:,}" for name, count in sorted(found.rounds.items()))
    for name, value in (
        ("faults performed", f"{len(found.performed):,} of {found.planned:,}"),
        ("rounds with the right result", rounds or "none"),
        ("attempts of tasks that ended", f"{found.tasks:,}"),
        ("retries of tasks", f"{found.retries:,}"),
        ("objects recomputed", f"{found.reconstructions:,}"),
        ("restarts of actors", f"{found.restarts:,}"),
        ("deaths of nodes", f"{found.deaths:,}"),
        ("wrong results", f"{len(found.wrong):,}"),
        ("leaks in the idle cluster", f"{len(found.unrest):,}"),
        ("leaks on the machine", f"{len(found.left_behind):,}"),
        ("decisions replayed", f"{proof.decisions:,}, different in {len(proof.differences):,} processes"),
        ("actions matched", f"{proof.matched:,}, orphans {proof.orphans:,}"),
    ):
        table.add_row(name, value)
    show(table)
    for title, lines in (
        ("hang", found.hang),
        ("wrong", found.wrong),
        ("faults not performed, or not undone", found.problems),
        ("leaks in the idle cluster", found.unrest),
        ("leaks on the machine", found.left_behind),
        ("replay differs", [f"{name}: {difference}" for name, difference in proof.differences.items()]),
    ):
        if lines:
            say(title, colour="red")
        for line in lines[:_LINES_SHOWN]:
            say(f"  {line}")
    if found.is_right and proof.is_exact:
        say("All results are right, nothing hung or leaked, and replayed decisions equal the log.", colour="green")
