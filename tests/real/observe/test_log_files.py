"""Log files of sessions that come and go, of several nodes, of none; and how a file is read while it grows."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualray as ray
from dualray.cluster_utils import Cluster
from dualray.exceptions import DualrayError
from dualray.real.observe import log_files, worker_output
from dualray.real.observe.log_files import LogPlace, LogQuery, LogReader
from dualray.real.observe.worker_output import LogFile, Printer, WorkerOutput, mark
from dualray.shared.core.execution import Execution
from dualray.shared.model.ids import ActorID, child_task_id, root_task_id
from dualray.util.state import get_log, list_logs
from tests.conformance.support import eventually, get
from tests.real.observe.log_command import logs

WITHIN_S = 20.0
ROOT = root_task_id("", 1)
ONE, TWO = child_task_id(ROOT, 0, 1), child_task_id(ROOT, 0, 2)


@ray.remote
def say(what):
    print("says", what)
    print("complains of", what, file=sys.stderr)
    return ray.get_runtime_context().get_task_id(), os.getpid(), ray.get_runtime_context().get_worker_id()


def is_printed(line, **query):
    """Whether the files have a line yet: workers' pipes are read a moment later."""
    try:
        return line in "".join(get_log(**query)).splitlines()
    except ValueError:  # nothing has printed there yet
        return False


# ---- Sessions --------------------------------------------------------------------------------------------------------


def test_logs_are_followed_to_the_end_and_kept(tmp_path):
    ray.init(mode="real", num_cpus=1, log_to_driver=False, log_directory=str(tmp_path))
    task, _, worker = get(say.remote("before"))
    eventually(lambda: is_printed("says before", task_id=task), "it is in the file")
    followed = get_log(filename=f"{worker.replace('/', '-')}.out", follow=True)
    assert next(followed) == "says before\n"
    of_later: list[str] = []
    follower = threading.Thread(target=lambda: of_later.extend(followed), daemon=True)
    follower.start()
    get([say.remote(number) for number in range(3)])
    eventually(lambda: "says 2\n" in "".join(of_later), "what comes is followed")
    ray.shutdown()
    follower.join(WITHIN_S)
    assert not follower.is_alive()
    assert "".join(of_later) == "says 0\nsays 1\nsays 2\n"
    kept = ("--directory", str(tmp_path))
    assert logs("task", task, of=kept) == "says before\n"
    [session] = tmp_path.iterdir()
    assert logs("task", task, of=("--directory", str(session))) == "says before\n"
    assert "".join(get_log(task_id=task, directory=tmp_path, follow=True)) == "says before\n"
    assert list_logs(directory=tmp_path, glob_filter="node-0.log") == {"node": ["node-0.log"]}
    (tmp_path / "empty").mkdir()
    assert "has no log files of a cluster" in logs(code=2, of=("--directory", str(tmp_path / "empty")))
    assert "there is no directory" in logs(code=2, of=("--directory", str(tmp_path / "none")))


def test_nodes_are_told_apart():
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=1, resources={"far": 1})
        task, _, worker = get(say.options(resources={"far": 1}).remote("from afar"))
        assert worker.startswith("node-1/")
        eventually(lambda: is_printed("says from afar", task_id=task), "it is in the file")
        assert list(get_log(task_id=task)) == list(get_log(task_id=task, node_id="node-1")) == ["says from afar\n"]
        assert "node-1.log" not in list_logs(node_id="node-0").get("node", [])
        with pytest.raises(ValueError, match=r"several nodes have a file 'daemon.log': node-0 of .*, node-1 of"):
            get_log(filename="daemon.log")
        assert "worker node-1/w0 has pid" in "".join(get_log(filename="node-1.log", node_id="node-1"))
        with pytest.raises(ValueError, match="this machine has no logs of node 'node-7'"):
            list_logs(node_id="node-7")


def test_without_a_session_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert "No real cluster of this user runs on this machine" in logs(of=())
    assert "--directory DIR" in logs("head.log", code=2, of=())
    assert json.loads(logs("--format", "json", of=())) == []
    with pytest.raises(ValueError, match="because 0 clusters run on this machine"):
        list_logs()


def test_a_simulation_has_none():
    ray.init(mode="sim")
    try:
        with pytest.raises(DualrayError, match="a simulation has no log files"):
            list_logs()
        with pytest.raises(DualrayError, match="a simulation has no log files"):
            get_log(filename="head.log")
    finally:
        ray.shutdown()


# ---- The pieces ------------------------------------------------------------------------------------------------------


def worker_file(directory: Path) -> WorkerOutput:
    return WorkerOutput(
        worker="node-0/w1", stream=1, file=LogFile(directory / "node-0-w1.out"), show=None, lines_kept=1
    )


def query(directory: Path, task: bytes) -> LogQuery:
    return log_files.of_task([LogPlace("session", "node-0", directory)], task.hex(), may_come=True)


def test_a_file_that_begins_anew_loses_nothing_to_who_follows(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_output, "FILE_BYTES_MAX", 1000)
    output = worker_file(tmp_path)
    read = b""
    with LogReader(query(tmp_path, TWO)) as reader:
        assert list(reader.read()) == []
        assert reader.is_empty
        for number in range(100):
            for task in (ONE, TWO):
                output.feed(mark(Execution(task_id=task, name="f")) + b"%d of %s\n" % (number, task.hex().encode()))
            read += b"".join(reader.read())
    assert read == b"".join(b"%d of %s\n" % (number, TWO.hex().encode()) for number in range(100))
    output.feed(b"")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"node-0-w1.out{old}{tasks}" for old in ("", ".old") for tasks in ("", ".tasks")
    }
    with LogReader(query(tmp_path, ONE)) as reader:  # the last two files are still there
        lines = b"".join(reader.read()).split(b"\n")[:-1]
    assert [int(line.split()[0]) for line in lines] == list(range(100 - len(lines), 100))
    assert len(lines) > 2


def test_ids_of_several_sessions_are_not_mixed(tmp_path):
    places = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir(mode=0o700)
        output = worker_file(tmp_path / name)
        output.feed(mark(Execution(task_id=ONE, name="f")) + f"{name}\n".encode())
        output.feed(b"")
        places.append(LogPlace(name, "node-0", tmp_path / name))
    for ask in (lambda: log_files.of_task(places, ONE.hex()), lambda: log_files.of_pid(places, os.getpid())):
        with pytest.raises(ValueError, match=r"in several sessions.*: first, second"):
            ask()
    with LogReader(log_files.of_task(log_files.chosen(places, session="sec", node=None), ONE.hex())) as reader:
        assert b"".join(reader.read()) == b"second\n"
    other_node = LogPlace("second", "node-1", tmp_path / "second")
    with LogReader(log_files.of_task([places[0], other_node], ONE.hex())) as reader:  # an attempt on each
        assert b"".join(reader.read()) == b"first\nsecond\n"


def test_lines_of_nobody_and_a_broken_index(tmp_path):
    output = worker_file(tmp_path)
    output.feed(b"before any task\n" + mark(Execution(task_id=ONE, name="f", actor_id=ActorID(bytes(16)))) + b"one\n")
    output.feed(b"")
    index = tmp_path / "node-0-w1.out.tasks"
    index.write_bytes(b"12\tcut sh\n" + index.read_bytes() + b"99")
    with LogReader(query(tmp_path, ONE)) as reader:
        assert b"".join(reader.read()) == b"one\n"
    assert (tmp_path / "node-0-w1.out").read_bytes() == b"before any task\none\n"
    with LogReader(log_files.of_worker([LogPlace("s", "node-0", tmp_path)], "node-0/w1")) as reader:
        assert b"".join(reader.read()) == b"before any task\none\n"


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(["", "x", "long" * 9]), min_size=1)), max_size=8),
    st.integers(0, 12),
)
def test_the_last_lines_are_those_at_the_end(sections, tail):
    wanted = [line for is_one, lines in sections for line in lines if is_one]
    with tempfile.TemporaryDirectory() as name:
        output = worker_file(Path(name))
        for is_one, lines in sections:
            task = ONE if is_one else TWO
            output.feed(mark(Execution(task_id=task, name="f")) + "".join(f"{line}\n" for line in lines).encode())
        output.feed(b"")
        with LogReader(query(Path(name), ONE)) as reader:
            read = b"".join(reader.read(tail)).decode()
            assert reader.has_left_out == (len(wanted) > tail)
    assert read == "".join(f"{line}\n" for line in wanted[max(len(wanted) - tail, 0) :])


def test_who_prints_is_written_and_read():
    printer = Printer("a\tb\nc", 7, ONE, 3, b"")
    assert Printer.parse(printer.words()) == Printer("a b c", 7, ONE, 3, b"")
