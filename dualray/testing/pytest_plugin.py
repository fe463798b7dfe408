"""The pytest plugin: `--dualray-seeds`, `--dualray-replay`, `--dualray-faults` and `--dualray-shrink` for tests under
`@simtest`, and with `--dualray-mode sim` for all tests; `--dualray-as-ray`, `--dualray-mode` and `--dualray-nodes` for
suites of programs that use Ray.

Every run of pytest loads it: without its options it loads nothing of the runtime.
"""

from __future__ import annotations

import os
import warnings

import pytest

from dualray import random_seeds

_OPTIONS = {
    "--dualray-seeds": ("PYTEST_DUALRAY_SEEDS", "N", int, "number of seeds that each test tries"),
    "--dualray-replay": ("PYTEST_DUALRAY_REPLAY", "SEED", int, "try only this seed of each test"),
    "--dualray-faults": (
        "PYTEST_DUALRAY_FAULTS",
        "'FAULT; FAULT'",
        str,
        "faults for each test, a file with a fault in each line, or 'swarm' for random faults with each seed",
    ),
}
_OF_ONE_RUN = ("--dualray-faults", "--dualray-replay")
_SHRINK = "PYTEST_DUALRAY_SHRINK"
_CLUSTER = {
    "--dualray-mode": ("DUALRAY_MODE", "MODE", str, "mode of tests that choose none: real or sim"),
    "--dualray-nodes": ("DUALRAY_NODES", "N", int, "number of virtual nodes of tests that choose none; sim mode only"),
}
_AS_RAY = "--dualray-as-ray"
_SUITE = "dualray-suite"
_set: dict[str, str | None] = {}
"""Variables of the environment that the options have set, with what they were before."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("dualray", "dualray: real and simulated clusters")
    for option, (_, metavar, kind, words) in {**_OPTIONS, **_CLUSTER}.items():
        group.addoption(option, type=kind, metavar=metavar, help=words)
    group.addoption(
        "--dualray-shrink", action="store_true", help="search for the fewest faults with which a seed fails"
    )
    group.addoption(_AS_RAY, action="store_true", help="let `import ray` import dualray in all tests")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest.py is loaded, which may import Ray: the mode, and the name.

    Raises:
        pytest.UsageError: a mode that there is not, or Ray is imported already.
    """
    options = early_config.known_args_namespace
    if options.dualray_mode not in (None, "real", "sim"):
        raise pytest.UsageError(f"--dualray-mode={options.dualray_mode!r} must be real or sim")
    if options.dualray_nodes is not None and options.dualray_nodes < 1:
        raise pytest.UsageError(f"--dualray-nodes={options.dualray_nodes} must be at least 1")
    for option, (variable, *_) in _CLUSTER.items():
        _set_variable(variable, getattr(options, option[2:].replace("-", "_")))
    if options.dualray_as_ray:
        from dualray.as_ray import VARIABLES, install  # noqa: PLC0415 - every run of pytest loads this plugin

        for variable in VARIABLES:
            _set.setdefault(variable, os.environ.get(variable))
        try:
            install()
        except ImportError as error:
            raise pytest.UsageError(f"{_AS_RAY}: {error}") from None


def _set_variable(variable: str, value: object) -> None:
    if value is not None:
        _set.setdefault(variable, os.environ.get(variable))
        os.environ[variable] = str(value)


def pytest_configure(config: pytest.Config) -> None:
    """Hand the options to the tests, which read them from the environment.

    Raises:
        pytest.UsageError: faults that are not understood.
    """
    if config.option.dualray_faults is not None:
        from dualray.testing.simtests import read_faults  # noqa: PLC0415 - every run of pytest loads this plugin

        try:
            config.option.dualray_faults = read_faults(config.option.dualray_faults)
        except (OSError, ValueError) as error:
            raise pytest.UsageError(f"--dualray-faults: {error}") from None
    for option, (variable, *_) in _OPTIONS.items():
        _set_variable(variable, config.getoption(option))
    if config.getoption("--dualray-shrink"):
        _set_variable(_SHRINK, 1)
    options = config.option
    asked = (options.dualray_seeds, options.dualray_replay, options.dualray_faults)
    if os.environ.get("DUALRAY_MODE") == "sim" and asked != (None, None, None):
        from dualray.testing.suites import SuiteRuns  # noqa: PLC0415 - every run of pytest loads this plugin

        runs = SuiteRuns(
            seeds=options.dualray_seeds,
            replay=options.dualray_replay,
            faults=options.dualray_faults,
            shrinks=options.dualray_shrink,
        )
        config.pluginmanager.register(runs, _SUITE)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse options that change no test. Else a user believes that the tests have passed under the given faults.

    Raises:
        pytest.UsageError: an option for tests under @simtest, and none of the tests is one.
    """
    given = [option for option in _OF_ONE_RUN if session.config.getoption(option) is not None]
    if not given or not session.items or session.config.pluginmanager.has_plugin(_SUITE):
        return
    if not any(getattr(getattr(item, "obj", None), "is_dualray_simtest", False) for item in session.items):
        words = (
            f"{given[0]} changes only tests under @simtest, and no collected test is one: add --dualray-mode sim, "
            f'decorate a test, or pass seed= and faults= to init(mode="sim")'
        )
        if hasattr(session.config, "workerinput"):  # an error in a process of pytest-xdist looks like a crash
            warnings.warn(pytest.PytestWarning(words), stacklevel=1)
        else:
            raise pytest.UsageError(words)


def pytest_runtest_logstart() -> None:
    """A test begins: a simulation within it takes over the seeds that it sets, and none of earlier tests."""
    random_seeds.forget()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing in the environment, and no cluster that the tests have left running."""
    if config.getoption(_AS_RAY, False):
        from dualray.api import shutdown  # noqa: PLC0415 - every run of pytest loads this plugin

        shutdown()
    while _set:
        variable, before = _set.popitem()
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before
