from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dualray as ray
from dualray.cluster_utils import Cluster
from dualray.real.processes import gpus
from dualray.real.processes.gpus import Gpu, gpus_to_offer, parse_mask, visible
from dualray.visible_devices import VisibleDevices

MASK = "CUDA_VISIBLE_DEVICES"
TWO = [Gpu("GPU-aaaa-1"), Gpu("GPU-aabb-2")]
CUT = [Gpu("GPU-aaaa-1", ("MIG-1111", "MIG-2222")), Gpu("GPU-bbbb-2")]
TIMEOUT_S = 30


@ray.remote
def look():
    return os.environ.get(MASK), ray.get_gpu_ids(), ray.get_runtime_context().get_accelerator_ids()["GPU"]


@ray.remote(num_gpus=1)
class Holder:
    def __init__(self):
        self.at_first = os.environ[MASK]

    def look(self):
        return self.at_first, os.environ[MASK], ray.get_gpu_ids()


def get(refs):
    return ray.get(refs, timeout=TIMEOUT_S)


# ---- The mask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (None, None),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("2,0", ["2", "0"]),
        (" 1 , 3 ", ["1", "3"]),
        ("1,-1,2", ["1"]),
        ("0,1.5", ["0"]),
        ("GPU-aaaa-1,0", ["GPU-aaaa-1", "0"]),
        ("MIG-1111", ["MIG-1111"]),
        ("MIG-GPU-aaaa-1/1/0", ["MIG-GPU-aaaa-1/1/0"]),
        ("0,", ["0"]),
    ],
)
def test_a_mask_is_read_up_to_what_cuda_would_stop_at(text, entries):
    assert parse_mask(text) == entries


def test_a_mask_that_names_a_gpu_twice_is_an_error():
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES='1,0,1' names 1 twice, so CUDA shows no GPU"):
        parse_mask("1,0,1")


@pytest.mark.parametrize(
    ("found", "mask", "names"),
    [
        (TWO, None, ["0", "1"]),
        (TWO, [], []),
        (TWO, ["1"], ["1"]),
        (TWO, ["1", "0"], ["1", "0"]),
        (TWO, ["0", "2", "1"], ["0"]),
        (TWO, ["GPU-aaaa-1"], ["GPU-aaaa-1"]),
        (TWO, ["GPU-aab"], ["GPU-aab"]),
        (TWO, ["GPU-aa"], []),
        (CUT, None, ["MIG-1111", "MIG-2222", "1"]),
        (CUT, ["MIG-2222"], ["MIG-2222"]),
        (CUT, ["MIG-3333"], []),
        (CUT, ["MIG-GPU-aaaa-1/2/0"], ["MIG-GPU-aaaa-1/2/0"]),
        (CUT, ["MIG-GPU-cccc/2/0"], []),
        ([Gpu("GPU-aaaa-1", ())], None, []),
    ],
)
def test_what_the_mask_shows_of_what_there_is(found, mask, names):
    assert visible(found, mask) == names


# ---- What NVML says ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """The directory of a driver's library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make the driver's library with")
    directory = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parents[2] / "data" / "nvml.c"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        "-o",
        str(directory / "libnvidia-ml.so.1"),
        str(source),
    ]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    return directory


def found_with(driver: Path | None, declared: float | None = None, **environment: str) -> tuple[object, str]:
    """What a process offers that runs with this driver and environment, or its error; and its log."""
    program = (
        "import json, logging, sys\n"
        "logging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s')\n"
        "from dualray.real.processes.gpus import gpus_to_offer\n"
        f"offered = [gpus_to_offer({declared}) for _ in range(2)]\n"
        "assert offered[0] == offered[1]\n"
        "print(json.dumps(offered[0]))"
    )
    clean = {name: value for name, value in os.environ.items() if name not in (MASK, "DUALRAY_NVML")}
    path = {"LD_LIBRARY_PATH": str(driver)} if driver is not None else {}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, **path, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return (json.loads(ran.stdout) if ran.returncode == 0 else None), ran.stderr


def test_the_gpus_that_the_driver_knows_are_offered(driver):
    assert found_with(driver, TEST_GPUS="GPU-aaaa GPU-bbbb") == (["0", "1"], "")
    assert found_with(driver, TEST_GPUS="GPU-aaaa/MIG-1,MIG-2 GPU-bbbb") == (["MIG-1", "MIG-2", "1"], "")
    assert found_with(driver, TEST_GPUS="") == ([], "")


def test_the_mask_narrows_what_the_driver_knows(driver):
    gpus = "GPU-aaaa GPU-bbbb GPU-cccc"
    assert found_with(driver, TEST_GPUS=gpus, CUDA_VISIBLE_DEVICES="2,0") == (["2", "0"], "")
    assert found_with(driver, TEST_GPUS=gpus, CUDA_VISIBLE_DEVICES="") == ([], "")
    offered, log = found_with(driver, TEST_GPUS=gpus, CUDA_VISIBLE_DEVICES="GPU-bbbb,7,0")
    assert offered == ["GPU-bbbb"]
    assert log.count("CUDA_VISIBLE_DEVICES names 7, which this machine does not have") == 1


def test_a_part_of_what_there_is_can_be_declared_and_no_more(driver):
    gpus = "GPU-aaaa GPU-bbbb"
    assert found_with(driver, 1, TEST_GPUS=gpus, CUDA_VISIBLE_DEVICES="1,0") == (["1"], "")
    assert found_with(driver, 0.5, TEST_GPUS=gpus) == (["0"], "")
    _, log = found_with(driver, 3, TEST_GPUS=gpus)
    assert "ValueError: num_gpus=3, but this machine has 2 GPUs; declare at most 2, or set DUALRAY_NVML=off" in log
    _, log = found_with(driver, 2, TEST_GPUS=gpus, CUDA_VISIBLE_DEVICES="1")
    assert "ValueError: num_gpus=2, but CUDA_VISIBLE_DEVICES='1' shows 1 GPUs of this machine" in log
    assert found_with(driver, 3, TEST_GPUS=gpus, DUALRAY_NVML="off") == (["0", "1", "2"], "")


def test_a_driver_that_does_not_work_means_no_gpus_and_is_said_once(driver):
    offered, log = found_with(driver, TEST_NVML_ERROR="18")
    assert offered == []
    assert log.startswith("WARNING dualray found no GPUs: NVIDIA's driver says ")
    assert log.count("mismatch") == 1


def test_no_driver_means_no_gpus_and_is_said_once():
    offered, log = found_with(None)
    if "no NVIDIA driver" not in log:
        pytest.skip("this machine has a driver")
    assert offered == []
    assert log == "INFO dualray found no GPUs: this machine has no NVIDIA driver (libnvidia-ml.so.1 cannot be loaded)\n"


# ---- Declared, on machines without -----------------------------------------------------------------------------------


def test_declared_gpus_are_numbered_or_called_as_in_the_mask(monkeypatch):
    assert gpus_to_offer(None) == ()
    assert gpus_to_offer(0) == ()
    assert gpus_to_offer(1.0) == ("0",)
    assert gpus_to_offer(3) == ("0", "1", "2")
    monkeypatch.setenv(MASK, "5,GPU-cccc,3")
    assert gpus_to_offer(2) == ("5", "GPU-cccc")
    with pytest.raises(ValueError, match="num_gpus=4, but CUDA_VISIBLE_DEVICES='5,GPU-cccc,3' shows 3 GPUs"):
        gpus_to_offer(4)
    monkeypatch.setenv(MASK, "")
    with pytest.raises(ValueError, match="num_gpus=1, but CUDA_VISIBLE_DEVICES='' shows 0 GPUs of this machine"):
        gpus_to_offer(1)


def test_a_process_is_shown_its_gpus_and_what_it_writes_itself_stays(monkeypatch):
    monkeypatch.setenv(MASK, "")
    gpus = VisibleDevices({"GPU": ("4", "GPU-c")})
    gpus.show((1, 0), "")
    assert os.environ[MASK] == "GPU-c,4"
    os.environ[MASK] = "4"
    gpus.show((1, 0), "")
    assert os.environ[MASK] == "4"
    gpus.show((), "")
    assert os.environ[MASK] == ""


def test_tasks_see_the_gpus_of_the_users_mask(monkeypatch):
    monkeypatch.setenv(MASK, "7,GPU-5f0e")
    ray.init(num_cpus=2, num_gpus=2)
    try:
        assert get(look.options(num_gpus=2).remote()) == ("7,GPU-5f0e", [7, "GPU-5f0e"], ["7", "GPU-5f0e"])
        assert get(look.remote()) == ("", [], [])
        holders = [Holder.remote() for _ in range(2)]
        seen = get([holder.look.remote() for holder in holders])
        assert sorted(seen) == [("7", "7", [7]), ("GPU-5f0e", "GPU-5f0e", ["GPU-5f0e"])]
        assert os.environ[MASK] == "7,GPU-5f0e"
    finally:
        ray.shutdown()


def test_more_gpus_than_the_mask_shows_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv(MASK, "3")
    with pytest.raises(ValueError, match="num_gpus=2, but CUDA_VISIBLE_DEVICES='3' shows 1 GPUs"):
        ray.init(num_gpus=2)
    assert not ray.is_initialized()


def test_a_module_that_reads_the_mask_when_it_is_imported_reads_the_tasks(tmp_path, monkeypatch):
    """Unpickling the function, and its arguments, imports what they need: the mask is there before."""
    (tmp_path / "reads_the_mask.py").write_text(
        "import os\nMASK = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "class Value:\n    def __init__(self): self.mask = MASK\n"
        "    def __reduce__(self): return Value, ()\n"
        "def read(value): return MASK, value.mask\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reads_the_mask = importlib.import_module("reads_the_mask")

    ray.init(num_cpus=1, num_gpus=2)
    try:
        read = ray.remote(reads_the_mask.read)
        assert get(read.remote(reads_the_mask.Value())) == ("", "")
        assert get(read.options(num_gpus=2).remote(reads_the_mask.Value())) == ("0,1", "0,1")
    finally:
        ray.shutdown()


class _MaskWhenUnpickled:
    """Where it is unpickled it becomes what the mask says there."""

    def __reduce__(self):
        return eval, (f"__import__('os').environ.get({MASK!r})",)


def test_tasks_that_run_in_a_batch_see_their_gpus_when_their_arguments_are_unpickled(monkeypatch):
    monkeypatch.setenv(MASK, "3,5")

    @ray.remote(num_cpus=0.1)
    def read(mask):
        return mask, ",".join(map(str, ray.get_gpu_ids()))

    ray.init(num_cpus=1, num_gpus=1)
    try:
        with_gpu = [read.options(num_gpus=1).remote(_MaskWhenUnpickled()) for _ in range(100)]
        assert set(get(with_gpu)) == {("3", "3")}
        assert set(get([read.remote(_MaskWhenUnpickled()) for _ in range(100)])) == {("", "")}
    finally:
        ray.shutdown()


def test_each_node_of_a_cluster_has_its_own():
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=1, num_gpus=1)
        assert ray.cluster_resources()["GPU"] == 1
        assert get(look.options(num_gpus=1).remote()) == ("0", [0], ["0"])


# ---- Without nvidia-ml-py -------------------------------------------------------------------------------------------

LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa-1)
  MIG 1g.10gb     Device  0: (UUID: MIG-1111)
  MIG 3g.40gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA H100 (with parentheses) (UUID: GPU-bbbb-2)
"""


def test_without_nvidia_ml_py_the_drivers_own_command_lists_the_gpus(tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{LISTED}END\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpus._listed_gpus() == CUT


def test_a_driver_whose_gpus_nothing_can_list_is_said_with_the_way_out(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    gpus._say_once.cache_clear()
    assert gpus._listed_gpus() is None
    assert "pip install 'dualray[gpu]'" in caplog.text
