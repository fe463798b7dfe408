"""The commands that show state: `dualray list`, `get`, `summary`, `memory`; of a running cluster, or of a finished
run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dualray import api
from dualray.exceptions import DualrayError
from dualray.shared.model.resources import number_words
from dualray.util import state

UNUSABLE = 2
ID_SHOWN = 16
"""Characters of an id in a table."""
LISTED_MAX = 10
app = typer.Typer(add_completion=False)

Address = Annotated[str, typer.Option(help="host:port of the cluster's head, or auto.")]
Log = Annotated[Path | None, typer.Option(help="Instead of a cluster: the decision log directory of a finished run.")]
Format = Annotated[str, typer.Option("--format", help="table or json.")]


def _refuse(why: object) -> NoReturn:
    Console(stderr=True).print(f"dualray: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(UNUSABLE)


@contextmanager
def _state(address: str, log: Path | None) -> Iterator[state.State]:
    """What is asked: the record of a run, or a cluster, joined for the question."""
    try:
        if log is not None:
            yield state.of_run(log)
            return
        api.init(address=os.environ.get("DUALRAY_ADDRESS", address) if address == "auto" else address)
        try:
            yield state.live
        finally:
            api.shutdown()
    except (DualrayError, ValueError, TypeError) as error:
        _refuse(error)


def _table_name(name: str) -> str:
    plain = name.replace("-", "_")
    return plain if plain.endswith("s") else plain + "s"


def _filters(texts: Sequence[str]) -> list[state.Filter]:
    found: list[state.Filter] = []
    for text in texts:
        field, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--filter {text!r} must be field=value or field!=value")
        found.append((field.removesuffix("!"), "!=" if field.endswith("!") else "=", value))
    return found


@app.command("list")
def list_command(
    resource: Annotated[str, typer.Argument(help="tasks, actors, objects, nodes, workers or placement-groups.")],
    filters: Annotated[
        list[str] | None, typer.Option("--filter", help="field=value or field!=value; may repeat.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Rows at most.")] = state.DEFAULT_LIMIT,
    format_: Format = "table",
    address: Address = "auto",
    log: Log = None,
) -> None:
    """List what there is in a cluster, or was at the end of a run."""
    _check_format(format_)
    with _state(address, log) as found:
        name = _table_name(resource)
        rows = found.list(name, _filters(filters or []), limit, raise_on_missing_output=False)
        if not rows and format_ == "table":
            total = found.list(name, limit=1, raise_on_missing_output=False).total
            print(f"no {name.replace('_', ' ')} match ({total} in all)" if total else f"no {name.replace('_', ' ')}")
            return
        _show(resource, rows, format_)
        if rows.total > len(rows):
            Console(stderr=True).print(f"{len(rows)} of {rows.total} are shown: see --limit and --filter")
        if rows.missing:
            Console(stderr=True).print(f"no answer from {', '.join(rows.missing)}")


@app.command("get")
def get_command(
    resource: Annotated[str, typer.Argument(help="task, actor, object, node, worker or placement-group.")],
    id_: Annotated[str, typer.Argument(metavar="ID", help="An id, the beginning of one, or a name.")],
    format_: Format = "table",
    address: Address = "auto",
    log: Log = None,
) -> None:
    """Show all that is known of one thing."""
    _check_format(format_)
    with _state(address, log) as found:
        name = _table_name(resource)
        if name not in state.TABLES:
            raise ValueError(f"there is no {resource!r}; known: {', '.join(state.TABLES)}")
        row = _find(found, name, resource, id_)
        if format_ == "json":
            _print_json(row)
            return
        table = Table("field", "value")
        for field, value in row.items():
            table.add_row(field, escape(_shown(value)))
        Console().print(table)


def _find(found: state.State, table: str, resource: str, wanted: str) -> state.Row:
    """The row of an id, of the beginning of one, or of a name; the only one.

    Raises:
        ValueError: none, or several, which the message names.
    """
    if row := found.get(table, wanted):
        return row
    key = state.KEYS[table]
    rows = found.list(table, limit=1 << 62, raise_on_missing_output=False)
    matching = [row for row in rows if str(row[key]).startswith(wanted.lower())] or [
        row for row in rows if wanted in (row.get("name"), row.get("class_name"))
    ]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise ValueError(f"there is no {resource} {wanted!r}, by id or by name ({len(rows)} in all)")
    shown = "".join(f"\n  {str(row[key])[:ID_SHOWN]}  {row.get('state') or ''}" for row in matching[:LISTED_MAX])
    more = f"\n  and {len(matching) - LISTED_MAX} more" if len(matching) > LISTED_MAX else ""
    raise ValueError(f"{wanted!r} is {len(matching)} {table}; give the id of one:{shown}{more}")


@app.command("summary")
def summary_command(
    resource: Annotated[str, typer.Argument(help="tasks, actors or objects.")],
    format_: Format = "table",
    address: Address = "auto",
    log: Log = None,
) -> None:
    """Count tasks by name, actors by class, objects by owner."""
    _check_format(format_)
    with _state(address, log) as found:
        summary = found.summarize(_table_name(resource))["cluster"]
        if format_ == "json":
            _print_json({"cluster": summary})
            return
        rows = [
            {summary["summary_by"]: name, **{key: value for key, value in entry.items() if key != "state_counts"}}
            | {"states": ", ".join(f"{state} {count}" for state, count in sorted(entry["state_counts"].items()))}
            for name, entry in summary["summary"].items()
        ]
        _show(f"{resource}, by {summary['summary_by']}", rows, format_)


@app.command("memory")
def memory_command(
    limit: Annotated[int, typer.Option(help="Objects at most.")] = state.DEFAULT_LIMIT,
    format_: Format = "table",
    address: Address = "auto",
    log: Log = None,
) -> None:
    """Show objects, the largest first: who owns them, and what keeps them."""
    _check_format(format_)
    with _state(address, log) as found:
        rows = found.list("objects", limit=1 << 62, raise_on_missing_output=False)
        rows.sort(key=lambda row: (-(row["size_bytes"] or 0), row["object_id"]))
        _show("objects", rows[:limit], format_)
        if format_ == "table":
            total = sum(row["size_bytes"] or 0 for row in rows)
            print(f"{len(rows):,} objects, {total:,} bytes")


def _check_format(name: str) -> None:
    if name not in ("table", "json"):
        _refuse(f"--format {name!r} must be table or json")


def _show(title: str, rows: Sequence[dict[str, Any]], format_: str) -> None:
    if format_ == "json":
        _print_json(list(rows))
        return
    table = Table(title=escape(title), title_justify="left")
    for field in dict.fromkeys(field for row in rows for field in row):
        table.add_column(field, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_short(field, value)) for field, value in row.items()))
    Console().print(table)


def _short(field: str, value: Any) -> str:
    return _shown(value)[:ID_SHOWN] if field.endswith("_id") else _shown(value)


def _shown(value: Any) -> str:
    match value:
        case None | "" | [] | {}:
            return "-"
        case float():
            return f"{value:g}"
        case dict():
            return ", ".join(
                f"{key} {number_words(key, amount) if isinstance(amount, float) else _shown(amount)}"
                for key, amount in value.items()
            )
        case list():
            return ", ".join(_shown(item) for item in value)
    return str(value)


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
