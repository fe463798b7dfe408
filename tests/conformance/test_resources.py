from __future__ import annotations

import os
import re
import time

import pytest

import dualray as ray
from dualray.exceptions import ActorUnschedulableError, TaskUnschedulableError
from dualray.shared.model.resources import HEAD_NODE
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.scheduling_strategies import (
    DoesNotExist,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from tests.conformance.support import eventually, get, mark_of_process, node_ids, resources_are_free, stderr_so_far

GIB = 2**30
CLUSTER = {"num_gpus": 2, "memory": "8GiB", "resources": {"disk": 2, "slot": 0.5}}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def gpu_ids(gate=None):
    if gate is not None:
        gate.wait()
    return ray.get_gpu_ids()


@ray.remote
def mask():
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@ray.remote
def where():
    return ray.get_runtime_context().get_node_id()


@ray.remote
class Holder:
    def ready(self):
        return True

    def gpu_ids(self):
        return ray.get_gpu_ids()

    def gpu_ids_and_mask(self):
        return ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")

    def set_mask(self, text):
        os.environ["CUDA_VISIBLE_DEVICES"] = text

    def assigned(self):
        return ray.get_runtime_context().get_assigned_resources()


def hold(**options):
    holder = Holder.options(**options).remote()
    get(holder.ready.remote())
    return holder


# ---- What the cluster has ------------------------------------------------------------------------------------------


def test_cluster_resources_are_those_of_all_nodes(cluster):
    assert ray.cluster_resources() == {
        "CPU": 2.0 * cluster.nodes,
        "GPU": 2.0 * cluster.nodes,
        "disk": 2.0 * cluster.nodes,
        "slot": 0.5 * cluster.nodes,
        "memory": 8.0 * GIB * cluster.nodes,
        **dict.fromkeys([HEAD_NODE, *(f"node:{row['NodeManagerAddress']}" for row in ray.nodes())], 1.0),
    }


def test_nodes_says_what_each_node_has(cluster):
    rows = ray.nodes()
    assert [row["NodeID"] for row in rows] == [f"node-{index}" for index in range(cluster.nodes)]
    for row in rows:
        assert row["Alive"] is True
        assert row["Incarnation"] == 0
        told = {"CPU": 2.0, "GPU": 2.0, "disk": 2.0, "slot": 0.5, "memory": 8.0 * GIB}
        own = [f"node:{row['NodeManagerAddress']}", *([HEAD_NODE] if row["NodeID"] == "node-0" else [])]
        assert row["Resources"] == {**told, **dict.fromkeys(own, 1.0)}


def test_what_is_held_is_not_available():
    holder = hold(num_cpus=1, resources={"disk": 2})
    eventually(lambda: resources_are_free(CPU=1, disk=2), "the actor holds what it asked for")
    del holder
    eventually(resources_are_free, "all is free again")


def test_a_resource_of_which_nothing_is_free_is_absent(cluster):
    holders = [hold(num_cpus=0, resources={"disk": 2}) for _ in range(cluster.nodes)]
    eventually(lambda: "disk" not in ray.available_resources(), "all disks are held")
    del holders


# ---- Demands -------------------------------------------------------------------------------------------------------


def test_fractions_are_exact():
    holders = [hold(num_cpus=0.1) for _ in range(10)]
    eventually(lambda: resources_are_free(CPU=1), "ten tenths are one")
    holders += [hold(num_cpus=0.0001)]
    eventually(lambda: resources_are_free(CPU=1.0001), "and the smallest step counts")
    del holders


def test_a_task_knows_what_it_holds():
    @ray.remote(num_cpus=0.5, resources={"disk": 1.5})
    def assigned():
        return ray.get_runtime_context().get_assigned_resources()

    assert get(assigned.remote()) == {"CPU": 0.5, "disk": 1.5}
    assert get(hold(num_cpus=0, num_gpus=1).assigned.remote()) == {"GPU": 1.0}
    assert get(hold().assigned.remote()) == {}


def test_a_task_without_cpus_runs_though_all_are_taken(cluster):
    holders = [hold(num_cpus=2) for _ in range(cluster.nodes)]
    assert get(where.options(num_cpus=0).remote()) in node_ids()
    del holders


def test_a_task_waits_until_its_demand_is_free(cluster):
    holders = [hold(num_cpus=0, resources={"disk": 2}) for _ in range(cluster.nodes)]
    ref = where.options(num_cpus=0, resources={"disk": 1}).remote()
    assert ray.wait([ref], timeout=0.1) == ([], [ref])
    holders.pop()
    assert get(ref) in node_ids()


def test_custom_resources_bound_how_many_run_at_once(cluster, tally):
    @ray.remote(num_cpus=0, resources={"slot": 0.5})
    def one_a_node():
        with_me = tally.notes.count("in") - tally.notes.count("out")
        tally.add("in")
        time.sleep(0.02)
        tally.add("out")
        return with_me

    assert max(get([one_a_node.remote() for _ in range(3 * cluster.nodes)])) < cluster.nodes


# ---- Memory --------------------------------------------------------------------------------------------------------


def test_memory_bounds_how_many_run_at_once(cluster, gate):
    @ray.remote(num_cpus=0, memory=3 * GIB)
    def take():
        gate.wait()
        return ray.get_runtime_context().get_node_id()

    refs = [take.remote() for _ in range(2 * cluster.nodes + 1)]
    left = {"memory": 2.0 * GIB * cluster.nodes}
    eventually(lambda: ray.available_resources().items() >= left.items(), "each node runs two, and none a third")
    assert ray.wait(refs, timeout=0.05)[0] == []
    gate.open()
    places = get(refs)
    assert set(places) == node_ids()


def test_memory_is_exact_to_the_byte_and_may_be_a_text():
    @ray.remote(num_cpus=0, memory="1.5GiB")
    def assigned():
        return ray.get_runtime_context().get_assigned_resources()

    assert get(assigned.remote()) == {"memory": 1.5 * GIB}
    assert get(assigned.options(memory=8 * GIB - 1).remote()) == {"memory": 8.0 * GIB - 1}
    assert get(assigned.options(memory=2.9).remote()) == {"memory": 2.0}
    assert get(assigned.options(memory=0.1).remote()) == {}
    assert get(assigned.options(num_cpus=1, memory=0).remote()) == {"CPU": 1.0}


def test_an_actor_holds_its_memory_for_life_and_no_cpu_for_it():
    holder = hold(memory=5 * GIB)
    assert get(holder.assigned.remote()) == {"memory": 5.0 * GIB}
    eventually(lambda: resources_are_free(memory=5 * GIB), "the actor holds its memory alone")
    ray.kill(holder)
    eventually(resources_are_free, "its memory is free again")
    holder = hold(num_cpus=1, memory=5 * GIB)
    assert get(holder.assigned.remote()) == {"CPU": 1.0, "memory": 5.0 * GIB}


def test_a_task_that_waits_in_get_keeps_its_memory():
    strategy = NodeAffinitySchedulingStrategy(min(node_ids()), soft=False)

    @ray.remote(memory=5 * GIB, scheduling_strategy=strategy)
    def parent():
        ref = where.options(memory=4 * GIB, scheduling_strategy=strategy).remote()
        return len(ray.wait([ref], timeout=0.2)[0]), [ref]

    ready, [ref] = get(parent.remote())
    assert ready == 0
    assert get(ref) == min(node_ids())


def test_memory_in_a_bundle_of_a_placement_group():
    group = placement_group([{"CPU": 1, "memory": 2 * GIB}])
    assert group.wait(20)
    assert group.bundle_specs == [{"CPU": 1.0, "memory": 2.0 * GIB}]
    eventually(lambda: resources_are_free(CPU=1, memory=2 * GIB), "the bundle is reserved")
    in_group = PlacementGroupSchedulingStrategy(group)
    holder = hold(num_cpus=0, memory="1GiB", scheduling_strategy=in_group)
    assert get(holder.assigned.remote()) == {"memory": 1.0 * GIB}
    with pytest.raises(ValueError, match=r"demands 1 CPU, 3\.0 GiB of memory, but every bundle"):
        where.options(memory=3 * GIB, scheduling_strategy=in_group).remote()
    remove_placement_group(group)


# ---- GPUs ----------------------------------------------------------------------------------------------------------


def test_a_driver_and_a_task_without_gpus_have_none():
    assert ray.get_gpu_ids() == []
    assert get(gpu_ids.remote()) == []


def test_a_task_has_the_gpus_that_it_asked_for():
    [gpu] = get(gpu_ids.options(num_gpus=1).remote())
    assert gpu in (0, 1)
    assert get(gpu_ids.options(num_gpus=2).remote()) == [0, 1]


def test_two_tasks_on_one_node_have_different_gpus(gate):
    strategy = NodeAffinitySchedulingStrategy(min(node_ids()), soft=False)
    task = gpu_ids.options(num_gpus=1, scheduling_strategy=strategy)
    refs = [task.remote(gate), task.remote(gate)]
    assert ray.wait(refs, timeout=0.1)[0] == []
    gate.open()
    assert sorted(get(refs)) == [[0], [1]]


def test_fractions_share_a_gpu_and_wholes_do_not():
    strategy = NodeAffinitySchedulingStrategy(min(node_ids()), soft=False)
    halves = [hold(num_cpus=0, num_gpus=0.5, scheduling_strategy=strategy) for _ in range(2)]
    whole = hold(num_cpus=0, num_gpus=1, scheduling_strategy=strategy)
    [first], [second] = get([half.gpu_ids.remote() for half in halves])
    [other] = get(whole.gpu_ids.remote())
    assert first == second
    assert other != first
    quarter = gpu_ids.options(num_cpus=0, num_gpus=0.25, scheduling_strategy=strategy).remote()
    assert ray.wait([quarter], timeout=0.1)[0] == []
    halves.pop()
    assert get(quarter) == [first]


def test_an_actor_holds_its_gpu_for_life():
    holder = hold(num_gpus=1)
    ids = get(holder.gpu_ids.remote())
    assert len(ids) == 1
    assert get(holder.gpu_ids.remote()) == ids
    eventually(lambda: resources_are_free(CPU=1, GPU=1), "the actor holds its GPU")


def test_cuda_is_shown_the_gpus_of_the_lease_and_none_without_one():
    assert get(mask.remote()) == ""
    assert get(mask.options(num_gpus=2).remote()) == "0,1"
    assert get(mask.remote()) == ""
    [gpu], shown = get(hold(num_gpus=0.5).gpu_ids_and_mask.remote())
    assert shown == str(gpu)
    assert get(hold().gpu_ids_and_mask.remote()) == ([], "")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_what_an_actor_writes_of_its_gpus_is_its_own():
    holder, other = hold(num_cpus=0, num_gpus=1), hold(num_cpus=0, num_gpus=1)
    before = get(other.gpu_ids_and_mask.remote())
    get(holder.set_mask.remote("GPU-of-mine"))
    assert get(holder.gpu_ids_and_mask.remote())[1] == "GPU-of-mine"
    assert get(other.gpu_ids_and_mask.remote()) == before
    assert get(mask.remote()) == ""


def test_the_context_names_the_gpus():
    @ray.remote
    def context():
        return ray.get_runtime_context().get_accelerator_ids()["GPU"]

    assert get(context.remote()) == []
    assert get(context.options(num_gpus=2).remote()) == ["0", "1"]
    assert ray.get_runtime_context().get_accelerator_ids()["GPU"] == []


def test_gpus_go_to_a_worker_that_has_run_nothing_and_none_runs_on_after_them():
    """CUDA reads what it may see once in a process's life, and keeps the memory of what it saw."""
    strategy = NodeAffinitySchedulingStrategy(min(node_ids()), soft=False)

    @ray.remote(scheduling_strategy=strategy)
    def who():
        return ray.get_runtime_context().get_worker_id()

    before = set(get([who.remote() for _ in range(4)]))
    for _ in range(2):
        worker = get(who.options(num_gpus=2).remote())
        eventually(resources_are_free, "the lease has ended")
        assert worker not in before
        before |= {worker, *get([who.remote() for _ in range(4)])}


def test_what_a_task_with_gpus_owns_outlives_its_lease():
    @ray.remote(num_gpus=2)
    def make():
        return [ray.put("kept"), gpu_ids.remote()]

    small, large = get(make.remote())
    eventually(resources_are_free, "the lease has ended")
    assert get([small, large]) == ["kept", []]


def test_a_blocked_task_keeps_its_gpus(cluster):
    strategy = NodeAffinitySchedulingStrategy(min(node_ids()), soft=False)
    child = gpu_ids.options(num_gpus=2, scheduling_strategy=strategy)

    @ray.remote(num_gpus=2, scheduling_strategy=strategy)
    def parent():
        ref = child.remote()
        ready, _ = ray.wait([ref], timeout=0.2)
        return len(ready), [ref]

    ready, [ref] = get(parent.remote())
    assert ready == 0
    assert get(ref) == [0, 1]


# ---- Where ---------------------------------------------------------------------------------------------------------


def test_the_drivers_context():
    context = ray.get_runtime_context()
    assert context.get_node_id() == "node-0"
    assert context.get_worker_id() == "driver-1"
    assert context.get_task_id() is None
    assert context.get_task_name() is None
    assert context.get_actor_id() is None
    assert context.get_attempt() == 0
    assert context.get_assigned_resources() == {}


def test_a_tasks_context(mode):
    @ray.remote
    def look():
        context = ray.get_runtime_context()
        return (
            context.mode,
            context.get_node_id(),
            context.get_worker_id(),
            context.get_task_id(),
            context.get_task_name(),
            context.get_actor_id(),
        )

    ref = look.remote()
    found_mode, node, worker, task, name, actor = get(ref)
    assert found_mode == mode
    assert worker.startswith(f"{node}/w")
    assert task == ref.hex()[:32]
    assert name == "look"
    assert actor is None


def test_an_actors_context():
    @ray.remote
    class Look:
        def __init__(self):
            self.at_first = self.look()

        def look(self):
            context = ray.get_runtime_context()
            return context.get_actor_id(), context.get_worker_id()

        def name(self):
            return ray.get_runtime_context().get_task_name()

        def both(self):
            return self.at_first, self.look()

    actor = Look.remote()
    at_first, now = get(actor.both.remote())
    assert at_first == now
    assert now[0] in repr(actor)
    assert get(actor.name.remote()) == "Look.name"


def test_tasks_go_to_other_nodes_once_half_of_their_own_is_in_use(cluster, gate):
    @ray.remote(num_cpus=1)
    def where_it_waits():
        gate.wait()
        return ray.get_runtime_context().get_node_id()

    refs = [where_it_waits.remote() for _ in range(cluster.nodes)]
    gate.open()
    assert set(get(refs)) == node_ids()


def test_spread_uses_every_node(cluster):
    spread = where.options(scheduling_strategy="SPREAD", num_cpus=2)
    found = get([spread.remote() for _ in range(4 * cluster.nodes)])
    assert set(found) == node_ids()


def test_spread_places_actors_round_robin(cluster):
    @ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
    class Where:
        def where(self):
            return ray.get_runtime_context().get_node_id()

    actors = [Where.remote() for _ in range(cluster.nodes)]
    assert len(set(get([actor.where.remote() for actor in actors]))) == cluster.nodes


def test_other_tasks_between_spread_ones_do_not_turn_the_round(cluster):
    spread = where.options(scheduling_strategy="SPREAD")
    other = where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(min(node_ids()), soft=False))
    found = []
    for _ in range(2 * cluster.nodes):
        found.append(get(spread.remote()))
        for _ in range(cluster.nodes - 1):
            get(other.remote())
    assert set(found) == node_ids()


def test_node_affinity_goes_where_it_says(cluster):
    assert len(node_ids()) == cluster.nodes
    for node in sorted(node_ids()):
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        assert get([where.options(scheduling_strategy=strategy).remote() for _ in range(3)]) == [node] * 3


def test_soft_affinity_goes_elsewhere_when_the_node_is_not_there():
    strategy = NodeAffinitySchedulingStrategy("node-99", soft=True)
    assert get(where.options(scheduling_strategy=strategy).remote()) in node_ids()


def test_affinity_may_go_elsewhere_while_the_node_has_no_room(gate):
    near = NodeAffinitySchedulingStrategy(min(node_ids()), soft=True, _spill_on_unavailable=True)
    assert get(where.options(scheduling_strategy=near).remote()) == min(node_ids())
    holder = ray.remote(num_cpus=2)(gate.wait)
    here = NodeAffinitySchedulingStrategy(min(node_ids()), soft=False, _fail_on_unavailable=False)
    held = holder.options(scheduling_strategy=here).remote()
    eventually(lambda: resources_are_free(CPU=2), "the first node is full")
    if ray.cluster_resources()["CPU"] > 2:
        assert get(where.options(scheduling_strategy=near).remote()) != min(node_ids())
    gate.open()
    get(held)


def test_affinity_may_fail_while_the_node_has_no_room(gate):
    node = min(node_ids())
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    held = ray.remote(num_cpus=2)(gate.wait).options(scheduling_strategy=here).remote()
    eventually(lambda: resources_are_free(CPU=2), "the first node is full")
    failing = NodeAffinitySchedulingStrategy(node, soft=False, _fail_on_unavailable=True)
    with pytest.raises(TaskUnschedulableError):
        get(where.options(scheduling_strategy=failing).remote())
    with pytest.raises(ActorUnschedulableError):
        get(Holder.options(num_cpus=1, scheduling_strategy=failing).remote().ready.remote())
    gate.open()
    get(held)


def test_private_options_of_affinity_need_the_right_softness():
    with pytest.raises(ValueError, match="_spill_on_unavailable cannot be set when soft is False"):
        NodeAffinitySchedulingStrategy(min(node_ids()), soft=False, _spill_on_unavailable=True)
    with pytest.raises(ValueError, match="_fail_on_unavailable cannot be set when soft is True"):
        NodeAffinitySchedulingStrategy(min(node_ids()), soft=True, _fail_on_unavailable=True)
    strict = NodeAffinitySchedulingStrategy(min(node_ids()), False, _fail_on_unavailable=True)
    assert get(where.options(scheduling_strategy=strict).remote()) == min(node_ids())


def test_a_label_strategy_may_have_no_soft_conditions():
    strategy = NodeLabelSchedulingStrategy({"nowhere": DoesNotExist()}, soft=None)
    assert get(where.options(scheduling_strategy=strategy).remote()) in node_ids()


def test_a_context_names_a_node_that_affinity_understands():
    here = ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(here, soft=False)
    assert get(where.options(scheduling_strategy=strategy).remote()) == here


def test_a_worker_is_used_again():
    @ray.remote
    def who():
        return mark_of_process()

    assert len({get(who.remote()) for _ in range(10)}) <= 2


# ---- Infeasible ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ({"num_cpus": 2000}, "2000 CPU; the nearest node, .*, has .* and lacks 1998 CPU"),
        ({"num_gpus": 3}, "lacks 1 GPU"),
        ({"resources": {"disk": 3}}, "lacks 1 disk"),
        ({"resources": {"tpu": 1}}, "lacks 1 tpu"),
        ({"resources": {"slot": 1.5}}, "lacks (1|0.5) slot"),
        ({"memory": 8.5 * GIB}, r"8.5 GiB of memory; .* 8.0 GiB of memory.* lacks 512.0 MiB of memory\. Demand less"),
        ({"memory": 8 * GIB + 1}, "lacks 1 bytes of memory"),
    ],
    ids=str,
)
def test_an_infeasible_demand_fails_at_once_with_what_is_lacking(options, lacks, capfd):
    impossible = where.options(**options)
    refs = [impossible.remote() for _ in range(3)]
    for ref in refs:
        with pytest.raises(TaskUnschedulableError, match=rf"where cannot be scheduled: .*{lacks}"):
            get(ref)
    with pytest.raises(ActorUnschedulableError, match=rf"Holder cannot be scheduled: .*{lacks}"):
        get(Holder.options(**options).remote().__ray_ready__.remote())

    def is_warned_of(name):
        """Whether it was warned of; a warning may come a moment after the error."""
        return re.findall(rf"dualray: {name} can never run in this cluster: .*{lacks}", stderr_so_far())

    for name in ("where", "Holder"):
        eventually(lambda name=name: is_warned_of(name), f"the driver warns of {name}")
        assert len(is_warned_of(name)) == 1


def test_a_demand_that_nobody_asks_for_again_does_no_harm():
    forgotten = where.options(num_cpus=3000).remote()
    assert get(where.remote()) in node_ids()
    ready, _ = ray.wait([forgotten], timeout=20)
    assert ready == [forgotten]


def test_an_infeasible_demand_of_a_task_fails_too():
    @ray.remote
    def parent():
        return ray.get(where.options(num_cpus=1000).remote(), timeout=20)

    with pytest.raises(TaskUnschedulableError, match="998 CPU"):
        get(parent.remote())


def test_affinity_to_a_node_that_is_not_there_fails_and_names_those_that_are():
    strategy = NodeAffinitySchedulingStrategy("node-99", soft=False)
    with pytest.raises(
        TaskUnschedulableError, match=rf"names node 'node-99'.*is not alive; alive nodes: .*{min(node_ids())}"
    ):
        get(where.options(scheduling_strategy=strategy).remote())


def test_a_demand_that_is_only_busy_does_not_raise(cluster):
    holders = [hold(num_cpus=2) for _ in range(cluster.nodes)]
    ref = where.options(num_cpus=2).remote()
    assert ray.wait([ref], timeout=0.05)[0] == []
    del holders
    assert get(ref) in node_ids()
