"""The virtual head: runs the head machine, and reports nodes that have fallen silent.

Heartbeats between healthy processes are not simulated one by one: the cluster knows when a node can no longer be heard,
and the head's runner reports its silence when the heartbeat timeout has passed since then, as a real one would; and the
end of the silence, if it has one.
"""

from __future__ import annotations

from typing import Protocol

from dualray.shared.machines.head.head import Head
from dualray.shared.model.commands import Command, LaunchNodes, TerminateNode
from dualray.shared.model.events import NodeHeard, NodeSilent
from dualray.shared.model.ids import HEAD, NodeID
from dualray.sim.kernel.kernel import Scheduled
from dualray.sim.processes.runner import MachineProcess, VirtualCluster


class NodeLauncher(Protocol):
    """What starts machines and gives them back, for an autoscaler."""

    def launch(self, group: str, launch_ids: tuple[str, ...]) -> None: ...

    def terminate(self, launch_id: str) -> None: ...


class HeadProcess(MachineProcess):
    """See the module. `launcher` starts nodes, where there are groups of them."""

    launcher: NodeLauncher | None = None

    def __init__(self, *, cluster: VirtualCluster) -> None:
        control = Head(config=cluster.config)
        super().__init__(cluster=cluster, address=HEAD, node=HEAD, machine=control)
        self.control = control
        """The machine that it runs."""
        self._silences: dict[NodeID, tuple[int, Scheduled]] = {}
        """Nodes of which nothing is heard: the life that fell silent, and the report of that."""

    def things(self) -> int:
        return self.control.things()

    def perform(self, command: Command) -> None:
        if isinstance(command, LaunchNodes):
            assert self.launcher is not None
            self.launcher.launch(command.group, command.launch_ids)
        elif isinstance(command, TerminateNode):
            assert self.launcher is not None
            self.launcher.terminate(command.launch_id)
        else:
            super().perform(command)

    def node_fell_silent(self, node: NodeID, incarnation: int) -> None:
        """Nothing is heard of this life of the node from now on."""
        self._forget_silence(node)
        silent = NodeSilent(node=node, incarnation=incarnation)
        report = self.cluster.kernel.call_after(self.cluster.config.heartbeat_timeout_ns, self.handle, silent)
        self._silences[node] = (incarnation, report)

    def node_was_heard(self, node: NodeID, incarnation: int) -> None:
        """This life of the node is heard again: its heartbeat comes through."""
        silence = self._silences.get(node)
        self._forget_silence(node)
        if silence is not None and silence[0] == incarnation and not silence[1].pending:
            delay_ns = self.cluster.network.message_ns(node, HEAD)
            self.cluster.kernel.call_after(delay_ns, self.handle, NodeHeard(node=node, incarnation=incarnation))

    def is_silent(self, node: NodeID) -> bool:
        """Whether nothing is heard of the node."""
        return node in self._silences

    def _forget_silence(self, node: NodeID) -> None:
        silence = self._silences.pop(node, None)
        if silence is not None:
            silence[1].cancel()
