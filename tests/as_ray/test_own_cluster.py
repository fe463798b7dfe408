"""A program for Ray that has made a `Cluster` joins it with a plain `ray.init()`, in both modes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.as_ray.programs import printed_by

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import dualray.as_ray

dualray.as_ray.install()
import ray
from ray.cluster_utils import Cluster
from ray.util.multiprocessing import Pool

assert ray.util.get_node_ip_address() == "127.0.0.1"  # as of a cluster that a plain init() starts
cluster = Cluster()
assert cluster.address is None  # init(address=None) then starts a cluster
cluster.add_node(num_cpus=3)


def cpus():
    found = ray.cluster_resources()["CPU"]
    ray.shutdown()
    return found


ray.init()
assert [node["NodeID"] for node in cluster.global_state.node_table()] == [cluster.head_node.node_id]
assert cpus() == 3
ray.init("auto")
assert cpus() == 3
ray.init("local", num_cpus=1)
assert cpus() == 1
assert ray.get(ray.remote(lambda: 5).remote()) == 5  # the first verb
assert cpus() == 3
with Pool() as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
assert cpus() == 3
with Pool(processes=2, ray_address="local") as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
assert cpus() == 2
try:
    ray.init(num_cpus=5)
except ValueError as error:
    assert "ray.init(num_cpus=5) would join the Cluster of this process" in str(error), error
else:
    raise AssertionError("whoever joins a cluster says no CPUs")
cluster.shutdown()
ray.init(num_cpus=2)
assert cpus() == 2
with Pool(processes=2):
    assert cpus() == 2
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_a_plain_init_joins_the_cluster_of_its_process(tmp_path, mode):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    variables = {**os.environ, "DUALRAY_MODE": mode, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=variables, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


REMOVED = """\
import time

import ray
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
node = cluster.add_node(num_cpus=1, resources={"there": 1})
ray.init(address=cluster.address)


@ray.remote(max_retries=0, resources={"there": 1})
def sleep():
    time.sleep(300)


ref = sleep.remote()
assert ray.wait([ref], timeout=2) == ([], [ref])
cluster.remove_node(node)
try:
    ray.get(ref)
except ray.exceptions.NodeDiedError:
    print("its node died")
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_a_node_that_is_removed_does_not_finish_its_tasks(mode):
    """It drained for 30 seconds, as dualray's own `Cluster` says; Ray's node is gone at once."""
    assert printed_by(f"import dualray.as_ray\n\ndualray.as_ray.install()\n{REMOVED}", mode) == "its node died"
