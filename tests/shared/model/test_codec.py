from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil
import types
import typing
from enum import Enum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualray.shared.machines.head.head import Head
from dualray.shared.machines.node.node import Node
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.model import events
from dualray.shared.model.codec import NAMES, decode, encode, pack, unpack
from dualray.shared.model.commands import Command, Send
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    Event,
    HeadMessage,
    LocalEvent,
    NodeMessage,
    ProcessMessage,
    TaskPushed,
    ValueReported,
)
from dualray.shared.model.ids import Address, NodeID
from dualray.shared.model.states import ValueState
from tests.shared.builders import DRIVER, aid, constructor, cpus, error, oid, put_id, ref, task, tid

EVENTS = typing.get_args(Event)
COMMANDS = typing.get_args(Command)
UNIONS = {
    "owner": typing.get_args(ProcessMessage),
    "node": typing.get_args(NodeMessage),
    "head": typing.get_args(HeadMessage),
}
LOCAL = {
    "owner": {
        events.TaskSubmitted,
        events.ValuePut,
        events.ValuePromised,
        events.PromiseKept,
        events.PlacementGroupAsked,
        events.PlacementGroupRemovalAsked,
        events.ResourcesWanted,
        events.RowsAsked,
        events.SpaceWanted,
        events.SpaceWritten,
        events.PutAbandoned,
        events.WaitAbandoned,
        events.WaitStarted,
        events.RefsAdded,
        events.RefsDropped,
        events.ViewReleased,
        events.TaskRan,
        events.TasksRan,
        events.ActorKillAsked,
        events.ActorNameAsked,
        events.ActorExitAsked,
        events.ItemMade,
        events.ItemsEnded,
        events.ItemTaken,
        events.CancelAsked,
        events.ClusterStateAsked,
        events.PeerLost,
    },
    "node": {
        events.WorkerReady,
        events.WorkerExited,
        events.WorkerNotStarted,
        events.SpaceReserved,
        events.ReserveFailed,
        events.ObjectSpilled,
        events.SpillFailed,
        events.ObjectRestored,
        events.RestoreFailed,
        events.GpuLost,
        events.MemoryExceeded,
        events.ObjectSent,
        events.ObjectReceived,
        events.ReceiveFailed,
        events.PeerLost,
        events.DrainAsked,
    },
    "head": {events.LaunchesFailed, events.NodeSilent, events.NodeHeard, events.PeerLost},
}
EVERYWHERE = {events.Started, events.TimerFired}
MACHINES = {
    "owner": Owner(address=DRIVER, node=NodeID("node-0"), config=Config()),
    "node": Node(node=NodeID("node-0"), incarnation=0, total=cpus(1), store_bytes=1, config=Config()),
    "head": Head(config=Config()),
}


def instances(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type that occurs in events and commands, from its hints; written apart from the codec's own rules."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, typing.NewType):
        return instances(hint.__supertype__)
    if hint is int:
        return st.integers(-(2**63), 2**64 - 1)
    if hint in (str, bytes, bool):
        return st.from_type(hint)
    if hint is type(None):
        return st.none()
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.deferred(lambda arg=arg: instances(arg)) for arg in args])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(instances(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(instances, args))
    if origin is dict:
        return st.dictionaries(instances(args[0]), instances(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint)
    if hasattr(hint, "_fields"):
        return st.builds(hint, **{name: instances(hints[name]) for name in hint._fields})
    assert dataclasses.is_dataclass(hint), f"no strategy for {hint}"
    names = [field.name for field in dataclasses.fields(hint) if field.init]
    return st.builds(hint, **{name: instances(hints[name]) for name in names})


# ---- There and back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*EVENTS, *COMMANDS], ids=lambda cls: cls.__name__)
def test_round_trip(cls):
    @settings(max_examples=20)
    @given(instances(cls))
    def check(item):
        assert decode(unpack(pack(encode(item)))) == item

    check()


def test_a_decoded_item_has_the_types_of_the_original():
    """Equality alone would not see a list for a tuple, or text for an enum, inside slots that nobody compares."""
    reported = ValueReported(object_id=oid(1), state=ValueState.FAILED, size_bytes=0, error=error())
    again = decode(unpack(pack(encode(reported))))
    assert type(again.state) is ValueState
    spec = task(1, deps=(ref(oid(2)), ref(put_id(3), "node-1/w0")), num_returns=2)
    pushed = TaskPushed(spec=spec, attempt=1, reply_to=DRIVER, inline_deps=(oid(2),))
    again = decode(unpack(memoryview(pack(encode(Send(to=DRIVER, message=pushed, payloads=(tid(1), oid(2))))))))
    assert isinstance(again, Send)
    assert isinstance(again.message, TaskPushed)
    assert again.payloads == (tid(1), oid(2))
    assert again.message.inline_deps == (oid(2),)
    assert again.message.spec.deps == spec.deps
    assert hash(again.message.spec.template) == hash(spec.template)


def test_a_constructor_carries_what_its_actor_promises():
    spec = constructor(4, max_restarts=-1)
    again = decode(unpack(pack(encode(events.ActorRegistered(spec=spec)))))
    assert again.spec.creates.actor_id == aid(4)
    assert again.spec.creates.max_restarts == -1


def test_tags_are_the_places_of_names_and_those_of_0_1_0_stay():
    """A log carries the names; two builds with the same names have the same tags."""
    first = next(index for index in range(1, len(NAMES)) if NAMES[index - 1] > NAMES[index])
    assert list(NAMES) == [*sorted(NAMES[:first]), *sorted(NAMES[first:])]
    assert "LaunchNodes" in NAMES[first:]
    assert {cls.__name__ for cls in (*EVENTS, *COMMANDS)} <= set(NAMES)
    assert encode(events.Started()) == [NAMES.index("Started"), ""]


# ---- What no encoder has made --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((len(NAMES),), f"no event or command has the tag {len(NAMES)}"),
        ((-1,), "no event or command has the tag -1"),
        ((True,), "no event or command has the tag True"),
        (("Started",), "no event or command has the tag 'Started'"),
        ((), "the message is neither an event nor a command"),
        (7, "the message is neither an event nor a command"),
        (None, "the message is neither an event nor a command"),
        ((NAMES.index("TimerFired"),), "the message is neither an event nor a command"),
        ((NAMES.index("TimerFired"), "a", "b"), "the message is neither an event nor a command"),
        ((NAMES.index("ValueReported"), b"id", "NO SUCH STATE", 0, None), "'NO SUCH STATE' is not a valid ValueState"),
        ((NAMES.index("TaskSubmitted"), 5), "the message is neither an event nor a command"),
    ],
)
def test_values_that_nobody_encoded_are_refused(fields, message):
    with pytest.raises(ValueError) as refused:
        decode(fields)
    assert message in str(refused.value)


def test_orders_nested_without_end_are_refused():
    fields: Any = (NAMES.index("Started"),)
    for _ in range(5000):
        fields = (NAMES.index("Send"), "head", fields, ())
    with pytest.raises(ValueError, match="the message is neither an event nor a command"):
        decode(fields)


@given(st.binary(max_size=60))
def test_bytes_that_nobody_packed_are_refused_or_are_plain_values(data):
    with contextlib.suppress(ValueError):
        fields = unpack(data)
        decode(fields)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\x81\x80\xc0", b"\xa1\xff", b"\x91" * 5000, msgpack.packb([1])[:-1]],
)
def test_bytes_that_are_no_msgpack_are_refused_in_words(data):
    with pytest.raises(ValueError, match=rf"{len(data)} bytes are not a msgpack value: .+"):
        unpack(data)


# ---- Who hears what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MACHINES)
def test_a_machine_hears_just_what_can_be_said_to_it(kind):
    machine = MACHINES[kind]
    hears = set(UNIONS[kind]) | LOCAL[kind] | EVERYWHERE
    assert {cls.__name__ for cls in machine.table} == {cls.__name__ for cls in hears}


def test_every_local_event_has_a_listener():
    assert set().union(*LOCAL.values()) | EVERYWHERE == set(typing.get_args(LocalEvent))


def test_the_unions_are_the_modules_whole_content():
    names = [module.name for module in pkgutil.iter_modules(events.__path__, f"{events.__name__}.")]
    defined = {
        cls
        for module in map(importlib.import_module, names)
        for cls in vars(module).values()
        if dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__
    }
    assert defined - {events.Result} == set(EVENTS)
    assert all(getattr(events, cls.__name__) is cls for cls in defined)


def test_addresses_are_text_for_the_wire():
    assert decode(encode(events.PeerLost(address=Address("driver-1")))).address == "driver-1"
