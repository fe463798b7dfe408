"""`dualray logs`: the log files of this machine's sessions, and what a task, an actor or a worker has printed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from dualray.cli.declare import Argument, Commands, Exit, Option
from dualray.cli.printing import refuse, say_aside, show
from dualray.real.observe import log_files
from dualray.real.observe.log_files import LogFileEntry, LogPlace, LogQuery, LogReader
from dualray.shared.nearest import nearest
from dualray.text_tables import Table

TAIL_LINES = 1000
"""As of `ray logs`."""
SUBJECTS = ("task", "actor", "worker")
NOTHING_RUNS = (
    "No real cluster of this user runs on this machine. Logs of a session that has ended are there if "
    "init(log_directory=DIR) kept them: dualray logs --directory DIR. A simulation has no log files: what its tasks "
    "print is on its driver's own stdout."
)

app = Commands()


@app.add("logs")
def logs_command(
    what: Annotated[str | None, Argument(help="A file's name or a glob; or task, actor, worker.")] = None,
    which: Annotated[
        str | None, Argument(help="Id of the task or actor, or its beginning; address of the worker.")
    ] = None,
    id_: Annotated[str | None, Option("--id", help="Task or actor id (Ray's spelling).")] = None,
    pid: Annotated[int | None, Option(help="Process id of the worker or actor.")] = None,
    attempt: Annotated[
        int | None, Option("--attempt-number", "-a", help="Attempt of the task: 0 is the first; default: all.", min=0)
    ] = None,
    err: Annotated[bool, Option("--err", help="Print stderr instead of stdout.")] = False,
    tail: Annotated[int, Option(help="Number of last lines; -1: all.", min=-1)] = TAIL_LINES,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Keep printing new lines until Ctrl-C or the session's end.")
    ] = False,
    session: Annotated[str | None, Option(help="Session name, or part of it.")] = None,
    node: Annotated[str | None, Option("--node-id", "--node", help="Node, such as node-1.")] = None,
    directory: Annotated[Path | None, Option(help="Directory of kept logs, from init(log_directory=).")] = None,
    format_: Annotated[str, Option("--format", help="Format of the list: table or json.")] = "table",
) -> None:
    """List the log files of real clusters on this machine, or print one, or what a task, an actor or a worker printed.

    A simulation has no log files: what its tasks print is on its driver's own stdout.
    """
    try:
        if format_ not in ("table", "json"):
            raise ValueError(f"--format {format_!r} must be table or json")
        what, which = (which, None) if what == "cluster" else (what, which)  # Ray's long form
        places = log_files.places_here() if directory is None else log_files.places_in(directory)
        if not places:
            if what is not None:
                raise ValueError(NOTHING_RUNS)
            _list([], format_)
            return
        places = log_files.chosen(places, session=session, node=node)
        if what not in SUBJECTS:
            _check_of_a_file(
                what, which, {"--id": id_, "--pid": pid, "--attempt-number": attempt, "--err": err or None}
            )
            entries = log_files.find_files(places, what or "*")
            if what is None or len(entries) > 1:
                _list(entries, format_)
                if what is not None:
                    say_aside(
                        f"{what!r} is {len(entries)} files: name one, with --session or --node where they are alike"
                    )
                return
            query = log_files.of_file(entries[0], places)
        else:
            if which is not None and id_ is not None:
                raise ValueError(f"{which!r} and --id {id_!r} say the same: give one of them")
            query = _query(places, what, which or id_, pid, attempt, "err" if err else "out", may_come=follow)
    except ValueError as error:
        refuse(error)
    streams = "stderr: see stdout, without --err" if err else "stdout: see stderr, with --err"
    until_now = "until now nothing" if follow else "nothing"
    _print(query, tail, follow=follow, if_empty=f"{until_now} is on {streams}" if what in SUBJECTS else "it is empty")


def _check_of_a_file(what: str | None, which: str | None, options: dict[str, object]) -> None:
    if what is not None and which is not None:
        raise ValueError(
            f"{what!r} {which!r}: one file, or a glob in quotes, or one of {', '.join(SUBJECTS)} and which"
            f"{nearest(what, SUBJECTS)}"
        )
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} is of what {', '.join(SUBJECTS)} have printed, as in: dualray logs task --id ID")


def _query(
    places: Sequence[LogPlace],
    what: str,
    which: str | None,
    pid: int | None,
    attempt: int | None,
    stream: str,
    *,
    may_come: bool,
) -> LogQuery:
    if (which is None) == (pid is None):
        raise ValueError(
            f"dualray logs {what} needs {'a pid with --pid or ' if what != 'task' else ''}{_id_of(what)}, and one alone"
        )
    if pid is not None and what == "task":
        raise ValueError("--pid is of a worker or an actor: dualray logs worker --pid N")
    if attempt is not None and what != "task":
        raise ValueError(f"--attempt-number is of a task, not of {what!r}")
    if pid is not None:
        return log_files.of_pid(places, pid, stream=stream)
    assert which is not None
    if what == "task":
        return log_files.of_task(places, which, attempt=attempt, stream=stream, may_come=may_come)
    if what == "actor":
        return log_files.of_actor(places, which, stream=stream, may_come=may_come)
    return log_files.of_worker(places, which, stream=stream)


def _id_of(what: str) -> str:
    return "an address, such as node-0/w3" if what == "worker" else f"the {what}'s id"


def _print(query: LogQuery, tail: int, *, follow: bool, if_empty: str) -> None:
    """Bytes as they are: nobody knows what a program prints."""
    try:
        with LogReader(query) as reader:
            for data in reader.read(tail):
                sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            if reader.has_left_out:
                say_aside(f"-- {tail:,} lines at most: --tail -1 shows all --")
            if reader.is_empty:
                say_aside(f"-- {if_empty} --")
            if follow:
                for data in reader.follow():
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        raise Exit from None


def _list(entries: Sequence[LogFileEntry], format_: str) -> None:
    if format_ == "json":
        rows = [
            {
                "session": entry.session,
                "node_id": entry.node,
                "file": entry.name,
                "size_bytes": entry.size_bytes,
                "changed_s": entry.changed_s,
                "path": str(entry.path),
            }
            for entry in entries
        ]
        json.dump(rows, sys.stdout, indent=2)
        print()
        return
    if not entries:
        print(NOTHING_RUNS)
        return
    table = Table(title="Log files")
    for name in ("session", "node", "file", "bytes", "last change"):
        table.add_column(name, is_whole=name in ("session", "file"), justify="right" if name == "bytes" else "left")
    for entry in entries:
        changed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.changed_s))
        table.add_row(entry.session, entry.node, entry.name, f"{entry.size_bytes:,}", changed)
    show(table)
