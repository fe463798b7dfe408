"""A driver or worker of a replay: it follows scripts, and has no code.

Theory of operation. A `ModelProcess` has an owner machine, follows the scripts of a `Graph` (recording/graph.py), and
keeps no bytes, only sizes; there are no fibers, no pickling, and one kernel event for a task that only computes. An
execution computes on its machine's cores (cores.py); what a script does in between is in scripts.py.

Most tasks of most programs need nothing but what comes with them, compute, and return something small. A worker that
has met their owner, is idle, and has heard of nothing but tasks has nothing to decide about one: its machine would have
it run, and report it. That is done without asking the machine (`_begin_alone`), which makes a replay a third shorter.
As soon as anything else comes, the machine is told what is in hand, and decides as ever (`_rejoin`).

The rule (plain_tasks.py) is wider here: what a task does is known from its script, and there are no bytes to be kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dualray.exceptions import SimulationDeadlockError
from dualray.recording.graph import TaskNode
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_tasks import brings_its_arguments
from dualray.shared.machines.owner.remake_costs import RemakeCosts, is_remakeable
from dualray.shared.machines.owner.task_records import cancelled
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
    ClusterChanged,
    Event,
    ItemsEnded,
    PlacementGroupAsked,
    RefsDropped,
    Result,
    SpaceWanted,
    SpaceWritten,
    TaskPushed,
    TaskRan,
    TasksPushed,
    TasksRan,
    TaskSubmitted,
    TimerFired,
    ViewReleased,
    WaitAbandoned,
    WaitStarted,
    new_finished,
)
from dualray.shared.model.ids import (
    ActorID,
    Address,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
    return_object_id,
)
from dualray.shared.model.specs import Ref, Streaming, TaskSpec
from dualray.shared.proof.trace import TraceKind
from dualray.sim.cluster.cluster import MESSAGE_BYTES
from dualray.sim.cluster.outages import FallibleCluster
from dualray.sim.kernel.cores import Work
from dualray.sim.processes.object_store import VirtualStore
from dualray.sim.processes.runner import Letter, Process
from dualray.sim.replay.execution import Execution, recorded_error
from dualray.sim.replay.heap import Heap, NoHeap
from dualray.sim.replay.rerun import Rerun
from dualray.sim.replay.scripts import ScriptRunner

_SHORT_NS = 100_000
"""Results of tasks that take less are reported together, if others wait on the same worker."""
_REPORTED_TOGETHER_MAX = 16
_SLEEPS, _COMPUTES = 0.05, 0.95
"""Shares of a core, below which a task is taken to sleep, and from which on it is taken to compute all the time."""
_BURST_NS = 1_000_000
"""What takes less is not looked at so closely."""
ATTEMPTS_PER_TASK_MAX = 10
"""Attempts, beyond which a replay is taken to go in circles."""
_NO_BYTES = np.zeros(0, dtype=np.uint8)


class ModelProcess(Process):
    """See the module."""

    is_traced = False
    takes_short_cuts = True
    """Whether tasks run without the machine where there is nothing to decide. Tests switch it off: nothing changes."""

    def __init__(
        self,
        *,
        cluster: FallibleCluster,
        address: Address,
        node: NodeID,
        store: VirtualStore,
        rerun: Rerun,
        is_driver: bool = False,
    ) -> None:
        super().__init__(cluster=cluster, address=address, node=node)
        self._rerun = rerun
        self.scripts = ScriptRunner(self, rerun)
        self._nodes, self._processes = cluster.nodes, cluster.processes
        self._kernel, self._calendar = cluster.kernel, cluster.calendar
        self.machine = Owner(address=address, node=node, config=cluster.config, is_driver=is_driver)
        self.store = store
        self._to_run: deque[RunTask | TaskPushed] = deque()
        self._last_task = b""
        self._is_running = False
        self._is_receiving = self._start_is_due = False
        self._has_faults = not rerun.is_steady
        self._remake_costs = RemakeCosts()
        self._ran: deque[tuple[TaskID, int, int, int]] = deque()
        self._wait_counter = 0
        self._waits: dict[WaitID, CompleteWait | None] = {}
        self._resumes: dict[WaitID, Callable[[CompleteWait], None]] = {}
        self._work: Work | None = None
        self._execution: Execution | None = None
        self._knows_tasks_only = ModelProcess.takes_short_cuts and not is_driver and rerun.is_simple
        """Whether nothing but tasks has come yet, and nothing else is to be noted of them."""
        self._alone: tuple[TaskPushed, TaskNode, int] | None = None
        """A task that runs without the machine's knowledge, and since when."""
        self._interrupted: TaskID | None = None
        """What was cancelled when it had been handed over, and had not begun."""
        self.actor_id: ActorID | None = None
        self.actor_class = ""
        """Of the actor that lives here."""
        self._is_noted = rerun.is_noted
        self._cores = rerun.cores[node]
        knows_memory = rerun.graph.worker_bytes and not is_driver
        self._heap = Heap(rerun.graph, cluster.nodes[node].memory, address) if knows_memory else NoHeap()
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

    # ---- Process ---------------------------------------------------------------------------------------------

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        self.take_in(message)

    def take_in(self, message: Event) -> None:
        """As `receive`: there are no payloads."""
        if not self.is_alive:
            return
        if self._has_faults and self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self.take_in, message)
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
        self.machine.check_invariants()

    def things(self) -> int:
        """About how many things such a sweep looks at."""
        return self.machine.things()

    def fire(self, timer: str) -> None:
        self.handle(TimerFired(timer=timer))

    def handle(self, event: Event) -> None:
        """Hand an event to the machine, and carry out its commands."""
        performers = self._performers
        commands = self.machine.handle(event, self._calendar.now_ns)
        if self.decisions is not None:
            self.log(event, self._calendar.now_ns, commands)
        for command in commands:
            perform = performers.get(type(command))
            if perform is not None:  # the others are about bytes and tables
                perform(command)

    def submit(self, spec: TaskSpec) -> None:
        """As `handle(TaskSubmitted(spec=spec))`."""
        if self.decisions is not None:
            self.handle(TaskSubmitted(spec=spec))
            return
        performers = self._performers
        for command in self.machine.submit(spec, self._calendar.now_ns):
            perform = performers.get(type(command))
            if perform is not None:
                perform(command)

    def die(self) -> None:
        super().die()
        if self._work is not None:
            self._cores.cancel(self._work)
        if (execution := self._execution) is not None and execution.task is not None:
            self._rerun.result.lost_ns += self.cluster.kernel.now_ns - execution.started_ns

    # ---- Commands --------------------------------------------------------------------------------------------

    def _send(self, command: Send) -> None:
        sizes = self._rerun.sizes
        size_bytes = MESSAGE_BYTES
        for key in command.payloads:
            size_bytes += sizes.get(key, 0)
        if self._is_noted:
            self._note_pushes(command)
        self._send_sized(command.to, command.message, size_bytes)

    def _send_sized(self, to: Address, message: Event, size_bytes: int) -> None:
        """Deliver a message of which only the size is known."""
        cluster = self.cluster
        destination = self._processes.get(to)
        if destination is None:
            cluster.send(self, to, message, ())
            return
        line = self.last_line
        if line is None or line.to is not to:
            line = self.last_line = cluster.line(self, to)
        if type(destination) is ModelProcess:
            cluster.network.message(line, size_bytes, destination.take_in, message)
        else:
            cluster.network.send(Letter(cluster.network, line, message, ()), size_bytes)

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
            self.cluster.write_record(command.table, command.key, command.fields)

    def _note_retry(self, command: NoteRetry) -> None:
        if self._is_noted:
            self.trace(TraceKind.TASK_RETRIED, command.task_id, other=command.reason, amount=command.attempt)

    def _complete_wait(self, command: CompleteWait) -> None:
        resume = self._resumes.pop(command.wait_id, None)
        if resume is None:
            self._waits[command.wait_id] = command  # it was there at once
        else:
            self.cluster.kernel.call_after(0, self._resume, resume, command)

    def _resume(self, resume: Callable[[CompleteWait], None], command: CompleteWait) -> None:
        if self.is_alive:
            self.cluster.pauses.when_it_runs(self, resume, command)

    def wait_for(
        self, event: WaitStarted | SpaceWanted | PlacementGroupAsked, then: Callable[[CompleteWait], None]
    ) -> CompleteWait | None:
        """Begin a wait: what it was completed with, or None; then `then` is called."""
        self.handle(event)
        done = self._waits.pop(event.wait_id, None)
        if done is None:
            self._resumes[event.wait_id] = then
        return done

    def next_wait(self) -> WaitID:
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
        if self.actor_class:
            return  # its methods go on
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
        self.cluster.kernel.call_after(0, self._end_cancelled, execution)

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
        if self._has_faults and self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self._start_next)
            return
        if not self._to_run:
            self._is_running = False
            self._take_in_ran()
            return
        task = self._to_run.popleft()
        rerun = self._rerun
        spec = task.spec
        node = rerun.submitted[spec.task_id]
        execution = self._execution = Execution(task, node.script, rerun.scale_of(node, task.attempt))
        execution.started_ns = self.cluster.kernel.now_ns
        self._heap.begins(node.script)
        rerun.result.attempts += 1
        if rerun.result.steps is not None:
            rerun.begins_step(task, self.node, self._last_task, self._kernel.now_ns)
            self._last_task = spec.task_id
        if rerun.result.attempts > ATTEMPTS_PER_TASK_MAX * (rerun.result.tasks + 100):
            rerun.program_ended(
                f"its {rerun.result.tasks:,} tasks have started {rerun.result.attempts:,} times, because results are "
                "lost before other tasks use them. The object stores are too small, or faults are too frequent",
                SimulationDeadlockError,
            )
            return
        if spec.creates is not None:
            self.actor_id = spec.creates.actor_id
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
            self.scripts.hold(execution, spec.nested)
        script = node.script
        before_ns = script.before_ns + self.cluster.cost_model.dispatch_ns
        if script.ops:
            execution.owed_ns = before_ns
            self.scripts.advance(execution)
        else:
            self.compute(before_ns + script.compute_ns * execution.scale + script.after_ns, script.weight, execution)

    def _lives(self) -> bool:
        return self.is_alive

    def compute(self, work_ns: float, weight: float, execution: Execution) -> None:
        if self._has_faults:
            work_ns *= self._nodes[NodeID(self.node)].slowness
        if self._rerun.result.steps is not None:
            self._rerun.begins_to_compute(execution.task, self._kernel.now_ns, work_ns)
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
        if self._has_faults and self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self._awake, work_ns, then, args)
            return
        self._work = self._cores.run(work_ns, 1.0, then, *args, whose=self)

    def _computed(self, execution: Execution) -> None:
        self._work = None
        if not self.is_alive:
            return
        if self._has_faults and self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self._computed, execution)
            return
        if self._rerun.result.steps is not None:
            self._rerun.has_computed(execution.task, self._kernel.now_ns)
        if execution.at >= len(execution.script.ops):
            self._ended(execution)
        else:
            self.scripts.advance(execution)

    # ---- Tasks of which there is nothing to decide -----------------------------------------------------------

    def _begin_alone(self, pushed: TaskPushed) -> bool:
        """Run a task without asking the machine; False when it is the machine's to decide."""
        spec, rerun = pushed.spec, self._rerun
        node = rerun.submitted[spec.task_id]
        if (
            not node.is_plain
            or self._is_running
            or pushed.again
            or not self.machine.is_free_for(pushed.reply_to)
            or not brings_its_arguments(pushed)
        ):
            return False
        script = node.script
        rerun.result.attempts += 1
        self._alone = (pushed, node, self._calendar.now_ns)
        self._heap.begins(script)
        work_ns: float = script.before_ns + self.cluster.cost_model.dispatch_ns + script.after_ns
        work_ns += script.compute_ns * rerun.scale_of(node, pushed.attempt)
        self._compute_then(work_ns, script.weight, self._ended_alone)
        return True

    def _ended_alone(self) -> None:
        """Report what the machine would report of it."""
        alone = self._alone
        if alone is None or not self.is_alive:
            return
        pushed, node, began_ns = alone
        self._alone = self._work = None
        self._heap.ends(is_actor=False)
        rerun, now_ns = self._rerun, self._calendar.now_ns
        used_ns = (now_ns - began_ns) * rerun.cpus[node.template]
        rerun.account_for(pushed, self.node, self.address, began_ns, now_ns, used_ns)
        sizes = node.script.sizes
        spec = pushed.spec
        finished = new_finished(spec.task_id, pushed.attempt, self.address, self.machine.node, sizes, now_ns - began_ns)
        self._send_sized(pushed.reply_to, finished, MESSAGE_BYTES + (sizes[0] if len(sizes) == 1 else sum(sizes)))

    def _rejoin(self) -> None:
        """The machine has to decide again: it learns what is in hand."""
        alone, work = self._alone, self._work
        assert alone is not None
        assert work is not None
        pushed, node, began_ns = alone
        self._alone = None
        for command in self.machine.take_over(pushed, began_ns, self._kernel.now_ns):
            assert type(command) is RunTask, f"{self.address} had a task that was not to be run at once: {command!r}"
        execution = Execution(pushed, node.script, 1.0)
        execution.started_ns = began_ns
        self._execution = execution
        self._is_running = True
        if work.fn == self._awake:
            work.args = (work.args[0], self._computed, (execution,))
        else:
            work.fn, work.args = self._computed, (execution,)

    def write(
        self,
        execution: Execution,
        object_id: ObjectID,
        size: int,
        owner: Address,
        then: Callable[[], None],
        *,
        remakeable: bool,
        remake_ns: int = 0,
    ) -> None:
        """Find room in this node's store, copy, and go on."""

        def granted(command: CompleteWait) -> None:
            if command.error is not None:
                self.fail(execution, command.error)
            elif not command.ready:
                then()  # an earlier attempt has left the same object here
            else:
                cost = self.cluster.cost_model
                self._work = self._cores.run(cost.seal_ns + cost.copy_ns(size), 1.0, written, whose=self)

        def written() -> None:
            self._work = None
            if self.is_alive:
                self.store.objects[object_id] = _NO_BYTES
                if self._is_noted:
                    self.trace(TraceKind.OBJECT_STORED, object_id, amount=size)
                if keep_ns := self.cluster.cost_model.keep_ns:
                    self._cores.run_aside(keep_ns)  # the node manager, and the head
                self.cluster.pauses.when_it_runs(self, then)

        event = SpaceWanted(
            wait_id=self.next_wait(),
            object_id=object_id,
            size_bytes=size,
            owner=owner,
            remakeable=remakeable,
            remake_ns=remake_ns,
        )
        done = self.wait_for(event, granted)
        if done is not None:
            granted(done)

    # ---- The end of a script ---------------------------------------------------------------------------------

    def _ended(self, execution: Execution) -> None:
        """All has been computed: results are stored and reported."""
        task = execution.task
        if task is None:
            self._rerun.program_ended("")
            return
        script, spec = execution.script, task.spec
        self._account(execution)
        error = recorded_error(script.error, spec.template.name)
        if spec.template.streaming is not Streaming.NO:
            self.handle(ItemsEnded(task_id=spec.task_id, attempt=task.attempt))
        sizes = () if error is not None or spec.creates is not None else script.sizes
        inline_max = self.cluster.config.inline_bytes_max
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

            remake_ns = self._remake_costs.of(task, self._kernel.now_ns - execution.started_ns)
            remakeable = is_remakeable(task)
            self.write(
                execution, object_id, sizes[index], spec.owner, stored, remakeable=remakeable, remake_ns=remake_ns
            )
            return
        results = []
        inline_max = self.cluster.config.inline_bytes_max
        nested: tuple[Ref, ...] = ()
        if execution.script.nested and error is None:
            nested = tuple(
                [ref for it in execution.script.nested if (ref := self.scripts.ref(execution, it)) is not None]
            )
        for index, size in enumerate(sizes):
            object_id = return_object_id(spec.task_id, index)
            inner = nested if index == 0 else ()
            results.append(Result(object_id=object_id, size_bytes=size, inline=size <= inline_max, nested=inner))
            if inner:
                self._rerun.nested[object_id] = inner
        self._report(
            execution, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=tuple(results), error=error)
        )

    def _report(self, execution: Execution, ran: TaskRan) -> None:
        task = execution.task
        assert task is not None
        machine = self.machine
        for ref in task.spec.deps:
            if ref.object_id in machine.views:
                self.handle(ViewReleased(object_id=ref.object_id))
        self._execution = None
        self._heap.ends(is_actor=machine.is_actor())
        if self._is_noted:
            kind = "" if ran.error is None else str(ran.error.kind)
            self.trace(TraceKind.TASK_ENDED, ran.task_id, other=kind, name=task.spec.template.name, amount=task.attempt)
        if self._rerun.result.steps is not None:
            self._rerun.result.steps[ran.task_id].ended_ns = self._kernel.now_ns - self._rerun.began_ns
        duration_ns = self.cluster.kernel.now_ns - execution.started_ns
        if (
            (self._to_run or self._ran)
            and ran.error is None
            and len(ran.results) == 1
            and ran.results[0].inline
            and not ran.results[0].nested
            and not machine.unacknowledged
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
            if machine.is_actor():  # an actor keeps what it has seen until it lets go of it
                for object_id, count in execution.held.items():
                    self.scripts.held_by_actor[object_id] = self.scripts.held_by_actor.get(object_id, 0) + count
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
            cpus = self._rerun.cpus[self._rerun.submitted[task.spec.task_id].template]
            took_ns = self._kernel.now_ns - execution.started_ns
            used_ns = cpus * (script.compute_ns * execution.scale if script.ops else took_ns)
        self._rerun.account_for(task, self.node, self.address, execution.started_ns, self._kernel.now_ns, used_ns)

    def fail(self, execution: Execution, error: ErrorInfo) -> None:
        """Something failed here that did not fail when it was recorded."""
        task, rerun = execution.task, self._rerun
        if task is None:
            rerun.program_fails(error)
            return
        rerun.causes.setdefault(error.message, error)
        raised = ErrorInfo(kind=ErrorKind.APPLICATION, message=error.message)
        self._report(execution, TaskRan(task_id=task.spec.task_id, attempt=task.attempt, results=(), error=raised))
