"""`make ray-demo`: one program, three modes, one table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "ray_demo.py"


@pytest.mark.timeout(400)
def test_the_demo_compares_three_modes():
    pytest.importorskip("ray")
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(DEMO), "--iterations", "3"],
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
        env=os.environ | {"COLUMNS": "160"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] in (["sim"], ["real"], ["ray"])]
    assert [row[:2] for row in rows] == [["sim", "3"], ["real", "1"], ["ray", "3"]]
    assert len({row[-1] for row in rows}) == 1
    assert "equal to the last bit in all 3 runs" in done.stdout
