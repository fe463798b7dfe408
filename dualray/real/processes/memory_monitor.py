"""Looks at the memory of this machine every so often, and says so when too much of it is used.

What counts is the machine, or the control group (container) that this process is in when that has less. With
`memory_limit_bytes` only the node's own workers count, against that limit. What a worker uses by itself is its resident
memory without what it shares: the object store is everybody's. What follows is decided by the node's machine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualray.real.limits import limit_in_words
from dualray.real.net.loop import Loop, Timer
from dualray.shared.model.config import Config
from dualray.shared.model.events import MemoryExceeded
from dualray.shared.model.ids import Address

_log = logging.getLogger("dualray")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_CGROUPS: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """How much there is, and how much of it is used and cannot be had back by dropping caches."""

    total_bytes: int
    used_bytes: int


def machine_memory(cgroups: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> MachineMemory:
    """Of the control group that this process is in, if it has a limit; else of the machine."""
    import psutil  # noqa: PLC0415 - a node is there sooner without it

    whole = psutil.virtual_memory()
    machine = MachineMemory(whole.total, whole.total - whole.available)
    for directory in _own_cgroups(cgroups, membership):
        group = _of_cgroup(directory)
        if group is not None and group.total_bytes < machine.total_bytes:
            return group
    return machine


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


def own_bytes(pid: int) -> int:
    """Resident memory of a process that it does not share; 0 when it has ended."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):  # it ends just now
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


class MemoryMonitor:
    """See the module.

    Args:
        pids: the workers that live, by address, when asked.
        exceeded: called on the loop, again at each look while too much is used.
    """

    def __init__(
        self,
        loop: Loop,
        config: Config,
        *,
        pids: Callable[[], Mapping[str, int]],
        exceeded: Callable[[MemoryExceeded], object],
    ) -> None:
        self._loop = loop
        self._config = config
        self._pids = pids
        self._exceeded = exceeded
        self._timer: Timer | None = None
        self._is_blind = False
        """Whether the last look has failed."""
        self.strangers_bytes = 0
        """Taken by others, as faults have it, beside what is measured."""
        self._arm()

    @property
    def size_bytes(self) -> int:
        """What a share of the memory is a share of."""
        return self._config.memory_limit_bytes or machine_memory().total_bytes

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._config.memory_check_ns:
            self._timer = self._loop.call_later(self._config.memory_check_ns / 1e9, self._look)

    def _look(self) -> None:
        try:
            self._compare()
        except OSError as error:  # such as no descriptor for /proc/meminfo: the next look may have one
            if not self._is_blind:
                _log.warning("the memory of this machine cannot be read: %s", limit_in_words(error))
            self._is_blind = True
        else:
            self._is_blind = False
        if self._timer is not None:
            self._arm()

    def _compare(self) -> None:
        if self._config.memory_limit_bytes:
            limit_bytes = self._config.memory_limit_bytes
            workers = self._workers()
            used_bytes = sum(size for _, size in workers) + self.strangers_bytes
        else:
            memory = machine_memory()
            limit_bytes = memory.total_bytes * self._config.memory_limit_percent // 100
            used_bytes = memory.used_bytes + self.strangers_bytes
            workers = self._workers() if used_bytes > limit_bytes else ()
        if used_bytes > limit_bytes:
            self._exceeded(MemoryExceeded(used_bytes=used_bytes, limit_bytes=limit_bytes, workers=workers))

    def _workers(self) -> tuple[tuple[Address, int], ...]:
        return tuple((Address(worker), own_bytes(pid)) for worker, pid in self._pids().items())
