"""A cluster in memory: one head, nodes, a driver and their workers, with no clock, no process and no input or output.

It is the adversary of the machines. Messages stay in order between two processes, and come in any order otherwise: a
seeded generator chooses. User code is data: a `Body` is a list of steps (`Put`, `Submit`, `Get`, ...) that a worker
takes in turn, as its core worker would let a function take them; the driver takes its steps without waiting for them,
as threads would. Bytes are `Content`: the references that a value holds, so that reading one hands them on.

Faults: `KillWorker`, `KillNode`, `Silence` and `Reboot`. What a process had sent when it died arrives up to a point
that the generator chooses, and for each receiver another; what is sent to it is dropped.

After each event the machine that took it checks its invariants. The runner has its own: a payload is there when it is
read, and so are the bytes of a stored object, as long as somebody has them open. `finish` ends the faults, lets
everything come to rest, drops every reference, and demands that nothing is left anywhere.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias

from dualray.shared.machines.head.head import Head
from dualray.shared.model import commands as c
from dualray.shared.model import events as e
from dualray.shared.model.codec import encode, pack
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, TaskID, short
from dualray.shared.model.resources import CPU, GPU, UNITS, from_units
from dualray.shared.model.specs import Strategy, StrategyKind, TaskSpec
from dualray.shared.model.states import ActorState, TaskState
from dualray.shared.proof.decision_log import Log, MachineSpec, Replay, replay
from tests.shared.processes import (
    Consumer,
    Content,
    Failed,
    Fiber,
    Frame,
    Interrupted,
    NodeProcess,
    Process,
    PyRef,
    Runnable,
)
from tests.shared.steps import (
    DISK_BYTES,
    INLINE_MAX,
    MS,
    STEPS_MAX,
    AskState,
    Body,
    Call,
    Cancel,
    Deliver,
    Drop,
    DropHandle,
    DropStream,
    DropValue,
    Fault,
    Get,
    KillActor,
    KillNode,
    KillWorker,
    MakeActor,
    Next,
    Op,
    Out,
    Put,
    Reboot,
    Settle,
    Shape,
    Silence,
    Sleep,
    Step,
    Submit,
    Tick,
    Wait,
)
from tests.shared.user_process import UserProcess

__all__ = [
    "DISK_BYTES",
    "INLINE_MAX",
    "MS",
    "STEPS_MAX",
    "AskState",
    "Body",
    "Call",
    "Cancel",
    "Cluster",
    "Consumer",
    "Content",
    "Deliver",
    "Drop",
    "DropHandle",
    "DropStream",
    "DropValue",
    "Failed",
    "Fault",
    "Fiber",
    "Frame",
    "Get",
    "Interrupted",
    "Key",
    "KillActor",
    "KillNode",
    "KillWorker",
    "MakeActor",
    "Next",
    "NodeProcess",
    "Op",
    "Out",
    "Process",
    "Put",
    "PyRef",
    "Reboot",
    "Runnable",
    "Settle",
    "Shape",
    "Silence",
    "Sleep",
    "Step",
    "Submit",
    "Tick",
    "UserProcess",
    "Wait",
    "run",
]

Key: TypeAlias = tuple[str, str]

USUAL = Shape()


class Cluster:
    """See the module."""

    node_class: type[NodeProcess] = NodeProcess
    user_class: type[UserProcess] = UserProcess

    def __init__(self, shape: Shape = USUAL, *, seed: int = 0, **settings: Any) -> None:
        self.shape = shape
        self.rng = random.Random(seed)
        if shape.spills:
            settings = {"eviction_policy": "spill", "spill_bytes_max": DISK_BYTES} | settings
        self.config = replace(
            Config(inline_bytes_max=INLINE_MAX, locality_bytes_max=500, transfer_chunk_bytes=10), **settings
        )
        self.now_ns = 0
        self.timer_counter = 0
        self.place_counter = 0
        self.steps = 0
        self.faults_allowed = True
        self.is_ending = False
        self.trace: Callable[[Address, int, e.Event, list[c.Command]], None] | None = None
        self.channels: dict[Key, deque[Callable[[], None]]] = {}
        self._ranks: dict[Key, float] = {}
        self._sleepers: list[tuple[int, int, UserProcess, Callable[[], None]]] = []
        self.processes: dict[Address, Process] = {}
        self.everyone: list[Process] = []
        self.nodes: dict[NodeID, NodeProcess] = {}
        self.users: dict[Address, UserProcess] = {}
        self.handles: set[ObjectID] = set()
        self.safe: set[ObjectID] = set()
        self.errors: list[ErrorInfo] = []
        self.items_taken: dict[TaskID, list[int]] = {}
        self.had_faults = False
        self.had_cancels = False
        self.had_losses = False
        """Whether an object may have had to be made again."""
        self.head = Process(self, MachineSpec(kind="head", address=HEAD, config=self.config))
        self.add(self.head)
        self.head.handle(e.Started())
        for index in range(len(shape.nodes)):
            self.start_node(index, 0)
        self.driver = self.user_class.make(self, Address("driver-1"), NodeID("node-0"), is_driver=True)
        self.driver.handle(e.Started())
        self.settle()

    # ---- Who there is ------------------------------------------------------------------------------------------

    def start_node(self, index: int, incarnation: int) -> None:
        cpus, gpus, store_bytes = self.shape.nodes[index]
        name = f"node-{index}"
        spec = MachineSpec(
            kind="node",
            address=name,
            node=name,
            config=self.config,
            incarnation=incarnation,
            total=from_units({CPU: cpus * UNITS, GPU: gpus * UNITS}).units,
            store_bytes=store_bytes,
            labels=self.labels_of(index),
        )
        process = self.node_class(self, spec)
        self.nodes[NodeID(name)] = process
        self.add(process)
        process.handle(e.Started())

    def labels_of(self, index: int) -> tuple[tuple[str, str], ...]:
        """What a node is labelled with."""
        return ()

    def add(self, process: Process) -> None:
        self.processes[process.address] = process
        self.everyone.append(process)

    def strategy(self, choice: int) -> Strategy:
        if choice == 0:
            return Strategy()
        if choice == 1:
            return Strategy(kind=StrategyKind.SPREAD)
        index, soft = divmod(choice - 2, 2)
        node = NodeID(f"node-{index % len(self.shape.nodes)}")
        return Strategy(kind=StrategyKind.NODE_AFFINITY, node=node, soft=bool(soft))

    def living_users(self) -> list[UserProcess]:
        return [process for process in self.users.values() if process.is_alive]

    def next_place(self) -> int:
        self.place_counter += 1
        return self.place_counter

    # ---- Messages ----------------------------------------------------------------------------------------------

    def enqueue(self, key: Key, act: Callable[[], None]) -> None:
        channel = self.channels.get(key)
        if channel is None:
            channel = self.channels[key] = deque()
        channel.append(act)

    def send(self, sender: Process, to: Address, message: e.Event, payloads: dict[bytes, Content]) -> None:
        assert to in self.processes or "/w" in to, f"{sender.address} sends {message} to {to}"
        # It goes to the life of the receiver that the sender has a connection to.
        receiver = self.processes.get(to)
        if receiver is None or not receiver.is_alive:
            return

        def deliver() -> None:
            if receiver.is_alive:
                receiver.payloads.update(payloads)
                receiver.handle(message)

        self.enqueue((sender.key, to), deliver)

    def bytes_arrive(self, target: NodeProcess, object_id: ObjectID, source: NodeID, content: Content) -> None:
        if target.is_alive:
            target.bytes[object_id] = content
            target.handle(e.ObjectReceived(object_id=object_id, source=source))
            if target.machine.store.is_readable(object_id):
                for to in target.passing.pop(object_id, ()):
                    target._send_object(c.SendObject(object_id=object_id, size_bytes=0, to=to))

    def step(self) -> bool:
        """Deliver one message, or do one thing that is due; False when there is nothing."""
        if not self.channels:
            return False
        self.steps += 1
        assert self.steps < STEPS_MAX, "the cluster does not become idle"
        keys = list(self.channels)
        if self.shape.orderly:
            key = min(keys, key=self._rank)
            if self.rng.random() < 0.05:
                self._ranks[key] = self.rng.random() + 1
        else:
            key = keys[self.rng.randrange(len(keys))]
        channel = self.channels[key]
        act = channel.popleft()
        if not channel:
            del self.channels[key]
        act()
        return True

    def _rank(self, key: Key) -> float:
        rank = self._ranks.get(key)
        if rank is None:
            rank = self._ranks[key] = self.rng.random()
        return rank

    def settle(self) -> None:
        while self.step():
            pass

    # ---- Time --------------------------------------------------------------------------------------------------

    def sleep(self, process: UserProcess, ns: int, act: Callable[[], None]) -> None:
        self.timer_counter += 1
        self._sleepers.append((self.now_ns + ns, self.timer_counter, process, act))

    def tick(self) -> bool:
        """The earliest timer fires; False when there is none."""
        best: tuple[int, int] | None = None
        fire: Callable[[], None] | None = None
        for process in self.processes.values():
            for name, due in process.timers.items():
                if process.is_alive and (best is None or due < best):
                    best = due
                    fire = _fire(process, name)
        for sleeper in self._sleepers:
            if sleeper[2].is_alive and (best is None or sleeper[:2] < best):
                best = sleeper[:2]
                fire = self._wake(sleeper)
        if best is None or fire is None:
            return False
        self.now_ns = max(self.now_ns, best[0])
        fire()
        return True

    def _wake(self, sleeper: tuple[int, int, UserProcess, Callable[[], None]]) -> Callable[[], None]:
        def wake() -> None:
            self._sleepers.remove(sleeper)
            sleeper[3]()

        return wake

    def rest(self) -> None:
        """Deliver, and let timers fire when nothing is on its way, until nothing is left."""
        while True:
            self.settle()
            if not self.tick():
                return

    # ---- Faults ------------------------------------------------------------------------------------------------

    def process_gone(self, process: Process) -> None:
        """A process ends: for each receiver, what it had sent arrives up to a point."""
        process.is_alive = False
        process.timers.clear()
        self.had_faults = self.had_losses = True
        for key in [key for key in self.channels if key[0] == process.key]:
            channel = self.channels[key]
            is_message = Address(key[1]) in self.processes or key[1].startswith("bytes ")
            kept = self.rng.randint(0, len(channel)) if is_message else 0
            while len(channel) > kept:
                channel.pop()
            if not channel:
                del self.channels[key]

    def node_gone(self, node: NodeProcess) -> None:
        lost = [key for key in self.channels if key[0] == node.key and key[1].startswith("bytes ")]
        before = {key: len(self.channels[key]) for key in lost}
        self.process_gone(node)
        for key, count in before.items():
            if len(self.channels.get(key, ())) < count and self.rng.random() < 0.5:
                self._receive_fails(node, key)
        for address, worker in list(node.workers.items()):
            if worker is not None:
                self.process_gone(worker)
            del node.workers[address]

    def _receive_fails(self, source: NodeProcess, key: Key) -> None:
        """The receiver's runner sees that the source has stopped in the middle."""
        _, name, to = key[1].split()
        target = self.nodes[NodeID(to)]
        for object_id in [object_id for object_id in source.bytes if short(object_id) == name]:
            failed = e.ReceiveFailed(object_id=object_id, source=source.node)
            self.enqueue((target.key, f"broken {name} {source.node}"), partial(target.handle, failed))

    def kill_node(self, index: int, *, silently: bool) -> None:
        if len(self.shape.nodes) == 1:
            return
        node = self.nodes[NodeID(f"node-{1 + (index - 1) % (len(self.shape.nodes) - 1)}")]
        if not node.is_alive:
            return
        self.node_gone(node)
        if silently:
            silent = e.NodeSilent(node=node.node, incarnation=node.incarnation)
            self.enqueue((node.key, HEAD), lambda: self.head.handle(silent))
        else:
            lost = e.PeerLost(address=node.address)
            self.enqueue((node.key, HEAD), lambda: self._peer_lost(node, lost))

    def _peer_lost(self, node: NodeProcess, lost: e.PeerLost) -> None:
        head = self.head.machine
        assert isinstance(head, Head)
        if head.membership.is_alive(node.node, node.incarnation):  # a new life's connection is not lost
            self.head.handle(lost)

    def silence(self, index: int, heard_after: int) -> None:
        if len(self.shape.nodes) == 1:
            return
        node = self.nodes[NodeID(f"node-{1 + (index - 1) % (len(self.shape.nodes) - 1)}")]
        if not node.is_alive or node.heard_at is not None:
            return
        self.had_faults = self.had_losses = True
        node.heard_at = self.steps + heard_after
        silent = e.NodeSilent(node=node.node, incarnation=node.incarnation)
        self.enqueue((node.key, HEAD), lambda: self.head.handle(silent))

    def hear(self, *, all_nodes: bool = False) -> None:
        """Nodes that were silent for long enough are heard again."""
        for node in self.nodes.values():
            if node.heard_at is not None and (all_nodes or node.heard_at <= self.steps):
                node.heard_at = None
                if node.is_alive:
                    heard = e.NodeHeard(node=node.node, incarnation=node.incarnation)
                    self.enqueue((node.key, HEAD), _handle(self.head, heard))

    def reboot(self, index: int) -> None:
        index = index % len(self.shape.nodes)
        node = self.nodes[NodeID(f"node-{index}")]
        if not node.is_alive:
            self.start_node(index, node.incarnation + 1)

    def kill_worker(self, index: int) -> None:
        workers = [(node, address) for node in self.nodes.values() if node.is_alive for address in node.workers]
        if workers:
            self.had_faults = self.had_losses = True
            node, address = workers[index % len(workers)]
            node.end_worker(address, "killed by SIGKILL")

    # ---- Operations ----------------------------------------------------------------------------------------------

    def do(self, op: Op) -> None:
        match op:
            case Deliver(count=count):
                for _ in range(count):
                    self.step()
            case Settle():
                self.settle()
            case Tick():
                self.tick()
            case KillWorker(worker=index):
                self.kill_worker(index)
            case KillNode(node=index, silently=silently):
                self.kill_node(index, silently=silently)
            case Silence(node=index, heard_after=after):
                self.silence(index, after)
            case Reboot(node=index):
                self.reboot(index)
            case _:
                self.driver.spawn(self.driver.take(op, self.driver.frame))
        self.hear()

    # ---- What user code must see ---------------------------------------------------------------------------------

    def submitted(self, process: UserProcess, spec: TaskSpec) -> None:
        pass

    def started(self, process: UserProcess, task: Runnable) -> None:
        pass

    def note_error(self, error: ErrorInfo) -> None:
        """User code met an error. Without a fault, only these are expected: an object that left a full store may have
        no attempt left, and values that were made again refer to other objects than before."""
        self.errors.append(error)
        expected: tuple[ErrorKind, ...] = (
            ErrorKind.APPLICATION,
            ErrorKind.STORE_FULL,
            ErrorKind.TASK_UNSCHEDULABLE,
            ErrorKind.ACTOR_UNSCHEDULABLE,
            ErrorKind.ACTOR_DIED,
        )
        if self.had_losses:
            expected += (ErrorKind.RECONSTRUCTION_FAILED, ErrorKind.OBJECT_LOST)
        if self.had_cancels:
            expected += (ErrorKind.TASK_CANCELLED,)
        assert self.had_faults or error.kind in expected, f"without a fault: {error}"

    # ---- The end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the faults, come to rest, drop every reference, and demand that nothing is left."""
        self.faults_allowed, self.is_ending = False, True
        self.hear(all_nodes=True)
        for process in self.living_users():
            if process.is_driver:
                process.drop_streams(process.frame)
        self.rest()
        self._check_all_ended()
        for process in self.living_users():
            process.drop_frame(process.frame)
            for ref in process.kept:
                process.let_go(ref)
            process.kept = []
        self.rest()
        self._check_nothing_left()

    def _check_all_ended(self) -> None:
        for process in self.living_users():
            owner = process.machine
            stuck = [line for wait_id in owner.values.waiting.waits for line in owner.explanation.of_wait(wait_id)]
            assert not process.waits, f"{process.address} waits for ever: {stuck} {list(process.waits)}"
            assert not process.fibers, f"{process.address} has a fiber that does not end"
            assert owner.executor.current is None, f"{process.address} does not end {owner.executor.current}"
            assert not owner.executor.queue, f"{process.address} does not begin {owner.executor.queue}"
            for record in owner.tasks.records.values():
                is_alive_actor = record.spec.creates is not None and record.state is TaskState.PUSHED
                assert record.is_done or is_alive_actor, f"{process.address}: {record.story()} does not end"

    def _check_nothing_left(self) -> None:
        for process in self.living_users():
            self._check_owner_is_empty(process)
        for node in self.nodes.values():
            if node.is_alive:
                self._check_node_is_empty(node)
        head = self.head.machine
        assert isinstance(head, Head)
        _empty("head", "entries of the directory", head.directory.entries)
        _empty("head", "pending requests", head.scheduler.pending)
        for name, view in head.scheduler.views.items():
            _empty("head", f"placements on {name}", view.placed)
            total = self.total_of(name, dict(view.info.total.units))
            assert view.free == total, f"the head believes {name} to have {view.free} free of {total}"
        for actor_id, record in head.actors.records.items():
            # Of an actor whose maker died too early, the head has nothing but the subscribers.
            is_over = record.state is ActorState.DEAD or record.spec is None
            assert is_over, f"actor {short(actor_id)} lives on: {record.state}"
        _empty("head", "payloads", self.head.payloads)
        _empty("head", "leases of actors", head.actors.by_lease)

    def total_of(self, node: NodeID, total: dict[str, int]) -> dict[str, int]:
        """What a node offers whose total was this when it joined."""
        return total

    def _check_owner_is_empty(self, process: UserProcess) -> None:
        owner, who = process.machine, process.address
        story = {short(value.object_id): (str(value.state), value.story()) for value in owner.values.table.values()}
        assert not story, f"{who} keeps values {story}"
        _empty(who, "waits", owner.values.waiting.waits)
        _empty(who, "borrows that are not acknowledged", owner.values.borrows.unacknowledged)
        _empty(who, "removals held back", owner.values.borrows.removals_held_back)
        _empty(who, "views", owner.values.pins.views)
        _empty(who, "loans", [*owner.values.pins.loans, *owner.values.pins.loans_kept])
        _empty(who, "arguments that are lodged", owner.rooms.lodged)
        _empty(who, "room", owner.rooms.kept)
        _empty(who, "arguments that are lent", owner.rooms.lent)
        _empty(who, "records", [record.story() for record in owner.tasks.records.values()])
        _empty(who, "results to acknowledge", owner.tasks.results_to_acknowledge)
        _empty(who, "leases", owner.leases.leases)
        _empty(who, "requests", owner.leases.requests)
        _empty(who, "results in transit", owner.executor.transit.in_transit)
        _empty(who, "streams", owner.tasks.streams.consumed)
        _empty(who, "generators that run", owner.production.running)
        _empty(who, "items that wait", owner.production.queue)
        _empty(who, "items in transit", owner.production.in_transit)
        _empty(who, "payloads", process.payloads)
        _empty(who, "calls", [c for c in owner.actor_calls.clients.values() if c.queue or c.in_flight])

    def _check_node_is_empty(self, node: NodeProcess) -> None:
        machine, who = node.machine, node.address
        _empty(who, "objects", [(short(o.object_id), list(o.pins), o.owner) for o in machine.store.objects.values()])
        _empty(who, "room", {**machine.store.space.room_of, **node.rooms})
        _empty(who, "doubts about dead processes", machine.doubts)
        _empty(who, "bytes", {short(object_id): None for object_id in node.bytes})
        _empty(who, "spilled objects", machine.store.spilled)
        _empty(who, "bytes on disk", node.disk)
        _empty(who, "writers in line", machine.store.waiting)
        _empty(who, "wants", {short(object_id): want.users for object_id, want in machine.transfer.wants.items()})
        _empty(who, "leases", machine.scheduler.leases)
        _empty(who, "slots", machine.scheduler.waiting)
        _empty(who, "unstaffed slots", machine.scheduler.unstaffed)
        total = machine.scheduler.total
        assert machine.scheduler.free == total, f"{who} has {machine.scheduler.free} free of {total}"

    # ---- Replays ---------------------------------------------------------------------------------------------------

    def replay_all(self) -> list[Replay]:
        """Have fresh machines derive every command again."""
        return [
            replay(Log(spec=process.spec, seed="", decisions=process.decisions, is_cut_off=False))
            for process in self.everyone
        ]

    def check_replays(self) -> None:
        for process, result in zip(self.everyone, self.replay_all(), strict=True):
            assert result.difference is None, f"{process.address}: {result.difference}"

    def fingerprint(self) -> str:
        """A digest of every event and command."""
        digest = blake2b(digest_size=16)
        for process in self.everyone:
            digest.update(process.address.encode())
            for decision in process.decisions:
                digest.update(pack((decision.now_ns, encode(decision.event))))
                for command in decision.commands:
                    digest.update(pack(encode(command)))
        return digest.hexdigest()


def _fire(process: Process, timer: str) -> Callable[[], None]:
    return lambda: process.fire(timer)


def _handle(process: Process, event: e.Event) -> Callable[[], None]:
    return lambda: process.handle(event)


def _empty(who: str, what: str, left: Any) -> None:
    assert not left, f"{who} keeps {what}: {left}"


def run(
    shape: Shape, ops: Sequence[Op], *, seed: int = 0, replays: bool = False, faults: bool = True, **settings: Any
) -> Cluster:
    """Take a cluster through the operations, then to its end."""
    cluster = Cluster(shape, seed=seed, **settings)
    cluster.faults_allowed = faults
    for op in ops:
        cluster.do(op)
    cluster.finish()
    if replays:
        cluster.check_replays()
    return cluster


__all__ = [name for name in globals() if not name.startswith("_")]
