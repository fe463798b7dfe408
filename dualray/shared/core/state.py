"""The state of a core worker, and what it asks of its host at every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualray.shared.core.execution import Execution, ExecutionContext
from dualray.shared.core.host import Host, Signal
from dualray.shared.core.view_sites import ViewSites
from dualray.shared.handles import ProcessKey
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.machines.owner.remake_costs import RemakeCosts
from dualray.shared.model.commands import RunTask, WriteRecord
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import ClusterChanged, Event, Outcome, TaskPushed
from dualray.shared.model.ids import Address, ChildIds, FunctionID, NodeID, ObjectID, TaskID, WaitID
from dualray.shared.model.specs import FunctionTemplate, NodeInfo
from dualray.shared.proof.trace import TraceKind


@dataclass(slots=True)
class PendingWait:
    signal: Signal
    is_read: bool = False
    """Whether what is ready is pinned until it has been read."""
    ready: tuple[ObjectID, ...] = ()
    error: ErrorInfo | None = None
    is_done: bool = False


class CoreState:
    """What every part of a core worker works on. Nothing here changes a task or a value."""

    task_began_ns: int = 0
    """When the plain task in hand began."""
    remake_costs: RemakeCosts | None = None
    """Of a process that has stored results of tasks."""
    holder: Any = None
    """What references of this process name as their holder; it is closed with the core."""
    _performers: dict[type[Any], Callable[[Any], object]] | None = None
    """How the less frequent commands are carried out; made when there is one."""
    _threads_max: dict[str, int] | None = None
    """Of an actor that runs several methods at a time: how many, by concurrency group."""

    def __init__(
        self,
        *,
        address: Address,
        node: NodeID,
        config: Config,
        host: Host,
        root: TaskID,
        is_driver: bool,
        is_folded: bool = False,
    ) -> None:
        self.address = address
        self.node = node
        self.config = config
        self.host = host
        self.is_traced, self.is_logged, self.kept_times = host.is_traced, host.is_logged, host.new_times()
        self._folded = PlainWorker(address=address, node=node, config=config) if is_folded else None
        """In place of the owner machine, until more than plain tasks is asked of it: see plain_worker.py."""
        self._owner = None if is_folded else Owner(address=address, node=node, config=config, is_driver=is_driver)
        self._execution = Execution(task_id=root, is_task=not is_driver)
        self._key: ProcessKey | None = None
        self.has_notes = False
        """Whether a subclass notes what events go through `_handle`."""
        self._children: ChildIds | None = None
        """What the task that submitted last derives the ids of its tasks with."""
        self._contexts: ExecutionContext | None = None
        """Of an actor of which several methods may run at a time."""
        self.runtime_env = ""
        """What tasks that are submitted here run with, as text, unless they say: in a worker, what it runs with."""
        self.payloads: dict[bytes, bytes] = {}
        self.is_closed = False
        self._has_ended = False
        self.end_reason, self.view_sites = "the runtime was shut down", ViewSites()
        self._waits: dict[WaitID, PendingWait] = {}
        self._wait_counter = itertools.count()
        self._exported: dict[FunctionID, str] = {}  # with the full names
        self._feasible: dict[FunctionTemplate, tuple[tuple[NodeInfo, ...], str]] = {}
        self._feasible_in: tuple[NodeInfo, ...] = ()
        self._feasible_last: FunctionTemplate | None = None
        self._dropped: list[ObjectID] = []
        self._released: list[ObjectID] = []
        self._to_run: list[RunTask | TaskPushed] = []
        """Mostly one, and never many: a list takes a tenth of the room of a deque, and workers may be many."""
        self._is_woken = False
        """Whether the host was asked for a step since finalizers were last taken in."""
        self._ran: list[Outcome] = []
        """What tasks have returned that were handed over with others, until it is taken in."""
        self.current_task: RunTask | TaskPushed | None = None
        """The task that was taken to run, until its user code has ended."""
        self.is_in_user_code = False
        self.interrupted: tuple[TaskID, int] | None = None
        """The task and attempt that was last to be interrupted."""
        self.is_interrupt_due = False
        """Whether it has still to hear of it."""
        self._may_block_a_loop = False
        """Whether this is an actor whose methods are coroutines."""
        self._has_warned = False
        """Whether a coroutine was told that it blocks its loop."""
        self._cancelled_calls: dict[TaskID, int] | None = None
        """Methods that run as coroutines and were cancelled, with their attempt."""

    @property
    def key(self) -> ProcessKey:
        """What stands for this process where something is kept for each, weakly."""
        if self._key is None:
            self._key = ProcessKey()
        return self._key

    @property
    def machine(self) -> Owner:
        """The owner machine, unfolded if it was not."""
        owner = self._owner
        if owner is None:
            assert self._folded is not None
            owner = self._owner = self._folded.unfold()
            self._folded = None
        return owner

    @property
    def is_folded(self) -> bool:
        """Whether nothing but plain tasks has come so far: there are no values, waits, tasks of its own, or leases."""
        return self._folded is not None

    def hear_of_cluster(self, news: ClusterChanged) -> None:
        """What it would have been told before anything else happened to it."""
        if self._folded is not None:
            self._folded.handle(news, 0)
        else:
            self.machine.cluster = news.nodes

    def check_invariants(self) -> None:
        """A full sweep over the machine."""
        if self._folded is not None:
            self._folded.check_invariants()
        else:
            self.machine.check_invariants()

    @property
    def execution(self) -> Execution:
        """The task that the caller runs, and always the same object for it."""
        return self._execution if self._contexts is None else self._contexts.here

    def enter(self, execution: Execution) -> None:
        """The caller runs a task from now on."""
        if self._contexts is None:
            self._execution = execution
        else:
            self._contexts.enter(execution)

    def close(self) -> None:
        """The cluster is gone: references of this process mean nothing any more."""
        self.is_closed = True
        if self.holder is not None:
            self.holder.is_closed = True

    # ---- What every call asks of the host ------------------------------------------------------------------

    def now_ns(self) -> int:
        """The host's."""
        return self.host.now_ns()

    def begin_step(self) -> None:
        """Take the host's lock."""
        self.host.lock.__enter__()

    def leave_step(self) -> None:
        """Give it back."""
        self.host.lock.__exit__(None, None, None)

    def end_step(self) -> None:
        """What was sent may go out."""
        self.host.end_step()

    def send_out(
        self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]], urgent: bool = True
    ) -> None:
        """The host's `send`."""
        self.host.send(to, message, payloads, urgent=urgent)

    def yield_point(self) -> None:
        """The host's."""
        self.host.yield_point()

    def trace(
        self, kind: TraceKind, about: str | bytes, other: str, name: str, amount: int, deps: tuple[str, ...] = ()
    ) -> None:
        """The host's."""
        self.host.trace(kind, about, other=other, name=name, amount=amount, deps=deps)

    def write_record(self, record: WriteRecord) -> None:
        """The host's."""
        self.host.write_record(record)

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """The host's."""
        return self.host.call(function, args, kwargs, task)

    def ends_later(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> bool:
        """Whether the time of the task in hand, whose code has returned, is not over; `end_small` is called then."""
        if not self.host.is_ahead:
            return False
        self.host.end_later(task, size_bytes, start_ns)
        return True

    def spawn(self, function: Callable[[], object]) -> None:
        """Run `function` beside the caller, in this process: on a thread, or in a fiber."""
        self.host.spawn(function)

    def place_of(self, node: NodeID) -> tuple[str, str]:
        """The IP address and the host name of a node's machine, as the other nodes know it."""
        return self.host.place_of(node)

    def read_table(self, table: str) -> dict[str, dict[str, str]]:
        """The rows of one of the control plane's tables, by key."""
        return self.host.read_table(table)
