"""What `dualray calibrate` may measure."""

from __future__ import annotations

import sys

import pytest

from dualray.exceptions import DualrayError
from dualray.recording.calibration import Calibration, load_calibration
from dualray.whatif.engines import OwnEngine, engine_of
from dualray.whatif.predict import _noise_of


def test_an_engine_has_a_name():
    assert isinstance(engine_of("dualray"), OwnEngine)
    with pytest.raises(ValueError, match="--engine='dask' must be dualray or ray"):
        engine_of("dask")
    with pytest.raises(ValueError, match="--address='auto' is for --engine ray"):
        engine_of("dualray", "auto")


def test_without_ray_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DualrayError, match=r'pip install "dualray\[ray\]"'):
        engine_of("ray")


def test_a_calibration_says_of_which_engine_it_is(tmp_path):
    path = tmp_path / "calibration.yaml"
    path.write_text(Calibration(engine="ray", error=0.3, noise=0.1).dump())
    of_ray = load_calibration(path)
    assert (of_ray.engine, _noise_of(of_ray)) == ("ray", 0.3)
    path.write_text(Calibration(error=0.3, noise=0.1).dump())
    assert "engine" not in path.read_text()
    own = load_calibration(path)
    assert (own.engine, _noise_of(own), _noise_of(None)) == ("dualray", 0.1, 0.0)
