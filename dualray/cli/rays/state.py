"""`ray list`, `get`, `summary`, `memory`, `timeline` and `stack`. JSON and YAML are for programs; tables have the form
of Ray's, with whole ids."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from dualray.as_ray import state_functions
from dualray.cli.declare import Argument, Commands, Option
from dualray.cli.printing import print_json, refuse, say_aside, value_words
from dualray.cli.rays.app import unused_option
from dualray.cli.rays.joining import Address, fail, joined
from dualray.cli.stack import stack_command
from dualray.cli.state import filters_of, find_row, show_objects, table_name
from dualray.exceptions import DualrayError
from dualray.report.present import timeline
from dualray.util import state

_FORMATS = ("default", "table", "json", "yaml")
_LISTS = {
    "actors": state_functions.list_actors,
    "jobs": state_functions.list_jobs,
    "nodes": state_functions.list_nodes,
    "objects": state_functions.list_objects,
    "placement_groups": state_functions.list_placement_groups,
    "runtime_envs": state_functions.list_runtime_envs,
    "tasks": state_functions.list_tasks,
    "workers": state_functions.list_workers,
}
_SUMMARIES = {
    "tasks": state_functions.summarize_tasks,
    "actors": state_functions.summarize_actors,
    "objects": state_functions.summarize_objects,
}

Timeout = Annotated[float, Option(help="Longest time, in seconds, to wait for an answer of the cluster.", min=0.1)]

app = Commands()


@app.add("list")
def list_command(
    resource: Annotated[
        str, Argument(help="Kind of things to list: actors, tasks, objects, nodes, workers, jobs or placement-groups.")
    ],
    filters: Annotated[
        list[str] | None,
        Option(
            "--filter",
            "-f",
            help="Condition that the listed rows must meet, as field=value or field!=value. To set several "
            "conditions, repeat --filter.",
        ),
    ] = None,
    format_: Annotated[str, Option("--format", help="Format of the output: default, table, json or yaml.")] = "default",
    limit: Annotated[int, Option(help="Largest number of rows to print.", min=1)] = state.DEFAULT_LIMIT,
    detail: Annotated[bool, Option("--detail", help="Print every field, as YAML by default.")] = False,
    timeout: Timeout = 30.0,
    address: Address = None,
) -> None:
    """List the rows of a table of the cluster."""
    name = _known(resource, _LISTS)
    if format_ not in _FORMATS:
        refuse(f"--format {format_!r} must be one of {', '.join(_FORMATS)}")
    shown = "yaml" if detail and format_ == "default" else format_
    with joined(address):
        try:
            rows = _LISTS[name](None, filters_of(filters or []), limit, timeout, detail, False)
            shown_rows = [state.whole_row(name, row) for row in rows]
        except (ValueError, TypeError) as error:
            refuse(error)
        except DualrayError as error:
            fail(error)
    if shown == "json":
        print_json(shown_rows)
    elif not rows:
        print("No resource in the cluster")
    elif shown == "yaml":
        _print_yaml(shown_rows)
    else:
        lines = _table(rows, all_fields=detail)
        _print_under(f"List: {_now()}", "-" * 30, [f"Total: {len(rows)}"], "Table:", lines)
    if rows.total > len(rows):
        say_aside(f"dualray: {len(rows)} of {rows.total} rows; to see others, use --limit or --filter")


@app.add("get")
def get_command(
    resource: Annotated[
        str, Argument(help="Kind of thing to show: actors, tasks, objects, nodes, workers or placement-groups.")
    ],
    id_: Annotated[str, Argument(metavar="ID", help="Id of the thing to show.")],
    address: Address = None,
) -> None:
    """Print one row of a table of the cluster, as YAML."""
    name = _known(resource, state.TABLES)
    with joined(address):
        try:
            row = find_row(state.live, name, resource, id_)
        except ValueError as error:
            fail(error)
        except DualrayError as error:
            fail(error)
    _print_yaml([state.whole_row(name, row)])


@app.add("summary")
def summary_command(
    resource: Annotated[str, Argument(help="Kind of things to count: tasks, actors or objects.")],
    timeout: Timeout = 30.0,
    address: Address = None,
) -> None:
    """Count tasks by function, actors by class, or objects by owner."""
    if resource not in _SUMMARIES:
        refuse(f"`ray summary {resource}` must be tasks, actors or objects")
    with joined(address):
        try:
            cluster = _SUMMARIES[resource](None, timeout)["cluster"]
        except DualrayError as error:
            fail(error)
    by = cluster.pop("summary_by")
    summary = cluster.pop("summary")
    rows = [entry if name in entry.values() else {by: name, **entry} for name, entry in summary.items()]
    counts = [f"{name}: {value_words('', value)}" for name, value in cluster.items()]
    title = f"{resource.capitalize()} Summary: {_now()}"
    _print_under(title, "-" * 36, [*counts, ""], f"Table (group by {by}):", _table(rows, all_fields=True))


@app.add("memory")
def memory_command(
    num_entries: Annotated[int, Option("--num-entries", "-n", help="Largest number of rows to print.", min=1)] = (
        state.DEFAULT_LIMIT
    ),
    address: Address = None,
) -> None:
    """Show the objects of a cluster, the largest first."""
    with joined(address):
        try:
            print(f"======== Object references status: {_now()} ========")
            show_objects(state.live, num_entries, verbose=True)
        except DualrayError as error:
            fail(error)


app.commands["memory"].params += [
    *(unused_option(name) for name in ("--group-by", "--sort-by", "--units")),
    *(unused_option(name, is_flag=True) for name in ("--no-format", "--stats-only")),
]


def _new_file(path: Path) -> BinaryIO:
    """A new file, in a directory where others may write: it follows no link that somebody has put there.

    Raises:
        FileExistsError: something of that name is there.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "wb")


@app.add("timeline")
def timeline_command(address: Address = None) -> None:
    """Write the timeline of a cluster's tasks to a file, for ui.perfetto.dev."""
    directory = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    path = Path(directory) / f"ray-timeline-{datetime.now():%Y-%m-%d_%H-%M-%S}.json"  # noqa: DTZ005 - as Ray names it
    with joined(address):
        try:
            with _new_file(path) as file:
                timeline(Path(f"/dev/fd/{file.fileno()}"))
        except (DualrayError, OSError) as error:
            fail(error)
    print(f"Trace file written to {path}.")
    print("You can open this with https://ui.perfetto.dev, or with chrome://tracing in the Chrome browser.")


app.add("stack")(stack_command)


def _known(resource: str, tables: Iterable[str]) -> str:
    name = table_name(resource)
    if name not in tables:
        refuse(f"{resource!r} is not a table; choose one of {', '.join(tables).replace('_', '-')}")
    return name


def _now() -> datetime:
    return datetime.now()  # noqa: DTZ005 - as Ray prints it, in local time


def _print_under(title: str, rule: str, counts: Sequence[str], heading: str, lines: Sequence[str]) -> None:
    header = f"======== {title} ========"
    print("\n".join(("", header, "Stats:", rule, *counts, "", heading, rule, *lines, "")))


def _table(rows: Sequence[Mapping[str, Any]], *, all_fields: bool) -> list[str]:
    """Rows under headings in capitals, with their numbers, in columns that spaces part."""
    fields = list(dict.fromkeys(field for row in rows for field in row))
    if not all_fields:
        fields = [field for field in fields if any(row.get(field) not in (None, "", {}, []) for row in rows)]
    cells = [["", *(field.upper() for field in fields)]]
    cells += [[str(index), *(value_words(field, row.get(field)) for field in fields)] for index, row in enumerate(rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _print_yaml(rows: Sequence[Mapping[str, Any]]) -> None:
    import yaml  # noqa: PLC0415 - the other forms need none

    print("---\n" + yaml.safe_dump([dict(row) for row in rows], sort_keys=False).rstrip() + "\n...")
