"""What a node manager may ask of its machine, and that runners and reports ask nothing else of it."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from dualray.shared.machines.head.queries import HeadQueries
from dualray.shared.machines.node.queries import NodeQueries
from dualray.shared.machines.owner.queries import OwnerQueries
from dualray.shared.model.commands import SpillObject
from dualray.shared.model.events import (
    DrainAsked,
    GpuLost,
    LeasePassedOn,
    LeaseRequested,
    MemoryExceeded,
    ObjectRequested,
    ObjectSpilled,
    WorkerExited,
)
from dualray.shared.model.ids import Address, LeaseID, NodeID, RequestID
from dualray.shared.model.resources import UNITS
from dualray.shared.model.specs import Strategy, StrategyKind
from dualray.shared.model.states import WorkerState
from tests.shared.builders import DRIVER, OTHER, NodeStepper, cpus, hint, of, oid, shape
from tests.structure import ROOT

W0, W1 = Address("node-0/w0"), Address("node-0/w1")


@pytest.fixture
def node() -> NodeStepper:
    """Two CPUs and two workers that are up and idle."""
    return NodeStepper(total=cpus(2)).with_workers(2)


def why(node: NodeStepper, *, now_ns: int = 0, placed: bool = False, **asked) -> list[str]:
    request = LeaseRequested(
        request_id=RequestID("driver-1#9"), owner=DRIVER, shape=asked.pop("shape", shape()), count=1, placed=placed
    )
    return node.machine.why_not_here(request, now_ns)


# ---- Workers and leases ----------------------------------------------------------------------------------------------


def test_a_worker_is_counted_by_its_state(node):
    node.machine.scheduler.worker_pool.start_worker()
    node.ask()
    states = node.machine.worker_states()
    assert states == Counter({WorkerState.IDLE: 1, WorkerState.LEASED: 1, WorkerState.STARTING: 1})
    assert node.machine.started_workers() == [W0, W1]


def test_the_lease_of_a_worker_ends_with_the_worker(node):
    node.ask()
    leased = next(worker for worker in (W0, W1) if node.machine.lease_of(worker) is not None)
    assert node.machine.lease_of(leased).owner == DRIVER
    node(WorkerExited(worker=leased, reason="SIGKILL"))
    assert node.machine.lease_of(leased) is None
    assert node.machine.lease_of(Address("node-0/w7")) is None


def test_leases_are_counted_with_and_without_a_worker():
    node = NodeStepper(total=cpus(2)).with_workers(1)
    node.ask(count=2)
    node.ask(placed=True, request="driver-1#1")
    assert node.machine.lease_counts() == {"granted": 1, "waiting": 1, "without_worker": 1}


def test_resources_are_those_that_no_lease_has_taken(node):
    node.ask()
    assert node.machine.resources_total["CPU"] == 2 * UNITS
    assert node.machine.resources_free["CPU"] == UNITS


def test_memory_is_freed_until_the_chosen_worker_has_exited(node):
    node.ask()
    assert not node.machine.is_freeing_memory()
    node(MemoryExceeded(used_bytes=9, limit_bytes=8, workers=((W0, 5), (W1, 4))))
    assert node.machine.is_freeing_memory()
    for worker in (W0, W1):
        node(WorkerExited(worker=worker, reason="SIGKILL"))
    assert not node.machine.is_freeing_memory()


def test_a_gpu_that_is_lost_is_a_gpu_no_more():
    node = NodeStepper(total=cpus(2, gpus=2))
    assert [node.machine.has_gpu(gpu) for gpu in (0, 1, 2)] == [True, True, False]
    node(GpuLost(gpu=1))
    assert [node.machine.has_gpu(gpu) for gpu in (0, 1, 2)] == [True, False, False]


# ---- Why not here ----------------------------------------------------------------------------------------------------


def test_nothing_speaks_against_a_request_that_fits(node):
    assert why(node) == []


def test_what_is_taken_is_named_with_its_holders(node):
    node.ask(count=2)
    [reason] = why(node)
    assert reason.startswith("0 of 2 CPU free, and it needs 1; held by 2 x ")
    assert why(node, placed=True) == [reason]


def test_a_lease_that_serves_another_function_has_its_name(node):
    node.ask(count=2)
    lease_id = next(iter(node.machine.scheduler.leases))
    node(LeasePassedOn(lease_id=lease_id, name="another"), LeasePassedOn(lease_id=LeaseID("gone"), name="late"))
    [reason] = why(node)
    assert "1 x another" in reason


def test_a_node_that_drains_says_so(node):
    node(DrainAsked())
    assert why(node) == ["the node is draining"]


def test_the_head_decides_a_strategy(node):
    spread = shape(strategy=Strategy(kind=StrategyKind.SPREAD))
    [reason] = why(node, shape=spread)
    assert "SPREAD" in reason
    assert reason.endswith("the head decides")


def test_a_request_stands_behind_those_that_wait(node):
    node.ask(count=2)
    node.ask(placed=True, request="driver-1#1")
    assert "1 other requests wait on this node before it" in why(node)


def test_a_driver_that_gave_a_lease_back_waits_its_turn(node):
    node.machine.scheduler.waits_until_ns[DRIVER] = 5
    assert why(node, now_ns=4) == ["the driver has just given a lease back for another driver"]
    assert why(node, now_ns=5) == []


def test_arguments_on_other_nodes_speak_against_a_node():
    node = NodeStepper(total=cpus(2), locality_bytes_max=100, store_bytes=10_000).with_workers(2)
    far = shape(deps=(hint(oid(1), 60), hint(oid(2), 60)))
    [reason] = why(node, shape=far)
    assert reason.startswith("120 bytes of its arguments are on other nodes, more than locality_bytes_max (100)")
    node.store(oid(1), 60)
    assert why(node, shape=far) == []


# ---- Objects ---------------------------------------------------------------------------------------------------------


def test_an_object_is_unsealed_until_its_writer_seals_it(node):
    node.reserve(oid(1), 60, by=DRIVER)
    assert node.machine.unsealed(oid(1), DRIVER).size_bytes == 60
    assert node.machine.unsealed(oid(1), OTHER) is None
    assert not node.machine.is_here(oid(1))
    node.seal(oid(1), by=DRIVER)
    assert node.machine.unsealed(oid(1), DRIVER) is None
    assert node.machine.is_here(oid(1))
    assert node.machine.is_readable(oid(1))


def test_the_store_is_measured_in_memory_and_on_disk():
    node = NodeStepper(store_bytes=1000, eviction_policy="spill", spill_bytes_max=1500)
    node.store(oid(1), 600, remakeable=False)
    machine = node.machine
    assert (machine.store_capacity_bytes(), machine.store_used_bytes(), machine.store_spilled_bytes()) == (1000, 600, 0)
    commands = node.reserve(oid(2), 500)
    assert [command.object_id for command in of(commands, SpillObject)] == [oid(1)]
    node(ObjectSpilled(object_id=oid(1), elapsed_ns=1))
    node.seal(oid(2))
    assert machine.size_of(oid(2)) == 500
    assert (machine.object_count(), machine.store_used_bytes(), machine.store_spilled_bytes()) == (1, 500, 600)
    complete = [(stored.object_id, is_spilled) for stored, is_spilled in machine.complete_objects()]
    assert complete == [(oid(2), False), (oid(1), True)]


def test_an_object_that_is_being_written_is_not_complete(node):
    node.reserve(oid(1))
    assert node.machine.complete_objects() == []


def test_a_later_life_of_a_node_has_returned(node):
    node.store(oid(1))
    node(ObjectRequested(object_id=oid(1), to=NodeID("node-1"), incarnation=2))
    assert node.machine.has_returned(NodeID("node-1"), 1)
    assert not node.machine.has_returned(NodeID("node-1"), 2)


def test_what_is_kept_is_named(node):
    assert not any(node.machine.kept().values())
    few = node.machine.things()
    node.ask(count=2)
    node.ask(placed=True, request="driver-1#1")
    node.store(oid(1))
    node.want(oid(2))
    kept = {what: len(things) for what, things in node.machine.kept().items()}
    assert kept == {"objects": 1, "writers in line": 0, "wants": 1, "leases": 2, "slots": 1}
    assert node.machine.things() == few + 2


# ---- Nothing else is read --------------------------------------------------------------------------------------------

PARTS = {
    name
    for queries in (OwnerQueries, NodeQueries, HeadQueries)
    for name, annotation in queries.__annotations__.items()
    if annotation[0].isupper() and name != "config"
}


def parts_read(text: str) -> list[str]:
    """Each place in a module's source that reads a part of a machine: `machine.store`, `self.manager.scheduler`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Attribute) and node.attr in PARTS):
            continue
        of_what = node.value
        name = of_what.attr if isinstance(of_what, ast.Attribute) else getattr(of_what, "id", "")
        if name.lstrip("_") in ("machine", "manager"):
            found.append(f"line {node.lineno}: {name}.{node.attr}")
    return found


def test_runners_and_reports_read_no_part_of_a_machine():
    for path in sorted((ROOT / "dualray").rglob("*.py")):
        name = path.relative_to(ROOT)
        if name.is_relative_to("dualray/shared/machines"):
            continue
        assert parts_read(path.read_text(encoding="utf-8")) == [], name


def test_a_part_that_is_read_is_found():
    assert {"scheduler", "store", "transfer", "values", "tasks", "leases"} <= PARTS
    assert parts_read("x = self.manager.store.objects") == ["line 1: manager.store"]
    assert parts_read("x = core.machine.tasks") == ["line 1: machine.tasks"]
    assert parts_read("x = node.store") == []
