"""Fixtures for every test: nothing may be left behind."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import leaks
from tests.failure_summary import FailureSummary
from tests.machine_load import slowness
from tests.two_workers import MachineBesideFiles

_CONFORMANCE = Path(__file__).parent / "conformance"

# A slow machine is no finding, so no deadline. A failure prints the line that repeats it. A build server draws the
# same examples each time: what it finds, it finds in the change that brought it.
hypothesis.settings.register_profile("dualray", deadline=None, print_blob=True, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("dualray")


# GPUs that a test declares are there on every machine, and others are not.
os.environ["DUALRAY_NVML"] = "off"
os.environ.pop("CUDA_VISIBLE_DEVICES", None)

# A shell starts what runs in its background with SIGINT ignored, and children inherit that; tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TEMPORARY_DIRECTORY = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mode", choices=("sim", "real", "ray"), help="run the conformance tests in this mode alone")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TEMPORARY_DIRECTORY] = leaks.mark_run()
    if not hasattr(config, "workerinput"):  # not in a worker of pytest-xdist
        config.pluginmanager.register(FailureSummary(config))
    if config.getoption("mode") == "ray":  # Ray leaves descriptors to the garbage collector, and warns of itself
        config.addinivalue_line("filterwarnings", "ignore")


def pytest_unconfigure(config: pytest.Config) -> None:
    leaks.remove_unless_something_leaked(config.stash[_TEMPORARY_DIRECTORY])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> MachineBesideFiles:
    return MachineBesideFiles(config, log)


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """Garbage collection within the module passes over what is there before it: every test and its libraries, which
    takes half a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def no_leak_from_the_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the tests of a module, and its own fixtures, started or opened is gone when the module ends."""
    if request.config.getoption("mode") == "ray":
        yield
        return
    before = leaks.survey()
    yield
    _fail_on_leaks(before, request.node.nodeid)


@pytest.fixture(autouse=True)
def no_leak_from_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same after each conformance test, and each test with the mark `leak_check`."""
    if request.config.getoption("mode") == "ray":  # Ray keeps processes for the next job
        yield
        return
    if not (request.path.is_relative_to(_CONFORMANCE) or request.node.get_closest_marker("leak_check") is not None):
        yield
        return
    before = leaks.survey()
    yield
    _fail_on_leaks(before, request.node.nodeid)


def _fail_on_leaks(before: leaks.Survey, culprit: str) -> None:
    timeout_s = leaks.CLEAN_UP_S * slowness()
    leaked = leaks.leaked(before, timeout_s=timeout_s)
    if leaked:
        leaks.end(leaked)
        lines = "\n".join(f"  - {holding}" for holding in leaked)
        pytest.fail(f"{culprit} left behind, {round(timeout_s, 1):g} s after it ended:\n{lines}", pytrace=False)
