"""Faults on real processes while a workload runs: every result right, nothing left behind, all of it proven."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import dualray
from dualray.real import faults as means
from dualray.report.proof import check_directory
from dualray.report.tail import TraceTail
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceEvent, TraceKind, to_bytes
from dualray.shared.scenario.fault_model import FaultKind, parse_fault
from dualray.testing.chaos import Soak, schedule, soak
from tests.conformance.support import eventually
from tests.json_page import documented_keys

pytestmark = pytest.mark.leak_check

EVERY_KIND = (
    "partition node-1 at 0.2s for 0.2s",
    "link node-2 delay 3ms jitter 5ms reorder 0.2 duplicate 0.2 loss 0.001 at 0.3s for 1s",
    "clog node-1 at 3.2s for 0.2s",
    "fill node-1 to 0.5 at 3.5s for 0.5s",
    "fill disk of node-2 at 3.6s for 0.5s",
    "limit files of node-2 at 0.8s for 0.5s",
    "lose object when object_stored 6",
    "kill worker when piece starts 5",
    "kill actor Simulator when Simulator.rollout starts 3",
    "pause node-1 at 0.5s for 0.4s",
    "restart head at 1s for 0.3s",
    "reboot node-2 at 1.5s for 0.5s",
    "pause node-1 at 2s for 4.5s",
    "slow node-2 by 4 at 2.5s for 1s",
    "drain node-2 at 4s for 2s",
    "kill worker when map ends 4",
    "pause worker when piece#9 starts after 20ms for 1s",
    "slow worker by 4 when map starts 6 on node-0 for 1s",
    "restart redis at 4.5s for 0.2s",
    "slow head by 4 at 5s for 1s",
    "pause head at 6.5s for 2s",
)


def check(found: Soak, record: Path) -> None:
    assert found.is_right, found
    proof = check_directory(record)
    assert proof.is_exact, proof
    assert proof.commands > 0
    assert proof.matched > 0


def test_every_kind_of_fault_is_survived(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.mkdir()
    found = soak([parse_fault(text) for text in EVERY_KIND], workload="mixed", nodes=3, record=record)
    check(found, record)
    assert found.deaths >= 2, "the reboot, and the long pause"
    assert found.retries >= 1
    assert found.restarts >= 1
    befallen = [event for event in read_traces(record) if event.kind is TraceKind.FAULT]
    assert len(befallen) == len(EVERY_KIND)


def test_the_control_plane_may_die_again_while_it_starts(tmp_path: Path) -> None:
    plan = [
        parse_fault(f"restart head at {at}s for {lasting}s") for at, lasting in ((0.2, 0.01), (0.2, 0.2), (0.3, 0.01))
    ]
    check(soak(plan, workload="chain", nodes=1, record=tmp_path), tmp_path)


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path) -> None:
    found = soak(schedule(seed=7, faults=15, nodes=3, workload="mixed"), workload="mixed", nodes=3, record=tmp_path)
    check(found, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_long_soak(tmp_path: Path, seed: int) -> None:
    plan = schedule(seed=seed, faults=300, nodes=3, workload="mixed")
    check(soak(plan, workload="mixed", nodes=3, record=tmp_path, seed=seed), tmp_path)


@dualray.remote(duration=1000.0)
def nap() -> str:
    if dualray.get_runtime_context().mode == "real":
        time.sleep(1000)
    return "rested"


def test_a_hang_is_found_and_explained(tmp_path: Path) -> None:
    lanes = {"sleepy": lambda number: dualray.get(nap.remote())}
    found = soak([], workload=lanes, nodes=1, record=tmp_path, patience_s=3)
    assert not found.is_right
    assert found.hang[0] == "no task has ended for 3 s; these tasks wait: chaos-sleepy"
    assert re.search(r"is computed by nap \(task \w+\), which node-0/w\d+ has", "\n".join(found.hang))
    assert not found.left_behind


def test_a_wrong_result_is_found(tmp_path: Path) -> None:
    lanes = {"two-faced": lambda number: dualray.get_runtime_context().mode}
    found = soak([], workload=lanes, nodes=1, record=tmp_path)
    assert found.wrong == ["two-faced, round 0: the result is 'real', not 'sim'"]
    assert not found.is_right


# ---- The command -------------------------------------------------------------------------------------------------


def chaos(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualray", "chaos", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_command_tells_what_came_of_it(tmp_path: Path) -> None:
    record = tmp_path / "record"
    done = chaos("--faults", "kill worker when piece starts 3 after 5ms", "--nodes", "2", "--decision-log", str(record))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All results are right, nothing hung or leaked" in done.stdout
    assert "kill worker when piece starts 3 after 0.005s: node-" in done.stderr
    assert check_directory(record).is_exact


def test_the_command_prints_json_with_the_keys_of_the_page() -> None:
    fault = "kill worker when link starts 2"
    done = chaos("--faults", fault, "--nodes", "1", "--workload", "chain", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == documented_keys("chaos")
    assert (found["is_right"], len(found["performed"])) == (True, 1)
    assert found["rounds"]["chain"] > 0


def test_a_fault_that_finds_nobody_is_a_failure(tmp_path: Path) -> None:
    fault = "kill worker when nobody starts 1"
    arguments = ("--nodes", "1", "--workload", "chain", "--patience", "3", "--decision-log", str(tmp_path / "record"))
    done = chaos("--faults", fault, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{fault}: for 3 s the fault found no target" in done.stdout


def test_a_number_of_faults_is_refused_with_the_option_for_it() -> None:
    done = chaos("--faults", "20", "--dry-run")
    assert done.returncode == 2
    assert "use --random-faults 20" in done.stderr
    done = chaos("--fault", "pause node-1 at 2s for 1s", "--dry-run")  # the name that the option had before
    assert (done.returncode, done.stdout) == (0, "pause node-1 at 2s for 1s\n")


def test_what_real_mode_does_not_perform_is_refused_by_name() -> None:
    done = chaos("--faults", "skew node-1 by 30s at 1s for 1s", "--nodes", "2")
    assert done.returncode == 2
    assert "real mode does not perform the fault skew clock: all programs of a machine share its clock" in done.stderr


@pytest.mark.parametrize("whom", ["node-1", "head", "worker"])
def test_nothing_real_can_be_made_faster(tmp_path: Path, whom: str) -> None:
    when = "when leaf starts 1" if whom == "worker" else "at 1s"
    with pytest.raises(ValueError, match="real mode can slow processes down, but not speed them up"):
        soak([parse_fault(f"slow {whom} by 0.5 {when}")], workload="chain", nodes=2, record=tmp_path)


def test_the_drivers_node_cannot_be_befallen(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'node-0' does not accept this fault\. The nodes that accept this fault are: node-1"
    ):
        soak([parse_fault("pause node-0 at 1s for 1s")], workload="chain", nodes=2, record=tmp_path)


@pytest.mark.parametrize(
    ("workload", "why"), [("rollout", "no workload has this name"), ("counters", "faults may change")]
)
def test_a_workload_whose_result_says_nothing_is_refused(tmp_path: Path, workload: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        soak([], workload=workload, nodes=1, record=tmp_path)


# ---- The means -----------------------------------------------------------------------------------------------------


def test_a_plan_for_a_workload_that_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="workload 'foo': no workload has this name"):
        schedule(seed=0, faults=3, nodes=2, workload="foo")


def test_every_kind_is_performed_or_refused() -> None:
    assert means.PERFORMED | means.REFUSED.keys() == set(FaultKind)
    assert not means.PERFORMED & means.REFUSED.keys()


def test_slowing_down_takes_time_and_ends() -> None:
    counting = "import time\nwhile True: print(time.process_time(), flush=True); sum(range(100_000))"
    with subprocess.Popen([sys.executable, "-c", counting], stdout=subprocess.DEVNULL) as process:
        try:
            watched = psutil.Process(process.pid)
            before = sum(watched.cpu_times()[:2])
            means.Slowdown(lambda: [watched], 10).last(1.0)
            assert sum(watched.cpu_times()[:2]) - before < 0.6, "it had a tenth of the time"
            time.sleep(0.05)
            assert watched.status() != psutil.STATUS_STOPPED
        finally:
            process.kill()
    with pytest.raises(ValueError, match="must be above 1"):
        means.Slowdown(list, 0.5)


def test_a_tail_gives_each_row_once_also_when_rows_come_in_pieces(tmp_path: Path) -> None:
    events = [TraceEvent(time_ns, TraceKind.NODE_STARTED, "node-1", "node-1") for time_ns in range(3)]
    data = to_bytes(events)
    tail = TraceTail(tmp_path)
    assert tail.look() == []
    with (tmp_path / "node-1.trace").open("wb", buffering=0) as file:
        file.write(data[:-5])
        assert tail.look() == events[:2]
        file.write(data[-5:])
    (tmp_path / "other.trace").write_bytes(data)
    assert tail.look() == [events[0], events[1], *events[2:], events[2]]
    assert tail.look() == []
    (tmp_path / "other.trace").write_bytes(data + b"\x05")
    with pytest.raises(ValueError, match=r"other\.trace is not a trace"):
        tail.look()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_is_terminated_leaves_no_paused_node_behind(tmp_path: Path) -> None:
    """A node that is stopped (SIGSTOP) when the run is told to end hears nothing of it by itself."""
    command = [sys.executable, "-m", "dualray", "chaos", "--nodes", "2", "--decision-log", str(tmp_path / "record")]
    log = (tmp_path / "log").open("w+")
    run = subprocess.Popen([*command, "--fault", "pause node-1 at 1s for 1000s"], stdout=log, stderr=log)
    try:
        eventually(lambda: "pause node-1" in (tmp_path / "log").read_text(), "the node is paused", within_s=90)
        of_the_run = psutil.Process(run.pid).children(recursive=True)
        eventually(lambda: any(map(is_stopped, of_the_run)), "the node's processes are stopped", within_s=30)
        run.terminate()
        assert run.wait(timeout=90) == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs(of_the_run, timeout=30)
        assert alive == []
    finally:
        run.kill()
        log.close()


def is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
