from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from dualray.report.proof import check_directory, killed_processes, load_log
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceEvent, TraceKind, to_bytes
from tests.report.support import Rows, simulate, two_steps


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The logs of a run without a fault."""
    simulate(lambda: two_steps(3), tmp_path)
    return tmp_path


def change_trace(log: Path, change: Callable[[list[TraceEvent]], None]) -> None:
    events = read_traces(log)
    change(events)
    (log / "cluster.trace").write_bytes(to_bytes(events))


def first(events: list[TraceEvent], kind: TraceKind) -> int:
    return next(index for index, event in enumerate(events) if event.kind is kind)


def test_run_is_exact(log: Path):
    proof = check_directory(log)
    assert proof.is_exact
    assert proof.commands == sum(process.commands for process in proof.processes) > 0
    assert proof.matched > 0
    assert (proof.orphans, proof.differences, proof.cut_short) == (0, {}, {})
    assert [process.process for process in proof.processes[:3]] == ["driver-1", "head", "node-0"]


def test_action_that_nobody_ordered_is_an_orphan(log: Path):
    change_trace(log, lambda events: events.append(events[first(events, TraceKind.WORKER_STARTED)]))
    proof = check_directory(log)
    assert not proof.is_exact
    assert proof.orphans == 1


def test_command_that_nobody_carried_out_is_an_orphan(log: Path):
    def lose_one(events: list[TraceEvent]) -> None:
        del events[first(events, TraceKind.TASK_STARTED)]

    change_trace(log, lose_one)
    proof = check_directory(log)
    assert proof.orphans == 1
    assert not proof.is_exact


def test_runner_that_picked_another_worker_has_an_orphan_on_either_side(log: Path):
    def push_elsewhere(events: list[TraceEvent]) -> None:
        index = first(events, TraceKind.TASK_PUSHED)
        events[index] = replace(events[index], other="node-9/w9")

    change_trace(log, push_elsewhere)
    driver = next(process for process in check_directory(log).processes if process.process == "driver-1")
    assert len(driver.match.actions_without_command) == len(driver.match.commands_without_action) == 1
    assert driver.orphans == 2


def test_process_that_acted_and_left_no_log_is_named(log: Path):
    (log / "node-0.decisions").unlink()
    proof = check_directory(log)
    (silent,) = [process for process in proof.processes if not process.has_log]
    assert silent.process == "node-0"
    assert proof.orphans == silent.orphans > 0


def test_command_that_a_fresh_machine_does_not_derive_is_the_first_difference(log: Path):
    path = log / "head.decisions"
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    unpacker.feed(path.read_bytes())
    values = list(unpacker)
    changed = next(index for index, value in enumerate(values) if index and value[2])
    values[changed][2] = []  # one decision has lost its commands
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))
    proof = check_directory(log)
    assert list(proof.differences) == ["head"]
    assert proof.differences["head"].decision == changed - 1
    assert proof.differences["head"].logged is None
    assert not proof.is_exact


def test_killed_process_is_told_apart(tmp_path: Path):
    simulate(lambda: two_steps(3), tmp_path, faults=["kill node-2 when digest starts 4"])
    assert check_directory(tmp_path).is_exact

    def lose_tail(events: list[TraceEvent]) -> None:
        events.pop(
            max(
                index
                for index, event in enumerate(events)
                if event.kind is TraceKind.TASK_STARTED and event.process.startswith("node-2/")
            )
        )

    change_trace(tmp_path, lose_tail)
    proof = check_directory(tmp_path)
    assert proof.is_exact
    ((name, missing),) = proof.cut_short.items()
    assert name.startswith("node-2/")
    assert [key[0] for key in missing] == ["task_started"]


def test_each_life_of_a_node_has_its_log(tmp_path: Path):
    simulate(lambda: two_steps(3), tmp_path, faults=["reboot node-2 when digest starts 4 for 10ms"])
    assert (tmp_path / "node-2.decisions").exists()
    assert (tmp_path / "node-2~1.decisions").exists()
    proof = check_directory(tmp_path)
    assert proof.is_exact, proof
    assert [process.process for process in proof.processes].count("node-2") == 1


def test_who_was_killed():
    rows = Rows()
    rows.killed("node-1")
    rows.add(TraceKind.FAULT, "node-2", "node-2/w1", name="kill worker")
    rows.add(TraceKind.WORKER_ENDED, "node-3", "node-3/w0", other="killed by SIGKILL")
    rows.add(TraceKind.WORKER_ENDED, "node-3", "node-3/w1", other="stopped: idle")
    killed = killed_processes(rows.events)
    assert [name for name in ("node-1", "node-1/w7", "node-2/w1", "node-3/w0") if name not in killed] == []
    assert [name for name in ("node-10/w0", "node-2", "node-2/w0", "node-3/w1", "driver-1") if name in killed] == []


def test_log_that_cannot_be_read_is_named(log: Path):
    (log / "node-1.decisions").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"node-1\.decisions: the file is not a decision log"):
        check_directory(log)
    with pytest.raises(ValueError, match=r"node-1\.decisions"):
        load_log(log / "node-1.decisions")
