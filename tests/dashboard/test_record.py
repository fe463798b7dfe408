"""The page of a recorded run shows what the page of its trace shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray.dashboard.feeds import DirectoryFeed, Feed
from dualray.dashboard.from_record import RecordFeed
from tests.cli.test_app import in_process
from tests.dashboard.support import served


@ray.remote(duration=0.05)
def make(size):
    return np.zeros(size)


@ray.remote(duration=0.02)
def total(values):
    return values.sum()


class Counter:
    def count(self):
        return 1


@ray.remote(max_retries=0)
def fail():
    raise ValueError("on purpose")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that has left a record and a trace."""
    directory = tmp_path_factory.mktemp("recorded")
    ray.init(mode="sim", nodes=2, num_cpus=2, record=directory / "run.parquet", decision_log=directory / "log")
    ray.get([total.remote(make.remote(100_000)) for _ in range(6)])
    ray.get(ray.remote(Counter).remote().count.remote())
    with pytest.raises(ValueError, match="on purpose"):
        ray.get(fail.remote())
    ray.shutdown()
    return directory


def read(feed: Feed) -> Feed:
    while feed.refresh():
        pass
    return feed


def column(feed: Feed, table: str, *numbers: int) -> list[Any]:
    return sorted([[row[number] for number in numbers] for row in feed.tables.rows(table)])


def test_a_record_shows_what_its_trace_shows(recorded: Path):
    record, trace = read(RecordFeed(recorded / "run.parquet")), read(DirectoryFeed(recorded / "log"))
    assert column(record, "objects", 0, 1, 2, 3, 4, 5, 6) == column(trace, "objects", 0, 1, 2, 3, 4, 5, 6)
    for table, numbers in (
        ("tasks", (0, 1, 2, 3, 4, 5, 6, 7, 11)),
        ("spans", (0, 1, 2, 3, 6, 8)),
        ("actors", tuple(range(9))),
        ("nodes", (0, 1, 2, 3, 6, 7)),
        ("happened", (2, 3)),
    ):
        assert column(record, table, *numbers) == column(trace, table, *numbers)
        assert record.tables.rows(table)
    assert record.tables.head["failed"] == 1
    assert record.tables.head["state"] == "over"
    took = [[each[2] - each[1] for each in column(feed, "tasks", 0, 9, 10)] for feed in (record, trace)]
    assert took[0] == pytest.approx(took[1], abs=3e-6)


def test_its_page_is_served_and_tells_why_it_has_no_stories(recorded: Path):
    with served(RecordFeed(recorded / "run.parquet")) as page:
        page.until(lambda head: head["state"] == "over")
        task = page.json("/api/0/changes?after=0")["tables"]["tasks"][0][0]
        status, body, _ = page.ask(f"/api/0/story?id={task}")
        assert status == 404
        assert b"decision_log=DIR" in body
        assert page.json("/api/0/logs") == {"files": []}


def test_what_is_no_record_is_refused(tmp_path: Path):
    path = tmp_path / "other.parquet"
    path.write_bytes(b"PAR1 no more")
    assert "is not a complete Parquet file" in in_process("dashboard", path, code=2)
    assert "there is no file" in in_process("dashboard", tmp_path / "none.parquet", code=2)
