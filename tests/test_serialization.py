"""Values as bytes and back: layout, references, errors that name the culprit."""

from __future__ import annotations

import functools
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.exceptions import SerializationError, TaskError
from dualray.shared.core.layout import ALIGNMENT, Serialized, deserialize
from dualray.shared.core.serialization import serialize
from dualray.shared.handles import Reference
from dualray.shared.model.ids import Address, ObjectID
from dualray.shared.model.specs import Ref


class Mark(Reference):
    """A reference for tests: pickled by its ref."""

    __slots__ = ()

    def __init__(self, ref):
        self.ref = ref

    def __reduce__(self):
        return Mark, (self.ref,)


def ref(number):
    return Ref(ObjectID(bytes([number]) * 20), Address("driver-1"))


def round_trip(value):
    return deserialize(serialize(value).to_bytes())


simple = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    simple,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_what_is_laid_out_comes_back(value):
    assert round_trip(value) == value


@given(st.lists(st.integers(0, 3000), max_size=6))
def test_the_size_is_known_before_the_bytes_are_written(lengths):
    value = [np.zeros(length, dtype=np.uint8) for length in lengths]
    serialized = serialize(value)
    target = bytearray(serialized.size_bytes)
    serialized.write_into(memoryview(target))
    assert [len(array) for array in deserialize(target)] == lengths
    assert serialized.to_bytes() == bytes(target)


def test_the_layout_is_as_documented():
    array = np.arange(100, dtype=np.uint8)
    data = serialize([array, array.copy()]).to_bytes()
    count, pickled_bytes, first_bytes, second_bytes = struct.unpack_from("<IQQQ", data, 0)
    assert (count, first_bytes, second_bytes) == (2, 100, 100)
    end = 12 + 8 * count + pickled_bytes
    for _ in range(2):
        start = -(-end // ALIGNMENT) * ALIGNMENT
        assert data[start : start + 100] == bytes(range(100))
        end = start + 100
    assert len(data) == end


def test_buffers_stay_where_they_are_and_are_read_only():
    data = bytearray(serialize(np.arange(1000.0)).to_bytes())
    array = deserialize(data)
    assert np.shares_memory(array, np.frombuffer(data, dtype=np.uint8))
    assert not array.flags.writeable


def test_buffers_are_not_copied_on_the_way_in():
    array = np.arange(100_000.0)
    serialized = serialize({"a": array})
    assert len(serialized.pickled) < 1000
    assert np.shares_memory(np.frombuffer(serialized.buffers[0], dtype=np.float64), array)


def test_arrays_that_are_not_contiguous_are_copied():
    array = np.arange(100.0)[::3]
    np.testing.assert_array_equal(round_trip(array), array)


def test_values_that_refer_to_themselves():
    items = [1]
    items.append(items)
    got = round_trip(items)
    assert got[1] is got


def test_plain_values_are_small():
    assert serialize(5).size_bytes < 30
    assert serialize("x").refs == ()
    assert isinstance(serialize(None), Serialized)


# ---- References ------------------------------------------------------------------------------------------------------


def test_references_are_noted_once_each_in_order():
    value = {"a": [Mark(ref(2)), Mark(ref(1))], "b": Mark(ref(2))}
    assert serialize(value).refs == (ref(2), ref(1))


def test_references_in_closures_and_attributes_are_noted():
    mark = Mark(ref(3))

    class Holder:
        def __init__(self):
            self.mark = Mark(ref(4))

    assert serialize(lambda: mark).refs == (ref(3),)
    assert serialize(Holder()).refs == (ref(4),)
    assert serialize(functools.partial(print, Mark(ref(5)))).refs == (ref(5),)


# ---- Exceptions ------------------------------------------------------------------------------------------------------


class Odd(Exception):
    def __init__(self, first, *, second):
        super().__init__(f"{first} {second}")
        self.second = second


class Prefixed(Exception):
    def __init__(self, what):
        super().__init__(f"prefix {what}")


class OddOs(OSError):
    def __init__(self, name, *, why):
        super().__init__(2, why, name)
        self.why = why


class OwnReduce(Exception):
    def __init__(self, a, b):
        super().__init__("own")
        self.a, self.b = a, b

    def __reduce__(self):
        return OwnReduce, (self.a, self.b)


def test_exceptions_are_not_constructed_again():
    error = round_trip(Odd(1, second=2))
    assert (type(error), error.args, error.second) == (Odd, ("1 2",), 2)
    assert str(round_trip(round_trip(Prefixed("x")))) == "prefix x"


def test_exceptions_keep_what_python_keeps_of_them():
    error = round_trip(OddOs("f.txt", why="gone"))
    assert (error.errno, error.strerror, error.filename, error.why) == (2, "gone", "f.txt", "gone")
    assert round_trip(StopIteration(5)).value == 5
    noted = ValueError("x")
    noted.add_note("a note")
    assert round_trip(noted).__notes__ == ["a note"]


def test_exceptions_that_say_how_they_are_pickled_are_listened_to():
    error = round_trip(OwnReduce(1, 2))
    assert (error.a, error.b) == (1, 2)


def test_task_errors_keep_their_cause():
    error = round_trip(TaskError("f", "the traceback", Odd(1, second=2)))
    assert (error.function_name, error.remote_traceback) == ("f", "the traceback")
    both = round_trip(error.as_instance_of_cause())
    assert isinstance(both, TaskError) and isinstance(both, Odd)
    assert both.second == 2
    assert both.cause.second == 2


class OutOfPaper(MemoryError):
    pass


@pytest.mark.parametrize("cause", [MemoryError("no more"), OutOfPaper("no more")])
def test_an_error_of_memory_is_caught_as_one(cause):
    both = round_trip(TaskError("f", "the traceback", cause).as_instance_of_cause())
    assert isinstance(both, TaskError) and isinstance(both, type(cause))
    assert (both.args, both.function_name, both.cause.args) == (("no more",), "f", ("no more",))


# ---- What cannot be pickled ------------------------------------------------------------------------------------------


class WithLock:
    def __init__(self):
        self.fine = 1
        self.inner = {"lock": threading.Lock()}


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: threading.Lock(), "the thing (a lock) cannot be pickled"),
        (lambda: [1, threading.Lock()], "the thing[1] (a lock) cannot be pickled"),
        (lambda: {"a": (1, [threading.Lock()])}, "the thing['a'][1][0] (a lock) cannot be pickled"),
        (lambda: WithLock(), "the thing.inner['lock'] (a lock) cannot be pickled"),
        (lambda: (x for x in [1]), "the thing (a generator) cannot be pickled"),
    ],
)
def test_the_error_names_the_culprit_and_the_reason(make, path):
    with pytest.raises(SerializationError) as caught:
        serialize(make(), "the thing")
    assert path in str(caught.value)
    assert "TypeError: cannot pickle" in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert caught.value.__cause__ is not None


def test_the_error_names_a_closure_variable():
    lock = threading.Lock()

    def function():
        return lock

    with pytest.raises(SerializationError, match="remote function f, closure variable 'lock' \\(a lock\\)"):
        serialize(function, "remote function f")


_global_lock = threading.Lock()


def test_the_error_names_a_global_that_a_function_uses():
    def function():
        return _global_lock

    function.__module__ = "__main__"  # by value, as the functions of a script are
    with pytest.raises(SerializationError, match="remote function f, global variable '_global_lock' \\(a lock\\)"):
        serialize(function, "remote function f")


def test_the_search_for_the_culprit_ends_in_values_that_refer_to_themselves():
    items = [threading.Lock()]
    items.append(items)
    with pytest.raises(SerializationError, match=r"the thing\[0\] \(a lock\)"):
        serialize(items, "the thing")
    looped = {}
    looped["self"] = looped
    looped["generator"] = (x for x in [1])
    with pytest.raises(SerializationError, match="a generator"):
        serialize(looped, "the thing")


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x00" * 12, b"\xff" * 40])
def test_bytes_that_are_no_value_are_refused(data):
    with pytest.raises(Exception):  # noqa: B017  # any error, but no value and no crash
        deserialize(data)
