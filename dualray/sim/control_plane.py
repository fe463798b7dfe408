"""How a virtual process reaches the control plane's tables: a server beside the head, which may be away.

It tries for as long as a client does in real mode; then it raises. What has been asked before the server went is
answered when it is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dualray.exceptions import ControlPlaneError, DualrayError
from dualray.shared.model.ids import HEAD, FunctionID
from dualray.shared.task_runner import Export
from dualray.sim.fibers import FiberSignal
from dualray.sim.network import Channel

if TYPE_CHECKING:
    from dualray.sim.worker import UserProcess

CLIENT_TRIES_NS: Final = 10_000_000_000
"""As in real mode: `reconnect_timeout_s` of its client."""


def reach_tables(process: UserProcess) -> None:
    """Park the current fiber until the tables answer.

    Raises:
        ControlPlaneError: they have not for CLIENT_TRIES_NS.
        DualrayError: the head is gone.
    """
    cluster = process.cluster
    if not cluster.head.is_alive:
        raise DualrayError(process.core.end_reason)
    if not cluster.are_tables_away:
        return
    answered = FiberSignal(cluster.fibers)
    timer = cluster.kernel.call_after(CLIENT_TRIES_NS, answered.set)
    cluster.when_tables_answer(answered.set)
    answered.wait()
    timer.cancel()
    if cluster.are_tables_away:
        raise ControlPlaneError(f"the control plane of the simulation has not answered for {CLIENT_TRIES_NS / 1e9:g} s")


def load_function(process: UserProcess, function: FunctionID) -> Export:
    """Ask for a function: there and back."""
    reach_tables(process)
    cluster, network = process.cluster, process.cluster.network
    size_bytes = len(cluster.functions.pickled[function])
    answered = FiberSignal(cluster.fibers)
    asked = (process.address, "functions")
    there = Channel(process.node, HEAD, src_process=asked, dst_process=HEAD)
    back = Channel(HEAD, process.node, src_process=HEAD, dst_process=asked)

    def answer() -> None:
        network.message(back, size_bytes, lambda _: answered.set(), None, is_sure=True)

    network.message(there, 0, lambda _: cluster.when_tables_answer(answer), None, is_sure=True)
    answered.wait()
    return cluster.functions.load(function)
