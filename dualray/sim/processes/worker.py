"""A virtual process that runs user code: the driver, and every virtual worker.

It is the `Host` of a core worker: waiting parks the fiber, sending goes through the virtual network, a task runs in a
fiber of its own, and takes as long as the cost model says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final

from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.execution import Execution
from dualray.shared.core.interruption import IMPORT_PATIENCE_S, is_importing
from dualray.shared.core.layout import PLAIN_TYPES
from dualray.shared.core.task_runner import Export
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.commands import RunTask
from dualray.shared.model.events import ClusterChanged, Event, NodeDied, NodesDied, OwnerDied, TaskPushed, TimerFired
from dualray.shared.model.ids import Address, FunctionID, NodeID, TaskID, root_task_id
from dualray.shared.model.resources import CPU, UNITS, Resources, in_plain_names
from dualray.shared.model.specs import FunctionTemplate
from dualray.shared.proof.trace import TraceKind
from dualray.shared.seeding import of_attempt, task_seed
from dualray.sim.cost.measured import MEASURED
from dualray.sim.kernel.calendar import Timer
from dualray.sim.kernel.cores import Cores, Work
from dualray.sim.kernel.fibers import FiberKilled
from dualray.sim.processes import control_plane
from dualray.sim.processes.event_loops import EventLoops
from dualray.sim.processes.node import ClusterOfNodes
from dualray.sim.processes.object_store import VirtualStore
from dualray.sim.processes.worker_runtime import WorkerRuntime
from dualray.sim.processes.working_process import WorkingProcess

_TINY_BYTES = 512
"""More than a result has of which the task may run ahead of its time."""
_SMALL: Final = 1 << 60
"""Integers below this are compared at once."""
INTERRUPT_AGAIN_NS = 1_000_000
"""Until a task that was cancelled while it imports a module is looked at again, as in real mode."""


class UserProcess(WorkingProcess):
    """See the module.

    A task that is given and returns immutable values alone, most of them numbers, has nothing left to do when its code
    has returned, however long it takes: its fiber ends (`_runs_ahead`), and what it has returned is reported when its
    time is over. Thousands of tasks that run at a time then need one greenlet.

    A worker that is handed nothing but such tasks, of one function, needs no core worker either: it has the folded
    machine (`_plain`) and what is in hand, and a core of the cluster's is lent to it while its code runs. Whoever asks
    for `core` gives it one of its own, in the state that it is in; that is for good. Thousands of workers that take
    turns then wait for less memory.
    """

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
        super().__init__(cluster=cluster, address=address, node=node, store=store, is_driver=is_driver)
        # What every task touches lies together where this is compiled.
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
        self._context: Context | None = None
        """That of its main thread: what a task sets there, the next one sees."""
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
        self._runtime: Any = None
        self._devices: tuple[int, ...] = ()
        """Of the task that ran last."""
        self._threads_of: FunctionTemplate | None = None
        """Whose CPUs `library_threads` counts."""
        self._counts_threads = cluster.counts_threads and not is_driver and node not in cluster.threads_said
        if cluster.counts_threads and not is_driver:
            self.library_threads = cluster.threads_said.get(node, b"1")
        self._cluster_news: ClusterChanged | None = None
        """What it was told of the cluster, while it has no core: many workers are never told anything else."""
        self._root = root
        self._loops: EventLoops | None = None

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

    def forget_functions(self) -> None:
        """What it has loaded is to be loaded again: it sees other modules from now on."""
        self._here.forget_functions()

    # ---- Process ---------------------------------------------------------------------------------------------

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        if not self.is_alive:
            return
        if self.cluster.pauses.places and self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self.receive, message, payloads)
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
        elif isinstance(message, NodeDied | NodesDied):
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
        return core.machine.things()

    def fire(self, timer: str) -> None:
        self.core.dispatch(TimerFired(timer=timer))

    def die(self) -> None:
        super().die()
        self.close()
        self._forget_end()
        for fiber in self.all_fibers():
            self.cluster.fibers.throw(fiber, FiberKilled(f"{self.address} died"))

    def close(self) -> None:
        """Nothing happens here any more."""
        if self._lent is not None:  # code that unwinds may still come to it
            self._have_core()
        if self._core is not None:
            self._core.close()

    # ---- Host ------------------------------------------------------------------------------------------------

    def tasks_came(self) -> None:
        """Start a fiber for the next task when this step, and the task in hand, are over."""
        if not self._is_running:
            self._is_running = True
            calendar = self.calendar
            calendar.post(calendar.now_ns + self.cluster.dispatch_ns, _START_NEXT, self)

    def _start_next(self) -> None:
        if not self.is_alive:
            return
        if self.cluster.pauses.places and self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self._start_next)
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
            if task.device_ids != self._devices:
                self._devices = task.device_ids
                self.show_devices(task.device_ids, task.spec.template.runtime_env)
            if self._counts_threads and task.spec.template is not self._threads_of:
                self._threads_of = task.spec.template
                self.library_threads = threads_of(task.spec.template.resources)
        cluster = self.cluster
        seed = cluster.seed_before + task.spec.task_id
        if task.attempt:
            seed += of_attempt(task.attempt)
        if task.spec.creates is not None:
            self.streams_seed = seed
        cluster.seeds_handed_out.update(seed)
        if self._context is None:
            self._context = Context()
        cluster.fibers.spawn(self, _Call(self, task), seed=seed, context=self._context)

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
            self._fibers[fiber] = ""
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
        if self.cluster.pauses.places and self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self._end)
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
        except MemoryError as error:
            if self.cluster.on_refused is not None:
                self.cluster.on_refused(error)
            raise
        finally:
            if taken is not None and not isinstance(function, type):  # a constructor's is the actor's
                self._give_memory_back(task, taken)

    def start_beside(self, task: RunTask, threads_max: int) -> None:
        self.cluster.kernel.call_after(self.cluster.dispatch_ns, self._begin_beside, task)

    def _begin_beside(self, task: RunTask) -> None:
        if self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self._begin_beside, task)
        elif self.is_alive:
            seed = task_seed(self.cluster.seed, task.spec.task_id, task.attempt)
            self.spawn_seeded(partial(self.core.execute, task), seed, task.spec.template.concurrency_group)

    def start_on_loop(self, task: RunTask) -> None:
        if task.spec.creates is not None:  # its time to begin has passed
            self._event_loops().begin(task)
            return
        self.cluster.kernel.call_after(self.cluster.dispatch_ns, self._event_loops().begin, task)

    def _event_loops(self) -> EventLoops:
        loops = self._loops
        if loops is None:
            loops = self._loops = EventLoops(self)
        return loops

    @property
    def is_on_loop(self) -> bool:
        from dualray.aio import is_on_loop  # noqa: PLC0415 - it imports asyncio

        return is_on_loop()

    def cancel_on_loop(self, task: TaskID) -> None:
        # Behind what was told to begin before; and in two turns: a coroutine that is cancelled before its first line
        # would never be reported.
        self.cluster.kernel.call_after(self.cluster.dispatch_ns, self._event_loops().cancel, task)

    def load_function(self, function: FunctionID) -> Export:
        """From the control plane's tables."""
        return control_plane.load_function(self, function)


class _Call:
    """Has a process run a task."""

    __slots__ = ("_process", "_task")

    def __init__(self, process: UserProcess, task: RunTask | TaskPushed) -> None:
        self._process = process
        self._task = task

    def __call__(self) -> None:
        self._process.execute(self._task)


def threads_of(resources: Resources) -> bytes:
    """How many threads a library may start in a task with these resources, as text: one for each CPU, at least one."""
    return b"%d" % max(in_plain_names(resources).get(CPU) // UNITS, 1)


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
