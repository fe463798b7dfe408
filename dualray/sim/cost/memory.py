"""The memory of one virtual node, and its monitor; and that of its GPUs.

What is used is what the tasks that run here take (the scenario's table `memory`), the objects in the node's store, and
what strangers hold (a fault). An actor keeps what its constructor takes for as long as it lives. When more is used than
`memory_limit_percent` of the node's memory, the monitor says so to the node's machine within `memory_check_ns`, and
again after each further `memory_check_ns` while that lasts. It looks only while too much is used: an idle cluster
costs nothing.

What is held on a GPU is what the tasks that were given it take (the table `gpu_memory`), also those of which each was
given a part. Nobody is ended for it: as with CUDA, who asks for more than is left gets an error, and may try again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dualray.shared.model.config import Config
from dualray.shared.model.events import MemoryExceeded
from dualray.shared.model.ids import Address, NodeID
from dualray.shared.units import size_words
from dualray.sim.kernel.kernel import Kernel


class NodeMemory:
    """See the module. A node without a known size has memory without end.

    Args:
        size_bytes: of the node's memory; 0: not modelled.
        store_used_bytes: returns the bytes of the objects in the node's store.
        workers: those that live, when asked.
        exceeded: called with what the monitor has to say.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        config: Config,
        size_bytes: int,
        store_used_bytes: Callable[[], int],
        workers: Callable[[], Iterable[Address]],
        exceeded: Callable[[MemoryExceeded], object],
    ) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = size_bytes * config.memory_limit_percent // 100
        self.strangers_bytes = 0
        """Held by others than our processes: faults."""
        self._kernel = kernel
        self._check_ns = config.memory_check_ns
        self._store_used_bytes = store_used_bytes
        self._workers = workers
        self._exceeded = exceeded
        self._held: dict[Address, int] = {}
        self._held_bytes = 0
        self._is_looking = False
        self.store_peak_bytes = 0
        self.held_peak_bytes = 0
        self.peak_bytes = 0
        """The most that was used at once: of the store, by workers, and of both together."""

    @property
    def used_bytes(self) -> int:
        """In all."""
        return self.strangers_bytes + self._store_used_bytes() + self._held_bytes

    def take(self, worker: Address, size_bytes: int) -> None:
        """A worker takes memory, or gives back what it took (a negative size)."""
        if size_bytes:
            self._held[worker] = self._held.get(worker, 0) + size_bytes
            self._held_bytes += size_bytes
            if size_bytes > 0:
                self.note_peaks()
            self.look()

    def note_peaks(self) -> None:
        """Something has come."""
        store_bytes = self._store_used_bytes()
        self.store_peak_bytes = max(self.store_peak_bytes, store_bytes)
        self.held_peak_bytes = max(self.held_peak_bytes, self._held_bytes)
        self.peak_bytes = max(self.peak_bytes, self.strangers_bytes + store_bytes + self._held_bytes)

    def free(self, worker: Address) -> None:
        """A worker is gone, with all that it had."""
        self._held_bytes -= self._held.pop(worker, 0)

    def look(self) -> None:
        """Somebody has taken memory: if it is too much, that is noticed in a while."""
        if self.size_bytes and self._check_ns and not self._is_looking and self.used_bytes > self.limit_bytes:
            self._is_looking = True
            self._kernel.call_after(self._check_ns, self._check, daemon=True)

    def _check(self) -> None:
        self._is_looking = False
        used_bytes = self.used_bytes
        if used_bytes > self.limit_bytes:
            sizes = tuple((worker, self._held.get(worker, 0)) for worker in self._workers())
            self._exceeded(MemoryExceeded(used_bytes=used_bytes, limit_bytes=self.limit_bytes, workers=sizes))
        self.look()


class GpuMemory:
    """The memory of a node's GPUs, each of which has `size_bytes`; see the module."""

    def __init__(self, node: NodeID, size_bytes: int) -> None:
        self._node = node
        self.size_bytes = size_bytes
        self._held: dict[int, dict[Address, int]] = {}

    def used_bytes(self, gpu: int) -> int:
        """What is held on a GPU, in all."""
        return sum(self._held.get(gpu, {}).values())

    def take(self, worker: Address, name: str, gpus: Sequence[int], size_bytes: int) -> None:
        """What runs under a name in a worker takes so much on each of its GPUs.

        Raises:
            MemoryError: it does not fit on one of them; nothing is taken then.
        """
        for gpu in gpus:
            used_bytes = self.used_bytes(gpu)
            if used_bytes + size_bytes > self.size_bytes:
                has, used, more = map(size_words, (self.size_bytes, used_bytes, size_bytes))
                raise MemoryError(
                    f"{name}: GPU {gpu} of {self._node} has {has}; {used} are taken, and {more} more do not fit"
                )
        for gpu in gpus:
            held = self._held.setdefault(gpu, {})
            held[worker] = held.get(worker, 0) + size_bytes

    def give_back(self, worker: Address, gpus: Sequence[int], size_bytes: int) -> None:
        """It has ended."""
        for gpu in gpus:
            held = self._held[gpu]
            held[worker] -= size_bytes
            if not held[worker]:
                del held[worker]

    def free(self, worker: Address) -> None:
        """A worker is gone, with all that it had."""
        for held in self._held.values():
            held.pop(worker, None)
