"""Counters that each process sends when it is asked. The path of a task counts nothing for them.

Theory of operation. A node manager that serves metrics (metrics.py) asks, when it is scraped, the workers and drivers
of its node, and the head where that is here: COUNTS_ASKED, answered by COUNTS with a map of name to number, and
the series of the user's own metrics (dualray/user_metrics.py). The gateway, whose process has no messages, keeps its
numbers in a small file that it has mapped (`SharedCounters`).

    tasks:STATE           tasks that the process has submitted and that are WAITING_ARGS, QUEUED or PUSHED
    tasks_finished        tasks that the process has run to their end
    tasks_failed          tasks that the process has submitted and that failed for good
    dropped:REASON        connections that it has refused or dropped
    messages_received, messages_dropped, peers_lost     as transport.py counts them
    nodes:HEALTH, actors:STATE, drivers, leases_pending, objects   of the head
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dualray.real.net.transport import TransportCounters

if TYPE_CHECKING:  # a process imports the code of its own machine
    from dualray.shared.machines.owner.owner import Owner

COUNTS_ASKED, COUNTS = 9, 10
"""First bytes of raw messages."""
TABLES_EMPTY: Final = 11
"""Head to drivers: the control plane's server was started again, and has lost its tables."""

Counts = dict[str, int]

_TRAFFIC: Final = ("messages_received", "messages_dropped", "peers_lost")
REASONS: Final = tuple(field.name for field in dataclasses.fields(TransportCounters) if field.name not in _TRAFFIC)
"""Why connections are refused or dropped."""
GATEWAY_REASONS: Final = (*REASONS, "closed_early", "bad_routes", "broken_encryption", "other_errors")
GATEWAY_COUNTERS_FILE: Final = "gateway.counters"


def of_connections(counters: TransportCounters) -> Counts:
    """A transport's."""
    counts = {f"dropped:{reason}": int(getattr(counters, reason)) for reason in REASONS}
    return counts | {name: int(getattr(counters, name)) for name in _TRAFFIC}


def of_owner(owner: Owner, *, tasks_finished: int, tasks_failed: int) -> Counts:
    """Those of a process that runs user code."""
    states = owner.unfinished_tasks()
    counts = {f"tasks:{state}": states[state] for state in ("WAITING_ARGS", "QUEUED", "PUSHED")}
    return counts | {"tasks_finished": tasks_finished, "tasks_failed": tasks_failed}


class SharedCounters:
    """Counters in a file: one process adds, others read.

    Args:
        path: made anew, mode 0600.
        names: of the counters, in the order in which they lie there.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._positions = {name: position for position, name in enumerate(names)}
        self._lock = threading.Lock()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(fd, 8 * len(names))
            self._memory = mmap.mmap(fd, 8 * len(names))
        finally:
            os.close(fd)

    def add(self, name: str) -> None:
        """One more. Any thread."""
        with self._lock:
            offset = 8 * self._positions[name]
            (count,) = struct.unpack_from("<Q", self._memory, offset)
            struct.pack_into("<Q", self._memory, offset, count + 1)


def read_shared(path: Path, names: Sequence[str]) -> Counts:
    """What the process that has made the file has counted; nothing when there is no such file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    return dict(zip(names, struct.unpack(f"<{len(names)}Q", data), strict=True))
