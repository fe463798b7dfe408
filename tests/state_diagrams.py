"""docs/states.md shows each transition table as a diagram: `python -m tests.state_diagrams` writes the page.

The page says what dualray/shared/model/states.py says, and a test compares the two (tests/shared/model/test_states.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dualray.shared.model.states import ACTOR, GROUP, LAUNCH, NODE, STORED, TASK, VALUE, WORKER, Transitions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
TABLES: tuple[tuple[Transitions[Any], str, str], ...] = (
    (TASK, "WAITING_ARGS", "A task, as its owner sees it."),
    (VALUE, "UNKNOWN", "An object, as a process sees it that holds a reference to it; one of its own begins PENDING."),
    (WORKER, "STARTING", "A worker process, as its node manager sees it."),
    (ACTOR, "PENDING", "An actor, as the head sees it."),
    (GROUP, "PENDING", "A placement group, as the head sees it."),
    (NODE, "ALIVE", "A node, as the head sees it."),
    (LAUNCH, "REQUESTED", "A node that the autoscaler has asked for, as the head sees it."),
    (STORED, "CREATED", "An object in the store of one node."),
)
"""Each table with the state that it begins with, and what it is about."""

HEAD = """\
# States

Every change of a state follows a table in `dualray/shared/model/states.py`; one that the table does not have raises
`InvalidTransition`. `python -m tests.state_diagrams` writes this page from the tables.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(*each) for each in TABLES)])


def _section(table: Transitions[Any], start: str, about: str) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {start}", *(f"    {line}" for line in _transitions(table))]
    diagram = "\n".join(lines)
    return f"## {table.subject.capitalize()}\n\n{about}\n\n```mermaid\n{diagram}\n```\n"


def _transitions(table: Transitions[Any]) -> Iterator[str]:
    for old, targets in table.table.items():
        for new in table.table:
            if new in targets:
                yield f"{old} --> {new}"
        if not targets:
            yield f"{old} --> [*]"


if __name__ == "__main__":
    PAGE.write_text(page())
