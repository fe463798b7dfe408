"""A virtual process owns the fibers, the threads and the environment of its user code.

A process with a single task keeps that task's fiber alone, and no dict of fibers.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

from dualray.runtime_env import Swapped, run_setup_hook
from dualray.shared.handles import SHUTDOWN_PATIENCE_NS
from dualray.shared.model.ids import Address, NodeID
from dualray.shared.model.resources import GPU_MASK
from dualray.sim.kernel.fibers import Fiber, FiberKilled
from dualray.sim.processes.device_variables import DeviceVariables
from dualray.sim.processes.host_process import HostProcess
from dualray.sim.processes.node import ClusterOfNodes
from dualray.sim.processes.object_store import VirtualStore
from dualray.sim.usercode.locks import words_of_wait
from dualray.visible_devices import hidden, shown


class CodeProcess(HostProcess):
    """Owns fibers; see the module."""

    threads: Any = None
    """What dualray.sim.usercode.threads keeps here."""
    view: Any = None
    """The user's modules as it sees them, if it has imported any for itself: dualray.sim.usercode.modules."""

    def __init__(
        self, *, cluster: ClusterOfNodes, address: Address, node: NodeID, store: VirtualStore, is_driver: bool
    ) -> None:
        super().__init__(cluster=cluster, address=address, node=node, store=store)
        self._is_driver = is_driver
        self._task_fiber: Fiber | None = None
        self._fibers: dict[Fiber, str] | None = None
        """What runs here, where that is more than `_task_fiber`, with the concurrency group."""
        variables = {} if is_driver else hidden()
        self.visible_gpus: str | None = variables.pop(GPU_MASK, cluster.shown_gpus)
        """Its CUDA_VISIBLE_DEVICES while it does not run; None: not set."""
        self.device_variables = DeviceVariables(variables) if variables else None
        """Its variables of other accelerators, if they differ from everybody's."""
        self.library_threads: bytes | None = None
        """Its OMP_NUM_THREADS while it does not run; b"": not set; None: as the environment of the simulation says."""
        self.environment: Swapped | None = None
        """Its runtime environment."""
        self._spawned = 0
        self.streams_seed: bytes | None = None
        """Seeds the random numbers from which all of its fibers draw, in an actor's process; None: each has its own."""
        self.streams: Any = None
        """The generators of these, once a fiber has drawn: dualray.sim.usercode.generators."""

    @property
    def is_driver(self) -> bool:
        """Whether it runs the driver's script."""
        return self._is_driver

    @property
    def name_of_streams(self) -> bytes:
        """What seeds the randomness of its imports."""
        return f"{self.cluster.seed}:{self.address}:imports".encode()

    def is_main(self, fiber: Fiber) -> bool:
        """Whether a fiber is its main thread: the driver's script, or a task."""
        return fiber is self._task_fiber or fiber is self.cluster.fibers.driver

    def shut_down(self, end: Callable[[], None]) -> None:
        kernel = self.cluster.kernel
        patience = kernel.call_after(SHUTDOWN_PATIENCE_NS, end)

        def run() -> None:
            fiber = self._task_fiber = self.cluster.fibers.current()
            if self._fibers is not None and fiber is not None:
                self._fibers[fiber] = ""
            try:
                self.core.shut_down()
            finally:
                patience.cancel()
                kernel.call_after(0, end)

        self.cluster.fibers.spawn_soon(self, run)

    # ---- Fibers ----------------------------------------------------------------------------------------------

    def spawn(self, function: Callable[[], object]) -> None:
        self._spawned += 1
        seed = f"{self.cluster.seed}:{self.address}:beside {self._spawned}".encode()
        if self.cluster.fibers.current() is None:  # in the middle of an event: user code runs after it
            self.cluster.kernel.call_after(0, self._spawn_if_alive, function, seed)
        else:
            self.spawn_seeded(function, seed)

    def collect_garbage(self) -> None:
        """After the event, where the simulation collects by itself, too. The virtual processes share one heap: one
        collection finds the garbage of all, and the next one is due when a process could be asked again."""
        cluster, now_ns = self.cluster, self.cluster.kernel.now_ns
        if now_ns >= cluster.collects_again_ns:
            cluster.collects_again_ns = now_ns + cluster.config.garbage_ns // 2
            cluster.kernel.call_after(0, gc.collect)

    def _spawn_if_alive(self, function: Callable[[], object], seed: bytes) -> None:
        if self.is_alive:
            self.spawn_seeded(function, seed)

    def spawn_seeded(self, function: Callable[[], object], seed: bytes, group: str = "") -> None:
        """Run a function in a fiber, whose randomness comes from this seed; `group` is the concurrency group of the
        method that it runs."""
        self.cluster.seeds_handed_out.update(seed)
        self.cluster.fibers.spawn(self, partial(self._run_in_fiber, function, group), seed=seed)

    def group_of(self, fiber: Fiber) -> str:
        """The concurrency group of the method that a fiber runs; "" is the default one."""
        return "" if self._fibers is None else self._fibers.get(fiber, "")

    def _take_in(self, fiber: Fiber, group: str = "") -> None:
        if self._fibers is None:
            self._fibers = {} if self._task_fiber is None else {self._task_fiber: ""}
        self._fibers[fiber] = group

    def _run_in_fiber(self, function: Callable[[], object], group: str = "") -> None:
        fiber = self.cluster.fibers.current()
        assert fiber is not None
        self._take_in(fiber, group)
        try:
            function()
        finally:
            if self._fibers is not None:
                self._fibers.pop(fiber, None)
            if self.threads is not None:
                self.threads.fiber_ended(fiber, group)

    def all_fibers(self) -> list[Fiber]:
        """What runs here, as it began."""
        if self._fibers is not None:
            return list(self._fibers)
        return [] if self._task_fiber is None else [self._task_fiber]

    # ---- Threads ---------------------------------------------------------------------------------------------

    @property
    def has_threads(self) -> bool:
        """Whether threads that user code has started run here."""
        return self.is_alive and self.threads is not None and bool(self.threads.started)

    def start_thread(self, function: Callable[[], object], seed: bytes) -> Fiber:
        """User code starts a thread.

        Raises:
            FiberKilled: this process is dead.
        """
        if not self.is_alive:
            raise FiberKilled(f"{self.address} died")
        _ = self.core  # a thread may need it at any moment
        self.cluster.seeds_handed_out.update(seed)
        fiber = self.cluster.fibers.spawn(self, partial(self._run_in_fiber, function), seed=seed)
        self._take_in(fiber)
        return fiber

    def waits_for_locks(self) -> list[str]:
        """Of each of its fibers that waits for another one, in words."""
        driver = self.cluster.fibers.driver
        fibers = [driver, *self.all_fibers()] if self._is_driver and driver is not None else self.all_fibers()
        return [words for words in map(words_of_wait, fibers) if words is not None]

    def end_by_thread(self, fiber: Fiber, escaped: BaseException) -> None:
        """Have a thread end this process soon. In the driver, the error rises in the main thread."""
        self.cluster.kernel.call_after(0, self.cluster.end_by, fiber, escaped)

    # ---- Its environment -------------------------------------------------------------------------------------

    def take_environment(self, text: str) -> None:
        if self.environment is not None:
            with self.cluster.fibers.system:
                self.environment.leave()
        self.environment = self._entered(text)
        run_setup_hook(text)

    def own_environment(self) -> Swapped:
        """Its user code is about to change variables or the working directory: they are its own from now on."""
        if self.environment is None:
            self.environment = self._entered("")
        return self.environment

    def _entered(self, text: str) -> Swapped:
        with self.cluster.fibers.system:
            environment = Swapped(text)
            environment.are_of_others(self._of_others)
            environment.enter()  # it runs: its fiber leaves it when it is suspended
        return environment

    def show_devices(self, devices: tuple[int, ...], runtime_env: str) -> None:
        """It does not run, and holds these devices from now on."""
        variables = shown(devices, self.device_names, runtime_env)
        self.visible_gpus = variables.pop(GPU_MASK, self.cluster.shown_gpus)
        self.device_variables = DeviceVariables(variables) if variables else None
        if self.environment is not None:
            self.environment.are_of_others(self._of_others)

    @property
    def _of_others(self) -> tuple[str, ...]:
        return (GPU_MASK, *(self.device_variables.names if self.device_variables is not None else ()))
