"""Runs a scenario once and tells what became of it, as plain data.

A function or a generated workload runs in this process, with the cluster around it; a script runs in a process of its
own, unchanged, with the scenario in its environment. Both give an `Outcome`: result or error, virtual time, counters,
faults, leaks, and what the oracles of `checkers.py` have to say about the trace.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import dualray
from dualray import runtime
from dualray.exceptions import DualrayError, InvalidTransition, InvariantViolation, SimulationDeadlockError
from dualray.report.summary import summary
from dualray.shared.faults import EVENT_ANCHORS
from dualray.shared.scenario import Scenario
from dualray.shared.scenario_file import ScenarioError, dump_scenario, parse_scenario, place_of
from dualray.shared.trace import TraceEvent, TraceKind, from_bytes
from dualray.sim.cost_model import CostModel
from dualray.sim.runtime import SimRuntime
from dualray.testing.checkers import check_trace
from dualray.testing.workloads import workload

SCRIPT_TIMEOUT_S = 600.0
"""Wall time that a script may take."""

ERROR_CHARACTERS_MAX = 4_000
"""Of an error's message that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one run. Plain values only.

    Attributes:
        result: what the program returned, as JSON gives it back; None when it failed.
        error: the names of the error's class and its bases, most derived first; empty when the program succeeded.
        message: the error's.
        makespan_ns: from the first submission to the end of the program, in virtual time (real mode: wall time).
        counters: see dualray.shared.scenario.COUNTERS.
        performed, missed, outstanding: faults in words.
        leaks: what was left; None when nothing can be said.
        violations: invariants that do not hold, and what the oracles found.
        coverage: what happened at all, by name: how often.
        starts, events: how many tasks of each name started, and how many trace events there were of the kinds at which
            a fault can be anchored.
        random: a digest of all random streams.
        witnessed: what the program did that no simulation can repeat, in words.
    """

    result: Any = None
    error: tuple[str, ...] = ()
    message: str = ""
    makespan_ns: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    performed: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    outstanding: tuple[str, ...] = ()
    leaks: tuple[str, ...] | None = None
    violations: tuple[str, ...] = ()
    coverage: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    random: str = ""
    witnessed: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Whether the program returned."""
        return not self.error


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ScenarioError: it cannot be read or used; one line says what is wrong.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    scenario = parse_scenario(text, str(path))
    for name, value in scenario.costs.items():
        try:
            CostModel().with_changes({name: value}, "costs")
        except ValueError as error:
            place = place_of(text, str(path), "costs", name)
            raise ScenarioError(f"{place}{str(error).removeprefix('costs: ').removeprefix(f'{name}: ')}") from None
    try:
        find_program(scenario, path.parent)
    except ValueError as error:
        raise ScenarioError(f"{place_of(text, str(path), 'workload')}{error}") from None
    return scenario


def find_program(scenario: Scenario, directory: Path) -> Path | Callable[[], Any]:
    """The script's path, or what to call. Paths are relative to the working directory, or to the file's.

    Raises:
        ValueError: there is no such script, function or workload.
    """
    program = scenario.workload
    if program.generate is not None:
        return workload(program.generate, program.kwargs)
    if program.script is not None:
        for base in (Path(), directory, directory.parent):
            if (base / program.script).is_file():
                return base / program.script
        raise ValueError(f"there is no script {program.script!r}, neither here nor beside the scenario")
    assert program.function is not None
    module_name, _, name = program.function.partition(":")
    with _importable(Path(), directory, directory.parent):
        try:
            target: Any = import_module(module_name)
        except ImportError as error:
            raise ValueError(f"function {program.function!r}: {module_name!r} cannot be imported: {error}") from None
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        raise ValueError(f"function {program.function!r}: module {module_name!r} has no function {name!r}")
    function: Callable[..., Any] = target
    return lambda: function(**program.kwargs)


@contextlib.contextmanager
def _importable(*directories: Path) -> Iterator[None]:
    added = [str(directory.resolve()) for directory in directories]
    sys.path[:0] = added
    try:
        yield
    finally:
        for directory in added:
            sys.path.remove(directory)


def run_scenario(
    scenario: Scenario, *, directory: Path = Path(), mode: str = "sim", decision_log: Path | None = None
) -> Outcome:
    """Run the scenario once, in this process or, a script, in another one.

    Args:
        directory: that of the scenario file.
        mode: "sim", or "real": then neither its cluster nor its faults take part.
        decision_log: a directory for the decision logs and the trace.

    Raises:
        ValueError: there is no such script, function or workload.
    """
    program = find_program(scenario, directory)
    if isinstance(program, Path):
        return _run_script(scenario, program, mode, decision_log)
    arguments: dict[str, Any] = {"mode": mode, "seed": scenario.seed, "decision_log": decision_log}
    if mode == "sim":
        arguments["scenario"] = scenario
    started = dualray.init(**{name: value for name, value in arguments.items() if value is not None})
    try:
        return _run_function(program, started)
    finally:
        dualray.shutdown()


def _run_function(program: Callable[[], Any], started: runtime.Runtime) -> Outcome:
    result: Any = None
    error: tuple[str, ...] = ()
    message = ""
    try:
        result = json.loads(json.dumps(program(), default=_plain))
    except Exception as raised:  # noqa: BLE001  # it is the program's, and part of the outcome
        error, message = _names(raised), str(raised)[:ERROR_CHARACTERS_MAX]
        del raised
    if not isinstance(started, SimRuntime):
        return Outcome(result=result, error=error, message=message)
    return outcome_of(started, result=result, error=error, message=message)


def outcome_of(started: SimRuntime, *, result: Any = None, error: tuple[str, ...] = (), message: str = "") -> Outcome:
    """What became of a program that has ended, in the simulation that is still up; it comes to rest first."""
    examination = dataclasses.asdict(started.examine())
    return _outcome(result, error, message, started.cluster.trace_events, examination)


def _plain(value: Any) -> Any:
    """What JSON cannot say: numpy's numbers and arrays, bytes, sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return repr(value)


def _names(error: BaseException) -> tuple[str, ...]:
    return tuple(cls.__name__ for cls in type(error).__mro__ if cls is not object)


def _run_script(scenario: Scenario, script: Path, mode: str, decision_log: Path | None) -> Outcome:
    """As `dualray run script` would, with everything in the environment."""
    with tempfile.TemporaryDirectory(prefix="dualray-scenario-") as temporary:
        report = Path(temporary, "report.json")
        given = {"MODE": mode, "SEED": str(scenario.seed)}
        if mode == "sim":
            Path(temporary, "scenario.yaml").write_text(dump_scenario(scenario))
            given |= {"SCENARIO": str(Path(temporary, "scenario.yaml")), "RUN_REPORT": str(report)}
        if decision_log is not None:
            given["DECISION_LOG"] = str(decision_log)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
        command = [sys.executable, "-m", "dualray.cli", "run", str(script), "--", *scenario.workload.args]
        try:
            done = subprocess.run(
                command,
                env={**kept, **{f"DUALRAY_{name}": value for name, value in given.items()}},
                capture_output=True,
                text=True,
                timeout=SCRIPT_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            words = f"{script} did not end within {SCRIPT_TIMEOUT_S:g} s of wall time"
            return Outcome(error=("TimeoutError", "Exception"), message=words)
        error, message = _error_of(done) if done.returncode else ((), "")
        result = _last_line(done.stdout) if not done.returncode else None
        if not report.exists():
            return Outcome(result=result, error=error, message=message)
        written = json.loads(report.read_text())
    trace = [
        TraceEvent(time_ns, TraceKind(kind), process, subject, other, name, amount, tuple(deps))
        for time_ns, kind, process, subject, other, name, amount, deps in written["trace"]
    ]
    return _outcome(result, error, message, trace, written["examination"])


def _last_line(stdout: str) -> Any:
    """The last line of what a script printed, as JSON if it is that."""
    lines = stdout.strip().splitlines()
    if not lines:
        return None
    try:
        return json.loads(lines[-1])
    except json.JSONDecodeError:
        return lines[-1]


def _error_of(done: subprocess.CompletedProcess[str]) -> tuple[tuple[str, ...], str]:
    """The class and the message of the exception that ended a script, from its traceback."""
    text = done.stderr.rpartition("Traceback (most recent call last):")[2]
    raised = re.search(r"^(?P<type>[A-Za-z_][\w.()]*)(?:: (?P<message>.*))?\Z", text.strip(), re.MULTILINE | re.DOTALL)
    if raised is None:
        return ("SystemExit",), f"ended with code {done.returncode}: {done.stderr[-ERROR_CHARACTERS_MAX:]}"
    name = raised["type"].rpartition(".")[2]
    known = getattr(dualray.exceptions, name, None)
    names = tuple(cls.__name__ for cls in known.__mro__ if cls is not object) if isinstance(known, type) else (name,)
    return names, (raised["message"] or "")[:ERROR_CHARACTERS_MAX]


def _outcome(
    result: Any, error: tuple[str, ...], message: str, trace: list[TraceEvent], examination: dict[str, Any]
) -> Outcome:
    figures = summary(trace)
    first_ns = next((event.time_ns for event in trace if event.kind is TraceKind.TASK_SUBMITTED), 0)
    leaks = examination["leaks"]
    broken = [message] if error and error[0] in _BUGS else []
    return Outcome(
        result=result,
        error=error,
        message=message,
        makespan_ns=examination["ended_ns"] - first_ns,
        counters={
            "tasks": figures.tasks,
            "failed": figures.failed,
            "retries": figures.retries,
            "reconstructions": figures.reconstructions,
            "evictions": figures.counts[TraceKind.OBJECT_EVICTED],
            "transfers": figures.counts[TraceKind.TRANSFER_STARTED],
            "bytes_moved": figures.bytes_moved,
            "workers_started": figures.counts[TraceKind.WORKER_STARTED],
            "workers_ended": figures.counts[TraceKind.WORKER_ENDED],
            **examination["counters"],
        },
        performed=tuple(examination["performed"]),
        missed=tuple(examination["missed"]),
        outstanding=tuple(examination["outstanding"]),
        leaks=None if leaks is None else tuple(leaks),
        violations=(*broken, *examination["violations"], *check_trace(trace)),
        random=examination["random"],
        witnessed=tuple(examination["witnessed"]),
        coverage=coverage(trace, examination["counters"]),
        starts=dict(Counter(event.name for event in trace if event.kind is TraceKind.TASK_STARTED)),
        events={kind: count for kind, count in figures.counts.items() if kind in EVENT_ANCHORS and count},
    )


_BUGS = (InvariantViolation.__name__, InvalidTransition.__name__)
"""Errors that say that dualray itself is wrong."""

STUCK = SimulationDeadlockError.__name__
OURS = DualrayError.__name__


def coverage(trace: list[TraceEvent], counters: dict[str, int]) -> dict[str, int]:
    """What happened in a run that does not happen in every one."""
    reached: dict[str, int] = {}

    def count(name: str, amount: int = 1) -> None:
        if amount:
            reached[name] = reached.get(name, 0) + amount

    for event in trace:
        match event.kind:
            case TraceKind.TASK_RETRIED:
                count("object reconstructed" if event.other == "reconstruction" else "task retried")
                if event.amount >= 3:
                    count("task in its fourth attempt")
            case TraceKind.TASK_ENDED if event.other:
                count(f"task failed: {event.other}")
            case TraceKind.OBJECT_EVICTED:
                count("object evicted")
            case TraceKind.WORKER_ENDED:
                count("worker ended")
            case TraceKind.FAULT:
                count(f"fault: {event.name}")
            case _:
                pass
    count("zombie node refused", counters.get("nodes_refused", 0))
    count("message held", counters.get("messages_held", 0))
    count("message of a dead node dropped", counters.get("messages_dropped", 0))
    count("transfer broken off", counters.get("transfers_lost", 0))
    return reached


def read_trace(directory: Path) -> list[TraceEvent]:
    """The trace that a run has left in its decision log's directory."""
    return from_bytes((directory / "cluster.trace").read_bytes())
