"""`dualray logs`: the log files of this machine's sessions, and what a task, an actor or a worker has printed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from dualray.cli.declare import Argument, Commands, Exit, Option
from dualray.cli.printing import (
    FORMAT_HELP,
    KEPT_LOGS_HELP,
    AsJson,
    refuse,
    say,
    say_aside,
    show,
)
from dualray.real.observe import log_files
from dualray.real.observe.log_files import LogFileEntry, LogPlace, LogQuery, LogReader
from dualray.shared.nearest import nearest
from dualray.text_tables import Table

TAIL_LINES = 1000
"""The default number of lines, as in `ray logs`."""
SUBJECTS = ("task", "actor", "worker")
NOTHING_RUNS = (
    "No real cluster of this user runs on this machine. If init(log_directory=DIR) kept the logs of an earlier "
    "session, run: dualray logs --directory DIR. A simulation has no log files: its tasks print to the driver's stdout."
)
ERR_HELP = "Print what the task, actor or worker wrote to stderr, instead of what it wrote to stdout."

app = Commands()


What = Annotated[
    str | None,
    Argument(
        help="What to print: the name of a log file, or one of the words task, actor and worker before the argument "
        "WHICH. If several log files match a glob pattern in quotes, `dualray logs` lists the matching files."
    ),
]
Which = Annotated[
    str | None,
    Argument(
        help="Id of the task or actor whose output to print, or the first characters of the id. To print "
        "the output of a worker, give the worker's address, such as node-0/w3.",
    ),
]
Tail = Annotated[
    int, Option(help="Number of lines to print from the end of the output, or -1 to print all lines.", min=-1)
]
Follow = Annotated[
    bool, Option("--follow", "-f", help="Keep printing new output until you press Ctrl-C or the cluster stops.")
]
Attempt = Annotated[
    int | None,
    Option(
        "--attempt-number",
        "-a",
        help="Attempt of the task whose output to print: 0 for the first attempt, 1 for the second. By default, "
        "`dualray logs` prints the output of all attempts of a task.",
        min=0,
    ),
]

Subject = Annotated[
    str | None,
    Option(
        "--id",
        help="Id of the task or actor whose output to print. With --id, leave out the argument WHICH of "
        "`dualray logs`.",
    ),
]
Session = Annotated[
    str | None,
    Option(
        help="Name of the cluster session whose logs to read, or a part of the name. Each start of a "
        "cluster creates a new session."
    ),
]


@app.add("logs")
def logs_command(
    what: What = None,
    which: Which = None,
    id_: Subject = None,
    pid: Annotated[int | None, Option(help="Process id of the worker or actor whose output to print.")] = None,
    attempt: Attempt = None,
    err: Annotated[bool, Option("--err", help=ERR_HELP)] = False,
    tail: Tail = TAIL_LINES,
    follow: Follow = False,
    session: Session = None,
    node: Annotated[str | None, Option("--node-id", "--node", help="Node whose logs to read, such as node-1.")] = None,
    directory: Annotated[Path | None, Option(help=KEPT_LOGS_HELP)] = None,
    as_json: AsJson = False,
    format_: Annotated[
        str, Option("--format", help=f"{FORMAT_HELP} The option --json means the same as --format json.")
    ] = "table",
) -> None:
    """List log files, print a log file, or print the output of one task, actor or worker.

    Without an argument, `dualray logs` lists the log files of your running clusters on this machine. A simulation has
    no log files, because simulated tasks print to the stdout of your script.

    Example: dualray logs task 5e9317d9 --err
    """
    try:
        if format_ not in ("table", "json"):
            raise ValueError(f"--format {format_!r} must be table or json")
        if as_json:
            format_ = "json"
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
                    say_aside(f"{what!r} matches {len(entries)} files; name one, or add --session or --node")
                return
            query = log_files.of_file(entries[0], places)
        else:
            if which is not None and id_ is not None:
                raise ValueError(f"{which!r} and --id {id_!r} both give an id; leave one of the two out")
            query = _query(places, what, which or id_, pid, attempt, "err" if err else "out", may_come=follow)
    except ValueError as error:
        refuse(error)
    nothing = "stderr is empty; leave out --err to see stdout" if err else "stdout is empty; --err prints stderr"
    so_far = "so far " if follow else ""
    _print(query, tail, follow=follow, if_empty=f"{so_far}{nothing if what in SUBJECTS else 'the file is empty'}")


def _check_of_a_file(what: str | None, which: str | None, options: dict[str, object]) -> None:
    if what is not None and which is not None:
        raise ValueError(
            f"{what!r} {which!r} are two arguments, but `dualray logs` takes one file, one glob in quotes, or one "
            f"of {', '.join(SUBJECTS)} with an id{nearest(what, SUBJECTS)}"
        )
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} needs one of {', '.join(SUBJECTS)} before it, as in: dualray logs task --id ID")


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
        needed = _id_of(what) if what == "task" else f"{_id_of(what)}, or --pid PID, and not both"
        raise ValueError(f"`dualray logs {what}` needs {needed}")
    if pid is not None and what == "task":
        raise ValueError("--pid chooses a worker or an actor, not a task; use: dualray logs worker --pid PID")
    if attempt is not None and what != "task":
        raise ValueError(f"--attempt-number is only for tasks; leave out --attempt-number in `dualray logs {what}`")
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
    """Print bytes without decoding them, because a program may print any bytes."""
    try:
        with LogReader(query) as reader:
            for data in reader.read(tail):
                sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            if reader.has_left_out:
                say_aside(f"-- only the last {tail:,} lines are shown; --tail -1 shows all --")
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
    sessions = {entry.session for entry in entries}
    headings = ["session"] * (len(sessions) > 1) + ["node", "file", "bytes", "last change"]
    table = Table(title="Log files")
    for name in headings:
        table.add_column(name, is_whole=name in ("session", "file"), justify="right" if name == "bytes" else "left")
    for entry in entries:
        changed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.changed_s))
        cells = (entry.session, entry.node, entry.name, f"{entry.size_bytes:,}", changed)
        table.add_row(*cells[-len(headings) :])
    show(table)
    if len(sessions) == 1:
        say(f"In all rows: session {sessions.pop()}.")
