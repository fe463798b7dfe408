"""A virtual process that runs user code: the driver, and every virtual worker.

It is the `Host` of a core worker: waiting parks the fiber, sending goes through the virtual network, a task runs in a
fiber of its own, and takes as long as the cost model says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from dualray import runtime
from dualray.core_verbs import VerbsOverCore
from dualray.exceptions import DualrayError
from dualray.runtime_env import Swapped
from dualray.shared.core.core_worker import CoreWorker, write_row
from dualray.shared.core.execution import Execution
from dualray.shared.core.interruption import IMPORT_PATIENCE_S, is_importing
from dualray.shared.core.layout import PLAIN_TYPES
from dualray.shared.core.task_runner import Export
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.commands import RunTask, WriteRecord, WriteRecords
from dualray.shared.model.events import ClusterChanged, Event, NodeDied, OwnerDied, TaskPushed, TimerFired
from dualray.shared.model.ids import HEAD, Address, FunctionID, NodeID, TaskID, root_task_id
from dualray.shared.model.resources import GPU, GPU_MASK, UNITS
from dualray.shared.model.specs import Ref
from dualray.shared.proof.trace import TraceKind
from dualray.shared.seeding import task_seed
from dualray.sim.cost.measured import MEASURED
from dualray.sim.kernel.calendar import Calendar, Timer
from dualray.sim.kernel.cores import Cores, Work
from dualray.sim.kernel.fibers import Fiber, FiberKilled, FiberSignal
from dualray.sim.network.collectives import all_reduce_ns, broadcast_ns
from dualray.sim.processes import control_plane
from dualray.sim.processes.node import ClusterOfNodes, NodeProcess
from dualray.sim.processes.object_store import VirtualStore
from dualray.sim.processes.runner import Process
from dualray.sim.usercode.locks import words_of_wait
from dualray.sim.usercode.modules import SHOWN
from dualray.sim.usercode.polling import poll

if TYPE_CHECKING:
    import asyncio

    from dualray.sim.usercode.virtual_loop import VirtualLoop


_TINY_BYTES = 512
"""More than a result has of which the task may run ahead of its time."""
_SMALL: Final = 1 << 60
"""Integers below this are compared at once."""
INTERRUPT_AGAIN_NS = 1_000_000
"""Until a task that was cancelled while it imports a module is looked at again, as in real mode."""
OWED_NS_MAX = 50_000
"""Of submissions that are not paid for yet: about as much as two messages within a node take."""


VIRTUAL_PORT: Final = 12345
"""Of a virtual node; nobody listens there."""


def no_logs() -> DualrayError:
    """What a simulation raises when it is asked for its log files."""
    return DualrayError("a simulation has no log files; what its tasks print is on its driver's own stdout")


class WorkerRuntime:
    """The runtime that user code in a virtual worker sees."""

    mode = "sim"
    owns_interpreter = False
    models_calls = True
    threads_may_wait = False

    def __init__(self, process: UserProcess) -> None:
        self._process = process
        self._verbs: VerbsOverCore | None = None

    @property
    def verbs(self) -> VerbsOverCore:
        core = self._process.core
        verbs = self._verbs
        if verbs is None or verbs.core is not core:
            verbs = self._verbs = VerbsOverCore(core, self._process.gpu_names)
        return verbs

    @property
    def logs(self) -> NoReturn:
        raise no_logs()

    def free_port(self) -> int:
        return VIRTUAL_PORT

    @property
    def gpu_names(self) -> tuple[str, ...]:
        return self._process.gpu_names

    def addresses(self) -> dict[str, str]:
        return self._process.addresses()

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        return self._process.read_table(name)

    def write_row(self, table: str, key: str, fields: Mapping[str, str]) -> None:
        write_row(self._process.core, table, key, fields)

    def read_functions(self) -> dict[FunctionID, bytes]:
        return dict(self._process.cluster.functions.pickled)

    def trace_source(self) -> NoReturn:
        raise runtime.only_in_the_driver("timeline")

    def silence(self) -> None:
        self._process.is_silent = True

    def shutdown(self) -> None:
        """A task cannot end the cluster."""

    def all_reduce_s(self, nodes: Sequence[NodeID], size_bytes: int) -> float:
        """Seconds of an all-reduce among processes on these nodes: see dualray/sim/network/collectives.py."""
        cluster = self._process.cluster
        return all_reduce_ns(cluster.network.topology, cluster.cost_model, nodes, size_bytes) / 1e9

    def broadcast_s(self, nodes: Sequence[NodeID], size_bytes: int) -> float:
        """Seconds of a broadcast from the first process to the others."""
        cluster = self._process.cluster
        return broadcast_ns(cluster.network.topology, cluster.cost_model, nodes, size_bytes) / 1e9


class UserProcess(Process):
    """See the module.

    A task that is given and returns immutable values alone, most of them numbers, has nothing left to do when its code
    has returned, however long it takes: its fiber ends (`_runs_ahead`), and what it has returned is reported when its
    time is over. Thousands of tasks that run at a time then need one greenlet.

    A worker that is handed nothing but such tasks, of one function, needs no core worker either: it has the folded
    machine (`_plain`) and what is in hand, and a core of the cluster's is lent to it while its code runs. Whoever asks
    for `core` gives it one of its own, in the state that it is in; that is for good. Thousands of workers that take
    turns then wait for less memory.
    """

    threads: Any = None
    """What dualray.sim.usercode.threads keeps here."""
    view: Any = None
    """The user's modules as it sees them, if it has imported any for itself: dualray.sim.usercode.modules."""

    def __init__(
        self,
        *,
        cluster: ClusterOfNodes,
        address: Address,
        node: NodeID,
        store: VirtualStore,
        root: TaskID | None = None,
        is_driver: bool = False,
    ) -> None:
        super().__init__(cluster=cluster, address=address, node=node)
        # What every task touches comes first, and lies together where this is compiled.
        self.calendar: Calendar = cluster.calendar
        self._core: CoreWorker | None = None
        self._lent: CoreWorker | None = None
        """What runs the task in hand, if it is the cluster's."""
        self._plain: PlainWorker | None = None
        """The machine of a process that has begun with a task before it had a core."""
        self._next: TaskPushed | None = None
        """In a process without a core, the task that is to run."""
        self._bytes: tuple[bytes, bytes] | None = None
        """There, the arguments of that task, or the result of the one that has run ahead, with their id."""
        self._export_id: FunctionID | None = None
        self._export: Export | None = None
        """There, the one function that it has loaded."""
        self._is_running = False
        """Whether a task runs, or is about to."""
        self.is_ahead = False
        self._ahead: RunTask | TaskPushed | None = None
        """A task that has run ahead of its time."""
        self._ahead_bytes = 0
        """Of its result."""
        self._ahead_since_ns = 0
        self._time_left_ns = 0
        self._end_timer: Timer | None = None
        self._end_work: tuple[Cores, Work] | None = None
        """In its place, where the machine may get slow or stand still."""
        self._task_fiber: Fiber | None = None
        self._fibers: dict[Fiber, None] | None = None
        """What runs here, where that is more than `_task_fiber`."""
        self.visible_gpus: str | None = None if is_driver else ""
        """Its CUDA_VISIBLE_DEVICES while it does not run; None: not set."""
        self._last_machine: NodeProcess | None = None
        self._runtime: Any = None
        self.environment: Swapped | None = None
        """Its runtime environment."""
        self._cluster_news: ClusterChanged | None = None
        """What it was told of the cluster, while it has no core: many workers are never told anything else."""

        self.pid = cluster.next_pid()
        self.hostname = str(node)
        self.is_silent = False
        self.store = store
        self.lock = cluster.fibers.system
        self._nodes, self._root, self._is_driver = cluster.nodes, root, is_driver
        self._wake_scheduled = False
        self._owed_ns = 0
        self._spawned = 0
        self._loops: dict[str, VirtualLoop] | None = None
        """By concurrency group."""
        self._coroutines: dict[TaskID, asyncio.Task[None]] | None = None
        self._escaped: BaseException | None = None

    @property
    def core(self) -> CoreWorker:
        """What it runs; made when it is first needed."""
        core = self._core
        return self._have_core() if core is None else core

    def _have_core(self) -> CoreWorker:
        core: CoreWorker | None = self._lent
        if core is not None:
            self._core, self._lent, self._plain = core, None, None
            return core
        core = self._core = self.cluster.make_core(
            address=self.address,
            node=NodeID(self.node),
            config=self.cluster.config,
            host=self,
            root=self._root or root_task_id(self.address, 0),
            is_driver=self._is_driver,
            is_folded=not self._is_driver,
        )
        news, self._cluster_news = self._cluster_news, None
        if news is not None:  # nobody writes down what this process hears, or it would have been sent
            core.hear_of_cluster(news)
        plain, self._plain = self._plain, None
        if plain is not None:
            core.take_over(plain, self._next, self._ahead)
            core.remember(self._bytes, self._export_id, self._export)
            self._next = self._bytes = None
        return core

    @property
    def _here(self) -> CoreWorker:
        """What runs the task in hand, which stays whose it is."""
        lent = self._lent
        return self.core if lent is None else lent

    @property
    def has_core(self) -> bool:
        """Whether it has a core of its own: who has none waits for nothing, and owns nothing."""
        return self._core is not None

    @property
    def runtime(self) -> Any:
        """What its user code sees."""
        if self._runtime is None:
            self._runtime = WorkerRuntime(self)
        return self._runtime

    @runtime.setter
    def runtime(self, value: Any) -> None:
        self._runtime = value

    @classmethod
    def as_worker(cls, *, cluster: ClusterOfNodes, address: Address, node: NodeID, store: VirtualStore) -> UserProcess:
        """A worker; what it does before its first task derives its ids from its address."""
        return cls(cluster=cluster, address=address, node=node, store=store)

    @property
    def sim_unsafe(self) -> str | None:
        """What the task in hand says of calls that lead out of the simulation."""
        return self._here.execution.sim_unsafe

    @property
    def is_driver(self) -> bool:
        """Whether it runs the driver's script."""
        return self._is_driver

    @property
    def name_of_streams(self) -> bytes:
        """What seeds the randomness of its imports."""
        return f"{self.cluster.seed}:{self.address}:imports".encode()

    def forget_functions(self) -> None:
        """What it has loaded is to be loaded again: it sees other modules from now on."""
        self._here.forget_functions()

    def is_main(self, fiber: Fiber) -> bool:
        """Whether a fiber is its main thread: the driver's script, or a task."""
        return fiber is self._task_fiber or fiber is self.cluster.fibers.driver

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Of this node's GPUs, as they were at first: their numbers."""
        units = self._nodes[NodeID(self.node)].hardware.total.get(GPU)
        return tuple([str(gpu) for gpu in range(-(-units // UNITS))]) if units else ()

    # ---- Process ---------------------------------------------------------------------------------------------

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        if not self.is_alive:
            return
        if self.cluster.halts.places and self.cluster.halts.is_halted(self):
            self.cluster.halts.when_it_runs(self, self.receive, message, payloads)
        elif isinstance(message, TaskPushed) and (
            self._begins(message, payloads) or self.core.begins(message, payloads)
        ):
            self.tasks_came()
        elif isinstance(message, ClusterChanged) and self._core is None and self._plain is not None:
            self._plain.handle(message, self.calendar.now_ns)
        else:
            self.core.on_messages(((message, payloads),))

    def _begins(self, pushed: TaskPushed, payloads: Sequence[tuple[bytes, bytes]]) -> bool:
        """As `CoreWorker.begins`, without a core."""
        if self._core is not None or self._lent is not None or self.decisions is not None or len(payloads) > 1:
            return False
        template = pushed.spec.template
        if self._export_id != template.function_id and self._export_id is not None:
            return False
        if template.runtime_env or not template.has_one_result or not self.cluster.lends_cores:
            return False
        plain = self._plain
        if plain is None:
            plain = self._plain = PlainWorker(address=self.address, node=NodeID(self.node), config=self.cluster.config)
            if self._cluster_news is not None:
                plain.handle(self._cluster_news, self.calendar.now_ns)
                self._cluster_news = None
        if not plain.starts(pushed, self.calendar.now_ns):
            return False
        self._next = pushed
        for sent in payloads:
            self._bytes = sent
        return True

    def hears(self, message: Event) -> bool:
        """News of the cluster, while nothing has ever happened to this process: kept until something does."""
        if self._core is not None or self._plain is not None or self.decisions is not None:
            return False
        if isinstance(message, ClusterChanged):
            self._cluster_news = message
        elif isinstance(message, NodeDied):
            self._cluster_news = message.cluster or self._cluster_news
        else:
            return isinstance(message, OwnerDied)
        return True

    def check_invariants(self) -> None:
        if self._core is not None:
            self._core.check_invariants()
        elif self._plain is not None:
            self._plain.check_invariants()

    def things(self) -> int:
        core = self._core
        if core is None or core.is_folded:
            return 1
        machine = core.machine
        return 10 + 2 * len(machine.values.table) + 2 * len(machine.tasks.records) + len(machine.leases.leases)

    def fire(self, timer: str) -> None:
        self.core.dispatch(TimerFired(timer=timer))

    def die(self) -> None:
        super().die()
        self.close()
        self._forget_end()
        for fiber in self._all_fibers():
            self.cluster.fibers.throw(fiber, FiberKilled(f"{self.address} died"))

    def close(self) -> None:
        """Nothing happens here any more."""
        if self._lent is not None:  # code that unwinds may still come to it
            self._have_core()
        if self._core is not None:
            self._core.close()

    # ---- Host ------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self.calendar.now_ns

    def send(
        self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]], *, urgent: bool = True
    ) -> None:
        if self.is_alive:  # user code that unwinds in a process that is dead may still come here
            self.cluster.send(self, to, message, payloads)

    def end_step(self) -> None:
        """Messages were sent as they came."""

    def breathe(self) -> None:
        """A call was submitted. What that costs is paid in virtual time, for several calls at once, so that a switch
        is not paid for each."""
        self._owed_ns += self.cluster.submit_ns
        if self._owed_ns >= OWED_NS_MAX:
            owed_ns, self._owed_ns = self._owed_ns, 0
            self.cluster.fibers.sleep_ns(owed_ns)

    def has_looked(self) -> None:
        """Who looks again and again waits a moment each time: else it would never come."""
        poll(self.cluster.kernel, self.cluster.fibers)

    def new_signal(self) -> FiberSignal:
        return FiberSignal(self.cluster.fibers)

    def tasks_came(self) -> None:
        """Start a fiber for the next task when this step, and the task in hand, are over."""
        if not self._is_running:
            self._is_running = True
            calendar = self.calendar
            calendar.post(calendar.now_ns + self.cluster.dispatch_ns, _START_NEXT, self)

    def spawn(self, function: Callable[[], object]) -> None:
        self._spawned += 1
        seed = f"{self.cluster.seed}:{self.address}:beside {self._spawned}".encode()
        if self.cluster.fibers.current() is None:  # in the middle of an event: user code runs after it
            self.cluster.kernel.call_after(0, self._spawn_if_alive, function, seed)
        else:
            self._spawn(function, seed)

    def _spawn_if_alive(self, function: Callable[[], object], seed: bytes) -> None:
        if self.is_alive:
            self._spawn(function, seed)

    @property
    def ip_address(self) -> str:
        """Of a network that nothing routes to: 10.0.0.0/8, in the order of the nodes."""
        number = int(self.node.rpartition("-")[2]) + 1
        return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"

    def _start_next(self) -> None:
        if not self.is_alive:
            return
        if self.cluster.halts.places and self.cluster.halts.is_halted(self):
            self.cluster.halts.when_it_runs(self, self._start_next)
            return
        task: RunTask | TaskPushed | None = self._next if self._core is None else self._core.next_task()
        if task is None:
            self._is_running = False
            return
        if self._core is None:
            assert self._plain is not None
            assert self._next is not None
            self._lent = self.cluster.lend_core(self, self._plain, self._next)
            self._lent.remember(self._bytes, self._export_id, self._export)
            self._next = self._bytes = None
        if task.spec.actor_id is None:  # a method: its actor has them for life
            self.visible_gpus = ",".join([self.gpu_names[gpu] for gpu in task.gpu_ids]) if task.gpu_ids else ""
        cluster = self.cluster
        seed = cluster.seed_before + task.spec.task_id
        cluster.seeds_handed_out.update(seed)
        cluster.fibers.spawn(self, _Call(self, task), seed=seed)

    def interrupt(self) -> None:
        """At its next step, which is the one that it waits for."""
        self._interrupt(self.calendar.now_ns + round(IMPORT_PATIENCE_S * 1e9))

    def _interrupt(self, import_until_ns: int) -> None:
        if self._ahead is not None:
            if self.core.takes_interrupt():
                task = self._ahead
                self._forget_end()
                self.cluster.fibers.spawn_soon(self, partial(self._end_cancelled, task, self._ahead_since_ns))
            return
        fiber = self._task_fiber
        if fiber is None or not self.core.is_in_user_code or not self.core.is_to_be_interrupted():
            return
        if self.calendar.now_ns < import_until_ns and is_importing(fiber.frame()):
            self.cluster.kernel.call_after(INTERRUPT_AGAIN_NS, self._interrupt, import_until_ns)
        elif self.core.takes_interrupt():
            self.cluster.fibers.throw(fiber, KeyboardInterrupt())

    def execute(self, task: RunTask | TaskPushed) -> None:
        fiber = self._task_fiber = self.cluster.fibers.current()
        assert fiber is not None
        if self._fibers is not None:
            self._fibers[fiber] = None
        try:
            self._here.execute(task)
        finally:
            self._task_fiber = None
            if self._fibers is not None:
                self._fibers.pop(fiber, None)
            if self._lent is not None:
                self._give_back(self._lent, task)
            if self._ahead is None:
                self._task_is_over()

    def _give_back(self, lent: CoreWorker, task: RunTask | TaskPushed) -> None:
        """The code of a task has returned that a core was lent for, and nobody but the task has seen that."""
        if self._ahead is None:  # an error, or a result that is not small: there may be more to it than is kept here
            self._have_core()
            return
        self._lent = None
        self._bytes = lent.payloads.popitem()  # what came last: the result
        if self._export_id is None:
            self._export_id = task.spec.template.function_id
            self._export = lent.export_of(self._export_id)
        self.cluster.take_back(lent)

    def _all_fibers(self) -> list[Fiber]:
        """What runs here, as it began."""
        if self._fibers is not None:
            return list(self._fibers)
        return [] if self._task_fiber is None else [self._task_fiber]

    def _task_is_over(self) -> None:
        self._is_running = False
        if self._core is not None and self._core.has_tasks and self.is_alive:
            self.tasks_came()

    def _runs_ahead(self, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution) -> bool:
        """Whether nobody could tell if the task in hand ended now, and was reported later."""
        fiber, template = self._task_fiber, task.resources
        if fiber is None or not fiber.is_undisturbed or not self._here.may_run_ahead or not _is_tiny(result):
            return False
        if self._fibers is not None and len(self._fibers) > 1:  # it has threads
            return False
        if task.actor_id is not None or template is None or not template.has_one_result:
            return False
        if not self.cluster.runs_ahead or self.cluster.config.inline_bytes_max < _TINY_BYTES:
            return False
        for value in args:
            if type(value) not in PLAIN_TYPES:
                return False
        return not kwargs or PLAIN_TYPES.issuperset(map(type, kwargs.values()))

    def end_later(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> None:
        self.is_ahead = False
        self._ahead, self._ahead_bytes, self._ahead_since_ns = task, size_bytes, start_ns
        cores = self._machine.cores
        if cores is None:
            calendar = self.calendar
            self._end_timer = calendar.arm(calendar.now_ns + self._time_left_ns, _END, self)
        else:
            self._end_work = cores, cores.run(self._time_left_ns, 1.0, self._end, whose=self)

    def _end(self) -> None:
        """The time of a task is over whose code has returned before."""
        if not self.is_alive:
            return
        if self.cluster.halts.places and self.cluster.halts.is_halted(self):
            self.cluster.halts.when_it_runs(self, self._end)
            return
        task = self._ahead
        assert task is not None
        self._ahead = self._end_timer = self._end_work = None
        if self._core is None:
            self._end_alone(task, self._ahead_since_ns)
        else:
            self._core.end_small(task, self._ahead_bytes, self._ahead_since_ns)
        self._task_is_over()

    def _end_alone(self, task: RunTask | TaskPushed, start_ns: int) -> None:
        """As `CoreWorker.end_small`, without a core: nothing else can have happened since."""
        spec, now_ns = task.spec, self.calendar.now_ns
        result, plain = self._bytes, self._plain
        assert result is not None
        self.trace(TraceKind.TASK_ENDED, spec.task_id, name=spec.template.name, amount=task.attempt)
        if self._core is not None or plain is None:  # a fault that waited for this has told it something
            self.core.report_small(task, len(result[1]), now_ns - start_ns)
            return
        self._bytes = None
        pushed = plain.current
        finished = plain.report(len(result[1]), now_ns, now_ns - start_ns)
        assert pushed is not None
        assert finished is not None
        if self.is_alive:
            self.cluster.tables.write_task(spec.task_id, plain.row_fields(spec, pushed.attempt))
            self.cluster.send(self, pushed.reply_to, finished, (result,))

    def _end_cancelled(self, task: RunTask | TaskPushed, start_ns: int) -> None:
        if self.is_alive:
            self.core.end_cancelled(task, start_ns)
            self._task_is_over()

    def _forget_end(self) -> None:
        if self._end_timer is not None:
            self.calendar.disarm(self._end_timer)
        elif self._end_work is not None:
            cores, work = self._end_work
            cores.cancel(work)
        self._ahead = self._end_timer = self._end_work = None

    def _spawn(self, function: Callable[[], object], seed: bytes) -> None:
        self.cluster.seeds_handed_out.update(seed)
        self.cluster.fibers.spawn(self, partial(self._run_in_fiber, function), seed=seed)

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
        if self._core is None:
            self._have_core()
        self.cluster.seeds_handed_out.update(seed)
        fiber = self.cluster.fibers.spawn(self, partial(self._run_in_fiber, function), seed=seed)
        self._take_in(fiber)
        return fiber

    def waits_for_locks(self) -> list[str]:
        """Of each of its fibers that waits for another one, in words."""
        driver = self.cluster.fibers.driver
        fibers = [driver, *self._all_fibers()] if self._is_driver and driver is not None else self._all_fibers()
        return [words for words in map(words_of_wait, fibers) if words is not None]

    def end_by_thread(self, fiber: Fiber, escaped: BaseException) -> None:
        """A thread ends this process soon: of the driver, it surfaces in its main thread."""
        self.cluster.kernel.call_after(0, self.cluster.end_by, fiber, escaped)

    def _take_in(self, fiber: Fiber) -> None:
        if self._fibers is None:
            self._fibers = {} if self._task_fiber is None else {self._task_fiber: None}
        self._fibers[fiber] = None

    def _run_in_fiber(self, function: Callable[[], object]) -> None:
        fiber = self.cluster.fibers.current()
        assert fiber is not None
        self._take_in(fiber)
        try:
            function()
        finally:
            if self._fibers is not None:
                self._fibers.pop(fiber, None)
            if self.threads is not None:
                self.threads.fiber_ended(fiber)

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """Call user code, then let the time pass that it takes in virtual time."""
        self.cluster.rewrite_function(function)
        taken = self._take_memory(task) if self.cluster.task_costs.take_memory else None
        try:
            if task.duration == MEASURED:
                result, cost_ns = self._measured(function, args, kwargs, task)
            else:
                result = function(*args, **kwargs)
                cost_ns = self._cost_ns(task, args, kwargs)
            if taken is None and self._runs_ahead(result, args, kwargs, task):
                self.is_ahead = True
                self._time_left_ns = cost_ns
            else:
                self._compute(cost_ns)
            return result
        finally:
            if taken is not None and not isinstance(function, type):  # a constructor's is the actor's
                self._give_memory_back(task, taken)

    def _measured(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> tuple[Any, int]:
        """What a function returns, and how long it has taken in real time, on this machine."""
        stopwatch = self.cluster.stopwatch(task)
        stopwatch.start()
        result = function(*args, **kwargs)
        return result, round(stopwatch.stop_ns() * self._machine.slowness)

    @property
    def _machine(self) -> NodeProcess:
        machine = self._last_machine
        if machine is None or not machine.is_alive:
            machine = self._last_machine = self._nodes[NodeID(self.node)]
        return machine

    def _take_memory(self, task: Execution) -> tuple[int, int] | None:
        """Take what the task in hand takes of its node's memory, and of each of its GPUs': how much, unless nothing.

        Raises:
            MemoryError: it does not fit on one of its GPUs.
        """
        cluster, machine = self.cluster, self._machine
        gpu_bytes = cluster.task_costs.gpu_bytes(task) if task.gpu_ids and machine.gpu_memory is not None else 0
        if gpu_bytes and machine.gpu_memory is not None:
            machine.gpu_memory.take(self.address, task.name, task.gpu_ids, gpu_bytes)
        memory_bytes = cluster.task_costs.memory_bytes(task)
        machine.memory.take(self.address, memory_bytes)
        return (memory_bytes, gpu_bytes) if memory_bytes or gpu_bytes else None

    def _give_memory_back(self, task: Execution, taken: tuple[int, int]) -> None:
        if not self.is_alive:
            return
        machine, (memory_bytes, gpu_bytes) = self._machine, taken
        machine.memory.take(self.address, -memory_bytes)
        if gpu_bytes and machine.gpu_memory is not None:
            machine.gpu_memory.give_back(self.address, task.gpu_ids, gpu_bytes)

    def take_environment(self, text: str) -> None:
        if self.environment is not None:
            with self.cluster.fibers.system:
                self.environment.leave()
        self.environment = self._entered(text)

    def own_environment(self) -> Swapped:
        """Its user code is about to change variables or the working directory: they are its own from now on."""
        if self.environment is None:
            self.environment = self._entered("")
        return self.environment

    def _entered(self, text: str) -> Swapped:
        with self.cluster.fibers.system:
            environment = Swapped(text, (GPU_MASK,))
            environment.enter()  # it runs: its fiber leaves it when it is suspended
        return environment

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
        try:
            while True:
                if error is not None and not isinstance(items, Generator):
                    raise error
                try:
                    item = next(items) if error is None else cast(Generator[Any], items).throw(error)
                except StopIteration:
                    if is_first:
                        self._compute(self._cost_ns(task, args, kwargs))
                    return
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
        taken = self._take_memory(task) if self.cluster.task_costs.take_memory else None
        try:
            return await call_and_await(
                function, args, kwargs, lambda: self._compute_async(self._cost_ns(task, args, kwargs))
            )
        finally:
            if taken is not None:
                self._give_memory_back(task, taken)

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

    def start_beside(self, task: RunTask) -> None:
        self.cluster.kernel.call_after(self.cluster.dispatch_ns, self._begin_beside, task)

    def _begin_beside(self, task: RunTask) -> None:
        if self.cluster.halts.is_halted(self):
            self.cluster.halts.when_it_runs(self, self._begin_beside, task)
        elif self.is_alive:
            self._spawn(partial(self.core.execute, task), task_seed(self.cluster.seed, task.spec.task_id))

    def start_on_loop(self, task: RunTask) -> None:
        self.cluster.kernel.call_after(self.cluster.dispatch_ns, self._begin_on_loop, task)

    def _begin_on_loop(self, task: RunTask) -> None:
        if self.cluster.halts.is_halted(self):
            self.cluster.halts.when_it_runs(self, self._begin_on_loop, task)
        elif self.is_alive:
            group = task.spec.template.concurrency_group
            if self._loops is None:
                self._loops, self._coroutines = {}, {}
            loop = self._loops.get(group)
            if loop is None:
                loop = self._loops[group] = self.cluster.new_event_loop()
                self._spawn(lambda: self._run_loop(loop), f"{self.cluster.seed}:{self.address}:loop {group}".encode())
            loop.call_soon_threadsafe(self._begin_coroutine, loop, task)

    def _begin_coroutine(self, loop: VirtualLoop, task: RunTask) -> None:
        running = loop.create_task(self.core.execute_async(task))
        task_id = task.spec.task_id
        assert self._coroutines is not None
        self._coroutines[task_id] = running  # the loop keeps only weak references
        running.add_done_callback(lambda ended: self._end_coroutine(task_id, ended))

    def _end_coroutine(self, task_id: TaskID, ended: asyncio.Task[None]) -> None:
        if self._coroutines is not None and self._coroutines.get(task_id) is ended:  # else it was made again meanwhile
            del self._coroutines[task_id]
        error = ended.exception() if not ended.cancelled() else None
        if error is not None:
            self._escaped = error
            ended.get_loop().stop()

    @property
    def is_on_loop(self) -> bool:
        from dualray.aio import is_on_loop  # noqa: PLC0415 - it imports asyncio

        return is_on_loop()

    def cancel_on_loop(self, task: TaskID) -> None:
        # Behind what was told to begin before; and in two turns: a coroutine that is cancelled before its first line
        # would never be reported.
        self.cluster.kernel.call_after(self.cluster.dispatch_ns, self._cancel_coroutine, task)

    def _cancel_coroutine(self, task: TaskID) -> None:
        if self.cluster.halts.is_halted(self):
            self.cluster.halts.when_it_runs(self, self._cancel_coroutine, task)
        elif self.is_alive and self._loops is not None:
            for loop in self._loops.values():
                loop.call_soon_threadsafe(loop.call_soon, self._cancel_if_running, loop, task)

    def _cancel_if_running(self, loop: VirtualLoop, task: TaskID) -> None:
        running = self._coroutines.get(task) if self._coroutines is not None else None
        if running is not None and running.get_loop() is loop:
            running.cancel()

    def _run_loop(self, loop: VirtualLoop) -> None:
        try:
            loop.run_forever()
        finally:
            if self._coroutines is not None:
                self._coroutines.clear()
            loop.close_all()
        if self._escaped is not None:
            raise self._escaped

    def write_record(self, record: WriteRecord) -> None:
        if self.is_alive:
            self.cluster.write_record(record.table, record.key, record.fields)

    def write_records(self, records: WriteRecords) -> None:
        if self.is_alive:
            for key in records.keys:
                self.cluster.write_record(records.table, key, records.fields)

    def put_function(self, function: FunctionID, pickled: bytes) -> None:
        control_plane.reach_tables(self)
        self.cluster.functions.pickled[function] = pickled

    def load_function(self, function: FunctionID) -> Export:
        """From the control plane's tables."""
        return control_plane.load_function(self, function)

    def addresses(self) -> dict[str, str]:
        """Where things are; see `dualray.runtime.Runtime.addresses`. Virtual nodes have the addresses 10.x.y.z."""
        number = int(self.node.removeprefix("node-")) + 1
        return {
            "node_ip_address": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            "control_plane_address": f"{HEAD} of a simulation",
            "object_store_address": f"{self.node} of a simulation",
            "local_scheduler_address": f"{self.node} of a simulation",
        }

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        """A table of the control plane."""
        control_plane.reach_tables(self)
        return {key: dict(fields) for key, fields in self.cluster.tables.read(name).items()}

    def tell(self, words: str) -> None:
        if not self.is_silent:
            sys.stderr.write(words)

    def wake(self) -> None:
        if not self._wake_scheduled and self.is_alive and not self.cluster.is_closed:
            self._wake_scheduled = True
            self.cluster.kernel.call_after(0, self._take_in_finalizers)

    def _take_in_finalizers(self) -> None:
        self._wake_scheduled = False
        if self.is_alive:
            self.core.take_in_finalizers()


class _Call:
    """Has a process run a task."""

    __slots__ = ("_process", "_task")

    def __init__(self, process: UserProcess, task: RunTask | TaskPushed) -> None:
        self._process = process
        self._task = task

    def __call__(self) -> None:
        self._process.execute(self._task)


def _start_next(process: UserProcess) -> None:
    process._start_next()


def _end(process: UserProcess) -> None:
    process._end()


_START_NEXT: Final = _start_next
_END: Final = _end


def _is_tiny(value: Any) -> bool:
    """Whether it is immutable, refers to nothing, and is so small when pickled that it travels with a report."""
    kind = type(value)
    if kind is int:
        number: int = value
        return -_SMALL < number < _SMALL or number.bit_length() < _TINY_BYTES
    if kind is str or kind is bytes:
        return len(value) < _TINY_BYTES // 4
    return kind in PLAIN_TYPES


# ---- Whose code runs -------------------------------------------------------------------------------------------------


def enter_process(fiber: Fiber) -> None:
    """User code runs: what it calls is its own process's runtime."""
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    runtime.set_current(owner.runtime)
    if SHOWN.view is not owner.view:
        SHOWN.show(owner.view)
    if owner.environment is not None:
        owner.environment.enter()


def leave_process(fiber: Fiber) -> None:
    """The kernel runs: nobody's runtime is current."""
    runtime.set_current(None)
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    if owner.environment is not None:
        owner.environment.leave()


def enter_process_with_gpus(fiber: Fiber) -> None:
    """What the environment says of GPUs is each process's own."""
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    show_gpus(owner.visible_gpus)
    enter_process(fiber)


def show_gpus(mask: str | None) -> None:
    """Have the environment say which GPUs there are to see; None: nothing."""
    if mask is None:
        os.environ.pop(GPU_MASK, None)
    else:
        os.environ[GPU_MASK] = mask


def leave_process_with_gpus(fiber: Fiber) -> None:
    leave_process(fiber)
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    owner.visible_gpus = os.environ.get(GPU_MASK)
