"""What runs out ends in an error that names it, and the session goes on; who only connects uses nothing up."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import dualray
from dualray.exceptions import ActorDiedError, DualrayError, WorkerCrashedError
from dualray.real.limits import OPEN_FILES_MIN, limit_in_words
from dualray.real.observe import metrics_server
from tests.conformance.support import eventually
from tests.exhaustion.other_user import as_other_user, why_no_other_user
from tests.exhaustion.runs import in_sessions, pids_of, taken

WITHIN_S = 60


def run_limited(program: str, *, open_files: tuple[int, int]) -> str:
    """What a program prints whose soft and hard limits of open files are these."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {open_files})\n{program}"
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


ACTORS = """
import sys
import dualray
from dualray.exceptions import WorkerCrashedError

dualray.init(num_cpus=1, metrics_port=0)

@dualray.remote(num_cpus=0)
class Actor:
    def one(self):
        return 1

@dualray.remote
def two():
    return 2

actors = [Actor.remote() for _ in range(COUNT)]
answers, words = 0, set()
for actor in actors:
    try:
        answers += dualray.get(actor.one.remote(), timeout=60)
    except WorkerCrashedError as error:
        words.add(str(error))
del actors, actor
print(answers, dualray.get(two.remote(), timeout=60), *words)
"""


def test_an_actor_is_as_many_files_as_the_hard_limit_allows() -> None:
    """The usual soft limit of 1024 ended the session at 340 actors."""
    assert run_limited(ACTORS.replace("COUNT", "30"), open_files=(64, 4096)) == "30 2\n"


def test_no_more_open_files_fail_the_actor_and_name_the_limit() -> None:
    said = run_limited(ACTORS.replace("COUNT", "26"), open_files=(64, 64))
    answers, two, words = said.split(" ", 2)
    assert 5 < int(answers) < 26
    assert two == "2"
    reached = "this process has reached its limit of open files, 64 (RLIMIT_NOFILE"
    assert f"could not start a worker for 5 s: {reached}" in words


@pytest.mark.parametrize("files", [12, 24, 39])
def test_too_few_open_files_to_begin_with_are_refused_by_name(files: int) -> None:
    """It was a traceback of FileNotFoundError, and `head ended with status 70`."""
    program = (
        "import dualray\ntry:\n    dualray.init()\nexcept dualray.exceptions.DualrayError as error:\n    print(error)"
    )
    said = run_limited(program, open_files=(files, files))
    assert said.startswith(f"this process may have {files} open files (RLIMIT_NOFILE, with the hard limit {files})")
    assert "Raise the limit with `ulimit -n`" in said


def test_as_many_open_files_as_are_asked_for_are_enough() -> None:
    program = "import dualray\ndualray.init(num_cpus=1)\nprint(dualray.get(dualray.remote(lambda: 7).remote()))"
    assert run_limited(program, open_files=(OPEN_FILES_MIN, OPEN_FILES_MIN)) == "7\n"


THREADS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))
import dualray
from dualray.exceptions import ActorDiedError, DualrayError, WorkerCrashedError

dualray.init(num_cpus=1)

@dualray.remote(num_cpus=0)
class Actor:
    def one(self):
        return 1

actors = [Actor.remote() for _ in range(30)]
answers, words = 0, set()
for actor in actors:
    try:
        answers += dualray.get(actor.one.remote(), timeout=60)
    except WorkerCrashedError as error:
        words.add(str(error).splitlines()[-1])
del actors, actor
two = None
while two is None:  # until those that end have ended, there is no room for another worker
    try:
        two = dualray.get(dualray.remote(lambda: 2).remote(), timeout=60)
    except WorkerCrashedError:
        continue
print(answers, two, *words)
dualray.shutdown()
"""


def test_no_more_threads_fail_the_actor_and_name_the_limit() -> None:
    """The driver met a bug in every call from then on, and `shutdown` raised."""
    why = why_no_other_user()
    if why:
        pytest.skip(why)
    done = as_other_user(["-c", THREADS], capture_output=True, timeout=110)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    answers, two, words = last.split(" ", 2)
    assert 0 < int(answers) < 30
    assert two == "2"
    assert "this user may have 40 processes and threads (RLIMIT_NPROC)" in words
    assert "bug in dualray" not in done.stderr


FEW_PROCESSES = """
import resource, sys
import dualray, numpy
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
try:
    dualray.init(num_cpus=1)
except dualray.exceptions.DualrayError as error:
    print(error)
else:
    print("started")
"""


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_too_few_processes_to_begin_with_are_named(limit: int) -> None:
    """`init` raised RuntimeError, or said that the head had ended with status 70."""
    why = why_no_other_user()
    if why:
        pytest.skip(why)
    done = as_other_user(["-c", FEW_PROCESSES, str(limit)], capture_output=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert f"this user may have {limit} processes and threads (RLIMIT_NPROC)" in done.stdout
    assert "bug in dualray" not in done.stderr


MEMORY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
import dualray
try:
    dualray.init(num_cpus=1, object_store_memory=32 << 20)
except dualray.exceptions.DualrayError as error:
    print(error)
"""


def test_too_little_address_space_is_named() -> None:
    """`init` said that a process had ended with status 1."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=110, check=False)
    assert "this process may have 314,572,800 bytes of address space (RLIMIT_AS)" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


def test_limits_in_words() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"{soft:,} (RLIMIT_NOFILE" in limit_in_words(OSError(errno.EMFILE, "Too many open files"))
    assert "pids.max" in limit_in_words(RuntimeError("can't start new thread"))
    assert "no space left on the disk of /a" in limit_in_words(OSError(errno.ENOSPC, "No space", "/a"))
    assert limit_in_words(OSError(errno.ENOENT, "No such file", "/a")) == "[Errno 2] No such file: '/a'"


def test_a_thread_that_finds_no_memory_names_that_limit_too() -> None:
    """A thread needs memory for its stack. The error named only the processes, of which there were few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, hard))
    try:
        words = limit_in_words(RuntimeError("can't start new thread"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert "RLIMIT_NPROC" in words
    assert "1,099,511,627,776 bytes of address space (RLIMIT_AS)" in words


# ---- One session -------------------------------------------------------------------------------------------------


@pytest.fixture
def session() -> Iterator[Any]:
    yield dualray.init(num_cpus=1, metrics_port=0, log_to_driver=False)
    dualray.shutdown()


@dualray.remote(max_retries=0)
def one() -> int:
    return 1


@dualray.remote(num_cpus=0)
class One:
    def one(self) -> int:
        return 1


def test_idle_connections_to_the_metrics_use_up_nothing(
    session: Any,
) -> None:
    assert dualray.get(one.remote()) == 1
    host, port = session.metrics_address.split(":")
    (node,) = (int(line.split()[-1]) for line in _log_lines(session, "node manager node-0"))
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(80)]
        eventually(lambda: _ended(idle) >= 80 - metrics_server.CONNECTIONS_MAX, "the others were hung up on")
        process = psutil.Process(node)
        assert process.num_threads() <= metrics_server.CONNECTIONS_MAX + 10
        assert process.num_fds() < 80
        eventually(lambda: _ended(idle) == 80, "all were hung up on")  # those that had a place, too
    with urllib.request.urlopen(f"http://{session.metrics_address}/metrics", timeout=10) as answer:
        assert b"dualray_workers" in answer.read()
    assert dualray.get(one.remote()) == 1


def _log_lines(session: Any, words: str) -> list[str]:
    return [line for line in session.session.log_path("node-0").read_text().splitlines() if words in line]


def _ended(sockets: list[socket.socket]) -> int:
    count = 0
    for each in sockets:
        each.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            count += each.recv(1, socket.MSG_PEEK) == b""
    return count


def test_a_worker_without_its_descriptors_ends_although_a_thread_runs_on(session: Any) -> None:
    @dualray.remote(max_retries=0)
    def leaves_a_thread() -> int:
        threading.Thread(target=time.sleep, args=(600,)).start()
        return os.getpid()

    @dualray.remote(max_retries=0)
    def closes_all() -> None:
        os.closerange(0, 256)

    @dualray.remote(max_retries=0)
    def closes_sockets_and_goes_on() -> None:
        os.closerange(3, 256)
        time.sleep(600)

    pid = dualray.get(leaves_a_thread.remote())
    with pytest.raises(WorkerCrashedError):
        dualray.get(closes_all.remote(), timeout=WITHIN_S)
    assert dualray.get(leaves_a_thread.remote(), timeout=WITHIN_S) != pid
    with pytest.raises(WorkerCrashedError, match="its connection to the node manager has closed"):
        dualray.get(closes_sockets_and_goes_on.remote(), timeout=WITHIN_S)
    assert dualray.get(one.remote(), timeout=WITHIN_S) == 1


def test_a_worker_that_cannot_load_functions_for_want_of_descriptors_ends(session: Any) -> None:
    """Its task runs in another worker. Once it failed each task whose function it did not know, ten seconds each."""

    @dualray.remote
    def takes_all() -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return os.getpid()

    @dualray.remote(max_retries=1)
    def new_function() -> int:
        return os.getpid()

    pid = dualray.get(takes_all.remote())
    assert dualray.get(new_function.remote(), timeout=WITHIN_S) != pid


def test_a_forked_child_that_returns_ends_and_the_task_is_its_parents(session: Any) -> None:
    @dualray.remote(max_retries=0)
    def forks(code: int) -> tuple[str, int]:
        child = os.fork()
        if not child:
            if code:
                raise SystemExit(code)
            return "child", 0
        return "parent", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert dualray.get([forks.remote(code) for code in (0, 3, 0)], timeout=WITHIN_S) == [
        ("parent", 0),
        ("parent", 3),
        ("parent", 0),
    ]


def test_a_wait_that_ends_with_the_node_leaves_nothing_in_the_machine() -> None:
    """Its objects went with the last reference; news of their task then found a wait for what was gone."""
    runtime = dualray.init(num_cpus=1, log_to_driver=False)

    @dualray.remote(max_retries=0)
    def sleeps() -> None:
        time.sleep(600)

    refs = [sleeps.remote(), sleeps.remote()]
    with contextlib.suppress(DualrayError):
        dualray.get(refs, timeout=0.5)
    threading.Timer(0.2, os.kill, (runtime._children.processes["node-0"].pid, signal.SIGKILL)).start()
    with pytest.raises(DualrayError, match="node manager node-0 is gone"):
        dualray.get(refs, timeout=WITHIN_S)
    assert not runtime.core.machine.values.waiting.waits
    dualray.shutdown()
    dualray.shutdown()


def test_a_share_of_the_runs_that_take_resources_away() -> None:
    """`python -m tests.exhaustion --runs 5000` does all."""
    wrong = [outcome for outcome in in_sessions(range(30)) if outcome.wrong]
    assert not wrong, wrong


def test_an_actor_that_a_head_without_descriptors_cannot_construct_fails_and_names_the_limit(session: Any) -> None:
    """It was PENDING for ever, also when the head could open files again."""
    (head,) = pids_of("head", session)
    with taken(head, "open files", 0):
        actor = One.remote()  # type: ignore[attr-defined]  # the decorator's
        with pytest.raises(ActorDiedError, match=r"the head reports that it cannot connect to .* limit of open files"):
            dualray.get(actor.one.remote(), timeout=WITHIN_S)
    actor = One.remote()  # type: ignore[attr-defined]  # the decorator's
    assert dualray.get(actor.one.remote(), timeout=WITHIN_S) == 1


def test_a_template_without_descriptors_fails_the_worker_and_lives(session: Any) -> None:
    """It took the request for a broken one, and the node ended with it."""

    @dualray.remote(num_cpus=0)
    def rests() -> int:
        time.sleep(0.5)  # else one worker may do all of them before the template is asked for another
        return 1

    (template,) = pids_of("template", session)
    with taken(template, "open files", 1), pytest.raises(WorkerCrashedError, match="its limit of open files"):
        dualray.get([rests.remote() for _ in range(8)], timeout=WITHIN_S)
    assert dualray.get([rests.remote() for _ in range(8)], timeout=WITHIN_S) == [1] * 8


def test_a_template_without_descriptors_kills_a_worker_and_lives(session: Any) -> None:
    """It could not read what the worker had started, and ended with all workers."""

    @dualray.remote(num_cpus=0)
    class Sleeper:
        def pid(self) -> int:
            return os.getpid()

    sleeper = Sleeper.remote()  # type: ignore[attr-defined]  # the decorator's
    worker = psutil.Process(dualray.get(sleeper.pid.remote(), timeout=WITHIN_S))
    (template,) = pids_of("template", session)
    with taken(template, "open files", 0):
        dualray.kill(sleeper)
        eventually(lambda: not worker.is_running(), "the worker has ended")
    assert pids_of("template", session) == [template]
    assert dualray.get(one.remote(), timeout=WITHIN_S) == 1


START_THREADS = """
import os, resource, signal, threading
from dualray.real.limits import start_thread

def start(slack_bytes):
    signal.alarm(30)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit_bytes = pages * resource.getpagesize() + slack_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))
    try:
        start_thread(threading.Thread(target=int, daemon=True))
    except RuntimeError as error:
        assert str(error) == "can't start new thread"

STACK_BYTES = 8 << 20
resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))
for slack_bytes in range(STACK_BYTES, STACK_BYTES + (1 << 20), 8192):
    pid = os.fork()
    if not pid:
        start(slack_bytes)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        print(slack_bytes)
"""


def test_a_thread_that_has_no_memory_for_its_first_frame_is_not_waited_for() -> None:
    """`threading.Thread.start` waits for such a thread for ever: here, at three of these sizes."""
    done = subprocess.run(
        [sys.executable, "-c", START_THREADS], capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


TAKES_MEMORY = """
import resource, signal

held = []

def take(*_):
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    for size in (1 << 20, 1 << 16, 1 << 12, 1 << 8, 1 << 6):
        try:
            while True:
                held.append(bytearray(size))
        except MemoryError:
            pass

def give_back(*_):
    held.clear()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

signal.signal(signal.SIGUSR2, take)
signal.signal(signal.SIGALRM, give_back)
"""
"""Each process of a session imports this as `sitecustomize`. At SIGUSR2 it has no memory for 1.5 s."""

NO_MEMORY = """
import os, signal, sys, time
import dualray
from dualray.exceptions import WorkerCrashedError
from tests.exhaustion.runs import pids_of

runtime = dualray.init(num_cpus=1, log_to_driver=False)

@dualray.remote(num_cpus=0)
class Actor:
    def one(self):
        return 1

first = Actor.remote()
assert dualray.get(first.one.remote(), timeout=60) == 1
(template,) = pids_of("template", runtime)
os.kill(template, signal.SIGUSR2)
time.sleep(0.2)
actors = [Actor.remote() for _ in range(10)]
for actor in actors:
    try:
        dualray.get(actor.one.remote(), timeout=60)
    except WorkerCrashedError as error:
        assert "memory" in str(error) or "address space" in str(error), error
assert pids_of("template", runtime) == [template]
time.sleep(2)
print(dualray.get([first.one.remote(), Actor.remote().one.remote()], timeout=60))
"""


def test_a_template_without_memory_for_a_while_lives(tmp_path: Path) -> None:
    """It ended with a MemoryError, and the session with it."""
    (tmp_path / "sitecustomize.py").write_text(TAKES_MEMORY)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", NO_MEMORY],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[1, 1]\n"), done.stderr


@pytest.mark.parametrize("is_ready", [False, True])
def test_the_reason_is_said_if_the_template_is_killed(session: Any, is_ready: bool) -> None:
    if is_ready:
        assert dualray.get(one.remote(), timeout=WITHIN_S) == 1
    (template,) = pids_of("template", session)
    os.kill(template, signal.SIGKILL)
    said = ""

    def has_ended() -> bool:
        nonlocal said
        try:
            dualray.get(one.remote(), timeout=WITHIN_S)
        except DualrayError as error:
            said = str(error)
        return "is gone" in said

    eventually(has_ended, "the session has ended")
    assert "node-0 ends: its worker template has ended, and all workers have ended with it" in said


def test_a_driver_without_descriptors_hears_of_its_limit_and_goes_on(session: Any) -> None:
    """It waited for ever for workers that it could not connect to, and their actors were lost to it."""

    class Actor:
        def one(self) -> int:
            return 1

    made: Any = dualray.remote(num_cpus=0)(Actor)
    words = r"driver-1 cannot connect to node-0/w\d+: this process has reached its limit of open files"
    dualray.get(one.remote(), timeout=WITHIN_S)
    with taken(os.getpid(), "open files", 0):
        actors = [made.remote() for _ in range(6)]
        calls = [actor.one.remote() for actor in actors]
        with pytest.raises(DualrayError, match=words):
            dualray.get(calls, timeout=WITHIN_S)
        for call in calls:
            with contextlib.suppress(DualrayError):
                dualray.get(call, timeout=WITHIN_S)
    assert dualray.get([actor.one.remote() for actor in actors], timeout=WITHIN_S) == [1] * 6
