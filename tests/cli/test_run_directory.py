"""A simulation that `dualray run` starts takes the same virtual time in each directory."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import time
import dualray as ray

ray.init(MODEnodes=2)

@ray.remote
def add_one(x):
    return x + 1

ray.get([add_one.remote(i) for i in range(4)])
print(repr(time.perf_counter()))
"""


@pytest.mark.parametrize(("mode", "options"), [('mode="sim", ', ""), ("", "--mode sim")], ids=["script", "command"])
@pytest.mark.parametrize("is_absolute", [False, True], ids=["relative", "absolute"])
def test_the_virtual_time_does_not_depend_on_the_directory(
    tmp_path: Path, mode: str, options: str, is_absolute: bool
) -> None:
    took = set()
    for name in ("a", "a_directory_with_a_long_name"):
        directory = tmp_path / name
        directory.mkdir()
        script = directory / "program.py"
        script.write_text(PROGRAM.replace("MODE", mode))
        command = [sys.executable, "-m", "dualray", "run", str(script) if is_absolute else script.name]
        done = subprocess.run(
            [*command, *shlex.split(options)], cwd=directory, capture_output=True, text=True, timeout=60, check=True
        )
        took.add(done.stdout)
    assert len(took) == 1
