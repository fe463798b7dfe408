"""Looks at the memory of this machine every so often, and says so when too much of it is used.

What counts is the machine, or the control group (container) that this process is in when that has less. With
`memory_limit_bytes` only the node's own workers count, against that limit. What a worker uses by itself is its resident
memory without what it shares: the object store is everybody's. What follows is decided by the node's machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from dualray.machine_memory import machine_memory, own_bytes
from dualray.real.limits import limit_in_words
from dualray.real.net.loop import Loop, Timer
from dualray.shared.model.config import Config
from dualray.shared.model.events import MemoryExceeded
from dualray.shared.model.ids import Address

_log = logging.getLogger("dualray")


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
                _log.warning("dualray cannot read the memory use of this machine: %s", limit_in_words(error))
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
