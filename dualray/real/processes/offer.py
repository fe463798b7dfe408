"""The resources that this machine offers: CPUs, GPUs, bytes for the object store, and a port for metrics."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from dualray.extras import needs
from dualray.real.processes.accelerators import found_to_offer, names_to_offer
from dualray.real.processes.gpus import gpus_to_offer
from dualray.real.session import session as sessions
from dualray.shared.model.accelerators import Names, with_types
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.resources import MEMORY_SHARE_PERCENT, Resources, add, node_resources

LOOPBACK = "127.0.0.1"
_STORE_SHARE_PERCENT = 30


def check_port(port: int | None, name: str) -> int | None:
    """The port, if metrics can be served there now.

    Raises:
        ValueError: somebody else listens there.
        DualrayError: what serves them is not installed.
    """
    if port is not None:
        with needs(f"{name}=", "metrics"):
            import prometheus_client  # noqa: F401, PLC0415 - a node is there sooner without it
    if port:
        try:
            socket.create_server((LOOPBACK, port)).close()
        except OSError as error:
            raise ValueError(
                f"{name}={port} cannot be used at {LOOPBACK}: {error.strerror}; give another port, "
                "or 0 for any free port"
            ) from None
    return port


def total_of(
    num_cpus: float | None,
    num_gpus: float | None,
    resources: Mapping[str, float] | None,
    memory: float | str | None = None,
    *,
    host: str = LOOPBACK,
    is_head: bool = True,
) -> tuple[Resources, Names]:
    """Return the resources of a node of this machine, and the names of its accelerators.

    By default these are the CPUs that this process may use, the accelerators that are there and that
    CUDA_VISIBLE_DEVICES, or the variable of their kind, shows, and 70 % of memory.

    Args:
        host: the node's IP address.
        is_head: whether the head runs beside it.

    Raises:
        ValueError: resources that are wrong; more accelerators than there are.
    """
    if num_cpus is None:
        num_cpus = len(os.sched_getaffinity(0))
    if memory is None:
        memory = memory_bytes() * MEMORY_SHARE_PERCENT // 100
    total = parse_resources(num_cpus=num_cpus, num_gpus=num_gpus, memory=memory, resources=resources)
    gpu_names = gpus_to_offer(num_gpus)
    found = found_to_offer(resources)
    if num_gpus is None or found:
        total = parse_resources(
            num_cpus=num_cpus,
            num_gpus=len(gpu_names) if num_gpus is None else num_gpus,
            memory=memory,
            resources={**(resources or {}), **found},
        )
    return add((with_types(total), node_resources(host, is_head=is_head))), names_to_offer(total, gpu_names)


def memory_bytes() -> int:
    """The memory of this machine, or what its control group allows."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(physical, int(text)) if text.isdigit() else physical


def store_bytes(wanted: int | None) -> int:
    """The capacity of the object store: as wanted, or 30 % of memory, at most what shared memory has free.

    Raises:
        ValueError: more is wanted than shared memory has free.
    """
    free = sessions.shared_memory_free_bytes()
    if wanted is not None and wanted > free:
        raise ValueError(
            f"object_store_memory={wanted:,} bytes, but {sessions.SHARED_MEMORY} has only {free:,} bytes free: "
            f"request less, or make {sessions.SHARED_MEMORY} larger (mount -o remount,size=..., or docker run "
            "--shm-size=...)"
        )
    share = memory_bytes() * _STORE_SHARE_PERCENT // 100
    if wanted is None and free < share:
        logging.getLogger("dualray").warning(
            "%s has %s bytes free, so the object store gets these and not %s bytes, %d %% of memory",
            sessions.SHARED_MEMORY,
            f"{free:,}",
            f"{share:,}",
            _STORE_SHARE_PERCENT,
        )
    return wanted or min(share, free)
