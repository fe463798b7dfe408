"""The links to other nodes: which of those that were asked for something answer, and which are out of reach.

Theory of operation. A node that says nothing though it was asked, or to which connections break, is in doubt. When that
lasts for `_DOUBTS_MAX` times `link_patience_ns`, it is out of reach, though the head has not declared it dead; after
`_UNREACHABLE_MAX` times as long it is tried again. Whatever comes from it ends the doubt.

Relies on: transfer.py says what has come, and what is late.
Guarantees: a node in doubt is forgotten or out of reach in the end; one out of reach is tried again.
"""

from __future__ import annotations

from dualray.shared.machines.base import Outbox
from dualray.shared.model.config import Config
from dualray.shared.model.ids import NodeID

_DOUBTS_MAX = 3
_UNREACHABLE_MAX = 6
"""So often `link_patience_ns` a node counts as out of reach; then it is tried again."""


class Links:
    """See the module."""

    def __init__(self, *, out: Outbox, config: Config) -> None:
        self.out = out
        self.config = config
        self.silences: dict[NodeID, tuple[int, int]] = {}
        """Nodes that do not answer, or to which connections break: since when, and when that was last seen."""
        self.unreachable: dict[NodeID, int] = {}
        """Nodes that we take to be out of reach, and until when."""

    def is_silent_for_long(self, node: NodeID) -> bool:
        """Note that nothing has come from a node that should have sent something."""
        now_ns, patience_ns = self.out.now_ns, self.config.link_patience_ns
        since_ns, seen_ns = self.silences.get(node, (now_ns, now_ns))
        if now_ns - seen_ns > _DOUBTS_MAX * patience_ns:  # that was another time
            since_ns = now_ns
        self.silences[node] = (since_ns, now_ns)
        return now_ns - since_ns >= _DOUBTS_MAX * patience_ns

    def heard(self, node: NodeID) -> None:
        """Something has come from a node: it is there."""
        if self.silences:
            self.silences.pop(node, None)
        if self.unreachable:
            self.unreachable.pop(node, None)

    def lose(self, node: NodeID) -> None:
        """A node that was silent for long is out of reach."""
        del self.silences[node]
        self.unreachable[node] = self.out.now_ns + _UNREACHABLE_MAX * self.config.link_patience_ns

    def out_of_reach(self) -> tuple[NodeID, ...]:
        """The nodes that are, by now."""
        for node in [node for node, until_ns in self.unreachable.items() if until_ns <= self.out.now_ns]:
            del self.unreachable[node]
        return tuple(self.unreachable)
