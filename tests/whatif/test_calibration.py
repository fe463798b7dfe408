"""Calibration files: written, read, used, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dualray as ray
from dualray.recording.calibration import Calibration, load_calibration

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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is no YAML"),
        ("a: 1", "is no calibration of format"),
        ("format: dualray-calibration/1\ncosts: {submit_ns: -1}", "whole numbers >= 0"),
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
