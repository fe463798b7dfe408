"""Runs an application of examples/ as a user would, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run_application(program: str, mode: str, *flags: str, cwd: Path, nodes: int = 3, timeout: float = 580) -> str:
    """What it prints on standard output; it must end with 0.

    Args:
        program: its path in examples/.
        mode: "sim" or "real".
        nodes: of the virtual cluster, of two cores each.
        timeout: wall seconds.
    """
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("DUALRAY_", "PYTHONPATH"))}
    environment = outside | {"DUALRAY_MODE": mode, "PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # dualray is that of the tree in which this test stands; GPUs that a program declares are there on every machine.
    environment |= {"PYTHONPATH": str(ROOT), "DUALRAY_NVML": "off"}
    if mode == "sim":
        environment |= {"DUALRAY_NODES": str(nodes), "DUALRAY_NUM_CPUS": "2"}
    command = [sys.executable, str(EXAMPLES / program), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
