"""Calibration files: written, read, used, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dualray as ray
from dualray.cli.app import app
from dualray.recording.calibration import Calibration, load_calibration
from dualray.whatif.calibrate import noise_of, slowdown_of
from tests.json_page import documented_keys

COMMAND = [sys.executable, "-m", "dualray", "calibrate"]

MEASURED = Calibration(
    machine="here", date="2026-01-01", costs={"submit_ns": 40_000, "seal_ns": 7_000}, slowdown=0.1, error=0.05
)


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "calibration.yaml"
    path.write_text(MEASURED.dump())
    assert load_calibration(path) == MEASURED


def test_its_costs_take_the_place_of_the_defaults_in_simulation(tmp_path):
    path = tmp_path / "calibration.yaml"
    path.write_text(MEASURED.dump())
    started: Any = ray.init(mode="sim", calibration=path)
    try:
        assert started.cluster.cost_model.submit_ns == 40_000
    finally:
        ray.shutdown()


def test_what_company_costs_is_how_much_longer_the_same_takes_beside_others():
    alone, beside = [1.0, 1.02, 0.98] * 9, [1.2, 1.21, 1.19] * 9
    slowdown, (low, high) = slowdown_of(alone, beside, cores=3)
    assert slowdown == pytest.approx(0.1)  # of each of the two others
    assert 0.08 < low <= slowdown <= high < 0.12
    assert slowdown_of(beside, alone, cores=3) == (0.0, (0.0, 0.0))  # nobody is faster for company
    assert slowdown_of(alone, alone, cores=1) == (0.0, (0.0, 0.0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not valid YAML"),
        ("a: 1", "is not a calibration of format"),
        ("format: dualray-calibration/1\ncosts: {submit_ns: -1}", "to a whole number of at least 0"),
        ("format: dualray-calibration/1\ncosts: {}\nslowdown: much", "a number from 0 to 10"),
    ],
)
def test_what_is_no_calibration_is_refused_in_one_line(tmp_path: Path, text, words):
    path = tmp_path / "calibration.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as refused:
        load_calibration(path)
    assert "\n" not in str(refused.value)


def test_an_unknown_cost_is_refused_with_the_nearest(tmp_path):
    path = tmp_path / "calibration.yaml"
    path.write_text("format: dualray-calibration/1\ncosts: {submit_n: 1}")
    with pytest.raises(ValueError, match=r"no parameter 'submit_n'.*submit_ns"):
        ray.init(mode="sim", calibration=path)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_command_measures_fits_and_shows_what_is_left_over(tmp_path: Path):
    path, page = tmp_path / "calibration.yaml", tmp_path / "page.html"
    done = subprocess.run(
        [*COMMAND, "--seconds", "1", "-o", str(path), "--report", str(page)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "held-out error" in done.stdout
    found = load_calibration(path)
    assert found.error is not None
    assert len(found.checks) == 4
    assert 1_000_000 < found.costs["worker_start_ns"] < 5_000_000_000, "a process is forked and joins"
    for name, value in found.costs.items():
        low, high = found.intervals.get(name, (value, value))
        assert low <= value * 1.01, name
        assert high >= value * 0.99, name
    text = page.read_text()
    assert "Residuals of the fit" in text
    assert "chain of empty tasks" in text
    started: Any = ray.init(mode="sim", calibration=path)
    try:
        assert started.cluster.cost_model.worker_start_ns == found.costs["worker_start_ns"]
    finally:
        ray.shutdown()


def test_the_command_prints_json_with_the_keys_of_the_page(tmp_path: Path):
    command = [*COMMAND, "--seconds", "1", "--json", "-o", str(tmp_path / "calibration.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == documented_keys("calibrate")
    assert found["costs"] == load_calibration(Path(found["file"])).costs
    assert {phase["is_held_out"] for phase in found["phases"]} == {True, False}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "0.5"], "seconds=0.5 must be from 1 to 60"),
        (["--seconds", "61"], "seconds=61 must be from 1 to 60"),
        (["-o", "missing/calibration.yaml"], "there is no directory 'missing'"),
        (["-o", "."], "is a directory"),
        (["--report", "missing/page.html"], "--report"),
    ],
)
def test_what_cannot_be_measured_or_written_is_refused_in_one_line(tmp_path: Path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["calibrate", *arguments])
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_program_is_not_replaced_by_a_calibration(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text("import dualray\n")
    done = CliRunner().invoke(app, ["calibrate", "-o", str(program)])
    assert (done.exit_code, program.read_text()) == (2, "import dualray\n")
    assert "exists, and dualray overwrites only files that dualray wrote" in done.stderr


def test_others_are_noticed_though_most_pieces_of_computing_are_as_fast_as_ever():
    assert noise_of([1.0, 1.02, 1.01, 1.03]) == pytest.approx(0.015)
    assert noise_of([1.0] * 9 + [5.0]) == pytest.approx(0.4)  # one was without a core for a while
    assert noise_of([1.0] * 9 + [50.0]) == 1.0
