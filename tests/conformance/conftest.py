"""Fixtures of the conformance suite: each test is one promise, kept by both modes.

`cluster` is one cluster for each module and mode; a module that needs other options says so in a constant CLUSTER.
`start` makes clusters for one test. A module uses one of the two. After each test with `cluster` everything that was
leased must be free again, and in sim mode every invariant of every machine must hold. A test that fails gets the next
one a fresh cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dualray as ray
from dualray import runtime
from tests.conformance.ray_differences import reasons
from tests.conformance.support import (
    MODES,
    Gate,
    Shape,
    Tally,
    end_ray,
    eventually,
    resources_are_free,
    start_cluster,
)
from tests.machine_load import slowness

TEST_TIMEOUT_S = 40
RAY_TIMEOUT_S = 120
"""A worker of Ray takes a second to start, and a cluster many."""
LEASES_END_S = 5.0
_HAS_FAILED = pytest.StashKey[bool]()
_IS_SPOILT = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        on_ray = item.config.getoption("mode") == "ray"
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(RAY_TIMEOUT_S if on_ray else TEST_TIMEOUT_S))
        assert isinstance(item, pytest.Function)
        different = reasons().get(f"{item.path.name}::{item.originalname}")
        if on_ray and different is not None:
            item.add_marker(pytest.mark.skip(reason=f"not on Ray: {different}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[_HAS_FAILED] = report.failed
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mode" in metafunc.fixturenames and "mode" not in {
        name for mark in metafunc.definition.iter_markers("parametrize") for name in str(mark.args[0]).split(",")
    }:
        only = metafunc.config.getoption("mode")
        metafunc.parametrize("mode", [only] if only else MODES, indirect=True, scope="module")


@pytest.fixture(scope="module")
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def module_cluster(mode: str, request: pytest.FixtureRequest) -> Iterator[Shape]:
    """One cluster for all tests of a module; use `cluster`."""
    yield start_cluster(mode, **_options_of(request.module))
    ray.shutdown()


def _options_of(module: object) -> dict[str, Any]:
    return dict(getattr(module, "CLUSTER", {}))


@pytest.fixture
def cluster(module_cluster: Shape, request: pytest.FixtureRequest) -> Iterator[Shape]:
    """The module's cluster; afterwards nothing of it may still be leased."""
    is_clean = False
    try:
        yield module_cluster
        if not request.node.stash.get(_HAS_FAILED, True):
            within_s = LEASES_END_S * slowness()
            eventually(resources_are_free, "all resources are free again after the test", within_s)
            check_invariants()
            is_clean = True
    finally:
        request.config.stash[_IS_SPOILT] = not is_clean


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a failed test has left behind is not the next one's fault. Here, and not in a fixture: the check for leaks
    of the next test must find the new cluster in place."""
    if not item.config.stash.get(_IS_SPOILT, False):
        return
    item.config.stash[_IS_SPOILT] = False
    if ray.is_initialized() and "cluster" in getattr(item, "fixturenames", ()):
        current = runtime.current_or_none()
        assert current is not None
        ray.shutdown()
        assert isinstance(item, pytest.Function)
        if item.callspec.params["mode"] == current.mode:
            start_cluster(current.mode, **_options_of(item.module))


@pytest.fixture
def start(mode: str) -> Iterator[Callable[..., Shape]]:
    """Start a cluster in this mode: `start(num_cpus=1)`; it ends with the test, or with `ray.shutdown()`."""
    assert not ray.is_initialized(), "a module uses either `cluster` or `start`"
    yield lambda **changes: start_cluster(mode, **changes)
    ray.shutdown()


def check_invariants() -> None:
    """In sim mode, sweep over every machine; real mode checks the machines that an event touched as it goes."""
    current = runtime.current_or_none()
    if current is not None and current.mode == "sim":
        current.cluster.check_invariants()  # type: ignore[attr-defined]  # sim mode's own


@pytest.fixture(scope="session", autouse=True)
def ray_ends() -> Iterator[None]:
    """The cluster of Ray's that modules share."""
    yield
    end_ray()


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path / "tally")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")
