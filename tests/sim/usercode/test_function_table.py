"""The function table of a virtual cluster: what a worker loads is its own, copied or unpickled."""

from __future__ import annotations

import math
import sys
from types import FunctionType
from typing import Any

import pytest

import dualray
from dualray.shared.core.layout import deserialize
from dualray.shared.core.serialization import serialize
from dualray.shared.core.task_runner import Export
from dualray.shared.model.ids import FunctionID, function_id
from dualray.sim.usercode.function_table import FunctionTable


def defined(source: str, name: str = "function", **bound: Any) -> FunctionType:
    """A function that no module has: it travels by value."""
    namespace: dict[str, Any] = {"__name__": "nowhere", **bound}
    exec(source, namespace)
    found: FunctionType = namespace[name]
    return found


SIMPLE = defined(
    """
def function(x: int, y=(1, 'two'), *, z=3):
    'Said.'
    return math.sqrt(x), y, z, K or globals()
""",
    math=math,
    K=7,
)
"""It never binds a global, but could: it is copied."""
INNOCENT = defined("def function(x, y=(1, 2)):\n    return [math.sqrt(x + i + K) for i in y]", math=math, K=7)
CLOSURE = defined(
    """
def outer():
    n = [0]
    def f():
        n[0] += 1
        return n[0]
    return f
function = outer()
"""
)
MUTABLE_DEFAULT = defined("def function(seen=[]):\n    seen.append(1)\n    return len(seen)")
MUTABLE_GLOBAL = defined("def function():\n    TABLE.append(1)\n    return len(TABLE)", TABLE=[])
WITH_ATTRIBUTE = defined("def function():\n    function.n = getattr(function, 'n', 0) + 1\n    return function.n")
COUNTS = defined("def function():\n    global K\n    K += 1\n    return K", K=0)


def table_with(target: Any, duration: Any = None) -> tuple[FunctionTable, FunctionID]:
    table = FunctionTable()
    pickled = serialize(Export(target, duration), "it").to_bytes()
    identity = function_id(pickled)
    table.pickled[identity] = pickled
    return table, identity


def test_a_copy_is_what_unpickling_gives() -> None:
    table, identity = table_with(SIMPLE, defined("def function(x): return K * x", K=0.5))  # which one alone would share
    unpickled = deserialize(table.pickled[identity])
    for _ in range(3):
        loaded = table.load(identity)
        for one, other in ((loaded.target, unpickled.target), (loaded.duration, unpickled.duration)):
            assert type(one) is FunctionType
            assert dir(one) == dir(other)
            for name in (
                "code",
                "name",
                "qualname",
                "module",
                "doc",
                "defaults",
                "kwdefaults",
                "annotations",
                "closure",
            ):
                assert getattr(one, f"__{name}__") == getattr(other, f"__{name}__"), name
            assert one.__globals__ == other.__globals__
            assert one.__globals__ is not other.__globals__
        assert loaded.target(4) == (2.0, (1, "two"), 3, 7)
        assert loaded.duration(4) == 2.0


def test_what_copies_share_cannot_be_changed() -> None:
    table, identity = table_with(SIMPLE)
    first, second = table.load(identity).target, table.load(identity).target
    assert first is not second
    for name in ("__globals__", "__kwdefaults__", "__annotations__"):
        assert getattr(first, name) is not getattr(second, name), name
    first.__globals__["K"] = 8
    first.__kwdefaults__["z"] = 9
    assert second(4) == table.load(identity).target(4) == (2.0, (1, "two"), 3, 7)


@pytest.mark.parametrize("duration", [None, 2.5, defined("def function(x): return K * x", K=0.5)])
@pytest.mark.parametrize("target", [INNOCENT, table_with])
def test_what_leaves_no_trace_is_the_same_for_all(target: Any, duration: Any) -> None:
    table, identity = table_with(target, duration)
    loaded = table.load(identity)
    assert table.load(identity) is loaded
    if target is INNOCENT:
        assert loaded.target is not INNOCENT
        assert loaded.target(1) == INNOCENT(1)


@pytest.mark.parametrize(
    "source",
    [
        "def function():\n    global K\n    K = 1",
        "def function():\n    global K\n    del K",
        "def function():\n    def inner():\n        global K\n        K = 1\n    return inner",
        "def function():\n    globals()['K'] = 1",
        "def function():\n    exec('K = 1')",
        "def function():\n    return lambda: vars()",
        "def function():\n    return sys._getframe()",
    ],
)
def test_what_may_bind_a_global_is_a_workers_own(source: str) -> None:
    table, identity = table_with(defined(source, K=0, sys=sys))
    first, second = table.load(identity).target, table.load(identity).target
    assert first is not second
    assert first.__globals__ is not second.__globals__


@pytest.mark.parametrize("function", [CLOSURE, MUTABLE_DEFAULT, MUTABLE_GLOBAL, WITH_ATTRIBUTE, COUNTS])
def test_nobody_sees_what_another_worker_does(function: FunctionType) -> None:
    table, identity = table_with(function)
    first = table.load(identity).target
    assert [first(), first()] == [1, 2]
    assert table.load(identity).target() == 1


def test_functions_that_were_pickled_together_share_their_globals() -> None:
    namespace: dict[str, Any] = {"__name__": "nowhere", "K": 1}
    exec("def target(): return K\ndef duration():\n    global K\n    K += 1", namespace)
    table, identity = table_with(namespace["target"], namespace["duration"])
    for loaded in (table.load(identity), deserialize(table.pickled[identity])):
        loaded.duration()
        assert loaded.target() == 2
    assert table.load(identity).target() == 1


def test_globals_are_a_workers_own_in_a_program() -> None:
    dualray.init(mode="sim", nodes=4, num_cpus=1)
    try:
        count = dualray.remote(num_cpus=1, scheduling_strategy="SPREAD", duration=1.0)(COUNTS)
        assert dualray.get([count.remote() for _ in range(4)]) == [1, 1, 1, 1]
    finally:
        dualray.shutdown()
