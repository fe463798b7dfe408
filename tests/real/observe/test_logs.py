"""`dualray logs` and the functions beside it: which files there are, and who has printed what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import dualray as ray
from dualray.cli.app import app
from dualray.util.state import get_log, list_logs
from tests.conformance.support import eventually, get
from tests.json_page import documented_keys
from tests.real.observe.log_command import MINE, RUNNER, logs

WITHIN_S = 20.0


@ray.remote
def say(what):
    print("says", what)
    print("complains of", what, file=sys.stderr)
    return ray.get_runtime_context().get_task_id(), os.getpid(), ray.get_runtime_context().get_worker_id()


@ray.remote(max_retries=1)
def fails_first(path):
    print("attempt", ray.get_runtime_context().get_attempt(), flush=True)
    if not path.exists():
        path.touch()
        os._exit(1)
    return ray.get_runtime_context().get_task_id()


@ray.remote(max_restarts=1, max_task_retries=0)
class Lives:
    def __init__(self):
        print("born")

    def count(self, number):
        print("counts", number)
        return ray.get_runtime_context().get_actor_id()

    def die(self):
        os._exit(1)


@ray.remote(max_concurrency=2)
class Threaded:
    def __init__(self):
        self.barrier = threading.Barrier(2)

    def chat(self, name):
        for number in range(3):
            self.barrier.wait(WITHIN_S)
            sys.stdout.write(f"{name} {number}\n")  # Python may mix what two threads print in several writes
        return ray.get_runtime_context().get_task_id()


@dataclass
class Printed:
    say: list[tuple[str, int, str]]
    retried: str
    actor: str
    chats: list[str]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """A session in which all has been printed that the tests ask for."""
    ray.init(mode="real", num_cpus=3, log_to_driver=False)
    try:
        yield print_all(tmp_path_factory.mktemp("once") / "begun")
    finally:
        ray.shutdown()


def print_all(begun):
    said = [get(say.remote(what)) for what in ("this", "that")]
    retried = get(fails_first.remote(begun))
    lives = Lives.remote()
    actor = get(lives.count.remote(1))
    with pytest.raises(ray.exceptions.ActorUnavailableError):
        get(lives.die.remote())
    eventually(lambda: is_alive_again(lives), "the actor lives again")
    threaded = Threaded.remote()
    chats = get([threaded.chat.remote(name) for name in ("a", "b")])
    last = [
        ("says this", {"task_id": said[0][0]}),
        ("complains of this", {"task_id": said[0][0], "suffix": "err"}),
        ("attempt 1", {"task_id": retried}),
        ("counts 2", {"actor_id": actor}),
        *((f"{name} 2", {"task_id": chat}) for name, chat in zip("ab", chats, strict=True)),
    ]
    for line, query in last:
        eventually(lambda line=line, query=query: is_printed(line, **query), f"{line!r} is in a file")
    return Printed(said, retried, actor, chats)


def is_printed(line, **query):
    """Whether the files have a line yet: workers' pipes are read a moment later."""
    try:
        return line in "".join(get_log(**query)).splitlines()
    except ValueError:  # nothing has printed there yet
        return False


def is_alive_again(lives):
    try:
        return bool(get(lives.count.remote(2)))
    except ray.exceptions.ActorUnavailableError:
        return False


def test_the_files_are_listed(printed):
    rows = json.loads(logs("--format", "json"))
    assert {frozenset(row) for row in json.loads(logs("--json"))} == {documented_keys("logs")}
    names = [row["file"] for row in rows]
    worker = printed.say[0][2].replace("/", "-")
    assert {"head.log", "node-0.log", f"{worker}.out", f"{worker}.err"} <= set(names)
    assert not [name for name in names if name.endswith(".tasks")]
    assert {(row["node_id"], row["session"].startswith(MINE)) for row in rows} == {("node-0", True)}
    assert all(Path(row["path"]).stat().st_size >= row["size_bytes"] > 0 for row in rows)
    table = logs()
    assert all(name in table for name in names)
    groups = list_logs()
    assert set(groups) == {"head", "node", "worker_out", "worker_err"}
    assert sorted(name for group in groups.values() for name in group) == sorted(names)
    assert list_logs(node_id="node-0", glob_filter="head*") == {"head": ["head.log"]}


def every_way_prints_the_head_s_log():
    """Whether all ways to read the log agree; the head may write one between two of them."""
    log = "".join(get_log(filename="head.log"))
    assert "driver-1 joins" in log
    last = "".join(log.splitlines(keepends=True)[-2:])
    return (
        logs("head.log") == logs("cluster", "head.log") == logs("hea*") == log
        and logs("head.log", "--tail", "2") == last
        and b"".join(get_log(filename="head.log", encoding=None)) == log.encode()
    )


def test_one_file_is_printed_and_several_are_listed(printed):
    eventually(every_way_prints_the_head_s_log, "every way prints the same of the head's log")
    several = RUNNER.invoke(app, ["logs", "*.out", "--session", MINE])
    assert printed.say[0][2].replace("/", "-") + ".out" in several.stdout
    assert "name one" in several.stderr


def test_what_a_task_has_printed(printed):
    task, pid, worker = printed.say[0]
    assert logs("task", task) == logs("task", "--id", task) == logs("task", task[:12]) == "says this\n"
    assert logs("task", task, "--err") == "complains of this\n"
    assert list(get_log(task_id=task)) == ["says this\n"]
    assert "says this\n" in logs("worker", worker)
    assert logs("worker", worker) == logs("worker", worker.replace("/", "-"))
    assert "says this\n" in logs("worker", "--pid", str(pid))
    assert "complains of this\n" in "".join(get_log(pid=pid, suffix="err"))


def test_a_task_has_attempts(printed):
    assert logs("task", printed.retried) == "attempt 0\nattempt 1\n"
    assert logs("task", printed.retried, "-a", "1") == "attempt 1\n"
    assert list(get_log(task_id=printed.retried, attempt_number=0)) == ["attempt 0\n"]
    assert "Attempts that printed: 0, 1" in logs("task", printed.retried, "-a", "7", code=2)


def test_an_actor_has_lives(printed):
    assert logs("actor", printed.actor) == "born\ncounts 1\nborn\ncounts 2\n"
    assert logs("actor", printed.actor, "--tail", "3") == "counts 1\nborn\ncounts 2\n"
    assert logs("actor", "Lives") == logs("actor", printed.actor), "the only actor of this class that has printed"
    nothing = RUNNER.invoke(app, ["logs", "actor", printed.actor, "--err", "--session", MINE])
    assert (nothing.stdout, "leave out --err" in nothing.stderr) == ("", True)


def test_methods_that_print_at_a_time_are_told_apart(printed):
    for name, chat in zip("ab", printed.chats, strict=True):
        assert logs("task", chat) == "".join(f"{name} {number}\n" for number in range(3))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["heed.log"], "no log file is called 'heed.log'. Did you mean 'head.log'?"),
        (["*.xyz"], "known are head.log"),
        (["worker", "node-0/w99"], "these logs have no output of worker 'node-0/w99'. Did you mean 'node-0/w"),
        (["worker", "--pid", "1"], "these logs have no output of a worker with pid 1"),
        (["worker"], "an address, such as node-0/w3, or --pid PID"),
        (["task", "ffff"], "list_tasks() has the ids"),
        (["task", "say"], "'say' is the name of several; give one of these ids"),
        (["task", "zzzz"], "the logs have"),
        (["actor", "f" * 32], "(Lives)"),
        (["tsk", "ffff"], "Did you mean 'task'?"),
        (["head.log", "--err"], "--err needs one of task, actor, worker before it"),
        (["actor", "ffff", "-a", "1"], "--attempt-number is only for tasks"),
        (["task", "--pid", "1"], "--pid chooses a worker or an actor"),
        (["--node", "node-1"], "this machine has no logs of node 'node-1'. Did you mean 'node-0'?"),
        (["--format", "xml"], "must be table or json"),
    ],
)
def test_who_asks_wrongly_gets_the_way_out(printed, arguments, words):
    assert words in logs(*arguments, code=2)


def test_an_unknown_session_is_named(printed):
    assert "there is no session 'nobody'" in logs(code=2, of=("--session", "nobody"))


def test_in_python_wrong_arguments_are_named(printed):
    with pytest.raises(ValueError, match="one of filename, actor_id, task_id and pid, but got none"):
        get_log()
    with pytest.raises(ValueError, match="got filename and pid"):
        get_log(filename="head.log", pid=1)
    with pytest.raises(ValueError, match="suffix='log' must be 'out' or 'err'"):
        get_log(task_id=printed.retried, suffix="log")
    with pytest.raises(ValueError, match="tail=-2 must be a number of lines, or -1 for all"):
        get_log(filename="head.log", tail=-2)


def test_a_task_can_read_logs(printed):
    @ray.remote
    def reads(task):
        return list(get_log(task_id=task)), list_logs(glob_filter="head.log")

    assert get(reads.remote(printed.say[0][0])) == (["says this\n"], {"head": ["head.log"]})


def test_follow_ends_with_ctrl_c(printed):
    follower = subprocess.Popen(
        [sys.executable, "-m", "dualray", "logs", "actor", printed.actor, "-f", "--tail", "1", "--session", MINE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"counts 2\n"
        follower.send_signal(signal.SIGINT)
        assert follower.communicate(timeout=WITHIN_S)[0] == b""
    finally:
        follower.kill()
        follower.communicate()
    assert follower.returncode == 0
