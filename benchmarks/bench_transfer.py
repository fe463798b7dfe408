"""Objects between nodes beside bare sockets: one copy, and a broadcast to seven nodes beside a pipelined chain.

Every node has a network namespace of its own, and all of them hang on one bridge, so bytes pass through TCP and a
network device, as between machines. Where namespaces are not allowed the nodes have loopback addresses of their own,
and the table says so. The bare sockets run in the same namespaces, in turn with dualray:

    copy     sendall out of shared memory in one process, recv_into shared memory in the other
    chain    each process receives 256 KiB into shared memory and sends them on; the last acknowledges

Their memory is written before and used again in each round. A round of dualray is what a program sees: a task on each
receiving node that takes the object as its argument, from `remote` to the end of `get`. Each round has a new object,
and follows one of the sockets: for minutes rounds of both take half as long again where a virtual machine's host has
other work.
Nothing is encrypted (`--no-tls`) but in the row that says so, which shows what TLS costs: its sockets are bare, too.
The row at 1 Gbit/s shapes each node's interface, in each direction: there the network is what takes time, and not this
machine's processors, which all nodes share.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.conftest import MIB, Measure, Results, Row
from tests.real.cluster.namespaces import Driver, Loopback, Machine, NamespacedMachine, Network, why_not

OBJECT_BYTES = 256 * MIB
GIGABYTES = OBJECT_BYTES / 1e9
RECEIVERS = 7
SLOW_BITS_PER_S = 1_000_000_000
STORE_SIZE = "1GiB"

COPY = Row(
    name="transfer_256MiB",
    operation="256 MiB to another node; other: sendall and recv_into",
    unit="GB/s",
    gigabytes=GIGABYTES,
    rounds=12,
)
ENCRYPTED_COPY = Row(
    name="transfer_256MiB_tls",
    operation="the same, encrypted; other: bare sockets",
    unit="GB/s",
    gigabytes=GIGABYTES,
    rounds=6,
)
BROADCAST = Row(
    name="broadcast_7", operation="256 MiB to 7 nodes; other: a chain of sockets", unit="s", rounds=12
)  # fmt: skip
SLOW_BROADCAST = Row(
    name="broadcast_7_1Gbps", operation="the same, each node at 1 Gbit/s", unit="s", rounds=3
)  # fmt: skip

PROGRAM = """
    import numpy as np
    import dualray

    dualray.init(address=sys.argv[1], log_to_driver=False)
    receivers = json.loads(sys.argv[2])
    kept = {}

    @dualray.remote(num_cpus=0)
    def size(array):
        return array.nbytes

    sizes = [size.options(resources={name: 1}) for name in receivers]

    def prepare(count):
        kept.clear()
        kept["ref"] = dualray.put(np.ones(count, np.uint8))

    def one_round():
        return sum(dualray.get([each.remote(kept["ref"]) for each in sizes], timeout=120))
"""

SOCKETS = """
    import mmap, socket, tempfile, time

    COUNT, RECEIVERS, PIECE = int(sys.argv[1]), int(sys.argv[2]), 1 << 18
    PORT = 7700 + RECEIVERS
    before, address, after = (argument or None for argument in sys.argv[3:6])
    shared = tempfile.TemporaryFile(dir="/dev/shm")
    shared.write(bytes(COUNT))
    view = memoryview(mmap.mmap(shared.fileno(), COUNT))
    if before is not None:
        listener = socket.create_server((address, PORT))
    while after is not None:
        try:
            following = socket.create_connection((after, PORT))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    if before is not None:
        preceding = listener.accept()[0]

    def one_round():
        following.sendall(view)
        assert following.recv(1) == b"x"
        return COUNT * RECEIVERS

    def receive():
        taken = 0
        while taken < COUNT:
            count = preceding.recv_into(view[taken:taken + PIECE], 0, socket.MSG_WAITALL)
            if count == 0:
                sys.exit()
            if after is not None:
                following.sendall(view[taken:taken + count])
            taken += count
        if after is not None:
            assert following.recv(1) == b"x"
        preceding.sendall(b"x")

    while before is not None:
        receive()
"""


@pytest.fixture(scope="module")
def network(results: Results) -> Iterator[Network | Loopback]:
    """As many machines as are asked for, in namespaces where that is allowed."""
    directory = Path(f"/tmp/drbench{os.getpid()}")
    why = why_not()
    if why:
        results.absent["namespaces"] = f"nodes have loopback addresses, for namespaces cannot be made: {why}"
    made = Loopback(directory) if why else Network(directory)
    try:
        yield made
    finally:
        made.close()


def machines(network: Network | Loopback, count: int) -> list[Machine]:
    """The first `count` machines, made when they are missing."""
    while len(network.machines) < count:
        network.machine()
    return list(network.machines[:count])


class Running:
    """A peer's processes, on `receivers` + 1 machines."""

    def __init__(self, peer: str, hosts: list[Machine], *, tls: bool = False) -> None:
        self.hosts = hosts
        self.tls = "--tls" if tls else "--no-tls"
        self.is_cluster = peer == "dualray"
        self.others: list[Driver] = []
        try:
            self.driver = self._cluster() if self.is_cluster else self._sockets()
        except BaseException:
            self.close()
            raise

    def _cluster(self) -> Driver:
        head, *others = self.hosts
        store = ("--num-cpus", "1", "--object-store-memory", STORE_SIZE, self.tls)
        head.dualray("start", "--head", "--node-ip", head.address, "--port", "6399", *store)
        address = f"{head.address}:6399"
        names = [f"r{index}" for index in range(len(others))]
        for machine, name in zip(others, names, strict=True):
            resources = ("--resources", json.dumps({name: 1}))
            machine.dualray("start", "--address", address, "--node-ip", machine.address, *store, *resources)
        return Driver(head, PROGRAM, address, json.dumps(names))

    def _sockets(self) -> Driver:
        addresses = ["", *[machine.address for machine in self.hosts], ""]
        made = []
        for index, machine in enumerate(self.hosts):
            around = addresses[index : index + 3]
            made.append(Driver(machine, SOCKETS, str(OBJECT_BYTES), str(len(self.hosts) - 1), *around))
        self.others = made[1:]
        return made[0]

    def prepare(self) -> None:
        self.driver(f"prepare({OBJECT_BYTES})")

    def one_round(self) -> None:
        taken = self.driver("one_round()")
        assert taken == OBJECT_BYTES * (len(self.hosts) - 1), f"{taken} bytes were taken"

    def close(self) -> None:
        for process in [*([self.driver] if hasattr(self, "driver") else []), *self.others]:
            process.close()
        if self.is_cluster:
            for machine in reversed(self.hosts):
                machine.dualray("stop")


class Peers:
    """A cluster and bare sockets on the same machines, the one idle while the other works."""

    def __init__(self, network: Network | Loopback, receivers: int, *, tls: bool = False) -> None:
        self.hosts = machines(network, receivers + 1)
        self.cluster = Running("dualray", self.hosts, tls=tls)
        try:
            self.sockets = Running("sockets", self.hosts)
        except BaseException:
            self.cluster.close()
            raise

    def measure(self, measure_in_turn: Measure, row: Row, *, warm: int) -> None:
        measure_in_turn(row, self.cluster.one_round, self.cluster.prepare, "sockets", self.sockets.one_round, warm=warm)

    def close(self) -> None:
        self.sockets.close()
        self.cluster.close()


@pytest.fixture
def pair(network: Network | Loopback) -> Iterator[Peers]:
    peers = Peers(network, 1)
    yield peers
    peers.close()


@pytest.fixture
def encrypted_pair(network: Network | Loopback) -> Iterator[Peers]:
    peers = Peers(network, 1, tls=True)
    yield peers
    peers.close()


@pytest.fixture(scope="module")
def crowd(network: Network | Loopback) -> Iterator[Peers]:
    peers = Peers(network, RECEIVERS)
    yield peers
    peers.close()


def test_transfer(pair: Peers, measure_in_turn: Measure) -> None:
    pair.measure(measure_in_turn, COPY, warm=2)


def test_encrypted_transfer(encrypted_pair: Peers, measure_in_turn: Measure) -> None:
    encrypted_pair.measure(measure_in_turn, ENCRYPTED_COPY, warm=2)


def test_broadcast(crowd: Peers, measure_in_turn: Measure) -> None:
    crowd.measure(measure_in_turn, BROADCAST, warm=2)


def test_slow_broadcast(crowd: Peers, measure_in_turn: Measure, results: Results) -> None:
    shaped: list[NamespacedMachine] = []
    try:
        for machine in crowd.hosts:
            if not isinstance(machine, NamespacedMachine):
                pytest.skip("loopback addresses have one interface together")
            try:
                machine.limit(SLOW_BITS_PER_S)
            except RuntimeError as error:
                results.absent["tc"] = f"interfaces cannot be shaped: {error}"
                pytest.skip(results.absent["tc"])
            shaped.append(machine)
        crowd.measure(measure_in_turn, SLOW_BROADCAST, warm=1)
    finally:
        for machine in shaped:
            machine.unlimit()
