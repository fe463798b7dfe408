"""Mode "ray" before anything runs: what is refused, and how; Ray need not be installed."""

from __future__ import annotations

import sys

import pytest

import dualray
from dualray import settings


@pytest.mark.parametrize("name", sorted(settings._NOT_ON_RAY))
def test_a_setting_that_ray_has_no_counterpart_of_is_refused_with_the_way_out(name, tmp_path):
    values = {
        "decision_log": tmp_path / "log",
        "limits": {"push_window_max": 8},
        "log_directory": tmp_path,
        "redirect_output": True,
    }
    with pytest.raises(ValueError, match=rf"init\({name}=\.\.\.\) is not possible with mode='ray': "):
        dualray.init(mode="ray", **{name: values.get(name, 1)})


def test_ray_client_is_refused():
    with pytest.raises(ValueError, match="with `ray job submit`"):
        dualray.init(mode="ray", address="ray://10.0.0.1:10001")


def test_who_joins_a_cluster_brings_nothing_along():
    with pytest.raises(ValueError, match="pass it to `ray start`"):
        dualray.init(mode="ray", address="10.0.0.1:6379", num_cpus=2)


def test_a_machine_without_ray_is_told_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name == "dualray.on_ray" or name.startswith("dualray.on_ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(dualray.exceptions.DualrayError, match=r'pip install "dualray\[ray\]"'):
        dualray.init(mode="ray")
    assert not dualray.is_initialized()


def test_the_name_ray_must_mean_ray(monkeypatch):
    import types

    for name in [name for name in sys.modules if name == "dualray.on_ray" or name.startswith("dualray.on_ray.")]:
        monkeypatch.delitem(sys.modules, name)
    of_dualray = types.ModuleType("ray")
    of_dualray.__file__ = "/somewhere/dualray/as_ray/site/ray/__init__.py"
    of_dualray.__spec__ = types.SimpleNamespace(name="ray")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "ray", of_dualray)
    with pytest.raises(dualray.exceptions.DualrayError, match="Leave out --as-ray"):
        dualray.init(mode="ray")
