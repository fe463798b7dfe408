"""What a page may cost: how often pages ask, how long a feed rests, and what is not done for pages that are closed."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from dualray.dashboard import feeds, server
from dualray.dashboard.feeds import DirectoryFeed
from dualray.dashboard.pace import ASK_S, BUSY_ASKS_PER_S, WAIT_S_MAX, rest_s, wait_s
from dualray.dashboard.server import TOKEN_HEADER
from dualray.report.tail import TraceTail
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceEvent, TraceKind, to_bytes
from tests.dashboard.support import TOKEN, served, wide_trace


def test_a_page_that_is_alone_asks_as_often_as_ever_and_many_ask_less_often() -> None:
    for is_busy in (False, True):
        assert wait_s(0, is_busy=is_busy) == wait_s(1, is_busy=is_busy) == wait_s(6, is_busy=is_busy) == ASK_S
        waits = [wait_s(pages, is_busy=is_busy) for pages in range(300)]
        assert waits == sorted(waits)
        assert waits[-1] <= WAIT_S_MAX < feeds.WATCHED_S
    assert wait_s(50, is_busy=False) == 1.0
    assert 50 / wait_s(50, is_busy=True) == BUSY_ASKS_PER_S


def test_work_on_a_busy_machine_is_followed_by_a_long_rest() -> None:
    assert rest_s(1.0, 1, is_busy=False) < rest_s(1.0, 1, is_busy=True) < rest_s(1.0, 50, is_busy=True)
    work = 1.0
    assert work / (work + rest_s(work, 50, is_busy=True)) == 0.02


def test_answers_say_when_to_ask_again_by_the_number_of_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "wait_s", lambda pages, is_busy: pages / 1000)
    with served(DirectoryFeed(wide_trace(tmp_path, 5))) as page:
        for number in range(7):
            page.json(f"/api/0/changes?after=0&page=p{number}")
        for _ in range(3):  # the same page, which has connected again
            page.json("/api/0/changes?after=0&page=p0")
        page.until(lambda head: head["state"] == "over")
        assert page.json("/api/0/changes?after=0&page=p1")["wait_s"] == 8 / 1000, "7, and this test's own questions"


def two_processes(directory: Path, rows: int) -> None:
    """A trace in two files: one process begins when the other has ended, and both say much."""
    for process, from_ns in (("driver-1", 0), ("driver-2", rows * 10)):
        events = [
            TraceEvent(from_ns + 10 * each, TraceKind.TASK_SUBMITTED, process, f"{each:032x}", name="f")
            for each in range(rows)
        ]
        (directory / f"{process}.trace").write_bytes(to_bytes(events))


@pytest.mark.parametrize("bytes_max", [20, 1000, 100_000])
def test_a_trace_that_is_read_in_parts_comes_in_the_order_of_time(tmp_path: Path, bytes_max: int) -> None:
    two_processes(tmp_path, 200)
    tail = TraceTail(tmp_path)
    looks: list[list[TraceEvent]] = []
    while not looks or tail.has_more:
        looks.append(tail.look(bytes_max))
    events = [event for look in looks for event in look]
    assert events == read_traces(tmp_path)
    assert len(looks) > 2 or bytes_max == 100_000
    assert tail.look(bytes_max) == []


def test_nobody_reads_on_while_no_page_asks(tmp_path: Path) -> None:
    two_processes(tmp_path, 5)
    feed = DirectoryFeed(tmp_path)
    feed.asked_s -= feeds.READ_ON_S + 1
    while feed.refresh():
        pass
    assert len(feed.tables.rows("tasks")) == 5, "what was there at first"
    more = [TraceEvent(10_000, TraceKind.TASK_SUBMITTED, "driver-3", "a" * 32, name="f")]
    (tmp_path / "driver-3.trace").write_bytes(to_bytes(more))
    assert feed.refresh() is False
    assert len(feed.tables.rows("tasks")) == 5
    feed.asked_s = float("inf")
    while feed.refresh():
        pass
    assert len(feed.tables.rows("tasks")) == 6


def test_what_is_there_at_first_is_read_at_once_and_what_comes_later_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOOK_BYTES", 2000)
    two_processes(tmp_path, 100)
    feed = DirectoryFeed(tmp_path)
    while feed.refresh():
        assert feed.is_opening
    assert not feed.is_opening
    feed.asked_s = float("inf")
    assert feed.tables.head["state"] == "reading", "it may be over"
    later = [
        TraceEvent(10_000 + each, TraceKind.TASK_SUBMITTED, "driver-3", f"{each:032x}", name="f") for each in range(200)
    ]
    (tmp_path / "driver-3.trace").write_bytes(to_bytes(later))
    assert feed.refresh()
    assert (feed.tables.head["is_behind"], feed.tables.head["state"]) == (True, "running")
    while feed.refresh():
        assert not feed.is_opening
    assert not feed.tables.head["is_behind"]


def test_a_browser_that_takes_in_nothing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(DirectoryFeed(wide_trace(tmp_path, 20_000))) as page:
        page.until(lambda head: head["state"] == "over")
        monkeypatch.setattr(server, "REQUEST_WITHIN_S", 0.3)
        with socket.socket() as stopped:
            stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stopped.settimeout(60)
            stopped.connect(("127.0.0.1", page.port))
            ask = f"GET /api/0/changes?after=0 HTTP/1.1\r\nHost: {page.host}\r\n{TOKEN_HEADER}: {TOKEN}\r\n\r\n"
            stopped.sendall(8 * ask.encode())  # more than the kernel keeps for it
            assert stopped.recv(1)
            end_s = time.monotonic() + 60
            while not stopped.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # until the server ends the connection
                assert time.monotonic() < end_s, "the server keeps the answer for it"
                time.sleep(0.05)
