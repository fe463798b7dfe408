"""Programs that start in odd surroundings: closed standard streams, no working directory, small limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.leak_check, pytest.mark.timeout(180)]

PROGRAM = """
import os, sys
import dualray

def say(words):
    with open(sys.argv[1], "w") as file:
        file.write(words)

try:
    dualray.init(num_cpus=1, object_store_memory=32 << 20)

    @dualray.remote
    def task(x):
        print("a line that nobody reads")
        return x + 1

    answer = dualray.get(task.remote(1), timeout=60), len(dualray.get(dualray.put(b"x" * (1 << 20)), timeout=60))
    dualray.shutdown()
    say(repr(answer))
except BaseException as error:
    say(f"{type(error).__name__}: {error}")
"""
ANSWER = f"(2, {1 << 20})"


def said(tmp_path: Path, before: str, directory: Path | None = None, first: str = "") -> str:
    """What the program writes, started by a shell that does this before, and after these lines of Python."""
    file, program = tmp_path / "said", tmp_path / "program.py"
    program.write_text(first + PROGRAM)
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    command = f'{before} exec "$0" "$1" "$2"'
    subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, str(program), str(file)],
        env=os.environ | {"PYTHONPATH": path},
        cwd=directory,
        check=False,
        timeout=120,
    )
    return file.read_text()


@pytest.mark.parametrize("closed", ["exec <&- >&- 2>&-;", "exec >&-;", "exec 2>&-;"])
def test_standard_streams_may_be_closed(tmp_path: Path, closed: str) -> None:
    """Workers met a bug: their streams were missing, or sockets had got these numbers."""
    assert said(tmp_path, closed) == ANSWER


def test_the_working_directory_may_be_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    assert said(tmp_path, f"rmdir '{gone}';", gone) == ANSWER


def test_a_small_limit_of_file_sizes_is_named(tmp_path: Path) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    words = said(tmp_path, "", first=limit)
    assert "this process may only write files up to 1,048,576 bytes (RLIMIT_FSIZE)" in words


def test_a_control_plane_that_does_not_start_is_named(tmp_path: Path) -> None:
    """The head removed its own log before `init` read it, and `init` said that the head had ended with status 70."""
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\nexit 3\n")
    server.chmod(0o755)
    words = said(tmp_path, f"PATH='{tmp_path}':$PATH DUALRAY_CONTROL_PLANE=redis")
    assert f"head ends: the control plane (redis-server {server}) ended with status 3" in words
    assert "bug" not in words


def test_a_control_plane_that_is_unknown_is_named(tmp_path: Path) -> None:
    """The reason was in a traceback on the terminal alone."""
    words = said(tmp_path, "DUALRAY_CONTROL_PLANE=etcd")
    assert "this process cannot run: DUALRAY_CONTROL_PLANE=etcd must be redis or embedded" in words


def test_signals_that_the_driver_blocks_reach_the_other_processes(tmp_path: Path) -> None:
    """They inherited the mask, and only SIGKILL ended the session, 10 s later."""
    mask = """
import signal, sys
import dualray, psutil
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
dualray.init(num_cpus=1, object_store_memory=32 << 20)
dualray.get(dualray.remote(abs).remote(-1), timeout=60)
masks = set()
for process in psutil.Process().children(recursive=True):
    with open(f"/proc/{process.pid}/status") as file:
        masks |= {line.split()[1] for line in file if line.startswith("SigBlk")}
dualray.shutdown()
with open(sys.argv[1] + ".masks", "w") as file:
    file.write(" ".join(masks))
"""
    assert said(tmp_path, "", first=mask) == ANSWER
    assert (tmp_path / "said.masks").read_text() == "0" * 16


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a file system")
@pytest.mark.parametrize("room", ["size=4k", "nr_inodes=3", "nr_inodes=5"])
def test_a_session_that_finds_no_room_leaves_nothing(tmp_path: Path, room: str) -> None:
    """It left its directories, and the secret in them, until the next session of the same TMPDIR."""
    script = (
        f"mount -t tmpfs -o size=200m tmpfs /dev/shm && mount -t tmpfs -o {room},mode=1777 tmpfs {tmp_path} && "
        f"TMPDIR={tmp_path} {sys.executable} -c 'import dualray; dualray.init(num_cpus=1)'; find /dev/shm {tmp_path}"
    )
    ran = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"dualray could not create the files of a session in {tmp_path}" in ran.stderr
    assert ran.stdout.split() == ["/dev/shm", str(tmp_path)]
