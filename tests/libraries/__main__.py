"""Prints the table: `python -m tests.libraries [--only NAME] [--repeats 20]`."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from tests.libraries.programs import PROGRAMS
from tests.libraries.tried import NOT_INSTALLED, try_library


def main() -> None:
    """Try each, and say how many went wrong in the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=PROGRAMS, help="try this library; may repeat")
    parser.add_argument("--repeats", type=int, default=20, help="simulated ones, which have to be equal")
    arguments = parser.parse_args()
    table = Table(
        "library", "real", "simulated", "repeats equal", title="libraries in six tasks at once and two actors"
    )
    wrong = 0
    for name in arguments.only or PROGRAMS:
        tried = try_library(name, arguments.repeats)
        table.add_row(name, tried.real, tried.sim, tried.repeats)
        print(f"{name}: {tried.real}, {tried.sim}, {tried.repeats}", file=sys.stderr)
        wrong += tried.real != NOT_INSTALLED and not tried.is_right
    Console(width=160).print(table)
    sys.exit(wrong)


main()
