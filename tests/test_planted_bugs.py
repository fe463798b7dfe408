"""Planted bugs are caught in both modes: wrong policies, loaded by every process, and a runner that disobeys.

Each check is an observable promise. It holds with the right policy, and with the wrong one it breaks in the way that
the table says: by a wrong result, by an error, or by an invariant of a machine. A bug that shows in another way, such
as a policy that could not be loaded, does not count as caught.
"""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray
from dualray.exceptions import (
    DualrayError,
    GetTimeoutError,
    InvariantViolation,
    ObjectReconstructionFailedError,
    ObjectStoreFullError,
    WorkerCrashedError,
)
from dualray.report.proof import check_directory
from dualray.shared.model.commands import Send
from dualray.shared.model.events import LeaseGranted, TaskPushed, TasksPushed
from dualray.shared.model.ids import Address
from tests.conformance.support import MIB, MODES, Tally, get, options_for
from tests.machine_load import slowness

Check = Callable[[Tally], None]
SOON_S = 3.0


@dualray.remote
def block(tally: Tally, fill: int) -> np.ndarray[Any, Any]:
    tally.add(fill)
    return np.full(10 * MIB, fill, dtype=np.uint8)


@dualray.remote(num_cpus=2)
class Holder:
    def hold(self) -> int:
        return 1


def soon(ref: Any) -> Any:
    return dualray.get(ref, timeout=SOON_S * slowness())


# ---- The checks ------------------------------------------------------------------------------------------------------


def work_that_waits_is_placed(tally: Tally) -> None:
    """More work than CPUs: what waits runs when a CPU is free."""
    first = Holder.remote()
    assert soon(first.hold.remote()) == 1
    second = Holder.remote()
    held = second.hold.remote()
    assert dualray.wait([held], timeout=0.2) == ([], [held]), "the second needs the CPUs of the first"
    del first
    assert soon(held) == 1


def work_goes_where_there_is_room(tally: Tally) -> None:
    """Two nodes, and two actors that need a whole one each: both live."""
    holders = [Holder.remote() for _ in range(2)]
    assert [soon(holder.hold.remote()) for holder in holders] == [1, 1]


def lru_keeps_what_was_used_last(tally: Tally) -> None:
    """A store of three blocks: the one that was read just before a new one is made is still there afterwards."""
    refs = [block.remote(tally, 0)]
    for fill in range(1, 8):
        assert get(refs[-1])[0] == fill - 1
        refs.append(block.remote(tally, fill))
        dualray.wait(refs[-1:], fetch_local=False)
        assert get(refs[-2])[0] == fill - 1
        assert tally.notes.count(str(fill - 1)) == 1, "the block in use was evicted, and had to be made again"


def more_fits_than_the_store_holds(tally: Tally) -> None:
    """Twice as many blocks as there is room for: all can be read, in turn."""
    refs = [block.remote(tally, fill) for fill in range(8)]
    for fill, ref in enumerate(refs):
        assert get(ref)[0] == fill


def what_is_read_stays(tally: Tally) -> None:
    """Arrays that a program holds are what they were, whatever goes through the store."""
    refs = []
    for fill in range(4):  # the first of them leaves for the last
        refs.append(block.remote(tally, fill))
        assert get(refs[-1])[0] == fill
    held = get(refs[1])
    for fill in range(4, 8):
        refs.append(block.remote(tally, fill))
        assert get(refs[-1])[0] == fill
    assert (held == 1).all()
    assert (get(refs[1]) == 1).all()
    assert tally.notes.count("1") == 1


def a_crash_is_retried(tally: Tally) -> None:
    @dualray.remote(max_retries=2)
    def crashes_once() -> int:
        if tally.add() == 1:
            os._exit(3)
        return 7

    assert get(crashes_once.remote()) == 7


def a_crash_is_retried_only_so_often(tally: Tally) -> None:
    @dualray.remote(max_retries=2)
    def crashes() -> int:
        if tally.add() < 6:
            os._exit(3)
        return 7

    try:
        get(crashes.remote())
    except WorkerCrashedError:
        pass
    assert tally.count == 3, "it ran another number of times than once and max_retries"


def an_exception_is_not_retried(tally: Tally) -> None:
    @dualray.remote(max_retries=2)
    def raises() -> None:
        tally.add()
        raise ValueError("once is enough")

    with pytest.raises(ValueError, match="once is enough"):
        get(raises.remote())
    assert tally.count == 1, "it was retried"


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
    assert soon(made)[0] == 2
    assert tally.notes.count("1") == 1, "the argument was made again too"


# ---- The bugs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A wrong policy, the check that catches it, and how it shows."""

    setting: str
    policy: str
    check: Check
    error: type[BaseException]
    words: str
    real_error: type[BaseException] | None = None
    """Where a process dies of the bug, the driver hears of that."""
    modes: tuple[str, ...] = MODES
    nodes: int = 1

    def __str__(self) -> str:
        return self.policy


PLANTED = [
    Bug(
        setting="placement_policy",
        policy="TakesBusyForNever",
        check=work_that_waits_is_placed,
        error=AssertionError,
        words="the second needs the CPUs of the first",
    ),
    Bug(
        setting="placement_policy",
        policy="NeverPlaces",
        check=work_that_waits_is_placed,
        error=GetTimeoutError,
        words="waits for actor .* \\(PENDING\\)",
    ),
    Bug(
        setting="placement_policy",
        policy="AlwaysTheFirstNode",
        check=work_goes_where_there_is_room,
        error=GetTimeoutError,
        words="waits for actor .* \\(PENDING\\)",
        modes=("sim",),  # on one node, there is no other
        nodes=2,
    ),
    Bug(
        setting="eviction_policy",
        policy="EvictsTheNewest",
        check=lru_keeps_what_was_used_last,
        error=AssertionError,
        words="the block in use was evicted",
    ),
    Bug(
        setting="eviction_policy",
        policy="EvictsTooLittle",
        check=more_fits_than_the_store_holds,
        error=InvariantViolation,
        words="store of node-0 holds more than it can",
        real_error=DualrayError,
    ),
    Bug(
        setting="eviction_policy",
        policy="EvictsNothing",
        check=more_fits_than_the_store_holds,
        error=ObjectStoreFullError,
        words="found no room within 0.3 s",
    ),
    Bug(
        setting="eviction_policy",
        policy="EvictsWhatIsRead",
        check=what_is_read_stays,
        error=InvariantViolation,
        words="is evicted and pinned by",
        real_error=DualrayError,
    ),
    Bug(
        setting="retry_policy",
        policy="NeverRetries",
        check=a_crash_is_retried,
        error=WorkerCrashedError,
        words="crashes_once .* exited with code 3",
    ),
    Bug(
        setting="retry_policy",
        policy="RetriesForever",
        check=a_crash_is_retried_only_so_often,
        error=AssertionError,
        words="it ran another number of times",
    ),
    Bug(
        setting="retry_policy",
        policy="RetriesWhatRaised",
        check=an_exception_is_not_retried,
        error=AssertionError,
        words="it was retried",
    ),
    Bug(
        setting="reconstruction_policy",
        policy="RemakesWhatIsThere",
        check=a_lost_object_is_made_again_and_nothing_else,
        error=AssertionError,
        words="the argument was made again too",
    ),
    Bug(
        setting="reconstruction_policy",
        policy="RemakesNothing",
        check=a_lost_object_is_made_again_and_nothing_else,
        error=GetTimeoutError,
        words=r"were not ready within [\d.]+ s",
    ),
    Bug(
        setting="reconstruction_policy",
        policy="GivesUpLostObjects",
        check=a_lost_object_is_made_again_and_nothing_else,
        error=ObjectReconstructionFailedError,
        words="nothing is made again here",
    ),
]
CASES = [
    pytest.param(
        mode,
        bug,
        id=f"{bug}-{mode}",
        # Such a bug shows when a `get` is given up, which takes a simulation no time.
        marks=pytest.mark.slow if mode == "real" and bug.error is GetTimeoutError else (),
    )
    for bug in PLANTED
    for mode in bug.modes
]
CHECKS = tuple(dict.fromkeys(bug.check for bug in PLANTED))


def start(mode: str, nodes: int, **limits: str) -> None:
    limits_of_all: dict[str, Any] = {"eviction_policy": "lru", "store_wait_ns": 300_000_000} | limits
    dualray.init(**options_for(mode, {"nodes": nodes, "object_store_memory": 35 * MIB, "limits": limits_of_all}))


@pytest.fixture(scope="class", params=MODES)
def right_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    start(request.param, nodes=1)
    yield
    dualray.shutdown()


class TestTheRightPolicies:
    """Every check passes."""

    @pytest.mark.usefixtures("right_cluster")
    @pytest.mark.parametrize("check", [check for check in CHECKS if check is not work_goes_where_there_is_room])
    def test_pass(self, check: Check, tmp_path: Path) -> None:
        check(Tally(tmp_path / "tally"))
        gc.collect()  # what a caught exception holds


def test_the_right_placement_passes_on_two_nodes(tmp_path: Path) -> None:
    start("sim", nodes=2)
    work_goes_where_there_is_room(Tally(tmp_path / "tally"))
    dualray.shutdown()


@pytest.mark.parametrize(("mode", "bug"), CASES)
def test_a_wrong_policy_is_caught(mode: str, bug: Bug, tmp_path: Path) -> None:
    error = bug.error if mode == "sim" else bug.real_error or bug.error
    start(mode, bug.nodes, **{bug.setting: f"tests.planted.policies:{bug.policy}"})
    try:
        with pytest.raises(error) as caught:
            bug.check(Tally(tmp_path / "tally"))
    finally:
        dualray.shutdown()
    assert re.search(bug.words, str(caught.value), re.DOTALL)


@pytest.mark.parametrize("mode", MODES)
def test_a_runner_that_obeys_leaves_no_orphan(mode: str, tmp_path: Path) -> None:
    proof = check_directory(record_a_run(mode, tmp_path))
    assert proof.is_exact, str(proof)
    assert proof.matched > 40  # a push and a start for each of twenty tasks, and the workers' starts


@pytest.mark.parametrize("mode", MODES)
def test_a_runner_that_disobeys_is_caught(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's runner pushes the tasks of one lease to another worker than the machine has chosen."""
    swapped = disobey(monkeypatch)
    proof = check_directory(record_a_run(mode, tmp_path))
    assert swapped
    assert not proof.is_exact
    assert not proof.differences  # the machines decided as they should: it was the runner
    [driver] = [process for process in proof.processes if process.process == "driver-1"]
    for commanded, done in swapped:
        assert ("task_pushed", done) in {(key[0], key[2]) for key in driver.match.actions_without_command}
        assert ("task_pushed", commanded) in {(key[0], key[2]) for key in driver.match.commands_without_action}


def record_a_run(mode: str, directory: Path) -> Path:
    dualray.init(**options_for(mode, {"nodes": 1, "decision_log": directory}))
    try:

        @dualray.remote(num_cpus=1)
        def where(index: int) -> int:
            time.sleep(0.1)  # so that there are tasks left when the second worker has started
            return index

        ready, _ = dualray.wait([where.remote(index) for index in range(20)], num_returns=20, timeout=5)
        assert ready or mode == "real"
    finally:
        dualray.shutdown()
    return directory


def disobey(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Address, Address]]:
    """Let the driver's runner send the first tasks for one worker to another, after the machine has decided.

    Returns a list to which it adds what it swapped: (commanded, done).
    """
    from dualray.shared.core.core_worker import CoreWorker

    workers: list[Address] = []
    swapped: list[tuple[Address, Address]] = []
    send = CoreWorker._send
    handle = CoreWorker._handle

    def note_workers(self: CoreWorker, event: Any) -> None:
        if isinstance(event, LeaseGranted) and event.worker not in workers:
            workers.append(event.worker)
        handle(self, event)

    def send_elsewhere(self: CoreWorker, command: Send) -> None:
        is_push = isinstance(command.message, TaskPushed | TasksPushed)
        if is_push and self.address == "driver-1" and command.to == workers[-1] != workers[0]:
            swapped.append((command.to, workers[0]))
            command = Send(to=workers[0], message=command.message, payloads=command.payloads)
        send(self, command)

    monkeypatch.setattr(CoreWorker, "_handle", note_workers)
    monkeypatch.setattr(CoreWorker, "_send", send_elsewhere)
    return swapped
