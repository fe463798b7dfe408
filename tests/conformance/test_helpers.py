"""`dualray.util`: results as they come, words that are said once, names and marks of Ray's."""

from __future__ import annotations

import warnings

import pytest

import dualray as ray
from dualray.util import as_completed, log_once, map_unordered
from dualray.util.accelerators import NVIDIA_A100, NVIDIA_TESLA_V100
from dualray.util.annotations import Deprecated, DeveloperAPI, PublicAPI, RayDeprecationWarning
from dualray.util.check_serialize import inspect_serializability
from dualray.util.debug import disable_log_once_globally, enable_periodic_logging, reset_log_once
from tests.conformance.support import get

CLUSTER = {"num_cpus": 4, "nodes": 1}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def square(value, gate=None):
    if gate is not None:
        gate.wait()
    return value * value


@ray.remote
class Adder:
    def add(self, value):
        return value + 1


@ray.remote
def fail(value):
    raise ValueError(f"no {value}")


def test_results_come_as_they_are_ready(gate):
    late = square.remote(3, gate)
    results = as_completed([late, square.remote(1), square.remote(2)], chunk_size=1, timeout=20)
    assert sorted([next(results), next(results)]) == [1, 4]
    gate.open()
    assert list(results) == [9]
    assert sorted(as_completed([square.remote(i) for i in range(23)])) == [i * i for i in range(23)]
    [ref] = as_completed([late], yield_obj_refs=True)
    assert ref == late
    assert list(as_completed([])) == []


def test_a_result_that_is_an_error_is_raised():
    with pytest.raises(ValueError, match="no 1"):
        list(as_completed([fail.remote(1)]))
    with pytest.raises(ValueError, match="no 2"):
        list(map_unordered(fail, [2]))


def test_calls_are_made_as_their_results_are_taken():
    read = []

    def items():
        for item in range(20):
            read.append(item)
            yield item

    results = map_unordered(square, items(), backpressure_size=3, chunk_size=1)
    first = next(results)
    assert len(read) == 3
    assert sorted([first, *results]) == [i * i for i in range(20)]
    assert sorted(map_unordered(Adder.remote().add, range(5), backpressure_size=None)) == [1, 2, 3, 4, 5]
    assert [get(ref) for ref in map_unordered(square, [5], yield_obj_refs=True)] == [25]


def test_sizes_that_cannot_be_are_refused():
    refs = [square.remote(1)]
    with pytest.raises(ValueError, match=r"chunk_size` must be >= 1, not 0"):
        list(as_completed(refs, chunk_size=0))
    with pytest.raises(ValueError, match="instead of `num_returns`"):
        list(as_completed(refs, num_returns=1))
    with pytest.raises(ValueError, match="backpressure_size must be positive"):
        list(map_unordered(square, [1], backpressure_size=0))
    assert get(refs) == [1]


def test_words_are_said_once():
    reset_log_once()
    assert [log_once("a"), log_once("a"), log_once("b")] == [True, False, True]
    reset_log_once("a")
    assert [log_once("a"), log_once("b")] == [True, False]
    reset_log_once()


def test_words_are_not_said_at_all_when_it_is_switched_off(monkeypatch):
    from dualray.util import debug

    monkeypatch.setattr(debug, "_said", type(debug._said)())
    enable_periodic_logging()
    assert log_once("a")
    assert not log_once("a")
    debug._said.last_s -= 61
    assert not log_once("a")
    assert log_once("a")
    disable_log_once_globally()
    assert not log_once("new")


def test_marks_change_nothing_but_what_they_warn_of():
    @PublicAPI
    def public():
        return 1

    @PublicAPI(stability="beta")
    @DeveloperAPI
    class Both:
        pass

    @Deprecated
    def quiet():
        return 2

    @Deprecated(message="Use `public`.", warning=True)
    def old():
        """The third."""
        return 3

    @Deprecated(warning=True)
    class Old:
        def __init__(self, value):
            self.value = value

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (public(), quiet(), type(Both()).__name__) == (1, 2, "Both")
    with pytest.warns(RayDeprecationWarning, match=r"old is deprecated and will be removed\. Use `public`\."):
        assert old() == 3
    with pytest.warns(RayDeprecationWarning, match="Old is deprecated"):
        assert Old(4).value == 4
    assert old.__doc__.startswith("The third.\n\n")
    assert old.__doc__.endswith("old is deprecated and will be removed. Use `public`.")
    assert Old.__doc__.endswith("Old is deprecated and will be removed.")
    assert "quiet is deprecated" in quiet.__doc__
    with pytest.raises(ValueError, match="stability='new'"):
        PublicAPI(stability="new")


def test_names_are_rays():
    assert (NVIDIA_TESLA_V100, NVIDIA_A100) == ("V100", "A100")
    assert inspect_serializability(1)[0]
