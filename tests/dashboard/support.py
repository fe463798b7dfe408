"""Pages that are served for tests: a thread with uvicorn, and a client that asks as a page does."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from dualray.dashboard.feeds import Feed
from dualray.dashboard.server import TOKEN_HEADER, Dashboard, web_server
from dualray.shared.proof.trace import TraceEvent, TraceKind, to_bytes

TOKEN = "a-token-of-a-test"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Served:
    """A page that is served."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self.link = f"http://{self.host}/#token={TOKEN}"
        self.directories: dict[str, Path] = {}
        """Of the runs that are shown, by name, where a test needs them."""

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of an answer; `token=""` sends none."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent.setdefault(TOKEN_HEADER, TOKEN)
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, headers={name: value for name, value in sent.items() if value})
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        status, body, _ = self.ask(path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def until(self, holds: Callable[[dict[str, Any]], bool], source: int = 0, timeout_s: float = 60) -> dict[str, Any]:
        """What is said of a run, as soon as this holds of it."""
        end_s = time.monotonic() + timeout_s
        while True:
            head: dict[str, Any] = self.json(f"/api/{source}/changes?after=999999999")["head"]
            if holds(head):
                return head
            assert time.monotonic() < end_s, head
            time.sleep(0.02)


@contextmanager
def served(*feeds: Feed) -> Iterator[Served]:
    """Serve a page of these feeds."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        page = Dashboard(feeds, token=TOKEN, hosts=[f"127.0.0.1:{port}", f"localhost:{port}"])
        server = web_server(page)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="served")
        page.start()
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Served(port)
        finally:
            server.should_exit = True
            thread.join()
            page.close()


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium of its own, which asks nobody for anything."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=BROWSER, args=list(OPTIONS))
        try:
            yield launched
        finally:
            launched.close()


def wide_trace(directory: Path, tasks: int, *, nodes: int = 50, workers: int = 4) -> Path:
    """The trace of a run of so many tasks, as a simulation would have written it."""
    events = [
        TraceEvent(0, TraceKind.NODE_STARTED, f"node-{node}", f"node-{node}", deps=(f"CPU {workers * 10_000}",))
        for node in range(nodes)
    ]
    names: Sequence[str] = ("load", "augment", "train", "score", "total")
    slots = [f"node-{node}/w{worker}" for node in range(nodes) for worker in range(workers)]
    events += [TraceEvent(1, TraceKind.WORKER_STARTED, slot.partition("/")[0], slot) for slot in slots]
    for number in range(tasks):
        task, name, slot = f"{number:032x}", names[number % len(names)], slots[number % len(slots)]
        from_ns = 1_000_000 + (number // len(slots)) * 50_000_000 + (number % 7) * 1_000_000
        events += [
            TraceEvent(1000, TraceKind.TASK_SUBMITTED, "driver-1", task, name=name),
            TraceEvent(from_ns, TraceKind.TASK_PUSHED, "driver-1", task, other=slot, name=name),
            TraceEvent(from_ns + 1000, TraceKind.TASK_STARTED, slot, task, name=name),
            TraceEvent(from_ns + 40_000_000, TraceKind.TASK_ENDED, slot, task, name=name),
        ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cluster.trace").write_bytes(to_bytes(sorted(events, key=lambda event: event.time_ns)))
    return directory
