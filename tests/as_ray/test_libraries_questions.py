"""What libraries for Ray ask and give without a thought: the same program in both modes, under the name `ray`."""

from __future__ import annotations

import pytest

from tests.as_ray.programs import printed_by

START = """\
import dualray.as_ray

dualray.as_ray.install()
import numpy as np

import ray

ray.init(num_cpus=2, log_to_driver=0)


@ray.remote
def double(number):
    return 2 * number


@ray.remote
class Counter:
    def add(self):
        return 1

"""

CLIENTS = """
import ray.util.client.common as common
from ray.util.client.common import ClientActorHandle, ClientObjectRef

assert not ray.util.client.ray.is_connected() and ray.util.client.num_connected_contexts() == 0
assert not isinstance(Counter.remote(), ClientActorHandle) and not isinstance(double.remote(1), ClientObjectRef)
try:
    ClientActorHandle(None)
except NotImplementedError as error:
    assert "no Ray Client" in str(error), error
try:
    common.ClientServer
except AttributeError as error:
    assert "no Ray Client" in str(error), error
assert set(ray.util.__all__) >= {"ActorPool", "placement_group"}
assert all(hasattr(ray.util, name) for name in ray.util.__all__)
print("asked")
"""

NUMBERS = """
refs = [double.remote(number) for number in range(3)]
for count in (2, 2.9, np.int64(2), np.float32(2)):
    ready, others = ray.wait(refs, num_returns=count)
    assert len(ready) == 2 and len(others) == 1, count
assert len(ray.wait(refs, num_returns=3, timeout=np.float32(60))[0]) == 3
assert ray.get(refs, timeout=np.int64(60)) == [0, 2, 4]
assert ray.get(ray.put(3), timeout=-2) == 3
try:
    ray.get(double.options(resources={"none": 1}).remote(1), timeout=-2)
except ray.exceptions.GetTimeoutError:
    pass
else:
    raise AssertionError("a negative timeout does not wait")
for wrong in ("2", None, [1]):
    try:
        ray.wait(refs, num_returns=wrong)
    except TypeError:
        continue
    raise AssertionError(wrong)
print("counted")
"""

PICTURE = """
import json
import tempfile
from pathlib import Path

counter = Counter.remote()
assert ray.get([double.remote(2), counter.add.remote()]) == [4, 1]
rows = ray.timeline()
by_category = {row["cat"]: row for row in rows}
assert set(by_category) == {"task::double", "task::Counter", "task::Counter.add", "task:execute"}, by_category
task = by_category["task::Counter.add"]
assert task["name"] == task["args"]["name"] == "add" and task["ph"] == "X" and task["dur"] >= 0
assert task["tid"].startswith("worker:") and len(task["args"]["task_id"]) > 16
path = Path(tempfile.mkdtemp()) / "timeline.json"
assert ray.timeline(path) is None
assert [row["cat"] for row in json.loads(path.read_text())].count("task:execute") == 3
path.unlink()
path.parent.rmdir()
print("drawn")
"""

KEYS = """
from ray._raylet import GcsClient
from ray.experimental import internal_kv

internal_kv._initialize_internal_kv(GcsClient(address=ray.get_runtime_context().gcs_address))
internal_kv._internal_kv_put("key", "value")
internal_kv._internal_kv_reset()
assert internal_kv._internal_kv_get("key") == b"value"
print("kept")
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
@pytest.mark.parametrize(
    ("program", "printed"), [(CLIENTS, "asked"), (NUMBERS, "counted"), (PICTURE, "drawn"), (KEYS, "kept")]
)
def test_a_program(program, printed, mode):
    assert printed_by(START + program, mode) == printed
