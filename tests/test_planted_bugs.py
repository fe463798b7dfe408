"""Planted bugs are caught in both modes: wrong policies, loaded by every process, and a runner that disobeys.

Each check holds with the right policy and fails with the wrong one. A wrong policy may show as a wrong result, as an
error, or as a broken invariant: that it shows is what is tested.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray
from dualray.exceptions import DualrayError
from dualray.report.proof import check_directory
from dualray.shared.model.commands import Send
from dualray.shared.model.events import LeaseGranted
from dualray.shared.model.ids import Address
from tests.conformance.support import MIB, MODES, Tally, get, options_for

Check = Callable[[Tally], None]


@dualray.remote
def block(tally: Tally, fill: int) -> np.ndarray[Any, Any]:
    tally.add(fill)
    return np.full(10 * MIB, fill, dtype=np.uint8)


@dualray.remote
def total(tally: Tally, *blocks: Any) -> int:
    return sum(int(part[0]) for part in blocks)


def work_that_waits_is_placed(tally: Tally) -> None:
    """More work than CPUs: what waits runs when a CPU is free."""

    @dualray.remote(num_cpus=2)
    class Holder:
        def hold(self) -> int:
            return 1

    first = Holder.remote()
    assert get(first.hold.remote()) == 1
    second = Holder.remote()
    held = second.hold.remote()
    assert dualray.wait([held], timeout=0.2) == ([], [held]), "the second needs the CPUs of the first"
    del first
    assert dualray.get(held, timeout=5) == 1


def lru_keeps_what_was_used_last(tally: Tally) -> None:
    """A store of three blocks: the one that was read just before a new one is made is still there afterwards."""
    refs = [block.remote(tally, 0)]
    for fill in range(1, 8):
        assert get(refs[-1])[0] == fill - 1
        refs.append(block.remote(tally, fill))
        dualray.wait(refs[-1:], fetch_local=False)
        assert get(refs[-2])[0] == fill - 1
        assert tally.notes.count(str(fill - 1)) == 1, "the block in use was evicted, and had to be made again"


def a_store_never_holds_more_than_it_can(tally: Tally) -> None:
    """Twice as many blocks as there is room for: all can be read, in turn."""
    refs = [block.remote(tally, fill) for fill in range(8)]
    for fill, ref in enumerate(refs):
        assert get(ref)[0] == fill


def a_crash_is_retried(tally: Tally) -> None:
    @dualray.remote(max_retries=2)
    def crashes_once(tally: Tally) -> int:
        if tally.add() == 1:
            os._exit(3)
        return 7

    assert get(crashes_once.remote(tally)) == 7


def an_exception_is_not_retried(tally: Tally) -> None:
    @dualray.remote(max_retries=2)
    def raises(tally: Tally) -> None:
        tally.add()
        raise ValueError("once is enough")

    with pytest.raises(ValueError, match="once is enough"):
        get(raises.remote(tally))
    assert tally.count == 1


def a_lost_object_is_made_again_and_nothing_else(tally: Tally) -> None:
    """A result has left the store, and what it was made from has not."""

    @dualray.remote
    def plus_one(part: Any) -> Any:
        return part + 1

    base = block.remote(tally, 1)
    made = plus_one.remote(base)
    assert get(made)[0] == 2
    for fill in range(10, 14):
        assert get(base)[0] == 1
        get(block.remote(tally, fill))
        others = [block.remote(tally, 100 + fill), base]
        get(others)
    assert get(made)[0] == 2
    assert tally.notes.count("1") == 1


PLANTED = [
    ("placement_policy", "TakesBusyForNever", work_that_waits_is_placed),
    ("placement_policy", "NeverPlaces", work_that_waits_is_placed),
    ("eviction_policy", "EvictsTheNewest", lru_keeps_what_was_used_last),
    ("eviction_policy", "EvictsTooLittle", a_store_never_holds_more_than_it_can),
    ("retry_policy", "NeverRetries", a_crash_is_retried),
    ("retry_policy", "RetriesWhatRaised", an_exception_is_not_retried),
    ("reconstruction_policy", "RemakesWhatIsThere", a_lost_object_is_made_again_and_nothing_else),
    ("reconstruction_policy", "GivesUpLostObjects", a_lost_object_is_made_again_and_nothing_else),
]


def run(mode: str, check: Check, tally: Tally, **limits: str) -> None:
    dualray.init(**options_for(mode, {"nodes": 1, "object_store_memory": 35 * MIB, "limits": limits}))
    try:
        check(tally)
    finally:
        dualray.shutdown()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("check", dict.fromkeys(check for _, _, check in PLANTED))
def test_the_right_policies_pass(mode: str, check: Check, tmp_path: Path) -> None:
    run(mode, check, Tally(tmp_path / "tally"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("setting", "bug", "check"), PLANTED)
def test_a_wrong_policy_is_caught(mode: str, setting: str, bug: str, check: Check, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, DualrayError)):
        run(mode, check, Tally(tmp_path / "tally"), **{setting: f"tests.planted.policies:{bug}"})


@pytest.mark.parametrize("mode", MODES)
def test_a_runner_that_obeys_leaves_no_orphan(mode: str, tmp_path: Path) -> None:
    proof = check_directory(record_a_run(mode, tmp_path))
    assert proof.is_exact, str(proof)


@pytest.mark.parametrize("mode", MODES)
def test_a_runner_that_disobeys_is_caught(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's runner pushes the tasks of one lease to another worker than the machine has chosen."""
    disobey(mode, monkeypatch)
    proof = check_directory(record_a_run(mode, tmp_path))
    assert not proof.is_exact


def record_a_run(mode: str, directory: Path) -> Path:
    dualray.init(**options_for(mode, {"nodes": 1, "decision_log": directory}))
    try:

        @dualray.remote(num_cpus=1)
        def where(index: int) -> int:
            return index

        ready, _ = dualray.wait([where.remote(index) for index in range(20)], num_returns=20, timeout=3)
        assert ready or mode == "real"
    finally:
        dualray.shutdown()
    return directory


def disobey(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swap two workers in what the driver's runner sends, after the machine has decided and the log was written."""
    from dualray.shared.core_worker import CoreWorker

    workers: list[Address] = []
    send = CoreWorker._send
    handle = CoreWorker._handle

    def note_workers(self: CoreWorker, event: Any) -> None:
        if isinstance(event, LeaseGranted) and event.worker not in workers:
            workers.append(event.worker)
        handle(self, event)

    def send_elsewhere(self: CoreWorker, command: Send) -> None:
        if self.address == "driver-1" and command.to in workers and len(workers) > 1:
            other = workers[(workers.index(command.to) + 1) % len(workers)]
            command = Send(to=other, message=command.message, payloads=command.payloads)
        send(self, command)

    monkeypatch.setattr(CoreWorker, "_handle", note_workers)
    monkeypatch.setattr(CoreWorker, "_send", send_elsewhere)
