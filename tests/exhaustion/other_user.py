"""Runs Python as a user who is not root, and so has limits of processes and threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

UID = 4242
_CAN_READ = "+dac_override,+dac_read_search"
"""The interpreter and this checkout, wherever they are."""


def why_no_other_user() -> str:
    """Why Python cannot run as another user; empty if it can."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return "the limit holds for a user who is not root, as whom root's `setpriv` (util-linux) starts one"
    return ""


def as_other_user(words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` as that user, with a temporary directory of its own; `options` as for `subprocess.run`."""
    command = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", f"--inh-caps={_CAN_READ}"]
    command += [f"--ambient-caps={_CAN_READ}", sys.executable, *words]
    with tempfile.TemporaryDirectory(prefix="drnp", dir="/tmp") as directory:
        Path(directory).chmod(0o777)
        environment = os.environ | {"TMPDIR": directory, "HOME": directory}
        return subprocess.run(command, text=True, check=False, env=environment, **options)
