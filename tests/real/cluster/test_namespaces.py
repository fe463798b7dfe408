"""Nodes with addresses of their own, in network namespaces that a bridge joins: tasks across, and partitions.

Needs `ip` and the right to make namespaces (CAP_SYS_ADMIN and CAP_NET_ADMIN: root in a container with both).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.cluster.namespaces import Driver, NamespacedMachine, Network, why_not

pytestmark = [pytest.mark.timeout(180)]

DEADLINE_S = 60.0
LIMITS = {"heartbeat_timeout_ns": 500_000_000, "suspicion_ns": 4_000_000_000, "link_patience_ns": 1_500_000_000}


@pytest.fixture(scope="module")
def allowed() -> None:
    why = why_not()
    if why:
        pytest.skip(f"network namespaces cannot be made: {why}")


DRIVER = """
    import time
    import numpy as np
    import dualray

    dualray.init(address=sys.argv[1])

    @dualray.remote
    def where(seconds):
        time.sleep(seconds)
        return dualray.get_runtime_context().get_node_id()

    @dualray.remote
    def ones(count):
        return np.ones(count)

    @dualray.remote
    def total(array):
        return float(array.sum())
"""


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}"
        time.sleep(0.1)


def has_ended(machine: NamespacedMachine) -> bool:
    """Whether the node there has ended its life; one that was starved may learn of it from the broken connection."""
    reasons = ("no message came from the head", "the connection to the head has closed")
    return any(f"node-1 ends: {reason}" in machine.log("node-1") for reason in reasons)


@pytest.fixture
def network(allowed: None) -> Iterator[Network]:
    made = Network(Path(f"/tmp/drns{os.getpid()}"), LIMITS)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def driver_on(network: Network, place: int, script: str) -> Iterator[Driver]:
    """A driver on one of three machines, each a node with one CPU: the first has the head, the others `r` and `s`."""
    head, second, third = (network.machine() for _ in range(3))
    head.dualray("start", "--head", "--node-ip", head.address, "--port", "6399", "--num-cpus", "1")
    address = f"{head.address}:6399"
    for machine, resource in ((second, "r"), (third, "s")):
        machine.dualray(
            "start", "--address", address, "--node-ip", machine.address,
            "--num-cpus", "1", "--resources", json.dumps({resource: 1}),
        )  # fmt: skip
    started = Driver((head, second, third)[place], script, address)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def driver(network: Network) -> Iterator[Driver]:
    """Where the head is."""
    with driver_on(network, 0, DRIVER) as started:
        yield started


ON_2, ON_3 = "options(resources={'r': 0.1}, num_cpus=0)", "options(resources={'s': 0.1}, num_cpus=0)"
STATES = "{row['NodeID']: [row['Alive'], row['Incarnation']] for row in dualray.nodes()}"


def test_tasks_and_values_cross_machines(driver: Driver, network: Network) -> None:
    assert driver(f"dualray.get([where.{ON_2}.remote(0), where.{ON_3}.remote(0)])") == ["node-1", "node-2"]
    assert driver(f"dualray.get(total.{ON_3}.remote(ones.{ON_2}.remote(1 << 20)))") == 1 << 20
    assert driver(f"dualray.get(total.{ON_3}.remote(dualray.put(np.ones(1 << 20))))") == 1 << 20
    other = Driver(network.machines[1], DRIVER, f"{network.machines[0].address}:6399")  # where the head is not
    try:
        assert other(f"dualray.get([where.{ON_2}.remote(0), where.{ON_3}.remote(0)])") == ["node-1", "node-2"]
    finally:
        other.close()


def test_a_short_partition_is_nobodys_death(driver: Driver, network: Network) -> None:
    second = network.machines[1]
    assert driver(f"dualray.get(where.{ON_2}.remote(0))") == "node-1"
    driver.ask(f"dualray.get([where.{ON_2}.remote(0.3) for _ in range(8)])")
    second.cut()
    time.sleep(1.5)  # longer than the heartbeat's timeout, shorter than the suspicion
    second.heal()
    assert driver.answer() == ["node-1"] * 8
    assert driver(STATES)["node-1"] == [True, 0]
    assert "node-1 does not answer" in network.machines[0].log("head")
    assert "node-1 answers again" in network.machines[0].log("head")


def test_a_node_that_was_cut_off_comes_back_as_its_next_incarnation(driver: Driver, network: Network) -> None:
    second = network.machines[1]
    assert driver("len(dualray.get([where.remote(0.2) for _ in range(6)]))") == 6
    driver.ask("len(dualray.get([where.remote(0.5) for _ in range(12)]))")
    second.cut()
    assert driver.answer() == 12, "others do what the lost one had begun"
    eventually(lambda: driver(STATES)["node-1"] == [False, 0], "the head counts it as dead")
    eventually(lambda: has_ended(second), "it ends itself")
    second.heal()
    eventually(lambda: driver(STATES)["node-1"] == [True, 1], "it has joined again")
    assert driver(f"dualray.get(where.{ON_2}.remote(0))") == "node-1"


@pytest.mark.slow
def test_what_only_a_node_had_that_stays_cut_off_is_made_again(driver: Driver, network: Network) -> None:
    second = network.machines[1]
    made = "ones.options(num_cpus=0.5, scheduling_strategy='SPREAD').remote(1 << 18)"
    driver(f"globals().update(kept=[{made} for _ in range(6)])")
    assert driver("len(dualray.wait(kept, num_returns=6)[0])") == 6
    second.cut()
    assert driver(f"dualray.get([total.{ON_3}.remote(ref) for ref in kept])") == [1 << 18] * 6
    eventually(lambda: driver(STATES)["node-1"] == [False, 0], "the head counts it as dead")
    eventually(lambda: has_ended(second), "it ends itself")


SLOW_BITS_PER_S = 200_000_000


def received_bytes(driver: Driver, network: Network, least: int) -> None:
    """Wait until machine 3's node has received so much, of what takes seconds on a slow interface."""
    third = network.machines[2]
    counter = f"/sys/class/net/{third.port}/statistics/tx_bytes"
    shown = ["ip", "netns", "exec", network.name, "cat", counter]

    def is_there() -> bool:
        return int(subprocess.run(shown, capture_output=True, text=True, check=True, timeout=20).stdout) > least

    eventually(is_there, f"{least:,} bytes are through")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", pytest.param("part", marks=pytest.mark.slow)])
def test_a_transfer_outlives_a_short_cut_of_its_link(driver: Driver, network: Network, how: str) -> None:
    second, third = network.machines[1:3]
    count = 8 << 20  # 64 MiB of float64, 2.7 s
    assert driver(f"dualray.get([where.{ON_2}.remote(0), where.{ON_3}.remote(0)])") == ["node-1", "node-2"]
    driver(f"globals().update(kept=ones.{ON_2}.remote({count})) or len(dualray.wait([kept])[0])")
    third.limit(SLOW_BITS_PER_S)
    driver.ask(f"dualray.get(total.{ON_3}.remote(kept))")
    received_bytes(driver, network, 16 << 20)
    if how == "cut":
        third.cut()
    else:
        second.part(third)
    time.sleep(1.5)  # shorter than the suspicion
    if how == "cut":
        third.heal()
    else:
        second.join(third)
    assert driver.answer() == count
    assert driver(STATES)["node-2"] == [True, 0]


@pytest.mark.slow
def test_a_transfer_ends_from_another_source_when_its_link_stays_cut(driver: Driver, network: Network) -> None:
    second, third = network.machines[1:3]
    count = 8 << 20
    assert driver(f"dualray.get([where.{ON_2}.remote(0), where.{ON_3}.remote(0)])") == ["node-1", "node-2"]
    driver(f"globals().update(kept=ones.{ON_2}.remote({count})) or len(dualray.wait([kept])[0])")
    third.limit(SLOW_BITS_PER_S)
    driver.ask(f"(lambda ref: [len(dualray.get(kept)), dualray.get(ref)])(total.{ON_3}.remote(kept))")
    received_bytes(driver, network, 16 << 20)
    second.part(third)  # both reach the head and machine 1, whose driver fetches it, too
    assert driver.answer() == [count, count]


@pytest.mark.slow
@pytest.mark.parametrize("have_met", [True, False], ids=["with a connection", "without one"])
def test_what_a_node_cannot_reach_comes_by_way_of_a_third(driver: Driver, network: Network, have_met: bool) -> None:
    second, third = network.machines[1:3]
    count = 1 << 20
    assert driver(f"dualray.get([where.{ON_2}.remote(0), where.{ON_3}.remote(0)])") == ["node-1", "node-2"]
    if have_met:
        assert driver(f"dualray.get(total.{ON_3}.remote(ones.{ON_2}.remote({count})))") == count
    driver(f"globals().update(kept=ones.{ON_2}.remote({count})) or len(dualray.wait([kept], fetch_local=False)[0])")
    second.part(third)  # both reach the head and machine 1
    assert driver(f"dualray.get(total.{ON_3}.remote(kept))") == count
    assert driver(STATES) == {"node-0": [True, 0], "node-1": [True, 0], "node-2": [True, 0]}


HOLD = """
    import pathlib

    @dualray.remote(scheduling_strategy="SPREAD")
    def hold(directory, seconds):
        context = dualray.get_runtime_context()
        pathlib.Path(directory, context.get_node_id()).touch()
        time.sleep(seconds)
        return context.get_node_id(), context.get_attempt()
"""


@pytest.fixture
def apart(network: Network) -> Iterator[Driver]:
    """Where the head is not, but `r` is."""
    with driver_on(network, 1, DRIVER + HOLD) as started:
        yield started


@pytest.mark.slow
def test_what_a_node_has_that_the_driver_cannot_reach_runs_elsewhere(
    apart: Driver, network: Network, tmp_path: Path
) -> None:
    second, third = network.machines[1:3]
    assert apart(f"dualray.get([where.{ON_2}.remote(0), where.{ON_3}.remote(0)])") == ["node-1", "node-2"]
    apart.ask(f"dualray.get([hold.remote({str(tmp_path)!r}, 2) for _ in range(3)])")
    eventually(lambda: len(list(tmp_path.iterdir())) == 3, "each node has begun one")
    second.part(third)  # both reach the head
    answers = apart.answer()
    assert sorted(attempt for _, attempt in answers) == [0, 0, 1]
    assert {node for node, _ in answers} == {"node-0", "node-1"}
    assert {row[0] for row in apart(STATES).values()} == {True}, "nobody has died"
    eventually(lambda: "cannot reach one another" in third.log("node-2"), "the node has ended what nobody can take")
    second.join(third)
    assert apart(f"dualray.get(where.{ON_3}.remote(0))") == "node-2"


def test_only_who_knows_the_secret_gets_in(driver: Driver, network: Network) -> None:
    stranger = network.machine()
    done = subprocess.run(
        stranger.command("-m", "dualray", "start", "--address", f"{network.machines[0].address}:6399"),
        env=stranger.environment | {"DUALRAY_SECRET": "not that secret at all"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "have different cluster secrets" in done.stderr
    assert set(driver(STATES)) == {"node-0", "node-1", "node-2"}


def test_one_port_a_machine_and_no_other(driver: Driver, network: Network) -> None:
    assert driver(f"dualray.get([where.{ON_2}.remote(0), where.{ON_3}.remote(0)])") == ["node-1", "node-2"]
    for machine in network.machines:
        shown = subprocess.run(
            ["ip", "netns", "exec", machine.name, "cat", "/proc/net/tcp"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
        listening = [line.split()[1] for line in shown.splitlines()[1:] if line.split()[3] == "0A"]
        assert len(listening) == 1, f"{machine.address} listens at {listening}"
