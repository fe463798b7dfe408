"""The commands that show what a run assumes: `dualray config`, `dualray sim params`."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dualray.settings import SETTINGS, limits_of, resolve
from dualray.shared.model.config import Config

UNUSABLE = 2

app = typer.Typer(add_completion=False)


def _refuse(why: object) -> NoReturn:
    Console(stderr=True).print(f"dualray: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(UNUSABLE)


@app.command("config")
def config_command() -> None:
    """Show every setting, its value and where it came from, and every limit of the core."""
    try:
        settings = resolve({})
        config = limits_of(settings)
    except (ValueError, TypeError) as error:
        _refuse(error)
    table = _table(
        "Settings: argument of init, DUALRAY_<NAME>, dualray.toml, default", "setting", "value", "source", ""
    )
    for name, entry in settings.items():
        modes = "" if len(SETTINGS[name].modes) > 1 else f"{SETTINGS[name].modes[0]} mode only: "
        table.add_row(name, _shown(entry.value), entry.source, modes + SETTINGS[name].help)
    given = settings["limits"].value or {}
    limits = _table("Limits and policies: init(limits={...})", "limit", "value", "unit", "source", "why")
    for name, default, unit, why in Config.describe():
        source = settings["limits"].source if name in given else "default"
        limits.add_row(name, _shown(getattr(config, name, default)), unit, source, why)
    _print(table, limits)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "not set" if value is None else str(value)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=escape(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(*tables: Table) -> None:
    console = Console()
    for table in tables:
        console.print(table)
