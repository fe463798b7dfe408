"""Why a value is late, in the words of an error: asked of those who know, when a `get` has timed out, and never before.

The owner of the value knows what makes it and where that is; the worker that has the task knows what it does instead;
node managers know who holds the resources that a task waits for; the head knows why nothing was placed. Each is asked
once, and whoever does not answer within ASK_NS is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualray.exceptions import DualrayError
from dualray.shared.core.cluster_queries import CoreQueries
from dualray.shared.model.ids import HEAD, Address, ObjectID, is_put
from dualray.shared.model.specs import Ref

ASK_NS = 500_000_000
HOLDERS_MAX = 5
"""So many are named; of the others, how many there are."""


def why_late(core: CoreQueries, object_id: ObjectID) -> str:
    """In words, what an object that is not ready waits for, with what others know of it."""
    words = core.machine.why_not_ready(object_id)
    value = core.machine.known_values.get(object_id)
    if value is None or is_put(object_id):
        return words
    try:
        return "; ".join([words, *_what_others_know(core, object_id, value.owner)])
    except DualrayError:  # the runtime ends meanwhile
        return words


def why_late_elsewhere(core: CoreQueries, ref: Ref) -> str:
    """The same of an object that this process need not know: its owner is asked.

    Raises:
        DualrayError: the runtime ends meanwhile.
    """
    return "; ".join(_what_others_know(core, ref.object_id, ref.owner))


def _what_others_know(core: CoreQueries, object_id: ObjectID, owner: Address) -> list[str]:
    if owner == core.address:
        row = core.machine.late_row(object_id)
        words = []
    else:
        rows = _ask(core, owner, f"late:{object_id.hex()}")
        if not rows:
            return [f"{owner} has not answered"]
        row = rows[0]
        words = [f"{owner} says that {row['words']}"]
    if row["worker"]:
        words += _what_it_does(core, row["worker"], row["task_id"])
    if row["demand"]:
        words += _who_holds(core, row["demand"])
    if row["name"]:
        words += _what_the_head_says(core, f" {row['name']} of {owner} ", f" {row['name']} of {HEAD} ")
    return words


def _ask(core: CoreQueries, address: str, table: str) -> list[dict[str, Any]] | None:
    return core.rows_of([Address(address)], table, ASK_NS)[Address(address)]


def _what_it_does(core: CoreQueries, worker: str, task_id: str) -> list[str]:
    """What a worker does that has a task: perhaps another one, and perhaps it waits."""
    rows = _ask(core, worker, "waits")
    if rows is None:
        return [f"{worker} has not answered"]
    return [
        f"{worker} {'runs it' if row['task_id'] == task_id else 'runs ' + row['name'] + ' now'}"
        + (f", and waits: {row['words']}" if row["words"] else "")
        for row in rows
    ]


def _who_holds(core: CoreQueries, demand: Mapping[str, float]) -> list[str]:
    """Who has leased what a task demands."""
    nodes = [node.node for node in core.cluster_state() if node.alive]
    answers = core.rows_of([Address(node) for node in nodes], "workers", ASK_NS)
    holders = []
    for worker in (row for rows in answers.values() for row in rows or ()):
        held = {name: amount for name, amount in worker["resources"].items() if name in demand}
        if held:
            amounts = ", ".join(f"{amount:g} {name}" for name, amount in held.items())
            holders.append(f"{worker['leased_for']} on {worker['worker_id']} ({amounts})")
    if not holders:
        return []
    more = f" and {len(holders) - HOLDERS_MAX} others" if len(holders) > HOLDERS_MAX else ""
    return [
        f"{' and '.join(demand)} {'is' if len(demand) == 1 else 'are'} held by {', '.join(holders[:HOLDERS_MAX])}{more}"
    ]


def _what_the_head_says(core: CoreQueries, *whose: str) -> list[str]:
    rows = _ask(core, HEAD, "waits") or []
    return [f"the head says: {row['words']}" for row in rows if any(words in row["words"] for words in whose)][:1]
