"""Kinds of accelerators: how devices are numbered, which demands want them, and what a process sees of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.machines.node.resource_pool import ResourcePool
from dualray.shared.model.accelerators import (
    DEVICES_MAX,
    KINDS,
    Kind,
    device_words,
    devices_of,
    devices_wanted,
    gpus_among,
    kind_of,
    named,
    names_in,
    need_fresh_worker,
    number_of,
    numbered,
    shown_by,
)
from dualray.shared.model.demands import AMOUNT_MAX, parse_named
from dualray.shared.model.resources import bundle_resources, demand_in_group
from dualray.shared.model.specs import DEFAULT_STRATEGY

BY_NAME = {kind.name: kind for kind in KINDS}
GROUP = bytes(range(16))


def device(kind: str, number: int) -> int:
    return KINDS.index(BY_NAME[kind]) * DEVICES_MAX + number


def test_gpus_have_the_ids_that_they_have_alone_and_no_kind_reaches_the_next():
    assert kind_of(0).name == kind_of(7).name == "GPU"
    assert AMOUNT_MAX < DEVICES_MAX
    for kind in BY_NAME:
        assert kind_of(device(kind, 3)).name == kind
        assert number_of(device(kind, 3)) == 3
    assert gpus_among([device("TPU", 0), 1, device("NPU", 1), 0]) == (1, 0)


def test_the_devices_of_a_node():
    total = parse_named({"CPU": 4, "GPU": 0.5, "TPU": 2, "disk": 3})
    assert devices_of(dict(total.units)) == {
        0: 5_000,
        device("TPU", 0): 10_000,
        device("TPU", 1): 10_000,
    }
    assert numbered(dict(total.units)) == {"GPU": ("0",), "TPU": ("0", "1")}


def test_a_demand_wants_devices_of_each_kind_once_in_bundles_too():
    demand = parse_named({"CPU": 1, "GPU": 0.5, "neuron_cores": 2, "disk": 1})
    wanted = ((0, 5_000), (1, 20_000))
    assert devices_wanted(demand) == wanted
    assert devices_wanted(bundle_resources(demand, GROUP, 2)) == wanted
    assert devices_wanted(demand_in_group(demand, GROUP, -1)) == wanted
    assert devices_wanted(parse_named({"CPU": 1, "disk": 1})) == ()


def test_names_and_words():
    devices = (0, 1, device("TPU", 3))
    names = {"GPU": ["GPU-a", "GPU-b"], "TPU": ["4", "5", "6", "7"]}
    assert named(devices, names) == {"GPU": ("GPU-a", "GPU-b"), "TPU": ("7",)}
    assert device_words(devices) == "GPU 0, 1 and TPU 3"
    assert device_words(()) == ""


def test_only_gpus_need_a_fresh_worker():
    assert need_fresh_worker((device("TPU", 0), 0))
    assert not need_fresh_worker((device("TPU", 0), device("NPU", 1)))
    assert not need_fresh_worker(())


@pytest.mark.parametrize(
    ("kind", "names", "variables"),
    [
        ("GPU", ("0", "GPU-b"), {"CUDA_VISIBLE_DEVICES": "0,GPU-b"}),
        ("FURIOSA", ("0", "3"), {"FURIOSA_DEVICES": "npu:0,npu:3"}),
        ("TPU", ("1", "2", "3"), {"TPU_VISIBLE_CHIPS": "1,2,3"}),
        (
            "TPU",
            ("2",),
            {"TPU_VISIBLE_CHIPS": "2", "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1", "TPU_HOST_BOUNDS": "1,1,1"},
        ),
    ],
)
def test_what_a_process_sees_of_its_devices(kind, names, variables):
    assert shown_by(BY_NAME[kind], names) == variables
    assert names_in(BY_NAME[kind], variables[BY_NAME[kind].variable]) == names


@pytest.mark.parametrize("text", ["", "NoDevFiles", ","])
def test_a_variable_may_name_nothing(text):
    assert all(names_in(kind, text) == () for kind in KINDS)


# ---- The pool of a node ----------------------------------------------------------------------------------------------


def amounts(kind: Kind) -> st.SearchStrategy[float]:
    whole = st.sampled_from([0.0, 1.0, 2.0])
    return st.one_of(whole, st.sampled_from([0.25, 0.5, 0.75])) if kind.is_shared else whole


DEMANDS = st.lists(st.fixed_dictionaries({kind.name: amounts(kind) for kind in KINDS[:5]}), max_size=12)


@given(demands=DEMANDS)
def test_each_lease_has_devices_of_its_own_and_gives_them_back(demands):
    total = parse_named({kind.name: 3 for kind in KINDS[:5]})
    pool = ResourcePool(total=total)
    whole = dict(pool.devices_free)
    leases = []
    for demand in map(parse_named, demands):
        if pool.device_places(demand, DEFAULT_STRATEGY, 1) > 0:
            shares = pool.take_devices(demand, DEFAULT_STRATEGY)
            leases.append(shares)
            held: dict[int, int] = {}
            for share in shares:
                place = share.device // DEVICES_MAX
                held[place] = held.get(place, 0) + share.units
            assert tuple(held.items()) == devices_wanted(demand)
            assert len({share.device for share in shares}) == len(shares)
    assert all(free >= 0 for free in pool.devices_free.values())
    for shares in leases:
        for share in shares:
            share.pool[share.device] += share.units
    assert pool.devices_free == whole


def test_how_many_leases_the_scarcest_kind_takes():
    pool = ResourcePool(total=parse_named({"GPU": 4, "TPU": 2, "NPU": 1}))
    places = {"GPU": 4, "TPU": 2, "NPU": 1}
    for kind, count in places.items():
        assert pool.device_places(parse_named({kind: 1}), DEFAULT_STRATEGY, 9) == count
    assert pool.device_places(parse_named({"GPU": 1, "TPU": 1}), DEFAULT_STRATEGY, 9) == 2
    assert pool.device_places(parse_named({"GPU": 0.5, "NPU": 0.25}), DEFAULT_STRATEGY, 9) == 4
    assert pool.device_places(parse_named({"CPU": 1}), DEFAULT_STRATEGY, 9) == 9
