"""The nodes that tests of transfers speak to."""

from __future__ import annotations

import pytest

from tests.shared.builders import NodeStepper
from tests.shared.machines.node.transfers import X


@pytest.fixture
def node() -> NodeStepper:
    return NodeStepper(store_bytes=1000)


@pytest.fixture
def pulling(node) -> NodeStepper:
    """A node that has asked node-1 for X, and knows that node-2 has it too."""
    node.want(X)
    node.locations(X, "node-1", "node-2")
    return node


@pytest.fixture
def narrow() -> NodeStepper:
    """A node that pulls 250 bytes at a time."""
    return NodeStepper(store_bytes=10_000, pull_bytes_max=250)
