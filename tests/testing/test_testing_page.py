"""docs/testing.md: its program fails as it says, and the one that it makes of it does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def outcome_of(directory: Path, program: str) -> tuple[int, str]:
    (directory / "test_ledger.py").write_text(program)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_ledger.py", "--dualray-shrink"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_the_page_says_what_comes_of_its_programs(tmp_path):
    page = PAGE.read_text()
    program, test, mended = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [shown] = re.findall(r"```console\n\$ .*?\n(.*?)```", page, re.DOTALL)
    code, said = outcome_of(tmp_path, program + test)
    assert code == 1
    words = [line.removeprefix("E").strip() for line in said.splitlines()]
    for line in shown.splitlines():
        assert line.removeprefix("E").strip() in words
    head, _, _ = program.partition("@dualray.remote\ndef pay")
    assert outcome_of(tmp_path, head + mended + test)[0] == 0
