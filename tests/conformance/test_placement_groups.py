from __future__ import annotations

import os
import time

import pytest

import dualray as ray
from dualray.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    PlacementGroupUnschedulableError,
    RaySystemError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from dualray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from dualray.util.state import list_workers
from tests.conformance.support import eventually, get, node_ids, resources_are_free

CLUSTER = {"num_cpus": 4, "num_gpus": 2, "resources": {"disk": 2}}
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def make():
    """Make groups that are removed after the test."""
    made = []

    def make_one(*bundles, **options):
        group = placement_group(list(bundles), **options)
        made.append(group)
        return group

    yield make_one
    for group in made:
        remove_placement_group(group)


def within(group, index=-1, **options):
    return PlacementGroupSchedulingStrategy(group, index, **options)


@ray.remote
def whereabouts():
    context = ray.get_runtime_context()
    return context.get_node_id(), ray.get_gpu_ids(), context.get_assigned_resources()


@ray.remote
class Holder:
    def whereabouts(self):
        context = ray.get_runtime_context()
        return context.get_node_id(), ray.get_gpu_ids(), context.get_assigned_resources()

    def sleep(self):
        time.sleep(30)


def state_of(group):
    return placement_group_table(group)["state"]


def ended(worker_id):
    return all(row.state == "DEAD" for row in list_workers() if row.worker_id == worker_id)


# ---- Made ----------------------------------------------------------------------------------------------------------


def test_a_group_is_ready_when_its_bundles_are_reserved(make):
    group = make({"CPU": 2}, {"CPU": 1, "GPU": 1})
    assert get(group.ready()) == group
    assert group.wait(20)
    assert group.bundle_specs == [{"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert group.bundle_count == 2
    eventually(lambda: resources_are_free(CPU=3, GPU=1), "what is reserved is not available to others")


def test_the_table_says_where_the_bundles_are(make):
    group = make({"CPU": 1}, {"disk": 0.5}, strategy="STRICT_PACK", name="table")
    get(group.ready())
    row = placement_group_table(group)
    assert row["placement_group_id"] == group.id.hex()
    assert (row["name"], row["strategy"], row["state"], row["reason"]) == ("table", "STRICT_PACK", "CREATED", "")
    assert row["bundles"] == {0: {"CPU": 1.0}, 1: {"disk": 0.5}}
    assert row["bundles_to_node_id"][0] == row["bundles_to_node_id"][1] != ""
    assert placement_group_table()[group.id.hex()] == row


def test_a_group_has_a_name(make):
    group = make({"CPU": 1}, name="named")
    assert get_placement_group("named") == group
    assert get_placement_group("named").bundle_specs == [{"CPU": 1.0}]
    with pytest.raises(PlacementGroupUnschedulableError, match="a group exists with the name 'named'") as refused:
        make({"CPU": 1}, name="named")
    assert isinstance(refused.value, RaySystemError), "as in Ray"
    with pytest.raises(ValueError, match=r"Did you mean 'named'\?"):
        get_placement_group("nameed")
    remove_placement_group(group)
    with pytest.raises(ValueError, match="no placement group has the name 'named'"):
        get_placement_group("named")
    again = make({"CPU": 1}, name="named")
    assert get_placement_group("named") == again != group


def test_a_group_waits_until_there_is_room(cluster, make, gate):
    @ray.remote(num_cpus=4)
    def hold():
        gate.wait()

    held = [hold.remote() for _ in range(cluster.nodes)]
    eventually(lambda: "CPU" not in ray.available_resources(), "all CPUs are held")
    group = make({"CPU": 4})
    task = whereabouts.options(scheduling_strategy=within(group)).remote()
    assert not group.wait(0.2)
    assert state_of(group) == "PENDING"
    assert "no room" in placement_group_table(group)["reason"]
    gate.open()
    assert group.wait(20)
    assert get(task)[2] == {"CPU": 1.0}
    get(held)


def test_all_bundles_are_reserved_or_none(cluster, make):
    first = make(*[{"disk": 2}] * cluster.nodes)
    assert first.wait(20)
    second = make({"CPU": 1}, {"disk": 1})
    assert not second.wait(0.2)
    assert ray.available_resources()["CPU"] == 4.0 * cluster.nodes
    remove_placement_group(first)
    assert second.wait(20)


def test_what_can_never_be_placed_is_refused_and_says_what_lacks(cluster):
    with pytest.raises(PlacementGroupUnschedulableError, match=r"bundle 1 demands 5 CPU.*lacks 1 CPU"):
        placement_group([{"CPU": 1}, {"CPU": 5}])
    with pytest.raises(PlacementGroupUnschedulableError, match=r"STRICT_PACK needs one node.*lacks 2 CPU"):
        placement_group([{"CPU": 3}, {"CPU": 3}], strategy="STRICT_PACK")
    with pytest.raises(PlacementGroupUnschedulableError, match=rf"STRICT_SPREAD needs {cluster.nodes + 1} nodes"):
        placement_group([{"CPU": 1}] * (cluster.nodes + 1), strategy="STRICT_SPREAD")
    with pytest.raises(PlacementGroupUnschedulableError, match=r"bundles demand .* CPU, and all .* lack 1 CPU"):
        placement_group([*[{"CPU": 4}] * cluster.nodes, {"CPU": 1}])
    with pytest.raises(PlacementGroupUnschedulableError, match="bundle 0 demands 1 tape"):
        placement_group([{"tape": 1}])
    with pytest.raises(PlacementGroupUnschedulableError, match="bundles_max"):
        placement_group([{"CPU": 0.0001}] * 1001)


@pytest.mark.parametrize(
    ("bundles", "options", "message"),
    [
        ([], {}, "bundles must not be empty"),
        ([{}], {}, "bundle 0, {}, reserves nothing"),
        ([{"CPU": 0}], {}, "reserves nothing"),
        ([{"CPU": -1}], {}, "bundle 0: num_cpus=-1"),
        ({"CPU": 1}, {}, "must be a list"),
        ("x", {}, "must be a list"),
        ([{3: 1}], {}, "bundle 0"),
        ([1], {}, "bundle 0 is 1"),
        ([{"CPU": 1}], {"strategy": "PACKED"}, "Did you mean 'PACK'"),
        ([{"CPU": 1}], {"lifetime": "long"}, "lifetime='long'"),
        ([{"CPU": 1}], {"bundle_label_selector": ["zone"]}, "bundle_label_selector"),
        ([{"CPU": 1}], {"bundle_label_selector": [{}, {}]}, "2 selectors for 1 bundles"),
    ],
)
def test_a_wrong_group_is_refused(bundles, options, message):
    with pytest.raises(ValueError, match=message):
        placement_group(bundles, **options)


def test_a_wrong_type_of_a_group_is_also_a_type_error():
    for bundles, options in (("x", {}), ([{"CPU": "one"}], {}), ([{"CPU": 1}], {"name": 3})):
        with pytest.raises(TypeError):
            placement_group(bundles, **options)


# ---- Run in --------------------------------------------------------------------------------------------------------


def test_tasks_and_actors_run_in_their_bundle(make):
    group = make({"CPU": 1}, {"CPU": 2, "GPU": 1}, strategy="SPREAD")
    get(group.ready())
    nodes = placement_group_table(group)["bundles_to_node_id"]
    node, gpus, held = get(whereabouts.options(scheduling_strategy=within(group, 0)).remote())
    assert (node, gpus, held) == (nodes[0], [], {"CPU": 1.0})
    task = whereabouts.options(num_cpus=0, num_gpus=1, scheduling_strategy=within(group, 1))
    node, gpus, held = get(task.remote())
    assert (node, len(gpus), held) == (nodes[1], 1, {"GPU": 1.0})
    holder = Holder.options(num_gpus=1, num_cpus=2, scheduling_strategy=within(group, 1)).remote()
    assert get(holder.whereabouts.remote()) == (nodes[1], gpus, {"CPU": 2.0, "GPU": 1.0})
    assert ray.wait([task.remote()], timeout=0.2)[0] == []


def test_a_bundle_bounds_what_runs_in_it(make, gate):
    group = make({"CPU": 1}, {"CPU": 1}, strategy="PACK")

    @ray.remote
    def hold():
        gate.wait()
        return True

    in_first = [hold.options(scheduling_strategy=within(group, 0)).remote() for _ in range(2)]
    get(group.ready())
    second = whereabouts.options(scheduling_strategy=within(group, 1)).remote()
    assert get(second)[2] == {"CPU": 1.0}
    assert ray.wait(in_first, num_returns=2, timeout=0.2)[0] == []
    gate.open()
    assert get(in_first) == [True, True]


def test_any_bundle_means_all_of_them(make, gate, tally):
    group = make({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, strategy="SPREAD")

    @ray.remote
    def hold():
        tally.add()
        gate.wait()
        return True

    holding = [hold.options(scheduling_strategy=within(group)).remote() for _ in range(3)]
    eventually(lambda: tally.count == 3, "all bundles are in use")
    more = whereabouts.options(scheduling_strategy=within(group)).remote()
    assert ray.wait([more], timeout=0.3)[0] == []
    gate.open()
    assert get(holding) == [True, True, True]
    assert get(more)[2] == {"CPU": 1.0}


def test_gpus_in_bundles_are_nobody_elses(make):
    node = NodeAffinitySchedulingStrategy(min(node_ids()))
    group = make({"GPU": 1}, {"GPU": 0.5}, {"GPU": 0.5}, strategy="STRICT_PACK")
    get(group.ready())
    home = placement_group_table(group)["bundles_to_node_id"][0]
    task = whereabouts.options(num_cpus=0, num_gpus=1, scheduling_strategy=within(group, 0))
    whole = get(task.remote())[1]
    half = whereabouts.options(num_cpus=0, num_gpus=0.5)
    halves = [get(half.options(scheduling_strategy=within(group, index)).remote())[1] for index in (1, 2)]
    assert len(whole) == 1
    assert halves[0] == halves[1] != whole
    outside = half.options(scheduling_strategy=NodeAffinitySchedulingStrategy(home)).remote()
    assert ray.wait([outside], timeout=0.2)[0] == []
    remove_placement_group(group)
    assert get(outside)[0] == home
    assert node.node_id == min(node_ids())


def test_a_blocked_task_lends_the_cpu_of_its_bundle(make):
    group = make({"CPU": 1})

    @ray.remote
    def parent():
        return ray.get(whereabouts.options(scheduling_strategy=within(group, 0)).remote())[2]

    assert get(parent.options(scheduling_strategy=within(group, 0)).remote()) == {"CPU": 1.0}


def test_a_demand_that_no_bundle_has_is_refused(make):
    group = make({"CPU": 1}, {"CPU": 2})
    with pytest.raises(ValueError, match=r"demands 3 CPU, but every bundle.*\{'CPU': 3\} cannot fit"):
        whereabouts.options(num_cpus=3, scheduling_strategy=within(group)).remote()
    with pytest.raises(ValueError, match=r"demands 2 CPU, but bundle 0"):
        whereabouts.options(num_cpus=2, scheduling_strategy=within(group, 0)).remote()
    with pytest.raises(ValueError, match="but every bundle"):
        Holder.options(num_gpus=1, scheduling_strategy=within(group)).remote()
    for index, error in ((2, ValueError), (-2, ValueError), ("0", TypeError)):
        with pytest.raises(error, match="placement_group_bundle_index"):
            whereabouts.options(scheduling_strategy=within(group, index))
    with pytest.raises(TypeError, match="placement_group="):
        whereabouts.options(scheduling_strategy=within("group"))


def test_a_groups_handle_can_be_passed_on(make):
    group = make({"CPU": 1})

    @ray.remote(num_cpus=0)
    def use(group):
        assert isinstance(group, PlacementGroup)
        return ray.get(whereabouts.options(scheduling_strategy=within(group, 0)).remote())

    assert get(use.remote(group))[2] == {"CPU": 1.0}
    assert get(use.remote([group][0]))[2] == {"CPU": 1.0}
    assert hash(group) == hash(get_current(group))


def get_current(group):
    return get(ray.remote(get_current_placement_group).options(scheduling_strategy=within(group)).remote())


# ---- Captured ------------------------------------------------------------------------------------------------------


@ray.remote
def family(**options):
    """Where a child goes, and an actor, that say nothing of it."""

    @ray.remote
    class Child:
        def group(self):
            return get_current_placement_group()

    child = ray.remote(get_current_placement_group).options(num_cpus=1, **options).remote()
    actor = Child.options(num_cpus=1, **options).remote()
    return ray.get([child, actor.group.remote()])


def test_children_are_captured_when_the_strategy_says_so(make):
    group = make({"CPU": 1}, {"CPU": 2})
    captured = family.options(scheduling_strategy=within(group, 0, placement_group_capture_child_tasks=True))
    assert get(captured.remote()) == [group, group]
    assert get(family.options(scheduling_strategy=within(group, 0)).remote()) == [None, None]
    assert get_current_placement_group() is None


def test_children_can_say_that_they_are_not_captured(make):
    # Outside the group are 3 CPUs: the first family's actor may still hold one when the second one's child and actor
    # come, and with fewer the actor could take the last one, for life, before the child that its family waits for.
    group = make({"CPU": 1})
    captured = family.options(scheduling_strategy=within(group, placement_group_capture_child_tasks=True))
    assert get(captured.remote(scheduling_strategy=within(None))) == [None, None]
    assert get(captured.remote(scheduling_strategy="DEFAULT")) == [None, None]


def test_grandchildren_are_captured_too(make):
    group = make({"CPU": 2})

    @ray.remote(num_cpus=0)
    def parent():
        return ray.get(family.options(num_cpus=0).remote())

    captured = parent.options(scheduling_strategy=within(group, placement_group_capture_child_tasks=True))
    assert get(captured.remote()) == [group, group]


# ---- Removed -------------------------------------------------------------------------------------------------------


def test_removal_ends_what_runs_in_the_group(make, tally):
    group = make({"CPU": 1}, {"CPU": 1})

    @ray.remote
    def sleep():
        tally.add(os.getpid())
        time.sleep(30)

    running = sleep.options(scheduling_strategy=within(group, 0)).remote()
    holder = Holder.options(num_cpus=1, scheduling_strategy=within(group, 1)).remote()
    get(holder.whereabouts.remote())
    called = holder.sleep.remote()
    eventually(lambda: tally.count == 1, "the task runs")
    waiting = whereabouts.options(scheduling_strategy=within(group, 0)).remote()
    remove_placement_group(group)
    with pytest.raises(TaskPlacementGroupRemoved, match="sleep") as ran:
        get(running)
    assert isinstance(ran.value, WorkerCrashedError), "as in Ray"
    with pytest.raises(TaskPlacementGroupRemoved, match="whereabouts") as waited:
        get(waiting)
    assert not isinstance(waited.value, WorkerCrashedError)
    with pytest.raises(ActorDiedError, match="was removed"):
        get(called)
    assert state_of(group) == "REMOVED"
    eventually(resources_are_free, "the node has its resources back")
    remove_placement_group(group)


def test_what_comes_after_the_removal_is_refused(make):
    group = make({"CPU": 1})
    get(group.ready())
    remove_placement_group(group)
    with pytest.raises(TaskPlacementGroupRemoved):
        get(whereabouts.options(scheduling_strategy=within(group)).remote())
    with pytest.raises(ActorPlacementGroupRemoved):
        get(Holder.options(scheduling_strategy=within(group)).remote().whereabouts.remote())
    with pytest.raises(TaskPlacementGroupRemoved):
        get(group.ready())
    with pytest.raises(TaskPlacementGroupRemoved):
        group.wait(20)


def test_a_worker_of_a_removed_group_gets_nothing_more(make):
    group = make({"CPU": 1})
    task = whereabouts.options(scheduling_strategy=within(group))
    for _ in range(20):
        get(task.remote())  # its worker stays leased
    remove_placement_group(group)
    with pytest.raises(TaskPlacementGroupRemoved):
        get(task.remote())


def test_a_group_that_waits_can_be_removed(cluster, make):
    first = make(*[{"disk": 2}] * cluster.nodes)
    get(first.ready())
    second = make({"disk": 1})
    ready = second.ready()
    assert ray.wait([ready], timeout=0.1)[0] == []
    remove_placement_group(second)
    with pytest.raises(TaskPlacementGroupRemoved):
        get(ready)


def test_a_group_ends_with_the_process_that_made_it_unless_it_is_detached(make):
    @ray.remote
    class Maker:
        def make(self, **options):
            group = placement_group([{"disk": 0.5}], **options)
            ray.get(group.ready())
            return group

    maker = Maker.remote()
    mortal, detached = get([maker.make.remote(), maker.make.remote(lifetime="detached", name="stays")])
    ray.kill(maker)
    eventually(lambda: state_of(mortal) == "REMOVED", "the group has ended with its maker")
    assert state_of(detached) == "CREATED"
    eventually(lambda: resources_are_free(disk=0.5), "only the detached one holds something")
    remove_placement_group(get_placement_group("stays"))


def test_a_group_that_a_task_made_outlives_the_worker(make):
    @ray.remote(max_calls=1)
    def make_group():
        group = placement_group([{"disk": 0.5}])
        ray.get(group.ready())
        return group, ray.get_runtime_context().get_worker_id()

    group, worker = get(make_group.remote())
    eventually(lambda: ended(worker), "the worker has ended after its one call")
    assert state_of(group) == "CREATED"
    assert get(whereabouts.options(num_cpus=0, resources={"disk": 0.5}, scheduling_strategy=within(group)).remote())
    remove_placement_group(group)


def test_only_groups_can_be_removed():
    with pytest.raises(TypeError, match="takes a PlacementGroup"):
        remove_placement_group("group")


def test_the_options_of_earlier_releases_name_a_group():
    group = placement_group([{"CPU": 1}])
    held = whereabouts.options(placement_group=group, placement_group_bundle_index=0, enable_task_events=False)
    assert get(held.remote())[0] in node_ids()
    assert get(whereabouts.options(placement_group=None).remote())[0] in node_ids()
    assert get(whereabouts.options(placement_group="default").remote())[0] in node_ids()
    default = PlacementGroupSchedulingStrategy(placement_group="default")
    assert get(whereabouts.options(scheduling_strategy=default).remote())[0] in node_ids()
    with pytest.raises(ValueError, match="both choose the node"):
        whereabouts.options(placement_group=group, scheduling_strategy="SPREAD")
    in_group = PlacementGroupSchedulingStrategy(placement_group=group)
    with pytest.raises(ValueError, match="both choose the node"):
        whereabouts.options(scheduling_strategy=in_group).options(placement_group=group)
    assert get(held.options(placement_group=group).remote())[0] in node_ids()
    whereabouts.options(scheduling_strategy=in_group).options(placement_group=group, scheduling_strategy=None)
    with pytest.raises(ValueError, match="bundle index must be -1"):
        whereabouts.options(placement_group_bundle_index=0)
    remove_placement_group(group)


def test_a_kind_of_accelerator_is_a_resource(capfd):
    with pytest.raises(TaskUnschedulableError, match="accelerator_type:A100"):
        get(whereabouts.options(accelerator_type="A100").remote())
