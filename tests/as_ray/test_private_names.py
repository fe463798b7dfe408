"""What Ray's own public tests read of `ray._private` and `ray._common`: the same program in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.as_ray.programs import printed_by

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import dualray.as_ray

dualray.as_ray.install()
import ray
from ray._common.network_utils import build_address, parse_address
from ray._private import test_utils
from ray._private.worker import BaseContext, global_worker
from ray.util.placement_group import validate_placement_group

assert not global_worker.connected and global_worker.node is None and global_worker.current_job_id.is_nil()
assert not hasattr(global_worker, "core_worker")
assert isinstance(ray.init(num_cpus=2), BaseContext)
here = ray.get_runtime_context()
assert global_worker.node.unique_id == here.get_node_id()
assert ray._private.state.current_node_id() == f"node:{ray.util.get_node_ip_address()}"
assert ray._private.state.node_ids() == [ray._private.state.current_node_id()]
assert ray._private.worker._global_node.node_id == here.get_node_id()
assert global_worker.core_worker.get_worker_id().hex() == here.get_worker_id()
assert global_worker.current_job_id.hex() == here.get_job_id() and global_worker.mode == ray.SCRIPT_MODE
assert here.worker is global_worker  # prefect_ray reads its `mode`


@ray.remote
def depths(more):
    own = [(global_worker.task_depth, global_worker.mode)]
    return own + (ray.get(depths.remote(more - 1)) if more else [])


assert ray._private.utils.get_ray_doc_version() == f"releases-{ray.__version__}"
assert [job["IsDead"] for job in ray._private.state.jobs()] == [False]
assert (ray._private.worker.SPILL_WORKER_MODE, ray._private.worker.RESTORE_WORKER_MODE) == (2, 3)
assert ray._private.worker.get_dashboard_url() == ray.worker.get_dashboard_url() == ""
assert ray._private.ray_constants.MIN_RESOURCE_GRANULARITY == 0.0001
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

assert RAY_JOB_CONFIG_JSON_ENV_VAR == "RAY_JOB_CONFIG_JSON_ENV_VAR"
assert global_worker.task_depth == 0
assert ray.get(depths.remote(2)) == [(1, ray.WORKER_MODE), (2, ray.WORKER_MODE), (3, ray.WORKER_MODE)]


@ray.remote
def wait(signal):
    ray.get(signal.wait.remote())


@ray.remote
class Parent:
    def children(self, signal):
        refs = [wait.remote(signal) for _ in range(2)]
        own = ray.TaskID.from_hex(ray.get_runtime_context().get_task_id())
        found = global_worker.core_worker.get_pending_children_task_ids(own)
        ray.get(signal.send.remote())
        ray.get(refs)
        return {ref.task_id().hex() for ref in refs}, {task.hex() for task in found}


signal = test_utils.SignalActor.remote()
made, pending = ray.get(Parent.remote().children.remote(signal))
assert made <= pending

ray.util.register_serializer(dict, serializer=list, deserializer=tuple)  # it has no effect on Ray either
assert ray.get(ray.put({"a": 1})) == {"a": 1}
ref = ray.put(1)
assert global_worker.core_worker.object_exists(ref)
signal = test_utils.SignalActor.remote()
waits = wait.remote(signal)
assert not global_worker.core_worker.object_exists(waits)
ray.get(signal.send.remote())
ray.get(waits)
assert global_worker.core_worker.object_exists(waits)
key = ref.hex().encode()
assert global_worker.core_worker.get_all_reference_counts()[key] == {"local": 1, "submitted": 0}
del ref
test_utils.wait_for_condition(lambda: key not in global_worker.core_worker.get_all_reference_counts())

assert [ray.get(test_utils.put_object(5, by_put)) for by_put in (True, False)] == [5, 5]
assert test_utils.same_elements([[1], [2]], ([2], [1])) and not test_utils.same_elements([1], [1, 2])
assert test_utils.get_actor_node_id(test_utils.SignalActor.remote()) == here.get_node_id()
calls = []
until = test_utils.wait_until_succeeded_without_exception
assert until(lambda: 1 / (len(calls) or calls.append(1) or 0), (ZeroDivisionError,))
assert not until(lambda: 1 / 0, (ZeroDivisionError,), timeout_ms=50)
loop = ray._common.utils.get_or_create_event_loop()
assert loop is ray._common.utils.get_or_create_event_loop()
assert loop.run_until_complete(ray.put(7).as_future()) == 7


def check(times):
    calls.append(1)
    assert len(calls) > times


test_utils.wait_for_assertion(check, times=3)
try:
    test_utils.wait_for_assertion(check, timeout=0.05, times=1_000)
    raise SystemExit("nothing was raised")
except AssertionError:
    pass

large = ray.put(bytes(1 << 21))
test_utils.wait_for_condition(lambda: test_utils.object_memory_usage() >= 1 << 21)
del large
test_utils.wait_for_condition(lambda: test_utils.object_memory_usage() == 0)
assert ray.nodes()[0]["Resources"]["object_store_memory"] == ray.cluster_resources()["object_store_memory"] > 0


@ray.remote
def sockets():
    return global_worker.node.plasma_store_socket_name, global_worker.node.raylet_socket_name


row = ray.nodes()[0]
assert ray.get(sockets.remote()) == (row["ObjectStoreSocketName"], row["RayletSocketName"])

group = ray.util.placement_group([{"CPU": 1}])
ray.get(group.ready())
from ray.train._internal.session import get_session

assert get_session() is None
table = ray._private.state.state.placement_group_table(group.id)
assert table["bundles_to_node_id"] == {0: here.get_node_id()} and table["state"] == "CREATED"
assert ray._private.state.state.placement_group_table()[group.id.hex()] == table
assert [row["NodeID"] for row in ray._private.state.state.node_table()] == [here.get_node_id()]
assert ray._private.state.state.total_resources_per_node()[here.get_node_id()]["CPU"] == 2
test_utils.placement_group_assert_no_leak([group])
assert test_utils.is_placement_group_removed(group)
assert len(ray._private.state.actors()) == 4
assert ray._private.state.actors(signal._actor_id.hex())["ActorClassName"] == "SignalActor"
assert parse_address(build_address("::1", 80)) == ("::1", "80") and parse_address("here") is None
process = test_utils.run_string_as_driver_nonblocking("import ray; print(ray.__version__)")
assert process.communicate()[0].decode().strip() == ray.__version__
for wrong in ("no list", [], [{"CPU": "1"}], [{"CPU": 0}], [{1: 1}]):
    try:
        validate_placement_group(wrong)
    except ValueError as error:
        assert "must be a" in str(error) or "only 0 values" in str(error)
    else:
        raise AssertionError(wrong)
assert validate_placement_group([{"CPU": 1}], bundle_label_selector=[{"zone": "a"}])
try:
    ray._private.state.next_job_id
except AttributeError as error:
    assert "docs/ray_names.md" in str(error)
else:
    raise AssertionError("next_job_id is refused")
print("all of it")
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_what_rays_own_tests_read(mode: str):
    assert printed_by(PROGRAM, mode) == "all of it"
