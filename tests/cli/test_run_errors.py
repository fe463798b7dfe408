"""`dualray run` shows the error that ended a program before errors that the program never read."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import dualray

@dualray.remote
def fail(name):
    raise ValueError(name)

dualray.init()
held = fail.remote("never read")
dualray.wait([held])
dualray.get(fail.remote("read"))
"""


def test_the_error_that_ended_the_program_comes_first(tmp_path):
    (tmp_path / "fails.py").write_text(PROGRAM)
    for mode in ("sim", "real"):
        ran = subprocess.run(
            [sys.executable, "-m", "dualray", "run", "fails.py", "--mode", mode],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 1
        assert 0 <= ran.stderr.index("ValueError: read") < ran.stderr.index("ValueError: never read"), ran.stderr
