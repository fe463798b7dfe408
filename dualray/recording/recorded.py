"""A core worker that notes what its user code does: `init(record=...)`.

Theory of operation. A process that is recorded has a `RecordedCoreWorker` where others have a `CoreWorker`: that is the
one switch, and a process that is not recorded pays nothing. Noting is an append to a list; what costs time (packing the
notes, many at once) is done later, by the runner, with `take`. Asking the system for the CPU time costs as much as all
notes of a task: it is done once in USAGE_NS, at the begin or end of a task, and shared out among the tasks in between
when the file is made.

What is noted is what a simulation needs to run the program again without its code: for each execution (the driver, and
every attempt of a task) what it submits, puts, waits for and lets go of, in order and with times, so that the time
between two of these is what its own code took; and of every attempt when its task came, began, was called, returned and
ended, the CPU time, and the sizes of what it returned.

A note is a tuple of plain values; the first is its kind:

    submit  time, execution, attempt, task, template, args_bytes, deps, nested, actor, limits of an actor that it makes,
            a checksum of the values among its arguments (0: unknown)
    get     began, ended, execution, attempt, objects, delay_ns (of the driver, since its last wait; 0 of all others)
    wait    began, ended, execution, attempt, objects, delay_ns, num_returns, timeout_ns (-1: none), ready,
            whether the objects are brought here
    put     began, ended, execution, attempt, object, size, nested
    drop    time, execution, attempt, objects
    came    time, tasks: pairs of id and attempt
    retry   time, task, attempt, reason
    run     task, attempt, started, called, returned, ended, stored_ns (what storing large results took of its time),
            error, sizes, nested (references in the results)
    usage   began, ended, cpu_ns, delay_ns, peak_bytes: what this process has used while it ran tasks
    item    time, task, attempt, object, size, nested, stored_ns, error: a generator has made an item
    take    time, execution, attempt, task: the next item of a generator was taken
    kill    time, execution, attempt, actor, whether it may not start again
    cancel  time, execution, attempt, object, force, recursive
    group   time, execution, attempt, id, and what it reserves, as JSON: a placement group was asked for
    ungroup time, execution, attempt, id
    template  number, and the template in plain values: it stands before the first `submit` of it
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from types import GeneratorType
from typing import Any
from zlib import crc32

from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.host import Host
from dualray.shared.core.layout import Serialized
from dualray.shared.core.task_runner import Export, TaskRunner
from dualray.shared.model.codec import pack
from dualray.shared.model.commands import NoteRetry, RunTask
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    ActorKillAsked,
    CancelAsked,
    Event,
    ItemMade,
    ItemTaken,
    PlacementGroupAsked,
    PlacementGroupRemovalAsked,
    RefsDropped,
    Result,
    TaskPushed,
    TaskRan,
    TasksPushed,
    TaskSubmitted,
)
from dualray.shared.model.ids import Address, FunctionID, NodeID, ObjectID, TaskID
from dualray.shared.model.specs import FunctionTemplate, PlacementGroupSpec, Ref, Streaming

NO_TIMEOUT = -1
USAGE_NS = 5_000_000
"""How often a process that runs tasks looks at its CPU time."""
_DRIVER_USAGE_NS = 2_000_000
"""As USAGE_NS, of a driver."""
_CHECKED_BYTES = 4096
"""Of pickled arguments: what lies beyond tells no calls apart."""


class _RecordedRunner(TaskRunner):
    """Notes when user code was called and when it returned."""

    def __init__(self, core: RecordedCoreWorker) -> None:
        super().__init__(core)
        self._recorded = core

    def execute(self, task: RunTask | TaskPushed) -> None:
        core = self._recorded
        core.begin_task(self._host.now_ns())
        super().execute(task)

    def load(self, function: FunctionID) -> Export:
        export = super().load(function)
        self._recorded.called_ns = self._host.now_ns()
        return export

    def _store_small(self, task: RunTask | TaskPushed, value: Any, results: list[Result]) -> int:
        if not isinstance(value, GeneratorType):  # else its code is still to run: it returns with its end
            self._recorded.returned_ns = self._host.now_ns()
        return super()._store_small(task, value, results)

    def _store_results(self, task: RunTask | TaskPushed, values: Sequence[Any]) -> list[Result]:
        self._recorded.returned_ns = self._host.now_ns()
        return super()._store_results(task, values)


class RecordedCoreWorker(CoreWorker):
    """See the module.

    Args:
        usage: the CPU time that this process has used, and how long its thread was ready to run and no core was free,
            in ns; None: nobody knows.
        peak_bytes: the most memory of its own that this process has held since this was last asked; 0: nobody knows.
        on_note: called when there is a first note; any thread.
    """

    def __init__(
        self,
        *,
        address: Address,
        node: NodeID,
        config: Config,
        host: Host,
        root: TaskID,
        is_driver: bool,
        usage: Callable[[], tuple[int, int]] | None,
        peak_bytes: Callable[[], int] = lambda: 0,
        on_note: Callable[[], object] = lambda: None,
        is_folded: bool = False,
    ) -> None:
        super().__init__(
            address=address,
            node=node,
            config=config,
            host=host,
            root=root,
            is_driver=is_driver,
            is_folded=is_folded,
        )
        self.has_notes = True
        self._usage = usage
        self._peak_bytes = peak_bytes
        self._is_driver = is_driver
        self.on_note = on_note
        self.notes: deque[tuple[Any, ...]] = deque()
        self.called_ns = 0
        self.returned_ns = 0
        self._started_ns = 0
        self._stored_ns = 0
        """What the task in hand has spent on storing its results."""
        self._delay_before_ns = 0
        self._usage_at_ns = -USAGE_NS
        self._cpu_before_ns = 0
        self._runner = _RecordedRunner(self)
        self._handle_plainly = super()._handle
        self._now_ns = host.now_ns
        self._templates: dict[FunctionTemplate, int] = {}
        self._last_template: FunctionTemplate | None = None
        self._last_number = 0
        self._notes_of: dict[type[Any], Callable[[Any], object]] = {
            TaskSubmitted: self._note_submitted,
            RefsDropped: self._note_dropped,
            TaskPushed: self._note_came,
            TasksPushed: self._note_several_came,
            ItemMade: self._note_item,
            ItemTaken: self._note_taken,
            ActorKillAsked: self._note_kill,
            CancelAsked: self._note_cancel,
            PlacementGroupAsked: self._note_group,
            PlacementGroupRemovalAsked: self._note_removal,
        }

    # ---- What is noted ---------------------------------------------------------------------------------------

    def note(self, *note: Any) -> None:
        """Keep a note."""
        self.notes.append(note)
        if len(self.notes) == 1:  # after the append: whoever empties the list meanwhile has taken it, or is told
            self.on_note()

    def _handle(self, event: Event) -> None:
        note = self._notes_of.get(type(event))
        if note is not None:
            note(event)
        self._handle_plainly(event)

    def _note_submitted(self, event: TaskSubmitted) -> None:
        # Plain values only: a tuple of such is nothing to the garbage collector. This is what recording costs most
        # programs: hence the calls that are not made.
        spec, execution, notes = event.spec, self.execution, self.notes
        template = spec.template
        payload = None if spec.nested else self.payloads.get(spec.task_id)  # references inside it never repeat
        if template is self._last_template:
            number = self._last_number
        else:
            number = self._number_of(template)
        made = spec.creates
        notes.append(
            (
                "submit",
                self._now_ns(),
                execution.task_id,
                execution.attempt,
                spec.task_id,
                number,
                spec.args_bytes,
                tuple([ref.object_id for ref in spec.deps]) if spec.deps else (),
                tuple([ref.object_id for ref in spec.nested]) if spec.nested else (),
                spec.actor_id or b"",
                None if made is None else (made.max_restarts, made.max_task_retries, made.is_concurrent),
                crc32(payload[:_CHECKED_BYTES]) if payload else 0,
            )
        )
        if len(notes) == 1:
            self.on_note()

    def _number_of(self, template: FunctionTemplate) -> int:
        number = self._templates.get(template)
        if number is None:
            number = self._templates[template] = len(self._templates)
            self.note("template", number, template.name, template_words(template))
        self._last_template, self._last_number = template, number
        return number

    def _note_dropped(self, event: RefsDropped) -> None:
        execution = self.execution
        self.note("drop", self.host.now_ns(), execution.task_id, execution.attempt, event.object_ids)

    def _note_came(self, event: TaskPushed) -> None:
        self.note("came", self.host.now_ns(), ((event.spec.task_id, event.attempt),))

    def _note_several_came(self, event: TasksPushed) -> None:
        self.note("came", self.host.now_ns(), tuple([call[:2] for call in event.calls]))

    def _note_here(self, kind: str, *rest: Any) -> None:
        """Note what the execution in hand asks for."""
        execution = self.execution
        self.note(kind, self.host.now_ns(), execution.task_id, execution.attempt, *rest)

    def _note_item(self, event: ItemMade) -> None:
        result = event.result
        nested = tuple([ref.object_id for ref in result.nested])
        error = "" if event.error is None else str(event.error.kind)
        stored_ns, self._stored_ns = self._stored_ns, 0
        self.note(
            "item",
            self.host.now_ns(),
            event.task_id,
            event.attempt,
            result.object_id,
            result.size_bytes,
            nested,
            stored_ns,
            error,
        )

    def _note_taken(self, event: ItemTaken) -> None:
        self._note_here("take", event.task_id)

    def _note_kill(self, event: ActorKillAsked) -> None:
        self._note_here("kill", event.actor_id, event.no_restart)

    def _note_cancel(self, event: CancelAsked) -> None:
        self._note_here("cancel", event.ref.object_id, event.force, event.recursive)

    def _note_group(self, event: PlacementGroupAsked) -> None:
        self._note_here("group", event.spec.group_id, group_words(event.spec))

    def _note_removal(self, event: PlacementGroupRemovalAsked) -> None:
        self._note_here("ungroup", event.group_id)

    def write_to_store(
        self,
        object_id: ObjectID,
        serialized: Serialized,
        owner: Address,
        *,
        remakeable: bool,
        is_argument: bool = False,
        remake_ns: int = 0,
    ) -> None:
        began_ns = self.host.now_ns()
        super().write_to_store(
            object_id, serialized, owner, remakeable=remakeable, is_argument=is_argument, remake_ns=remake_ns
        )
        self._stored_ns += self.host.now_ns() - began_ns

    def get(self, refs: Sequence[Ref], timeout_ns: int | None) -> list[Any]:
        began_ns, execution = self.host.now_ns(), self.execution
        delay_ns = self._delay_ns(began_ns) if self._is_driver else 0
        try:
            return super().get(refs, timeout_ns)
        finally:
            ids = tuple([ref.object_id for ref in refs])
            ended_ns = self.host.now_ns()
            if self._is_driver:
                self._delay_ns(ended_ns)
            self.note("get", began_ns, ended_ns, execution.task_id, execution.attempt, ids, delay_ns)

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> frozenset[ObjectID]:
        began_ns, execution = self.host.now_ns(), self.execution
        delay_ns = self._delay_ns(began_ns) if self._is_driver else 0
        ready = super().wait(refs, num_returns=num_returns, timeout_ns=timeout_ns, fetch_local=fetch_local)
        ended_ns = self.host.now_ns()
        if self._is_driver:
            self._delay_ns(ended_ns)
        self.note(
            "wait",
            began_ns,
            ended_ns,
            execution.task_id,
            execution.attempt,
            tuple([ref.object_id for ref in refs]),
            delay_ns,
            num_returns,
            NO_TIMEOUT if timeout_ns is None else timeout_ns,
            tuple([ref.object_id for ref in refs if ref.object_id in ready]),
            fetch_local,
        )
        return ready

    def _delay_ns(self, now_ns: int) -> int:
        """How long the driver was ready to run, and no core was free, since this was last asked; asked soon again, it
        looks at it the next time."""
        if self._usage is None or now_ns - self._usage_at_ns < _DRIVER_USAGE_NS:
            return 0
        self._usage_at_ns = now_ns
        delayed_ns = self._usage()[1]
        delay_ns, self._delay_before_ns = delayed_ns - self._delay_before_ns, delayed_ns
        return delay_ns

    def _put(self, serialized: Serialized, *, is_argument: bool = False) -> Ref:
        began_ns, execution = self.host.now_ns(), self.execution
        ref = super()._put(serialized, is_argument=is_argument)
        self._stored_ns = 0  # of what a task returns, or a generator makes
        nested = tuple([inner.object_id for inner in serialized.refs])
        self.note(
            "put",
            began_ns,
            self.host.now_ns(),
            execution.task_id,
            execution.attempt,
            ref.object_id,
            serialized.size_bytes,
            nested,
        )
        return ref

    def _note_retry(self, command: NoteRetry) -> None:
        self.note("retry", self.host.now_ns(), command.task_id, command.attempt, command.reason)
        super()._note_retry(command)

    def begin_task(self, now_ns: int) -> None:
        """A task begins."""
        self._started_ns = self.called_ns = now_ns
        self.returned_ns = self._stored_ns = 0
        if self._usage is not None and now_ns - self._usage_at_ns >= USAGE_NS:
            self._usage_at_ns = now_ns
            self._cpu_before_ns, self._delay_before_ns = self._usage()
            self._peak_bytes()

    @property
    def may_run_ahead(self) -> bool:
        return False  # when the code of a task returns is noted

    def report_ran(self, ran: TaskRan, duration_ns: int, *, is_alone: bool = False) -> None:
        results = ran.results
        self._note_run(
            ran.task_id,
            ran.attempt,
            "" if ran.error is None else str(ran.error.kind),
            tuple([result.size_bytes for result in results]),
            tuple([ref.object_id for result in results for ref in result.nested]),
        )
        super().report_ran(ran, duration_ns, is_alone=is_alone)

    def report_small(self, task: RunTask | TaskPushed, size_bytes: int, duration_ns: int) -> None:
        becomes_ran = bool(task.spec.deps) or self._contexts is not None
        if not becomes_ran and (self._folded is not None or not self.machine.unacknowledged):
            self._note_run(task.spec.task_id, task.attempt, "", (size_bytes,), ())
        super().report_small(task, size_bytes, duration_ns)  # in all other cases this calls `report_ran`

    def _note_run(
        self, task: TaskID, attempt: int, error: str, sizes: tuple[int, ...], nested: tuple[ObjectID, ...]
    ) -> None:
        """An attempt has ended: note it, and what this process has used, if that is due."""
        ended_ns = self._now_ns()
        self.notes.append(
            (
                "run",
                task,
                attempt,
                self._started_ns,
                self.called_ns,
                self.returned_ns or ended_ns,
                ended_ns,
                self._stored_ns,
                error,
                sizes,
                nested,
            )
        )
        if len(self.notes) == 1:
            self.on_note()
        if self._usage is not None and ended_ns - self._usage_at_ns >= USAGE_NS:
            cpu_ns, delay_ns = self._usage()
            used_ns, delayed_ns = cpu_ns - self._cpu_before_ns, delay_ns - self._delay_before_ns
            self.note("usage", self._usage_at_ns, ended_ns, used_ns, delayed_ns, self._peak_bytes())
            self._usage_at_ns, self._cpu_before_ns, self._delay_before_ns = ended_ns, cpu_ns, delay_ns

    # ---- What becomes of it ----------------------------------------------------------------------------------

    def take(self) -> bytes:
        """The notes since the last time, as a msgpack array of them. Any thread."""
        notes = self.notes
        return pack([notes.popleft() for _ in range(len(notes))])


def template_words(template: FunctionTemplate) -> str:
    """A template as JSON: what a call demands, how often it is tried, and where it may run."""
    strategy = template.strategy
    words: dict[str, Any] = {
        "function": template.function_id.hex(),
        "resources": template.resources.as_floats(),
        "placement": template.placement.as_floats(),
        "num_returns": template.num_returns,
        "max_retries": template.max_retries,
        "retry_exceptions": template.retry_exceptions,
        "strategy": str(strategy.kind),
    }
    if strategy.node is not None:
        words |= {"node": strategy.node, "soft": strategy.soft}
    if strategy.labels or strategy.preferred:
        words["labels"] = [str(term) for term in (*strategy.labels, *strategy.preferred)]
    if strategy.group is not None:
        words |= {"group": strategy.group.hex(), "bundle": strategy.bundle, "captures": strategy.captures}
    if template.streaming is not Streaming.NO:
        words |= {"streaming": str(template.streaming), "items_ahead_max": template.items_ahead_max}
    if template.max_calls:
        words["max_calls"] = template.max_calls
    if template.runtime_env:  # its text may hold what is nobody's business: two are the same, or are not
        words["runtime_env"] = blake2b(template.runtime_env.encode(), digest_size=8).hexdigest()
    return json.dumps(words, sort_keys=True)


def group_words(spec: PlacementGroupSpec) -> str:
    """A placement group as JSON: what it reserves, and how its bundles lie."""
    words = {
        "bundles": [bundle.as_floats() for bundle in spec.bundles],
        "strategy": str(spec.strategy),
        "is_detached": spec.is_detached,
        "labels": [str(term) for terms in spec.selectors for term in terms],
    }
    return json.dumps(words, sort_keys=True)
