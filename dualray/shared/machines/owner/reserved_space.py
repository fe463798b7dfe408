"""The room that a process keeps in its node's store, and the arguments that lie in it, known to nobody else.

Theory of operation. An argument that is passed by value, and too large to travel with its call, is written into the
node's store, read by one task, and freed. Asking the node manager for room, sealing, telling the head, asking again in
the worker, and freeing by way of the head would cost many times what copying the bytes costs. So an owner that frees
such an argument keeps its room, and writes the next one there: last in, first out, so that the memory is warm. Such an
object is *lodged*: to the node manager it is room that its owner is writing to, and it counts as used.

Lending. A task that is pushed to a worker of the same node is preceded by `ArgumentsLent`, which says where its lodged
arguments lie; the worker reads them there and asks nobody. The owner writes nothing else there before the worker has
reported the task, or given it back, or died. Where a reader's view outlives its task, the worker says so ahead of its
report (`LoansKept`), and the owner hands the object over.

Handing over. An object that anybody else wants, that a task on another node needs, or that has been lodged for
`kept_room_idle_ns` and is not lent, goes to the node manager under its own name (`ObjectPlaced`), sealed, and pinned
as long as it is lent. From then on it is an object like any other.

Pressure. A node manager that needs room calls it back (`RoomWanted`): what is kept is returned, what is lodged is
handed over, and nothing is kept or lodged for a while. Without that, room that nobody has used for `kept_room_idle_ns`
is returned.

Relies on: the node manager keeps the room of a dead process until the workers have said what they read there (node.py);
an address of a process is never used twice.
Guarantees: a room is written to by its owner alone, and not while anybody may read what lies there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    ArgumentsLent,
    LoansKept,
    ObjectPlaced,
    ObjectReleased,
    ObjectsFreed,
    SpaceGranted,
    SpaceReturned,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, TaskID, lent_by, node_of
from dualray.shared.model.specs import Ref

ROOM_TIMER = "kept-room"
_LARGEST_SHARE = 8
"""An object takes at most this part of the room that may be kept."""


class Room:
    """Room of this process in its node's store: `room_id` is what it was first asked for."""

    __slots__ = (
        "borrowers",
        "is_freed",
        "is_written",
        "lodger",
        "lodger_bytes",
        "place",
        "room_id",
        "since_ns",
        "size_bytes",
    )

    def __init__(self, room_id: ObjectID, size_bytes: int, place: int) -> None:
        self.room_id = room_id
        self.size_bytes = size_bytes
        self.place = place
        self.lodger = room_id
        self.lodger_bytes = size_bytes
        self.is_written = False
        self.is_freed = False
        """Its object is wanted no more, and may still be read by those to whom it is lent."""
        self.borrowers: dict[Address, int] = {}
        """Workers that have it lent, with the number of their tasks."""
        self.since_ns = 0
        """When it was written to, or emptied."""


class Rooms:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, node: NodeID, config: Config) -> None:
        self.out = out
        self.address = address
        self._node = node
        self.node = Address(node)
        self._idle_ns = config.kept_room_idle_ns
        self._bytes_max = config.kept_room_bytes_max
        self.lodged: dict[ObjectID, Room] = {}
        """By what lies there; also what is freed and still lent."""
        self.handed_over: dict[ObjectID, Room] = {}
        """What is the node manager's, and still lent: it stays until we release it."""
        self.kept: list[Room] = []
        """Empty ones, the one that was emptied last at the end."""
        self.kept_bytes = 0
        self.asked: dict[ObjectID, int] = {}
        """What the node manager was asked to make room for, with its size."""
        self.lent: dict[Address, dict[TaskID, list[Room]]] = {}
        """To workers, for their tasks."""
        self._pressed_until_ns = 0
        self._is_timed = False

    # ---- Writing ---------------------------------------------------------------------------------------------

    def take(self, object_id: ObjectID, size_bytes: int) -> bool:
        """Find kept room for an object; False when there is none."""
        kept = self.kept
        for index in range(len(kept) - 1, -1, -1):
            room = kept[index]
            if size_bytes <= room.size_bytes <= 2 * size_bytes:
                del kept[index]
                self.kept_bytes -= room.size_bytes
                room.lodger, room.lodger_bytes = object_id, size_bytes
                room.is_written = room.is_freed = False
                self.lodged[object_id] = room
                return True
        return False

    def may_ask(self, object_id: ObjectID, size_bytes: int) -> bool:
        """Whether the object is to be lodged in room that the node manager is asked for now."""
        if size_bytes * _LARGEST_SHARE > self._bytes_max or self.out.now_ns < self._pressed_until_ns:
            return False
        self.asked[object_id] = size_bytes
        return True

    def on_granted(self, event: SpaceGranted) -> None:
        """The node manager has room for an object; for one of ours, perhaps."""
        size_bytes = self.asked.pop(event.object_id, None)
        if size_bytes is not None and not event.present:
            self.lodged[event.object_id] = Room(event.object_id, size_bytes, event.place)

    def place_of(self, object_id: ObjectID) -> int | None:
        """Where a lodged object is to be written; None: it is not lodged."""
        room = self.lodged.get(object_id)
        return None if room is None else room.place

    def written(self, object_id: ObjectID) -> bool:
        """An object has been written; whether it is lodged."""
        room = self.lodged.get(object_id)
        if room is None:
            return False
        room.is_written = True
        room.since_ns = self.out.now_ns
        if self.out.now_ns < self._pressed_until_ns:
            self.hand_over(object_id)
        elif not self._is_timed:
            self._arm()
        return True

    def free(self, object_id: ObjectID) -> bool:
        """Nobody wants an object any more; whether it was lodged."""
        room = self.lodged.get(object_id)
        if room is None:
            return False
        room.is_freed = True
        if not room.borrowers:
            self._empty(room)
        return True

    def _empty(self, room: Room) -> None:
        """Nobody reads what lies there: the next object may."""
        del self.lodged[room.lodger]
        if self.kept_bytes + room.size_bytes > self._bytes_max or self.out.now_ns < self._pressed_until_ns:
            self._return(room)
            return
        room.since_ns = self.out.now_ns
        self.kept.append(room)
        self.kept_bytes += room.size_bytes
        if not self._is_timed:
            self._arm()

    def _return(self, room: Room) -> None:
        self.out.send(self.node, SpaceReturned(object_id=room.room_id, requester=self.address))

    # ---- Lending ---------------------------------------------------------------------------------------------

    def lend(self, task: TaskID, refs: Iterable[Ref], worker: Address) -> bool:
        """A task is about to be pushed to a worker: it may read its arguments where they lie, if that is on its node;
        whether anything was lent."""
        rooms = [self.lodged[ref.object_id] for ref in dict.fromkeys(refs) if ref.object_id in self.lodged]
        if not rooms:
            return False
        if node_of(worker) != self._node or worker == self.address:  # a pin of ours as a reader would end with the seal
            for room in rooms:
                self.hand_over(room.lodger)
            return False
        self.lent.setdefault(worker, {})[task] = rooms
        for room in rooms:
            room.borrowers[worker] = room.borrowers.get(worker, 0) + 1
        loans = tuple([(room.lodger, room.room_id, room.place, room.lodger_bytes) for room in rooms])
        self.out.send(worker, ArgumentsLent(lender=self.address, loans=loans), urgent=False)
        return True

    def settle(self, worker: Address, task: TaskID) -> None:
        """The worker has ended the task, or given it back."""
        tasks = self.lent.get(worker)
        rooms = tasks.pop(task, None) if tasks is not None else None
        if rooms is None:
            return
        if not tasks:
            del self.lent[worker]
        for room in rooms:
            left = room.borrowers.pop(worker) - 1
            if left:
                room.borrowers[worker] = left
            elif not room.borrowers:
                self._is_back(room)

    def _is_back(self, room: Room) -> None:
        """Nobody has it lent any more."""
        if self.handed_over.pop(room.lodger, None) is not None:
            released = ObjectReleased(object_id=room.lodger, requester=lent_by(self.address))
            self.out.send(self.node, released)
        elif room.is_freed:
            self._empty(room)

    def on_process_died(self, dead: Collection[Address]) -> None:
        """What was lent to processes comes back with their death."""
        for worker in [worker for worker in self.lent if worker in dead]:
            for task in list(self.lent[worker]):
                self.settle(worker, task)

    def on_kept(self, event: LoansKept) -> None:
        """A worker goes on reading beyond its task."""
        for object_id in event.object_ids:
            room = self.lodged.get(object_id) or self.handed_over.get(object_id)
            if room is not None:
                self._place(room, (event.worker,))

    # ---- Handing over ----------------------------------------------------------------------------------------

    def hand_over(self, object_id: ObjectID) -> None:
        """Let the node manager have a lodged object; without effect on others."""
        room = self.lodged.get(object_id)
        if room is not None and room.is_written:
            self._place(room)

    def _place(self, room: Room, readers: tuple[Address, ...] = ()) -> None:
        placed = ObjectPlaced(
            object_id=room.lodger,
            room_id=room.room_id,
            size_bytes=room.lodger_bytes,
            owner=self.address,
            requester=self.address,
            is_lent=bool(room.borrowers),
            readers=readers,
        )
        self.out.send(self.node, placed)
        if self.lodged.pop(room.lodger, None) is not None:
            if room.borrowers:
                self.handed_over[room.lodger] = room
            if room.is_freed:
                self.out.send(HEAD, ObjectsFreed(object_ids=(room.lodger,)))

    def on_wanted(self) -> None:
        """The node manager needs room: see the module."""
        self._pressed_until_ns = self.out.now_ns + self._idle_ns
        kept, self.kept, self.kept_bytes = self.kept, [], 0
        for room in kept:
            self._return(room)
        for object_id, room in list(self.lodged.items()):
            if not room.is_freed:  # else it comes back when those have ended who read it
                self.hand_over(object_id)

    def on_timer(self) -> None:
        """Return what nobody has used for long, and hand over what lies here for long."""
        self._is_timed = False
        due_ns = self.out.now_ns - self._idle_ns
        for room in [room for room in self.kept if room.since_ns <= due_ns]:
            self.kept.remove(room)
            self.kept_bytes -= room.size_bytes
            self._return(room)
        for object_id, room in list(self.lodged.items()):
            if room.since_ns <= due_ns and not room.borrowers:
                self.hand_over(object_id)
        if self.kept or self.lodged:
            self._arm()

    def _arm(self) -> None:
        self._is_timed = True
        self.out.add(ArmTimer(timer=ROOM_TIMER, delay_ns=self._idle_ns))

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        total = sum(room.size_bytes for room in self.kept)
        ensure(total == self.kept_bytes <= self._bytes_max, "{} bytes are kept, not {}", total, self.kept_bytes)
        for room in self.kept:
            ensure(not room.borrowers, "room {} is kept, and lent to {}", room.room_id, list(room.borrowers))
        for object_id, room in self.lodged.items():
            ensure(room.lodger == object_id, "room {} is taken for that of {}", room.room_id, object_id)
            ensure(not room.is_freed or bool(room.borrowers), "freed object {} is lodged and lent to nobody", object_id)
            for worker, count in room.borrowers.items():
                lent = sum(room in rooms for rooms in self.lent.get(worker, {}).values())
                ensure(lent == count, "object {} is lent to {} {} times, not {}", object_id, worker, lent, count)
        for object_id, room in self.handed_over.items():
            ensure(bool(room.borrowers), "object {} was lent, is not any more, and is not released", object_id)
