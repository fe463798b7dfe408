"""A node's metrics, for Prometheus: served by its node manager at the loopback address, when it is told to.

Theory of operation. A scrape comes on a thread of the HTTP server. It has the loop ask the node's other processes for
their counts (counters.py), waits for the answers, ASK_TIMEOUT_S at most, and then reads, on the loop's thread, the node
machine's state and the runner's counters. Between scrapes there is no work. A process that does not answer in time,
because it is stopped, shows what it said last; what a process that has ended had counted goes on counting.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualray.real.net.addresses import address_of
from dualray.real.net.loop import Loop
from dualray.real.net.transport import Transport
from dualray.real.observe.counters import (
    COUNTS_ASKED,
    GATEWAY_COUNTERS_FILE,
    GATEWAY_REASONS,
    Counts,
    of_connections,
    read_shared,
)
from dualray.real.observe.metrics_server import MetricsServer
from dualray.real.observe.user_series import UserSeries
from dualray.real.session.session import METRICS_FILE, Session
from dualray.shared.machines.node.node import Node
from dualray.shared.model.codec import unpack
from dualray.shared.model.ids import HEAD, Address, is_driver
from dualray.shared.model.resources import UNITS
from dualray.shared.model.states import WorkerState

LOOPBACK: Final = "127.0.0.1"
ASK_TIMEOUT_S: Final = 1.0

_TASK_STATES: Final = ("WAITING_ARGS", "QUEUED", "PUSHED")
_ENDED: Final = "ended"


class _Moved(Protocol):
    """Objects that were evicted, spilled or restored so far."""

    objects: int
    size_bytes: int


class _Router(Protocol):
    """Lines of output so far."""

    lines: int
    lines_left_out: int


class _Streams(Protocol):
    """Bytes of objects so far."""

    bytes_sent: int
    bytes_received: int


class _Store(Protocol):
    def taken_bytes(self) -> int: ...


class MeasuredNode(Protocol):
    """What the metrics read of a node manager's process."""

    @property
    def node(self) -> str: ...
    @property
    def session(self) -> Session: ...
    @property
    def machine(self) -> Node: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def loop(self) -> Loop: ...
    @property
    def store(self) -> _Store: ...
    @property
    def moved(self) -> Mapping[str, _Moved]: ...
    @property
    def streams(self) -> _Streams: ...
    @property
    def router(self) -> _Router: ...


class NodeMetrics(Collector):
    """See the module.

    Args:
        process: the node manager.
        port: where to serve; 0: any that is free.
    Raises:
        OSError: nobody can listen there.
    """

    def __init__(self, process: MeasuredNode, port: int) -> None:
        self._process = process
        self._said: dict[str, Counts] = {}
        """What each process of this node has said last; under "ended" what those that are gone had counted."""
        self._series = UserSeries(process.node)
        self._asked: dict[str, None] = {}
        self._answered = threading.Event()
        self._scrape = threading.Lock()
        registry = CollectorRegistry()
        registry.register(self)
        self._server = MetricsServer(LOOPBACK, port, registry)
        self.address = f"{LOOPBACK}:{self._server.server_port}"
        (process.session.directory / METRICS_FILE).write_text(self.address)

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    # ---- What the others say ---------------------------------------------------------------------------------

    def hear(self, peer: str, header: memoryview) -> None:
        """A process has answered. Loop's thread."""
        self._said[peer], series = unpack(header[1:])
        self._series.hear(peer, series)
        self._asked.pop(peer, None)
        if not self._asked:
            self._answered.set()

    def forget(self, peer: str) -> None:
        """A process is gone: what it had counted is kept, in sum. Loop's thread."""
        ended = self._said.setdefault(_ENDED, {})
        for name, count in self._said.pop(peer, {}).items():
            if not name.startswith("tasks:"):
                ended[name] = ended.get(name, 0) + count
        self._series.forget(peer)
        self._asked.pop(peer, None)
        if not self._asked:
            self._answered.set()

    def _ask(self) -> None:
        process = self._process
        others = [str(worker) for worker in process.machine.started_workers()]
        others += [peer for peer in process.transport.connected() if is_here(process, peer)]
        # A driver that has only called actors may never have spoken with this node; it listens here all the same.
        here = [address_of(path) for path in sorted(process.session.sockets.glob("driver-*"))]
        others += [driver for driver in here if driver not in others]
        self._answered.clear()
        self._asked = dict.fromkeys(others)
        for peer in others:
            process.transport.send(peer, bytes((COUNTS_ASKED,)))
        if not others:
            self._answered.set()

    # ---- A scrape --------------------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        """Everything, now. The HTTP server's thread."""
        families: list[Metric] = []
        with self._scrape:
            self._process.loop.call_and_wait(self._ask)
            self._answered.wait(ASK_TIMEOUT_S)
            self._process.loop.call_and_wait(lambda: families.extend(self._families()))
        return families

    def _families(self) -> Iterator[Metric]:
        yield from self._tasks()
        yield from self._scheduling()
        yield from self._store()
        yield from self._traffic()
        yield from self._head()
        yield from self._series.families()

    def _gauge(self, name: str, words: str, label: str, samples: Iterable[tuple[str, float]]) -> Metric:
        family = GaugeMetricFamily(f"dualray_{name}", words, labels=["node", *filter(None, [label])])
        for value, amount in samples:
            family.add_metric([self._process.node, *filter(None, [value])], amount)
        return family

    def _counter(self, name: str, words: str, samples: Iterable[tuple[tuple[str, ...], float]], *labels: str) -> Metric:
        family = CounterMetricFamily(f"dualray_{name}", words, labels=["node", *labels])
        for values, amount in samples:
            family.add_metric([self._process.node, *values], amount)
        return family

    def _sum(self, name: str) -> int:
        return sum(counts.get(name, 0) for counts in self._said.values())

    def _tasks(self) -> Iterator[Metric]:
        states = [(state, self._sum(f"tasks:{state}")) for state in _TASK_STATES]
        yield self._gauge(
            "tasks", "Tasks that processes of this node submitted and that have not ended, by state.", "state", states
        )
        yield self._counter(
            "tasks_finished",
            "Tasks that ended on workers of this node.",
            [((), self._sum("tasks_finished"))],
        )
        yield self._counter(
            "tasks_failed",
            "Tasks that processes of this node submitted and that failed, without further retries.",
            [((), self._sum("tasks_failed"))],
        )

    def _scheduling(self) -> Iterator[Metric]:
        machine = self._process.machine
        workers = machine.worker_states()
        yield self._gauge(
            "workers",
            "Worker processes, by state.",
            "state",
            [(s.value, workers[s]) for s in WorkerState if s != "DEAD"],
        )
        yield self._gauge(
            "leases",
            "Leases that this node has granted, and requests for leases that wait.",
            "state",
            machine.lease_counts().items(),
        )
        for what, amounts in (("total", machine.resources_total), ("free", machine.resources_free)):
            samples = [(name, units / UNITS) for name, units in amounts.items()]
            yield self._gauge(f"resources_{what}", f"Resources of this node, {what}.", "resource", samples)

    def _store(self) -> Iterator[Metric]:
        process, machine = self._process, self._process.machine
        for name, words, amount in (
            ("store_capacity_bytes", "Capacity of the object store in bytes.", machine.store_capacity_bytes()),
            ("store_used_bytes", "Bytes of the objects in the object store.", machine.store_used_bytes()),
            (
                "store_memory_bytes",
                "Bytes of shared memory of the object store, in use or ready.",
                process.store.taken_bytes(),
            ),
            ("store_objects", "Objects in the object store.", machine.object_count()),
            ("store_spilled_bytes", "Bytes of spilled objects on disk.", machine.store_spilled_bytes()),
        ):
            yield self._gauge(name, words, "", [("", amount)])
        for name, words in (
            ("evicted", "evicted, which can be recomputed"),
            ("spilled", "written to disk"),
            ("restored", "read back from disk"),
        ):
            moved = process.moved[name]
            yield self._counter(f"store_{name}_objects", f"Objects {words}.", [((), moved.objects)])
            yield self._counter(f"store_{name}_bytes", f"Bytes of objects {words}.", [((), moved.size_bytes)])

    def _traffic(self) -> Iterator[Metric]:
        process = self._process
        streams = process.streams
        bytes_moved = [(("sent",), streams.bytes_sent), (("received",), streams.bytes_received)]
        yield self._counter(
            "transfer_bytes", "Bytes of objects sent to other nodes and received from them.", bytes_moved, "direction"
        )
        own = of_connections(process.transport.counters)
        by_kind: dict[str, Counter[str]] = {"node": Counter(own)}
        for peer, counts in self._said.items():
            by_kind.setdefault(_kind_of(peer), Counter()).update(counts)
        gateway = read_shared(process.session.directory / GATEWAY_COUNTERS_FILE, GATEWAY_REASONS)
        by_kind["gateway"] = Counter({f"dropped:{reason}": count for reason, count in gateway.items()})
        dropped = [
            ((kind, name.partition(":")[2]), count)
            for kind, counts in sorted(by_kind.items())
            for name, count in sorted(counts.items())
            if name.startswith("dropped:")
        ]
        yield self._counter(
            "connections_dropped", "Connections refused or dropped, by kind of process.", dropped, "process", "reason"
        )
        for name, words in (
            ("messages_received", "Messages that processes of this node received."),
            ("messages_dropped", "Messages to other processes that were dropped."),
            ("peers_lost", "Connections to other processes that ended."),
        ):
            samples = [((kind,), counts[name]) for kind, counts in sorted(by_kind.items()) if kind != "gateway"]
            yield self._counter(name, words, samples, "process")
        yield self._counter("output_lines", "Lines that workers printed.", [((), process.router.lines)])
        yield self._counter(
            "output_lines_left_out",
            "Lines that were not sent to drivers, which read too slowly.",
            [((), process.router.lines_left_out)],
        )

    def _head(self) -> Iterator[Metric]:
        said = self._said.get(HEAD)
        if said is None:
            return
        for name, label, words in (("nodes", "health", "Nodes"), ("actors", "state", "Actors")):
            samples = [(key.partition(":")[2], count) for key, count in said.items() if key.startswith(f"{name}:")]
            yield self._gauge(f"cluster_{name}", f"{words} of the cluster, by {label}.", label, samples)
        for name, words in (
            ("drivers", "Drivers of the cluster."),
            ("leases_pending", "Leases that wait for a node."),
            ("objects", "Objects in the stores of all nodes."),
        ):
            yield self._gauge(f"cluster_{name}", words, "", [("", said.get(name, 0))])


def is_here(process: MeasuredNode, peer: str) -> bool:
    """Whether a peer is the head or a driver on this machine."""
    return (peer == HEAD or is_driver(Address(peer))) and process.session.gateway_for(peer) is None


def _kind_of(peer: str) -> str:
    if peer in (HEAD, _ENDED):
        return peer
    return "driver" if is_driver(Address(peer)) else "worker"
