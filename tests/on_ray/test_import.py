"""A program of plain Ray is imported from what its cluster has exported, and its edges are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dualray.recording.inferred import infer
from dualray.recording.ray_events import read_events
from dualray.recording.ray_import import import_ray

pytest.importorskip("pyarrow")

HEAD = """
import os, shutil, subprocess, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
try:
    subprocess.run([sys.executable, "-W", "ignore", "driver.py", cluster.address], timeout=90, check=True)
    events = Path(cluster.head_node.get_session_dir_path()) / "logs" / "export_events"
    deadline = time.monotonic() + 20
    while sum(file.read_text().count('"11"') for file in events.glob("*TASK*")) < 72 and time.monotonic() < deadline:
        time.sleep(0.2)
    shutil.copytree(events, "export_events")
finally:
    cluster.shutdown()
"""
DRIVER = """
import json, sys, time
import ray

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")

@ray.remote
def step(*_):
    time.sleep(0.02)

@ray.remote
def add(one, other):
    time.sleep(0.02)

@ray.remote
def reduce(*parts):
    time.sleep(0.02)

edges = []

def call(function, *refs):
    made = function.remote(*refs)
    edges.extend([ref.hex()[:48], made.hex()[:48]] for ref in refs)
    return made

ray.get([step.remote() for _ in range(8)])  # a bag
ref = call(step)
for _ in range(9):
    ref = call(step, ref)  # a chain
ray.get(ref)
level = [call(step) for _ in range(8)]
while len(level) > 1:
    level = [call(add, one, other) for one, other in zip(level[::2], level[1::2])]  # a tree
ray.get(level)
mapped = [call(step) for _ in range(8)]
ray.get([call(reduce, *mapped) for _ in range(10)])  # all to all
ray.get(call(reduce, *[call(step) for _ in range(20)]))  # many to one
json.dump(edges, open("edges.json", "w"))
ray.shutdown()
"""


def test_the_edges_of_a_real_run_are_inferred(tmp_path: Path):
    pytest.importorskip("ray")
    (tmp_path / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD],
        cwd=tmp_path,
        env=os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_enable_export_api_write": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    real = {(maker, taker) for maker, taker in json.loads((tmp_path / "edges.json").read_text())}
    read = read_events(tmp_path / "export_events")
    assert len(read.calls) == 72
    found = infer(read.calls, {})
    inferred = {(maker, taker) for taker, makers in found.arguments.items() for maker in makers}
    assert len(real) == 9 + 14 + 80 + 20
    assert len(inferred & real) >= 0.95 * len(inferred | real), found.words
    record = import_ray(tmp_path / "export_events")
    assert len(list(record.of_kind("get"))) >= 4
    assert {row["node"] for row in record.of_kind("run")} == {"node-0"}
