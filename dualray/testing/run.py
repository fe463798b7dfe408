"""Runs a scenario once and tells what became of it, as plain data.

A function or a generated workload runs in this process, with the cluster around it; a script runs in a process of its
own, unchanged, with the scenario in its environment; a trace has no program, and is replayed. All give an `Outcome`:
result or error, virtual time, counters, faults, leaks, and what the oracles of `checkers.py` have to say about the
trace.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import dualray
from dualray.input_files import read_text
from dualray.recording.graph import Graph
from dualray.recording.profile import load_profile
from dualray.settings import PREPARED
from dualray.shared.machines.head.global_scheduler import GlobalScheduler
from dualray.shared.proof.trace import TraceEvent, TraceKind, from_bytes
from dualray.shared.scenario.file import ScenarioError, dump_scenario, parse_scenario, place_of
from dualray.shared.scenario.scenario import Scenario
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.runtime import SimRuntime
from dualray.testing.arguments import ArgumentError, check_arguments
from dualray.testing.checkers import watch_choices
from dualray.testing.expectations import unused_rows
from dualray.testing.failures import Ended, call
from dualray.testing.outcome import Outcome, make_outcome
from dualray.testing.replays import load_graph, replay_trace
from dualray.testing.scripts import Start, run_script
from dualray.testing.workloads import workload


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ScenarioError: the file cannot be read or used; the message is one line that says why.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: cannot be read: it is not text in UTF-8") from None
    scenario = parse_scenario(text, str(path), partial(_read_beside, path.parent))
    for name, value in scenario.costs.items():
        try:
            CostModel().with_changes({name: value}, "costs")
        except ValueError as error:
            place = place_of(text, str(path), "costs", name)
            raise ScenarioError(f"{place}{str(error).removeprefix('costs: ').removeprefix(f'{name}: ')}") from None
    try:
        if scenario.profile is not None:
            load_profile(_find(scenario.profile, path.parent, "profile"))
    except ValueError as error:
        raise ScenarioError(f"{place_of(text, str(path), 'profile')}{error}") from None
    try:
        if scenario.workload.trace is not None:
            load_trace(scenario, path.parent)
        else:
            find_program(scenario, path.parent)
    except ArgumentError as error:
        where = ("workload", "kwargs", error.key) if error.is_value else ("workload", "kwargs")
        raise ScenarioError(f"{place_of(text, str(path), *where, key=error.key)}{error}") from None
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
        return _find(program.script, directory, "script")
    if program.function is None:
        words = f"the trace {program.trace} has no code to run on real processes; leave out --mode real"
        raise ValueError(f"workload: {words}")
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
    check_arguments(name, function, program.kwargs)
    return lambda: function(**program.kwargs)


def _read_beside(directory: Path, file: str) -> str:
    return read_text(_find(file, directory, "file"))


def _find(file: str, directory: Path, what: str) -> Path:
    for base in (Path(), directory, directory.parent):
        if (base / file).is_file():
            return base / file
    raise ValueError(f"there is no {what} {file!r} in the working directory or beside the scenario file")


def load_trace(scenario: Scenario, directory: Path) -> Graph:
    """The recorded run that a scenario runs again. Paths are as those of `find_program`.

    Raises:
        ValueError: there is no such file, or it is no recorded run.
    """
    assert scenario.workload.trace is not None
    path = _find(scenario.workload.trace, directory, "trace").resolve()
    return load_graph(path, path.stat().st_mtime_ns)


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
    scenario: Scenario,
    *,
    directory: Path = Path(),
    mode: str = "sim",
    decision_log: Path | None = None,
    start: Start | None = None,
    on_scheduler: Callable[[GlobalScheduler], object] = watch_choices,
) -> Outcome:
    """Run a scenario once, in a simulation, on real processes of this machine, or on Ray.

    Args:
        directory: the directory of the scenario file.
        mode: "sim", "real" or "ray".
        decision_log: a directory for the decision logs and the trace.
        start: how the process of a simulated script begins; None starts a new interpreter.
        on_scheduler: called with the head's scheduler before the program begins; not with that of a script, or of real
            processes.

    Raises:
        ValueError: the script, function, workload or trace does not exist, or the mode cannot run it.
    """
    if scenario.workload.trace is not None and mode == "sim":
        return replay_trace(scenario, load_trace(scenario, directory), decision_log, on_scheduler)
    program = find_program(scenario, directory)
    if mode == "real":
        from dualray.testing.real_run import run_on_cluster  # noqa: PLC0415  # simulations need nothing of real mode

        return run_on_cluster(scenario, program, decision_log)
    if mode == "ray":
        from dualray.testing.ray_run import run_on_ray  # noqa: PLC0415  # as above

        if decision_log is not None:
            raise ValueError("Ray writes no decision logs; leave out decision_log, or use --mode sim or --mode real")
        return run_on_ray(scenario, program)
    profile = None if scenario.profile is None else _find(scenario.profile, directory, "profile")
    if isinstance(program, Path):
        outcome = _simulate_script(scenario, program, profile, decision_log, start)
    else:
        outcome = _simulate(scenario, program, profile, decision_log, on_scheduler)
    names = () if profile is None else tuple(load_profile(profile).took_ns)
    return replace(outcome, remarks=(*outcome.remarks, *unused_rows(scenario, outcome, names)))


def _simulate(
    scenario: Scenario,
    program: Callable[[], Any],
    profile: Path | None,
    decision_log: Path | None,
    on_scheduler: Callable[[GlobalScheduler], object],
) -> Outcome:
    started = dualray.init(
        mode="sim", seed=scenario.seed, scenario=scenario, task_profile=profile, decision_log=decision_log
    ).runtime
    try:
        assert isinstance(started, SimRuntime)
        on_scheduler(started.cluster.head.control.scheduler)
        return outcome_of(started, call(program))
    finally:
        dualray.shutdown()


def outcome_of(started: SimRuntime, ended: Ended) -> Outcome:
    """What became of a program that has ended, in the simulation that is still up; it comes to rest first."""
    examination = started.examine()._asdict()
    return make_outcome(ended, started.cluster.trace_events, examination)


def _simulate_script(
    scenario: Scenario, script: Path, profile: Path | None, decision_log: Path | None, start: Start | None
) -> Outcome:
    """With everything in the environment."""
    with tempfile.TemporaryDirectory(prefix="dualray-scenario-") as temporary:
        report = Path(temporary, "report.json")
        file = Path(temporary, "scenario.yaml")
        file.write_text(dump_scenario(scenario, as_json=start is not None))
        settings = {"MODE": "sim", "SEED": str(scenario.seed), "SCENARIO": str(file), "RUN_REPORT": str(report)}
        if scenario.workload.as_ray:
            settings["AS_RAY"] = "1"
        if profile is not None:
            settings["TASK_PROFILE"] = str(profile.absolute())
        if decision_log is not None:
            settings["DECISION_LOG"] = str(decision_log)
        PREPARED[str(file)] = scenario
        try:
            ended = run_script(script, scenario.workload.args, settings, start)
        finally:
            del PREPARED[str(file)]
        if not report.exists():
            return Outcome(**asdict(ended))
        return reported_outcome(report, ended)


def reported_outcome(report: Path, ended: Ended) -> Outcome:
    """What became of a program, from the file that the setting `run_report` names."""
    written = json.loads(report.read_text())
    trace = [
        TraceEvent(time_ns, TraceKind(kind), process, subject, other, name, amount, tuple(deps))
        for time_ns, kind, process, subject, other, name, amount, deps in written["trace"]
    ]
    return make_outcome(ended, trace, written["examination"])


def read_trace(directory: Path) -> list[TraceEvent]:
    """The trace that a run has left in its decision log's directory."""
    return from_bytes((directory / "cluster.trace").read_bytes())
