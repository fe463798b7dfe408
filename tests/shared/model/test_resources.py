from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.demands import MEMORY_MAX, parse_named, parse_resources
from dualray.shared.model.resources import NOTHING, UNITS, Resources, add, bulk, fits, from_units, shortfall
from tests.shared.builders import cpus

names = st.sampled_from(["CPU", "GPU", "disk", "memory"])
amounts = st.dictionaries(names, st.integers(0, 10**6))


def parsed(**options: Any) -> Resources:
    return parse_resources(**({"num_cpus": None, "num_gpus": None, "resources": None} | options))


# ---- What a user writes --------------------------------------------------------------------------------------------


@given(st.integers(1, 1_000_000 * UNITS))
def test_each_ten_thousandth_is_exact(units):
    assert parsed(num_cpus=units / UNITS).get("CPU") == units


def test_ten_tenths_are_one():
    assert add([cpus(0.1)] * 10) == cpus(1)
    assert 0.1 + 0.1 + 0.1 != 0.3
    assert add([cpus(0.1)] * 3) == cpus(0.3)


def test_zero_is_left_out():
    assert parsed(num_cpus=0, num_gpus=0, resources={"disk": 0}) == NOTHING


def test_order_of_names_does_not_matter():
    one = parsed(num_cpus=1, resources={"a": 1, "b": 2})
    other = parsed(num_cpus=1, resources={"b": 2, "a": 1})
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("options", "exception", "message"),
    [
        ({"num_cpus": -1}, ValueError, "num_cpus=-1 must be between 0 and 1,000,000"),
        ({"num_cpus": 1_000_001}, ValueError, "num_cpus=1000001 must be between 0 and 1,000,000"),
        ({"num_gpus": math.inf}, ValueError, "num_gpus=inf must be between 0 and 1,000,000"),
        ({"num_gpus": math.nan}, ValueError, "num_gpus=nan must be between 0 and 1,000,000"),
        ({"num_cpus": 0.00004}, ValueError, "num_cpus=4e-05 is below the smallest step, 0.0001"),
        ({"num_gpus": 1.5}, ValueError, "num_gpus=1.5: an amount above 1 must be a whole number of GPUs"),
        ({"resources": {"CPU": 1}}, ValueError, "resources has 'CPU'; use num_cpus= instead"),
        ({"resources": {"GPU": 1}}, ValueError, "resources has 'GPU'; use num_gpus= instead"),
        ({"resources": {"": 1}}, ValueError, "resources={'': 1}: the name of a resource must not be empty"),
        ({"resources": {"disk": -2}}, ValueError, "resources['disk']=-2 must be between 0 and 1,000,000"),
        ({"resources": {"memory": 1}}, ValueError, "resources has 'memory'; use memory= instead"),
        ({"memory": -1}, ValueError, "memory=-1 must be between 0 and 70,368,744,177,664 bytes (64 TiB)"),
        ({"memory": math.nan}, ValueError, "memory=nan must be between 0 and"),
        ({"memory": "2 parsecs"}, ValueError, "memory: '2 parsecs' is not understood"),
        ({"memory": True}, TypeError, "memory=True must be a number of bytes, or a text such as '2GiB'"),
        ({"num_cpus": "2"}, TypeError, "num_cpus='2' must be a number"),
        ({"num_cpus": True}, TypeError, "num_cpus=True must be a number"),
        ({"resources": {"disk": None}}, TypeError, "resources['disk']=None must be a number"),
        ({"resources": [("disk", 1)]}, TypeError, "resources=[('disk', 1)] must be a dict of name to amount"),
        ({"resources": {1: 1, "disk": 1}}, TypeError, "resources={1: 1, 'disk': 1}: the name 1 must be a string"),
    ],
)
def test_a_wrong_demand_is_refused_with_the_option_in_the_message(options, exception, message):
    with pytest.raises(exception) as refused:
        parsed(**options)
    assert message in str(refused.value)


@pytest.mark.parametrize("gpus", [0.25, 1, 2, 8])
def test_a_share_of_one_gpu_or_whole_gpus(gpus):
    assert parsed(num_gpus=gpus).as_floats() == {"GPU": gpus}


def test_thirds_are_rounded_to_the_nearest_step_and_three_fit_into_one():
    third = parsed(num_gpus=1 / 3)
    assert third.get("GPU") == 3333
    assert fits({"GPU": UNITS}, add([third] * 3))


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (NOTHING, "nothing"),
        (cpus(0.5), "0.5 CPU"),
        (cpus(2, gpus=1, disk=3), "2 CPU, 1 GPU, 3 disk"),
        (from_units({"CPU": UNITS, "memory": 3 * 2**29 * UNITS}), "1 CPU, 1.5 GiB of memory"),
    ],
)
def test_in_words(resources, expected):
    assert str(resources) == expected


# ---- Memory --------------------------------------------------------------------------------------------------------


@given(st.integers(0, MEMORY_MAX))
def test_each_byte_is_exact(size):
    for written in (size, str(size), f"{size}B"):
        assert parsed(memory=written).get("memory") == size * UNITS
    assert parsed(memory=size).as_floats().get("memory", 0.0) == size


def test_a_part_of_a_byte_is_dropped():
    assert parsed(memory=2.9).as_floats() == {"memory": 2.0}
    assert parsed(memory=0.5).as_floats() == {}


def test_named_amounts_are_what_options_are():
    named = parse_named({"CPU": 2, "GPU": 1, "memory": "1GiB", "disk": 3})
    assert named == parsed(num_cpus=2, num_gpus=1, memory=2**30, resources={"disk": 3})


@given(st.integers(1, 64))
def test_a_gib_of_memory_weighs_as_much_as_a_cpu(count):
    assert bulk(parsed(memory=count * 2**30)) == bulk(cpus(count))


# ---- Arithmetic ----------------------------------------------------------------------------------------------------


@given(amounts)
def test_units_and_back(units):
    assert dict(from_units(units).units) == {name: amount for name, amount in units.items() if amount}


@given(amounts, amounts)
def test_the_shortfall_is_just_what_is_missing(have, wanted):
    demand = from_units(wanted)
    lacks = shortfall(have, demand)
    assert (lacks == NOTHING) == fits(have, demand)
    topped_up = dict(add([from_units(have), lacks]).units)
    assert fits(topped_up, demand)
    for name, amount in lacks.units:
        assert topped_up[name] == demand.get(name)
        assert amount > 0


@given(st.lists(amounts, max_size=4))
def test_a_sum_is_the_sum_of_each_resource(parts):
    total = add(map(from_units, parts))
    for name in ("CPU", "GPU", "disk", "memory"):
        assert total.get(name) == sum(part.get(name, 0) for part in parts)
