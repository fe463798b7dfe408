from __future__ import annotations

import io
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.codec import NAMES, PROTOCOL_VERSION, pack, unpack
from dualray.shared.model.commands import Command
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    DriverJoined,
    Event,
    LeaseRequested,
    NodeJoined,
    NodeWelcomed,
    Started,
    TaskSubmitted,
    TimerFired,
    WorkerReady,
)
from dualray.shared.model.ids import Address, NodeID, RequestID
from dualray.shared.proof.decision_log import DecisionLog, Log, MachineSpec, all_commands, read_log, replay
from tests.shared.builders import DRIVER, cpus, info, shape, task

OWNER = MachineSpec(kind="owner", address=DRIVER, node="node-0", config=Config(), is_driver=True)
NODE = MachineSpec(
    kind="node",
    address="node-0",
    node="node-0",
    config=Config(workers_prestarted=1, store_wait_ns=5),
    incarnation=2,
    total=cpus(2, gpus=1).units,
    store_bytes=1000,
)
HEAD = MachineSpec(kind="head", address="head", config=Config(infeasible="wait"))
ASKED = LeaseRequested(request_id=RequestID("driver-1#0"), owner=DRIVER, shape=shape(), count=1)
EVENTS: dict[MachineSpec, list[Event]] = {
    OWNER: [Started(), TaskSubmitted(spec=task(1)), TaskSubmitted(spec=task(2)), TimerFired(timer="idle-leases")],
    NODE: [Started(), NodeWelcomed(node=NodeID("node-0")), ASKED, WorkerReady(worker=Address("node-0~2/w0"))],
    HEAD: [NodeJoined(info=info("node-0")), DriverJoined(address=DRIVER, node=NodeID("node-0")), ASKED],
}


def record(spec: MachineSpec) -> bytes:
    """The log of a machine that has handled its events."""
    sink = io.BytesIO()
    log = DecisionLog(sink, spec, seed="7")
    machine = spec.make()
    for number, event in enumerate(EVENTS[spec]):
        log.record(event, number * 10, machine.handle(event, number * 10))
    return sink.getvalue()


specs = pytest.mark.parametrize("spec", EVENTS, ids=lambda spec: spec.kind)


@specs
def test_what_was_recorded_is_read_back(spec):
    log = read_log(record(spec))
    assert log.spec == spec
    assert log.seed == "7"
    assert [decision.event for decision in log.decisions] == EVENTS[spec]
    assert [decision.now_ns for decision in log.decisions] == [10 * n for n in range(len(EVENTS[spec]))]
    assert not log.is_cut_off


@specs
def test_a_fresh_machine_derives_the_same_commands(spec):
    log = read_log(record(spec))
    found = replay(log)
    assert found.difference is None
    assert found.decisions == len(EVENTS[spec])
    assert found.commands == len(list(all_commands(log))) > 0


def changed(log: Log, decision: int, commands: list[Command]) -> Log:
    decisions = list(log.decisions)
    decisions[decision] = replace(decisions[decision], commands=commands)
    return replace(log, decisions=decisions)


def test_the_first_command_that_differs_is_named():
    log = read_log(record(OWNER))
    (sent,) = log.decisions[2].commands
    forged = replace(sent, to=Address("node-9"))
    found = replay(changed(log, 2, [forged]))
    assert found.difference is not None
    assert (found.difference.decision, found.difference.command) == (2, 0)
    assert found.difference.logged == forged
    assert found.difference.derived == sent
    assert str(found.difference).startswith("decision 2, command 0, on TaskSubmitted(spec=TaskSpec(")
    assert "\n  logged:  Send(to='node-9'," in str(found.difference)
    assert "\n  derived: Send(to='node-0'," in str(found.difference)


def test_a_command_that_was_logged_and_not_derived_is_a_difference():
    log = read_log(record(OWNER))
    commands = log.decisions[1].commands
    difference = replay(changed(log, 1, commands * 2)).difference
    assert difference is not None
    assert (difference.decision, difference.command, difference.derived) == (1, 1, None)


def test_a_command_that_was_derived_and_not_logged_is_a_difference():
    log = read_log(record(OWNER))
    difference = replay(changed(log, 1, [])).difference
    assert difference is not None
    assert (difference.decision, difference.command, difference.logged) == (1, 0, None)


def test_what_was_compared_before_the_difference_is_counted():
    log = read_log(record(OWNER))
    found = replay(changed(log, 2, []))
    assert (found.decisions, found.commands) == (2, 2)


def test_a_machine_with_another_config_differs():
    """So the log must carry it."""
    log = read_log(record(NODE))
    other = replace(log, spec=replace(log.spec, config=replace(log.spec.config, workers_prestarted=3)))
    assert replay(other).difference is not None


# ---- Logs that are not whole -----------------------------------------------------------------------------------------

WHOLE = record(NODE)
ENDS: list[int] = []
_stream = msgpack.Unpacker(raw=False, use_list=False)
_stream.feed(WHOLE)
for _ in range(1 + len(EVENTS[NODE])):
    _stream.skip()
    ENDS.append(_stream.tell())


@given(st.integers(ENDS[0], len(WHOLE)))
def test_a_log_that_was_cut_off_ends_at_its_last_whole_decision(length):
    log = read_log(WHOLE[:length])
    assert len(log.decisions) == sum(end <= length for end in ENDS) - 1
    assert log.is_cut_off == (length not in ENDS)
    assert replay(log).difference is None


@pytest.mark.parametrize("length", [0, 1, ENDS[0] // 2, ENDS[0] - 1])
def test_a_log_that_was_cut_off_in_its_opening_is_no_log(length):
    with pytest.raises(
        ValueError, match="the file is not a decision log, because the file does not begin with a header"
    ):
        read_log(WHOLE[:length])


# ---- Bytes that are no log -------------------------------------------------------------------------------------------


def opening(**changes: object) -> bytes:
    fields = dict(unpack(WHOLE[: ENDS[0]]))
    fields.update(changes)
    return pack({name: value for name, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    "data",
    [
        b"not a log at all",
        b"\xc1",
        b"\xff" * 100,
        b"\x81\x80\xc0",
        pack([1, 2, 3]),
        pack({"format": "dualray-trace/1"}),
        opening(format="dualray-decisions/99"),
        opening(machine=None),
        opening(machine=5),
        opening(machine={"kind": "node"}),
        opening(seed=None),
        opening(names=None),
        opening(names=5),
        opening(protocol=None),
    ],
    ids=range(14),
)
def test_bytes_that_are_no_log_are_refused_as_such(data):
    with pytest.raises(ValueError, match=r"^the file is not a decision log") as refused:
        read_log(data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes", [{"protocol": PROTOCOL_VERSION + 1}, {"names": NAMES[1:]}], ids=["protocol", "names"]
)
def test_a_log_of_another_version_is_refused_with_both_versions(changes):
    with pytest.raises(
        ValueError, match=r"^the log has protocol version \d+, but this dualray has version \d+: replay the log"
    ):
        read_log(opening(**changes))


def test_a_log_of_an_unknown_setting_is_refused_with_its_name():
    machine = dict(unpack(WHOLE[: ENDS[0]])["machine"])
    machine["config"] = {**machine["config"], "no_such_limit": 1}
    with pytest.raises(ValueError, match="no_such_limit"):
        read_log(opening(machine=machine))


@pytest.mark.parametrize(
    "decision",
    [pack(7), pack([]), pack([1, 2]), pack([0, [9999], []]), pack([0, [NAMES.index("TimerFired")], []]), b"\xc1"],
    ids=range(6),
)
def test_a_decision_that_nobody_logged_is_refused_with_its_number(decision):
    with pytest.raises(ValueError, match=r"^decision 4 of the decision log cannot be read: "):
        read_log(WHOLE + decision)


def test_a_machine_of_an_unknown_kind_cannot_be_made():
    with pytest.raises(
        ValueError, match="the log has a machine of the unknown kind 'ghost'; the known kinds are owner, node and head"
    ):
        replace(HEAD, kind="ghost").make()


@given(st.binary(max_size=200))
def test_garbage_fails_with_a_sentence_or_not_at_all(data):
    words = [_refusal(data), _refusal(WHOLE[: ENDS[1]] + data)]
    assert "" not in words


def _refusal(data: bytes) -> str | None:
    try:
        read_log(data)
    except ValueError as refused:
        return str(refused)
    return None
