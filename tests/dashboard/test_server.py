"""Who may ask the page's server, and what it shows of runs that are over, that go on, and of a real cluster."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dualray as ray
from dualray.cluster_utils import Cluster
from dualray.dashboard import server
from dualray.dashboard.feeds import DirectoryFeed
from dualray.dashboard.from_cluster import ClusterFeed
from dualray.dashboard.server import END_WITHIN_S, SNAPSHOT_S, TOKEN_HEADER, Dashboard
from dualray.dashboard.tables import ROWS_AT_ONCE
from tests.dashboard.support import TOKEN, Served, served, wide_trace
from tests.machine_load import slowness
from tests.report.support import simulate, two_steps

SCENARIO = """
name: watched
description: a chain that loses its node
cluster: {nodes: 2, cpus: 1}
workload: {generate: chain, kwargs: {length: 6, seconds: 0.5}}
faults: [{at: 1.2s, reboot: node-1, back_after: 3s}]
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    simulate(lambda: two_steps(4), directory / "log", faults=["kill node-2 when augment starts 2"])
    return directory / "log"


@pytest.fixture(scope="module")
def page(log: Path) -> Iterator[Served]:
    with served(DirectoryFeed(log), DirectoryFeed(log, name="the other")) as found:
        found.until(lambda head: head["state"] == "over")
        yield found


# ---- Who may ask -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/sources", "/api/0/changes", "/api/0/story?id=1", "/api/0/logs", "/api/0/log"])
@pytest.mark.parametrize("token", ["", "wrong", "a-token-of-a-tesT"])
def test_without_the_token_nothing_is_told(page: Served, path: str, token: str) -> None:
    status, body, _ = page.ask(path, **{TOKEN_HEADER: token})
    assert status == 403
    assert b"token" in body
    assert b"augment" not in body


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/sources"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example:{port}"])
def test_another_host_name_is_refused(page: Served, path: str, host: str) -> None:
    status, body, _ = page.ask(path, Host=host.format(port=page.port))
    assert (status, b"<html" in body) == (403, False)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_another_origin_is_refused(page: Served, origin: str) -> None:
    assert page.ask("/api/sources", Origin=origin)[0] == 403
    assert page.ask("/", Origin=origin)[0] == 403
    assert page.ask("/api/sources", Origin=f"http://{page.host}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(page: Served, method: str) -> None:
    for path in ("/", "/api/sources", "/api/0/changes", "/api/0/logs"):
        assert page.ask(path, method)[0] == 405


def test_the_page_may_load_nothing_from_elsewhere(page: Served) -> None:
    for path in ("/", "/app.js", "/timeline.js", "/app.css"):
        status, body, headers = page.ask(path, **{TOKEN_HEADER: ""})
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert b"https://" not in body
        assert b"http://" not in body
        assert TOKEN_HEADER not in headers


def test_what_is_not_there_is_said_to_be_so(page: Served) -> None:
    for path in ("/api/7/changes", "/api/0/changes?after=x", "/api/0/story?id=ffff", "/api/0/log?name=nothing"):
        status, body, _ = page.ask(path)
        assert (status, b"error" in body) == (404, True), (path, body)
    for path in ("/api/x/changes", f"/api/{'1' * 5000}/changes", "/api/-1/changes", "/api/0/changes?after=%C2%B2"):
        assert page.ask(path)[0] == 404, path


def test_a_connection_that_sends_no_request_is_closed(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_WITHIN_S", 0.3)
    whole = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode()
    for sent in (b"", b"GET / HTTP/1.1\r\n", whole + b"GET / HT"):
        with socket.create_connection(("127.0.0.1", page.port), timeout=5) as connection:
            connection.sendall(sent)
            while connection.recv(65536):  # until it is closed, else TimeoutError
                pass
    assert page.ask("/")[0] == 200


# ---- What is shown ---------------------------------------------------------------------------------------------------


def test_a_run_that_is_over_is_shown_whole_with_stories(page: Served) -> None:
    assert [source["name"] for source in page.json("/api/sources")] == ["log", "the other"]
    found = page.json("/api/0/changes?after=0")
    assert found["head"]["is_virtual"]
    assert found["head"]["finished"] == found["head"]["tasks"] == len(found["tables"]["tasks"])
    task = next(row for row in found["tables"]["tasks"] if row[1] == "digest")
    story = page.json(f"/api/0/story?id={task[0]}")
    assert story["title"].startswith("digest")
    assert any("submits the task" in line[1] for line in story["lines"])
    assert page.json("/api/0/logs") == {"files": []}


def watched(tmp_path: Path, *, pace: float | None) -> DirectoryFeed:
    """A scenario that runs as `dualray dashboard FILE` starts it."""
    file, record, output = tmp_path / "watched.yaml", tmp_path / "run", tmp_path / "output"
    file.write_text(SCENARIO)
    record.mkdir()
    command = [sys.executable, "-m", "dualray", "scenario", "run", str(file), "--decision-log", str(record)]
    environment = dict(os.environ) | ({} if pace is None else {"DUALRAY_PACE": str(pace)})
    with output.open("wb") as sink:
        program = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
    return DirectoryFeed(record, name="watched", program=program, output=output)


def test_a_simulation_is_shown_while_it_runs_and_its_bytes_do_not_change(tmp_path: Path) -> None:
    alone, seen = tmp_path / "alone", tmp_path / "seen"
    alone.mkdir()
    seen.mkdir()
    feed = watched(alone, pace=None)
    assert feed._program is not None
    assert feed._program.wait(60) == 0
    feed.close()
    with served(watched(seen, pace=max(0.5, 2.0 / slowness()))) as page:
        partly = page.until(lambda head: head["state"] == "running" and head.get("finished", 0) >= 1)
        assert partly["finished"] < 6
        for _ in range(20):
            page.json("/api/0/changes?after=0")
        killed = page.until(lambda head: head.get("nodes") == 1 or head["state"] == "over")
        assert killed["state"] == "running", "the loss of the node was seen at the end only"
        whole = page.until(lambda head: head["state"] == "over")
        assert whole["finished"] == whole["tasks"]
        assert "virtual time" in page.json("/api/0/log?name=what+the+program+printed&node=")["text"]
    runs = [{path.name: path.read_bytes() for path in (each / "run").iterdir()} for each in (alone, seen)]
    assert runs[0] == runs[1]


def test_a_program_that_fails_says_so_in_the_page(tmp_path: Path) -> None:
    record, output = tmp_path / "run", tmp_path / "output"
    record.mkdir()
    with output.open("wb") as sink:
        words = [sys.executable, "-c", "print('it goes wrong'); raise SystemExit(3)"]
        program = subprocess.Popen(words, stdout=sink, stderr=subprocess.STDOUT)
    with served(DirectoryFeed(record, program=program, output=output)) as page:
        assert "exit code 3" in page.until(lambda head: head["state"] == "over")["error"]
        files = page.json("/api/0/logs")["files"]
        assert "it goes wrong" in page.json(f"/api/0/log?name={files[0]['name'].replace(' ', '+')}&node=")["text"]


def test_a_directory_without_a_trace_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="decision_log="):
        DirectoryFeed(tmp_path)


def test_a_file_that_is_no_trace_is_named_in_the_page(tmp_path: Path) -> None:
    (tmp_path / "cluster.trace").write_bytes(b"\xc1 no trace at all")
    with served(DirectoryFeed(tmp_path)) as page:
        assert "cluster.trace" in page.until(lambda head: bool(head["error"]))["error"]


def test_a_real_run_is_shown_while_it_runs(tmp_path: Path) -> None:
    @ray.remote
    def nap(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    ray.init(num_cpus=2, decision_log=tmp_path / "log", log_directory=tmp_path / "logs")
    try:
        ray.get(nap.remote(0.0))
        refs = [nap.remote(1.0) for _ in range(6)]
        with served(DirectoryFeed(tmp_path / "log", logs=tmp_path / "logs")) as page:
            head = page.until(lambda head: head.get("running") == 2 and head.get("queued", 0) >= 1)
            assert head["is_virtual"] is False
            node = page.json("/api/0/changes?after=0")["tables"]["nodes"][0]
            assert (node[0], node[2], node[3]) == ("node-0", 2.0, 2)
            assert "node-0.log" in {file["name"] for file in page.json("/api/0/logs")["files"]}
            ray.get(refs)
            page.until(lambda head: head["finished"] == 7)
    finally:
        ray.shutdown()


def test_a_cluster_is_asked_for_what_it_does(tmp_path: Path, cluster_address: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(address=cluster_address))
    running = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "started\n"
        with served(ClusterFeed(cluster_address)) as page:
            page.until(lambda head: head.get("running", 0) >= 2 and head["queued"] >= 1)
            tables: dict[str, Any] = page.json("/api/0/changes?after=0")["tables"]
            assert {row[1] for row in tables["tasks"]} >= {"hold"}
            assert [row[1:4] for row in tables["actors"]] == [["Named", "ann", "ALIVE"]]
            assert any("waits for 1 CPU" in row[0] for row in tables["waits"])
            assert tables["nodes"][0][2:4] == [2.0, 2.0]
            assert tables["nodes"][0][11].startswith("machine: CPU")
            assert {"node-0.log", "head.log"} & {file["name"] for file in page.json("/api/0/logs")["files"]}
            status, body, _ = page.ask(f"/api/0/story?id={tables['tasks'][0][0]}")
            assert (status, b"decision_log" in body) == (404, True)
    finally:
        running.communicate("\n", timeout=60)
    assert running.returncode == 0


PROGRAM = """\
import pathlib
import sys
import time

import dualray as ray

ray.init(address="{address}")


@ray.remote
def hold(until):
    while not pathlib.Path(until).exists():
        time.sleep(0.05)


@ray.remote(num_cpus=0)
class Named:
    def ready(self):
        return True


ann = Named.options(name="ann").remote()
ray.get(ann.ready.remote())
until = sys.argv[0] + ".over"
refs = [hold.remote(until) for _ in range(4)]
print("started", flush=True)
sys.stdin.readline()
pathlib.Path(until).touch()
ray.get(refs)
"""


@pytest.fixture
def cluster_address() -> Iterator[str]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


class _SlowFeed(DirectoryFeed):
    """Its answers take longer than the server waits for them when it ends."""

    is_asked = threading.Event()

    def story(self, wanted: str) -> dict[str, Any]:
        self.is_asked.set()
        time.sleep(END_WITHIN_S + 2)
        return {}


def _ask_for_nothing(page: Served) -> None:
    with contextlib.suppress(HTTPException, OSError):  # the server ends
        page.ask("/api/0/story?id=1")


def test_a_server_that_ends_while_a_page_asks_prints_nothing(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It printed the traceback of each request that it had cancelled."""
    with served(_SlowFeed(log)) as page:
        page.until(lambda head: head["state"] == "over")
        asks = threading.Thread(target=_ask_for_nothing, args=(page,))
        asks.start()
        assert _SlowFeed.is_asked.wait(30)
    asks.join()
    assert capfd.readouterr().err == ""


def test_fifty_pages_of_a_run_that_grows_are_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed between two moments is worked out once, whenever the pages ask."""
    feed = DirectoryFeed(wide_trace(tmp_path, 500))
    while feed.refresh():
        pass
    page = Dashboard([feed], token=TOKEN, hosts=["127.0.0.1"])
    clock: list[float] = [100.0]
    worked_out: list[int] = []
    monkeypatch.setattr("dualray.dashboard.server.time", SimpleNamespace(monotonic=lambda: clock[0]))
    since = feed.tables.since

    def counted(version: int, limit: int = ROWS_AT_ONCE) -> dict[str, Any]:
        worked_out.append(version)
        return since(version, limit)

    monkeypatch.setattr(feed.tables, "since", counted)
    known = [0] * 50
    told: list[set[str]] = [set() for _ in known]
    for _ in range(8):
        for number in range(50):
            answer = json.loads(page._changes_since(0, feed, known[number]))
            known[number] = answer["version"]
            told[number] |= {row[0] for row in answer["tables"].get("tasks", ())}
            clock[0] += 0.01  # fifty pages ask in half a second
            feed.tables.put("tasks", f"new-{clock[0]:.2f}", lambda: ["new", *[""] * 12])  # and the run goes on
    # A moment every 0.4 s, and two versions that pages know: that of the last moment, and the one before it.
    assert len(worked_out) <= 2 * 8 * 0.5 / SNAPSHOT_S + 2
    clock[0] += SNAPSHOT_S
    for number, version in enumerate(known):
        last = json.loads(page._changes_since(0, feed, version))
        assert last["version"] == feed.tables.version
        told[number] |= {row[0] for row in last["tables"]["tasks"]}
    assert all(len(each) == 501 for each in told)
