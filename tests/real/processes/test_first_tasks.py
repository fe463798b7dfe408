"""The first tasks of a program reach its node manager in the order in which the program submits them."""

from __future__ import annotations

from typing import Any

import dualray as ray
from dualray import runtime
from tests.conformance.support import eventually


def test_the_driver_is_connected_to_its_node_before_the_first_task():
    # An actor's lease goes through the head. Without this connection it overtook the lease of an earlier task.
    with ray.init(mode="real", num_cpus=1):
        verbs: Any = runtime.current("the test").verbs
        driver = verbs.core.host
        eventually(lambda: "node-0" in driver.transport.connected(), "the driver connects to its node")
