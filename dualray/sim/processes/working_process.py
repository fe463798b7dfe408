"""A virtual process calls user code, and lets its machine spend the time and the memory that the call takes.

A call takes its time after it has returned. A generator takes it item by item.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from dualray.shared.core.execution import Execution
from dualray.shared.core.item_maker import AsyncItems
from dualray.shared.model.accelerators import gpus_among
from dualray.shared.model.ids import NodeID
from dualray.shared.model.specs import Ref
from dualray.sim.cost.measured import MEASURED
from dualray.sim.processes.async_items import pace
from dualray.sim.processes.code_process import CodeProcess
from dualray.sim.processes.node import NodeProcess

_ITEMS_AT_ONCE: Final = 1_000
"""Items that a generator makes at one moment of virtual time; then it takes `_ITEMS_NS`. An endless one would else
never let anybody take what it has made."""
_ITEMS_NS: Final = 1_000_000


class WorkingProcess(CodeProcess):
    """Calls user code, and lets the time pass; see the module."""

    _last_machine: NodeProcess | None = None

    # ---- Time ------------------------------------------------------------------------------------------------

    @property
    def _machine(self) -> NodeProcess:
        machine = self._last_machine
        if machine is None or not machine.is_alive:
            machine = self._last_machine = self._nodes[NodeID(self.node)]
        return machine

    def _measured(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> tuple[Any, int]:
        """What a function returns, and how long it has taken in real time, on this machine."""
        stopwatch = self.cluster.stopwatch(task)
        stopwatch.start()
        result = function(*args, **kwargs)
        return result, round(stopwatch.stop_ns() * self._machine.slowness)

    def _cost_ns(self, task: Execution, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        duration = task.duration
        costs = self.cluster.task_costs
        if duration is None:
            cost_ns = costs.unsaid_ns(task)
        elif type(duration) is float:
            cost_ns = costs.whole_ns(duration)
        else:
            cost_ns = costs.said_ns(duration(*args, **kwargs) if callable(duration) else duration, task)
        slowness = self._machine.slowness
        return cost_ns if slowness == 1.0 else round(cost_ns * slowness)

    def _compute(self, cost_ns: int) -> None:
        """Let the time pass that work takes on this machine."""
        cores = self._machine.cores
        if cores is None:
            self.cluster.fibers.sleep_ns(cost_ns)
        else:
            self.cluster.fibers.compute(cores, cost_ns)

    async def _compute_async(self, cost_ns: int) -> None:
        """As `_compute`; the loop goes on."""
        import asyncio  # noqa: PLC0415 - most simulations do without

        cores = self._machine.cores
        if cores is None:
            await asyncio.sleep(cost_ns / 1e9)
            return
        is_done = asyncio.Event()
        loop = asyncio.get_running_loop()
        work = cores.run(cost_ns, 1.0, loop.call_soon_threadsafe, is_done.set, whose=self)
        try:
            await is_done.wait()
        finally:
            cores.cancel(work)

    # ---- Memory ----------------------------------------------------------------------------------------------

    def _take_memory(self, task: Execution) -> tuple[int, int] | None:
        """Take what the task in hand takes of its node's memory, and of each of its GPUs': how much, unless nothing.

        Raises:
            MemoryError: it does not fit on one of its GPUs.
        """
        cluster, machine = self.cluster, self._machine
        gpus = gpus_among(task.device_ids) if task.device_ids and machine.gpu_memory is not None else ()
        gpu_bytes = cluster.task_costs.gpu_bytes(task) if gpus else 0
        if gpu_bytes and machine.gpu_memory is not None:
            machine.gpu_memory.take(self.address, task.name, gpus, gpu_bytes)
        memory_bytes = cluster.task_costs.memory_bytes(task)
        machine.memory.take(self.address, memory_bytes)
        return (memory_bytes, gpu_bytes) if memory_bytes or gpu_bytes else None

    def _give_memory_back(self, task: Execution, taken: tuple[int, int]) -> None:
        if not self.is_alive:
            return
        machine, (memory_bytes, gpu_bytes) = self._machine, taken
        machine.memory.take(self.address, -memory_bytes)
        if gpu_bytes and machine.gpu_memory is not None:
            machine.gpu_memory.give_back(self.address, gpus_among(task.device_ids), gpu_bytes)

    # ---- Calls ------------------------------------------------------------------------------------------------

    def iterate(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """Call a generator of the user's; let the time pass that each item takes in virtual time."""
        self.cluster.rewrite_function(function)
        items = function(*args, **kwargs)
        return self._paced(items, args, kwargs, task) if isinstance(items, Iterator) else items

    def _paced(
        self, items: Iterator[Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Generator[Any, None, None]:
        taken = self._take_memory(task) if self.cluster.task_costs.take_memory else None
        error: BaseException | None = None
        is_first = True
        since_ns, at_once = -1, 0
        try:
            while True:
                if self.now_ns() != since_ns:
                    since_ns, at_once = self.now_ns(), 0
                elif (at_once := at_once + 1) % _ITEMS_AT_ONCE == 0:  # the consumer goes on in virtual time alone
                    self._compute(_ITEMS_NS)
                if error is not None and not isinstance(items, Generator):
                    raise error
                try:
                    item = next(items) if error is None else cast(Generator[Any], items).throw(error)
                except StopIteration:
                    if is_first:
                        self._compute(self._cost_ns(task, args, kwargs))
                    return
                except MemoryError as refused:
                    if self.cluster.on_refused is not None:
                        self.cluster.on_refused(refused)
                    raise
                if is_first or task.duration is not None:  # what tables say is the time of a call as a whole
                    self._compute(self._cost_ns(task, args, kwargs))
                is_first, error = False, None
                try:
                    yield item
                except GeneratorExit:
                    raise
                except BaseException as thrown:  # noqa: BLE001 - it is for the generator to catch
                    error = thrown
                del item
        finally:
            if isinstance(items, Generator):
                items.close()
            if taken is not None:
                self._give_memory_back(task, taken)

    async def until_ready(self, ref: Ref) -> None:
        from dualray.aio import until_ready  # noqa: PLC0415 - as below

        await until_ready(ref, self.core)

    async def call_async(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """As `call`; the loop goes on while the time passes."""
        from dualray.aio import call_and_await  # noqa: PLC0415 - it imports asyncio

        self.cluster.rewrite_function(function)
        if isinstance(function, AsyncItems):
            pace(function, self.now_ns, lambda: self._compute_async(_ITEMS_NS), _ITEMS_AT_ONCE)
        is_constructor = isinstance(function, type)
        taken = self._take_memory(task) if self.cluster.task_costs.take_memory else None
        stopwatch = self.cluster.stopwatch(task) if is_constructor and task.duration == MEASURED else None

        async def take_time() -> None:
            if stopwatch is None:
                cost_ns = self._cost_ns(task, args, kwargs)
            else:
                cost_ns = round(stopwatch.stop_ns() * self._machine.slowness)
            await self._compute_async(cost_ns)

        try:
            if stopwatch is not None:
                stopwatch.start()
            return await call_and_await(function, args, kwargs, take_time)
        except MemoryError as error:
            if self.cluster.on_refused is not None:
                self.cluster.on_refused(error)
            raise
        finally:
            if taken is not None and not is_constructor:  # a constructor's is the actor's
                self._give_memory_back(task, taken)
