"""More that may happen to the cluster of harness.py: what real processes and machines do, and simulated ones do not.

Several drivers share the cluster, and leave it, or die. Nodes are told to leave; GPUs, connections, memory, disks and
workers that start fail. Placement groups hold what tasks and actors run in; methods run side by side, and end their
actor; values are promised, and put later. Beside each worker runs the machine that its process begins as (PlainWorker),
which must say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dualray.shared.machines.head.head import Head
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model import events as e
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.ids import ActorID, Address, NodeID, ObjectID, PlacementGroupID, put_object_id, short
from dualray.shared.model.resources import CPU, GPU, UNITS, from_units
from dualray.shared.model.specs import (
    GroupStrategy,
    LabelOperator,
    LabelTerm,
    PlacementGroupSpec,
    Ref,
    Strategy,
    StrategyKind,
    TaskSpec,
)
from dualray.shared.proof.decision_log import MachineSpec
from tests.shared.flaws import found_wrong
from tests.shared.harness import (
    MS,
    Cluster,
    Content,
    Fiber,
    Frame,
    Key,
    NodeProcess,
    Op,
    Process,
    PyRef,
    Runnable,
    Shape,
    Step,
    UserProcess,
)

LABELS = tuple(LabelOperator)
WITH_LABELS = 50
"""Strategies from here on demand labels, then prefer them."""
IN_GROUP = 100
"""Strategies from here on are the driver's placement groups, one after the other, with any bundle, the first, ..."""
BUNDLES = 3
TABLES = (
    *("tasks", "objects", "waits", "workers", "actors", "named_actors", "namespaces", "nodes", "placement_groups"),
    *("processes", "none"),
)


# ---- What happens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class By:
    """Another driver takes a step."""

    driver: int
    step: AnyStep


@dataclass(frozen=True, slots=True)
class DriverEnds:
    """A driver that is not the first one goes: in good order, or its connection closes."""

    driver: int = 1
    cleanly: bool = True


@dataclass(frozen=True, slots=True)
class LoseGpu:
    node: int = 0
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Drain:
    """A node, never node-0, is told to leave."""

    node: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """Two processes of different nodes do not reach one another for a while; both hear that their connection closed.
    What is on its way comes late."""

    one: int = 0
    other: int = 1
    ns: int = MS
    is_of_actor: bool = False
    """Whether one is a driver and the other the worker of an actor, if there is one."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A node uses more than it may; its workers use so much, in turn."""

    node: int = 0
    sizes: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class BadStarts:
    """The next workers of a node die before they are up."""

    node: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class NoMemory:
    """The next reservations of a node fail, and what it reads from disk."""

    node: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class MakeGroup:
    strategy: int = 0
    bundles: tuple[tuple[int, int], ...] = ((1, 0),)
    """CPUs and GPUs."""


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    group: int = 0


@dataclass(frozen=True, slots=True)
class Promise:
    """A value is promised, and put after a while."""

    ns: int = MS


@dataclass(frozen=True, slots=True)
class BreakOffPut:
    """A put is interrupted, before it has room or after."""

    size: int = 300
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """Everybody is asked what he has, and what he waits for."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """Everybody's invariants are asked what they say of wrong states."""


AnyStep: TypeAlias = Step | MakeGroup | RemoveGroup | Promise | BreakOffPut
WideOp: TypeAlias = (
    Op | AnyStep | By | DriverEnds | LoseGpu | Drain | Part | OutOfMemory | BadStarts | NoMemory | Look | Flaw
)


# ---- Processes -----------------------------------------------------------------------------------------------------


class WideNode(NodeProcess):
    """A node manager whose machine is not perfect."""

    cluster: WideCluster
    bad_starts = 0
    no_memory = 0

    def handle(self, event: e.Event) -> None:
        super().handle(event)
        if self.machine.drained and self.is_alive:
            self.cluster.node_gone(self)
            lost = e.PeerLost(address=self.address)
            self.cluster.enqueue((self.key, "head"), lambda: self.cluster._peer_lost(self, lost))

    def _started(self, address: Address) -> None:
        if self.bad_starts:
            self.bad_starts -= 1
            self.end_worker(address, "it cannot start")
        else:
            super()._started(address)

    def _reserve(self, object_id: ObjectID) -> None:
        if not self.no_memory:
            super()._reserve(object_id)
            return
        self.no_memory -= 1
        order = self.reserving[object_id] = object()

        def failed() -> None:
            if self.reserving.get(object_id) is order:
                del self.reserving[object_id]
                self.handle(e.ReserveFailed(object_id=object_id, reason="the machine has no memory"))

        self.later(f"reserve {short(object_id)}", failed)

    def _spill(self, object_id: ObjectID) -> None:
        self.bytes.setdefault(object_id, Content())  # of a put that was broken off nothing was written
        super()._spill(object_id)

    def _restore(self, object_id: ObjectID) -> None:
        if self.no_memory:
            self.no_memory -= 1
            self.handle(e.RestoreFailed(object_id=object_id, reason="the disk cannot be read"))
        else:
            super()._restore(object_id)


class WideUser(UserProcess):
    """A worker that may begin as a plain one, and an actor's that may do several things at a time."""

    cluster: WideCluster
    plain: PlainWorker | None = None

    def __init__(self, cluster: Cluster, spec: MachineSpec) -> None:
        super().__init__(cluster, spec)
        self.made: list[PlacementGroupID] = []
        """Its placement groups."""

    def handle(self, event: e.Event) -> None:
        self.take_in_ran()
        self._handle_twice(event)

    def take_in_ran(self) -> None:
        """As ever, in both machines."""
        if self.ran and self.is_alive:
            ran, self.ran = tuple(self.ran), []
            self._handle_twice(e.TasksRan(outcomes=ran))

    def _handle_twice(self, event: e.Event) -> None:
        plain = self.plain if self.is_alive else None
        if plain is None:
            super().handle(event)
            return
        expected, before = plain.handle(event, self.cluster.now_ns), len(self.decisions)
        plain.check_invariants()
        if plain.owner is not None:
            self.plain = None
        super().handle(event)
        found = self.decisions[before].commands
        assert found == expected, f"{self.address} begins as a plain worker, which says {expected}, not {found}"

    def _hand_over(self, tasks: Sequence[Runnable]) -> None:
        for task in tasks:
            if task.spec.actor_id in self.cluster.concurrent:
                self.later(f"run {short(task.spec.task_id)}", self._beside(task))
            else:
                super()._hand_over((task,))
        if not tasks:
            super()._hand_over(())

    def _beside(self, task: Runnable) -> Callable[[], None]:
        return lambda: self.spawn(self._execute(task))

    def take(self, step: Any, frame: Frame) -> Fiber:
        """A step, one of those of this module too."""
        match step:
            case MakeGroup():
                yield from self._make_group(step)
            case RemoveGroup(group=index):
                if self.made:
                    self.handle(e.PlacementGroupRemovalAsked(group_id=self.made[index % len(self.made)]))
            case Promise(ns=ns):
                yield from self._promise(ns, frame)
            case BreakOffPut():
                yield from self._break_off_put(step, frame)
            case _:
                yield from super().take(step, frame)

    def _make_group(self, step: MakeGroup) -> Fiber:
        group_id = PlacementGroupID(b"group-%010d" % len(self.cluster.groups))
        self.cluster.groups.append(group_id)
        self.made.append(group_id)
        bundles = tuple(from_units({CPU: cpus * UNITS, GPU: gpus * UNITS}) for cpus, gpus in step.bundles)
        strategy = list(GroupStrategy)[step.strategy % len(GroupStrategy)]
        spec = PlacementGroupSpec(group_id=group_id, bundles=bundles, strategy=strategy, owner=self.address)
        wait_id = self._new_wait()
        yield self._await(e.PlacementGroupAsked(wait_id=wait_id, spec=spec), wait_id)

    def _next_put(self, frame: Frame) -> ObjectID:
        frame.puts += 1
        return put_object_id(frame.task_id, frame.attempt, frame.puts)

    def _promise(self, ns: int, frame: Frame) -> Fiber:
        object_id = self._next_put(frame)
        self.handle(e.ValuePromised(object_id=object_id))
        self.cluster.safe.add(object_id)
        frame.refs.append(PyRef(Ref(object_id, self.address)))
        yield self._sleep(ns)
        if object_id in self.machine.values.table:
            self.payloads[object_id] = Content()
            self.handle(e.PromiseKept(object_id=object_id, size_bytes=10, inline=True))

    def _break_off_put(self, step: BreakOffPut, frame: Frame) -> Fiber:
        object_id, wait_id = self._next_put(frame), self._new_wait()
        errors: list[ErrorInfo | None] = []
        self.waits[wait_id] = lambda ready, error: errors.append(error)
        self.handle(
            e.SpaceWanted(
                wait_id=wait_id, object_id=object_id, size_bytes=step.size, owner=self.address, remakeable=False
            )
        )
        yield self._sleep(step.ns)
        self.waits.pop(wait_id, None)
        if errors in ([], [None]):  # else the store was full, and `put` has raised
            self.handle(e.PutAbandoned(object_id=object_id))


# ---- The cluster ---------------------------------------------------------------------------------------------------


class WideCluster(Cluster):
    """See the module."""

    node_class = WideNode
    user_class = WideUser

    def __init__(self, shape: Shape, *, drivers: int = 1, seed: int = 0, **settings: Any) -> None:
        self.groups: list[PlacementGroupID] = []
        self.concurrent: dict[ActorID | None, None] = {}
        """Actors whose methods run side by side."""
        self.holding: list[ActorID] = []
        """Actors that hold what others may wait for."""
        self._is_finishing = False
        self.words: list[str] = []
        """What was said to those who looked."""
        self._cut: dict[Key, None] = {}
        """Channels on which nothing passes."""
        super().__init__(shape, seed=seed, **settings)
        assert isinstance(self.driver, WideUser)
        self.drivers: list[WideUser] = [self.driver]
        for number in range(2, drivers + 1):
            driver = WideUser.make(self, Address(f"driver-{number}"), NodeID("node-0"), is_driver=True)
            assert isinstance(driver, WideUser)
            self.drivers.append(driver)
            driver.handle(e.Started(namespace=f"of {number}"))
        self.settle()

    def add(self, process: Any) -> None:
        super().add(process)
        if isinstance(process, WideUser) and not process.is_driver:
            process.plain = PlainWorker(address=process.address, node=process.node, config=self.config)

    def labels_of(self, index: int) -> tuple[tuple[str, str], ...]:
        """Zones in turn; every fourth node is in none."""
        return (("zone", "ab"[index % 2]),) if index % 4 != 3 else ()

    def strategy(self, choice: int) -> Strategy:
        """As the step means it."""
        if WITH_LABELS <= choice < IN_GROUP:
            term = LabelTerm(key="zone", operator=LABELS[(choice - WITH_LABELS) % len(LABELS)], values=("a",))
            is_soft = choice - WITH_LABELS >= len(LABELS)
            return Strategy(
                kind=StrategyKind.NODE_LABELS, labels=() if is_soft else (term,), preferred=(term,) if is_soft else ()
            )
        if choice < IN_GROUP:
            return super().strategy(choice)
        if not self.groups:
            return Strategy()
        group, bundle = divmod(choice - IN_GROUP, BUNDLES)
        group_id = self.groups[group % len(self.groups)]
        return Strategy(kind=StrategyKind.PLACEMENT_GROUP, group=group_id, bundle=bundle - 1)

    def submitted(self, process: UserProcess, spec: TaskSpec) -> None:
        """Actors that do several things at a time are told apart."""
        if spec.creates is not None and spec.creates.is_concurrent:
            self.concurrent[spec.creates.actor_id] = None
        if spec.creates is not None and spec.template.resources.units:
            self.holding.append(spec.creates.actor_id)

    def note_error(self, error: ErrorInfo) -> None:
        """What goes wrong here is not told apart."""
        self.errors.append(error)

    def do(self, op: Any) -> None:
        """An operation, one of this module too."""
        match op:
            case By(driver=index, step=step):
                driver = self.drivers[index % len(self.drivers)]
                if driver.is_alive:
                    driver.spawn(driver.take(step, driver.frame))
            case DriverEnds():
                self._end_driver(op)
            case LoseGpu(node=index, gpu=gpu):
                self._node(index).handle(e.GpuLost(gpu=gpu))
            case Drain(node=index):
                if len(self.shape.nodes) > 1:
                    self._node(1 + (index - 1) % (len(self.shape.nodes) - 1)).handle(e.DrainAsked())
            case Part():
                self._part(op)
            case Look():
                self._look()
            case Flaw():
                for process in self.processes.values():
                    if process.is_alive:
                        self.words += found_wrong(process.machine)
            case OutOfMemory():
                self._run_out_of_memory(op)
            case BadStarts(node=index, count=count):
                self._node(index).bad_starts += count
            case NoMemory(node=index, count=count):
                self._node(index).no_memory += count
            case _:
                super().do(op)
                return
        self.hear()

    def _node(self, index: int) -> WideNode:
        node = self.nodes[NodeID(f"node-{index % len(self.shape.nodes)}")]
        assert isinstance(node, WideNode)
        return node

    def _end_driver(self, op: DriverEnds) -> None:
        others = [driver for driver in self.drivers[1:] if driver.is_alive]
        if not others:
            return
        driver = others[op.driver % len(others)]
        left = e.DriverLeft(address=driver.address) if op.cleanly else e.PeerLost(address=driver.address)
        self.process_gone(driver)
        self.enqueue((driver.key, "head"), lambda: self.head.handle(left))

    def _part(self, op: Part) -> None:
        ends = [process for process in (*self.nodes.values(), *self.users.values()) if process.is_alive]
        makers = [user for user in self.users.values() if user.is_alive and user.frame.actor_id is not None]
        if op.is_of_actor and makers:
            callers = [driver for driver in self.drivers if driver.is_alive]
            one, other = callers[op.one % len(callers)], makers[op.other % len(makers)]
        else:
            one, other = ends[op.one % len(ends)], ends[op.other % len(ends)]
        if one.node == other.node:
            return
        self.had_faults = self.had_losses = True
        for process, peer in ((one, other), (other, one)):
            self._cut[process.key, peer.address] = None
            process.later(f"loses {peer.address}", _hears(process, e.PeerLost(address=peer.address)))
        self.sleep(self.driver, op.ns, self._heals((one.key, other.address), (other.key, one.address)))

    def _heals(self, *keys: Key) -> Callable[[], None]:
        def heal() -> None:
            for key in keys:
                self._cut.pop(key, None)

        return heal

    def send(self, sender: Process, to: Address, message: e.Event, payloads: dict[bytes, Content]) -> None:
        """As ever; of a node that is there again the head has a connection to the life that it knows."""
        node = self.nodes.get(NodeID(to))
        if sender is self.head and node is not None and not isinstance(message, e.NodeRefused):
            head = self.head.machine
            assert isinstance(head, Head)
            if head.membership.members[node.node].info.incarnation != node.incarnation:
                return
        super().send(sender, to, message, payloads)

    def step(self) -> bool:
        """As ever, but nothing passes between those that are parted."""
        held = {key: self.channels.pop(key) for key in self._cut if key in self.channels}
        try:
            return super().step()
        finally:
            for key, channel in held.items():
                channel.extend(self.channels.get(key, ()))
                self.channels[key] = channel

    def _look(self) -> None:
        """What the state API and `explain` say."""
        for process in (*self.living_users(), *self.nodes.values(), self.head):
            if process.is_alive:
                self.words += told_by(process.machine)

    def _run_out_of_memory(self, op: OutOfMemory) -> None:
        node = self._node(op.node)
        workers = [address for address, worker in node.workers.items() if worker is not None]
        sizes = tuple((address, op.sizes[place % len(op.sizes)]) for place, address in enumerate(workers))
        node.handle(e.MemoryExceeded(used_bytes=96, limit_bytes=95, workers=sizes))

    def finish(self) -> None:
        """As ever; groups and actors, which may hold what others wait for, end first."""
        self._is_finishing = True
        self._kill_holding()
        for driver in self.drivers:
            for group_id in driver.made if driver.is_alive else ():
                driver.handle(e.PlacementGroupRemovalAsked(group_id=group_id))
        super().finish()

    def rest(self) -> None:
        """As ever; in the end actors that come late and hold what others wait for end, too."""
        super().rest()
        while self._is_finishing and self.holding:
            self._kill_holding()
            super().rest()

    def _kill_holding(self) -> None:
        holding, self.holding = self.holding, []
        for actor_id in holding:
            self.driver.handle(e.ActorKillAsked(actor_id=actor_id, no_restart=True))

    def total_of(self, node: NodeID, total: dict[str, int]) -> dict[str, int]:
        """What a node offers, without the GPUs that it has lost."""
        return dict(self.nodes[node].machine.scheduler.total)


def told_by(machine: Any) -> list[str]:
    """What a machine says to those who look."""
    if isinstance(machine, Owner):
        return _told_by_owner(machine)
    if isinstance(machine, Head):
        words = [str(machine.state_rows.of(table)) for table in TABLES]
        words += [machine.starvation.explain(request) for request in machine.scheduler.pending]
        return [*words, *machine.explain()]
    return [str(machine.state_rows.of(table)) for table in TABLES]


def _told_by_owner(owner: Owner) -> list[str]:
    words = [str(owner.state_rows.of(table)) for table in TABLES]
    words += [line for wait_id in owner.values.waiting.waits for line in owner.explanation.of_wait(wait_id)]
    for object_id, value in owner.values.table.items():
        words += [
            str(value),
            value.story(),
            owner.explanation.of_object(object_id),
            str(owner.state_rows.late(object_id)),
        ]
    return words + [record.story() for record in owner.tasks.records.values()]


def _hears(process: Any, event: e.Event) -> Callable[[], None]:
    return lambda: process.handle(event)


def run_wide(shape: Shape, ops: Sequence[Any], *, drivers: int, seed: int, **settings: Any) -> WideCluster:
    """Take a cluster through the operations, then to its end."""
    cluster = WideCluster(shape, drivers=drivers, seed=seed, **settings)
    for op in ops:
        cluster.do(op)
    cluster.finish()
    return cluster
