"""Where the bundles of a placement group go: all of them, or none.

    PACK            on as few nodes as a greedy choice finds: the node that takes the most bundles, again and again
    STRICT_PACK     all on one node
    SPREAD          each on the node that has the fewest bundles of the group
    STRICT_SPREAD   each on a node of its own (an exact matching)

Large bundles choose first, and ties go to the node that comes first. Where the greedy choice of PACK or SPREAD finds no
place though there may be one, a search does, for at most SEARCH_STEPS_MAX steps.

`why_never` is the same on what nodes have in all: what does not fit there never will, and it says what lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import add, bulk, fits, offered_words, shortfall
from dualray.shared.model.specs import GroupStrategy, NodeInfo, PlacementGroupSpec, labels_match
from dualray.shared.policies.feasibility import way_out
from dualray.shared.policies.placement import Candidate

SEARCH_STEPS_MAX = 10_000
SEARCH_BUNDLES_MAX = 200
"""Of a group for which a search is tried: each takes a level of recursion."""

Places = dict[int, NodeID]
"""Of each bundle, by index, its node."""


class _Room:
    """What is free, while bundles are put there for trial."""

    def __init__(self, spec: PlacementGroupSpec, candidates: Mapping[NodeID, Candidate]) -> None:
        self._spec = spec
        self._labels = {node: candidate.labels for node, candidate in candidates.items()}
        self.free = {node: dict(candidate.free) for node, candidate in candidates.items()}

    def takes(self, node: NodeID, index: int) -> bool:
        return fits(self.free[node], self._spec.bundles[index]) and labels_match(
            self._spec.selector(index), self._labels[node]
        )

    def move(self, node: NodeID, index: int, sign: int) -> None:
        for name, amount in self._spec.bundles[index].units:
            self.free[node][name] += sign * amount


def choose_nodes(
    spec: PlacementGroupSpec, placed: Mapping[int, NodeID], candidates: Mapping[NodeID, Candidate]
) -> Places | None:
    """Nodes for the bundles that are not `placed`; None when there is no room for all of them now."""
    try:
        return _choose(spec, placed, candidates)
    except _GaveUp:
        return None


class _GaveUp(Exception):
    """The search is over without an answer."""


def _choose(
    spec: PlacementGroupSpec, placed: Mapping[int, NodeID], candidates: Mapping[NodeID, Candidate]
) -> Places | None:
    missing = [index for index in range(len(spec.bundles)) if index not in placed]
    missing.sort(key=lambda index: (-bulk(spec.bundles[index]), index))
    room = _Room(spec, candidates)
    match spec.strategy:
        case GroupStrategy.STRICT_PACK:
            return _on_one_node(missing, placed, room)
        case GroupStrategy.STRICT_SPREAD:
            return _each_on_its_own(missing, placed, room)
        case GroupStrategy.PACK:
            return _packed(missing, placed, room) or _searched(missing, _Room(spec, candidates))
        case GroupStrategy.SPREAD:
            return _spread(missing, placed, room) or _searched(missing, _Room(spec, candidates))


def _on_one_node(missing: Sequence[int], placed: Mapping[int, NodeID], room: _Room) -> Places | None:
    nodes = [next(iter(placed.values()))] if placed else list(room.free)
    for node in nodes:
        if node in room.free and len(_as_many_as_fit(missing, node, room)) == len(missing):
            return dict.fromkeys(missing, node)
    return None


def _as_many_as_fit(missing: Sequence[int], node: NodeID, room: _Room) -> list[int]:
    """Bundles that the node takes, one after another; nothing is left changed."""
    taken = []
    for index in missing:
        if room.takes(node, index):
            room.move(node, index, -1)
            taken.append(index)
    for index in taken:
        room.move(node, index, 1)
    return taken


def _packed(missing: Sequence[int], placed: Mapping[int, NodeID], room: _Room) -> Places | None:
    places: Places = {}
    left = list(missing)
    used = dict.fromkeys(placed.values())
    while left:
        best: list[int] = []
        chosen: NodeID | None = None
        for node in sorted(room.free, key=lambda node: node not in used):  # stable: otherwise in order
            taken = _as_many_as_fit(left, node, room)
            if len(taken) > len(best):
                best, chosen = taken, node
        if chosen is None:
            return None
        for index in best:
            places[index] = chosen
            room.move(chosen, index, -1)
            left.remove(index)
        used[chosen] = None
    return places


def _spread(missing: Sequence[int], placed: Mapping[int, NodeID], room: _Room) -> Places | None:
    places: Places = {}
    for index in missing:
        have = [*placed.values(), *places.values()]
        able = [node for node in room.free if room.takes(node, index)]
        if not able:
            return None
        places[index] = min(able, key=have.count)
        room.move(places[index], index, -1)
    return places


def _each_on_its_own(missing: Sequence[int], placed: Mapping[int, NodeID], room: _Room) -> Places | None:
    taken = set(placed.values())  # membership only; never iterated
    nodes = [node for node in room.free if node not in taken]
    able = {index: [node for node in nodes if room.takes(node, index)] for index in missing}
    holder: dict[NodeID, int] = {}

    def settle(index: int, seen: set[NodeID]) -> bool:
        free = next((node for node in able[index] if node not in holder), None)
        if free is not None:
            holder[free] = index
            return True
        for node in able[index]:
            if node not in seen:
                seen.add(node)
                if settle(holder[node], seen):
                    holder[node] = index
                    return True
        return False

    if not all(settle(index, set()) for index in missing):
        return None
    return {index: node for node, index in holder.items()}


def _searched(missing: Sequence[int], room: _Room) -> Places | None:
    places: Places = {}
    steps = 0

    def settle(position: int) -> bool:
        nonlocal steps
        if position == len(missing):
            return True
        index = missing[position]
        for node in room.free:
            steps += 1
            if steps > SEARCH_STEPS_MAX:
                raise _GaveUp
            if room.takes(node, index):
                room.move(node, index, -1)
                places[index] = node
                if settle(position + 1):
                    return True
                room.move(node, index, 1)
        return False

    if len(missing) > SEARCH_BUNDLES_MAX:
        raise _GaveUp
    return places if settle(0) else None


# ---- Never ---------------------------------------------------------------------------------------------------------


def why_never(spec: PlacementGroupSpec, placed: Mapping[int, NodeID], nodes: Sequence[NodeInfo]) -> str | None:
    """None when the nodes could take the bundles that are not `placed` if all else ended; else what lacks."""
    candidates = {info.node: _whole(info, spec, placed) for info in nodes}
    try:
        if _choose(spec, placed, candidates) is not None:
            return None
    except _GaveUp:
        return None  # nobody knows
    if not nodes:
        return "the cluster has no node that is alive"
    for index, bundle in enumerate(spec.bundles):
        if index not in placed and not any(
            fits(candidate.total, bundle) and labels_match(spec.selector(index), candidate.labels)
            for candidate in candidates.values()
        ):
            return _no_node_for(spec, index, nodes)
    if spec.strategy is GroupStrategy.STRICT_PACK:
        together = add(spec.bundles)
        nearest = min(nodes, key=lambda info: (bulk(shortfall(dict(info.total.units), together)), info.node))
        lacks = shortfall(dict(nearest.total.units), together)
        return (
            f"STRICT_PACK needs one node for all {len(spec.bundles)} bundles, which demand {together}; the nearest "
            f"node, {nearest.node}, has {offered_words(nearest.total)} and lacks "
            f"{lacks if lacks.units else 'labels'}. Use PACK, or smaller bundles"
        )
    if spec.strategy is GroupStrategy.STRICT_SPREAD:
        return (
            f"STRICT_SPREAD needs {len(spec.bundles)} nodes, one for each bundle, but of the {len(nodes)} nodes that "
            "are alive, fewer can hold a bundle. Use SPREAD, or start more nodes"
        )
    together, have = add(spec.bundles), add(info.total for info in nodes)
    lacks = shortfall(dict(have.units), together)
    if lacks.units:
        return f"its bundles demand {together}, and all {len(nodes)} nodes together have {have} and lack {lacks}"
    return f"its bundles demand {together}, but do not fit together on the {len(nodes)} nodes that are alive"


def has_no_node(spec: PlacementGroupSpec, placed: Mapping[int, NodeID], nodes: Sequence[NodeInfo]) -> bool:
    """Whether a bundle that is not `placed` fits no node in all, as if the group had no other bundle.

    STRICT_PACK puts the bundles together, so they count as one. STRICT_SPREAD also needs a node for each bundle.
    """
    candidates = {info.node: _whole(info, spec, placed) for info in nodes}
    missing = [index for index in range(len(spec.bundles)) if index not in placed]
    room = _Room(spec, candidates)
    if spec.strategy is GroupStrategy.STRICT_PACK:
        return _on_one_node(missing, placed, room) is None
    if spec.strategy is GroupStrategy.STRICT_SPREAD and len(spec.bundles) > len(nodes):
        return True
    return any(not any(room.takes(node, index) for node in candidates) for index in missing)


def _whole(info: NodeInfo, spec: PlacementGroupSpec, placed: Mapping[int, NodeID]) -> Candidate:
    """A node on which nothing runs but the bundles of this group."""
    free = dict(info.total.units)
    for index, node in placed.items():
        if node == info.node:
            for name, amount in spec.bundles[index].units:
                free[name] = free.get(name, 0) - amount
    return Candidate(node=info.node, total=dict(info.total.units), free=free, labels=info.all_labels())


def _no_node_for(spec: PlacementGroupSpec, index: int, nodes: Sequence[NodeInfo]) -> str:
    bundle, terms = spec.bundles[index], spec.selector(index)
    matching = [info for info in nodes if labels_match(terms, info.all_labels())]
    if not matching:
        return f"bundle {index} demands the labels {' and '.join(map(str, terms))}, which no node has"
    nearest = min(matching, key=lambda info: (bulk(shortfall(dict(info.total.units), bundle)), info.node))
    lacks = shortfall(dict(nearest.total.units), bundle)
    return (
        f"bundle {index} demands {bundle}; the nearest node, {nearest.node}, has {offered_words(nearest.total)} and "
        f"lacks {lacks}. {way_out(bundle, matching)}"
    )
