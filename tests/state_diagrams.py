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
    (TASK, "WAITING_ARGS", "The process that submitted a task stores the task's state."),
    (
        VALUE,
        "UNKNOWN",
        (
            "Each process that has a reference to an object stores the object's state. "
            "In the process that submitted a task, the task's result starts in the state `PENDING`."
        ),
    ),
    (WORKER, "STARTING", "The manager process of a node stores the states of the node's worker processes."),
    (ACTOR, "PENDING", "The head process of a cluster stores the states of the cluster's actors."),
    (GROUP, "PENDING", "The head process of a cluster stores the states of the cluster's placement groups."),
    (NODE, "ALIVE", "The head process of a cluster stores the states of the cluster's nodes."),
    (
        LAUNCH,
        "REQUESTED",
        "The head process of a cluster stores the states of nodes that the autoscaler has requested.",
    ),
    (STORED, "CREATED", "The manager process of a node stores the states of the objects in the node's object store."),
)
"""Each table with its initial state and a sentence about it."""

HEAD = """\
# States

This page shows the states of tasks, objects, workers, actors, placement groups and nodes. In each table on this page, a
row shows one state, and the states that can follow this state. In each table on this page, the first row shows the
usual initial state. If dualray's code attempts a change of state that is not in the tables of this page, dualray raises
`InvalidTransition`. The tables on this page show the contents of `dualray/shared/model/states.py`. The command
`python -m tests.state_diagrams` generates this page.
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
