"""docs/api/commands.md, made from the command line itself: `python -m tests.commands_page --write`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dualray.cli.app import GROUPS, app

PAGE = Path(__file__).parents[1] / "docs" / "api" / "commands.md"


def page() -> str:
    """The page: each command with its arguments and options."""
    group: Any = app
    lines = [
        "# Command line",
        "",
        "<!-- Generated from the help texts of the commands: python -m tests.commands_page --write -->",
        "",
        "A `dualray` command exits with code 0 after success, and with code 2 after a wrong argument or option.",
        "A `dualray` command that finds a failure, such as a wrong result, exits with code 1.",
        "",
    ]
    for title, commands in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in commands:
            command = group.get_command(None, name)
            for words, each in _with_children(name, command):
                lines += _section(words, each)
    return "\n".join(lines).rstrip() + "\n"


def _with_children(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
        return
    for name, child in children.items():
        yield f"{words} {name}", child


def _section(words: str, command: Any) -> list[str]:
    lines = [f"### dualray {words}", "", (command.help or "").strip(), ""]
    rows = []
    for param in command.params:
        if param.name == "help":
            continue
        is_argument = param.param_type_name == "argument"
        name = param.name.rstrip("_").upper() if is_argument else ", ".join([*param.opts, *param.secondary_opts])
        text = (getattr(param, "help", None) or "").replace("|", "\\|")
        default = param.default
        is_shown = default not in (None, False, (), []) and not callable(default) and not is_argument
        rows.append(f"| `{name}` | {text} | {f'`{default}`' if is_shown else ''} |")
    if rows:
        lines += ["| argument or option | meaning | default |", "|---|---|---|", *rows, ""]
    return lines


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(page(), end="")
