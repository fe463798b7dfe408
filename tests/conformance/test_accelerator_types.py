"""A node with accelerators of one type says which: Ray does so on nodes with one kind."""

from __future__ import annotations

import pytest

import dualray as ray
from tests.conformance.support import get

TYPE = "aws-neuron-core"
CLUSTER = {"resources": {"neuron_cores": 2}}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote(resources={"neuron_cores": 2})
def cores():
    return ray.get_runtime_context().get_accelerator_ids()["neuron_cores"]


def test_a_node_with_neuron_cores_offers_their_type():
    for row in ray.nodes():
        assert row["Resources"][f"accelerator_type:{TYPE}"] == 1
    assert get(cores.options(accelerator_type=TYPE, resources={"neuron_cores": 2}).remote()) == ["0", "1"]


def test_a_node_with_neuron_cores_is_labelled_with_their_type():
    for row in ray.nodes():
        assert row["Labels"]["ray.io/accelerator-type"] == TYPE
    assert get(cores.options(label_selector={"ray.io/accelerator-type": TYPE}).remote()) == ["0", "1"]
