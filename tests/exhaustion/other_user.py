"""Runs Python as a user who is not root, and so has limits of processes and threads; with a small disk if need be."""

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
_MOUNT = (
    'mount -t tmpfs -o size=256m,mode=1777 dualray /dev/shm && mount -t tmpfs -o size=256m,mode=777 dualray "$TMPDIR"'
)


def why_no_other_user() -> str:
    """Why Python cannot run as another user; empty if it can."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return "the limit holds for a user who is not root, as whom root's `setpriv` (util-linux) starts one"
    return ""


def why_no_own_disk() -> str:
    """Why this user cannot have a disk and a shared memory of its own; empty if it can."""
    try:
        done = subprocess.run(["unshare", "--mount", "sh", "-c", _MOUNT], env=os.environ | {"TMPDIR": "/dev/shm"})
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else "it takes root, who may mount file systems in a namespace"


def as_other_user(
    words: Sequence[str], *, number: int = 0, has_own_disk: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` as that user, with a temporary directory of its own; `options` as for `subprocess.run`.

    Users of other numbers have limits of their own. `has_own_disk` makes the temporary directory and /dev/shm small.
    """
    uid = UID + number
    command = ["unshare", "--mount", "sh", "-c", f'{_MOUNT} && exec "$@"', "sh"] if has_own_disk else []
    command += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", f"--inh-caps={_CAN_READ}"]
    command += [f"--ambient-caps={_CAN_READ}", sys.executable, *words]
    with tempfile.TemporaryDirectory(prefix="drnp", dir="/tmp") as directory:
        Path(directory).chmod(0o777)
        environment = os.environ | {"TMPDIR": directory, "HOME": directory}
        return subprocess.run(command, text=True, check=False, env=environment, **options)
