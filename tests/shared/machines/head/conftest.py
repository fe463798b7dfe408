"""The heads that most tests of the head speak to."""

from __future__ import annotations

import pytest

from dualray.shared.model.events import ActorSubscribed, DriverJoined
from tests.shared.builders import DRIVER, HeadStepper, aid, cpus, info
from tests.shared.machines.head.news import N0, constructed, grant, register


@pytest.fixture
def head() -> HeadStepper:
    """Two nodes of two CPUs each, and a driver."""
    head = HeadStepper(info("node-0"), info("node-1"))
    head(DriverJoined(address=DRIVER, node=N0))
    return head


@pytest.fixture
def subscribed(head) -> HeadStepper:
    head(ActorSubscribed(actor_id=aid(1), subscriber=DRIVER))
    return head


@pytest.fixture
def alive(subscribed) -> HeadStepper:
    """Actor 1 lives on node-0 and has one restart."""
    register(subscribed, max_restarts=1)
    grant(subscribed)
    subscribed.report("node-0", cpus(2), f"actor:{aid(1).hex()}:0")
    constructed(subscribed)
    return subscribed
