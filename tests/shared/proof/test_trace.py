from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.commands import (
    ArmTimer,
    Command,
    EvictObject,
    NoteRetry,
    RestoreObject,
    RunTask,
    Send,
    SendObject,
    SpillObject,
    StartWorker,
)
from dualray.shared.model.events import LeaseReturned, TaskPushed
from dualray.shared.model.ids import Address, LeaseID, NodeID
from dualray.shared.proof.trace import ACTIONS, TraceEvent, TraceKind, command_keys, from_bytes, match_actions, to_bytes
from tests.shared.builders import DRIVER, oid, task, tid

W0 = Address("node-0/w0")


def event(kind: TraceKind, subject: str = "", other: str = "", amount: int = 0) -> TraceEvent:
    return TraceEvent(5, kind, "node-0", subject, other, "f", amount)


def push(number: int, attempt: int = 0, to: str = W0) -> Send:
    return Send(to=Address(to), message=TaskPushed(spec=task(number), attempt=attempt, reply_to=DRIVER))


PAIRS: dict[TraceKind, tuple[Command, TraceEvent]] = {
    TraceKind.TASK_PUSHED: (push(1, 2), event(TraceKind.TASK_PUSHED, tid(1).hex(), W0, 2)),
    TraceKind.TASK_STARTED: (RunTask(spec=task(1), attempt=2), event(TraceKind.TASK_STARTED, tid(1).hex(), "", 2)),
    TraceKind.TASK_RETRIED: (
        NoteRetry(task_id=tid(1), attempt=1, reason="retry"),
        event(TraceKind.TASK_RETRIED, tid(1).hex(), "retry", 1),
    ),
    TraceKind.WORKER_STARTED: (StartWorker(worker=W0), event(TraceKind.WORKER_STARTED, W0)),
    TraceKind.OBJECT_EVICTED: (
        EvictObject(object_id=oid(1)),
        event(TraceKind.OBJECT_EVICTED, oid(1).hex(), "", 1000),  # bytes are told, and not compared
    ),
    TraceKind.OBJECT_SPILLED: (
        SpillObject(object_id=oid(1), size_bytes=1000),
        event(TraceKind.OBJECT_SPILLED, oid(1).hex(), "", 1000),
    ),
    TraceKind.OBJECT_RESTORED: (
        RestoreObject(object_id=oid(1), size_bytes=1000),
        event(TraceKind.OBJECT_RESTORED, oid(1).hex(), "", 1000),
    ),
    TraceKind.TRANSFER_STARTED: (
        SendObject(object_id=oid(1), size_bytes=1000, to=NodeID("node-1")),
        event(TraceKind.TRANSFER_STARTED, oid(1).hex(), "node-1", 1000),
    ),
}
COMMANDS = [command for command, _ in PAIRS.values()]
EVENTS = [action for _, action in PAIRS.values()]


def test_every_action_has_its_command():
    assert set(PAIRS) == ACTIONS


@pytest.mark.parametrize("kind", PAIRS)
def test_an_action_matches_the_command_that_ordered_it(kind):
    command, action = PAIRS[kind]
    match = match_actions([action], [command])
    assert match.is_exact
    assert match.matched == 1


def test_order_does_not_matter():
    match = match_actions(EVENTS, COMMANDS[::-1])
    assert match.is_exact
    assert match.matched == len(PAIRS)


def test_an_action_that_nobody_ordered_is_named():
    match = match_actions(EVENTS, COMMANDS[1:])
    assert not match.is_exact
    assert match.matched == len(PAIRS) - 1
    assert match.actions_without_command == [("task_pushed", tid(1).hex(), W0, 2)]
    assert match.commands_without_action == []


def test_an_order_that_nobody_carried_out_is_named():
    match = match_actions(EVENTS[1:], COMMANDS)
    assert not match.is_exact
    assert match.actions_without_command == []
    assert match.commands_without_action == [("task_pushed", tid(1).hex(), W0, 2)]


def test_an_order_is_carried_out_once():
    match = match_actions([*EVENTS, EVENTS[0]], COMMANDS)
    assert match.actions_without_command == [("task_pushed", tid(1).hex(), W0, 2)]


@pytest.mark.parametrize(
    "other",
    [push(2, 2), push(1, 3), push(1, 2, "node-0/w1")],
    ids=["another task", "another attempt", "another worker"],
)
def test_an_action_of_another_kind_of_push_is_an_orphan_on_both_sides(other):
    match = match_actions([PAIRS[TraceKind.TASK_PUSHED][1]], [other])
    assert match.matched == 0
    assert len(match.actions_without_command) == len(match.commands_without_action) == 1


def test_a_transfer_to_another_node_is_an_orphan():
    elsewhere = SendObject(object_id=oid(1), size_bytes=1000, to=NodeID("node-2"))
    assert match_actions([PAIRS[TraceKind.TRANSFER_STARTED][1]], [elsewhere]).matched == 0


def test_what_is_no_action_needs_no_command():
    kinds = set(TraceKind) - ACTIONS
    assert match_actions([event(kind, "x") for kind in kinds], []).is_exact


def test_what_orders_no_action_needs_none():
    quiet = [ArmTimer(timer="t", delay_ns=1), Send(to=DRIVER, message=LeaseReturned(lease_id=LeaseID("l")))]
    assert [command_keys(command) for command in quiet] == [[], []]
    assert match_actions([], quiet).is_exact


# ---- As bytes --------------------------------------------------------------------------------------------------------

traced = st.builds(
    TraceEvent,
    st.integers(0, 2**63),
    st.sampled_from(TraceKind),
    st.text(max_size=5),
    st.text(max_size=5),
    st.text(max_size=5),
    st.text(max_size=5),
    st.integers(0, 2**63),
    st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


@given(st.lists(traced, max_size=5))
def test_a_trace_is_read_back(trace):
    assert from_bytes(to_bytes(trace)) == trace


@given(st.data())
def test_a_trace_that_was_cut_off_ends_at_its_last_whole_row(data):
    whole = to_bytes(EVENTS)
    ends = [len(to_bytes(EVENTS[:count])) for count in range(len(EVENTS) + 1)]
    length = data.draw(st.integers(0, len(whole)))
    assert from_bytes(whole[:length]) == EVENTS[: sum(end <= length for end in ends) - 1]


@pytest.mark.parametrize("data", [b"\xc1", b"\x07", b"\x90", b"\x91\x01", b"\x94\x01\xa4nope\xa1a\xa1b"], ids=range(5))
def test_bytes_that_are_no_trace_are_refused_in_words(data):
    whole = to_bytes(EVENTS[:2])
    with pytest.raises(ValueError, match=r"^row 2 of the trace cannot be read: .+"):
        from_bytes(whole + data)
