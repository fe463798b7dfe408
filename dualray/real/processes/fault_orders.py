"""The faults that a node manager performs on itself, at its own seams; orders come through fault_door.py.

    lose, corrupt           the copy of an object (`id`) here is gone, or one byte of it is another one
    fill_store, free_store  somebody else's bytes (`share` of the store) take room, under a `name`; and no more
    fill_memory             so many bytes of the memory count as taken by others: `share` of it, 0 at the end
    fill_disk               nothing can be spilled (`full`), or again
    limit_files             the process can open no more files (`limited`), or again
    lose_gpu                a GPU (`gpu`) is withdrawn, and the worker that holds it ends
    list_store              what is complete in the store is noted for the node's next life (kept_store.py)

Each answer says whether there was a target: `{"done": true}`. The machine is told the same events as in a simulation
(dualray/sim/cluster/fault_actions.py): decision logs hold them, and can be replayed.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Final, Protocol

from dualray.real.net.fault_door import NODE_DOOR, Answer, FaultDoor
from dualray.real.net.loop import Loop
from dualray.real.processes.memory_monitor import MemoryMonitor
from dualray.real.processes.recorder import Recorder
from dualray.real.session.session import Session
from dualray.real.store.kept_store import KeptStore, list_of, write_list
from dualray.real.store.node_store import NodeStore
from dualray.real.store.spill import SpillDirectory
from dualray.shared.machines.node.node import Node
from dualray.shared.model.events import Event, GpuLost, ObjectSealed, ObjectsFreed, OwnerDied, SpaceRequested
from dualray.shared.model.ids import Address, ObjectID, put_object_id, root_task_id
from dualray.shared.proof.trace import TraceKind

_PUT_BACK_LOOK_S: Final = 0.02
_PUT_BACK_S: Final = 5.0


class Faulty(Protocol):
    """What faults need of a node manager."""

    address: Address
    session: Session
    loop: Loop
    machine: Node
    store: NodeStore
    disk: SpillDirectory
    memory_monitor: MemoryMonitor
    recorder: Recorder

    def handle(self, event: Event) -> None:
        """Hand an event to the machine and carry out its commands."""


class FaultOrders:
    """See the module. On the loop's thread.

    Args:
        node: the node manager.

    Attributes:
        strangers: who is no process, and has room in the store.
    """

    def __init__(self, node: Faulty) -> None:
        self._node = node
        self.strangers: set[str] = set()
        self._limits_of_files = 0
        self._soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._door = FaultDoor(node.loop, node.session.directory / NODE_DOOR, self._perform)
        self._orders: dict[str, Callable[[Answer], bool]] = {
            "lose": self._lose,
            "corrupt": self._corrupt,
            "fill_store": self._fill_store,
            "free_store": self._free_store,
            "fill_memory": self._fill_memory,
            "fill_disk": self._fill_disk,
            "limit_files": self._limit_files,
            "lose_gpu": self._lose_gpu,
            "list_store": self._list_store,
        }

    def close(self) -> None:
        """Take no more orders."""
        self._door.close()

    def _perform(self, order: Answer) -> Answer:
        return {"done": self._orders[order["op"]](order)}

    # ---- Objects ---------------------------------------------------------------------------------------------

    def _lose(self, order: Answer) -> bool:
        object_id = ObjectID(bytes.fromhex(order["id"]))
        if not self._node.machine.is_here(object_id):
            return False
        self._node.handle(ObjectsFreed(object_ids=(object_id,)))
        return True

    def _corrupt(self, order: Answer) -> bool:
        object_id = ObjectID(bytes.fromhex(order["id"]))
        return self._node.machine.is_here(object_id) and self._node.store.corrupt(object_id)

    def _list_store(self, order: Answer) -> bool:
        write_list(self._node.session.store_directory, list_of(self._node.machine))
        return True

    def put_back(self) -> None:
        """The node is welcome: what its last life has left, if it has left anything, finds room again."""
        node = self._node
        kept = KeptStore.found(node.session.store_directory, node.session.spill_directory)
        if kept is None:
            return
        finder = Address(f"found-{node.address}~{node.machine.incarnation}")
        self.strangers.add(finder)
        requests = kept.requests(finder)
        for request in requests:
            node.handle(request)
        node.loop.call_soon(lambda: self._seal(kept, requests, finder, node.loop.now_ns()))

    def _seal(self, kept: KeptStore, requests: list[SpaceRequested], finder: Address, since_ns: int) -> None:
        """Copy what there is room for by now; what there is no room for in a while is left out."""
        node = self._node
        missing = []
        for request in requests:
            stored = node.machine.unsealed(request.object_id, finder)
            if stored is None:
                continue
            if stored.request is not None:  # memory is being found for it
                missing.append(request)
            elif kept.put_back(node.store, request.object_id, request.size_bytes):
                node.recorder.trace(TraceKind.OBJECT_STORED, request.object_id, amount=request.size_bytes)
                node.handle(ObjectSealed(object_id=request.object_id, requester=finder))
        if missing and node.loop.now_ns() - since_ns < _PUT_BACK_S * 1e9:
            node.loop.call_later(_PUT_BACK_LOOK_S, lambda: self._seal(kept, missing, finder, since_ns))
            return
        node.handle(OwnerDied(address=finder))
        kept.close()

    # ---- Store, memory, disk, GPUs ---------------------------------------------------------------------------

    def _fill_store(self, order: Answer) -> bool:
        stranger = Address(order["name"])
        self.strangers.add(stranger)
        self._node.handle(
            SpaceRequested(
                object_id=put_object_id(root_task_id(stranger, 0), 0, 1),
                size_bytes=round(self._node.session.store_bytes * order["share"]),
                owner=stranger,
                requester=stranger,
                remakeable=False,
            )
        )
        return True

    def _free_store(self, order: Answer) -> bool:
        self._node.handle(OwnerDied(address=Address(order["name"])))
        return True

    def _fill_memory(self, order: Answer) -> bool:
        monitor = self._node.memory_monitor
        monitor.strangers_bytes += round(monitor.size_bytes * order["share"])
        return True

    def _fill_disk(self, order: Answer) -> bool:
        self._node.disk.is_full += 1 if order["full"] else -1
        return True

    def _limit_files(self, order: Answer) -> bool:
        """Lower the limit of open files to what is open, or restore it when the last such fault has ended."""
        self._limits_of_files += 1 if order["limited"] else -1
        soft, (_, hard) = self._soft_limit, resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._limits_of_files:
            soft = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
            os.close(soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return True

    def _lose_gpu(self, order: Answer) -> bool:
        if not self._node.machine.has_gpu(order["gpu"]):
            return False
        self._node.handle(GpuLost(gpu=order["gpu"]))
        return True
