"""docs/states.md shows each transition table: `python -m tests.state_diagrams` writes the page.

The page shows the tables of dualray/shared/model/states.py, and tests/shared/model/test_states.py compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dualray.shared.model.states import ACTOR, GROUP, LAUNCH, NODE, STORED, TASK, VALUE, WORKER, Transitions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
TABLES: tuple[tuple[Transitions[Any], str, str], ...] = (
    (TASK, "WAITING_ARGS", "The state of a task, kept by its owner."),
    (VALUE, "UNKNOWN", "The state of an object, kept by each process with a reference. Its owner starts with PENDING."),
    (WORKER, "STARTING", "The state of a worker process, kept by its node manager."),
    (ACTOR, "PENDING", "The state of an actor, kept by the head."),
    (GROUP, "PENDING", "The state of a placement group, kept by the head."),
    (NODE, "ALIVE", "The state of a node, kept by the head."),
    (LAUNCH, "REQUESTED", "The state of a node that the autoscaler has requested, kept by the head."),
    (STORED, "CREATED", "The state of an object in a node's store, kept by the node manager."),
)
"""Each table with its first state and a sentence about it."""

HEAD = """\
# States

This page shows the states of tasks, objects, workers, actors, placement groups and nodes. Each row shows a state, and
the states that may follow it. Each table begins with the first state. The tables come from
`dualray/shared/model/states.py`. Any other change raises `InvalidTransition`. `python -m tests.state_diagrams` writes
this page.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(*each) for each in TABLES)])


def _section(table: Transitions[Any], start: str, about: str) -> str:
    rows = "\n".join(_rows(table, start))
    return f"## {table.subject.capitalize()}\n\n{about}\n\n| state | next states |\n|---|---|\n{rows}\n"


def _rows(table: Transitions[Any], start: str) -> Iterator[str]:
    """The first state first; of each, those that may follow it, in the order of the table."""
    for old in sorted(table.table, key=lambda state: state != start):
        targets = [f"`{new}`" for new in table.table if new in table.table[old]]
        yield f"| `{old}` | {', '.join(targets) or 'none, the end'} |"


if __name__ == "__main__":
    PAGE.write_text(page())
