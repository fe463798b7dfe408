"""What becomes of user code that uses too much memory of the machine that simulates: its node's machine decides.

The guard finds it (dualray.sim.usercode.memory_guard). The node is told what its memory monitor would say of that
worker alone, and ends it: its task fails with OutOfMemoryError, or is tried again, as in real mode. The driver gets
that error itself; so it does when most of the memory is taken by values in the stores, which no worker's end frees.
"""

from __future__ import annotations

from dualray.exceptions import OutOfMemoryError
from dualray.shared.model.config import Config
from dualray.shared.model.events import MemoryExceeded
from dualray.shared.model.ids import NodeID
from dualray.sim.cluster.outages import FallibleCluster
from dualray.sim.kernel.fibers import FiberOwner
from dualray.sim.processes.worker import UserProcess
from dualray.sim.usercode.memory_guard import MemoryGuard, MemoryStop, out_of_memory_words
from dualray.sim.usercode.patches import Patches

LOOK_EVERY_EVENTS = 1_000


class MemoryEnds:
    """Of one simulation; see the module."""

    def __init__(self, cluster: FallibleCluster, patches: Patches, config: Config) -> None:
        self._cluster = cluster
        self._patches = patches
        self._guard: MemoryGuard = patches.memory_guard
        self._guard.begin(cluster.fibers, config, self._words)
        cluster.kernel.on_event(self._look, every=LOOK_EVERY_EVENTS)

    def on_refused(self, error: MemoryError) -> None:
        """User code of a worker asked for more memory than there is.

        Raises:
            MemoryStop: its process has used what there was.
        """
        if self._guard.was_refused(error):
            raise MemoryStop from None

    def stop(self, process: UserProcess) -> None:
        """A worker has used too much.

        Raises:
            OutOfMemoryError: it is for the driver: the stores have most of it.
        """
        guard, cluster = self._guard, self._cluster
        charged_bytes = max(guard.charged_bytes(process), 1)
        self._patches.isolation.witness("memory", f"{process.address} was ended for the memory that it used")
        cluster.kernel.call_after(0, self._give_back, process)
        if self._stored_bytes() * 2 > guard.grown_bytes:
            guard.driver_is_told()
            raise OutOfMemoryError(self._words(process, guard.used_bytes, guard.limit_bytes, charged_bytes))
        node = cluster.nodes[NodeID(process.node)]
        workers = ((process.address, charged_bytes),)
        node.handle(MemoryExceeded(used_bytes=guard.used_bytes, limit_bytes=guard.limit_bytes, workers=workers))
        node.end_worker(process.address, "out of memory")  # unless it has ended already

    def _give_back(self, process: UserProcess) -> None:
        if process.has_core and not process.is_alive:
            process.core.forget_instance()
        self._guard.forget(process)

    def _look(self, events: int) -> None:
        owner = self._guard.over_the_limit
        if owner is None:
            return
        self._guard.over_the_limit = None
        if isinstance(owner, UserProcess) and not owner.is_driver:
            if owner.is_alive:
                self.stop(owner)
        else:
            guard = self._guard
            guard.driver_is_told()
            raise OutOfMemoryError(self._words(owner, guard.used_bytes, guard.limit_bytes, guard.charged_bytes(owner)))

    def _stored_bytes(self) -> int:
        """Of the values in all stores, those that are spilled in virtual time included: they are in memory here."""
        stores = [node.store for node in self._cluster.nodes.values()]
        values = (value for store in stores for held in (store.objects, store.spilled) for value in held.values())
        return sum({value.ctypes.data: value.nbytes for value in values}.values())  # copies share their bytes

    def _words(self, owner: FiberOwner, used_bytes: int, limit_bytes: int, own_bytes: int) -> str:
        who = "the driver"
        if isinstance(owner, UserProcess) and not owner.is_driver:
            who = f"{owner.core.execution.name} on {owner.node}" if owner.has_core else str(owner.address)
        return out_of_memory_words(who, used_bytes, limit_bytes, own_bytes, self._stored_bytes())
