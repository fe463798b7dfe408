"""Runs a script that uses dualray, unchanged, in a process of its own, and reads what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dualray
from dualray.testing.outcome import ERROR_CHARACTERS_MAX

SCRIPT_TIMEOUT_S = 600.0
"""Wall time that a script may take."""


def run_script(script: Path, arguments: Sequence[str], settings: Mapping[str, str]) -> tuple[Any, tuple[str, ...], str]:
    """As `dualray run script` would: the result, the names of its error's classes, and the error's message.

    Args:
        settings: of dualray, by the names of their environment variables without DUALRAY_; others that stand in this
            process's environment are not handed on.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dualray.cli", "run", str(script), "--", *arguments],
            env={**kept, **{f"DUALRAY_{name}": value for name, value in settings.items()}},
            capture_output=True,
            text=True,
            timeout=SCRIPT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        words = f"{script} did not end within {SCRIPT_TIMEOUT_S:g} s of wall time"
        return None, ("TimeoutError", "Exception"), words
    if done.returncode:
        return None, *_error_of(done)
    return _last_line(done.stdout), (), ""


def _last_line(stdout: str) -> Any:
    """The last line of what a script printed, as JSON if it is that."""
    lines = stdout.strip().splitlines()
    if not lines:
        return None
    try:
        return json.loads(lines[-1])
    except json.JSONDecodeError:
        return lines[-1]


def _error_of(done: subprocess.CompletedProcess[str]) -> tuple[tuple[str, ...], str]:
    """The class and the message of the exception that ended a script, from its traceback."""
    text = done.stderr.rpartition("Traceback (most recent call last):")[2]
    raised = re.search(r"^(?P<type>[A-Za-z_][\w.()]*)(?:: (?P<message>.*))?\Z", text.strip(), re.MULTILINE | re.DOTALL)
    if raised is None:
        return ("SystemExit",), f"ended with code {done.returncode}: {done.stderr[-ERROR_CHARACTERS_MAX:]}"
    name = raised["type"].rpartition(".")[2]
    known = getattr(dualray.exceptions, name, None)
    names = tuple(cls.__name__ for cls in known.__mro__ if cls is not object) if isinstance(known, type) else (name,)
    return names, (raised["message"] or "")[:ERROR_CHARACTERS_MAX]
