from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.exceptions import InvalidTransition
from dualray.shared.model.states import ACTOR, NODE, STORED, TASK, VALUE, WORKER, ActorState, NodeHealth, TaskState
from tests.shared.builders import oid, tid

TABLES = {table.subject: table for table in (TASK, VALUE, WORKER, ACTOR, NODE, STORED)}
START = {
    "task": "WAITING_ARGS",
    "object": "UNKNOWN",
    "worker": "STARTING",
    "actor": "PENDING",
    "node": "ALIVE",
    "stored object": "CREATED",
}


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
        "task abababab: WAITING_ARGS -> PUSHED is not legal (from WAITING_ARGS: FAILED, QUEUED). f attempt 0"
    )


def test_an_illegal_transition_from_the_end_says_that_nothing_is_legal():
    with pytest.raises(InvalidTransition, match=r"actor 01010101:0: DEAD -> ALIVE is not legal \(from DEAD: nothing\)"):
        ACTOR.check(ActorState.DEAD, ActorState.ALIVE, oid(1))
