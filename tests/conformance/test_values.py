from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions

import numpy as np
import pytest

import dualray as ray
from tests.conformance.support import MIB, get, storage_of

pytestmark = pytest.mark.usefixtures("cluster")

LARGE = MIB // 8  # float64 elements: a MiB, which goes to the store; SMALL stays inline
SMALL = 100


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Node:
    def __init__(self, value):
        self.value = value
        self.parent = None
        self.children = []


@ray.remote
def echo(value):
    return value


@ray.remote
def put_and_return_reference(value):
    return [ray.put(value)]


@ray.remote
def both(*args, **kwargs):
    return args, kwargs


def through_put(value):
    return get(ray.put(value))


def test_many_small_values_are_passed_by_reference():
    values = [
        0,
        -1,
        2**100,
        1.5,
        True,
        None,
        "",
        "text",
        "x" * 500,
        b"",
        b"bytes",
        1j,
        (1, 2),
        [1, [2]],
        {"a": 1},
        Colour.RED,
    ]
    refs = [ray.put(value) for value in values] + [echo.remote(value) for value in values]
    get(refs)
    args, kwargs = get(both.remote(*refs, 7, refs[0], refs[9], first=refs[7], second=refs[13], third="plain"))
    expected = (*values, *values, 7, values[0], values[9])
    assert args == expected
    assert [type(value) for value in args] == [type(value) for value in expected]
    assert kwargs == {"first": "text", "second": [1, [2]], "third": "plain"}


def test_one_list_passed_twice_is_one_list():
    @ray.remote
    def are_one(first, second):
        return first is second

    ref = ray.put([1])
    assert get(are_one.remote(ref, ref))


def through_task(value):
    return get(echo.remote(value))


def through_put_in_a_task(value):
    [ref] = get(put_and_return_reference.remote(value))
    return get(ref)


WAYS = (through_put, through_task, through_put_in_a_task)
every_way = pytest.mark.parametrize("way", WAYS)
both_sizes = pytest.mark.parametrize("length", [SMALL, LARGE], ids=["inline", "in the store"])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(10**40),
        1.5,
        float("inf"),
        2 + 3j,
        "text ü",
        b"bytes",
        bytearray(b"ab"),
        (),
        [1, [2, [3]]],
        {"a": {1: (2, 3)}},
        {1, 2},
        frozenset({2, 3}),
        range(5),
        slice(1, 2),
        Colour.RED,
        Point(1.0, 2.0),
        collections.OrderedDict(a=1),
        collections.deque([1, 2], maxlen=3),
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        int,
        ValueError,
        Ellipsis,
        "x" * MIB,
        b"x" * MIB,
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_come_back_equal(value):
    for way in WAYS:
        got = way(value)
        assert got == value, way.__name__
        assert type(got) is type(value), way.__name__


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10),
        np.arange(LARGE, dtype=np.float64),
        np.zeros((0, 3)),
        np.array(5.0),
        np.asfortranarray(np.arange(float(LARGE)).reshape(64, -1)),
        np.arange(float(2 * LARGE))[::2],
        np.arange(float(LARGE)).reshape(64, -1).T,
        np.array([1, "two", None], dtype=object),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.array(["ab", "cde"]),
        np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_come_back_equal(array):
    for way in WAYS:
        got = way(array)
        np.testing.assert_array_equal(got, array, way.__name__)
        assert (got.dtype, got.shape) == (array.dtype, array.shape), way.__name__
        assert type(got) is type(array), way.__name__


@every_way
@pytest.mark.parametrize("scalar", [np.float32(1.5), np.int8(3), np.bool_(True), np.datetime64("2020-01-01")])
def test_numpy_scalars_keep_their_type(way, scalar):
    assert way(scalar) == scalar
    assert type(way(scalar)) is type(scalar)


@every_way
def test_functions_lambdas_and_local_classes_are_values(way):
    factor = 3

    class Local:
        def times(self, x):
            return factor * x

    assert way(lambda x: x + factor)(1) == 4
    assert way(Local)().times(2) == 6
    assert way(Local()).times(2) == 6
    assert isinstance(way(Local()), Local)


# ---- No copies, and no changes -------------------------------------------------------------------------------------


@both_sizes
@every_way
def test_arrays_are_read_only(way, length):
    got = way(np.ones(length))
    assert not got.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        got[0] = 2


def test_large_arrays_are_read_without_a_copy():
    ref = ray.put(np.arange(float(LARGE)))
    first, second = get(ref), get(ref)
    assert first is not second
    assert storage_of(first) == storage_of(second)
    assert first.ctypes.data % 64 == 0


@every_way
def test_arrays_in_messages_are_aligned(way):
    results = [way(np.ones(length)) for length in range(4_000, 4_020)]
    assert [array.ctypes.data % 64 for array in results] == [0] * len(results)
    assert not any(array.flags.writeable for array in results)


def test_one_get_of_a_duplicate_does_not_copy_either():
    ref = echo.remote(np.arange(float(LARGE)))
    first, second = get([ref, ref])
    assert storage_of(first) == storage_of(second)


@both_sizes
def test_a_tasks_array_arguments_are_read_only_and_shared(length):
    @ray.remote
    def look(direct, again, inside):
        array = ray.get(inside[0], timeout=10)
        return direct.flags.writeable, again.flags.writeable, array.flags.writeable, np.shares_memory(direct, again)

    ref = ray.put(np.ones(length))
    assert get(look.remote(ref, ref, [ref])) == (False, False, False, True)


def test_arrays_inside_other_values_are_not_copied_either():
    ref = ray.put({"weights": [np.ones(LARGE), np.zeros(LARGE)]})
    first, second = get(ref)["weights"][0], get(ref)["weights"][0]
    assert storage_of(first) == storage_of(second)


@both_sizes
def test_changing_an_array_after_put_does_not_change_the_object(length):
    array = np.zeros(length)
    ref = ray.put(array)
    array[:] = 1
    assert not get(ref).any()


def test_changing_a_list_after_put_does_not_change_the_object():
    items = [1, 2]
    ref = ray.put(items)
    items.append(3)
    assert get(ref) == [1, 2]


def test_changing_what_get_returned_does_not_change_the_object():
    ref = ray.put({"a": [1]})
    get(ref)["a"].append(2)
    assert get(ref) == {"a": [1]}


def test_changing_an_argument_after_the_call_does_not_change_what_the_task_sees(gate):
    @ray.remote
    def late(items, array):
        gate.wait()
        return items, float(array.sum())

    items, array = [1], np.zeros(LARGE)
    ref = late.remote(items, array)
    items.append(2)
    array[:] = 1
    gate.open()
    assert get(ref) == ([1], 0.0)


def test_an_array_outlives_its_reference_and_the_space_is_not_reused_under_it():
    array = get(ray.put(np.full(LARGE, 7.0)))
    for fill in range(20):
        assert get(ray.put(np.full(LARGE, float(fill))))[0] == fill
    assert (array == 7.0).all()


# ---- Identity ------------------------------------------------------------------------------------------------------


@every_way
def test_recursive_values_refer_to_themselves(way):
    items = [1]
    items.append(items)
    got = way(items)
    assert got[1] is got

    node, child = Node("a"), Node("b")
    node.children.append(child)
    child.parent = node
    got_node = way(node)
    assert got_node.children[0].parent is got_node


@every_way
@both_sizes
def test_what_is_shared_inside_a_value_stays_shared(way, length):
    array, items = np.ones(length), [1]
    got = way({"a": array, "b": array, "c": [items, items]})
    assert got["a"] is got["b"]
    assert got["c"][0] is got["c"][1]


def test_arrow_tables_come_back_equal_and_without_a_copy():
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": np.arange(LARGE), "y": np.arange(float(LARGE))})
    ref = ray.put(table)
    first, second = get(ref), get(ref)
    assert first.equals(table)
    allocated = arrow.total_allocated_bytes()
    third = get(ref)
    assert third.equals(second)
    assert arrow.total_allocated_bytes() == allocated, "reading a table has copied it"


def test_pandas_frames_come_back_equal_and_without_a_copy():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"x": np.arange(float(LARGE)), "y": np.ones(LARGE), "label": pandas.Series(["a", "b"] * (LARGE // 2))}
    )
    ref = ray.put(frame)
    first, second = get(ref), get(ref)
    pandas.testing.assert_frame_equal(first, frame)
    assert storage_of(first["x"].to_numpy()) == storage_of(second["x"].to_numpy())
    assert not first["x"].to_numpy().flags.writeable
    assert get(ray.remote(lambda given: float(given["y"].sum())).remote(ref)) == LARGE


# ---- Classes that say how they are pickled, and what closures take along -------------------------------------------


class Connection:
    """Its socket cannot travel: it is opened again where it arrives."""

    def __init__(self, address):
        self.address = address
        self.socket = (lambda: address,)  # a lambda in here is not what is sent

    def __reduce__(self):
        return Connection, (self.address,)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Reading:
    at: int
    values: list[float] = dataclasses.field(default_factory=list)


@every_way
def test_a_class_says_how_it_is_pickled(way):
    got = way(Connection("node-1"))
    assert (got.address, got.socket[0]()) == ("node-1", "node-1")


@every_way
def test_frozen_dataclasses_with_slots(way):
    got = way(Reading(3, [1.5]))
    assert got == Reading(3, [1.5])
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.at = 4


def test_a_closure_takes_references_along():
    large = ray.put(np.arange(LARGE))
    small = ray.put(2)

    @ray.remote
    def scaled_sum():
        return int(ray.get(large).sum()) * ray.get(small)

    @ray.remote
    class Holder:
        def total(self):
            return int(ray.get(large).sum())

    expected = LARGE * (LARGE - 1) // 2
    assert get(scaled_sum.remote()) == 2 * expected
    assert get(Holder.remote().total.remote()) == expected
