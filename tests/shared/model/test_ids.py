from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dualray.shared.model.ids import (
    Address,
    ChildIds,
    NodeID,
    actor_handle_id,
    child_task_id,
    function_id,
    incarnation_of,
    is_put,
    job_of,
    job_of_driver,
    lives_on,
    node_of,
    put_object_id,
    return_object_id,
    root_task_id,
    short,
    task_of,
    worker_address,
)
from tests.shared.builders import aid, tid

ROOT = root_task_id("0", 0)
counters = st.integers(0, 2**24 - 1)
attempts = st.integers(0, 127)
nodes = st.from_regex(r"[a-z]{1,5}-[0-9]{1,3}", fullmatch=True).map(NodeID)


def test_ids_are_the_same_in_every_process_and_version():
    """Both modes, and a replay in a year, derive these from the same seed."""
    assert root_task_id("0", 0).hex() == "c1c1a8aea827d8cda3aed15a00000000"
    assert child_task_id(ROOT, 0, 0).hex() == "21b9a3cb5eca850c0615c6ac00000000"
    assert function_id(b"pickled").hex() == "fc06d30c2bee80d5252c27ffc4d4c1e4"


@given(st.sets(st.tuples(st.integers(0, 2**31), st.integers(0, 2**60)), min_size=2, max_size=2))
def test_each_call_of_each_attempt_has_its_own_task_id(calls):
    one, other = (child_task_id(ROOT, attempt, counter) for attempt, counter in calls)
    assert one != other
    assert len(one) == len(other) == 16


def test_neighbours_have_nothing_in_common_but_their_job():
    """Five are cut from one digest, without overlap."""
    ids = [child_task_id(ROOT, attempt, counter) for attempt in range(2) for counter in range(1000)]
    parts = {one[begin : begin + 6] for one in ids for begin in (0, 6)}
    assert len(parts) == 2 * len(ids)


@given(attempts, st.lists(st.integers(0, 60) | st.integers(0, 2**60), max_size=9))
def test_many_ids_of_one_attempt_are_those_that_are_derived_one_by_one(attempt, numbers):
    children = ChildIds(ROOT, attempt)
    assert [children.of(number) for number in numbers] == [child_task_id(ROOT, attempt, number) for number in numbers]


def test_jobs_and_seeds_have_roots_of_their_own():
    assert len({root_task_id(seed, job) for seed in ("0", "1") for job in range(3)}) == 6


@pytest.mark.parametrize("job", [0, 1, 70_000])
def test_every_id_knows_its_job(job):
    child = child_task_id(child_task_id(root_task_id("7", job), 0, 3), 2, 1)
    assert job_of(child) == job_of(return_object_id(child, 5)) == job_of(put_object_id(child, 1, 2)) == job


def test_a_driver_is_called_after_its_job():
    assert [job_of_driver(Address(name)) for name in ("driver-1", "driver-12@node-3")] == [1, 12]


@given(counters)
def test_an_object_knows_the_task_that_returns_it(index):
    object_id = return_object_id(tid(7), index)
    assert task_of(object_id) == tid(7)
    assert not is_put(object_id)
    assert len(object_id) == 20


@given(attempts, counters)
def test_an_object_knows_the_task_that_put_it(attempt, counter):
    object_id = put_object_id(tid(7), attempt, counter)
    assert task_of(object_id) == tid(7)
    assert is_put(object_id)


@given(st.sets(st.tuples(st.integers(0, 2**31), counters), min_size=2, max_size=2), counters)
@example({(0, 1), (128, 1)}, 0)
@example({(1, 1), (257, 1)}, 0)
def test_what_two_attempts_put_and_what_is_returned_never_share_an_id(puts, index):
    ids = {put_object_id(tid(7), attempt, counter) for attempt, counter in puts}
    assert len(ids | {return_object_id(tid(7), index)}) == 3


def test_the_counter_of_puts_has_an_end_that_says_so():
    put_object_id(tid(7), 0, 2**24 - 1)
    with pytest.raises(OverflowError, match=r"has put 16777216 objects, but a task can put at most 16777215"):
        put_object_id(tid(7), 0, 2**24)


def test_an_actors_handle_is_what_its_constructor_returns():
    assert actor_handle_id(aid(5)) == return_object_id(tid(5), 0)


@given(nodes, st.integers(0, 9), st.integers(0, 10_000))
def test_a_workers_address_tells_its_node_and_life(node, incarnation, counter):
    address = worker_address(node, incarnation, counter)
    assert node_of(address) == node
    assert incarnation_of(address) == incarnation


def test_no_two_lives_of_a_node_share_a_workers_address():
    assert worker_address(NodeID("node-3"), 0, 7) == "node-3/w7"
    assert worker_address(NodeID("node-3"), 1, 7) == "node-3~1/w7"


@pytest.mark.parametrize(
    ("address", "node", "incarnation", "expected"),
    [
        ("node-3/w7", "node-3", 0, True),
        ("node-3/w7", "node-3", 1, True),  # an earlier life is gone too
        ("node-3~1/w7", "node-3", 0, False),
        ("node-3~1/w7", "node-3", 1, True),
        ("node-31/w7", "node-3", 0, False),
        ("node-3", "node-3", 0, False),  # the node manager: membership speaks of it
        ("driver-1", "driver-1", 0, False),
        ("head", "head", 0, False),
    ],
)
def test_who_dies_with_a_life_of_a_node(address, node, incarnation, expected):
    assert lives_on(Address(address), NodeID(node), incarnation) is expected


@pytest.mark.parametrize(
    ("any_id", "expected"),
    [
        ("node-3", "node-3"),
        (tid(0xAB), "abababab"),
        (return_object_id(tid(0xAB), 0), "abababab:0"),
        (return_object_id(tid(0xAB), 18), "abababab:12"),
        (put_object_id(tid(0xAB), 1, 3), "abababab:81000003"),
    ],
)
def test_short_form_for_people(any_id, expected):
    assert short(any_id) == expected
