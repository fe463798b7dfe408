"""References that Python drops are taken in, whenever and wherever their finalizers run."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import dualray
from dualray import runtime
from dualray.shared.core import core_worker


class Interrupted(list[Any]):
    """A queue during whose first append another finalizer runs: on another thread, or in a garbage collection."""

    def __init__(self, refs: list[dualray.ObjectRef[int]]) -> None:
        super().__init__()
        self._refs = refs

    def append(self, item: Any) -> None:
        super().append(item)
        self._refs.clear()


@pytest.fixture
def core() -> Iterator[Any]:
    dualray.init(mode="sim")
    started: Any = runtime.current("test")
    yield started.core
    dualray.shutdown()


@pytest.mark.skipif(core_worker.__file__.endswith(".so"), reason="what is compiled appends without a call to Python")
def test_of_two_finalizers_at_once_one_asks_for_a_step(core: Any) -> None:
    first, others = dualray.put(1), [dualray.put(2)]
    assert not core.host._wake_scheduled
    core._dropped = Interrupted(others)
    del first
    assert len(core._dropped) == 2
    assert core.host._wake_scheduled


@dualray.remote(max_retries=0)
def exits_after_the_first_finalizer() -> None:
    weakref.finalize(Interrupted([]), int)
    raise SystemExit(1)


def test_a_worker_that_exits_does_not_end_the_finalizers_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weakref` registers the end of all finalizers with the first of them, which a task may have made."""
    monkeypatch.setattr(weakref.finalize, "_registered_with_atexit", False)
    monkeypatch.setattr(weakref.finalize, "_shutdown", False)
    dualray.init(mode="sim")
    with pytest.raises(dualray.exceptions.WorkerCrashedError):
        dualray.get(exits_after_the_first_finalizer.remote())
    dualray.shutdown()
    called: list[int] = []
    weakref.finalize(Interrupted([]), called.append, 1)
    assert called == [1]
