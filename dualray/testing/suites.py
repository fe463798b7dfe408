"""Runs an existing test once for each of many seeds, unedited: `pytest --dualray-mode sim --dualray-seeds 20`.

Each run of a test has fixtures and simulated clusters of its own: those of the scopes class, module and session are
torn down after it, too. The clusters take their seed and their faults from the environment, as any `init` does. With
`--dualray-faults swarm`, a first run without faults shows what there is to disturb, and each seed draws its faults.

A test fails if it fails with one seed. Its report has the error of the first such run, how many seeds fail, the
faults, the command that repeats it, and what happened to the affected tasks and objects.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dualray import api, random_seeds
from dualray.shared.scenario.fault_model import Fault
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.failures import Ended
from dualray.testing.outcome import Outcome
from dualray.testing.run import reported_outcome
from dualray.testing.shrink import shrink
from dualray.testing.simtests import BETWEEN_FAULTS, IS_SIMTEST, SWARM, parse_faults
from dualray.testing.stories import stories_of
from dualray.testing.swarm import Ground, draw_faults, ground_of

SEEDS = 20
"""How many seeds a test has if only faults are asked for."""
_FAILED = "dualray_seeds_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a test.

    outcome: what became of the cluster that it closed last; None: it had none.
    """

    seed: int
    faults: tuple[Fault, ...]
    reports: list[pytest.TestReport]
    outcome: Outcome | None

    @property
    def failure(self) -> pytest.TestReport | None:
        """The report of the step that failed first."""
        return next((report for report in self.reports if report.failed), None)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Two failures with the same signature count as the same: the step, the line and the error's class."""
        failed = self.failure
        if failed is None:
            return ()
        crash = getattr(failed.longrepr, "reprcrash", None)
        where = () if crash is None else (crash.path, crash.lineno, crash.message.partition(":")[0])
        return (failed.when, *where)


class SuiteRuns:
    """The pytest plugin for tests that are not under `@simtest`.

    seeds: number of seeds, or None.
    replay: the one seed to try, or None.
    faults: the text of the option, or None for none.
    """

    def __init__(self, *, seeds: int | None, replay: int | None, faults: str | None, shrinks: bool) -> None:
        self._seeds = range(SEEDS if seeds is None else seeds) if replay is None else (replay,)
        self._is_swarm = faults == SWARM
        self._faults = () if faults is None or self._is_swarm else parse_faults(faults)
        self._shrinks = shrinks
        self._happened: dict[str, set[str]] = {str(fault): set() for fault in self._faults}
        """In which tests each of these faults has happened."""
        self._has_run = False
        nodes = int(os.environ.get("DUALRAY_NODES", "1"))
        self._scenario = Scenario.model_validate(
            {
                "name": "suite",
                "cluster": {"nodes": nodes},
                "workload": {"function": "suite:test"},
            }
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Run a test with all seeds."""
        if not isinstance(item, pytest.Function) or getattr(item.obj, IS_SIMTEST, False):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(self, item: pytest.Function) -> list[pytest.TestReport]:
        ground: Ground | None = None
        if self._is_swarm:
            calm = self._run(item, self._seeds[0], ())
            if calm.failure is not None or calm.outcome is None:
                _say(calm.failure, "it fails without faults")
                return calm.reports
            ground = ground_of(calm.outcome)
        runs = []
        for seed in self._seeds:
            faults = self._faults if ground is None else draw_faults(self._scenario, ground, seed)
            runs.append(self._run(item, seed, faults))
            if any(report.skipped for report in runs[-1].reports):
                return runs[-1].reports
        failed = [run for run in runs if run.failure is not None]
        if not failed:
            _describe(runs)
            return runs[0].reports
        first = failed[0]
        if self._shrinks and first.faults:
            first = self._shrunk(item, first)
        _say(first.failure, self._about(item, first, failed, len(runs)))
        _describe([first])
        for report in first.reports:
            report.user_properties.append((_FAILED, f"{len(failed)} of {len(runs)}"))
        return first.reports

    def _shrunk(self, item: pytest.Function, failed: Run) -> Run:
        """The same failure with as few faults as can be found."""
        found = failed

        def fails(candidate: Scenario) -> bool:
            nonlocal found
            run = self._run(item, failed.seed, candidate.planned())
            if run.signature != failed.signature:
                return False
            found = run
            return True

        shrink(self._scenario.with_faults(failed.faults).model_copy(update={"seed": failed.seed}), fails)
        return found

    def _about(self, item: pytest.Function, first: Run, failed: Sequence[Run], runs: int) -> str:
        numbers = ", ".join(str(run.seed) for run in failed)
        faults = f"{BETWEEN_FAULTS} ".join(map(str, first.faults))
        repeat = ["pytest", item.nodeid, *_options(), "--dualray-replay", str(first.seed)]
        repeat += ["--dualray-faults", faults] if faults else []
        words = [
            f"{len(failed)} of {runs} seeds fail: {numbers}",
            f"seed {first.seed} fails with these faults:" if faults else f"seed {first.seed} fails without faults",
            *(f"  {fault}" for fault in first.faults),
            f"repeat it: {shlex.join(repeat)}",
        ]
        with tempfile.TemporaryDirectory(prefix="dualray-suite-") as record:
            again = self._run(item, first.seed, first.faults, {"DUALRAY_DECISION_LOG": record})
            if again.failure is not None and any(Path(record).iterdir()):
                stories = stories_of(Path(record), again.failure.longreprtext, is_whole=len(self._seeds) == 1)
                words += ["what happened (times since the start of the first node):", *stories] if stories else []
        return "\n".join(words)

    def _run(
        self,
        item: pytest.Function,
        seed: int,
        faults: Sequence[Fault],
        variables: Mapping[str, str] | None = None,
    ) -> Run:
        with tempfile.TemporaryDirectory(prefix="dualray-suite-") as directory:
            report = Path(directory, "report.json")
            texts = {"DUALRAY_SEED": str(seed), "DUALRAY_RUN_REPORT": str(report), **(variables or {})}
            texts["DUALRAY_RUN_SUMMARY"] = str(Path(directory, "summary"))  # no warning of a fault that finds nothing
            if faults:
                texts["DUALRAY_FAULTS"] = BETWEEN_FAULTS.join(map(str, faults))
            with _environment(texts):
                item._initrequest()  # as new: the fixtures of an earlier run are gone
                item._report_sections.clear()  # and what it has printed
                random_seeds.forget()
                runner: Any = item.config.pluginmanager.get_plugin("runner")  # pytest's own
                reports = runner.runtestprotocol(item, log=False, nextitem=None)
                api.shutdown()  # what the test has left running
            outcome = reported_outcome(report, Ended()) if report.exists() else None
        self._has_run = True
        for fault in () if outcome is None else outcome.performed:
            if fault in self._happened:
                self._happened[fault].add(item.nodeid)
        return Run(seed=seed, faults=tuple(faults), reports=reports, outcome=outcome)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """How many seeds fail of each test that fails, and in how many tests each fault of the option has happened."""
        lines = {
            report.nodeid: value
            for reports in terminalreporter.stats.values()
            for report in reports
            for name, value in getattr(report, "user_properties", ())
            if name == _FAILED
        }
        if lines:
            terminalreporter.section("dualray: seeds that fail")
            for nodeid, value in lines.items():
                terminalreporter.line(f"{nodeid}: {value}")
        if self._happened and self._has_run:
            terminalreporter.section("dualray: faults that happened")
            for fault, tests in self._happened.items():
                terminalreporter.line(f"{fault}: in {len(tests) or 'no'} test{'s' * (len(tests) > 1)}")


def _options() -> Iterator[str]:
    """The options that chose the cluster."""
    if os.environ.get("DUALRAY_AS_RAY"):
        yield "--dualray-as-ray"
    yield from ("--dualray-mode", "sim")
    if "DUALRAY_NODES" in os.environ:
        yield from ("--dualray-nodes", os.environ["DUALRAY_NODES"])


@contextmanager
def _environment(texts: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in texts}
    os.environ.update(texts)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def _say(report: pytest.TestReport | None, words: str) -> None:
    if report is not None:
        report.sections.append(("dualray", words))


def _describe(runs: Sequence[Run]) -> None:
    """Tell in the reports of the first run what all of them took: pytest writes it into its JUnit file."""
    outcomes = [run.outcome for run in runs if run.outcome is not None]
    if not outcomes:
        return
    said = [
        ("dualray_virtual_s", max(outcome.makespan_ns for outcome in outcomes) / 1e9),
        ("dualray_retries", sum(outcome.counters.get("retries", 0) for outcome in outcomes)),
        ("dualray_faults", "; ".join(fault for outcome in outcomes for fault in outcome.performed)),
    ]
    for report in runs[0].reports:
        report.user_properties.extend(said)
