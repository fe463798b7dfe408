"""What lies where others may write: what another user, or what is left of another process, can do there."""

from __future__ import annotations

import ast
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dualray
from dualray.exceptions import AuthenticationError
from dualray.real import files
from dualray.real.cluster.launch import stop_detached
from dualray.real.control_plane.resp import RespClient
from dualray.real.session import session as sessions
from dualray.real.store.arena import Arena, Layout
from tests.conformance.support import MIB
from tests.real.store.test_shared_memory import ID
from tests.real.store.test_spill import Disk

REAL = Path(files.__file__).parent
NOBODY = 65534
as_another_user = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory where everybody may write, as scratch disks are."""
    path = Path(tempfile.mkdtemp(prefix="shared-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def do_as(uid: int, act: Callable[[], object]) -> None:
    """Do something as another user, who need not be able to read this program; its exception is printed."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of a fork beside threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            act()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of the parent's may run on in the child
            traceback.print_exc()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_is_not_ours_alone_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own"
    files.make_directory(own)
    files.write(own / "file", b"abc")
    assert (own.stat().st_mode & 0o777, (own / "file").stat().st_mode & 0o777) == (0o700, 0o600)
    assert files.read(own / "file") == b"abc"
    for again in (lambda: files.make_directory(own), lambda: files.write(own / "file", b"")):
        with pytest.raises(FileExistsError):
            again()
    (tmp_path / "link").symlink_to(own)
    (own / "link").symlink_to(own / "file")
    os.mkfifo(own / "fifo")
    (own / "open").touch(mode=0o644)
    (tmp_path / "open").mkdir(mode=0o755)
    for directory in ("link", "open"):
        with pytest.raises(OSError, match=r"Not a directory|must have mode 0700"):
            files.ensure_directory(tmp_path / directory)
    for name in ("link", "fifo", "open"):
        with pytest.raises(OSError, match=r"symbolic links|not a regular file|must have mode 0600"):
            files.read(own / name)
    assert [path.name for path in files.own_directories(tmp_path, "")] == ["open", "own"]
    files.remove_directory(tmp_path / "link")
    assert own.exists()
    files.remove_directory(own)
    assert not own.exists()


@as_another_user
def test_what_is_another_users_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own"
    files.make_directory(own)
    files.write(own / "file", b"abc")
    for path in (own / "file", own):
        os.chown(path, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=f"belongs to uid {NOBODY}"):
        files.open_directory(own)
    with pytest.raises(PermissionError, match=f"belongs to uid {NOBODY}"):
        files.read(own / "file")
    files.remove_directory(own)
    assert own.exists()
    assert not files.is_own_directory(own)


def test_spilled_objects_are_written_and_read_in_our_own_directory_alone(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    disk = Disk(tmp_path / "open")
    assert "must have mode 0700" in str(disk.write(ID, b"abc"))
    disk.files.close()
    disk = Disk(tmp_path / "own")
    assert disk.write(ID, b"abc") is None
    (tmp_path / "own").rename(tmp_path / "away")  # who may write beside it can do that
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / ID.hex()).write_bytes(b"xyz")
    assert disk.read(ID, 3) == b"abc"
    (tmp_path / "away" / ID.hex()).unlink()
    (tmp_path / "away" / ID.hex()).symlink_to(tmp_path / "own" / ID.hex())
    assert "symbolic links" in str(disk.read(ID, 3))
    disk.files.close()


@as_another_user
def test_another_user_cannot_have_the_directory_of_spilled_objects(shared: Path) -> None:
    limits = {"eviction_policy": "spill", "spill_directory": str(shared)}
    runtime = dualray.init(num_cpus=1, object_store_memory=64 * MIB, limits=limits)
    try:
        place = shared / runtime.session.directory.name

        def attack() -> None:
            for act in (lambda: place.mkdir(0o777), lambda: list(place.iterdir()), place.rmdir):
                with pytest.raises(OSError, match=r"exists|denied|not permitted"):
                    act()

        do_as(NOBODY, attack)
        refs = [dualray.put(np.full(10 * MIB, fill, dtype=np.uint8)) for fill in range(12)]
        assert [int(dualray.get(ref)[0]) for ref in refs] == list(range(12))
        assert place.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in place.iterdir())
    finally:
        dualray.shutdown()
    assert not place.exists()


def test_a_directory_that_is_there_is_not_taken_for_the_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches the temporary directory can be faster than we."""
    tokens = iter(["taken", "free"])
    monkeypatch.setattr(secrets, "token_hex", lambda count: next(tokens) if count == 3 else "0" * 2 * count)
    name = f"dualray-{os.getpid()}-{sessions._mark_of(os.getpid())}"
    taken = sessions.SHARED_MEMORY / f"{name}-taken"
    taken.mkdir(mode=0o777)
    try:
        directory, store = sessions._make_directories("")
        assert directory.name == store.name == f"{name}-free"
        assert not (directory.parent / taken.name).exists()
        for path in (directory, store):
            files.remove_directory(path)
        layout = Layout.of(capacity=MIB, size_min=1024, objects_max=100)
        with pytest.raises(PermissionError, match="accessible to other users"):
            Arena.create(taken / "arena", layout)
    finally:
        taken.rmdir()


@as_another_user
def test_a_link_in_the_temporary_directory_stops_nobody(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    """`init` of a user who may not look at the link's target raised PermissionError."""
    secret = shared / "secret"
    secret.mkdir(mode=0o700)
    (shared / "dualray-4999999-x").symlink_to(secret / "x")
    (shared / "dualray-4999998-x").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))

    def look() -> None:
        sessions.sweep()
        assert sessions.all_running() == []

    do_as(1, look)
    assert (shared / "dualray-4999999-x").is_symlink()


def test_a_process_that_has_got_a_founders_pid_is_not_signalled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a power cut the directory is still there, and its pid is somebody else's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        try:
            mark = sessions._mark_of(other.pid)
            assert mark != sessions._mark_of(os.getpid())
            left = tmp_path / f"dualray-{other.pid}-0{mark[1:]}0-abcdef"
            ours = tmp_path / f"dualray-{other.pid}-{mark}-abcdef"
            for path in (left, ours):
                files.make_directory(path)
            assert sessions.founder_of(left) is None
            assert not sessions.end_founder(left, signal.SIGTERM)
            assert stop_detached() == []
            assert other.poll() is None
            assert (left.exists(), ours.exists()) == (False, True)  # swept, as a leftover is
            assert sessions.founder_of(ours) == other.pid
            assert sessions.end_founder(ours, signal.SIGTERM)
            assert other.wait(30) == -signal.SIGTERM
            assert not sessions.end_founder(ours, signal.SIGTERM)
        finally:
            other.kill()


# ---- No other module makes or opens anything there ---------------------------------------------------------------

_MAKES = {"mkdir", "makedirs", "mkdtemp", "mkstemp", "touch", "write_text", "write_bytes", "rmtree", "mkfifo"}
_ALLOWED = {
    "files.py": "it is the module that may",
    "runtime.py mkdir": "a directory for records or logs that the user names, made as the user's programs make theirs",
    "cluster/launch_commands.py mkdir": "the directory of the ledger that the user names, or has in the home directory",
    "session/session.py mkdir": "the directory that the user names for spilled objects; ours lies in it",
    "limits.py open": "/dev/null, to see how many descriptors are left",
    "net/spare.py open": "/dev/null, to have a descriptor that can be given back",
    "processes/fault_orders.py open": "/dev/null, to see which descriptor is the next one",
    # The rest lies in a session's directory, which nobody else may enter.
    "cluster/daemon.py open": "a log of the session",
    "control_plane/server.py rmtree": "the server's own directory",
    "observe/counters.py open": "counters of the session",
    "observe/metrics.py write_text": "the session's note of where metrics are served",
    "observe/stacks.py open": "what workers say of their stacks, in the session",
    "processes/head.py write_text": "the session's note of its control plane",
    "processes/node.py touch": "the session's note that the node has joined",
    "processes/run_recorder.py write_text": "the session's mark that a worker has notes to write",
}


def _calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, of = node.func.attr, node.func.value
        is_os_open = name == "open" and isinstance(of, ast.Name) and of.id == "os"
        if name in _MAKES or is_os_open:
            yield f"{path.relative_to(REAL)} {name}"


def test_no_other_module_makes_or_opens_what_lies_among_others() -> None:
    found = {call for path in REAL.rglob("*.py") if path.name != "files.py" for call in _calls(path)}
    assert found <= set(_ALLOWED), f"make and open through dualray/real/files.py: {sorted(found - set(_ALLOWED))}"
    assert {call for call in _ALLOWED if " " in call} <= found, "an exception that nobody needs"


def test_a_log_is_appended_to_in_a_directory_of_this_user_alone(tmp_path: Path) -> None:
    files.make_directory(tmp_path / "logs")
    for line in (b"one\n", b"two\n"):
        with os.fdopen(files.open_to_append(tmp_path / "logs" / "a.out"), "ab") as file:
            file.write(line)
    assert (tmp_path / "logs" / "a.out").read_bytes() == b"one\ntwo\n"
    (tmp_path / "logs" / "link.out").symlink_to(tmp_path / "logs" / "a.out")
    os.mkfifo(tmp_path / "logs" / "fifo.out")
    (tmp_path / "swapped").symlink_to(tmp_path / "logs")
    for place in ("logs/link.out", "logs/fifo.out", "swapped/b.out", "missing/b.out"):
        with pytest.raises(OSError):
            files.open_to_append(tmp_path / place)
    (tmp_path / "logs").chmod(0o777)
    with pytest.raises(PermissionError, match="accessible to other users"):
        files.open_to_append(tmp_path / "logs" / "a.out")


@as_another_user
def test_the_control_plane_of_another_user_is_told_nothing(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    listens, told = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))

        def listen() -> None:
            listener.listen()  # the kernel notes the user who calls this
            os.write(told, b"!")
            connection, _ = listener.accept()
            heard = connection.recv(1000)
            assert heard == b"", heard

        thread = threading.Thread(target=do_as, args=(NOBODY, listen))
        thread.start()
        assert os.read(listens, 1) == b"!"
        with pytest.raises(AuthenticationError, match=f"has uid {NOBODY}, but this process has uid 0"):
            RespClient(path, "password", timeout_s=10).call("PING")
        thread.join(10)
        assert not thread.is_alive()
    os.close(listens)
    os.close(told)
