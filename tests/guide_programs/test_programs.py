"""Programs in the manner of Ray's guide print the same on Ray 2.60, in real mode and simulated.

Each engine runs all of them in one session of a process of its own. `--mode ray` runs them on Ray again.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest

from tests.guide_programs.run import HERE, OUTPUTS, kept, names, printed_by

ROOT = HERE.parents[1]
WITHIN_S = 500


@functools.cache
def outcome_on(engine: str) -> dict[str, str] | str:
    """What each program prints on an engine; else the error of the session. A session that hangs runs once, not once
    for each program."""
    command = [sys.executable, "-m", "tests.guide_programs.run", "--engine", engine]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"").decode(errors="replace")
        return f"the programs have not ended within {WITHIN_S} s:\n{said[-4000:]}"
    if done.returncode:
        return f"the programs ended with status {done.returncode}:\n{done.stderr[-4000:]}"
    found: dict[str, str] = json.loads(done.stdout)
    return found


def printed_on(engine: str) -> dict[str, str]:
    """What each program prints on an engine."""
    outcome = outcome_on(engine)
    if isinstance(outcome, str):
        pytest.fail(outcome, pytrace=False)
    return outcome


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", ["ray"] if metafunc.config.getoption("mode") == "ray" else ["sim", "real"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names())
def test_a_program_prints_what_it_prints_on_ray(name, engine):
    assert printed_on(engine)[name] == kept(name)


def test_each_program_has_its_output_and_none_is_left_over():
    assert names() == sorted(path.stem for path in OUTPUTS.glob("*.txt"))
    assert len(names()) >= 60


def test_a_program_that_fails_is_told_from_one_that_prints_nothing(tmp_path, monkeypatch):
    (tmp_path / "wrong.py").write_text('print("begins")\nraise ValueError("wrong")\n')
    monkeypatch.setattr("tests.guide_programs.run.PROGRAMS", tmp_path)
    assert printed_by("wrong").startswith("begins\nfailed: Traceback")


def test_a_session_that_hangs_is_an_error_of_each_program_but_runs_once(monkeypatch):
    monkeypatch.setattr("tests.guide_programs.test_programs.WITHIN_S", 0.01)
    runs_before = outcome_on.cache_info().misses
    for _ in range(2):
        with pytest.raises(pytest.fail.Exception, match="not ended within"):
            printed_on("an engine for this test")
    assert outcome_on.cache_info().misses == runs_before + 1
