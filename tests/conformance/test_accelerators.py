"""Accelerators other than GPUs have ids, too: tasks and actors hold them and see the variable of their kind."""

from __future__ import annotations

import os
import signal

import pytest

import dualray as ray
from dualray.exceptions import RayActorError
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from tests.conformance.support import eventually, get, node_ids, resources_are_free

KINDS = {
    "neuron_cores": "NEURON_RT_VISIBLE_CORES",
    "TPU": "TPU_VISIBLE_CHIPS",
    "HPU": "HABANA_VISIBLE_MODULES",
    "NPU": "ASCEND_RT_VISIBLE_DEVICES",
    "RBLN": "RBLN_DEVICES",
    "TTNPU": "TT_VISIBLE_DEVICES",
    "MBLT": "QBRUNTIME_VISIBLE_DEVICES",
    "FURIOSA": "FURIOSA_DEVICES",
}
BOUNDS = ("TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS")
CLUSTER = {"num_gpus": 1, "resources": {**dict.fromkeys(KINDS, 2), "TPU": 4}}
pytestmark = pytest.mark.usefixtures("cluster")


def seen():
    """What is held, by kind, and the variables that say so."""
    held = ray.get_runtime_context().get_accelerator_ids()
    variables = ("CUDA_VISIBLE_DEVICES", *KINDS.values(), *BOUNDS)
    return {kind: ids for kind, ids in held.items() if ids}, {
        name: os.environ[name] for name in variables if os.environ.get(name)
    }


look = ray.remote(seen)


@ray.remote
def look_when(gate):
    gate.wait()
    return seen()


@ray.remote
class Holder:
    def look(self):
        return seen()

    def pid(self):
        return os.getpid()

    def write(self, name, text):
        os.environ[name] = text


def on_one_node(**options):
    return {**options, "scheduling_strategy": NodeAffinitySchedulingStrategy(min(node_ids()), soft=False)}


def test_each_kind_has_a_list_and_a_driver_has_none():
    assert ray.get_runtime_context().get_accelerator_ids() == {kind: [] for kind in ("GPU", *KINDS)}
    assert get(look.remote()) == ({}, {})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("TPU", "FURIOSA")])
def test_a_task_holds_the_devices_that_it_asked_for(kind):
    assert get(look.options(resources={kind: 2}).remote()) == ({kind: ["0", "1"]}, {KINDS[kind]: "0,1"})
    ids, shown = get(look.options(resources={kind: 1}).remote())
    assert ids in ({kind: ["0"]}, {kind: ["1"]})
    assert shown == {KINDS[kind]: ids[kind][0]}


def test_a_worker_sees_no_device_of_the_task_before():
    task = look.options(**on_one_node(num_cpus=2))
    for _ in range(2):
        assert get(task.options(resources={"neuron_cores": 2}).remote())[0] == {"neuron_cores": ["0", "1"]}
        assert get(task.remote()) == ({}, {})


def test_the_devices_of_furiosa_have_a_prefix():
    expected = ({"FURIOSA": ["0", "1"]}, {"FURIOSA_DEVICES": "npu:0,npu:1"})
    assert get(look.options(resources={"FURIOSA": 2}).remote()) == expected


def test_one_or_two_chips_of_a_tpu_have_bounds():
    ids, shown = get(look.options(resources={"TPU": 1}).remote())
    assert shown == {"TPU_VISIBLE_CHIPS": ids["TPU"][0], **dict.fromkeys(BOUNDS, "1,1,1")}
    ids, shown = get(look.options(resources={"TPU": 2}).remote())
    assert shown == {"TPU_VISIBLE_CHIPS": ",".join(ids["TPU"]), BOUNDS[0]: "1,2,1", BOUNDS[1]: "1,1,1"}
    expected = ({"TPU": ["0", "1", "2", "3"]}, {"TPU_VISIBLE_CHIPS": "0,1,2,3"})
    assert get(look.options(resources={"TPU": 4}).remote()) == expected


def test_two_tasks_on_one_node_have_different_devices(gate):
    task = look_when.options(**on_one_node(resources={"neuron_cores": 1}))
    refs = [task.remote(gate), task.remote(gate)]
    assert ray.wait(refs, timeout=0.1)[0] == []
    gate.open()
    assert sorted(ids["neuron_cores"] for ids, _ in get(refs)) == [["0"], ["1"]]


def test_a_task_holds_devices_of_several_kinds():
    task = look.options(num_gpus=1, resources={"neuron_cores": 2, "TPU": 4})
    assert get(task.remote()) == (
        {"GPU": ["0"], "neuron_cores": ["0", "1"], "TPU": ["0", "1", "2", "3"]},
        {"CUDA_VISIBLE_DEVICES": "0", "NEURON_RT_VISIBLE_CORES": "0,1", "TPU_VISIBLE_CHIPS": "0,1,2,3"},
    )


def test_a_runtime_environment_stands_beside_the_devices():
    @ray.remote(runtime_env={"env_vars": {"OF_MINE": "set"}})
    def both():
        return os.environ.get("OF_MINE"), seen()

    task = both.options(**on_one_node(resources={"RBLN": 2}))
    for _ in range(2):
        assert get(task.remote()) == ("set", ({"RBLN": ["0", "1"]}, {"RBLN_DEVICES": "0,1"}))
        assert get(both.options(**on_one_node(num_cpus=2)).remote()) == ("set", ({}, {}))
    assert "RBLN_DEVICES" not in os.environ
    assert "OF_MINE" not in os.environ


# ---- Parts ---------------------------------------------------------------------------------------------------------


def test_parts_share_one_npu():
    halves = [Holder.options(**on_one_node(num_cpus=0, resources={"NPU": 0.5})).remote() for _ in range(3)]
    held = [ids["NPU"] for ids, _ in get([half.look.remote() for half in halves])]
    assert sorted(map(held.count, (["0"], ["1"]))) == [1, 2]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("TPU", "NPU")])
@pytest.mark.parametrize("amount", [0.5, 1.5])
def test_other_kinds_have_no_parts(kind, amount):
    with pytest.raises(ValueError, match=rf"resources\['{kind}'\]={amount}: a task or actor cannot hold a fraction"):
        look.options(resources={kind: amount})
    with pytest.raises(ValueError, match="cannot hold a fraction"):
        Holder.options(resources={kind: amount})


@pytest.mark.parametrize("amount", [0, 0.5, 3, 2.5])
def test_the_number_of_tpus_is_one_that_a_host_can_share_out(amount):
    with pytest.raises(ValueError, match="a task or actor can hold only 1, 2, 4 or 8 TPUs"):
        look.options(resources={"TPU": amount})


def test_more_than_one_npu_is_a_whole_number_at_the_call():
    with pytest.raises(ValueError, match=r"NPU=1.5: an amount above 1 must be a whole number of NPUs"):
        look.options(resources={"NPU": 1.5}).remote()


# ---- Actors --------------------------------------------------------------------------------------------------------


def test_an_actor_holds_its_devices_for_life():
    holder = Holder.options(resources={"HPU": 1}).remote()
    before = get(holder.look.remote())
    assert len(before[0]["HPU"]) == 1
    eventually(lambda: resources_are_free(HPU=1, CPU=1), "the actor holds its HPU")
    assert get(holder.look.remote()) == before


def test_what_an_actor_writes_of_its_devices_is_its_own():
    options = on_one_node(num_cpus=0, resources={"HPU": 1})
    holder, other = Holder.options(**options).remote(), Holder.options(**options).remote()
    before = get(other.look.remote())
    get(holder.write.remote("HABANA_VISIBLE_MODULES", "of mine"))
    assert get(holder.look.remote())[1] == {"HABANA_VISIBLE_MODULES": "of mine"}
    assert get(other.look.remote()) == before
    assert get(look.remote()) == ({}, {})
    assert "HABANA_VISIBLE_MODULES" not in os.environ
    get(holder.write.remote("RBLN_DEVICES", "3"))
    assert get(holder.look.remote())[1] == {"HABANA_VISIBLE_MODULES": "of mine", "RBLN_DEVICES": "3"}
    assert get(other.look.remote()) == before
    assert "RBLN_DEVICES" not in os.environ


def test_an_actor_that_starts_again_holds_devices_again():
    holder = Holder.options(max_restarts=1, max_task_retries=1, resources={"TPU": 4, "neuron_cores": 1}).remote()
    ids, shown = get(holder.look.remote())
    assert ids["TPU"] == ["0", "1", "2", "3"]
    pid = get(holder.pid.remote())
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: get(holder.pid.remote()) != pid, "the actor has started again")
    again, shown_again = get(holder.look.remote())
    assert again["TPU"] == ids["TPU"]
    assert len(again["neuron_cores"]) == 1
    assert shown_again["TPU_VISIBLE_CHIPS"] == shown["TPU_VISIBLE_CHIPS"]
    ray.kill(holder)
    with pytest.raises(RayActorError):
        get(holder.look.remote())


def test_a_worker_is_used_again_after_devices_that_are_no_gpus():
    @ray.remote(**on_one_node(num_cpus=2))
    def who():
        return ray.get_runtime_context().get_worker_id()

    with_cores = who.options(resources={"neuron_cores": 1})
    workers = {get(task.remote()) for _ in range(4) for task in (who, with_cores)}
    assert len(workers) <= 2, "as many as the node has CPUs"


# ---- Placement groups ----------------------------------------------------------------------------------------------


def test_bundles_have_devices_of_their_own():
    group = placement_group([{"CPU": 1, "neuron_cores": 1}, {"CPU": 1, "neuron_cores": 1, "TPU": 2}], "STRICT_PACK")
    get(group.ready())

    def in_bundle(index, **resources):
        strategy = PlacementGroupSchedulingStrategy(group, index)
        return get(look.options(num_cpus=0, resources=resources, scheduling_strategy=strategy).remote())

    first, shown = in_bundle(0, neuron_cores=1)
    assert shown == {"NEURON_RT_VISIBLE_CORES": first["neuron_cores"][0]}
    second, _ = in_bundle(1, neuron_cores=1, TPU=2)
    assert len(second["TPU"]) == 2
    assert sorted(first["neuron_cores"] + second["neuron_cores"]) == ["0", "1"]
    for _ in range(2):
        assert in_bundle(1, neuron_cores=1, TPU=2)[0] == second
    either, _ = in_bundle(-1, neuron_cores=1)
    assert either in (first, {"neuron_cores": second["neuron_cores"]})
    remove_placement_group(group)


def test_what_a_bundle_reserves_is_no_task_of_others(gate):
    group = placement_group([{"neuron_cores": 1, "CPU": 1}], "STRICT_PACK")
    get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(group, 0)
    inside = look_when.options(num_cpus=0, resources={"neuron_cores": 1}, scheduling_strategy=strategy).remote(gate)
    node = next(iter(ray.util.placement_group_table(group)["bundles_to_node_id"].values()))
    beside = NodeAffinitySchedulingStrategy(node, soft=False)
    outside = look.options(num_cpus=0, resources={"neuron_cores": 1}, scheduling_strategy=beside).remote()
    outer = get(outside)[0]["neuron_cores"]
    gate.open()
    assert sorted(outer + get(inside)[0]["neuron_cores"]) == ["0", "1"]
    remove_placement_group(group)
