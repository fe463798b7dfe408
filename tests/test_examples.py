"""The tutorial programs give the same output in both modes, unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parent.parent / "examples" / "tutorial"
OUTPUT = {
    "tree_reduce": "1000 numbers, each the sum of 100: their mean is -0.056098\n",
    "nested_experiments": "[45, 55, 65, 75, 85]\n",
    "ten_counters": "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n[2, 3, 4, 5, 6]\n",
}


def test_every_program_is_tested():
    assert {path.stem for path in TUTORIAL.glob("*.py")} == set(OUTPUT)


@pytest.mark.parametrize("settings", [{"MODE": "sim"}, {"MODE": "sim", "NODES": "4"}, {"MODE": "real"}], ids=str)
@pytest.mark.parametrize("program", list(OUTPUT))
def test_tutorial_program(program: str, settings: dict[str, str]):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    chosen = {f"DUALRAY_{name}": value for name, value in settings.items()}
    command = [sys.executable, str(TUTORIAL / f"{program}.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=clean | chosen, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == OUTPUT[program]
