"""A simulation's trace grows while it runs; that, and a pace, change nothing of what the run leaves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import dualray as ray
from dualray.dashboard.feeds import CLOCK
from dualray.report.notices import HeadTail, Noticed
from dualray.report.tail import TraceTail
from dualray.report.traces import read_traces
from dualray.settings import resolve
from dualray.sim.cluster import run_logs

FAULTS = ["reboot node-1 when half starts 4 for 1s"]


@ray.remote(duration=0.5, scheduling_strategy="SPREAD", max_retries=-1)
def half(number: int) -> int:
    return number


def run(directory: Path, look: Any = None) -> None:
    ray.init(mode="sim", nodes=3, num_cpus=1, decision_log=directory, faults=FAULTS)
    try:
        for _ in range(4):
            assert ray.get([half.remote(number) for number in range(6)]) == list(range(6))
            if look is not None:
                look()
    finally:
        ray.shutdown()


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_trace_grows_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_logs, "write_every_s", 0.0)
    log = tmp_path / "log"
    log.mkdir()
    tail = TraceTail(log)
    seen: list[Any] = []
    grew: list[int] = []

    def look() -> None:
        news = tail.look()
        seen.extend(news)
        grew.append(len(news))

    run(log, look)
    assert sum(count > 0 for count in grew) >= 2, grew
    seen.extend(tail.look())
    assert seen == read_traces(log)


def test_paced_run_leaves_the_same_bytes_and_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "fast")
    virtual_s = read_traces(tmp_path / "fast")[-1].time_ns / 1e9
    monkeypatch.setenv("DUALRAY_PACE", "10")
    began_s = time.monotonic()
    run(tmp_path / "slow")
    assert time.monotonic() - began_s >= virtual_s / 10
    assert files_of(tmp_path / "slow") == files_of(tmp_path / "fast")


def test_head_log_and_clock_can_be_read_while_a_paced_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "write_every_s", 0.0)
    monkeypatch.setenv("DUALRAY_PACE", "100")
    log = tmp_path / "log"
    log.mkdir()
    head = HeadTail(log)
    reached: list[int] = []
    noticed: list[Any] = []

    def look() -> None:
        now_ns, left_s, pace = (log / CLOCK).read_text().split()
        assert (float(left_s) >= 0, float(pace)) == (True, 100)
        reached.append(int(now_ns))
        noticed.extend(head.look())
        assert all(notice.time_ns <= int(now_ns) for notice in noticed), "the page has the trace up to the clock"

    run(log, look)
    assert len(set(reached)) >= 2
    assert reached == sorted(reached)
    assert [(notice.node, notice.what) for notice in noticed] == [
        ("node-1", what) for what in (Noticed.SILENT, Noticed.DEAD)
    ]
    assert head.look() == []
    assert not (log / CLOCK).exists()


def test_pace_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, words in (("0", "must be above 0"), ("fast", "must be a number"), ("-1", "between 0")):
        monkeypatch.setenv("DUALRAY_PACE", wrong)
        with pytest.raises(ValueError, match=words) as refused:
            resolve({})
        assert "DUALRAY_PACE" in str(refused.value)
