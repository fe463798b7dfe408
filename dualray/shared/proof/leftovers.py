"""What machines keep although no program needs anything any more, in words: the same in every mode.

A simulation looks at the machines of its processes. Real mode looks at machines that it derives again from the decision
logs (dualray/testing/replicas.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sized
from typing import Any

from dualray.shared.machines.head.head import Head
from dualray.shared.machines.node.node import Node
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.model.ids import PlacementGroupID, short

SHOWN_MAX = 3


def kept_words(things: Sized, what: str, who: str) -> list[str]:
    """One sentence with a few of the things, or none if there are none."""
    return [f"{who} keeps {len(things)} {what}: {_some(things)}"] if things else []


def _some(things: Any) -> str:
    shown = [short(thing) if isinstance(thing, bytes) else str(thing) for thing in list(things)[:SHOWN_MAX]]
    return ", ".join(shown) + (", ..." if len(things) > len(shown) else "")


def has_references(owner: Owner) -> bool:
    """Whether the program of this owner could still read a value."""
    return any(value.local_refs for value in owner.known_values.values())


def left_in_owner(owner: Owner, who: str) -> list[str]:
    """What a process keeps of values and tasks."""
    return [words for what, things in owner.kept().items() for words in kept_words(things, what, who)]


def left_in_node(node: Node, who: str, groups: Collection[PlacementGroupID]) -> list[str]:
    """What a node keeps.

    Args:
        groups: placement groups that nobody has removed. A program that has failed may leave some.
    """
    left = [words for what, things in node.kept().items() for words in kept_words(things, what, who)]
    free = node.free_without(groups)
    if free != node.resources_total:
        left.append(f"{who} has {free} free of {node.resources_total}")
    return left


def left_in_head(head: Head) -> list[str]:
    """What the head keeps of objects, requests, placements and actors."""
    left = [words for what, things in head.kept().items() for words in kept_words(things, what, "the head")]
    left += [f"the head keeps actor {short(actor_id)}, which is {state}" for actor_id, state in head.actors_kept()]
    return left
