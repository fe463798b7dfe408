"""`dualray run` leaves no file behind if a signal ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.conformance.support import MODES

PROGRAM = """
import time
import dualray

dualray.init(num_cpus=1)
print("started", flush=True)
while True:
    dualray.get(dualray.put(1))
    time.sleep(0.01)
"""
GONE_WITHIN_S = 30.0


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_a_signal_ends_leaves_no_file(tmp_path: Path, mode: str, ending: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="dr", dir="/tmp") as directory:  # short, as the paths of sockets must be
        _end_a_run(tmp_path, Path(directory), mode, ending)


def _end_a_run(tmp_path: Path, made: Path, mode: str, ending: signal.Signals) -> None:
    (tmp_path / "endless.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "dualray", "run", str(tmp_path / "endless.py"), "--mode", mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(made)}) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "started\n"
            run.send_signal(ending)
            assert run.wait(GONE_WITHIN_S) == -ending
        finally:
            run.kill()
    deadline = time.monotonic() + GONE_WITHIN_S
    while list(made.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(made.iterdir()) == []
