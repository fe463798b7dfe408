"""A second program joins the cluster that another program has made with `init()`, as on Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import dualray as ray
from dualray.exceptions import DualrayError
from dualray.util.placement_group import get_placement_group, placement_group
from dualray.util.state import list_jobs, list_placement_groups

SECOND = """
import json, sys
import dualray as ray

context = ray.init(address=sys.argv[1], namespace="ours", log_to_driver=True)
counter = ray.get_actor("counter")

@ray.remote
def square(x):
    print("square of", x)
    return x * x

@ray.remote
class Mine:
    def pid(self):
        import os
        return os.getpid()

mine = Mine.options(name="mine").remote()
large = ray.put(bytes(1 << 20))
with open("found.json", "w") as file: json.dump({
    "count": ray.get(counter.add.remote()),
    "squares": ray.get([square.remote(x) for x in range(3)]),
    "mine": ray.get(mine.pid.remote()),
    "large": len(ray.get(large)),
    "job": ray.get_runtime_context().get_job_id(),
}, file)
"""


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture
def counter():
    ray.init(num_cpus=3, namespace="ours")
    counter = ray.remote(Counter).options(name="counter").remote()
    assert ray.get(counter.add.remote()) == 1
    yield counter
    ray.shutdown()


def second(tmp_path: Path, address: str, code: str = SECOND) -> subprocess.CompletedProcess[str]:
    (tmp_path / "second.py").write_text(code)
    return subprocess.run(
        [sys.executable, "second.py", address],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(ray.__file__).parents[1])},
    )


def told(tmp_path: Path, address: str) -> tuple[dict[str, Any], str]:
    """What the second program found, and what it printed. A file: its tasks' lines come between its own."""
    ran = second(tmp_path, address)
    assert ran.returncode == 0, ran.stderr
    return json.loads((tmp_path / "found.json").read_text()), ran.stdout


def _eventually_jobs() -> dict[str, str]:
    """The jobs, when the cluster knows that the second program has left."""
    deadline = time.monotonic() + 20
    while True:
        jobs = {job.job_id: job.status for job in list_jobs()}
        if set(jobs.values()) != {"RUNNING"} or time.monotonic() > deadline:
            return jobs
        time.sleep(0.05)


GROUPS = """
import sys
import dualray as ray
from dualray.util.placement_group import placement_group, get_placement_group

for namespace in ("other", "ours"):
    ray.init(address=sys.argv[1], namespace=namespace)
    try:
        group = get_placement_group("named")
    except ValueError:
        group = placement_group([{"CPU": 0.1}], name="named", lifetime="detached")
    ray.get(group.ready())
    print(namespace, group.id.hex())
    ray.shutdown()
"""


def test_placement_groups_have_their_names_in_namespaces(tmp_path, counter):
    mine = placement_group([{"CPU": 0.1}], name="named")
    ray.get(mine.ready())
    ran = second(tmp_path, ray.runtime.current("test").addresses()["control_plane_address"], GROUPS)
    assert ran.returncode == 0, ran.stderr
    found = dict(line.split() for line in ran.stdout.splitlines())
    assert found["ours"] == mine.id.hex() != found["other"]
    assert get_placement_group("named") == mine
    assert {row.ray_namespace for row in list_placement_groups()} == {"ours", "other"}


@pytest.mark.parametrize("field", ["auto", "session_dir", "control_plane_address"])
def test_a_second_program_uses_the_first_ones_cluster_and_leaves_it_running(tmp_path, counter, field):
    actor = counter
    address = field if field == "auto" else ray.runtime.current("test").addresses()[field]
    found, printed = told(tmp_path, address)
    assert (found["count"], found["squares"], found["large"]) == (2, [0, 1, 4], 1 << 20)
    assert found["job"] == "00000002"
    assert _eventually_jobs() == {"00000001": "RUNNING", "00000002": "SUCCEEDED"}
    assert printed.count("square of") == 3, "what its tasks print comes to it, and not to the first"
    assert ray.get(actor.add.remote()) == 3
    with pytest.raises(ValueError, match="mine"):
        ray.get_actor("mine")  # it ended with the driver that made it


def test_each_program_that_joins_has_a_job_of_its_own(tmp_path, counter):
    jobs = {told(tmp_path, "auto")[0]["job"] for _ in range(2)}
    assert jobs == {"00000002", "00000003"}


def test_the_end_of_the_first_program_is_an_error_for_the_second(tmp_path):
    waits = (
        "import sys, time, dualray as ray\nray.init(address=sys.argv[1])\n"
        "@ray.remote\ndef long():\n    time.sleep(60)\n"
        "print('joined', flush=True)\n"
        "ray.get(long.remote())\n"
    )
    ray.init(num_cpus=1)
    (tmp_path / "second.py").write_text(waits)
    with subprocess.Popen(
        [sys.executable, "second.py", "auto"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(ray.__file__).parents[1])},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        ray.shutdown()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "is gone" in errors


def test_a_session_that_has_ended_is_named():
    with pytest.raises(
        DualrayError, match="no running cluster of this user has the session directory /tmp/dualray-1-gone"
    ):
        ray.init(address="/tmp/dualray-1-gone")


def test_the_commands_find_the_cluster_of_a_program(counter):
    for words, expected in (
        (["status"], "node-0"),
        (["status"], "Cluster at /"),
        (["list", "actors", "--json"], '"counter"'),
        (["get", "actor", "counter"], "ALIVE"),
        (["summary", "tasks"], "Counter.add"),
        (["memory"], "bytes"),
    ):
        shown = subprocess.run([sys.executable, "-m", "dualray", *words], capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0, shown.stderr
        assert expected in shown.stdout, shown.stdout


def test_the_state_of_a_cluster_comes_as_json(counter):
    command = [sys.executable, "-m", "dualray", "status", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    page = (Path(__file__).parents[3] / "docs" / "api" / "json.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| `status` |"))
    assert row == f"| `status` | {', '.join(f'`{key}`' for key in sorted(found))} |"
    assert [node["NodeID"] for node in found["nodes"]] == ["node-0"]
    assert ray.runtime.current("test").addresses()["control_plane_address"] == found["address"]
