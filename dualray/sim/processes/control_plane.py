"""A virtual process's access to the control plane's tables: a server beside the head, which may be down.

It tries for as long as a client does in real mode; then it raises.
"""

from __future__ import annotations

from typing import Final, Protocol

from dualray.exceptions import ControlPlaneError, DualrayError
from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.task_runner import Export
from dualray.shared.model.ids import HEAD, Address, FunctionID
from dualray.sim.kernel.fiber_signal import FiberSignal
from dualray.sim.network.network import Channel
from dualray.sim.processes.runner import VirtualCluster
from dualray.sim.usercode.modules import OfProcess

CLIENT_TRIES_NS: Final = 10_000_000_000
"""As in real mode: `reconnect_timeout_s` of its client."""


class Client(Protocol):
    """A process that uses the tables."""

    address: Address
    node: str
    cluster: VirtualCluster

    @property
    def core(self) -> CoreWorker: ...


class Loader(Client, OfProcess, Protocol):
    """A process that loads functions from them."""


def reach_tables(process: Client) -> None:
    """Park the current fiber until the tables answer.

    Raises:
        ControlPlaneError: they have not for CLIENT_TRIES_NS.
        DualrayError: the head is gone.
    """
    cluster = process.cluster
    if not cluster.is_head_alive:
        raise DualrayError(process.core.end_reason)
    if not cluster.pauses.are_tables_away:
        return
    answered = FiberSignal(cluster.fibers)
    timer = cluster.kernel.call_after(CLIENT_TRIES_NS, answered.set)
    cluster.pauses.when_tables_answer(answered.set)
    answered.wait()
    timer.cancel()
    if cluster.pauses.are_tables_away:
        raise ControlPlaneError(f"the control plane of the simulation did not answer for {CLIENT_TRIES_NS / 1e9:g} s")


def load_function(process: Loader, function: FunctionID) -> Export:
    """Ask for a function: there and back.

    Raises:
        ControlPlaneError, DualrayError: as `reach_tables`.
    """
    reach_tables(process)
    while not _has_answered(process, process.cluster.functions.sent_bytes[function]):
        reach_tables(process)
    cluster = process.cluster
    return cluster.functions.load(function) if cluster.modules is None else cluster.modules.load(process, function)


def _has_answered(process: Client, size_bytes: int) -> bool:
    """Ask the server of the tables for so many bytes; False when it was away when it should have been asked."""
    cluster, network = process.cluster, process.cluster.network
    answered = FiberSignal(cluster.fibers)
    asked = (process.address, "functions")
    there = Channel(process.node, HEAD, src_process=asked, dst_process=HEAD)
    back = Channel(HEAD, process.node, src_process=HEAD, dst_process=asked)
    was_there = True

    def arrive(_: None) -> None:
        nonlocal was_there
        was_there = not cluster.pauses.are_tables_away
        if was_there:
            network.message(back, size_bytes, lambda _: answered.set(), None, is_sure=True)
        else:  # the connection is refused
            answered.set()

    network.message(there, 0, arrive, None, is_sure=True)
    answered.wait()
    return was_there
