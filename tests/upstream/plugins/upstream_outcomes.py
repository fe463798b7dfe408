"""A pytest plugin that writes how each test ended: node id, outcome, seconds and the error's first line, as JSON lines.

The file is that of the variable UPSTREAM_OUTCOMES; a process that dies leaves what it wrote before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_ORDER = ("passed", "skipped", "failed")


class Outcomes:
    def __init__(self) -> None:
        self._worst: dict[str, tuple[str, float, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds, reason = self._worst.get(report.nodeid, ("passed", 0.0, ""))
        if _ORDER.index(report.outcome) > _ORDER.index(outcome):
            outcome, reason = report.outcome, _reason(report)
        if hasattr(report, "wasxfail"):
            outcome, reason = "skipped", f"expected to fail: {report.wasxfail}"
        self._worst[report.nodeid] = (outcome, seconds + report.duration, reason)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome, seconds, reason = self._worst.pop(nodeid)
        self._write({"test": nodeid, "outcome": outcome, "seconds": round(seconds, 3), "reason": reason})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            row = {"test": report.nodeid, "outcome": "failed", "seconds": 0.0, "reason": _reason(report)}
            self._write(row | {"collecting": True})

    def _write(self, row: dict[str, object]) -> None:
        with Path(os.environ["UPSTREAM_OUTCOMES"]).open("a") as file:
            file.write(json.dumps(row) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return report.longrepr[2][:300]
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    where = f"{Path(crash.path).name}:{crash.lineno}: " if crash is not None else ""
    lines = [line for line in text.splitlines() if line.strip()]
    return (where + (lines[0] if crash is not None else " | ".join(lines[-3:])))[:300] if lines else where


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(), "upstream-outcomes")
