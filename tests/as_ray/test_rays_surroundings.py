"""What programs for Ray see of processes, GPUs and placement groups: the same program in both modes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import dualray.as_ray

dualray.as_ray.install()
import os

import psutil
import ray
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

MODE = os.environ["DUALRAY_MODE"]


def raises(kind, text, function, *args, **named):
    try:
        function(*args, **named)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


@ray.remote
def where():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), psutil.Process().cmdline()[0] if MODE == "real" else None


@ray.remote
class Worker:
    def __init__(self):
        self.first = psutil.Process().cmdline()[0] if MODE == "real" else None

    def where(self):
        return self.first, psutil.Process().cmdline()[0] if MODE == "real" else None


os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
raises(RuntimeError, "auto_init=False", where.remote)
raises(ray.exceptions.RaySystemError, "Ray has not been started yet. You can start Ray", lambda: ray.get([]))
del os.environ["RAY_ENABLE_AUTO_CONNECT"]

os.environ["RAY_OVERRIDE_DASHBOARD_URL"] = "https://host/path?query=1"
context = ray.init(num_cpus=2, num_gpus=1)
raises(RuntimeError, "Maybe you called ray.init twice by accident?", ray.init)
assert context.dashboard_url == context.address_info["webui_url"] == "host/path?query=1"
title = "ray::where" if MODE == "real" else None
assert ray.get(where.remote()) == (None, title)  # who holds no GPU sees what the node sees
assert ray.get(where.options(num_gpus=1, name="other").remote()) == ("0", "ray::other" if MODE == "real" else None)
titles = ("ray::Worker.__init__", "ray::Worker.where") if MODE == "real" else (None, None)
assert ray.get(Worker.remote().where.remote()) == titles

os.environ["RAY_TASK_MAX_RETRIES"] = "1"


@ray.remote
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count


@ray.remote
def dies(counter):
    ray.get(counter.add.remote())
    os._exit(1)


counter = Counter.remote()
raises(ray.exceptions.WorkerCrashedError, "dies", ray.get, dies.remote(counter))
assert ray.get(counter.add.remote()) == 3

pair = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])
ray.get(pair.ready())
stats = ray.util.placement_group_table(pair)["stats"]
assert stats["scheduling_state"] == "FINISHED" and stats["scheduling_attempt"] == 1, stats
assert stats["end_to_end_creation_latency_ms"] > 0, stats
later = ray.util.placement_group([{"CPU": 2}])
stats = ray.util.placement_group_table(later)["stats"]
assert (stats["scheduling_state"], stats["end_to_end_creation_latency_ms"]) == ("NO_RESOURCES", 0), stats
never = ray.util.placement_group([{"CPU": 3}])
assert ray.util.placement_group_table(never)["stats"]["scheduling_state"] == "INFEASIBLE"
together = ray.util.placement_group([{"CPU": 2}, {"CPU": 1}])  # each of them fits the node
assert ray.util.placement_group_table(together)["stats"]["scheduling_state"] == "NO_RESOURCES"
packed = ray.util.placement_group([{"CPU": 2}, {"CPU": 1}], strategy="STRICT_PACK")
assert ray.util.placement_group_table(packed)["stats"]["scheduling_state"] == "INFEASIBLE"
apart = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
assert ray.util.placement_group_table(apart)["stats"]["scheduling_state"] == "INFEASIBLE"
for group in (never, together, packed, apart):
    ray.util.remove_placement_group(group)
for resources in (ray.cluster_resources(), ray.available_resources()):
    marks = {name: amount for name, amount in resources.items() if name.startswith("bundle_group")}
    group = pair.id.hex()
    assert marks == {f"bundle_group_{group}": 2000, f"bundle_group_0_{group}": 1000, f"bundle_group_1_{group}": 1000}
inside = PlacementGroupSchedulingStrategy(pair)
raises(ValueError, "bundle", where.options, resources={"bundle": 1}, scheduling_strategy=inside)
raises(ray.exceptions.RaySystemError, "reserved", internal_kv._internal_kv_put, "@namespace_x", "v")
ray.shutdown()
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_what_programs_for_ray_see_around_them(tmp_path, mode):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    variables = {**os.environ, "DUALRAY_MODE": mode, "PYTHONPATH": str(ROOT)}
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run([sys.executable, script], env=variables, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("said", ["RAY_TMPDIR", "_temp_dir"])
def test_a_program_says_where_the_directories_of_sessions_are(tmp_path, said):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "import ray\n"
        "context = ray.init(num_cpus=1, _temp_dir=os.environ.get('PLACE'))\n"
        "temporary = ray.remote(lambda: ray.get_runtime_context().get_temp_dir())\n"
        "assert ray.get(temporary.remote()) == os.path.dirname(context['session_dir'])\n"
        "print(context['session_dir'])\n"
    )
    variables = {**os.environ, "DUALRAY_MODE": "real", "DUALRAY_AS_RAY": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as short:  # the paths of sockets have a limit
        place = Path(short, "new")
        variables["RAY_TMPDIR" if said == "RAY_TMPDIR" else "PLACE"] = str(place)
        done = subprocess.run(
            [sys.executable, "-m", "dualray.as_ray", script], env=variables, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert Path(done.stdout.strip()).parent == place
        assert not list(place.iterdir()), "the session's directory ends with it"


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_who_names_gpus_without_a_driver_has_their_names(tmp_path, mode):
    script = tmp_path / "script.py"
    script.write_text(
        "import ray\n"
        "ray.init(num_cpus=1, num_gpus=1)\n"
        "assert ray.get(ray.remote(num_gpus=1)(ray.get_gpu_ids).remote()) == ['uuid1']\n"
    )
    variables = {**os.environ, "DUALRAY_MODE": mode, "DUALRAY_AS_RAY": "1", "PYTHONPATH": str(ROOT)}
    variables |= {"CUDA_VISIBLE_DEVICES": "uuid1,uuid2", "DUALRAY_NVML": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "dualray.as_ray", script], env=variables, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_rays_variables_keep_what_workers_see_of_accelerators(tmp_path, mode):
    """A worker without devices sees what its node does. RAY_EXPERIMENTAL_NOSET_... keeps that for all."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "import ray\n"
        "ray.init(num_cpus=1, num_gpus=1, resources={'neuron_cores': 2, 'TPU': 1})\n"
        "names = ('CUDA_VISIBLE_DEVICES', 'NEURON_RT_VISIBLE_CORES', 'TPU_VISIBLE_CHIPS', 'TPU_HOST_BOUNDS')\n"
        "seen = ray.remote(lambda: [os.environ.get(name) for name in names])\n"
        "cores, all_kinds = {'neuron_cores': 1}, {'neuron_cores': 1, 'TPU': 1}\n"
        "kept = {name: '1' for name in os.environ['KEPT'].split()}\n"
        "print(ray.get(seen.remote()))\n"
        "print(ray.get(seen.options(num_gpus=1, resources=all_kinds).remote()))\n"
        "environment = {'env_vars': kept}\n"
        "print(ray.get(seen.options(num_gpus=1, resources=all_kinds, runtime_env=environment).remote()))\n"
        "print(ray.get(seen.options(resources=cores, runtime_env=environment).remote()))\n"
        "print(ray.get(ray.remote(lambda: ray.get_runtime_context().get_accelerator_ids()['neuron_cores'])"
        ".options(resources={'neuron_cores': 2}).remote()))\n"
    )
    kept = "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "NEURON_RT_VISIBLE_CORES"
    variables = {**os.environ, "DUALRAY_MODE": mode, "DUALRAY_AS_RAY": "1", "PYTHONPATH": str(ROOT)}
    variables |= {"CUDA_VISIBLE_DEVICES": "5,7", "DUALRAY_NVML": "off", "NEURON_RT_VISIBLE_CORES": "4,6"}
    variables |= {"KEPT": " ".join(f"RAY_EXPERIMENTAL_NOSET_{name}" for name in kept)}
    done = subprocess.run(
        [sys.executable, "-m", "dualray.as_ray", script], env=variables, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.splitlines() == [
        "['5,7', '4,6', None, None]",
        "['5', '4', '0', '1,1,1']",
        "['5,7', '4,6', None, None]",
        "['5,7', '4,6', None, None]",
        "['4', '6']",
    ], done.stderr


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_rays_variable_hides_the_accelerators_that_a_task_does_not_hold(tmp_path, mode):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "import ray\n"
        "ray.init(num_cpus=1, num_gpus=1, resources={'neuron_cores': 2})\n"
        "names = ('CUDA_VISIBLE_DEVICES', 'NEURON_RT_VISIBLE_CORES', 'RBLN_DEVICES')\n"
        "seen = ray.remote(lambda: [os.environ.get(name) for name in names])\n"
        "for cores in (0, 2, 0):\n"
        "    print(ray.get(seen.options(resources={'neuron_cores': cores}).remote()))\n"
        "print(os.environ.get('RBLN_DEVICES'))\n"
    )
    variables = {**os.environ, "DUALRAY_MODE": mode, "DUALRAY_AS_RAY": "1", "PYTHONPATH": str(ROOT)}
    variables |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1", "NEURON_RT_VISIBLE_CORES": "4,6", "DUALRAY_NVML": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "dualray.as_ray", script], env=variables, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.splitlines() == ["['', '', '']", "['', '4,6', '']", "['', '', '']", "None"], done.stderr
