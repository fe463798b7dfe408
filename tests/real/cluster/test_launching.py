"""Providers of real nodes: daemons on this machine, and the user's commands."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import dualray
import dualray.autoscaler
from dualray import runtime
from dualray.autoscaler import request_resources
from dualray.cluster_utils import Cluster
from dualray.exceptions import DualrayError
from dualray.real.cluster.launch_commands import CommandPlace, CommandStarter, Ledger
from dualray.real.cluster.provider import LocalStarter, Provider
from dualray.real.session.session import PROVIDER_SOCKET
from dualray.shared.model.specs import LAUNCH_LABEL
from dualray.shared.scenario.file import parse_growth

pytestmark = pytest.mark.leak_check

DEADLINE_S = 30.0
LOCAL = """
cluster: {cpus: 1, object_store: 64MiB, groups: {cpu: {max: 4}}}
provider: {local: {nodes: %s}}
config: {idle_timeout_ns: 1000000000, launch_cooldown_ns: 1000000000}
"""


def eventually(condition: Callable[[], Any], what: str, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s:g} s in vain until {what}"
        time.sleep(0.02)


def alive() -> list[str]:
    return sorted(row["NodeID"] for row in dualray.nodes() if row["Alive"])


def group(name: str = "cpu") -> dict[str, Any]:
    rows = runtime.current("groups").verbs.head_rows("autoscaler")
    return next(row for row in rows if row["group"] == name)


def cluster_of(text: str) -> Cluster:
    head = {"num_cpus": 1, "object_store_memory": 64 << 20, "autoscale": parse_growth(text, "grows.yaml")}
    return Cluster(initialize_head=True, connect=True, head_node_args=head, mode="real")


# ---- On this machine -------------------------------------------------------------------------------------------------


def test_launches_beyond_what_this_machine_may_run_are_refused_with_the_reason() -> None:
    with cluster_of(LOCAL % 1):
        request_resources(num_cpus=3)
        eventually(lambda: group()["refused"], "a launch was refused")
        assert (
            group()["refused"]
            == "the provider refused a node: the local provider may run at most 1 nodes on this machine"
        )
        eventually(lambda: len(alive()) == 2, "the other one is there")


def test_a_node_that_dies_is_launched_again() -> None:
    with cluster_of(LOCAL % 4) as cluster:
        request_resources(num_cpus=2)
        eventually(lambda: alive() == ["node-0", "node-1"], "node-1 has joined")
        daemon = psutil.Process(cluster.head_node.pid)  # type: ignore[union-attr]
        launched = [each for each in daemon.children() if "dualray.real.cluster.daemon" in each.cmdline()]
        assert len(launched) == 1
        launched[0].kill()
        eventually(lambda: alive() == ["node-0", "node-2"], "another one has taken its place")


def test_nodes_end_with_the_heads_daemon_however_it_ends() -> None:
    cluster = cluster_of(LOCAL % 4)
    try:
        request_resources(num_cpus=3)
        eventually(lambda: len(alive()) == 3, "both have joined")
        daemon = psutil.Process(cluster.head_node.pid)  # type: ignore[union-attr]
        everybody = daemon.children(recursive=True)
        assert len([each for each in everybody if "dualray.real.cluster.daemon" in each.cmdline()]) == 2
        dualray.shutdown()
        daemon.kill()
        _, left = psutil.wait_procs(everybody, DEADLINE_S)
        assert left == []
    finally:
        cluster.shutdown()


class Machines:
    """What a provider has started, in place of daemons: here only the provider is looked at."""

    def __init__(self, *, opens: bool = True) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.gate = threading.Event()
        if opens:
            self.gate.set()

    def start(self, offer: Any, labels: Any) -> str:
        name: str = labels[LAUNCH_LABEL]
        self.started.append(name)
        assert self.gate.wait(DEADLINE_S)
        if name == "launch-13":
            raise DualrayError("the node did not start: it is Friday\nand more of it")
        return name

    def provider(self, directory: Path) -> Provider:
        class Place:
            pass

        place: Any = Place()
        place.directory = directory
        plan = parse_growth(LOCAL % 3, "grows.yaml").launch_plan()
        return Provider(place, LocalStarter(plan, start=self.start, stop=self.ended.append))


def test_an_id_is_launched_once_however_often_it_is_ordered(tmp_path: Path) -> None:
    machines = Machines()
    provider = machines.provider(tmp_path)
    for _ in range(3):
        provider.launch("cpu", "launch-1")
    eventually(lambda: machines.started, "it has started")
    provider.terminate("launch-1")
    eventually(lambda: machines.ended, "it has ended")
    provider.launch("cpu", "launch-1")
    provider.terminate("launch-1")
    provider.launch("cpu", "launch-2")
    eventually(lambda: len(machines.started) == 2, "another one has started")
    provider.close(DEADLINE_S)
    assert machines.started == ["launch-1", "launch-2"]
    assert machines.ended == ["launch-1", "launch-2"], "what is left ends with the provider"


def test_what_is_terminated_while_it_starts_ends_when_it_has_started(tmp_path: Path) -> None:
    machines = Machines(opens=False)
    provider = machines.provider(tmp_path)
    provider.launch("cpu", "launch-1")
    eventually(lambda: machines.started, "it starts")
    provider.terminate("launch-1")
    assert machines.ended == []
    machines.gate.set()
    eventually(lambda: machines.ended == ["launch-1"], "it has ended")
    provider.close(DEADLINE_S)


def test_what_the_head_orders_and_hears(tmp_path: Path) -> None:
    """The head's own end, over the socket between the two."""
    from dualray.real.net.loop import Loop
    from dualray.real.processes.provider_client import ProviderClient

    machines, heard = Machines(opens=False), []
    provider = machines.provider(tmp_path)
    errors: list[Exception] = []
    loop = Loop(errors.append)
    client = ProviderClient(loop, tmp_path / PROVIDER_SOCKET, lambda *failed: heard.append(failed))
    thread = threading.Thread(target=loop.run)
    thread.start()
    client.launch("cpu", tuple(f"launch-{n}" for n in range(11, 15)))
    eventually(lambda: len(heard) == 1, "one was refused")
    assert heard == [("cpu", ("launch-14",), "the local provider may run at most 3 nodes on this machine")]
    machines.gate.set()
    eventually(lambda: len(heard) == 2, "one has failed")
    assert heard[1] == ("cpu", ("launch-13",), "the node did not start: it is Friday")
    client.terminate("launch-11")
    eventually(lambda: machines.ended == ["launch-11"], "it has ended")
    provider.close(DEADLINE_S)
    assert sorted(machines.ended) == ["launch-11", "launch-12"]
    loop.stop()
    thread.join()
    client.close()
    loop.close()
    assert errors == []


def test_the_head_goes_on_to_its_end_when_the_daemon_dies_with_an_order_unread(tmp_path: Path) -> None:
    from dualray.real.net.loop import Loop
    from dualray.real.processes.provider_client import ProviderClient

    errors: list[Exception] = []
    loop = Loop(errors.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.bind(str(tmp_path / PROVIDER_SOCKET))
        daemon.listen()
        client = ProviderClient(loop, tmp_path / PROVIDER_SOCKET, lambda *_: None)
        connected, _ = daemon.accept()
        client.launch("cpu", ("launch-1",))
        connected.close()  # with the order unread, the head's end is reset
    called: list[str] = []
    loop.call_later(0.05, lambda: called.append("once"))
    thread = threading.Thread(target=loop.run)
    thread.start()
    eventually(lambda: called == ["once"], "the loop goes on")
    client.launch("cpu", ("launch-2",))
    loop.stop()
    thread.join()
    client.close()
    loop.close()
    assert errors == []


# ---- The user's commands ---------------------------------------------------------------------------------------------


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Path]:
    """A directory with commands that keep a file for each machine; machines that are nodes end with the test."""
    (tmp_path / "launch.sh").write_text(
        textwrap.dedent(
            f"""
            cd {tmp_path}
            echo "$DUALRAY_LAUNCH_ID $DUALRAY_LAUNCH_GROUP" >> calls
            if [ -e busy ]; then echo "the zone is full"; exit 75; fi
            if [ -e slow ]; then sleep 60; fi
            if [ ! -e "tried-$DUALRAY_LAUNCH_ID" ] && [ -e fails ]; then
                touch "tried-$DUALRAY_LAUNCH_ID"; echo "a hiccup" >&2; exit 3
            fi
            export PYTHONPATH={Path.cwd()}
            eval "{sys.executable} -m dualray ${{DUALRAY_LAUNCH_START#dualray }}" > said-$$ || exit 4
            sed -n 's/.*daemon pid \\([0-9]*\\).*/\\1/p' said-$$ > "machine-$DUALRAY_LAUNCH_ID"
            """
        )
    )
    (tmp_path / "terminate.sh").write_text(
        textwrap.dedent(
            f"""
            cd {tmp_path}
            echo "end $DUALRAY_LAUNCH_ID" >> calls
            [ -e stubborn ] && exit 5
            [ -e "machine-$DUALRAY_LAUNCH_ID" ] || exit 0
            pid=$(cat "machine-$DUALRAY_LAUNCH_ID")
            kill "$pid" 2>/dev/null
            rm "machine-$DUALRAY_LAUNCH_ID"
            """
        )
    )
    yield tmp_path
    for file in tmp_path.glob("machine-*"):
        text = file.read_text().strip()
        if text and psutil.pid_exists(int(text)):
            psutil.Process(int(text)).terminate()


def of_commands(machines: Path, *, retries: int = 1, timeout: str = "30s") -> str:
    return f"""
cluster: {{cpus: 1, object_store: 64MiB, groups: {{cpu: {{max: 3, resources: {{disk: 2}}, labels: {{zone: a}}}}}}}}
provider:
  command:
    launch: sh {machines}/launch.sh
    terminate: sh {machines}/terminate.sh
    timeout: {timeout}
    retries: {retries}
    pause: 10ms
    ledger: {machines}/ledger.jsonl
config: {{idle_timeout_ns: 1000000000, launch_cooldown_ns: 1000000000}}
"""


@dualray.remote(resources={"disk": 1})
def where() -> str:
    return dualray.get_runtime_context().get_node_id()


def test_commands_start_machines_that_join_and_end_them_when_they_leave(machines: Path) -> None:
    with cluster_of(of_commands(machines)):
        assert dualray.get(where.options(label_selector={"zone": "a"}).remote(), timeout=60) == "node-1"
        (machine,) = machines.glob("machine-*")
        eventually(lambda: alive() == ["node-0"], "it has left")
        eventually(lambda: not machine.exists(), "it was given back")
    first, *ends = (machines / "calls").read_text().splitlines()
    launch_id = machine.name.removeprefix("machine-")
    assert first == f"{launch_id} cpu"
    assert launch_id.endswith("-launch-1")
    assert set(ends) == {f"end {launch_id}"}
    assert not (machines / "ledger.jsonl").exists(), "nothing is left that a next head would have to end"


def test_a_command_that_fails_is_called_again_with_the_same_id(machines: Path) -> None:
    (machines / "fails").touch()
    with cluster_of(of_commands(machines)):
        assert dualray.get(where.remote(), timeout=60) == "node-1"
        calls = (machines / "calls").read_text().splitlines()
        assert len(calls) == 2
        assert calls[0] == calls[1]


def test_a_refusal_closes_the_group_for_a_while_and_says_why(machines: Path) -> None:
    (machines / "busy").touch()
    with cluster_of(of_commands(machines)):
        waits = where.remote()
        eventually(lambda: group()["refused"], "it was refused")
        assert group()["refused"] == "the provider refused a node: the zone is full"
        why = "no node is launched for it: cpu: the provider refused a node: the zone is full"
        eventually(lambda: why in dualray.util.explain(waits), "it is explained")
        calls = (machines / "calls").read_text().splitlines()
        assert [line for line in calls if not line.startswith("end ")] == calls[:1], (
            "and it was not called again at once"
        )
        (machines / "busy").unlink()
        assert dualray.get(waits, timeout=60) == "node-1"


def test_a_command_that_takes_too_long_is_killed(machines: Path) -> None:
    (machines / "slow").touch()
    with cluster_of(of_commands(machines, retries=0, timeout="300ms")):
        waits = where.remote()
        eventually(lambda: group()["refused"], "it was given up")
        assert group()["refused"].endswith("the launch command took longer than 0.3 s and was killed")
        del waits


def test_the_next_head_ends_what_a_crash_has_left(machines: Path) -> None:
    cluster = cluster_of(of_commands(machines))
    try:
        assert dualray.get(where.remote(), timeout=60) == "node-1"
        (machine,) = machines.glob("machine-*")
        pid = int(machine.read_text())
        dualray.shutdown()
        os.kill(cluster.head_node.pid, signal.SIGKILL)  # type: ignore[union-attr]
    finally:
        cluster.shutdown()
    assert machine.exists(), "the machine is still there, and paid for"
    with cluster_of(of_commands(machines)):
        eventually(lambda: not machine.exists(), "it was given back")
        eventually(lambda: not psutil.pid_exists(pid), "its node has ended")
    assert not (machines / "ledger.jsonl").exists()


def test_a_machine_that_does_not_end_stays_in_the_ledger(machines: Path) -> None:
    ledger = Ledger(machines / "ledger.jsonl")
    starter = command_starter(machines, ledger)
    (machines / "stubborn").touch()
    ledger.add("a-launch-1", "cpu")
    (order,) = starter.leftovers()
    order()
    assert ledger.left() == {"a-launch-1": "cpu"}
    starter.close()
    assert (machines / "ledger.jsonl").exists()
    (machines / "stubborn").unlink()
    ledger = Ledger(machines / "ledger.jsonl")
    (order,) = command_starter(machines, ledger).leftovers()
    order()
    assert ledger.left() == {}
    ledger.close()


def command_starter(machines: Path, ledger: Ledger) -> CommandStarter:
    plan = parse_growth(of_commands(machines), "grows.yaml").launch_plan()
    place = CommandPlace(address="127.0.0.1:1", secret_file=machines / "secret", prefix="a")
    return CommandStarter(plan, place, ledger)


def test_two_heads_do_not_share_a_ledger(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "deep" / "ledger.jsonl")
    with pytest.raises(
        DualrayError, match=r"another cluster uses .*ledger.jsonl as its list of machines, and would end the machines"
    ):
        Ledger(tmp_path / "deep" / "ledger.jsonl")
    first.close()
    with pytest.raises(DualrayError, match="cannot be written"):
        Ledger(Path("/proc/nothing/ledger.jsonl"))


def test_a_line_that_a_crash_has_cut_off_is_no_machine(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps({"op": "launched", "id": "a", "group": "cpu"}) + '\n{"op": "laun')
    ledger = Ledger(path)
    assert ledger.left() == {"a": "cpu"}
    ledger.close()


# ---- The command line ------------------------------------------------------------------------------------------------


def dualray_cli(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dualray", *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cluster: {groups: {cpu: {max: -1}}}", "a.yaml:1: cluster.groups.cpu.max: -1 is too little: at least 0"),
        (
            "cluster: {nodes: 4}",
            "a.yaml:1: cluster: the file has no groups of nodes: write cluster: {groups: {cpu: {max: 4, cpus: 2}}}",
        ),
        (
            "cluster: {groups: {cpu: {max: 2}}}\nprovider: aws",
            "a.yaml:2: provider: the provider 'aws' must be local, or a mapping",
        ),
        (
            "cluster: {groups: {cpu: {max: 2}}}\nprovider: {}",
            "a.yaml:2: provider: a provider needs exactly one of local and command",
        ),
        ("cluster: {groups: {cpu: {max: 2}}}\nprovdier: local", "a.yaml:2: unknown key 'provdier'. Did you mean"),
        (
            "cluster: {groups: {cpu: {max: 2}}}\nconfig: {idle: 1}",
            "a.yaml:2: config.idle: dualray has no limit",
        ),
        ("- a", "a.yaml:1: a scenario must be a mapping"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    ended = dualray_cli("start", "--head", "--autoscale", tmp_path / "a.yaml")
    assert ended.returncode == 2
    assert message in ended.stderr


def test_only_a_head_launches_nodes(tmp_path: Path) -> None:
    ended = dualray_cli("start", "--address", "127.0.0.1:1", "--autoscale", tmp_path / "a.yaml")
    assert "--autoscale need --head" in ended.stderr
    ended = dualray_cli("start", "--head", "--autoscale", tmp_path / "none.yaml")
    assert "none.yaml: cannot be read: No such file or directory" in ended.stderr


EAGER = """
from dataclasses import replace
from dualray.shared.policies.bin_packing import BinPacking


class Eager(BinPacking):
    def choose(self, view):
        return replace(super().choose(view), launches={"cpu": 2} if view.demands else {})


class Greedy(BinPacking):
    def choose(self, view):
        return replace(super().choose(view), launches={"cpu": 40})
"""


def test_status_shows_supply_and_demand_and_what_another_policy_would_launch(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EAGER)
    with cluster_of(LOCAL % 1) as cluster:
        waits = [where.remote()]
        request_resources(num_cpus=2)
        eventually(lambda: len(alive()) == 2, "the requested node is there")
        shown = dualray_cli("status", "--address", cluster.address)
        assert shown.returncode == 0, shown.stderr
        assert "Groups" in shown.stdout
        assert "0 - 4" in shown.stdout
        assert re.search(r"Start-up of group cpu: [\d.]+ s \(median of the last 1: ", shown.stdout)
        lacks = "cpu: a node of this group lacks 1 disk"
        assert f"Demand: 1 x 1 CPU, 1 disk: no node is launched for it: {lacks}" in shown.stdout
        assert (
            "request of driver-2@node-0: 2 x 1 CPU: the nodes have room for this demand, or more nodes are starting"
            in shown.stdout
        )
        status = dualray.autoscaler.status()
        assert [row["nodes"] for row in status["groups"]] == [1]
        dry = ("status", "--address", cluster.address, "--dry-run")
        assert f"would launch no node for 1 x 1 CPU, 1 disk: {lacks}" in dualray_cli(*dry).stdout
        environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}
        for name, words in (
            ("Eager", "the policy would launch 2 nodes of group cpu"),
            (
                "Greedy",
                "the head process would refuse the launches and removals that --policy 'mine:Greedy' chose: group cpu",
            ),
            ("Absent", "Absent"),
        ):
            command = [sys.executable, "-m", "dualray", *dry, "--policy", f"mine:{name}"]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
            assert words in ended.stdout + ended.stderr
            assert ended.returncode == (0 if name == "Eager" else 2)
        request_resources()
        eventually(lambda: len(alive()) == 1, "the node has left")
        left = dualray_cli("status", "--address", cluster.address).stdout
        assert "Gone: 1 node of group cpu" in left
        assert "node-1" not in left
        refused = dualray_cli("status", "--policy", "a:B")
        assert "--policy needs --dry-run" in refused.stderr
        assert len(alive()) == 1, "nothing was launched"
        del waits
