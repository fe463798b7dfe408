"""The memory of this machine, or of the container that this process is in: how much there is, and how much is used.

What a process uses by itself is its resident memory without what it shares: an object store is everybody's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["MachineMemory", "OwnMemory", "machine_memory", "own_bytes", "own_memory"]

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """How much there is, and how much of it is used and cannot be had back by dropping caches."""

    total_bytes: int
    used_bytes: int


def machine_memory(cgroups: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> MachineMemory:
    """Of the control group that this process is in, if it has a limit; else of the machine."""
    machine = _of_machine()
    for directory in _own_cgroups(cgroups, membership):
        group = _of_cgroup(directory)
        if group is not None and group.total_bytes < machine.total_bytes:
            return group
    return machine


def _of_machine() -> MachineMemory:
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        total_bytes, available_bytes = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except FileNotFoundError:  # another system than Linux
        import psutil  # noqa: PLC0415 - a node is there sooner without it

        whole = psutil.virtual_memory()
        total_bytes, available_bytes = whole.total, whole.available
    return MachineMemory(total_bytes, total_bytes - available_bytes)


def _own_cgroups(cgroups: Path, membership: Path) -> list[Path]:
    """Where the limits of this process's group stand: version 2 or 1, from outside a container and inside."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [cgroups / path.lstrip("/"), cgroups]
        elif "memory" in controllers.split(","):
            found += [cgroups / "memory" / path.lstrip("/"), cgroups / "memory"]
    return found


def _of_cgroup(directory: Path) -> MachineMemory | None:
    for limit, current, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            total_bytes = int((directory / limit).read_text())
            used_bytes = int((directory / current).read_text())
            statistics = dict(line.split(maxsplit=1) for line in (directory / "memory.stat").read_text().splitlines())
            return MachineMemory(total_bytes, used_bytes - int(statistics.get(cache, 0)))
        except (OSError, ValueError):  # another version, or no limit ("max")
            continue
    return None


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """What a process has: resident memory that it does not share, and what it may write to, resident or not."""

    resident_bytes: int
    writable_bytes: int


def own_memory(pid: int) -> OwnMemory:
    """Of a process; nothing when it has ended, or where there is no /proc."""
    try:
        _, resident, shared, _, _, writable, _ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):  # it ends just now
        return OwnMemory(0, 0)
    return OwnMemory((int(resident) - int(shared)) * _PAGE_BYTES, int(writable) * _PAGE_BYTES)


def own_bytes(pid: int) -> int:
    """Resident memory of a process that it does not share; 0 when it has ended."""
    return own_memory(pid).resident_bytes
