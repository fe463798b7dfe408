"""A recorded program, run again on a virtual cluster without its code.

Theory of operation. Head, node managers and owners are the machines that run everywhere else: where a task goes, what
is evicted, retried and made again is decided by the same code, with whatever policies the config names. What is
modelled is the user's code. A `ModelProcess` stands for a driver or worker: it has an owner machine, follows the
scripts of a `Graph` (recording/graph.py), and keeps no bytes, only sizes; there are no fibers, no pickling, and one
kernel event for a task that only computes.

An execution computes on its machine's cores (cores.py), submits, puts, waits, lets go. What a script refers to by the
ids of the recorded run is looked up in what has been submitted here, because an attempt that runs again submits tasks
with ids of its own.

`wait` may be answered by other objects than in the recorded run, for others may be ready first. The execution then
goes on with those in their place: each pair of an object that was ready and one that is swaps its roles in all that
this execution does later. So a driver that hands out work to whoever is free does so here, too.

What is left out: placement groups and labels (such tasks go anywhere), what user code does when a call fails that did
not fail when it was recorded (the run is reported as failed), threads of one process (they follow one another),
`kill`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dualray.exceptions import SimulationDeadlockError
from dualray.recording.graph import DROP, GET, PUT, SUBMIT, WAIT, Graph, Script, TaskNode
from dualray.shared.faults import Fault
from dualray.shared.machines.owner import Owner
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    CompleteWait,
    ForgetTasks,
    RunTask,
    RunTasks,
    Send,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    Event,
    RefsAdded,
    RefsDropped,
    Result,
    SpaceWanted,
    SpaceWritten,
    Started,
    TaskPushed,
    TaskRan,
    TasksRan,
    TaskSubmitted,
    TimerFired,
    ValuePut,
    ViewReleased,
    WaitStarted,
)
from dualray.shared.model.ids import (
    ActorID,
    Address,
    FunctionID,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
    actor_handle_id,
    child_task_id,
    put_object_id,
    return_object_id,
)
from dualray.shared.model.resources import CPU, UNITS, Resources, from_units
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    ActorSpec,
    FunctionTemplate,
    LeaseShape,
    NodeInfo,
    Ref,
    Strategy,
    StrategyKind,
    new_spec,
)
from dualray.shared.policies.feasibility import why_infeasible
from dualray.shared.trace import TraceEvent, TraceKind
from dualray.sim.cluster import DRIVER, DRIVER_NODE, MESSAGE_BYTES, Cluster
from dualray.sim.cores import Cores, Work
from dualray.sim.cost_model import CostModel
from dualray.sim.node import Hardware
from dualray.sim.object_store import VirtualStore
from dualray.sim.runner import Process

_OWED_NS_MAX = 50_000
"""Computing between operations that is not paid for yet: about two messages within a node."""
_SHORT_NS = 100_000
"""Results of tasks that take less are reported together, if others wait on the same worker."""
_REPORTED_TOGETHER_MAX = 16
_ROUTES_MAX = 65_536
"""Pairs of nodes and sizes, of which the time of a message is remembered."""
ATTEMPTS_PER_TASK_MAX = 10
"""Attempts, beyond which a replay is taken to go in circles."""
_TASK_ID_BYTES = 16
_NO_BYTES = np.zeros(0, dtype=np.uint8)


@dataclass(slots=True)
class Step:
    """What one execution did and when, for the critical path: times since the program's begin, in ns.

    Attributes:
        parent, submitted_ns, deps: who submitted it, when, and which objects it was given; the driver has none.
        before: who ran on its worker before it.
        waits: began, ended, objects, of whatever it waited for.
    """

    name: str
    node: str
    parent: bytes = b""
    submitted_ns: int = 0
    deps: tuple[bytes, ...] = ()
    began_ns: int = 0
    ended_ns: int = 0
    before: bytes = b""
    waits: list[tuple[int, int, tuple[bytes, ...]]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What became of a replay; times in ns, sizes in bytes.

    Attributes:
        makespan_ns: from the program's begin to its end; up to the failure of one that failed.
        since_ns: as makespan, from the first submission of the function that was asked for.
        busy_ns: CPU-time asked for by what ran: each attempt's time on its worker by its CPUs; of an actor's calls,
            what they used.
        cpu_ns: CPUs of the living nodes, by the makespan.
        lost_ns: time of attempts that were lost or done again.
        failed: why the program could not go on, in words; empty when it ended well.
    """

    makespan_ns: int = 0
    since_ns: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0
    lost_ns: int = 0
    tasks: int = 0
    attempts: int = 0
    moved_bytes: int = 0
    spilled_bytes: int = 0
    evictions: int = 0
    faults: int = 0
    failed: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    by_node: dict[str, int] = field(default_factory=dict)
    """Of each node, `busy_ns`."""
    spans: list[tuple[str, str, str, int, int, int]] | None = None
    """On demand: name, node, worker, began, ended, attempt."""
    steps: dict[bytes, Step] | None = None
    """On demand: by task; the driver's is under no bytes."""
    marks: list[int] = field(default_factory=list)
    """When the driver made its small puts, since the program's begin: with these a program marks its own phases."""


class _Execution:
    """One run of a script."""

    __slots__ = (
        "at",
        "attempt",
        "counter",
        "has_paid",
        "held",
        "owed_ns",
        "process",
        "puts",
        "roles",
        "scale",
        "script",
        "started_ns",
        "task",
        "waits_for",
    )

    def __init__(self, process: ModelProcess, task: RunTask | TaskPushed | None, script: Script, scale: float) -> None:
        self.process = process
        self.task = task
        self.attempt = 0 if task is None else task.attempt
        self.script = script
        self.scale = scale
        self.at = 0
        self.owed_ns = 0.0
        self.has_paid = False
        self.waits_for: tuple[WaitID, tuple[Any, ...]] | None = None
        self.roles: dict[bytes, bytes] | None = None
        """Objects of the script that have swapped their roles."""
        self.held: dict[ObjectID, int] = {}
        self.counter = 0
        self.puts = 0
        self.started_ns = 0


class ModelProcess(Process):
    """See the module."""

    is_traced = False

    def __init__(
        self, *, cluster: ReplayCluster, address: Address, node: NodeID, store: VirtualStore, is_driver: bool = False
    ) -> None:
        super().__init__(cluster=cluster, address=address, node=node)
        self.model = cluster
        self._kernel = cluster.kernel
        self.machine = Owner(address=address, node=node, config=cluster.config, is_driver=is_driver)
        self.store = store
        self._to_run: deque[RunTask | TaskPushed] = deque()
        self._last_task = b""
        self._is_running = False
        self._is_receiving = self._start_is_due = False
        self._has_faults = not cluster.is_steady
        self._ran: deque[tuple[TaskID, int, int, int]] = deque()
        self._wait_counter = 0
        self._waits: dict[WaitID, CompleteWait | None] = {}
        self._resumes: dict[WaitID, Callable[[CompleteWait], None]] = {}
        self._work: Work | None = None
        self._execution: _Execution | None = None
        self._held_by_actor: dict[ObjectID, int] = {}
        self._cores = cluster.cores[node]
        self._performers: dict[type[Any], Callable[[Any], object]] = {
            Send: self._send,
            CompleteWait: self._complete_wait,
            RunTask: self._run_task,
            RunTasks: self._run_tasks,
            ForgetTasks: self._forget_tasks,
            ArmTimer: lambda command: self.arm_timer(command.timer, command.delay_ns),
            CancelTimer: lambda command: self.cancel_timer(command.timer),
        }

    @classmethod
    def as_worker(cls, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> ModelProcess:
        """A worker."""
        return cls(cluster=cluster, address=address, node=node, store=store)

    # ---- Process ---------------------------------------------------------------------------------------------

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        if not self.is_alive:
            return
        if self._has_faults and self.model.is_paused(self.node):
            self.model.when_running(self.node, self.receive, message, payloads)
            return
        if self._ran:
            self._take_in_ran()
        self._is_receiving = True
        self.handle(message)
        self._is_receiving = False
        if self._start_is_due:
            self._start_is_due = False
            self._start_next()

    def check_invariants(self) -> None:
        self.machine.check_invariants()

    def things(self) -> int:
        machine = self.machine
        return 10 + 2 * len(machine.values.table) + 2 * len(machine.tasks.records) + len(machine.leases.leases)

    def fire(self, timer: str) -> None:
        self.handle(TimerFired(timer=timer))

    def handle(self, event: Event) -> None:
        """Hand an event to the machine, and carry out its commands."""
        performers = self._performers
        for command in self.machine.handle(event, self._kernel.now_ns):
            perform = performers.get(type(command))
            if perform is not None:  # the others are about bytes and tables
                perform(command)

    def die(self) -> None:
        super().die()
        if self._work is not None:
            self._cores.cancel(self._work)
        execution = self._execution
        if execution is not None and execution.task is not None:
            self.model.result.lost_ns += self.model.kernel.now_ns - execution.started_ns

    # ---- Commands --------------------------------------------------------------------------------------------

    def _send(self, command: Send) -> None:
        sizes = self.model.sizes
        size_bytes = MESSAGE_BYTES
        for key in command.payloads:
            size_bytes += sizes.get(key, 0)
        self.model.send_sized(self, command.to, command.message, size_bytes)

    def _complete_wait(self, command: CompleteWait) -> None:
        resume = self._resumes.pop(command.wait_id, None)
        if resume is None:
            self._waits[command.wait_id] = command  # it was there at once
        else:
            self.model.kernel.call_after(0, self._resume, resume, command)

    def _resume(self, resume: Callable[[CompleteWait], None], command: CompleteWait) -> None:
        if self.is_alive:
            self.model.when_running(self.node, resume, command)

    def _wait_for(self, event: WaitStarted | SpaceWanted, then: Callable[[CompleteWait], None]) -> CompleteWait | None:
        """Begin a wait: what it was completed with, or None; then `then` is called."""
        self.handle(event)
        done = self._waits.pop(event.wait_id, None)
        if done is None:
            self._resumes[event.wait_id] = then
        return done

    def _next_wait(self) -> WaitID:
        self._wait_counter += 1
        return WaitID(self._wait_counter)

    def _run_task(self, command: RunTask) -> None:
        self._to_run.append(command)
        self._start_soon()

    def _run_tasks(self, command: RunTasks) -> None:
        self._to_run.extend(command.tasks)
        self._start_soon()

    def _forget_tasks(self, command: ForgetTasks) -> None:
        forgotten = {task.spec.task_id for task in command.tasks}
        self._to_run = deque([task for task in self._to_run if task.spec.task_id not in forgotten])

    # ---- Running tasks ---------------------------------------------------------------------------------------

    def _start_soon(self) -> None:
        if not self._is_running:
            self._is_running = True
            # A task begins when the step that has ordered it is over.
            if self._is_receiving:
                self._start_is_due = True
            else:
                self._kernel.call_after(0, self._start_next)

    def _start_next(self) -> None:
        if not self.is_alive:
            return
        if self._has_faults and self.model.is_paused(self.node):
            self.model.when_running(self.node, self._start_next)
            return
        if not self._to_run:
            self._is_running = False
            self._take_in_ran()
            return
        task = self._to_run.popleft()
        model = self.model
        spec = task.spec
        node = model.node_of_task(spec.task_id)
        execution = self._execution = _Execution(self, task, node.script, model.scale_of(node, task.attempt))
        execution.started_ns = model.kernel.now_ns
        model.result.attempts += 1
        if model.result.steps is not None:
            step = model.result.steps[spec.task_id]
            step.node, step.began_ns = self.node, model.kernel.now_ns - model.began_ns
            step.before, self._last_task = self._last_task, spec.task_id
        if model.result.attempts > ATTEMPTS_PER_TASK_MAX * (model.result.tasks + 100):
            model.program_ended(
                f"its {model.result.tasks:,} tasks have begun {model.result.attempts:,} times: what is made is lost "
                f"before it is used. The object stores are too small for it, or faults come too often"
            )
            return
        if model.is_anchored:
            self.trace(TraceKind.TASK_STARTED, spec.task_id.hex(), name=spec.template.name, amount=task.attempt)
        if not self._lives():  # a fault was anchored here
            return
        if spec.nested:
            self._hold(execution, spec.nested)
        script = node.script
        before_ns = script.before_ns + model.cost_model.dispatch_ns
        if script.ops:
            execution.owed_ns = before_ns
            self._advance(execution)
        else:
            self._compute(before_ns + script.compute_ns * execution.scale + script.after_ns, script.weight, execution)

    def _lives(self) -> bool:
        return self.is_alive

    def _compute(self, work_ns: float, weight: float, execution: _Execution) -> None:
        if self._has_faults:
            work_ns *= self.model.slowness_of(NodeID(self.node))
        self._work = self._cores.run(work_ns, weight, self._computed, execution)

    def _computed(self, execution: _Execution) -> None:
        self._work = None
        if not self.is_alive:
            return
        if self._has_faults and self.model.is_paused(self.node):
            self.model.when_running(self.node, self._computed, execution)
            return
        if execution.at >= len(execution.script.ops):
            self._ended(execution)
        else:
            self._advance(execution)

    # ---- A script --------------------------------------------------------------------------------------------

    def _advance(self, execution: _Execution) -> None:
        """Go on with a script until it has to wait, or has ended."""
        script, ops = execution.script, execution.script.ops
        scale = execution.scale
        while execution.at < len(ops):
            op = ops[execution.at]
            if not execution.has_paid:
                execution.owed_ns += op[0] * scale
            kind = op[1]
            if execution.owed_ns >= _OWED_NS_MAX or (execution.owed_ns >= 1.0 and kind in _BLOCKING):
                owed_ns, execution.owed_ns = execution.owed_ns, 0.0
                execution.has_paid = True
                self._compute(owed_ns, script.weight, execution)
                return
            execution.has_paid = False
            execution.at += 1
            if kind == SUBMIT:
                self._submit(execution, op[2])
            elif kind == DROP:
                self._drop(execution, op[2])
            elif not self._block(execution, op):
                return
            if self.model.is_over:
                return
        execution.at = len(ops)
        owed_ns, execution.owed_ns = execution.owed_ns, 0.0
        self._compute(owed_ns + script.tail_ns * scale + script.after_ns, script.weight, execution)

    def _block(self, execution: _Execution, op: tuple[Any, ...]) -> bool:
        """Perform an operation that may wait; False when it does."""
        kind = op[1]
        if kind == PUT:
            return self._put(execution, op)
        refs = [ref for object_id in op[2] if (ref := self._ref(execution, object_id)) is not None]
        distinct = tuple(dict.fromkeys(refs))
        if not distinct:
            return True
        task_id = None if execution.task is None else execution.task.spec.task_id
        wait_id = self._next_wait()
        if self.model.result.steps is not None:
            began_ns = self._kernel.now_ns - self.model.began_ns
            ids = tuple([ref.object_id for ref in distinct])
            self.model.result.steps[task_id or b""].waits.append((began_ns, 0, ids))
        if kind == GET:
            event = WaitStarted(
                wait_id=wait_id, refs=distinct, num_ready=len(distinct), fetch=True, read=True, task_id=task_id
            )
            done = self._wait_for(event, lambda command: self._got(execution, distinct, command, is_late=True))
            if done is None:
                return False
            self._got(execution, distinct, done)
            return True
        number = min(op[3], len(distinct))
        event = WaitStarted(
            wait_id=wait_id, refs=distinct, num_ready=number, fetch=True, timeout_ns=op[4], task_id=task_id
        )
        done = self._wait_for(event, lambda command: self._waited(execution, op, command, is_late=True))
        if done is None:
            return False
        self._waited(execution, op, done)
        return True

    def _got(self, execution: _Execution, refs: Sequence[Ref], done: CompleteWait, *, is_late: bool = False) -> None:
        machine, model = self.machine, self.model
        for ref in refs:
            value = machine.values.table.get(ref.object_id)
            failure = None if value is None else value.failure
            if failure is not None and not model.expects_failure(ref.object_id):
                self._fail(execution, failure.message)
                return
        for object_id in done.ready:
            if object_id in machine.values.views:
                self.handle(ViewReleased(object_id=object_id))
            nested = model.nested_in(object_id)
            if nested:
                self._hold(execution, nested)
        if is_late:
            self._note_end_of_wait(execution)
            self._advance(execution)

    def _note_end_of_wait(self, execution: _Execution) -> None:
        steps = self.model.result.steps
        if steps is not None:
            waits = steps[b"" if execution.task is None else execution.task.spec.task_id].waits
            waits[-1] = (waits[-1][0], self._kernel.now_ns - self.model.began_ns, waits[-1][2])

    def _waited(self, execution: _Execution, op: tuple[Any, ...], done: CompleteWait, *, is_late: bool = False) -> None:
        """The objects that are ready take the roles of those that were."""
        number, recorded = op[3], op[5]
        roles = execution.roles
        here = set(done.ready)
        wanted = [object_id if roles is None else roles.get(object_id, object_id) for object_id in recorded]
        ready_now: list[bytes] = []  # in the ids of the script
        for object_id in op[2]:
            played = object_id if roles is None else roles.get(object_id, object_id)
            ref = self._ref_of(played)
            if ref is not None and ref.object_id in here:
                ready_now.append(played)
        chosen = ready_now[:number]
        others = [played for played in chosen if played not in wanted]
        if others:
            if roles is None:
                roles = execution.roles = {}
            back = {played: script for script, played in roles.items()}
            for missing in [played for played in wanted if played not in chosen]:
                if not others:
                    break
                other = others.pop(0)
                first, second = back.get(missing, missing), back.get(other, other)
                roles[first], roles[second] = other, missing
                back[other], back[missing] = first, second
        if is_late:
            self._note_end_of_wait(execution)
            self._advance(execution)

    # ---- What a script does ----------------------------------------------------------------------------------

    def _ref(self, execution: _Execution, object_id: bytes) -> Ref | None:
        """A reference of the script, here; None: it was never made."""
        roles = execution.roles
        return self._ref_of(object_id if roles is None else roles.get(object_id, object_id))

    def _ref_of(self, object_id: bytes) -> Ref | None:
        return self.model.refs.get(object_id)

    def _submit(self, execution: _Execution, recorded: bytes) -> None:
        model = self.model
        node = model.graph.tasks[recorded]
        parent = model.graph.driver_id if execution.task is None else execution.task.spec.task_id
        execution.counter += 1
        task_id = TaskID(recorded)
        if execution.attempt or recorded in model.submitted:
            task_id = child_task_id(TaskID(parent), execution.attempt, execution.counter)
            model.sizes[task_id] = node.args_bytes
            for index, size in enumerate(node.script.sizes):
                model.sizes[return_object_id(task_id, index)] = size
        model.submitted[task_id] = node
        template = model.templates[node.template]
        handle = None
        if node.actor:
            handle = model.refs.get(actor_handle_id(ActorID(node.actor)))
            if handle is None:
                return
        deps = tuple([ref for it in node.deps if (ref := self._ref(execution, it)) is not None]) if node.deps else ()
        nested = (
            tuple([ref for it in node.nested if (ref := self._ref(execution, it)) is not None]) if node.nested else ()
        )
        spec = new_spec(
            task_id,
            template,
            self.address,
            TaskID(parent),
            node.args_bytes,
            deps,
            nested,
            ActorID(handle.object_id[:_TASK_ID_BYTES]) if handle is not None else None,
            handle,
        )
        held = execution.held
        if node.max_restarts is not None:
            retries = model.graph.templates[node.template].words.get("max_task_retries", 0)
            spec.creates = ActorSpec(
                actor_id=ActorID(task_id), max_restarts=node.max_restarts, max_task_retries=retries
            )
            ref = Ref(actor_handle_id(ActorID(task_id)), self.address)
            model.refs[actor_handle_id(ActorID(recorded))] = ref
            held[ref.object_id] = held.get(ref.object_id, 0) + 1
        else:
            for index in range(template.num_returns):
                ref = Ref(return_object_id(task_id, index), self.address)
                model.refs[return_object_id(TaskID(recorded), index)] = ref
                held[ref.object_id] = held.get(ref.object_id, 0) + 1
        model.result.tasks += 1
        if model.result.steps is not None:
            model.result.steps[task_id] = Step(
                template.name,
                "",
                b"" if execution.task is None else execution.task.spec.task_id,
                model.kernel.now_ns - model.began_ns,
                tuple([ref.object_id for ref in deps]),
            )
        if model.since is not None and template.name == model.since and not model.since_ns:
            model.since_ns = model.kernel.now_ns
        self.handle(TaskSubmitted(spec=spec))

    def _hold(self, execution: _Execution, refs: Iterable[Ref]) -> None:
        """References have come into this process."""
        refs = tuple(refs)
        self.handle(RefsAdded(refs=refs))
        for ref in refs:
            execution.held[ref.object_id] = execution.held.get(ref.object_id, 0) + 1

    def _drop(self, execution: _Execution, recorded: Iterable[bytes]) -> None:
        held, dropped = execution.held, []
        for object_id in recorded:
            ref = self._ref(execution, object_id)
            if ref is None:
                continue
            for holder in (held, self._held_by_actor):
                if holder.get(ref.object_id):
                    holder[ref.object_id] -= 1
                    if not holder[ref.object_id]:
                        del holder[ref.object_id]
                    dropped.append(ref.object_id)
                    break
        if dropped:
            self.handle(RefsDropped(object_ids=tuple(dropped)))

    def _put(self, execution: _Execution, op: tuple[Any, ...]) -> bool:
        _, _, recorded, size, nested = op
        execution.puts += 1
        object_id = ObjectID(recorded)
        if execution.attempt or recorded in self.model.refs:
            parent = self.model.graph.driver_id if execution.task is None else execution.task.spec.task_id
            object_id = put_object_id(TaskID(parent), execution.attempt, execution.puts)
        self.model.sizes[object_id] = size
        inner = tuple([ref for it in nested if (ref := self._ref(execution, it)) is not None])

        def stored() -> None:
            self._has_put(execution, recorded, object_id, size, inner, inline=False)
            self._advance(execution)

        if size <= self.model.config.inline_bytes_max:
            if execution.task is None:
                self.model.result.marks.append(self.model.kernel.now_ns - self.model.began_ns)
            self._has_put(execution, recorded, object_id, size, inner, inline=True)
            return True
        self._write(execution, object_id, size, self.address, stored, remakeable=False)
        return False

    def _has_put(
        self,
        execution: _Execution,
        recorded: bytes,
        object_id: ObjectID,
        size: int,
        nested: tuple[Ref, ...],
        *,
        inline: bool,
    ) -> None:
        self.model.refs[recorded] = Ref(object_id, self.address)
        execution.held[object_id] = execution.held.get(object_id, 0) + 1
        self.handle(ValuePut(object_id=object_id, size_bytes=size, inline=inline, nested=nested))

    def _write(
        self,
        execution: _Execution,
        object_id: ObjectID,
        size: int,
        owner: Address,
        then: Callable[[], None],
        *,
        remakeable: bool,
    ) -> None:
        """Find room in this node's store, copy, and go on."""

        def granted(command: CompleteWait) -> None:
            if command.error is not None:
                self._fail(execution, command.error.message)
            elif not command.ready:
                then()  # an earlier attempt has left the same object here
            else:
                cost = self.model.cost_model
                self._work = self._cores.run(cost.seal_ns + cost.copy_ns(size), 1.0, written)

        def written() -> None:
            self._work = None
            if self.is_alive:
                self.store.objects[object_id] = _NO_BYTES
                self.model.when_running(self.node, then)

        event = SpaceWanted(
            wait_id=self._next_wait(), object_id=object_id, size_bytes=size, owner=owner, remakeable=remakeable
        )
        done = self._wait_for(event, granted)
        if done is not None:
            granted(done)

    # ---- The end of a script ---------------------------------------------------------------------------------

    def _ended(self, execution: _Execution) -> None:
        """All has been computed: results are stored and reported."""
        task = execution.task
        if task is None:
            self.model.program_ended("")
            return
        script, spec = execution.script, task.spec
        self._account(execution)
        error = None
        if script.error:
            error = ErrorInfo(kind=ErrorKind(script.error), message=f"{spec.template.name} failed when it was recorded")
        sizes = () if error is not None or spec.creates is not None else script.sizes
        inline_max = self.model.config.inline_bytes_max
        self._store_results(execution, error, [i for i, size in enumerate(sizes) if size > inline_max], sizes)

    def _store_results(
        self, execution: _Execution, error: ErrorInfo | None, large: list[int], sizes: Sequence[int]
    ) -> None:
        task = execution.task
        assert task is not None
        spec = task.spec
        if large:
            index = large[0]
            object_id = return_object_id(spec.task_id, index)
            retries = spec.template.max_retries

            def stored() -> None:
                self.handle(SpaceWritten(object_id=object_id))
                self._store_results(execution, error, large[1:], sizes)

            remakeable = spec.actor_id is None and (retries < 0 or task.attempt < retries)
            self._write(execution, object_id, sizes[index], spec.owner, stored, remakeable=remakeable)
            return
        results = []
        inline_max = self.model.config.inline_bytes_max
        nested: tuple[Ref, ...] = ()
        if execution.script.nested and error is None:
            nested = tuple([ref for it in execution.script.nested if (ref := self._ref(execution, it)) is not None])
        for index, size in enumerate(sizes):
            object_id = return_object_id(spec.task_id, index)
            inner = nested if index == 0 else ()
            results.append(Result(object_id=object_id, size_bytes=size, inline=size <= inline_max, nested=inner))
            if inner:
                self.model.nested[object_id] = inner
        self._report(
            execution, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=tuple(results), error=error)
        )

    def _report(self, execution: _Execution, ran: TaskRan) -> None:
        task = execution.task
        assert task is not None
        machine = self.machine
        for ref in task.spec.deps:
            if ref.object_id in machine.values.views:
                self.handle(ViewReleased(object_id=ref.object_id))
        self._execution = None
        if self.model.result.steps is not None:
            self.model.result.steps[ran.task_id].ended_ns = self._kernel.now_ns - self.model.began_ns
        duration_ns = self.model.kernel.now_ns - execution.started_ns
        if (
            (self._to_run or self._ran)
            and ran.error is None
            and len(ran.results) == 1
            and ran.results[0].inline
            and not ran.results[0].nested
            and not machine.values.unacknowledged
            and not execution.held
        ):
            self._ran.append((ran.task_id, ran.attempt, ran.results[0].size_bytes, duration_ns))
            if not self._to_run or duration_ns > _SHORT_NS or len(self._ran) >= _REPORTED_TOGETHER_MAX:
                self._take_in_ran()
        else:
            if self._ran:
                self._take_in_ran()
            self.handle(ran)
        if execution.held:
            if machine.executor.is_actor:  # an actor keeps what it has seen until it lets go of it
                for object_id, count in execution.held.items():
                    self._held_by_actor[object_id] = self._held_by_actor.get(object_id, 0) + count
            else:
                ids = [object_id for object_id, count in execution.held.items() for _ in range(count)]
                self.handle(RefsDropped(object_ids=tuple(ids)))
        self._start_next()

    def _take_in_ran(self) -> None:
        if self._ran:
            outcomes = tuple(self._ran)
            self._ran.clear()
            self.handle(TasksRan(outcomes=outcomes))

    def _account(self, execution: _Execution) -> None:
        task, model = execution.task, self.model
        assert task is not None
        spent_ns = model.kernel.now_ns - execution.started_ns
        cpus = task.spec.template.resources.get(CPU) / UNITS
        if task.spec.actor_id is not None:  # its methods demand nothing: what they use
            cpus = execution.script.weight
            computed_ns = execution.script.compute_ns * execution.scale
        elif not execution.script.ops:
            computed_ns = float(spent_ns)
        else:
            computed_ns = execution.script.compute_ns * execution.scale
        model.result.busy_ns += round(computed_ns * cpus)
        model.result.by_node[self.node] = model.result.by_node.get(self.node, 0) + round(computed_ns * cpus)
        if task.attempt:
            model.result.lost_ns += spent_ns
        if model.result.spans is not None:
            name = task.spec.template.name
            span = (name, self.node, self.address, execution.started_ns, model.kernel.now_ns, task.attempt)
            model.result.spans.append(span)

    def _fail(self, execution: _Execution, message: str) -> None:
        """Something failed here that did not fail when it was recorded."""
        task = execution.task
        if task is None:
            self.model.program_ended(message)
            return
        error = ErrorInfo(kind=ErrorKind.APPLICATION, message=message)
        self._report(execution, TaskRan(task_id=task.spec.task_id, attempt=task.attempt, results=(), error=error))


_BLOCKING = frozenset({GET, WAIT, PUT})


class ReplayCluster(Cluster):
    """A virtual cluster whose driver and workers follow scripts.

    Args:
        scale_of: by what the computing of an attempt is multiplied: drawn durations.
        cores: of each node, physical ones; None: as many as it has CPUs.
        host_cores: of the one machine that all nodes share, when they are containers of it; None: each has its own.
        slowdown: see cores.py.
        since: count also from the first submission of this function.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        config: Config,
        cost_model: CostModel,
        seed: int,
        hardware: Sequence[Hardware],
        scale_of: Callable[[TaskNode, int], float] = lambda node, attempt: 1.0,
        cores: float | None = None,
        host_cores: float | None = None,
        slowdown: float = 0.0,
        faults: Sequence[Fault] = (),
        since: str | None = None,
        with_spans: bool = False,
        with_steps: bool = False,
    ) -> None:
        super().__init__(config=config, cost_model=cost_model, seed=seed, log_directory=None)
        self.graph = graph
        self.scale_of = scale_of
        self.since = since
        self.since_ns = 0
        self.began_ns = 0
        self.sizes = dict(graph.sizes)
        self.refs: dict[bytes, Ref] = {}
        """Of each object of the recorded run, what it is here."""
        self.submitted: dict[bytes, TaskNode] = {}
        self.nested: dict[bytes, tuple[Ref, ...]] = {}
        """References in results, by object."""
        self.templates = [_template(name_and_words.name, name_and_words.words) for name_and_words in graph.templates]
        self.result = Replayed(spans=[] if with_spans else None, steps={} if with_steps else None)
        self.is_over = False
        self.make_worker = ModelProcess.as_worker
        self.network.on_rate = None
        self.is_anchored = any(fault.at_ns is None for fault in faults)
        self._hardware = list(hardware)
        self._takes_ns: dict[tuple[str, str, int], int] = {}
        self._arrival_ns: dict[tuple[Process, Process], int] = {}
        """Of the last message of each pair of processes."""
        self._planned = tuple(faults)
        self.is_steady = not faults and all(each.speed == 1.0 for each in hardware)
        """Nothing stands still or gets slow."""
        self.cores: dict[NodeID, Cores] = {}
        host = Cores(self.kernel, host_cores, slowdown) if host_cores is not None else None
        for index, each in enumerate(hardware):
            own = cores if cores is not None else max(1.0, each.total.get(CPU) / UNITS)
            self.cores[NodeID(f"node-{index}")] = host or Cores(self.kernel, own, slowdown)

    def run(self) -> Replayed:
        """Run the program to its end, its failure, or a deadlock."""
        lacks = self.what_lacks()
        if lacks:
            self.result.failed = lacks
            return self.result
        self.add(self.head)
        self.head.handle(Started())
        for index, each in enumerate(self._hardware):
            self.start_node(NodeID(f"node-{index}"), each)
        self.faults.plan(self._planned, driver_node=DRIVER_NODE)
        driver = ModelProcess(
            cluster=self, address=DRIVER, node=DRIVER_NODE, store=self.nodes[DRIVER_NODE].store, is_driver=True
        )
        self.add(driver)
        driver.handle(Started())
        self.kernel.run_until(lambda: len(driver.machine.cluster) >= len(self._hardware))
        began_ns = self.began_ns = self.kernel.now_ns
        execution = _Execution(driver, None, self.graph.driver, 1.0)
        if self.result.steps is not None:
            self.result.steps[b""] = Step("the driver", DRIVER_NODE)
        driver._advance(execution)
        try:
            if not self.kernel.run_until(lambda: self.is_over):
                raise self._deadlock()
        except SimulationDeadlockError as error:
            self.result.failed = " ".join(str(error).split())
        result = self.result
        result.makespan_ns = self.kernel.now_ns - began_ns
        result.since_ns = self.kernel.now_ns - (self.since_ns or began_ns)
        if result.steps is not None:
            result.steps[b""].ended_ns = result.makespan_ns
        cpus = sum(each.total.get(CPU) for each in self._hardware) / UNITS
        result.cpu_ns = round(cpus * result.makespan_ns)
        result.faults = len(self.faults.performed)
        self.is_closed = True
        return result

    def what_lacks(self) -> str:
        """Why the program can never run on these nodes; empty when it can."""
        nodes = [
            NodeInfo(node=NodeID(f"node-{index}"), incarnation=0, total=each.total, store_bytes=each.store_bytes)
            for index, each in enumerate(self._hardware)
        ]
        for template in self.templates:
            shape = LeaseShape(
                resources=template.resources,
                placement=template.placement,
                strategy=template.strategy,
                name=template.name,
            )
            why = why_infeasible(shape, nodes)
            if why is not None:
                return f"{template.name} can never run: {why}"
        largest = max(self.graph.sizes.values(), default=0)
        room = max((each.store_bytes for each in self._hardware), default=0)
        if largest > room:
            return f"one object has {largest:,} bytes, and the largest object store {room:,}: it needs a larger store"
        return ""

    def program_ended(self, why: str) -> None:
        """The driver's script is over, or has failed."""
        self.is_over = True
        self.result.failed = why

    def node_of_task(self, task_id: bytes) -> TaskNode:
        """What is known of a task that was submitted here."""
        return self.submitted[task_id]

    def expects_failure(self, object_id: bytes) -> bool:
        """Whether what made an object has failed when it was recorded, too."""
        node = self.submitted.get(object_id[:_TASK_ID_BYTES])
        while node is not None and not node.script.error:
            failing = [self.submitted.get(dep[:_TASK_ID_BYTES]) for dep in node.deps]
            node = next((it for it in failing if it is not None and it.script.error), None)
        return node is not None

    def nested_in(self, object_id: bytes) -> tuple[Ref, ...]:
        """The references in a result."""
        return self.nested.get(object_id, ())

    def send_sized(self, sender: Process, to: Address, message: Event, size_bytes: int) -> None:
        """Deliver a message of which only the size is known."""
        destination = self.processes.get(to)
        if destination is None:
            self.send(sender, to, message, ())
            return
        if not self._planned and type(destination) is ModelProcess:
            # Nothing cuts, parts or impairs this network: what `Network.message` would do, in fewer steps.
            route = (sender.node, destination.node, size_bytes)
            takes_ns = self._takes_ns.get(route)
            if takes_ns is None:
                if len(self._takes_ns) >= _ROUTES_MAX:
                    self._takes_ns.clear()
                takes_ns = self._takes_ns[route] = self.network.message_ns(*route)
            kernel = self.kernel
            at_ns = kernel.now_ns + takes_ns
            channel = (sender, destination)
            before_ns = self._arrival_ns.get(channel, 0)
            if at_ns < before_ns:
                takes_ns += before_ns - at_ns
                at_ns = before_ns
            self._arrival_ns[channel] = at_ns
            kernel.call_after(takes_ns, destination.receive, message, ())
            return
        self.network.message(
            sender.node,
            destination.node,
            size_bytes,
            self._deliver_to,
            destination,
            message,
            src_process=sender.address,
            dst_process=to,
        )

    def _deliver_to(self, process: Process, message: Event) -> None:
        if process.is_alive:
            process.receive(message, ())

    def note(self, event: TraceEvent) -> None:
        result = self.result
        result.counts[event.kind] += 1
        match event.kind:
            case TraceKind.TRANSFER_ENDED:
                result.moved_bytes += event.amount
            case TraceKind.OBJECT_SPILLED:
                result.spilled_bytes += event.amount
            case TraceKind.OBJECT_EVICTED:
                result.evictions += 1
            case _:
                pass
        if self._planned:
            self.faults.happened(event)

    def write_record(self, table: str, key: str, fields: tuple[tuple[str, str], ...]) -> None:
        """Nobody reads the tables."""

    def _stuck(self, why: str) -> SimulationDeadlockError:
        lines = list(self.head.machine.explain())
        for process in self.processes.values():
            if isinstance(process, ModelProcess) and process.is_alive:
                lines += [words for wait_id in process._resumes for words in process.machine.explain_wait(wait_id)]
        return SimulationDeadlockError(f"{why}, and the program has not ended: {'; '.join(lines[:3])}")


def _template(name: str, words: Mapping[str, Any]) -> FunctionTemplate:
    return FunctionTemplate(
        function_id=FunctionID(bytes.fromhex(words["function"])),
        name=name,
        resources=_resources(words["resources"]),
        placement=_resources(words["placement"]),
        num_returns=words["num_returns"],
        max_retries=words["max_retries"],
        retry_exceptions=words["retry_exceptions"],
        strategy=_strategy(words),
    )


def _resources(amounts: Mapping[str, float]) -> Resources:
    return from_units({name.partition("_group_")[0]: round(amount * UNITS) for name, amount in amounts.items()})


def _strategy(words: Mapping[str, Any]) -> Strategy:
    kind = words["strategy"]
    if kind == StrategyKind.SPREAD:
        return Strategy(kind=StrategyKind.SPREAD)
    if kind == StrategyKind.NODE_AFFINITY:
        return Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID(words["node"]), soft=words["soft"])
    return DEFAULT_STRATEGY
