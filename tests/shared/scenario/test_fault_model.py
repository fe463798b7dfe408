from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.scenario.fault_model import OBJECT_ANCHORS, Fault, FaultKind, check_fault, parse_fault

nodes = st.from_regex(r"node-[0-9]{1,3}", fullmatch=True)
names = st.from_regex(r"[A-Za-z_.<>]{1,12}", fullmatch=True)
starts = st.integers(1, 10**6)
faults = st.one_of(
    st.builds(
        lambda node, at_ns: Fault(kind=FaultKind.KILL_NODE, node=node, at_ns=at_ns), nodes, st.integers(0, 10**18)
    ),
    st.builds(
        lambda node, name, start: Fault(kind=FaultKind.KILL_NODE, node=node, task_name=name, start=start),
        nodes,
        names,
        starts,
    ),
    st.builds(
        lambda node, for_ns: Fault(kind=FaultKind.DRAIN_NODE, node=node, at_ns=0, for_ns=for_ns),
        nodes,
        st.none() | st.integers(1, 10**18),
    ),
    st.builds(
        lambda node, share: Fault(kind=FaultKind.FILL_MEMORY, node=node, factor=share, at_ns=0),
        nodes,
        st.floats(0.01, 1),
    ),
    st.builds(
        lambda node, skew_ns: Fault(kind=FaultKind.SKEW_CLOCK, node=node, skew_ns=skew_ns, at_ns=0, for_ns=5),
        nodes,
        st.integers(-(10**18), 10**18).filter(bool),
    ),
    st.builds(
        lambda node, drop, duplicate: Fault(
            kind=FaultKind.LINK, node=node, drop=drop, duplicate=duplicate, loss=0.5, at_ns=0
        ),
        nodes,
        st.floats(0, 0.99),
        st.floats(0, 1),
    ),
    st.builds(
        lambda kind, name, start: Fault(kind=kind, task_name=name, start=start, for_ns=7),
        st.sampled_from((FaultKind.PAUSE_WORKER, FaultKind.SLOW_WORKER)),
        names,
        starts,
    ),
    st.builds(
        lambda name, submission, after_ns, event, node: Fault(
            kind=FaultKind.KILL_WORKER,
            task_name=name,
            submission=submission,
            after_ns=after_ns,
            event=event,
            on_node=node,
        ),
        names,
        starts,
        st.integers(0, 10**18),
        st.sampled_from(("task_started", "task_ended")),
        st.just("") | nodes,
    ),
    st.builds(
        lambda kind, event, start, node: Fault(kind=kind, event=event, start=start, on_node=node),
        st.sampled_from((FaultKind.LOSE_OBJECT, FaultKind.CORRUPT_OBJECT)),
        st.sampled_from(OBJECT_ANCHORS),
        starts,
        st.just("") | nodes,
    ),
    st.builds(
        lambda kind, for_ns: Fault(kind=kind, at_ns=3, for_ns=for_ns),
        st.sampled_from((FaultKind.PAUSE_HEAD, FaultKind.SLOW_HEAD, FaultKind.RESTART_HEAD, FaultKind.RESTART_REDIS)),
        st.integers(1, 10**18),
    ),
    st.builds(
        lambda node, keeps_store: Fault(
            kind=FaultKind.REBOOT_NODE, node=node, at_ns=0, for_ns=5, keeps_store=keeps_store
        ),
        nodes,
        st.booleans(),
    ),
    st.builds(
        lambda kind, node: Fault(kind=kind, node=node, at_ns=0, for_ns=5),
        st.sampled_from((FaultKind.CLOG_NODE, FaultKind.FILL_DISK, FaultKind.LIMIT_FILES)),
        nodes,
    ),
    st.builds(
        lambda name, start: Fault(
            kind=FaultKind.HOLD_CALL, event="task_submitted", task_name=name, start=start, for_ns=7
        ),
        names,
        starts,
    ),
    st.just(Fault(kind=FaultKind.KILL_HEAD, at_ns=5)),
    st.builds(lambda name, start: Fault(kind=FaultKind.KILL_WORKER, task_name=name, start=start), names, starts),
)


def test_a_node_at_a_time():
    assert parse_fault("kill node-5 at 2.5s") == Fault(kind=FaultKind.KILL_NODE, node="node-5", at_ns=2_500_000_000)


def test_a_node_when_a_task_starts():
    assert parse_fault("kill node-5 when Network.gradient starts 40") == Fault(
        kind=FaultKind.KILL_NODE, node="node-5", task_name="Network.gradient", start=40
    )


def test_the_worker_that_starts_a_task():
    assert parse_fault(" kill  worker when step starts 3 ") == Fault(
        kind=FaultKind.KILL_WORKER, task_name="step", start=3
    )


@given(faults)
def test_a_fault_in_words_is_the_same_fault(fault):
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "fault '' is not understood; write 'kill node-5 at 2.5s'"),
        ("kill", "fault 'kill' is not understood"),
        ("stop node-5 at 2s", "is not understood"),
        ("kill node-5", "does not say when: end it with `at TIME` or `when TASK starts COUNT`"),
        ("kill node-5 at", "is not understood"),
        ("kill node-5 when f starts", "is not understood"),
        ("kill node-5 when f starts -1", "is not understood"),
        ("kill node-5 when f starts ٣", "is not understood"),
        ("kill node-5 at soon", "fault 'kill node-5 at soon': 'soon' is not understood; write a number with one of ns"),
        ("kill node-5 at 2s or so", "'2s or so' is not understood; write a number"),
        (
            "kill node-5 when f starts 0",
            "fault 'kill node-5 when f starts 0': the number of a start or an end must be at least 1",
        ),
        ("kill worker when f starts 0", "the number of a start or an end must be at least 1"),
        (
            "skew node-1 by 0s at 2s",
            "the fault needs an amount of time: 'by 30s' sets the clock 30 s ahead, and 'by -30s' sets it back",
        ),
        ("skew node-1 by much at 2s", "'much' is not understood; write a number with one of ns"),
        (
            "link node-1 drop 1 at 2s",
            "drop must be a share of all messages, from 0 to below 1; to cut a link, use partition",
        ),
        ("link node-1 duplicate 2 at 2s", "duplicate must be a share of all messages, from 0 to 1"),
        ("fill memory of node-1 to 1.5 at 2s", "the share must be above 0 and at most 1"),
        ("kill worker when f#0 starts", "the number of a submission must be at least 1"),
        ("kill worker when f#2", "is not understood"),
        (
            "clog head at 2s",
            "the fault needs a node such as node-3; the head can only have the faults kill head, pause head",
        ),
        ("pause worker when f starts 2", "the fault needs a duration, as in 'for 3s'"),
        ("kill head at 2s for 3s", "'kill head' does not end; leave out 'for'"),
        ("slow head by 0 at 2s", "the factor must be above 0"),
        ("lose object when task_submitted 2", "the fault needs an event that stores or sends the copy"),
        ("hold call when A.f starts 2 for 1s", "the fault needs a call of an actor, as in 'when Ledger.release is"),
        ("hold call when A.f is submitted 2", "the fault needs a duration, as in 'for 3s'"),
        ("hold call when A.f is submitted 2 after 1s for 1s", "leave out 'after'"),
        ("link node-1 reorder 2 at 2s", "reorder must be a share of all messages, from 0 to 1"),
        ("kill worker at 2s", "fault 'kill worker at 2s': the fault needs a task that runs on the worker"),
    ],
)
def test_words_that_are_no_fault_are_refused_with_the_words(text, message):
    with pytest.raises(ValueError) as refused:
        parse_fault(text)
    assert message in str(refused.value)


def test_after_belongs_to_an_anchor():
    fault = parse_fault("kill node-5 when f starts 3 on node-2 after 200ms")
    assert (fault.after_ns, fault.on_node, str(fault)) == (
        200_000_000,
        "node-2",
        "kill node-5 when f starts 3 on node-2 after 0.2s",
    )
    with pytest.raises(ValueError, match=r"2\.5s after 3s"):
        parse_fault("kill node-5 at 2.5s after 3s")
    with pytest.raises(ValueError, match="'after' can only be used with 'when', as in 'when f starts 3 after 200ms'"):
        check_fault(Fault(kind=FaultKind.KILL_NODE, node="node-1", at_ns=5, after_ns=5))
