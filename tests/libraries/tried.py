"""Tries one library, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tests.libraries.programs import PROGRAMS
from tests.libraries.run_one import ACTORS, TASKS

__all__ = ["NOT_INSTALLED", "Tried", "try_library"]

NOT_INSTALLED = "not installed"
RIGHT = "right"
TIMEOUT_S = 300


@dataclass(frozen=True)
class Tried:
    """What came of it, in words."""

    real: str
    sim: str
    repeats: str

    @property
    def is_right(self) -> bool:
        """All of it."""
        return self.real == self.sim == RIGHT and self.repeats.endswith("equal")


def try_library(name: str, repeats: int) -> Tried:
    """In real mode, and simulated.

    repeats: of the simulation, each in a process of its own, under two hash seeds.
    """
    if find_spec(PROGRAMS[name][0]) is None:
        return Tried(NOT_INSTALLED, NOT_INSTALLED, "")
    real, values = _run(name, "real", 1)
    runs = [_run(name, "sim", 1 + number % 2) for number in range(repeats)]
    sim = next((words for words, _ in runs if words != RIGHT), RIGHT)
    if sim == real == RIGHT and runs[0][1][0] != values[0]:
        sim = f"{runs[0][1][0]!r} and not {values[0]!r}"
    equal = sum(run == runs[0] for run in runs)
    return Tried(real, sim, f"{equal} equal" if equal == repeats else f"{equal} of {repeats} like the first")


def _run(name: str, mode: str, hash_seed: int) -> tuple[str, list[Any]]:
    command = [sys.executable, "-m", "tests.libraries.run_one", name, mode]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not over in {TIMEOUT_S} s", []
    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    if ended.returncode != 0 or not found:
        return (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1][-160:], []
    values = found[-1][: TASKS + 2 * ACTORS]
    return ("different results" if any(value != values[0] for value in values) else RIGHT), found[-1]
