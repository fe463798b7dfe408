"""The owners that most tests of the owner machine speak to."""

from __future__ import annotations

import pytest

from tests.shared.builders import OwnerStepper, constructor
from tests.shared.machines.owner.answers import WORKER


@pytest.fixture
def driver() -> OwnerStepper:
    return OwnerStepper()


@pytest.fixture
def worker() -> OwnerStepper:
    return OwnerStepper(WORKER)


@pytest.fixture
def actor(driver) -> OwnerStepper:
    """A driver that has made actor 1, which is not placed yet."""
    driver.submit(constructor(1))
    return driver
