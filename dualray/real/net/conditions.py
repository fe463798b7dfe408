"""The conditions of the links between machines, as faults have them: which are cut, and what the others suffer.

Theory of operation. A gateway whose node takes faults joins every connection to another machine by a wire (wire.py),
and each direction of a wire asks here what becomes of the bytes that pass. Nodes go by their names; `head` is a place
of its own. The conditions are replaced as a whole, and wires are told that they have changed.

    parted       pairs (from, to) between which nothing passes: bytes are held until the pair is gone
    links        of a node: factors of bandwidth and latency, a delay and a jitter for each piece, shares of pieces that
                 are lost and sent again, sent twice, or overtaken, and of messages that never arrive

What a simulation makes of the same words is in dualray/sim/network/network.py; the numbers here are the same.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

BYTES_PER_S: Final = 1_250_000_000
"""Of a link to which a factor of the bandwidth refers: 10 Gbit/s, as a scenario's default."""
LATENCY_NS: Final = 100_000
"""Of a link to which a factor of the latency refers."""
RETRANSMIT_NS: Final = 200_000_000
"""A lost segment is sent again after this, and after twice as long each further time, up to"""
RETRANSMITS_MAX: Final = 6
SEGMENT_BYTES: Final = 1448
LATENCY_MAX_NS: Final = 10_000_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkCondition:
    """What makes the link of a node worse; see the module."""

    bandwidth: float = 1.0
    latency: float = 1.0
    loss: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_ns: int = 0
    jitter_ns: int = 0

    def and_of(self, other: LinkCondition) -> LinkCondition:
        """What passes two links suffers from both; the narrower one says how fast."""
        return LinkCondition(
            bandwidth=min(self.bandwidth, other.bandwidth),
            latency=max(self.latency, other.latency),
            loss=_either(self.loss, other.loss),
            drop=_either(self.drop, other.drop),
            duplicate=_either(self.duplicate, other.duplicate),
            reorder=_either(self.reorder, other.reorder),
            delay_ns=self.delay_ns + other.delay_ns,
            jitter_ns=self.jitter_ns + other.jitter_ns,
        )


HEALTHY: Final = LinkCondition()


def _either(one: float, other: float) -> float:
    return 1 - (1 - one) * (1 - other)


class LinkConditions:
    """See the module. On the loop's thread, but for `is_cut`."""

    def __init__(self, seed: int = 0) -> None:
        self._parted: frozenset[tuple[str, str]] = frozenset()
        self._links: dict[str, LinkCondition] = {}
        self._free_at_ns: dict[tuple[str, str], int] = {}
        """When what was sent from one node to another has left."""
        self._random = random.Random(f"links:{seed}")
        self._listeners: dict[Callable[[], object], None] = {}

    def listen(self, on_change: Callable[[], object]) -> None:
        """Be told of changes."""
        self._listeners[on_change] = None

    def leave(self, on_change: Callable[[], object]) -> None:
        """Be told no more."""
        self._listeners.pop(on_change, None)

    def replace(self, parted: Iterable[Iterable[str]], links: Mapping[str, Mapping[str, Any]]) -> None:
        """From now on these hold, and no others."""
        self._parted = frozenset((one, other) for one, other in parted)
        self._links = {node: LinkCondition(**fields) for node, fields in links.items()}
        self._free_at_ns.clear()
        for on_change in list(self._listeners):
            on_change()

    @property
    def is_shaped(self) -> bool:
        """Whether any link is worse than it should be."""
        return bool(self._links)

    def is_parted(self, src: str, dst: str) -> bool:
        """Whether nothing passes from one node to another."""
        return (src, dst) in self._parted

    def is_cut(self, one: str, other: str) -> bool:
        """Whether two nodes cannot connect: what one says does not arrive, or the answer does not. Any thread."""
        parted = self._parted
        return (one, other) in parted or (other, one) in parted

    def between(self, src: str, dst: str) -> LinkCondition:
        """What impairs what goes from one node to another."""
        if not self._links:
            return HEALTHY
        return self._links.get(src, HEALTHY).and_of(self._links.get(dst, HEALTHY))

    def arrives_ns(self, src: str, dst: str, size_bytes: int, now_ns: int) -> int:
        """When so many bytes arrive that are sent now."""
        worse = self.between(src, dst)
        if worse is HEALTHY or worse == HEALTHY:
            return now_ns
        draw = self._random.random
        takes_ns = min(round(LATENCY_NS * (worse.latency - 1)), LATENCY_MAX_NS) + worse.delay_ns
        if worse.jitter_ns:
            takes_ns += round(draw() * worse.jitter_ns)
        if worse.reorder and draw() < worse.reorder:
            takes_ns += round((0.5 + draw()) * max(takes_ns, LATENCY_NS))
        if worse.loss:
            takes_ns += self._recovery_ns(worse.loss, size_bytes)
        copies = 1 + (bool(worse.duplicate) and draw() < worse.duplicate)
        if worse.bandwidth >= 1:
            return now_ns + max(0, takes_ns)
        sends_ns = round(size_bytes * copies * 1e9 / (BYTES_PER_S * worse.bandwidth))
        leaves_ns = max(now_ns, self._free_at_ns.get((src, dst), 0)) + sends_ns
        self._free_at_ns[src, dst] = leaves_ns
        return leaves_ns + max(0, takes_ns)

    def _recovery_ns(self, loss: float, size_bytes: int) -> int:
        """How much later these bytes come for the segments of them that are lost. Lost ones among many are noticed by
        those that follow, after a round trip; a lone one when its time is over."""
        draw, segments = self._random.random, max(1, -(-size_bytes // SEGMENT_BYTES))
        if segments > 3:
            lost = sum(draw() < loss for _ in range(segments))
            return lost * 2 * LATENCY_NS
        later_ns, again_ns, sent = 0, RETRANSMIT_NS, 0
        while sent < RETRANSMITS_MAX and draw() < _either_of(loss, segments):
            later_ns += again_ns
            again_ns *= 2
            sent += 1
        return later_ns

    def drops(self, src: str, dst: str) -> bool:
        """Whether the next message never arrives."""
        share = self.between(src, dst).drop
        return bool(share) and self._random.random() < share


def _either_of(share: float, count: int) -> float:
    return 1.0 - (1 - share) ** count
