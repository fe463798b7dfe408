"""Programs for Ray as tests run them: in a process of their own, on dualray."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.structure import ROOT


def printed_by(program: str, mode: str) -> str:
    """What a program prints in a mode; it must end without an error."""
    made = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DUALRAY_MODE": mode},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()
