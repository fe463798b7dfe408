"""The programs in the pages of docs/ run, and print what the pages show.

A page writes a file with `<!-- file: NAME -->` above a block of code. Its lines `$ COMMAND` in console blocks run in
order, in one directory. `...` in an output stands for any text.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "<!-- file: " in path.read_text()]

_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_STEP = re.compile(r"^\$ ([^\n]+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path):
    text = page.read_text()
    for name, program in _FILE.findall(text):
        (tmp_path / name).write_text(program)
    steps = [step for block in _CONSOLE.findall(text) for step in _STEP.findall(block)]
    assert steps, "a page with a program shows how it is run"
    for command, output in steps:
        program, *words = shlex.split(command)
        words = words if program == "python" else ["-m", "dualray", *words]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        pattern = ".*".join(map(re.escape, _narrow(output).split("...")))
        assert re.fullmatch(pattern, _narrow(done.stdout + done.stderr), re.DOTALL), done.stdout + done.stderr


def test_the_pages_with_programs_are_found():
    assert len(PAGES) >= 4


def _narrow(text: str) -> str:
    """The text with columns as narrow as can be: how wide a table is depends on how long the run took."""
    return re.sub(r"[ ─━]{2,}", " ", text)
