"""Accelerators other than GPUs: how a machine finds its own, and how a node's variables name and narrow them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dualray as ray
from dualray.real.processes import accelerators
from dualray.real.processes.accelerators import find, found_to_offer, names_to_offer, resources_of_pod
from dualray.shared.model.accelerators import KINDS, with_types
from dualray.shared.model.demands import parse_named
from dualray.visible_devices import VisibleDevices
from tests.conformance.support import get

CORES = "NEURON_RT_VISIBLE_CORES"


@ray.remote
def look(name):
    return os.environ.get(name), ray.get_runtime_context().get_accelerator_ids()


@pytest.fixture
def machine(tmp_path) -> Path:
    """The devices of a machine, in a directory."""
    for path in ("dev", "groups"):
        (tmp_path / path).mkdir()
    return tmp_path


def add(machine: Path, *names: str) -> None:
    for name in names:
        path = machine / "dev" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()


def find_on(machine: Path) -> dict[str, int]:
    return find(machine / "dev", machine / "groups")


def test_a_machine_without_devices_has_no_accelerators(machine):
    (machine / "dev" / "accel").mkdir()  # a directory of other drivers
    assert find_on(machine) == {}
    assert find(machine / "nothing", machine / "nothing") == {}


def test_drivers_make_files_for_their_devices(machine):
    add(machine, "davinci0", "davinci1", "davinci_manager", "tenstorrent/0", "aries0", "regulus-npu0", "regulus")
    add(machine, "accel0", "accel1", "accel2", "accel3")
    assert find_on(machine) == {"NPU": 2, "TTNPU": 1, "MBLT": 2, "TPU": 4}


def test_a_tpu_may_have_a_group_of_vfio_instead(machine):
    add(machine, "vfio/3", "vfio/4", "vfio/vfio")
    for group, vendor in ((3, "0x1ae0\n"), (4, "0x8086\n")):
        path = machine / "groups" / str(group) / "devices" / "0000:00:05.0"
        path.mkdir(parents=True)
        (path / "vendor").write_text(vendor)
    assert find_on(machine) == {"TPU": 1}


def test_the_command_of_aws_counts_the_neuron_cores(machine, monkeypatch):
    command = machine / "neuron-ls"
    monkeypatch.setattr(accelerators, "_NEURON_LS", command)
    assert find_on(machine) == {}
    command.write_text('#!/bin/sh\necho \'[{"nc_count": 2}, {"nc_count": 2}]\'\n')
    command.chmod(0o755)
    assert find_on(machine) == {"neuron_cores": 4}
    command.write_text("#!/bin/sh\nexit 1\n")
    assert find_on(machine) == {}


# ---- What a node offers ----------------------------------------------------------------------------------------------


def test_a_node_offers_what_there_is_and_the_variable_shows(monkeypatch):
    monkeypatch.setattr(accelerators, "find", lambda: {"TPU": 4, "NPU": 2})
    assert found_to_offer(None) == {"TPU": 4, "NPU": 2}
    assert found_to_offer({"TPU": 8, "disk": 1}) == {"NPU": 2}
    assert found_to_offer({"NPU": 0}) == {"TPU": 4}
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "1,3")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "NoDevFiles")
    assert found_to_offer(None) == {"TPU": 2}


def test_devices_are_called_as_in_the_variable(monkeypatch):
    total = parse_named({"GPU": 1, "neuron_cores": 2, "FURIOSA": 1})
    assert names_to_offer(total, ("0",)) == {"GPU": ("0",), "neuron_cores": ("0", "1"), "FURIOSA": ("0",)}
    monkeypatch.setenv(CORES, "4, 6,7")
    monkeypatch.setenv("FURIOSA_DEVICES", "npu:3:0-3")
    assert names_to_offer(total, ("GPU-x",)) == {"GPU": ("GPU-x",), "neuron_cores": ("4", "6"), "FURIOSA": ("3",)}
    monkeypatch.setenv(CORES, "4")
    with pytest.raises(ValueError, match=r"'neuron_cores': 2\}, but NEURON_RT_VISIBLE_CORES='4' shows only 1"):
        names_to_offer(total, ("0",))


def test_a_pod_of_tpus_is_described_by_the_environment(monkeypatch):
    assert resources_of_pod({}) == resources_of_pod({"TPU_ACCELERATOR_TYPE": "v4"}) == {}
    assert resources_of_pod({"TPU_ACCELERATOR_TYPE": "v5litepod-16"}) == {"accelerator_type:TPU-V5LITEPOD": 1}
    variables = {"TPU_ACCELERATOR_TYPE": "tpu7x-8", "TPU_NAME": "mine", "TPU_WORKER_ID": "1"}
    assert resources_of_pod(variables) == {"accelerator_type:TPU-V7X": 1, "mine": 1}
    for name, value in {**variables, "TPU_WORKER_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert found_to_offer({"TPU": 4}) == {"accelerator_type:TPU-V7X": 1, "mine": 1, "TPU-v7x-8-head": 1}
    assert found_to_offer({"disk": 4}) == {}


def test_a_node_with_neuron_cores_offers_their_type():
    total = parse_named({"CPU": 1, "neuron_cores": 2})
    assert with_types(total).as_floats() == {"CPU": 1, "neuron_cores": 2, "accelerator_type:aws-neuron-core": 1}
    assert with_types(with_types(total)) == with_types(total)
    assert with_types(parse_named({"CPU": 1})) == parse_named({"CPU": 1})


# ---- In a worker -----------------------------------------------------------------------------------------------------


def test_tasks_see_the_devices_of_the_users_variable(monkeypatch):
    monkeypatch.setenv(CORES, "4,6")
    ray.init(num_cpus=1, resources={"neuron_cores": 2})
    try:
        shown, ids = get(look.options(resources={"neuron_cores": 2}).remote(CORES))
        assert (shown, ids["neuron_cores"]) == ("4,6", ["4", "6"])
        shown, ids = get(look.options(resources={"neuron_cores": 1}).remote(CORES))
        assert (shown, ids["neuron_cores"]) == ("4", ["4"])
        shown, ids = get(look.remote(CORES))
        assert (shown, ids["neuron_cores"]) == ("4,6", []), "other kinds than GPUs are not hidden"
    finally:
        ray.shutdown()


def test_more_devices_than_the_variable_shows_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv(CORES, "3")
    with pytest.raises(ValueError, match="NEURON_RT_VISIBLE_CORES='3' shows only 1"):
        ray.init(resources={"neuron_cores": 2})
    assert not ray.is_initialized()


def test_a_process_has_its_variables_back_when_it_holds_nothing(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TPU_VISIBLE_CHIPS", raising=False)
    monkeypatch.setenv("TPU_HOST_BOUNDS", "of the node")
    tpu = [kind.name for kind in KINDS].index("TPU") * 2**24
    devices = VisibleDevices({"TPU": ("0", "1", "2", "3")})
    devices.show((tpu + 3,), "")
    assert os.environ["TPU_VISIBLE_CHIPS"] == "3"
    assert os.environ["TPU_HOST_BOUNDS"] == "1,1,1"
    devices.show((tpu, tpu + 1, tpu + 2, tpu + 3), "")
    assert os.environ["TPU_VISIBLE_CHIPS"] == "0,1,2,3"
    assert os.environ["TPU_HOST_BOUNDS"] == "of the node"
    devices.show((), "")
    assert "TPU_VISIBLE_CHIPS" not in os.environ


def test_each_kind_of_ray_is_here():
    """As Ray 2.60 lists them: the resource, the variable, and the one that keeps it."""
    managers = pytest.importorskip("ray._private.accelerators")
    by_name = {kind.name: kind for kind in KINDS}
    assert set(by_name) == managers.get_all_accelerator_resource_names()
    for name, kind in by_name.items():
        manager = managers.get_accelerator_manager_for_resource(name)
        assert manager.get_visible_accelerator_ids_env_var() == kind.variable
        assert manager.validate_resource_request_quantity(0.5)[0] == kind.is_shared
        module = Path(str(__import__(manager.__module__, fromlist=["x"]).__file__)).read_text()
        assert f'"{kind.keeps_variable}"' in module
