"""The GPUs of this machine that a node may offer.

Theory of operation. NVML, the library of NVIDIA's driver, says which GPUs there are; a GPU in MIG mode counts as the
instances that it is cut into. CUDA_VISIBLE_DEVICES of whoever starts the node, the *mask*, narrows and orders them as
CUDA itself does: it is read up to its first entry that names nothing. `num_gpus=` takes the first so many. On a machine
without a driver `num_gpus=` alone says how many there are, so that programs can be tried anywhere.

The core counts GPUs from 0. Each has a *name* here, which is its entry in the mask, or its number where there is none:
what a worker's own CUDA_VISIBLE_DEVICES and `get_gpu_ids()` are made of. A worker sees the GPUs of its lease, and
without one none, before anything of the user's is loaded; CUDA reads the variable once, when it is first used, which is
why the core gives GPUs only to workers that have run nothing before (dualray/visible_devices.py).

Relies on: nvidia-ml-py for calling NVML; it is imported only where the library can be loaded.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dualray.shared.model.resources import GPU_MASK

DISCOVERY: Final = "DUALRAY_NVML"
"""`off`: do not look for GPUs, as if the machine had no driver."""

_LIBRARY: Final = "libnvidia-ml.so.1"
_LISTING_TIMEOUT_S: Final = 20.0
_LISTED: Final = re.compile(r"^\s*(GPU|MIG) .*\(UUID: ([^)\s]+)\)\s*$", re.MULTILINE)
_NO_DEVICES: Final = "NoDevFiles"
_log = logging.getLogger("dualray")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML knows it. `instances` are the UUIDs of its MIG instances; None when it is not in MIG mode."""

    uuid: str
    instances: tuple[str, ...] | None = None


def gpus_to_offer(declared: float | None) -> tuple[str, ...]:
    """The names of the GPUs that a node of this machine offers.

    Args:
        declared: `num_gpus=`; None: all that there are and the mask shows.
    Raises:
        ValueError: more are declared than there are to see; a mask that names one twice.
    """
    if declared == 0:
        return ()
    mask = parse_mask(os.environ.get(GPU_MASK))
    found = find_gpus()
    if found is not None:
        names = visible(found, mask)
    elif declared is None:
        names = []
    else:
        names = [str(gpu) for gpu in range(math.ceil(declared))] if mask is None else _named_without_driver(mask)
    if declared is None:
        return tuple(names)
    count = math.ceil(declared)
    if count > len(names):
        if mask is not None:
            raise ValueError(
                f"num_gpus={declared:g}, but {GPU_MASK}={os.environ[GPU_MASK]!r} shows {len(names)} GPUs of this "
                f"machine; declare at most {len(names)}, or change {GPU_MASK}"
            )
        raise ValueError(
            f"num_gpus={declared:g}, but this machine has {len(names)} GPUs; declare at most {len(names)}, or set "
            f"{DISCOVERY}=off to declare GPUs that do not exist"
        )
    return tuple(names[:count])


def _named_without_driver(mask: list[str]) -> list[str]:
    """The entries of a mask where nobody can say what they name: all, if CUDA would not know the first one."""
    entries = os.environ[GPU_MASK].split(",")
    return mask or [entry for entry in map(str.strip, entries) if entry not in ("", "-1", _NO_DEVICES)]


# ---- The mask ----------------------------------------------------------------------------------------------------


def parse_mask(text: str | None) -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES up to the first that cannot be one; None when it is not set.

    Raises:
        ValueError: an entry comes twice: CUDA then shows no GPU at all.
    """
    if text is None:
        return None
    entries: list[str] = []
    if text.strip() == _NO_DEVICES:
        return entries
    for entry in (part.strip() for part in text.split(",")):
        if not entry.isdigit() and not entry.startswith(("GPU-", "MIG-")):
            break  # -1 among others: CUDA shows what comes before it
        if entry in entries:
            raise ValueError(f"{GPU_MASK}={text!r} names {entry} twice, so CUDA shows no GPU; name each GPU once")
        entries.append(entry)
    return entries


def visible(found: Sequence[Gpu], mask: list[str] | None) -> list[str]:
    """The names of the GPUs that CUDA shows: all, or those of the mask up to its first entry that names none."""
    if mask is None:
        names: list[str] = []
        for number, gpu in enumerate(found):
            names += [str(number)] if gpu.instances is None else gpu.instances
        return names
    shown = []
    for entry in mask:
        if not _names_one(found, entry):
            words = f"{GPU_MASK} names {entry}, which this machine does not have: CUDA ignores it and what follows"
            _say_once(logging.WARNING, words)
            break
        shown.append(entry)
    return shown


def _names_one(found: Sequence[Gpu], entry: str) -> bool:
    """Whether an entry of the mask names one GPU, or one MIG instance: by number, by UUID, or by a UUID's beginning
    that only one has; an old driver's instances are MIG-<UUID of the GPU>/<gi>/<ci>."""
    if entry.isdigit():
        return int(entry) < len(found)
    uuids = [gpu.uuid for gpu in found]
    if entry.startswith("MIG-GPU-"):
        return entry.removeprefix("MIG-").partition("/")[0] in uuids
    if entry.startswith("MIG-"):
        uuids = [instance for gpu in found for instance in gpu.instances or ()]
    return sum(uuid.startswith(entry) for uuid in uuids) == 1


# ---- What there is -----------------------------------------------------------------------------------------------


def find_gpus() -> list[Gpu] | None:
    """The GPUs that NVML knows; None when there is no driver, or it does not work, which is said in the log, once."""
    if os.environ.get(DISCOVERY, "").lower() == "off":
        return None
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        _say_once(
            logging.INFO, f"dualray found no GPUs: this machine has no NVIDIA driver ({_LIBRARY} cannot be loaded)"
        )
        return None
    try:
        import pynvml  # noqa: PLC0415 - a large module, and one that only machines with a driver need
    except ModuleNotFoundError:
        return _listed_gpus()
    try:
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
            return [Gpu(uuid=_uuid(pynvml, handle), instances=_instances(pynvml, handle)) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        _say_once(logging.WARNING, f"dualray found no GPUs: NVIDIA's driver says {error}")
        return None


def _listed_gpus() -> list[Gpu] | None:
    """The GPUs that the driver's own command lists: without nvidia-ml-py, which the extra `gpu` brings."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        words = f"dualray found no GPUs: this machine has NVIDIA's driver, but nvidia-smi failed ({error})"
        _say_once(logging.WARNING, f"{words}: pip install 'dualray[gpu]'")
        return None
    found: list[Gpu] = []
    for kind, uuid in _LISTED.findall(listed.stdout):
        if kind == "GPU":
            found.append(Gpu(uuid=uuid))
        elif found:
            found[-1] = Gpu(uuid=found[-1].uuid, instances=(*(found[-1].instances or ()), uuid))
    return found


def _uuid(pynvml: Any, handle: Any) -> str:
    uuid: str | bytes = pynvml.nvmlDeviceGetUUID(handle)
    return uuid.decode() if isinstance(uuid, bytes) else uuid


def _instances(pynvml: Any, handle: Any) -> tuple[str, ...] | None:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError_NotSupported:
        return None
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    uuids = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            uuids.append(_uuid(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
        except pynvml.NVMLError_NotFound:  # places of instances that were not made
            continue
    return tuple(uuids)


@functools.cache
def _say_once(level: int, words: str) -> None:
    _log.log(level, words)
