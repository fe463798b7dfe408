"""`dualray examples` lists what comes with dualray, and copies it so that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.test_app import in_process
from tests.structure import ROOT


def test_every_example_and_scenario_is_listed_with_words() -> None:
    listed = in_process("examples", COLUMNS="400")
    for path in [*(ROOT / "examples" / "core").glob("*.py"), *(ROOT / "scenarios").glob("*.yaml")]:
        assert path.name in listed


def test_a_copy_runs(tmp_path: Path) -> None:
    target = tmp_path / "here"
    assert "now try dualray run" in in_process("examples", "--copy", target)
    command = [sys.executable, "-m", "dualray", "run", "examples/core/monte_carlo_pi.py", "--mode", "sim"]
    ended = subprocess.run(command, cwd=target, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert in_process("scenario", "check", target / "scenarios" / "jitter.yaml")


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "not empty" in in_process("examples", "--copy", tmp_path, code=2)
    assert "not empty" in in_process("examples", "--copy", tmp_path / "file", code=2)
    assert (tmp_path / "file").read_text() == "mine"
