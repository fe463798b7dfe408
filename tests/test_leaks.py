"""The leak checks find each kind of leak, wait for clean-up, and leave alone what is not ours."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests import leaks

pytestmark = pytest.mark.leak_check

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /dev/shm")


@pytest.fixture
def before() -> leaks.Survey:
    return leaks.survey()


def kinds(before: leaks.Survey) -> list[str]:
    """What is left after 0.3 s. While a session of another run ends, its segment may look like one of ours."""
    return [holding.kind for holding in leaks.leaked(before, timeout_s=0.3)]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def start_orphan(
    environment: dict[str, str], *, stdin: IO[str] | int = subprocess.DEVNULL, command: list[str] = SLEEP
) -> int:
    """A process in a session of its own whose parent has ended, as a daemon is; returns its pid."""
    program = (
        "from subprocess import DEVNULL, Popen\n"
        f"print(Popen({command!r}, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True).pid)"
    )
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment,
        stdin=stdin,
        capture_output=True,
        check=True,
    )
    return int(finished.stdout)


def test_nothing_new_is_no_leak(before):
    assert kinds(before) == []


def test_child_is_found(before, child):
    (holding,) = leaks.leaked(before, timeout_s=0)
    assert holding.kind == "process"
    assert str(holding).startswith(f"process {child.pid}: ")
    assert "time.sleep(60)" in str(holding)


def test_what_was_there_before_is_not_found(child):
    assert kinds(leaks.survey()) == []


def test_child_that_nobody_waited_for_is_found(before):
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert kinds(before) == ["process"]
    process.wait()
    assert kinds(before) == []


def test_orphan_is_found_by_the_mark_of_the_run_and_ended(before):
    pid = start_orphan(dict(os.environ))
    (holding,) = leaks.leaked(before, timeout_s=0)
    assert holding.key[1] == pid
    assert holding.is_certainly_ours
    leaks.end([holding])
    assert leaks.leaked(before) == []


def test_process_of_another_run_is_not_found(before):
    pid = start_orphan({leaks.SESSION_VARIABLE: f"test-{os.getpid()}", leaks.RUN_VARIABLE: "another"})
    try:
        assert kinds(before) == []
    finally:
        os.kill(pid, 9)


def test_process_is_looked_at_again_when_it_starts_another_program(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    ours = dict(os.environ)
    program = f"import os, sys; open({str(gate)!r}).read(); os.execve(sys.executable, {SLEEP!r}, {ours!r})"
    pid = start_orphan({leaks.RUN_VARIABLE: "another"}, command=[sys.executable, "-c", program])
    try:
        before = leaks.survey()
        assert kinds(before) == []
        gate.write_text("")
        while not (news := leaks.leaked(before, timeout_s=0)):
            time.sleep(0.01)
        assert [holding.key[1] for holding in news] == [pid]
    finally:
        os.kill(pid, 9)


def process(
    pid: int, parent_pid: int, command: str, *, run: str | None = None, session: str = "", is_zombie: bool = False
) -> leaks.Process:
    return leaks.Process(
        pid=pid,
        parent_pid=parent_pid,
        started_s=0.0,
        is_zombie=is_zombie,
        command=tuple(command.split()),
        run=run,
        session=session,
    )


# init starts two shells; one runs these tests, the other an example.
TABLE = [
    process(1, 0, "init"),
    process(10, 1, "bash"),
    process(11, 10, "pytest"),
    process(12, 11, "python driver.py"),
    process(13, 12, "redis-server", session="a"),
    process(14, 11, "python -c from multiprocessing.resource_tracker import main"),
    process(15, 11, "", is_zombie=True),
    process(16, 12, "", is_zombie=True),
    process(20, 1, "python worker.py", run="one", session="b"),
    process(21, 1, "python worker.py", run="one/nested", session="b"),
    process(22, 1, "python worker.py", run="one-more", session="b"),
    process(23, 1, "python worker.py", run="another", session="b"),
    process(24, 20, "redis-server /tmp/dualray-b/redis.sock"),
    process(25, 23, "redis-server /tmp/dualray-b/redis.sock"),
    process(30, 1, "python node.py", session="c"),
    process(31, 30, "redis-server /tmp/dualray-c/redis.conf"),
    process(40, 1, "bash"),
    process(41, 40, "python demo.py"),
    process(42, 41, "python node.py", session="d"),
    process(43, 42, "python worker.py", session="d"),
    process(44, 40, "tail -f /tmp/dualray-d/log"),
    process(50, 51, "two whose pids were reused", session="e"),
    process(51, 50, "while we looked", session="e"),
]


def test_whose_process_it_is():
    processes = {one.pid: one for one in TABLE}
    ours = [one.pid for one in TABLE if leaks.is_ours(one, processes, here=11, run="one")]
    descendants, marked, orphans, odd = [12, 13, 15], [20, 21, 24], [30, 31], [50, 51]
    assert ours == descendants + marked + orphans + odd


def test_later_process_of_an_earlier_session_is_not_found(monkeypatch):
    """A cluster that a wider fixture started may start workers."""
    monkeypatch.setenv(leaks.SESSION_VARIABLE, f"test-{os.getpid()}")
    with subprocess.Popen(SLEEP) as first:
        before = leaks.survey()
        with subprocess.Popen(SLEEP) as second, socket.socket():
            assert kinds(before) == []
            second.kill()
        first.kill()


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_temporary_file_is_found(before, make):
    path = Path(tempfile.gettempdir(), "dualray-test")
    make(path)
    try:
        (holding,) = leaks.leaked(before, timeout_s=0)
        assert str(holding) == f"temporary file {path}"
    finally:
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.fixture
def segment() -> Iterator[Path]:
    """An open one: the workers of pytest-xdist see by the open file that it is not theirs."""
    path = Path("/dev/shm", f"dualray-test-{os.getpid()}")
    with path.open("w"):
        yield path
        path.unlink(missing_ok=True)


@linux_only
def test_segment_is_found_and_removed(before, segment):
    found = leaks.leaked(before, timeout_s=0)
    assert [holding.kind for holding in found] == ["descriptor", "segment"]
    assert str(found[1]) == f"segment {segment}"
    leaks.end(found)
    assert not segment.exists()


@linux_only
def test_segment_of_a_session_of_others_is_not_found(before, segment):
    pid = start_orphan({leaks.SESSION_VARIABLE: segment.name, leaks.RUN_VARIABLE: "another"})
    try:
        assert kinds(before) == ["descriptor"]
    finally:
        os.kill(pid, 9)
    while Path(f"/proc/{pid}/exe").exists():
        time.sleep(0.01)
    assert kinds(before) == ["descriptor", "segment"]


@linux_only
def test_segment_that_others_have_open_is_not_found(before, segment):
    with segment.open() as inherited:
        pid = start_orphan({leaks.RUN_VARIABLE: "another"}, stdin=inherited)
    try:
        assert kinds(before) == ["descriptor"]
    finally:
        os.kill(pid, 9)


def test_socket_is_found(before):
    with socket.create_server(("127.0.0.1", 0)):
        assert kinds(before) == ["descriptor"]


def test_pipe_is_found(before):
    descriptors = os.pipe()
    assert kinds(before) == ["descriptor", "descriptor"]
    for descriptor in descriptors:
        os.close(descriptor)


@linux_only
def test_epoll_is_found(before):
    with select.epoll():
        (holding,) = leaks.leaked(before, timeout_s=0)
        assert "anon_inode:[eventpoll]" in str(holding)


def test_regular_file_is_left_to_its_warning(before, tmp_path):
    with (tmp_path / "log").open("w"):
        assert kinds(before) == []


def test_another_descriptor_of_the_same_number_is_found():
    first = socket.socket()
    before = leaks.survey()
    number = first.fileno()
    first.close()
    with socket.socket() as second:
        assert second.fileno() == number
        assert kinds(before) == ["descriptor"]


def test_clean_up_in_time_is_no_leak(before):
    listener = socket.create_server(("127.0.0.1", 0))
    timer = threading.Timer(0.3, listener.close)
    timer.start()
    start_s = time.monotonic()
    assert leaks.leaked(before, timeout_s=60) == []
    assert time.monotonic() - start_s < 30, "it waits no longer than the clean-up takes"
    timer.join()


def test_helper_of_multiprocessing_is_not_found(before):
    code = (
        "from multiprocessing import shared_memory\n"
        "from tests import leaks\n"
        "leaks.CLEAN_UP_S = 0\n"
        "before = leaks.survey()\n"
        "segment = shared_memory.SharedMemory(create=True, size=8)\n"
        "segment.close(); segment.unlink()\n"
        "assert leaks.leaked(before, timeout_s=10) == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


@pytest.mark.parametrize(
    ("mark", "culprits"),
    [
        ("", ["test_planted.py"]),
        ("@pytest.mark.leak_check\n", ["test_planted.py::test_plant", "test_planted.py"]),
    ],
    ids=["module", "test"],
)
def test_the_fixtures_fail_with_the_list(tmp_path, mark, culprits):
    """A run of pytest of its own, on a test that leaves a directory behind."""
    root = Path(__file__).parent.parent
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import *\nfrom tests import leaks\nleaks.CLEAN_UP_S = 0.0\n"
    )
    (tmp_path / "test_planted.py").write_text(
        "import pathlib, pytest, tempfile\n"
        f"{mark}def test_plant():\n    pathlib.Path(tempfile.gettempdir(), 'dualray-plant').mkdir()\n"
    )
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", f"--rootdir={root}", tmp_path, "-v"],
        cwd=root,
        env={**os.environ, "PYTEST_DEBUG_TEMPROOT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1, finished.stdout + finished.stderr
    for culprit in culprits:
        assert f"{culprit} left behind, 0 s after it ended:" in finished.stdout
    assert "/dualray-plant" in finished.stdout
