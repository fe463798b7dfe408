"""The last lines of a run of pytest that failed: each failed test, where it failed, and the error's text.

Logs are often cut to their last lines. pytest prints its own summary before those lines, and none at all after an
internal error. This module prints a short summary after everything else. `conftest.py` registers it in the process
that collects the results, not in the workers of pytest-xdist.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

LINES_MAX = 36
"""Less than 40, as `make` adds lines of its own."""
_WIDTH_MAX = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed test, setup, teardown, collection or internal error."""

    title: str
    lines: tuple[str, ...]


class FailureSummary:
    """Collects failures, and prints them when pytest ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running: dict[str, None] = {}
        self._failures: list[Failure] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            during = (
                f" ({report.when})" if report.when in ("setup", "teardown") else ""
            )  # xdist: "???" if a worker died
            self._failures.append(Failure(report.nodeid + during, error_lines(report)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failures.append(Failure(f"{report.nodeid} (collection)", error_lines(report)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        during = f", while {' and '.join(self._running)} ran" if self._running else ""
        self._failures.append(Failure(f"internal error of pytest{during}", _filled(str(excrepr).splitlines())))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if not self._failures or reporter is None:
            return
        for line in summary_lines(self._failures):
            reporter.write_line(line)


def error_lines(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, ...]:
    """Where a test failed, and the text of its error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return _filled(report.longreprtext.splitlines())
    return (f"{crash.path}:{crash.lineno}", *_filled(crash.message.splitlines()))


def summary_lines(failures: list[Failure]) -> list[str]:
    """All failures in LINES_MAX lines. A long error loses lines in its middle; failures too many are counted."""
    heading = f"{len(failures)} failed:"
    shown = failures[: (LINES_MAX - 2) // 2]
    share = (LINES_MAX - 2) // len(shown) - 1
    lines = [heading]
    for failure in shown:
        lines += [failure.title, *(f"    {line[:_WIDTH_MAX]}" for line in _shortened(failure.lines, share))]
    if len(failures) > len(shown):
        lines.append(f"and {len(failures) - len(shown)} more")
    return lines


def _shortened(lines: tuple[str, ...], lines_max: int) -> tuple[str, ...]:
    """The first lines and the last: an assertion says first what is wrong, a traceback says it last."""
    if len(lines) <= lines_max:
        return lines
    first = lines_max // 2
    return (*lines[:first], *lines[first - lines_max :])


def _filled(lines: list[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if line.strip())
