"""`dualray logs` as tests call it: on the sessions of this process alone."""

from __future__ import annotations

import os

from click.testing import CliRunner

from dualray.cli.app import app

RUNNER = CliRunner()
MINE = f"dualray-{os.getpid()}-"
"""How the names of this process's sessions begin."""


def logs(*arguments: str, code: int = 0, of: tuple[str, ...] = ("--session", MINE)) -> str:
    """What the command prints; when it refuses, why."""
    result = RUNNER.invoke(app, ["logs", *arguments, *of], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout
