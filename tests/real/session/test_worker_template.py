import collections
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dualray.real.net.loop import Loop
from dualray.real.session.children import ONE_THREAD
from dualray.real.session.template_client import TemplateClient
from dualray.real.session.worker_template import REQUEST_BYTES_MAX

DEADLINE_S = 30.0

# Stands for dualray.real.processes.worker in the template and in its children: what `argv` says is what it does. It
# gets there as `sitecustomize`, which every interpreter imports first.
WORKER = """
import json, os, random, signal, sys, types

def main(argv):
    what = argv["do"]
    if what == "report":
        import numpy
        print(json.dumps({
            "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "argv": argv,
            "random": random.random(), "numpy": float(numpy.random.random()),
            "sigint": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            "sigchld": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
            "wakeup": signal.set_wakeup_fd(-1), "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
            "modules": sorted({"cloudpickle", "numpy", "msgpack"} & set(sys.modules)),
            "omp": os.environ.get("OMP_NUM_THREADS"), "input": sys.stdin.read(),
        }))
        print("to stderr", file=sys.stderr)
    elif what == "return":
        return argv["value"]
    elif what == "exit":
        sys.exit(argv["value"])
    elif what == "raise":
        raise LookupError("of the worker")
    elif what == "wait":
        print("waiting", flush=True)
        signal.pause()

module = types.ModuleType("dualray.real.processes.worker")
module.main = main
sys.modules["dualray.real.processes.worker"] = module
"""

THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.001)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Node:
    """What the node manager does with a template."""

    def __init__(self, customize: Path, **options: Any) -> None:
        self.news: list[tuple[object, ...]] = []
        self.errors: list[Exception] = []
        self.orders: collections.Counter[str] = collections.Counter()
        self.loop = Loop(self.errors.append)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()
        path = os.pathsep.join([str(customize), str(Path(__file__).parents[3])])
        self.template = TemplateClient(
            self.loop,
            on_forked=lambda worker, pid: self.news.append(("forked", worker, pid)),
            on_exited=lambda worker, pid, status: self.news.append(("exited", worker, pid, status)),
            on_failed=lambda worker, error: self.news.append(("failed", worker, error)),
            on_ready=lambda message: self.news.append(("ready", message)),
            on_lost=lambda status: self.news.append(("lost", status)),
            env=ONE_THREAD | os.environ | {"PYTHONPATH": path},
            **options,
        )
        self.template.start()

    def said(self, what: str, worker: str | None = None) -> list[tuple[object, ...]]:
        return [news for news in list(self.news) if news[0] == what and worker in (None, news[1])]

    def pid(self, worker: str) -> int:
        """Of the worker that was ordered last under this name."""
        wait_for(lambda: len(self.said("forked", worker)) == self.orders[worker], f"{worker} is forked")
        pid = self.said("forked", worker)[-1][2]
        assert isinstance(pid, int)
        return pid

    def run(self, worker: str, **argv: Any) -> tuple[str, str, int]:
        """Run a worker to its end: what it wrote, and how it ended."""
        self.orders[worker] += 1
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(os.fdopen(fd)) for fd in self.template.fork(worker, argv))
            written = out.read(), err.read()
        wait_for(lambda: self.said("exited", worker), f"{worker} has ended")
        ((_, _, pid, status),) = self.said("exited", worker)
        assert self.said("forked", worker) == [("forked", worker, pid)]
        assert isinstance(status, int)
        return *written, status

    def start_waiting(self, worker: str) -> int:
        """Start a worker that waits for ever; its pid, once its own code runs."""
        self.orders[worker] += 1
        out, err = self.template.fork(worker, {"do": "wait"})
        with os.fdopen(out) as file:
            assert file.readline() == "waiting\n"
        os.close(err)
        return self.pid(worker)

    def close(self) -> None:
        self.template.close()
        self.loop.stop()
        self.thread.join(DEADLINE_S)
        self.loop.close()


@pytest.fixture
def customize(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(WORKER)
    return tmp_path


@pytest.fixture
def start(customize: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start(**options: Any) -> Node:
        nodes.append(Node(customize, **options))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()
    assert [error for node in nodes for error in node.errors] == []


@pytest.fixture
def node(start: Callable[..., Node]) -> Node:
    return start()


def check_report(node: Node, worker: str) -> dict[str, Any]:
    out, err, status = node.run(worker, do="report", more=["x", None, {"y": 1.5}])
    assert (err, status) == ("to stderr\n", 0)
    report: dict[str, Any] = json.loads(out)
    assert report["pid"] == node.pid(worker)
    assert report["parent"] == node.template.pid
    assert report["group"] == report["pid"]
    assert report["argv"] == {"do": "report", "more": ["x", None, {"y": 1.5}]}
    assert (report["sigint"], report["sigchld"], report["wakeup"], report["omp"]) == (True, True, -1, "1")
    assert report["fds"] == [0, 1, 2]
    assert report["input"] == ""
    return report


def test_a_worker_is_forked_with_all_it_needs(node: Node) -> None:
    reports = [check_report(node, f"node-0/w{index}") for index in range(3)]
    assert reports[0]["modules"] == ["cloudpickle", "msgpack", "numpy"]
    for name in ("random", "numpy", "pid"):
        assert len({report[name] for report in reports}) == 3, f"every worker has its own {name}"
    assert node.news[0] == ("ready", {"ready": node.template.pid, "threads": 1, "missing": []})


def test_a_template_with_a_second_thread_starts_interpreters_instead(
    start: Callable[..., Node], customize: Path
) -> None:
    with (customize / "sitecustomize.py").open("a") as file:
        file.write(THREAD)
    node = start()
    reports = [check_report(node, f"node-0/w{index}") for index in range(2)]
    assert reports[0]["random"] != reports[1]["random"]
    wait_for(lambda: node.news, "the template is ready")
    (ready,) = node.said("ready")
    assert isinstance(ready[1], dict)
    assert ready[1]["threads"] == 2
    pid = node.start_waiting("node-0/w2")
    node.template.signal("node-0/w2")
    wait_for(lambda: ("exited", "node-0/w2", pid, -signal.SIGKILL) in node.news, "it was killed")


@pytest.mark.parametrize(
    ("argv", "status", "error"),
    [
        ({"do": "return", "value": None}, 0, ""),
        ({"do": "return", "value": 7}, 7, ""),
        ({"do": "exit", "value": None}, 0, ""),
        ({"do": "exit", "value": 8}, 8, ""),
        ({"do": "exit", "value": "a reason"}, 1, "a reason"),
        ({"do": "raise"}, 1, "LookupError: of the worker"),
    ],
)
def test_how_a_worker_ends(node: Node, argv: dict[str, Any], status: int, error: str) -> None:
    _, err, code = node.run("node-0/w0", **argv)
    assert code == status
    assert error in err
    assert bool(err) == bool(error)


def test_a_worker_is_killed_and_its_name_is_free_again(node: Node) -> None:
    pid = node.start_waiting("node-0/w0")
    with pytest.raises(ValueError, match="exists"):
        node.template.fork("node-0/w0", {})
    os.kill(pid, signal.SIGINT)  # Ctrl-C is nothing to it
    os.kill(node.template.pid, signal.SIGINT)
    node.template.signal("node-0/w0", signal.SIGTERM)
    wait_for(lambda: ("exited", "node-0/w0", pid, -signal.SIGTERM) in node.news, "it was killed")
    node.template.signal("node-0/w0")  # too late, and harmless
    assert node.start_waiting("node-0/w0") != pid


def test_many_orders_at_once_before_the_template_is_ready(node: Node) -> None:
    """More than the socket's buffer holds: the rest waits in the client."""
    padding = "x" * 20_000
    pipes = [node.template.fork(f"node-0/w{index}", {"do": "return", "value": 0, "x": padding}) for index in range(60)]
    wait_for(lambda: len(node.said("exited")) == 60, "all have ended")
    for pair in pipes:
        for fd in pair:
            with os.fdopen(fd) as file:
                assert file.read() == ""
    assert [news[1] for news in node.said("forked")] == [f"node-0/w{index}" for index in range(60)]
    assert {news[3] for news in node.said("exited")} == {0}
    assert node.said("ready")


def test_an_argv_that_is_too_large_or_not_json(node: Node) -> None:
    with pytest.raises(ValueError, match="may have at most"):
        node.template.fork("node-0/w0", {"x": "x" * REQUEST_BYTES_MAX})
    with pytest.raises(TypeError, match="JSON"):
        node.template.fork("node-0/w0", {"x": object()})
    assert node.run("node-0/w0", do="return", value=3) == ("", "", 3)


def test_close_ends_every_worker(node: Node) -> None:
    pids = [node.start_waiting(f"node-0/w{index}") for index in range(5)]
    node.template.close()
    assert not any(is_alive(pid) for pid in pids)
    assert node.said("exited") == []
    assert node.said("lost") == []
    out, err = node.template.fork("node-0/late", {})
    wait_for(lambda: node.said("failed"), "the late order has failed")
    assert [os.read(fd, 1) for fd in (out, err)] == [b"", b""]
    os.close(out)
    os.close(err)


def test_a_killed_template_takes_its_workers_with_it(node: Node) -> None:
    pids = [node.start_waiting(f"node-0/w{index}") for index in range(3)]
    os.kill(node.template.pid, signal.SIGSTOP)
    out, err = node.template.fork("node-0/w3", {"do": "wait"})
    os.kill(node.template.pid, signal.SIGKILL)
    wait_for(lambda: node.said("lost"), "the loss is told")
    assert [os.read(fd, 1) for fd in (out, err)] == [b"", b""]
    os.close(out)
    os.close(err)
    killed = [("exited", f"node-0/w{index}", pid, -signal.SIGKILL) for index, pid in enumerate(pids)]
    assert [news[:2] for news in node.news[4:5]] == [("failed", "node-0/w3")]
    assert node.news[5:] == [*killed, ("lost", -signal.SIGKILL)]
    wait_for(lambda: not any(is_alive(pid) for pid in pids), "the workers have ended")


def test_a_killed_node_manager_leaves_no_process(customize: Path) -> None:
    """The end of file on the control socket is all that the template hears of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(customize), str(Path(__file__).parents[3])])
    with ours, theirs:
        command = [sys.executable, "-m", "dualray.real.session.worker_template", str(theirs.fileno())]
        template = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=ONE_THREAD | os.environ | {"PYTHONPATH": path}
        )
        theirs.close()
        assert json.loads(ours.recv(65536))["ready"] == template.pid
        read, write = os.pipe()
        order = {"op": "fork", "worker": "node-0/w0", "argv": {"do": "wait"}}
        socket.send_fds(ours, [json.dumps(order).encode()], [write, write])
        os.close(write)
        pid = json.loads(ours.recv(65536))["pid"]
        with os.fdopen(read) as file:
            assert file.readline() == "waiting\n"
        ours.close()
        assert template.wait(DEADLINE_S) == 0
    wait_for(lambda: not is_alive(pid), "the worker has ended")


def test_the_template_itself_can_fail_to_start(start: Callable[..., Node], customize: Path) -> None:
    (customize / "msgpack.py").write_text("import a_module_that_is_not_there")
    node = start()
    out, err = node.template.fork("node-0/w0", {"do": "wait"})
    wait_for(lambda: node.said("lost"), "the loss is told")
    assert [news[0] for news in node.news] == ["failed", "lost"]
    assert node.news[-1] == ("lost", 1)
    os.close(out)
    os.close(err)


def test_news_of_many_workers_lets_others_be_heard_between() -> None:
    """The ends of 800 actors kept a node's heartbeats from being sent: the head took it for dead."""
    errors: list[Exception] = []
    loop = Loop(errors.append)
    heard: list[int] = []
    served_after: list[int] = []

    def on_ready(message: dict[str, Any]) -> None:
        if not heard:
            loop.call_soon(lambda: served_after.append(len(heard)))
        heard.append(message["ready"])

    client = TemplateClient(
        loop,
        on_forked=lambda worker, pid: None,
        on_exited=lambda worker, pid, status: None,
        on_failed=lambda worker, error: None,
        on_ready=on_ready,
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        for number in range(100):
            theirs.send(json.dumps({"ready": number}).encode())
        client.attach(ours)
        thread = threading.Thread(target=loop.run)
        thread.start()
        wait_for(lambda: len(heard) == 100, "all is heard")
        loop.call_and_wait(client._hang_up)
        loop.stop()
        thread.join(DEADLINE_S)
        loop.close()
    assert errors == []
    assert heard == list(range(100))
    assert served_after[0] < 100
