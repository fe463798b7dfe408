"""How commands print tables, and refuse what they cannot use."""

from __future__ import annotations

from typing import Final, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

UNUSABLE: Final = 2
"""The exit code of a command that was given something it cannot use."""


def refuse(why: object) -> NoReturn:
    """Say on stderr why the command cannot go on, and end it with UNUSABLE."""
    Console(stderr=True).print(f"dualray: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(UNUSABLE)


def table_of(title: str, *columns: str) -> Table:
    """An empty table whose cells fold; `title` is plain text."""
    table = Table(title=escape(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def show(*tables: Table) -> None:
    """Print tables on stdout, one under another."""
    console = Console()
    for table in tables:
        console.print(table)
