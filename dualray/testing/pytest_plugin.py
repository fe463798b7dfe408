"""The pytest plugin: `--dualray-seeds`, `--dualray-replay`, `--dualray-faults` and `--dualray-shrink` for tests under
`@simtest`."""

from __future__ import annotations

import os

import pytest

_OPTIONS = {
    "--dualray-seeds": ("PYTEST_DUALRAY_SEEDS", "N", int, "how many seeds each @simtest tries"),
    "--dualray-replay": ("PYTEST_DUALRAY_REPLAY", "SEED", int, "try this seed of each @simtest alone"),
    "--dualray-faults": ("PYTEST_DUALRAY_FAULTS", "'FAULT; FAULT'", str, "in place of those that are drawn"),
}
_SHRINK = "PYTEST_DUALRAY_SHRINK"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The four options."""
    group = parser.getgroup("dualray", "simulated clusters (dualray)")
    for option, (_, metavar, kind, words) in _OPTIONS.items():
        group.addoption(option, type=kind, metavar=metavar, help=words)
    group.addoption("--dualray-shrink", action="store_true", help="take faults away from a failing seed")


def pytest_configure(config: pytest.Config) -> None:
    """Hand the options to the tests, which read them from the environment.

    Raises:
        pytest.UsageError: faults that are not understood.
    """
    if config.getoption("--dualray-faults") is not None:
        from dualray.testing.simtests import parse_faults  # noqa: PLC0415 - every run of pytest loads this plugin

        try:
            parse_faults(config.getoption("--dualray-faults"))
        except ValueError as error:
            raise pytest.UsageError(f"--dualray-faults: {error}") from None
    for option, (variable, *_) in _OPTIONS.items():
        value = config.getoption(option)
        if value is not None:
            os.environ[variable] = str(value)
    if config.getoption("--dualray-shrink"):
        os.environ[_SHRINK] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing in the environment."""
    for variable in (*(variable for variable, *_ in _OPTIONS.values()), _SHRINK):
        os.environ.pop(variable, None)
