"""The pytest plugin: `--dualray-seeds`, `--dualray-replay`, `--dualray-shrink` for tests under `@simtest`."""

from __future__ import annotations

import os

import pytest

_OPTIONS = {
    "--dualray-seeds": ("PYTEST_DUALRAY_SEEDS", "N", "how many seeds each @simtest tries"),
    "--dualray-replay": ("PYTEST_DUALRAY_REPLAY", "SEED", "try this seed of each @simtest alone"),
}
_SHRINK = "PYTEST_DUALRAY_SHRINK"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The three options."""
    group = parser.getgroup("dualray", "simulated clusters (dualray)")
    for option, (_, metavar, words) in _OPTIONS.items():
        group.addoption(option, type=int, metavar=metavar, help=words)
    group.addoption("--dualray-shrink", action="store_true", help="take faults away from a failing seed")


def pytest_configure(config: pytest.Config) -> None:
    """Hand the options to the tests, which read them from the environment."""
    for option, (variable, _, _) in _OPTIONS.items():
        value = config.getoption(option)
        if value is not None:
            os.environ[variable] = str(value)
    if config.getoption("--dualray-shrink"):
        os.environ[_SHRINK] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing in the environment."""
    for variable in (*(variable for variable, _, _ in _OPTIONS.values()), _SHRINK):
        os.environ.pop(variable, None)
