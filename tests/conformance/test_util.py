from __future__ import annotations

import io
import ipaddress
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import SerializationError
from dualray.experimental import get_local_object_locations, get_object_locations
from dualray.util import (
    deregister_serializer,
    get_node_ip_address,
    inspect_serializability,
    register_serializer,
)
from tests.conformance.support import get, node_ids

CLUSTER = {"num_cpus": 2}
pytestmark = pytest.mark.usefixtures("cluster")


def test_utilities_need_no_import_of_their_own():
    assert ray.util.get_node_ip_address() == get_node_ip_address()


def test_the_parts_that_cannot_be_pickled_are_named():
    lock = threading.Lock()

    def holds():
        return lock

    with pytest.raises(TypeError, match=r"(?s)These parts cannot be pickled:.*holds.*lock"):
        ray.cloudpickle.dumps_debug(holds)
    assert ray.cloudpickle.loads(ray.cloudpickle.dumps_debug([1, 2])) == [1, 2]


def test_a_node_knows_its_address(mode):
    address = ray.remote(get_node_ip_address)
    mine = get_node_ip_address()
    assert ipaddress.ip_address(mine).version == 4
    assert get(address.options(scheduling_strategy=on(min(node_ids()))).remote()) == mine
    if mode == "sim":
        assert get(address.options(scheduling_strategy=on("node-2")).remote()) == "10.0.0.3"


def on(node):
    from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


# ---- Where objects are ----------------------------------------------------------------------------------------------


@ray.remote
def zeros(count, gate=None):
    if gate is not None:
        gate.wait()
    return np.zeros(count)


@pytest.mark.parametrize("ask", [get_object_locations, get_local_object_locations])
def test_objects_have_locations(gate, ask):
    large, small, tiny, far = ray.put(np.zeros(100_000)), zeros.remote(1), ray.put("123"), zeros.remote(200_000)
    get([small, far])
    pending = zeros.remote(1, gate)
    found = ask([large, small, pending, far, large, tiny])
    assert list(found) == [large, small, pending, far, tiny]
    assert found[tiny]["node_ids"] == [ray.get_runtime_context().get_node_id()]
    assert found[large]["node_ids"] == [ray.get_runtime_context().get_node_id()]
    assert 800_000 < found[large]["object_size"] < 801_000
    assert found[small]["node_ids"] == []
    assert 0 < found[small]["object_size"] < 1000
    assert found[pending] == {"node_ids": [], "object_size": None, "did_spill": False}
    assert found[far]["object_size"] > 1_600_000
    assert set(found[far]["node_ids"]) <= {row["NodeID"] for row in ray.nodes()}
    assert found[far]["node_ids"]
    assert not any(each["did_spill"] for each in found.values())
    gate.open()
    get(pending)


def test_a_task_asks_where_objects_are():
    large = ray.put(np.zeros(100_000))
    asked = ray.remote(lambda refs: [each["node_ids"] for each in get_object_locations(refs, timeout_ms=5000).values()])
    assert get(asked.remote([large])) == [[ray.get_runtime_context().get_node_id()]]


def test_locations_are_those_of_a_list_of_references():
    assert get_object_locations([]) == {}
    with pytest.raises(
        TypeError, match=r"takes a list of references, not ObjectRef.*: write get_object_locations\(\[ref"
    ):
        get_object_locations(ray.put(1))
    with pytest.raises(TypeError, match=r"but the list contains 5 \(type int\)"):
        get_local_object_locations([5])


# ---- What can be pickled -------------------------------------------------------------------------------------------


class Connection:
    """Cannot be pickled by itself."""

    def __init__(self, url):
        self.url = url
        self.lock = threading.Lock()


@dataclass
class Job:
    name: str
    connection: Connection


@pytest.fixture
def connections():
    register_serializer(Connection, serializer=lambda connection: connection.url, deserializer=Connection)
    yield Connection
    deregister_serializer(Connection)


@ray.remote
def url_of(connection):
    assert connection.lock.acquire(blocking=False)
    return connection.url


def test_a_registered_serializer_is_used_everywhere(connections):
    connection = connections("db://1")
    assert get(url_of.remote(connection)) == "db://1"
    assert get(ray.put({"deep": [connection]}))["deep"][0].url == "db://1"
    assert get(ray.remote(lambda job: job.connection.url).remote(Job("j", connection))) == "db://1"
    assert get(ray.remote(lambda: connection.url).remote()) == "db://1"


def test_without_its_serializer_it_cannot_be_pickled_again(connections):
    deregister_serializer(Connection)
    deregister_serializer(Connection)
    with pytest.raises(SerializationError, match="lock"):
        url_of.remote(Connection("db://1"))


def test_a_serializer_is_for_classes_that_pickle_asks_about():
    for cls in (int, dict, type(None)):
        with pytest.raises(TypeError, match="Python always pickles"):
            register_serializer(cls, serializer=str, deserializer=str)
    with pytest.raises(TypeError, match="takes a class"):
        register_serializer("Connection", serializer=str, deserializer=str)
    with pytest.raises(TypeError, match="must be callable"):
        register_serializer(Connection, serializer=None, deserializer=str)


def test_a_serializer_for_complex_numbers():
    register_serializer(complex, serializer=lambda value: (value.real, value.imag), deserializer=lambda pair: pair)
    try:
        assert get(ray.put(1 + 2j)) == (1, 2)
        assert get(ray.remote(lambda value, *, key: (value, key)).remote(1j, key=[2j])) == ((0, 1), [(0, 2)])
    finally:
        deregister_serializer(complex)
    assert get(ray.put(1 + 2j)) == 1 + 2j


def test_the_error_has_the_path_to_what_cannot_be_pickled():
    job = Job("j", Connection("db://1"))
    with pytest.raises(SerializationError, match=r"argument 0 of url_of\['jobs'\]\[0\]\.connection\.lock \(a lock\)"):
        url_of.remote({"jobs": [job]})
    with pytest.raises(SerializationError, match=r"the value\[1\]\.connection\.lock"):
        ray.put([1, job])

    def closes_over():
        return job.name

    with pytest.raises(SerializationError, match=r"closure variable 'job'\.connection\.lock"):
        ray.remote(closes_over).remote()

    @ray.remote
    def returns_it():
        return {"job": Job("j", Connection("db://1"))}

    with pytest.raises(SerializationError, match=r"return value 0 of returns_it\['job'\]\.connection\.lock"):
        get(returns_it.remote())


def test_what_can_be_pickled_is_found_to_be():
    report = io.StringIO()
    assert inspect_serializability({"a": [1, 2]}, name="config", print_file=report) == (True, set())
    assert report.getvalue() == "config can be pickled.\n"


def test_everything_that_cannot_be_pickled_is_found():
    job, lock = Job("j", Connection("db://1")), threading.Lock()

    def work():
        return job, lock

    report = io.StringIO()
    can, failures = inspect_serializability(work, name="work", print_file=report)
    assert not can
    assert {failure.name for failure in failures} == {
        "work, closure variable 'job'.connection.lock",
        "work, closure variable 'lock'",
    }
    assert any(failure.obj is lock and failure.parent is work for failure in failures)
    assert "cannot pickle '_thread.lock' object" in report.getvalue()


def test_it_looks_no_deeper_than_it_was_told():
    _, [failure] = inspect_serializability([[[threading.Lock()]]], name="x", depth=1, print_file=io.StringIO())
    assert failure.name == "x[0]"
