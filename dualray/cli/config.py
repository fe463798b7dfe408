"""The command `dualray config`: what a run assumes."""

from __future__ import annotations

import typer

from dualray.cli.printing import refuse, show, table_of
from dualray.settings import SETTINGS, limits_of, resolve
from dualray.shared.model.config import Config

app = typer.Typer(add_completion=False)


@app.command("config")
def config_command() -> None:
    """Show every setting, its value and where it came from, and every limit of the core."""
    try:
        settings = resolve({})
        config = limits_of(settings)
    except (ValueError, TypeError) as error:
        refuse(error)
    table = table_of(
        "Settings: argument of init, DUALRAY_<NAME>, dualray.toml, default", "setting", "value", "source", ""
    )
    for name, entry in settings.items():
        modes = "" if len(SETTINGS[name].modes) > 1 else f"{SETTINGS[name].modes[0]} mode only: "
        table.add_row(name, _shown(entry.value), entry.source, modes + SETTINGS[name].help)
    given = settings["limits"].value or {}
    limits = table_of("Limits and policies: init(limits={...})", "limit", "value", "unit", "source", "why")
    for name, default, unit, why in Config.describe():
        source = settings["limits"].source if name in given else "default"
        limits.add_row(name, _shown(getattr(config, name, default)), unit, source, why)
    show(table, limits)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "not set" if value is None else str(value)
