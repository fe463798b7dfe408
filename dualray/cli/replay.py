"""The command `dualray replay`. Exit codes: 0; 1 when a command differs; 2 when there is no log to replay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from dualray.cli.declare import Argument, Commands, Exit
from dualray.cli.printing import AsJson, Quiet, Verbose, print_json, refuse, show, table_of
from dualray.report.proof import ProcessProof, Proof, check_directory, load_log
from dualray.shared.proof.decision_log import Difference, replay

FAILED = 1
ORPHANS_SHOWN = 10

app = Commands()


@app.add("replay")
def replay_command(
    path: Annotated[
        Path,
        Argument(
            help="Directory that an earlier run wrote with --decision-log, or the decision log file of one process."
        ),
    ],
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Recompute the scheduling decisions of a finished run from its logged events, and compare them with the logged
    decisions.

    A decision log contains the events that a process received, and the decisions that the process made after each
    event. `dualray replay` checks that each action of the run, such as the start of a task, follows from a logged
    decision. `dualray replay` lists killed processes, processes without a decision log, and processes whose logged
    decisions differ from the recomputed decisions. With -v, `dualray replay` lists all processes of the run.

    Example: dualray replay run1
    """
    try:
        if path.is_dir():
            proof = check_directory(path)
            exact = proof.is_exact
            if as_json:
                print_json(_as_json(proof))
            else:
                print(_verdict(proof))
                if not quiet:
                    _show_proof(proof, verbose)
        elif path.is_file():
            exact = _replay_one(path)
        else:
            refuse(f"there is no file or directory {str(path)!r}")
    except ValueError as error:
        refuse(error)
    if not exact:
        raise Exit(FAILED)


def _replay_one(path: Path) -> bool:
    log = load_log(path)
    found = replay(log)
    print(f"{path}: {log.spec.kind} {log.spec.address}, seed {log.seed or 'none'}")
    if log.is_cut_off:
        print("The log ends in the middle of a decision, because its process was killed.")
    total = sum(len(decision.commands) for decision in log.decisions)
    print(f"decisions replayed: {found.decisions:,} of {len(log.decisions):,}")
    print(f"commands equal:     {found.commands:,} of {total:,}")
    if found.difference is not None:
        _show_difference(log.spec.address, found.difference)
    return found.difference is None


def _verdict(proof: Proof) -> str:
    verdict = "OK" if proof.is_exact else "FAILED"
    return f"Replay {verdict}: {proof.decisions:,} decisions, {len(proof.processes):,} processes"


def _as_json(proof: Proof) -> dict[str, Any]:
    return {
        "is_exact": proof.is_exact,
        "decisions": proof.decisions,
        "commands_equal": proof.commands,
        "actions_matched": proof.matched,
        "orphans": proof.orphans,
        "processes": [
            {
                "process": process.process,
                "decisions": process.decisions,
                "commands_equal": process.commands,
                "actions_matched": process.match.matched,
                "orphans": process.orphans,
                "difference": None if process.difference is None else str(process.difference),
                "remarks": _remarks(process),
            }
            for process in proof.processes
        ],
    }


def _remarks(process: ProcessProof) -> list[str]:
    return [
        *(["differs"] if process.difference is not None else []),
        *([] if process.has_log else ["left no log"]),
        *(["killed"] if process.was_killed else []),
        *(["log cut off"] if process.is_cut_off else []),
        *([f"{len(process.cut_short)} commands not carried out"] if process.cut_short else []),
    ]


def _show_proof(proof: Proof, verbose: bool) -> None:
    print(f"{proof.commands:,} commands are equal; {len(proof.differences):,} processes differ.")
    print(f"{proof.matched:,} actions match a logged command; {proof.orphans:,} actions match none.")
    table = table_of("", "process", "decisions", "commands equal", "actions matched", "orphans", "remarks")
    for column in table.columns[1:5]:
        column.justify = "right"
    for process in proof.processes:
        if not (process.decisions or process.match.matched or process.orphans or process.difference):
            continue
        remarks = _remarks(process)
        if verbose or remarks or process.orphans:
            table.add_row(
                process.process,
                f"{process.decisions:,}",
                f"{process.commands:,}",
                f"{process.match.matched:,}",
                f"{process.orphans:,}",
                ", ".join(remarks),
            )
    if table.has_rows:
        show(table)
    for name, difference in proof.differences.items():
        _show_difference(name, difference)
    for process in proof.processes:
        if process.orphans:
            _show_keys(f"{process.process}, actions without a command", process.match.actions_without_command)
            if not process.was_killed:
                _show_keys(f"{process.process}, commands without an action", process.match.commands_without_action)
    for name, keys in proof.cut_short.items():
        _show_keys(f"{name} was killed; commands that it may not have carried out", keys)


def _show_difference(process: str, difference: Difference) -> None:
    print(f"{process}: the first command that differs: {difference}")


def _show_keys(what: str, keys: Iterable[tuple[str, str, str, int]]) -> None:
    listed = list(keys)
    if not listed:
        return
    print(f"{what}:")
    for kind, subject, other, attempt in listed[:ORPHANS_SHOWN]:
        print(f"  {kind} {subject}{f' to {other}' if other else ''}, attempt {attempt}")
    if len(listed) > ORPHANS_SHOWN:
        print(f"  and {len(listed) - ORPHANS_SHOWN} more")
