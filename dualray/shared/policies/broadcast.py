"""Broadcast: chooses the node that serves a copy of an object to a node.

A node that is receiving an object passes it on meanwhile. While every sender serves one receiver only, each network
card sends the object once, in a chain: its last node has it when the first has, and as many pieces later as the chain
is long. Where every sender serves two, each sends it twice, which takes twice as long. So a large object goes along
chains: a new one begins at a node that has all of it and serves nobody, or the chain that is shortest grows, as long
as to get through it takes no longer than to send the object. A small object, which is through before a chain has
formed, is fetched from who has all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dualray.shared.model.ids import NodeID

CHAIN_PIECES_MIN = 8
"""An object of fewer pieces is small."""


@dataclass(frozen=True, slots=True)
class Source:
    """A node that has an object, or is receiving it.

    Attributes:
        receivers: how many nodes were sent to it for the object, and have not got it yet.
        depth: 0 when it has all of the object; else how many nodes the bytes pass on their way to it.
    """

    node: NodeID
    receivers: int
    depth: int


class BroadcastPolicy(Protocol):
    """Chooses whom a node asks for an object; `sources` come in the order in which they had it, or asked for it."""

    def choose(self, sources: Sequence[Source], *, size_bytes: int, piece_bytes: int) -> Sequence[NodeID]:
        """Whom the node asks, one after the other until one has it: all that have the whole object, at least."""


class ChainBroadcast:
    """See the module."""

    def choose(self, sources: Sequence[Source], *, size_bytes: int, piece_bytes: int) -> Sequence[NodeID]:
        whole = [source for source in sources if source.depth == 0]
        if size_bytes < CHAIN_PIECES_MIN * piece_bytes:
            return [source.node for source in whole]
        whole.sort(key=lambda source: source.receivers)
        free = [source for source in sources if source.receivers == 0 and source.depth * piece_bytes <= size_bytes]
        best = min(free, key=lambda source: source.depth, default=whole[0])
        return [best.node, *(source.node for source in whole if source is not best)]
