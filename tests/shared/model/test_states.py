from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.exceptions import InvalidTransition
from dualray.shared import machines
from dualray.shared.model import states
from dualray.shared.model.states import ACTOR, NODE, TASK, ActorState, NodeHealth, TaskState, Transitions
from tests import state_diagrams
from tests.shared.builders import oid, tid

TABLES = {table.subject: table for table, _, _ in state_diagrams.TABLES}
START = {table.subject: start for table, start, _ in state_diagrams.TABLES}
MACHINES = Path(machines.__file__).parent
OF_ENUM = {type(next(iter(table.table))).__name__: table for table in TABLES.values()}
WITHOUT_A_CALL = re.compile(r"# ([A-Z_]+) -> ([A-Z_]+), without a call: .")
"""What is said of an assignment that does not ask the table, for its cost."""


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_state_has_a_row_and_every_target_is_a_state(table):
    states = set(type(next(iter(table.table))))
    assert set(table.table) == states
    assert all(targets <= states for targets in table.table.values())


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_state_can_be_reached(table):
    reached, frontier = set(), {START[table.subject]}
    while frontier:
        reached |= frontier
        frontier = set().union(*(table.table[state] for state in frontier)) - reached
    assert reached == set(table.table)


@pytest.mark.parametrize(
    ("table", "state"),
    [(TASK, TaskState.FAILED), (ACTOR, ActorState.DEAD), (NODE, NodeHealth.DEAD)],
    ids=lambda part: str(getattr(part, "subject", part)),
)
def test_the_end_is_final(table, state):
    assert table.table[state] == frozenset()


@given(st.data())
def test_a_transition_is_made_just_when_the_table_has_it(data):
    table = data.draw(st.sampled_from(list(TABLES.values())))
    old = data.draw(st.sampled_from(list(table.table)))
    new = data.draw(st.sampled_from(list(table.table)))
    if new in table.table[old]:
        assert table.check(old, new, tid(1)) is new
    else:
        with pytest.raises(InvalidTransition):
            table.check(old, new, tid(1))


def test_an_illegal_transition_tells_the_story_of_the_id():
    with pytest.raises(InvalidTransition) as raised:
        TASK.check(TaskState.WAITING_ARGS, TaskState.PUSHED, tid(0xAB), "f attempt 0")
    assert str(raised.value) == (
        "task abababab: the state WAITING_ARGS cannot change to PUSHED; legal next states: FAILED, QUEUED. f attempt 0"
    )


def test_an_illegal_transition_from_the_end_says_that_nothing_is_legal():
    with pytest.raises(InvalidTransition, match="DEAD cannot change to ALIVE; legal next states: none"):
        ACTOR.check(ActorState.DEAD, ActorState.ALIVE, oid(1))


# ---- Every change of a state follows a table -----------------------------------------------------------------------


def test_every_table_is_on_the_page():
    tables = {table.subject for table in vars(states).values() if isinstance(table, Transitions)}
    assert tables == set(TABLES)


def test_the_page_of_states_is_current():
    assert state_diagrams.PAGE.read_text() == state_diagrams.page(), "run `python -m tests.state_diagrams`"


def changes_of_state() -> Iterator[tuple[str, str, ast.expr, str]]:
    """Where a machine assigns a state after its constructor: place, function, what is assigned, the line."""
    for path in sorted(MACHINES.rglob("*.py")):
        text = path.read_text()
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef) or function.name == "__init__":
                continue
            for node in ast.walk(function):
                for target in node.targets if isinstance(node, ast.Assign) else ():
                    if isinstance(target, ast.Attribute) and target.attr in ("state", "health"):
                        line = text.splitlines()[node.lineno - 1]
                        yield f"{path.name}:{node.lineno}", function.name, node.value, line


def test_every_change_of_a_state_asks_its_table_or_names_its_row():
    named = 0
    for place, function, value, line in changes_of_state():
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".check"):
            continue
        if function in ("_set_state", "set_state"):  # it asks the table before
            continue
        row = WITHOUT_A_CALL.search(line)
        assert row is not None, f"{place} assigns a state past its table"
        enum, _, new = ast.unparse(value).partition(".")
        table = OF_ENUM[enum].table
        assert row[2] == new, f"{place} names another state than it assigns"
        assert new in table[type(next(iter(table)))(row[1])], f"{place}: the table has no {row[1]} -> {new}"
        named += 1
    assert named >= 5
