"""Logs of the runtime's own processes: no line again and again, and no file without end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dualray.real import logs
from dualray.real.logs import BoundedLog


def _record(words: str, at_s: float) -> logging.LogRecord:
    record = logging.LogRecord("dualray", logging.INFO, "", 0, words, None, None)
    record.created = at_s
    return record


def test_lines_that_differ_in_numbers_alone_are_counted(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "node-0.log")
    for port in range(3_000):
        log.emit(_record(f"dropped 127.0.0.1 port {port}", 5.0))
    log.emit(_record("something else", 6.0))
    assert (tmp_path / "node-0.log").read_text().splitlines()[logs.LINES_MAX - 1 :] == [
        "dropped 127.0.0.1 port 199",
        "something else",
    ]
    log.emit(_record("later", 16.0))
    log.emit(_record("dropped 127.0.0.1 port 1", 17.0))
    log.emit(_record("caf\udce9", 17.0))
    for port in range(300):
        log.emit(_record(f"dropped 127.0.0.2 port {port}", 18.0))
    log.close()
    lines = (tmp_path / "node-0.log").read_text().splitlines()
    assert lines[201:205] == [
        "and 2,800 more like this within 10 s: dropped 127.0.0.1 port 2999",
        "later",
        "dropped 127.0.0.1 port 1",
        "caf\\udce9",
    ]
    assert lines[-1] == "and 101 more like this within 10 s: dropped 127.0.0.2 port 299"


def test_a_file_is_begun_anew_and_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 1000)
    log = BoundedLog(tmp_path / "head.log")
    for word in range(100):
        log.emit(_record("abcdefghij"[word % 10] * 30 + "x" * (word // 10), 5.0))
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head.log", "head.log.old"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
