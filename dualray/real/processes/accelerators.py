"""The accelerators of this machine that a node may offer, and their names.

Theory of operation. GPUs come from NVIDIA's driver (gpus.py). Of the other kinds, the files in /dev that a driver makes
say how many there are, and for Neuron cores AWS's own command. What a user declares is taken as it is, so that programs
can be tried anywhere. Each kind has an environment variable, such as TPU_VISIBLE_CHIPS. If it is set when the node
starts, the node offers only the devices that it names.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dualray.shared.model.accelerators import KINDS, TPU, TYPE, names_in, numbered
from dualray.shared.model.resources import GPU, UNITS, Resources

_NEURON_LS: Final = Path("/opt/aws/neuron/bin/neuron-ls")
_LISTING_TIMEOUT_S: Final = 20.0
_GOOGLE: Final = "0x1ae0"
"""The vendor of TPUs on a PCI bus."""
_VERSION: Final = re.compile(r"^tpu-?v?")
_POD: Final = re.compile(r"v\d+[a-z]*-\d+")
"""Such as v4-16: the version, and the number of cores or chips."""


def find(devices: Path = Path("/dev"), groups: Path = Path("/sys/kernel/iommu_groups")) -> dict[str, int]:
    """How many devices this machine has, by the kind: of those other than GPUs, for which drivers make files."""
    counts: dict[str, Callable[[], int]] = {
        "neuron_cores": _count_neuron_cores,
        TPU: lambda: _count_tpus(devices, groups),
        "NPU": lambda: _count(devices, "davinci[0-9]*"),
        "TTNPU": lambda: _count(devices, "tenstorrent/*"),
        "MBLT": lambda: _count(devices, "aries[0-9]*") + _count(devices, "regulus-npu*"),
    }
    return {kind: number for kind, count in counts.items() if (number := count())}


def _count(devices: Path, pattern: str) -> int:
    return sum(not path.is_dir() for path in devices.glob(pattern))


def _count_tpus(devices: Path, groups: Path) -> int:
    """By their files; a driver without such files has a group of VFIO for each."""
    found = _count(devices, "accel*")  # /dev/accel is a directory of other drivers
    if found:
        return found
    return sum(_is_tpu(groups / path.name / "devices") for path in (devices / "vfio").glob("[0-9]*"))


def _is_tpu(group: Path) -> bool:
    try:
        return any(vendor.read_text().strip().lower() == _GOOGLE for vendor in group.glob("*/vendor"))
    except OSError:
        return False


def _count_neuron_cores() -> int:
    if not _NEURON_LS.exists():
        return 0
    try:
        listed = subprocess.run(
            [str(_NEURON_LS), "--json-output"], capture_output=True, timeout=_LISTING_TIMEOUT_S, check=True
        )
        return sum(int(device.get("nc_count", 0)) for device in json.loads(listed.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logging.getLogger("dualray").warning("dualray found no Neuron cores: %s failed (%s)", _NEURON_LS, error)
        return 0


def found_to_offer(declared: Mapping[str, float] | None) -> dict[str, float]:
    """Return the accelerators other than GPUs that a node of this machine offers and that nobody has declared."""
    offered = {kind: count for kind, count in find().items() if kind not in (declared or {})}
    for kind in KINDS:
        text = os.environ.get(kind.variable)
        if text is not None and kind.name in offered:
            offered[kind.name] = min(offered[kind.name], len(names_in(kind, text)))
    found = {kind: float(count) for kind, count in offered.items() if count}
    if TPU in found or (declared or {}).get(TPU):
        of_pod = resources_of_pod(os.environ)
        found |= {name: amount for name, amount in of_pod.items() if name not in (declared or {})}
    return found


def resources_of_pod(environ: Mapping[str, str]) -> dict[str, float]:
    """Return the resources that a node with TPUs has as a part of a pod, which GKE describes in the environment.

    These are the type of the TPUs and the name of the pod. The pod's first machine also has a resource for the task
    that starts the others.
    """
    pod = _VERSION.sub("v", environ.get("TPU_ACCELERATOR_TYPE", "").strip().lower())
    if _POD.fullmatch(pod) is None:
        return {}
    found = {f"{TYPE}TPU-{pod.partition('-')[0].upper()}": 1.0}
    name, worker = environ.get("TPU_NAME", ""), environ.get("TPU_WORKER_ID", "")
    if name and worker.isdecimal():
        found[name] = 1.0
        if int(worker) == 0:
            found[f"TPU-{pod}-head"] = 1.0
    return found


def names_to_offer(total: Resources, gpu_names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The names of the devices of a node that offers these resources: the entries of each kind's variable, or numbers.

    Raises:
        ValueError: a variable shows fewer devices than the node offers.
    """
    found = numbered(dict(total.units))
    for kind in KINDS:
        text = os.environ.get(kind.variable)
        if kind.name == GPU or kind.name not in found or text is None:
            continue
        count, names = len(found[kind.name]), names_in(kind, text)
        if count > len(names):
            raise ValueError(
                f"resources={{{kind.name!r}: {total.get(kind.name) / UNITS:g}}}, but {kind.variable}={text!r} "
                f"shows only {len(names)} {kind.name} of this machine. Declare at most {len(names)}, or change "
                f"{kind.variable}. (Attempting to start raylet with {count} {kind.name}, but {kind.variable} "
                f"contains {list(names)}.)"
            )
        found[kind.name] = names[:count]
    return {**found, GPU: gpu_names} if gpu_names else found
