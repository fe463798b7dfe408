"""A runner tells its machine what happened around it: timers, exits of workers, lost connections, memory, GPUs."""

from __future__ import annotations

from dualray.shared.model.ids import Address, NodeID, ObjectID
from dualray.shared.model.records import dataclass


@dataclass(slots=True, kw_only=True)
class Started:
    """The machine begins; its runner is ready to carry out commands. `namespace`: of a driver, where the names of its
    actors stand; "" for one of its own."""

    namespace: str = ""


@dataclass(slots=True, kw_only=True)
class TimerFired:
    """A timer armed by this machine is due."""

    timer: str


@dataclass(slots=True, kw_only=True)
class DrainAsked:
    """To a node manager, from whoever runs it: this node is to end, in good order. With `is_cancellable` it stays when
    that has not come to its end within `drain_timeout_ns`; else it leaves all the same."""

    is_cancellable: bool = False


@dataclass(slots=True, kw_only=True)
class WorkerReady:
    """A worker process is up and reachable."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class WorkerExited:
    """A worker process is gone, and what it had sent to its node manager has arrived; `reason` says how: signal, exit
    code, last lines of its stderr."""

    worker: Address
    reason: str


@dataclass(slots=True, kw_only=True)
class WorkerNotStarted:
    """The machine has no room for one more worker process: files, processes or memory are at their limit. `reason`
    names the limit."""

    worker: Address
    reason: str


@dataclass(slots=True, kw_only=True)
class NodeSilent:
    """Nothing has been heard of the node for the heartbeat timeout."""

    node: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class NodeHeard:
    """A node that was silent was heard again."""

    node: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class PeerLost:
    """The connection to a process closed: of its own machine, or to the head, it is gone; another machine's may be out
    of reach instead, and what was on its way to and from it is lost."""

    address: Address
    limit: str = ""
    """The limit, in words, that keeps this process from a connection. The other process lives."""


@dataclass(slots=True, kw_only=True)
class SpaceReserved:
    """There is memory for the object of a `ReserveSpace`: it can be written. `place` is where, as the runner counts."""

    object_id: ObjectID
    place: int = 0


@dataclass(slots=True, kw_only=True)
class ReserveFailed:
    """There is no memory for the object of a `ReserveSpace`, though it was admitted; `reason` says why."""

    object_id: ObjectID
    reason: str


@dataclass(slots=True, kw_only=True)
class ObjectSpilled:
    """The bytes of a `SpillObject` are on disk. `elapsed_ns`: writing them took so long; 0: nobody knows."""

    object_id: ObjectID
    elapsed_ns: int = 0


@dataclass(slots=True, kw_only=True)
class SpillFailed:
    """The bytes of a `SpillObject` are not on disk, and nothing of them is; `reason` says why."""

    object_id: ObjectID
    reason: str


@dataclass(slots=True, kw_only=True)
class ObjectRestored:
    """The bytes of a `RestoreObject` are in memory. `elapsed_ns`: reading them took so long; 0: nobody knows."""

    object_id: ObjectID
    elapsed_ns: int = 0


@dataclass(slots=True, kw_only=True)
class RestoreFailed:
    """The bytes of a `RestoreObject` cannot be read from disk: this copy is lost."""

    object_id: ObjectID
    reason: str


@dataclass(slots=True, kw_only=True)
class GpuLost:
    """A GPU of this node has fallen off the bus, and will not come back in this life of the node."""

    gpu: int


@dataclass(slots=True, kw_only=True)
class MemoryExceeded:
    """Runner to node: the memory of this machine that is used is more than the limit. `workers` are those of this node
    with what each uses by itself, the object store left out."""

    used_bytes: int
    limit_bytes: int
    workers: tuple[tuple[Address, int], ...]


@dataclass(slots=True, kw_only=True)
class ObjectSent:
    """All bytes of a `SendObject` have been taken, or, not `complete`, it failed: the object may be evicted again."""

    object_id: ObjectID
    to: NodeID
    complete: bool = True


@dataclass(slots=True, kw_only=True)
class ObjectReceived:
    """All bytes of an object have arrived from `source`."""

    object_id: ObjectID
    source: NodeID


@dataclass(slots=True, kw_only=True)
class ReceiveFailed:
    """The source of an object stopped sending before the end; its first `received_bytes` are here."""

    object_id: ObjectID
    source: NodeID
    received_bytes: int = 0
