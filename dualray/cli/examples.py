"""`dualray examples`: the programs and scenarios that come with dualray."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from dualray.cli.declare import Commands, Option
from dualray.cli.printing import AsJson, print_json, refuse, show, table_of

app = Commands()

_PACKAGE: Final = Path(__file__).parents[1]
FOLDERS: Final = ("examples", "scenarios")
LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "*.pyc")


def _folder(name: str) -> Path:
    """Return the directory of the examples: inside the package in a wheel, beside the package in a checkout."""
    shipped = _PACKAGE / "shipped" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


@app.add("examples")
def examples_command(
    copy: Annotated[
        Path | None,
        Option(help="New or empty directory, to which `dualray examples` copies the example programs and scenarios."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List or copy the example programs and scenarios that come with dualray.

    Example: dualray examples --copy here && dualray run here/examples/core/monte_carlo_pi.py --mode sim
    """
    if copy is not None:
        _copy(copy)
        return
    if as_json:
        print_json([{"file": file, "description": words} for file, words in _files()])
        return
    table = table_of("Examples and scenarios: `dualray examples --copy DIR` copies them", "file", "what it is")
    for file, words in _files():
        table.add_row(file, words)
    show(table)


def _files() -> Iterator[tuple[str, str]]:
    for name in FOLDERS:
        folder = _folder(name)
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.yaml")]):
            words = _words(path)
            if words:
                yield f"{name}/{path.relative_to(folder).as_posix()}", words


def _words(path: Path) -> str:
    """Return the first sentence of a program's docstring, or the description of a scenario."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("description:")), "")


def _copy(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        refuse(f"--copy {str(target)!r} exists and is not empty; give a new or empty directory")
    try:
        for name in FOLDERS:
            shutil.copytree(_folder(name), target / name, ignore=LEFT_OUT)
    except OSError as error:
        refuse(f"--copy {str(target)!r} cannot be written: {error.strerror or error}")
    print(f"{target}: now try dualray run {target}/examples/core/monte_carlo_pi.py --mode sim")
