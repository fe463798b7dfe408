"""The queues in which an owner's tasks wait for leases, and the leases that serve them.

Theory of operation. Tasks queue by shape. A lease serves one queue at a time. It is the right to use a worker with
certain resources, so another function of the same owner can use it as well, if its tasks need the same resources,
strategy and runtime environment: such queues are peers. An idle lease goes to a peer whose tasks wait, instead of
going back to its node first: two functions that alternate on one CPU would else wait for `lease_idle_ns` each time.
Tasks with SPREAD get no such lease, nor do tasks with large arguments, which ask for one near these. A lease with a GPU
stays with its function, because the function may leave data in the GPU's memory.

Relies on: leases.py says which leases are idle and which queues have asked.
Guarantees: queues that spread have no peers.
"""

from __future__ import annotations

from collections import deque

from dualray.shared.model.events import LeaseGranted
from dualray.shared.model.ids import LeaseID, TaskID
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import LeaseShape, Strategy, StrategyKind


class Lease:
    """A leased worker and the tasks pushed to it, oldest first."""

    __slots__ = (
        "blocked",
        "device_ids",
        "has_room",
        "idle_since_ns",
        "in_flight",
        "incarnation",
        "is_wanted",
        "lease_id",
        "node",
        "progress_ns",
        "queue",
        "worker",
    )

    def __init__(self, event: LeaseGranted, queue: ShapeQueue) -> None:
        self.lease_id = event.lease_id
        self.worker = event.worker
        self.node = event.node
        self.incarnation = event.incarnation
        self.device_ids = event.device_ids
        self.queue = queue
        self.in_flight: dict[TaskID, None] = {}
        self.has_room = False
        self.blocked = False
        self.is_wanted = False
        """By its node: nothing more is pushed, and it goes back when what was pushed is done."""
        self.idle_since_ns = 0
        self.progress_ns = 0
        """When the oldest task in flight was pushed, or the one before it finished."""


class ShapeQueue:
    """The tasks of one shape that wait, and the leases that serve them. Those that may not run twice have a queue of
    their own."""

    __slots__ = (
        "leases",
        "may_ask",
        "mean_ns",
        "peers",
        "requested",
        "room",
        "runs_once",
        "shape",
        "tasks",
        "together",
        "window",
    )

    def __init__(self, shape: LeaseShape, peers: Peers, *, runs_once: bool) -> None:
        self.shape = shape
        self.peers = peers
        self.runs_once = runs_once
        self.tasks: deque[TaskID] = deque()
        self.leases: dict[LeaseID, Lease] = {}
        self.room: deque[Lease] = deque()
        """Leases that can take a task now: idle ones at the right end, last used first."""
        self.requested = 0
        self.may_ask = True
        """Not while more than half of as many as may be asked for are still to come."""
        self.mean_ns = 0
        self.together = 1
        """Tasks that are not divided among leases."""
        self.window = 1
        """Tasks that a lease may have in flight."""


class Peers:
    """Queues whose leases can serve one another's tasks."""

    __slots__ = ("idle", "queues", "waiting")

    def __init__(self) -> None:
        self.queues = 0
        """How many there are, also of those that were forgotten."""
        self.waiting: dict[ShapeQueue, None] = {}
        """Those whose tasks wait, the first of them first; they may have none any more."""
        self.idle: dict[LeaseID, Lease] = {}
        """Leases that became idle when there were several queues; they may be busy again."""

    def wait(self, queue: ShapeQueue) -> bool:
        """Tasks of a queue wait for leases; whether there may be idle ones."""
        if queue.shape.deps:
            return False
        self.waiting[queue] = None
        return bool(self.idle)

    def next_waiting(self) -> ShapeQueue | None:
        """The queue whose tasks began to wait first."""
        while self.waiting:
            queue = next(iter(self.waiting))
            if queue.tasks:
                return queue
            del self.waiting[queue]
        return None


class AllPeers:
    """The peers of each shape."""

    def __init__(self) -> None:
        self._by_need: dict[tuple[Resources, Resources, Strategy, str], Peers] = {}

    def of(self, shape: LeaseShape) -> Peers:
        """The peers of a new queue."""
        if shape.strategy.kind is StrategyKind.SPREAD:
            peers = Peers()
        else:
            need = shape.resources, shape.placement, shape.strategy, shape.runtime_env
            peers = self._by_need.setdefault(need, Peers())
        peers.queues += 1
        return peers
