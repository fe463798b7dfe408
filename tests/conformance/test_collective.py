"""Collective operations between actors."""

from __future__ import annotations

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import GetTimeoutError
from dualray.util import collective
from dualray.util.collective import ReduceOp
from tests.conformance.support import get

CLUSTER = {"num_cpus": 4}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote(num_cpus=0)
class Member:
    def init(self, world_size, rank, group_name="default", gloo_timeout=30_000):
        collective.init_collective_group(world_size, rank, "gloo", group_name, gloo_timeout)

    def do(self, verb, value, *args, **kwargs):
        """Call an operation with a tensor of these values; the tensor afterwards."""
        tensor = np.array(value)
        getattr(collective, verb)(tensor, *args, **kwargs)
        return tensor

    def gather(self, value, places):
        tensors = [np.zeros_like(value) for _ in range(places)]
        collective.allgather(tensors, np.array(value))
        return tensors

    def scatter(self, values):
        tensor = np.zeros_like(values[0])
        collective.reducescatter(tensor, values)
        return tensor

    def call(self, verb, *args):
        return getattr(collective, verb)(*args)


@pytest.fixture
def members():
    made = [Member.remote() for _ in range(3)]
    get([each.init.remote(3, rank) for rank, each in enumerate(made)])
    return made


def on_all(members, verb, values, *args):
    return get([each.do.remote(verb, value, *args) for each, value in zip(members, values, strict=True)])


@pytest.mark.parametrize("size", [1, 10, 50_000])  # in the actor, by references, in parts
def test_all_reduce(members, size):
    values = [np.arange(size) + 10 * rank for rank in range(3)]
    for op, expected in (
        (ReduceOp.SUM, 3 * np.arange(size) + 30),
        (ReduceOp.MAX, values[2]),
        (ReduceOp.MIN, values[0]),
        (ReduceOp.PRODUCT, values[0] * values[1] * values[2]),
    ):
        for found in on_all(members, "allreduce", values, "default", op):
            assert np.array_equal(found, expected)
    table = np.arange(90_000.0).reshape(300, 300)
    assert all(np.array_equal(found, 3 * table) for found in on_all(members, "allreduce", [table] * 3))


def test_what_one_rank_has(members):
    values = [[1, 1], [2, 2], [3, 3]]
    assert [list(found) for found in on_all(members, "broadcast", values, 1)] == [[2, 2]] * 3
    assert [list(found) for found in on_all(members, "reduce", values, 2)] == [[1, 1], [2, 2], [6, 6]]
    gathered = get([each.gather.remote(value, 3) for each, value in zip(members, values, strict=True)])
    assert [[list(tensor) for tensor in found] for found in gathered] == [values] * 3
    scattered = get([each.scatter.remote([np.full(2, place) for place in range(3)]) for each in members])
    assert [list(found) for found in scattered] == [[0, 0], [3, 3], [6, 6]]
    assert get([each.call.remote("barrier") for each in members]) == [None] * 3


def test_send_and_receive(members):
    sent = [members[0].do.remote("send", np.full(3, number), 2) for number in (1, 2)]
    received = [members[2].do.remote("recv", np.zeros(3), 0) for _ in range(2)]
    assert [list(found) for found in get(received)] == [[1] * 3, [2] * 3]
    get(sent)
    large = np.arange(100_000.0)
    received = members[1].do.remote("recv", np.zeros(100_000), 0)
    members[0].do.remote("send", large, 1)
    assert np.array_equal(get(received), large)
    with pytest.raises(RuntimeError, match="the rank of this process"):
        get(members[0].do.remote("send", [1], 0))


def test_membership():
    members = [Member.remote() for _ in range(2)]
    assert get(members[0].call.remote("get_rank")) == -1
    assert get(members[0].call.remote("is_group_initialized")) is False
    for name in ("one", "two"):
        get([each.init.remote(2, rank, name) for rank, each in enumerate(members)])
    assert get(members[1].call.remote("get_rank", "two")) == 1
    assert get(members[1].call.remote("get_collective_group_size", "two")) == 2
    with pytest.raises(RuntimeError, match="a second time"):
        get(members[0].init.remote(2, 0, "one"))
    get([each.call.remote("destroy_collective_group", "one") for each in members])
    assert get(members[0].call.remote("is_group_initialized", "one")) is False
    assert get(members[0].call.remote("is_group_initialized", "two")) is True
    get([each.init.remote(2, 1 - rank, "one") for rank, each in enumerate(members)])
    assert [list(found) for found in on_all(members, "broadcast", [[1], [2]], 0, "one")] == [[2], [2]]
    with pytest.raises(RuntimeError, match="not initialized in this process"):
        get(members[0].do.remote("allreduce", [1], "three"))


def test_a_declared_group():
    members = [Member.remote() for _ in range(2)]
    collective.create_collective_group(members, 2, [1, 0], backend="gloo", group_name="declared")
    assert [list(found) for found in on_all(members, "broadcast", [[1], [2]], 0, "declared")] == [[2], [2]]
    assert get(members[0].call.remote("get_rank", "declared")) == 1
    with pytest.raises(RuntimeError, match="twice"):
        collective.create_collective_group(members, 2, [1, 0], backend="gloo", group_name="declared")
    collective.destroy_collective_group("declared")


def test_a_rank_that_does_not_come_is_named():
    members = [Member.remote() for _ in range(3)]
    get([each.init.remote(3, rank, "late", 300) for rank, each in enumerate(members)])
    with pytest.raises(
        GetTimeoutError, match=r"allreduce SUM of rank 0 .*rank 1, 2 did not call allreduce SUM within 300 ms"
    ):
        get(members[0].do.remote("allreduce", [1], "late"))
    with pytest.raises(GetTimeoutError, match="rank 2 sent nothing within 300 ms"):
        get(members[0].do.remote("recv", [1], 2, "late"))


def test_what_makes_no_sense_is_refused(members):
    with pytest.raises(RuntimeError, match="same operations in the same order"):
        get([members[0].do.remote("allreduce", [1]), members[1].do.remote("broadcast", [1])])
    with pytest.raises(ValueError, match="is read-only"):
        get(ray.remote(lambda tensor: collective.allreduce(tensor)).remote(np.ones(100_000)))
    with pytest.raises(RuntimeError, match="numpy array"):
        collective.allreduce([1, 2])
    with pytest.raises(RuntimeError, match="use backend='gloo'"):
        collective.init_collective_group(1, 0)
    with pytest.raises(ValueError, match="no backend 'mpi'"):
        collective.init_collective_group(1, 0, "mpi")
    with pytest.raises(ValueError, match="between 0 and world_size - 1"):
        collective.init_collective_group(2, 2, "gloo")
    with pytest.raises(RuntimeError, match="each rank from 0"):
        collective.create_collective_group(members, 3, [0, 1, 1], "gloo", "wrong")
