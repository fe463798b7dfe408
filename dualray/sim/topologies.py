"""How the links of the virtual network hang together: which of them a route takes, and what each has.

`Star`, the default, has a NIC per node, in and out, and a switch without limits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from dualray.sim.cost_model import CostModel

__all__ = ["LinkKey", "Nic", "NodeKey", "Star", "Topology"]

NodeKey: TypeAlias = Hashable
LinkKey: TypeAlias = tuple[str, Hashable]


class Topology(Protocol):
    """Which links a route takes. Answers are functions of the arguments alone."""

    def links(self, src: NodeKey, dst: NodeKey) -> tuple[LinkKey, ...]: ...

    def latency_ns(self, src: NodeKey, dst: NodeKey) -> int: ...

    def bytes_per_s(self, link: LinkKey) -> int: ...

    def message_bytes_per_s(self, src: NodeKey, dst: NodeKey) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A node's network interface; the bandwidth is that of each direction."""

    bytes_per_s: int
    latency_ns: int


class Star:
    """Every node hangs on one switch by its NIC; `nics` names the nodes whose NIC is not the cost model's.

    Within a node, a transfer copies memory and waits for nothing.
    """

    def __init__(self, cost_model: CostModel, *, nics: Mapping[Any, Nic] | None = None) -> None:
        self._default = Nic(bytes_per_s=cost_model.nic_bytes_per_s, latency_ns=cost_model.nic_latency_ns)
        self._memory_bytes_per_s = cost_model.memory_bytes_per_s
        self._nics: Mapping[Any, Nic] = nics if nics is not None else {}  # not copied: nodes may join

    def links(self, src: NodeKey, dst: NodeKey) -> tuple[LinkKey, ...]:
        if src == dst:
            return (("memory", src),)
        return (("out", src), ("in", dst))

    def latency_ns(self, src: NodeKey, dst: NodeKey) -> int:
        if src == dst:
            return 0
        nic = self._nics.get
        return nic(src, self._default).latency_ns + nic(dst, self._default).latency_ns

    def message_bytes_per_s(self, src: NodeKey, dst: NodeKey) -> int:
        nic = self._nics.get
        return min(nic(src, self._default).bytes_per_s, nic(dst, self._default).bytes_per_s)

    def bytes_per_s(self, link: LinkKey) -> int:
        kind, node = link
        if kind == "memory":
            return self._memory_bytes_per_s
        return self._nics.get(node, self._default).bytes_per_s
