"""The commands that show state: `dualray list`, `get`, `summary`, `memory`; of a running cluster, or of a finished
run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from dualray import api
from dualray.cli.declare import Argument, Commands, Option
from dualray.cli.printing import (
    ADDRESS_HELP,
    FORMAT_HELP,
    LOG_HELP,
    AsJson,
    Verbose,
    print_json,
    refuse,
    say,
    say_aside,
    shortest,
    show,
    show_rows,
    table_of,
    value_words,
)
from dualray.cli.waiting import add_reasons, reason_lines
from dualray.exceptions import DualrayError
from dualray.util import state

LISTED_MAX = 10
"""Most rows that an error lists when a name matches several rows."""
app = Commands()

Address = Annotated[
    str, Option(help=f"{ADDRESS_HELP} With `--address auto`, dualray uses the cluster that runs on this machine.")
]
Log = Annotated[
    Path | None,
    Option(help=f"{LOG_HELP} With --log, the command shows an earlier run instead of a running cluster."),
]
Format = Annotated[str, Option("--format", help=f"{FORMAT_HELP} The option --json means the same as --format json.")]


@contextmanager
def opened_state(address: str, log: Path | None, *, hint: str = "") -> Iterator[state.State]:
    """Open the state of a recorded run, or of a cluster that it joins. If joining fails, the error ends with `hint`."""
    try:
        if log is not None:
            yield state.of_run(log)
            return
        try:
            api.init(address=os.environ.get("DUALRAY_ADDRESS", address) if address == "auto" else address)
        except (DualrayError, ValueError) as error:
            refuse(f"{error}{hint}")
        try:
            yield state.live
        finally:
            api.shutdown()
    except (DualrayError, ValueError, TypeError) as error:
        refuse(error)


def table_name(name: str) -> str:
    """The name of the table that a word of a command line means."""
    plain = name.replace("-", "_")
    return plain if plain.endswith("s") else plain + "s"


def filters_of(texts: Sequence[str]) -> list[state.Filter]:
    """The conditions that --filter says.

    Raises:
        ValueError: one is not written field=value or field!=value.
    """
    found: list[state.Filter] = []
    for text in texts:
        field, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--filter {text!r} must be field=value or field!=value")
        found.append((field.removesuffix("!"), "!=" if field.endswith("!") else "=", value))
    return found


@app.add("list")
def list_command(
    resource: Annotated[
        str, Argument(help="Kind of things to list: tasks, actors, objects, nodes, workers or placement-groups.")
    ],
    filters: Annotated[
        list[str] | None,
        Option(
            "--filter",
            help="Condition that the listed rows must meet, such as state=FAILED or state!=FAILED. To "
            "set several conditions, give --filter several times.",
        ),
    ] = None,
    limit: Annotated[int, Option(help="Maximum number of rows to show.")] = state.DEFAULT_LIMIT,
    as_json: AsJson = False,
    format_: Format = "table",
    verbose: Verbose = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the ids of the listed rows.")] = False,
    address: Address = "auto",
    log: Log = None,
) -> None:
    """List the tasks, actors, objects, nodes, workers or placement groups of a cluster or of a finished run.

    Example: dualray list tasks --log run1 --filter state=FAILED
    """
    as_json = _is_json(format_, as_json)
    with opened_state(address, log) as found:
        name = table_name(resource)
        rows = found.list(name, filters_of(filters or []), limit, raise_on_missing_output=False)
        if name == "tasks" and log is None:
            add_reasons(rows)
        if as_json:
            print_json(list(rows))
        elif quiet:
            print("".join(f"{row[state.KEYS[name]]}\n" for row in rows), end="")
        elif not rows:
            total = found.list(name, limit=1, raise_on_missing_output=False).total
            plain = name.replace("_", " ")
            print(f"no {plain} match --filter ({total} in all)" if total else f"there are no {plain}")
        else:
            when = "; times are seconds since the start" if log is not None and name == "tasks" else ""
            show_rows(f"{resource}{when}", rows, key=state.KEYS[name], verbose=verbose)
            for line in reason_lines(rows):
                say(line)
        if rows.total > len(rows):
            say_aside(f"the table shows {len(rows)} of {rows.total} rows; to see others, use --limit or --filter")
        if rows.missing:
            say_aside(f"rows are missing: {', '.join(rows.missing)} did not answer")


@app.add("get")
def get_command(
    resource: Annotated[
        str, Argument(help="Kind of thing to show: task, actor, object, node, worker or placement-group.")
    ],
    id_: Annotated[
        str,
        Argument(
            metavar="ID",
            help="Id or name of the task, actor or other resource to show. Instead of a whole id, you can give its "
            "first characters.",
        ),
    ],
    as_json: AsJson = False,
    format_: Format = "table",
    address: Address = "auto",
    log: Log = None,
) -> None:
    """Show every field of one task, actor, object, node, worker or placement group.

    Example: dualray get actor Counter --log run1
    """
    as_json = _is_json(format_, as_json)
    with opened_state(address, log) as found:
        name = table_name(resource)
        if name not in state.TABLES:
            raise ValueError(f"{resource!r} is not a table; choose one of {', '.join(state.TABLES)}")
        row = find_row(found, name, resource, id_)
        if name == "tasks" and log is None:
            add_reasons([row])
        if as_json:
            print_json(row)
            return
        table = table_of("", "field", "value")
        for field, value in row.items():
            table.add_row(field, value_words(field, value))
        show(table)


def find_row(found: state.State, table: str, resource: str, wanted: str) -> state.Row:
    """Return the only row with this id, beginning of an id, or name.

    Raises:
        ValueError: none, or several, which the message names.
    """
    if row := found.get(table, wanted):
        return row
    key = state.KEYS[table]
    listed = found.list(table, limit=1 << 62, raise_on_missing_output=False)
    rows = list({row[key]: row for row in reversed(listed)}.values())[::-1]  # the earlier attempts of a task come last
    matching = [row for row in rows if str(row[key]).startswith(wanted.lower())] or [
        row for row in rows if wanted in (row.get("name"), row.get("class_name"))
    ]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise ValueError(f"no {resource} has the id or the name {wanted!r}; the cluster has {len(rows)} {table}")
    length = shortest(str(row[key]) for row in rows)
    shown = "".join(f"\n  {str(row[key])[:length]}  {row.get('state') or ''}" for row in matching[:LISTED_MAX])
    more = f"\n  and {len(matching) - LISTED_MAX} more" if len(matching) > LISTED_MAX else ""
    raise ValueError(f"{wanted!r} matches {len(matching)} {table}; give one of these ids:{shown}{more}")


@app.add("summary")
def summary_command(
    resource: Annotated[str, Argument(help="Kind of things to count: tasks, actors or objects.")],
    as_json: AsJson = False,
    format_: Format = "table",
    address: Address = "auto",
    log: Log = None,
) -> None:
    """Count tasks by name, actors by class, or objects by owner process.

    Example: dualray summary tasks --log run1
    """
    as_json = _is_json(format_, as_json)
    with opened_state(address, log) as found:
        summary = found.summarize(table_name(resource))["cluster"]
        if as_json:
            print_json({"cluster": summary})
            return
        by = summary["summary_by"]
        rows = [
            {by: name, **{key: value for key, value in entry.items() if key != "state_counts"}}
            | {"states": ", ".join(f"{state} {count}" for state, count in sorted(entry["state_counts"].items()))}
            for name, entry in summary["summary"].items()
        ]
        if not rows:
            print(f"there are no {table_name(resource)}")
            return
        show_rows(f"{resource}, by {by}", rows, key=by)


@app.add("memory")
def memory_command(
    limit: Annotated[int, Option(help="Maximum number of rows to show.")] = state.DEFAULT_LIMIT,
    as_json: AsJson = False,
    format_: Format = "table",
    verbose: Verbose = False,
    address: Address = "auto",
    log: Log = None,
) -> None:
    """Show the largest objects of a cluster, each with its owner process and the references that keep the object in
    memory.

    Example: dualray memory --limit 10
    """
    as_json = _is_json(format_, as_json)
    with opened_state(address, log) as found:
        if as_json:
            print_json(_largest_first(found)[:limit])
            return
        show_objects(found, limit, verbose=verbose)


def show_objects(found: state.State, limit: int, *, verbose: bool) -> None:
    """Print the largest objects, and how many there are in all."""
    rows = _largest_first(found)
    if rows:
        show_rows("objects", rows[:limit], key="object_id", verbose=verbose)
    total = sum(row["size_bytes"] or 0 for row in rows)
    print(f"{len(rows):,} objects, {total:,} bytes")


def _largest_first(found: state.State) -> state.Rows:
    rows = found.list("objects", limit=1 << 62, raise_on_missing_output=False)
    rows.sort(key=lambda row: (-(row["size_bytes"] or 0), row["object_id"]))
    return rows


def _is_json(format_: str, as_json: bool) -> bool:
    if format_ not in ("table", "json"):
        refuse(f"--format {format_!r} must be table or json")
    return as_json or format_ == "json"
