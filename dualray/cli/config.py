"""The command `dualray config`: what a run assumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualray.cli.declare import Commands
from dualray.cli.printing import AsJson, print_json, refuse, show, table_of
from dualray.settings import SETTINGS, Resolved, limits_of, resolve
from dualray.shared.model.config import Config

app = Commands()


@app.add("config")
def config_command(as_json: AsJson = False) -> None:
    """Show the value of each setting and limit of dualray, and the source of each value, such as the file dualray.toml.

    Example: dualray config --json
    """
    try:
        settings = resolve({})
        config = limits_of(settings)
    except (ValueError, TypeError) as error:
        refuse(error)
    if as_json:
        print_json(_as_json(settings, config))
        return
    table = table_of(
        "Settings: the value comes from init(), else DUALRAY_<NAME>, else dualray.toml, else the default",
        "setting",
        "value",
        "source",
        "meaning",
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


def _as_json(settings: Mapping[str, Resolved], config: Config) -> dict[str, Any]:
    given = settings["limits"].value or {}
    return {
        "settings": [
            {
                "name": name,
                "value": entry.value if _is_plain(entry.value) else str(entry.value),
                "source": entry.source,
                "modes": list(SETTINGS[name].modes),
                "help": SETTINGS[name].help,
            }
            for name, entry in settings.items()
        ],
        "limits": [
            {
                "name": name,
                "value": getattr(config, name, default),
                "unit": unit,
                "source": settings["limits"].source if name in given else "default",
                "help": why,
            }
            for name, default, unit, why in Config.describe()
        ],
    }


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | list | dict)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "not set" if value is None else str(value)
