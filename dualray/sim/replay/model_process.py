"""A driver or worker of a replay: it follows scripts, and has no code.

Theory of operation. A `ModelProcess` has an owner machine, follows the scripts of a `Graph` (recording/graph.py), and
keeps no bytes, only sizes; there are no fibers, no pickling, and one kernel event for a task that only computes.

An execution computes on its machine's cores (cores.py), submits, puts, waits, lets go. What a script refers to by the
ids of the recorded run is looked up in what has been submitted here, because an attempt that runs again submits tasks
with ids of its own.

`wait` may be answered by other objects than in the recorded run, for others may be ready first. The execution then
goes on with those in their place: each pair of an object that was ready and one that is swaps its roles in all that
this execution does later. So a driver that hands out work to whoever is free does so here, too.

Most tasks of most programs need nothing but what comes with them, compute, and return something small. A worker that
has met their owner, is idle, and has heard of nothing but tasks has nothing to decide about one: its machine would have
it run, and report it. That is done without asking the machine (`_begin_alone`), which makes a replay a third shorter.
As soon as anything else comes, the machine is told what is in hand, and decides as ever (`_rejoin`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dualray.exceptions import SimulationDeadlockError
from dualray.recording.graph import (
    CANCEL,
    DROP,
    GET,
    GROUP,
    ITEM,
    KILL,
    PUT,
    SUBMIT,
    TAKE,
    UNGROUP,
    WAIT,
    Script,
    TaskNode,
)
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.tasks import cancelled
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    CompleteWait,
    ForgetTasks,
    InterruptTask,
    NoteRetry,
    RunTask,
    RunTasks,
    Send,
    WriteRecord,
)
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ActorKillAsked,
    CancelAsked,
    ClusterChanged,
    Event,
    ItemMade,
    ItemsEnded,
    ItemTaken,
    PlacementGroupAsked,
    PlacementGroupRemovalAsked,
    RefsAdded,
    RefsDropped,
    Result,
    SpaceWanted,
    SpaceWritten,
    TaskFinished,
    TaskPushed,
    TaskRan,
    TasksPushed,
    TasksRan,
    TaskSubmitted,
    TimerFired,
    ValuePut,
    ViewReleased,
    WaitAbandoned,
    WaitStarted,
)
from dualray.shared.model.ids import (
    ActorID,
    Address,
    NodeID,
    ObjectID,
    PlacementGroupID,
    TaskID,
    WaitID,
    actor_handle_id,
    child_task_id,
    put_object_id,
    return_index,
    return_object_id,
    stream_handle_id,
)
from dualray.shared.model.specs import ActorSpec, Ref, Streaming, new_spec
from dualray.shared.proof.trace import TraceKind
from dualray.sim.cluster.cluster import MESSAGE_BYTES
from dualray.sim.kernel.cores import Work
from dualray.sim.processes.object_store import VirtualStore
from dualray.sim.processes.runner import Process
from dualray.sim.replay.replayed import Step

if TYPE_CHECKING:
    from dualray.sim.replay.replay import ReplayCluster

_OWED_NS_MAX = 50_000
"""Computing between operations that is not paid for yet: about two messages within a node."""
_SHORT_NS = 100_000
"""Results of tasks that take less are reported together, if others wait on the same worker."""
_REPORTED_TOGETHER_MAX = 16
_SLEEPS, _COMPUTES = 0.05, 0.95
"""Shares of a core, below which a task is taken to sleep, and from which on it is taken to compute all the time."""
_BURST_NS = 1_000_000
"""What takes less is not looked at so closely."""
ATTEMPTS_PER_TASK_MAX = 10
"""Attempts, beyond which a replay is taken to go in circles."""
_TASK_ID_BYTES = 16
_NO_BYTES = np.zeros(0, dtype=np.uint8)
_WAITING = frozenset({GET, WAIT})
_BLOCKING = frozenset({GET, WAIT, PUT, ITEM, TAKE, GROUP})


class Execution:
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
    takes_short_cuts = True
    """Whether tasks run without the machine where there is nothing to decide. Tests switch it off: nothing changes."""

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
        self._execution: Execution | None = None
        self._knows_tasks_only = ModelProcess.takes_short_cuts and not is_driver and cluster.is_simple
        """Whether nothing but tasks has come yet, and nothing else is to be noted of them."""
        self._alone: tuple[TaskPushed, TaskNode, int] | None = None
        """A task that runs without the machine's knowledge, and since when."""
        self._interrupted: TaskID | None = None
        """What was cancelled when it had been handed over, and had not begun."""
        self._held_by_actor: dict[ObjectID, int] = {}
        self.actor_class = ""
        """Of the actor that lives here."""
        self._is_noted = cluster.is_noted
        self._cores = cluster.cores[node]
        self._performers: dict[type[Any], Callable[[Any], object]] = {
            Send: self._send,
            CompleteWait: self._complete_wait,
            RunTask: self._run_task,
            RunTasks: self._run_tasks,
            ForgetTasks: self._forget_tasks,
            InterruptTask: self._interrupt_task,
            NoteRetry: self._note_retry,
            WriteRecord: self._write_record,
            ArmTimer: lambda command: self.arm_timer(command.timer, command.delay_ns),
            CancelTimer: lambda command: self.cancel_timer(command.timer),
        }

    @classmethod
    def as_worker(cls, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> ModelProcess:
        """A worker."""
        return cls(cluster=cluster, address=address, node=node, store=store)

    # ---- Process ---------------------------------------------------------------------------------------------

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        self.take_in(message)

    def take_in(self, message: Event) -> None:
        """As `receive`: there are no payloads."""
        if not self.is_alive:
            return
        if self._has_faults and self.model.halts.is_halted(self):
            self.model.halts.when_it_runs(self, self.take_in, message)
            return
        if self._knows_tasks_only:
            if type(message) is TaskPushed:
                if self._alone is None and self._begin_alone(message):
                    return
            elif type(message) is not ClusterChanged:
                self._knows_tasks_only = False
            if self._alone is not None:
                self._rejoin()
        if self._ran:
            self._take_in_ran()
        self._is_receiving = True
        self.handle(message)
        self._is_receiving = False
        if self._start_is_due:
            self._start_is_due = False
            self._start_next()

    def check_invariants(self) -> None:
        """A full sweep over its machine."""
        self.machine.check_invariants()

    def things(self) -> int:
        """About how many things such a sweep looks at."""
        machine = self.machine
        return 10 + 2 * len(machine.values.table) + 2 * len(machine.tasks.records) + len(machine.leases.leases)

    def fire(self, timer: str) -> None:
        self.handle(TimerFired(timer=timer))

    def handle(self, event: Event) -> None:
        """Hand an event to the machine, and carry out its commands."""
        performers = self._performers
        commands = self.machine.handle(event, self._kernel.now_ns)
        if self.decisions is not None:
            self.log(event, self._kernel.now_ns, commands)
        for command in commands:
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
        if self._is_noted:
            self._note_pushes(command)
        self.model.send_sized(self, command.to, command.message, size_bytes)

    def _note_pushes(self, command: Send) -> None:
        message = command.message
        if isinstance(message, TaskPushed | TasksPushed):
            for push in (message,) if isinstance(message, TaskPushed) else message.each():
                spec = push.spec
                self.trace(
                    TraceKind.TASK_PUSHED,
                    spec.task_id,
                    other=command.to,
                    name=spec.template.name,
                    amount=push.attempt,
                )

    def _write_record(self, command: WriteRecord) -> None:
        if self._is_noted:
            self.model.write_record(command.table, command.key, command.fields)

    def _note_retry(self, command: NoteRetry) -> None:
        if self._is_noted:
            self.trace(TraceKind.TASK_RETRIED, command.task_id, other=command.reason, amount=command.attempt)

    def _complete_wait(self, command: CompleteWait) -> None:
        resume = self._resumes.pop(command.wait_id, None)
        if resume is None:
            self._waits[command.wait_id] = command  # it was there at once
        else:
            self.model.kernel.call_after(0, self._resume, resume, command)

    def _resume(self, resume: Callable[[CompleteWait], None], command: CompleteWait) -> None:
        if self.is_alive:
            self.model.halts.when_it_runs(self, resume, command)

    def _wait_for(
        self, event: WaitStarted | SpaceWanted | PlacementGroupAsked, then: Callable[[CompleteWait], None]
    ) -> CompleteWait | None:
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

    def _interrupt_task(self, command: InterruptTask) -> None:
        """A task that was cancelled ends where it is: while it computes or waits, or before it begins."""
        execution = self._execution
        task = None if execution is None else execution.task
        if execution is None or task is None or task.spec.task_id != command.task_id:
            self._interrupted = command.task_id  # it is about to begin
            return
        if self._work is not None:
            self._cores.cancel(self._work)
            self._work = None
        else:
            for wait_id in list(self._resumes):
                del self._resumes[wait_id]
                self.handle(WaitAbandoned(wait_id=wait_id))
        self.model.kernel.call_after(0, self._end_cancelled, execution)

    def _end_cancelled(self, execution: Execution) -> None:
        task = execution.task
        if task is None or not self.is_alive or self._execution is not execution:
            return
        self._account(execution)
        error = cancelled(task.spec)
        self._report(execution, TaskRan(task_id=task.spec.task_id, attempt=task.attempt, results=(), error=error))

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
        if self._has_faults and self.model.halts.is_halted(self):
            self.model.halts.when_it_runs(self, self._start_next)
            return
        if not self._to_run:
            self._is_running = False
            self._take_in_ran()
            return
        task = self._to_run.popleft()
        model = self.model
        spec = task.spec
        node = model.submitted[spec.task_id]
        execution = self._execution = Execution(self, task, node.script, model.scale_of(node, task.attempt))
        execution.started_ns = model.kernel.now_ns
        model.result.attempts += 1
        if model.result.steps is not None:
            step = model.result.steps[spec.task_id]
            step.node, step.began_ns = self.node, model.kernel.now_ns - model.began_ns
            step.before, self._last_task = self._last_task, spec.task_id
        if model.result.attempts > ATTEMPTS_PER_TASK_MAX * (model.result.tasks + 100):
            model.program_ended(
                f"its {model.result.tasks:,} tasks have begun {model.result.attempts:,} times: what is made is lost "
                f"before it is used. The object stores are too small for it, or faults come too often",
                SimulationDeadlockError,
            )
            return
        if spec.creates is not None:
            self.actor_class = spec.template.name.partition(".")[0]
        if self._is_noted:
            self.trace(TraceKind.TASK_STARTED, spec.task_id, name=spec.template.name, amount=task.attempt)
        if not self._lives():  # a fault was anchored here
            return
        if self._interrupted is not None and self._interrupted == spec.task_id:
            self._interrupted = None
            self._end_cancelled(execution)
            return
        if spec.nested:
            self._hold(execution, spec.nested)
        script = node.script
        before_ns = script.before_ns + model.cost_model.dispatch_ns
        if script.ops:
            execution.owed_ns = before_ns
            self.advance(execution)
        else:
            self._compute(before_ns + script.compute_ns * execution.scale + script.after_ns, script.weight, execution)

    def _lives(self) -> bool:
        return self.is_alive

    def _compute(self, work_ns: float, weight: float, execution: Execution) -> None:
        if self._has_faults:
            work_ns *= self.model.slowness_of(NodeID(self.node))
        self._compute_then(work_ns, weight, self._computed, execution)

    def _compute_then(self, work_ns: float, weight: float, then: Callable[..., object], *args: Any) -> None:
        """Compute, and call `then`. What uses less than a core waits for something else first, and then wants a whole
        one: so tasks that begin together get in each other's way as they do, and not only when their mean demands add
        up to more than there is."""
        if _SLEEPS <= weight < _COMPUTES and work_ns >= _BURST_NS:
            asleep_ns, awake_ns = work_ns * (1.0 - weight), work_ns * weight
            self._work = self._cores.run(asleep_ns, 0.0, self._awake, awake_ns, then, args)
        else:
            self._work = self._cores.run(work_ns, weight, then, *args, whose=self)

    def _awake(self, work_ns: float, then: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._work = None
        if not self.is_alive:
            return
        if self._has_faults and self.model.halts.is_halted(self):
            self.model.halts.when_it_runs(self, self._awake, work_ns, then, args)
            return
        self._work = self._cores.run(work_ns, 1.0, then, *args, whose=self)

    def _computed(self, execution: Execution) -> None:
        self._work = None
        if not self.is_alive:
            return
        if self._has_faults and self.model.halts.is_halted(self):
            self.model.halts.when_it_runs(self, self._computed, execution)
            return
        if execution.at >= len(execution.script.ops):
            self._ended(execution)
        else:
            self.advance(execution)

    # ---- Tasks of which there is nothing to decide -----------------------------------------------------------

    def _begin_alone(self, pushed: TaskPushed) -> bool:
        """Run a task without asking the machine; False when it is the machine's to decide."""
        spec, model = pushed.spec, self.model
        node = model.submitted[spec.task_id]
        values = self.machine.values
        owner = pushed.reply_to
        if (
            not node.is_plain
            or self._is_running
            or pushed.again
            or self.machine.executor.current is not None
            or owner not in values.met
            or values.table
        ):
            return False
        if spec.deps and (
            len(pushed.inline_deps) < len(spec.deps) or any(dep_owner != owner for _, dep_owner in spec.deps)
        ):
            return False
        script = node.script
        model.result.attempts += 1
        self._alone = (pushed, node, self._kernel.now_ns)
        work_ns: float = script.before_ns + model.cost_model.dispatch_ns + script.after_ns
        work_ns += script.compute_ns * model.scale_of(node, pushed.attempt)
        self._compute_then(work_ns, script.weight, self._ended_alone)
        return True

    def _ended_alone(self) -> None:
        """Report what the machine would report of it."""
        alone = self._alone
        if alone is None or not self.is_alive:
            return
        pushed, node, began_ns = alone
        self._alone = self._work = None
        spec, model = pushed.spec, self.model
        now_ns = self._kernel.now_ns
        self._account_for(pushed, began_ns, (now_ns - began_ns) * model.cpus[node.template])
        sizes = node.script.sizes
        if len(sizes) == 1:
            results: tuple[Result, ...] = (
                Result(object_id=return_object_id(spec.task_id, 0), size_bytes=sizes[0], inline=True),
            )
        else:
            ids = [return_object_id(spec.task_id, index) for index in range(len(sizes))]
            pairs = zip(ids, sizes, strict=True)
            results = tuple([Result(object_id=it, size_bytes=size, inline=True) for it, size in pairs])
        finished = TaskFinished(
            task_id=spec.task_id,
            attempt=pushed.attempt,
            worker=self.address,
            node=self.machine.node,
            results=results,
            duration_ns=now_ns - began_ns,
        )
        model.send_sized(self, pushed.reply_to, finished, MESSAGE_BYTES + sum(sizes))

    def _rejoin(self) -> None:
        """The machine has to decide again: it learns what is in hand."""
        alone, work = self._alone, self._work
        assert alone is not None
        assert work is not None
        pushed, node, began_ns = alone
        self._alone = None
        for command in self.machine.handle(pushed, self._kernel.now_ns):
            assert type(command) is RunTask, f"{self.address} had a task that was not to be run at once: {command!r}"
        self.machine.executor.started_ns = began_ns
        execution = Execution(self, pushed, node.script, 1.0)
        execution.started_ns = began_ns
        self._execution = execution
        self._is_running = True
        if work.fn == self._awake:
            work.args = (work.args[0], self._computed, (execution,))
        else:
            work.fn, work.args = self._computed, (execution,)

    # ---- A script --------------------------------------------------------------------------------------------

    def advance(self, execution: Execution) -> None:
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
            elif kind in _BLOCKING:
                if not self._block(execution, op):
                    return
            else:
                self._ask(execution, op)
            if self.model.is_over:
                return
        execution.at = len(ops)
        owed_ns, execution.owed_ns = execution.owed_ns, 0.0
        self._compute(owed_ns + script.tail_ns * scale + script.after_ns, script.weight, execution)

    def _block(self, execution: Execution, op: tuple[Any, ...]) -> bool:
        """Perform an operation that may wait; False when it does."""
        kind = op[1]
        if kind not in _WAITING:
            return self._put(execution, op) if kind == PUT else self._block_rarely(execution, op)
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

    def _got(self, execution: Execution, refs: Sequence[Ref], done: CompleteWait, *, is_late: bool = False) -> None:
        machine, model = self.machine, self.model
        for ref in refs:
            value = machine.values.table.get(ref.object_id)
            failure = None if value is None else value.failure
            if failure is not None and not model.expects_failure(ref.object_id):
                self._fail(execution, failure)
                return
        for object_id in done.ready:
            if object_id in machine.values.views:
                self.handle(ViewReleased(object_id=object_id))
            nested = model.nested_in(object_id)
            if nested:
                self._hold(execution, nested)
        if is_late:
            self._note_end_of_wait(execution)
            self.advance(execution)

    def _note_end_of_wait(self, execution: Execution) -> None:
        steps = self.model.result.steps
        if steps is not None:
            waits = steps[b"" if execution.task is None else execution.task.spec.task_id].waits
            waits[-1] = (waits[-1][0], self._kernel.now_ns - self.model.began_ns, waits[-1][2])

    def _waited(self, execution: Execution, op: tuple[Any, ...], done: CompleteWait, *, is_late: bool = False) -> None:
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
            self.advance(execution)

    # ---- What a script does ----------------------------------------------------------------------------------

    def _ref(self, execution: Execution, object_id: bytes) -> Ref | None:
        """A reference of the script, here; None: it was never made."""
        roles = execution.roles
        return self._ref_of(object_id if roles is None else roles.get(object_id, object_id))

    def _ref_of(self, object_id: bytes) -> Ref | None:
        return self.model.refs.get(object_id)

    def _submit(self, execution: Execution, recorded: bytes) -> None:
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
            if template.streaming is Streaming.STREAMING:
                self._new_ref(execution, return_object_id(TaskID(recorded), 1), return_object_id(task_id, 1))
                self._new_ref(execution, stream_handle_id(TaskID(recorded)), stream_handle_id(task_id))
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
        if self._is_noted:
            ids = tuple([ref.object_id.hex() for ref in (*deps, *nested)])
            self.trace(TraceKind.TASK_SUBMITTED, task_id, name=template.name, amount=node.args_bytes, deps=ids)
        self.handle(TaskSubmitted(spec=spec))

    def _new_ref(self, execution: Execution, recorded: bytes, object_id: ObjectID) -> None:
        """An execution holds a reference to an object of its process, known to its script as another."""
        self.model.refs[recorded] = Ref(object_id, self.address)
        execution.held[object_id] = execution.held.get(object_id, 0) + 1

    # ---- What few scripts do ---------------------------------------------------------------------------------

    def _ask(self, execution: Execution, op: tuple[Any, ...]) -> None:
        """Perform an operation that needs no answer."""
        kind = op[1]
        if kind == KILL:
            handle = self._ref_of(actor_handle_id(ActorID(op[2])))
            if handle is not None:
                actor = ActorID(handle.object_id[:_TASK_ID_BYTES])
                self.handle(ActorKillAsked(actor_id=actor, no_restart=op[3]))
        elif kind == CANCEL:
            ref = self._ref(execution, op[2])
            if ref is not None:
                self.handle(CancelAsked(ref=ref, force=op[3], recursive=op[4]))
        else:
            assert kind == UNGROUP
            self.handle(PlacementGroupRemovalAsked(group_id=PlacementGroupID(op[2])))

    def _block_rarely(self, execution: Execution, op: tuple[Any, ...]) -> bool:
        """Perform an operation that may wait; False when it does."""
        kind = op[1]
        if kind == ITEM:
            return self._make_item(execution, op)
        if kind == TAKE:
            return self._take(execution, op[2])
        if execution.attempt:
            return True  # an attempt before has asked for the group
        event = PlacementGroupAsked(
            wait_id=self._next_wait(), spec=self.model.group_of(PlacementGroupID(op[2]), op[3], self.address)
        )

        def noted(command: CompleteWait) -> None:
            if command.error is not None:
                self._fail(execution, command.error)
            else:
                self.advance(execution)

        done = self._wait_for(event, noted)
        assert done is None, "the head has answered before it was asked"
        return False

    def _make_item(self, execution: Execution, op: tuple[Any, ...]) -> bool:
        """A generator yields: the item is stored and reported, and may have to wait for its consumer."""
        _, _, recorded, size, nested, error = op
        task, model = execution.task, self.model
        assert task is not None
        spec = task.spec
        object_id = return_object_id(spec.task_id, return_index(recorded))
        model.sizes[object_id] = size
        model.refs.setdefault(recorded, Ref(object_id, spec.owner))
        inner = tuple([ref for it in nested if (ref := self._ref(execution, it)) is not None])
        is_inline = bool(error) or size <= model.config.inline_bytes_max

        def stored() -> None:
            if not is_inline:
                self.handle(SpaceWritten(object_id=object_id))
            self.handle(
                ItemMade(
                    task_id=spec.task_id,
                    attempt=task.attempt,
                    owner=spec.owner,
                    result=Result(object_id=object_id, size_bytes=size, inline=is_inline, nested=inner),
                    error=_recorded_error(error, spec.template.name),
                    ahead_max=spec.template.items_ahead_max,
                )
            )
            if self._has_room(execution):
                self.advance(execution)

        if is_inline:
            stored()
        else:
            self._write(execution, object_id, size, spec.owner, stored, remakeable=_is_remakeable(task))
        return False

    def _has_room(self, execution: Execution) -> bool:
        """Whether a generator may go on now; else it does so when its consumer lets it."""
        task = execution.task
        assert task is not None
        spec, production = task.spec, self.machine.production
        if not production.is_wanted(spec.task_id, task.attempt):
            execution.at = len(execution.script.ops)  # it is closed
            return True
        room = production.room_for(spec.task_id, task.attempt)
        if room is None:
            return True
        event = WaitStarted(
            wait_id=self._next_wait(),
            refs=(Ref(room, self.address),),
            num_ready=1,
            fetch=False,
            task_id=spec.task_id,
        )

        def opened(_: CompleteWait) -> None:
            if self._has_room(execution):
                self.advance(execution)

        return self._wait_for(event, opened) is not None

    def _take(self, execution: Execution, recorded: bytes) -> bool:
        """The consumer of a generator takes the next item, which has been waited for."""
        first = self.model.refs.get(return_object_id(TaskID(recorded), 0))
        streams = self.machine.tasks.streams
        task_id = TaskID(b"" if first is None else first.object_id[:_TASK_ID_BYTES])
        stream = streams.consumed.get(task_id)
        if stream is None:
            return True

        def take() -> None:
            index = stream.next
            if not streams.has_ended_before(task_id, index):
                self.handle(ItemTaken(task_id=task_id))
                self._new_ref(
                    execution, return_object_id(TaskID(recorded), index + 1), return_object_id(task_id, index + 1)
                )

        if stream.next <= stream.reported or stream.has_ended:
            take()
            return True

        def came(_: CompleteWait) -> None:
            take()
            self.advance(execution)

        ref = Ref(return_object_id(task_id, stream.next), self.address)
        event = WaitStarted(wait_id=self._next_wait(), refs=(ref,), num_ready=1, fetch=False)
        if self._wait_for(event, came) is None:
            return False
        take()
        return True

    def _hold(self, execution: Execution, refs: Iterable[Ref]) -> None:
        """References have come into this process."""
        refs = tuple(refs)
        self.handle(RefsAdded(refs=refs))
        for ref in refs:
            execution.held[ref.object_id] = execution.held.get(ref.object_id, 0) + 1

    def _drop(self, execution: Execution, recorded: Iterable[bytes]) -> None:
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

    def _put(self, execution: Execution, op: tuple[Any, ...]) -> bool:
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
            self.advance(execution)

        if size <= self.model.config.inline_bytes_max:
            if execution.task is None:
                self.model.result.marks.append(self.model.kernel.now_ns - self.model.began_ns)
            self._has_put(execution, recorded, object_id, size, inner, inline=True)
            return True
        self._write(execution, object_id, size, self.address, stored, remakeable=False)
        return False

    def _has_put(
        self,
        execution: Execution,
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
        execution: Execution,
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
                self._fail(execution, command.error)
            elif not command.ready:
                then()  # an earlier attempt has left the same object here
            else:
                cost = self.model.cost_model
                self._work = self._cores.run(cost.seal_ns + cost.copy_ns(size), 1.0, written, whose=self)

        def written() -> None:
            self._work = None
            if self.is_alive:
                self.store.objects[object_id] = _NO_BYTES
                if self._is_noted:
                    self.trace(TraceKind.OBJECT_STORED, object_id, amount=size)
                self.model.halts.when_it_runs(self, then)

        event = SpaceWanted(
            wait_id=self._next_wait(), object_id=object_id, size_bytes=size, owner=owner, remakeable=remakeable
        )
        done = self._wait_for(event, granted)
        if done is not None:
            granted(done)

    # ---- The end of a script ---------------------------------------------------------------------------------

    def _ended(self, execution: Execution) -> None:
        """All has been computed: results are stored and reported."""
        task = execution.task
        if task is None:
            self.model.program_ended("")
            return
        script, spec = execution.script, task.spec
        self._account(execution)
        error = _recorded_error(script.error, spec.template.name)
        if spec.template.streaming is not Streaming.NO:
            self.handle(ItemsEnded(task_id=spec.task_id, attempt=task.attempt))
        sizes = () if error is not None or spec.creates is not None else script.sizes
        inline_max = self.model.config.inline_bytes_max
        self._store_results(execution, error, [i for i, size in enumerate(sizes) if size > inline_max], sizes)

    def _store_results(
        self, execution: Execution, error: ErrorInfo | None, large: list[int], sizes: Sequence[int]
    ) -> None:
        task = execution.task
        assert task is not None
        spec = task.spec
        if large:
            index = large[0]
            object_id = return_object_id(spec.task_id, index)

            def stored() -> None:
                self.handle(SpaceWritten(object_id=object_id))
                self._store_results(execution, error, large[1:], sizes)

            self._write(execution, object_id, sizes[index], spec.owner, stored, remakeable=_is_remakeable(task))
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

    def _report(self, execution: Execution, ran: TaskRan) -> None:
        task = execution.task
        assert task is not None
        machine = self.machine
        for ref in task.spec.deps:
            if ref.object_id in machine.values.views:
                self.handle(ViewReleased(object_id=ref.object_id))
        self._execution = None
        if self._is_noted:
            kind = "" if ran.error is None else str(ran.error.kind)
            self.trace(TraceKind.TASK_ENDED, ran.task_id, other=kind, name=task.spec.template.name, amount=task.attempt)
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

    def _account(self, execution: Execution) -> None:
        task, script = execution.task, execution.script
        assert task is not None
        if task.spec.actor_id is not None:  # its methods demand nothing: what they use
            used_ns = script.compute_ns * execution.scale * script.weight
        else:
            cpus = self.model.cpus[self.model.submitted[task.spec.task_id].template]
            is_plain = not script.ops
            used_ns = cpus * (
                self._kernel.now_ns - execution.started_ns if is_plain else script.compute_ns * execution.scale
            )
        self._account_for(task, execution.started_ns, used_ns)

    def _account_for(self, task: RunTask | TaskPushed, began_ns: int, used_ns: float) -> None:
        """An attempt has ended, which has used so much CPU time."""
        result, now_ns = self.model.result, self._kernel.now_ns
        used = round(used_ns)
        result.busy_ns += used
        result.by_node[self.node] = result.by_node.get(self.node, 0) + used
        if task.attempt:
            result.lost_ns += now_ns - began_ns
        if result.spans is not None:
            span = (task.spec.template.name, self.node, self.address, began_ns, now_ns, task.attempt)
            result.spans.append(span)

    def _fail(self, execution: Execution, error: ErrorInfo) -> None:
        """Something failed here that did not fail when it was recorded."""
        task, model = execution.task, self.model
        if task is None:
            model.program_fails(error)
            return
        model.causes.setdefault(error.message, error)
        raised = ErrorInfo(kind=ErrorKind.APPLICATION, message=error.message)
        self._report(execution, TaskRan(task_id=task.spec.task_id, attempt=task.attempt, results=(), error=raised))


def _is_remakeable(task: RunTask | TaskPushed) -> bool:
    """Whether what this attempt makes can be made again."""
    retries = task.spec.template.max_retries
    return task.spec.actor_id is None and (retries < 0 or task.attempt < retries)


def _recorded_error(kind: str, name: str) -> ErrorInfo | None:
    """What a call failed with when it was recorded; None: it did not."""
    if not kind:
        return None
    return ErrorInfo(kind=ErrorKind(kind), message=f"{name} failed when it was recorded")
