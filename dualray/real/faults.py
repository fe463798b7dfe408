"""Faults that need no privileges, performed on the real processes of a cluster: the means of `dualray chaos`.

Processes are killed, stopped and slowed down by signals. What happens to links, stores, memory, disks and GPUs happens
at the cluster's own seams: gateways hold and delay what passes between two nodes (net/wire.py), and node managers do to
themselves what they are told (processes/fault_orders.py). PERFORMED says which kinds of faults that covers; the others
are refused by name, with what they would take. The target of a fault, and when, is decided in
dualray/testing/real_faults.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import psutil

from dualray.real.net.addresses import socket_path
from dualray.shared.scenario.fault_model import SLOWS, Fault, FaultKind

REFUSED: Final = {
    FaultKind.SKEW_CLOCK: "all programs of a machine share its clock",
    FaultKind.HOLD_CALL: "processes send calls to actors directly, and nothing can hold a single call",
}
"""What real mode does not perform, and why."""
PERFORMED: Final = frozenset(FaultKind) - frozenset(REFUSED)
OF_LINKS: Final = frozenset({FaultKind.PARTITION, FaultKind.CLOG_NODE, FaultKind.LINK})
"""Performed by the gateways."""
OF_STORES: Final = frozenset(
    {FaultKind.FILL_STORE, FaultKind.FILL_MEMORY, FaultKind.FILL_DISK, FaultKind.LOSE_GPU, FaultKind.LIMIT_FILES}
)
"""Performed by the node manager of the fault's node."""

_PEER = struct.Struct("3i")
_SLICE_S: Final = 0.05
_PROCESSES_FOR_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 2.0
_SERVER_NAMES: Final = ("redis-server", "valkey-server")
_HEAD: Final = "dualray.real.processes.head"


def refuse(fault: Fault, instead: str = "") -> None:
    """Say no to a fault that real mode cannot perform.

    Args:
        instead: what performs it; default: `dualray run --mode sim` with this fault.

    Raises:
        ValueError: with the reason, and what does perform it.
    """
    if fault.kind in SLOWS and fault.factor <= 1:
        raise ValueError(
            f"fault '{fault}': real mode can slow processes down, but not speed them up: the factor must be above 1"
        )
    if fault.kind in REFUSED:
        performs = instead or f"dualray run --mode sim --faults '{fault}'"
        raise ValueError(
            f"fault '{fault}': real mode does not perform the fault {fault.kind}: {REFUSED[fault.kind]}; "
            f"to perform the fault in sim mode, run: {performs}"
        )


def pid_of(socket_dir: Path, address: str) -> int | None:
    """The process that listens under this address on this machine; None when it is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(os.fspath(socket_path(socket_dir, address)))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:  # it has ended, and perhaps its node's directory with it
            return None
    pid: int = _PEER.unpack(credentials)[0]
    return pid


def kill_process(pid: int) -> bool:
    """SIGKILL; whether there was such a process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each that is still there; a pid that was given out again is left alone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class Slowdown:
    """Makes processes take `factor` times as long: they are stopped for most of every 50 ms.

    Args:
        processes: called now and then; those that are slowed down.
        factor: above 1; 4 leaves them a quarter of the time.
    """

    def __init__(self, processes: Callable[[], Sequence[psutil.Process]], factor: float) -> None:
        if factor <= 1:
            raise ValueError(
                f"real mode can slow a node down, but cannot speed a node up: the factor {factor:g} must be above 1"
            )
        self._processes = processes
        self._running_s = _SLICE_S / factor
        self._is_over = threading.Event()

    def last(self, seconds: float) -> None:
        """Slow down for so long, or until `end` is called; returns when everything runs at full speed again."""
        deadline = time.monotonic() + seconds
        while not self._is_over.is_set() and time.monotonic() < deadline:
            found = self._processes()
            try:
                until = min(deadline, time.monotonic() + _PROCESSES_FOR_S)
                while not self._is_over.is_set() and time.monotonic() < until:
                    signal_all(found, signal.SIGSTOP)
                    time.sleep(_SLICE_S - self._running_s)
                    signal_all(found, signal.SIGCONT)
                    time.sleep(self._running_s)
            finally:
                signal_all(found, signal.SIGCONT)

    def end(self) -> None:
        """Full speed from now on; any thread."""
        self._is_over.set()


def control_plane_server(processes: Iterable[psutil.Process]) -> psutil.Process | None:
    """Among the processes of the head's node, the one that keeps the tables; None when the head keeps them itself."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name() in _SERVER_NAMES:
                return process
    return None


def head_process(processes: Iterable[psutil.Process]) -> psutil.Process | None:
    """Among the processes of the head's node, the head itself."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if _HEAD in process.cmdline():
                return process
    return None
