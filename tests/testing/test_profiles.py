"""What tasks took in a recorded run as the durations of a simulation; and rows of tables that say nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dualray
from dualray.cli.app import app
from dualray.recording.profile import load_profile
from dualray.testing.run import load_scenario, run_scenario
from tests.testing import timed_programs

SCENARIO = """\
name: profiled
cluster: {nodes: 1, cpus: 1}
workload: {function: "tests.testing.timed_programs:fast_and_slow", kwargs: {count: 6}}
profile: run.parquet
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Of a simulation, in which all is exact: fast takes 10 to 60 ms, slow 1 s."""
    path = tmp_path / "run.parquet"
    dualray.init(mode="sim", num_cpus=1, record=path)
    fast, slow = timed_programs.fast, timed_programs.slow
    dualray.get([fast.options(duration=0.01 * (1 + index)).remote() for index in range(6)])
    dualray.get([slow.options(duration=1.0).remote() for _ in range(2)])
    dualray.shutdown()
    return path


def run(path: Path, *more: str):
    return CliRunner().invoke(app, ["scenario", "run", str(path), *more])


def whole_lines(done) -> list[str]:
    """What is printed below the table."""
    return done.stdout.rpartition("┘\n")[2].splitlines()


def test_a_profile_has_the_times_of_each_function(profile):
    took = load_profile(profile).took_ns
    assert list(took) == ["fast", "slow"]
    assert [round(ns / 1e6) for ns in took["fast"]] == [10, 20, 30, 40, 50, 60]
    assert [round(ns / 1e6) for ns in took["slow"]] == [1000, 1000]


def test_a_task_takes_what_one_of_its_name_took(profile, tmp_path):
    path = tmp_path / "profiled.yaml"
    path.write_text(SCENARIO)
    loaded = load_scenario(path)
    outcome = run_scenario(loaded, directory=tmp_path)
    assert run_scenario(loaded, directory=tmp_path) == outcome
    times_ms = [round(seconds * 100) * 10 for seconds in outcome.result["fast"]]
    assert set(times_ms) <= {10, 20, 30, 40, 50, 60}
    assert len(set(times_ms)) > 1
    assert {round(seconds, 2) for seconds in outcome.result["slow"]} == {1.0}
    other = run_scenario(loaded.model_copy(update={"seed": 5}), directory=tmp_path)
    assert other.result["fast"] != outcome.result["fast"]
    assert outcome.remarks == ()


def test_what_comes_before_and_after_a_profile(profile, tmp_path):
    path = tmp_path / "profiled.yaml"
    path.write_text(SCENARIO.replace("count: 6", "count: 6, own: 0.5") + 'durations: {slow: 3s, other: "2s"}\n')
    outcome = run_scenario(load_scenario(path), directory=tmp_path)
    assert {round(seconds, 2) for seconds in outcome.result["own"]} == {0.5}, "duration= is first"
    assert {round(seconds, 2) for seconds in outcome.result["slow"]} == {1.0}, "then the profile"
    assert {round(seconds, 2) for seconds in outcome.result["other"]} == {2.0}, "then the table"
    done = run(path)
    assert done.exit_code == 0
    words = (
        "durations: 'slow' had no effect, because duration=, the profile or an earlier row takes precedence for slow"
    )
    assert words in whole_lines(done)


def test_init_takes_a_profile(profile):
    started: Any = dualray.init(mode="sim", num_cpus=1, task_profile=profile)
    try:
        before_s = started.now_s
        dualray.get(timed_programs.slow.remote())
        assert started.now_s - before_s == pytest.approx(1.0, abs=0.01)
    finally:
        dualray.shutdown()
    with pytest.raises(ValueError, match=r"task_profile: 'gone.parquet' cannot be read: No such file"):
        dualray.init(mode="sim", task_profile="gone.parquet")
    with pytest.raises(ValueError, match="task_profile"):
        dualray.init(mode="real", task_profile=profile)


def test_init_finds_the_profile_of_a_scenario_beside_it(profile, tmp_path):
    path = tmp_path / "profiled.yaml"
    path.write_text(SCENARIO)
    started: Any = dualray.init(mode="sim", scenario=path)
    try:
        before_s = started.now_s
        dualray.get(timed_programs.slow.remote())
        assert started.now_s - before_s == pytest.approx(1.0, abs=0.01)
    finally:
        dualray.shutdown()


def test_a_script_takes_the_profile_too(profile, tmp_path):
    (tmp_path / "script.py").write_text(
        "import time, dualray\n"
        "dualray.init()\n"
        "@dualray.remote\n"
        "def slow(): pass\n"
        "began = time.time()\n"
        "dualray.get(slow.remote())\n"
        "print(round(time.time() - began, 2))\n"
    )
    path = tmp_path / "profiled.yaml"
    path.write_text(SCENARIO.replace(SCENARIO.splitlines()[2], "workload: {script: script.py}"))
    outcome = run_scenario(load_scenario(path), directory=tmp_path)
    assert outcome.result == 1.0
    assert outcome.remarks == ("profile: 'fast' matched no task; tasks were: slow",)


def test_what_a_task_slept_is_not_counted_twice(tmp_path):
    path = tmp_path / "real.parquet"
    dualray.init(num_cpus=1, record=path)
    try:
        dualray.get([dualray.remote(time.sleep).remote(0.2) for _ in range(2)])
    finally:
        dualray.shutdown()
    [took] = load_profile(path).took_ns.values()
    assert max(took) < 150_000_000
    started: Any = dualray.init(mode="sim", num_cpus=1, task_profile=path)
    try:
        before_s = started.now_s
        dualray.get(dualray.remote(time.sleep).remote(0.2))
        assert 0.2 <= started.now_s - before_s < 0.35
    finally:
        dualray.shutdown()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "durations: {fats: 2s}",
            "durations: 'fats' matched no task (did you mean 'fast'?); tasks were: fast, other, slow",
        ),
        ("durations: {piece*: 2s}", "durations: 'piece*' matched no task; tasks were: fast, other, slow"),
        (
            "durations: {'*': 2s, slow: 3s}",
            (
                "durations: 'slow' had no effect, because duration=, the profile or an earlier row takes precedence "
                "for slow"
            ),
        ),
        ("memory: {Net.*: 1GiB}", "memory: 'Net.*' matched no task; tasks were: fast, other, slow"),
    ],
)
def test_a_row_that_says_nothing_is_named(tmp_path, line, words):
    path = tmp_path / "rows.yaml"
    path.write_text(SCENARIO.replace("profile: run.parquet", line))
    done = run(path)
    assert done.exit_code == 0
    assert words in whole_lines(done)


def test_a_profile_that_is_not_there_is_refused_with_the_line(tmp_path):
    path = tmp_path / "profiled.yaml"
    path.write_text(SCENARIO)
    done = run(path)
    words = "4: profile: there is no profile 'run.parquet' in the working directory or beside the scenario file"
    assert (done.exit_code, done.stderr) == (2, f"dualray: {path}:{words}\n")
    (tmp_path / "run.parquet").write_text("no record")
    assert f"dualray: {path}:4: profile: " in run(path).stderr
