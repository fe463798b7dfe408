"""The interface below the core worker, which each mode provides to a process that runs user code.

There is one class for each mode: dualray/real/processes/process.py and dualray/sim/processes/worker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dualray.shared.core.execution import Execution
from dualray.shared.core.task_times import TaskTimes
from dualray.shared.machines.state_rows import Row
from dualray.shared.model.commands import Command, RunTask, WriteRecord, WriteRecords
from dualray.shared.model.events import Event, TaskPushed
from dualray.shared.model.ids import Address, FunctionID, NodeID, TaskID
from dualray.shared.model.specs import Ref
from dualray.shared.proof.trace import TraceKind


class Signal(Protocol):
    """Something that one thread or fiber waits for."""

    def wait(self) -> object: ...

    def set(self) -> None: ...


class LocalStore(Protocol):
    """The bytes of this node's object store."""

    def create(self, object_id: bytes, size: int, *, is_sparse: bool = False) -> memoryview:
        """Memory to write an object into; `is_sparse`: only a small part of it will be written."""

    def seal(self, object_id: bytes) -> None: ...

    def open(self, object_id: bytes, on_release: Callable[[bytes], None]) -> memoryview: ...

    def create_at(self, place: int, size: int) -> memoryview:
        """As `create`, in room that this process keeps."""

    def open_at(self, place: int, size: int, object_id: bytes, on_release: Callable[[bytes], None]) -> memoryview:
        """As `open`, of an object that lies in room that another process keeps and has lent."""

    def copy(self, target: memoryview, source: memoryview) -> None:
        """Copy the bytes of something large into a part of the store; other threads run meanwhile."""


class Tables(Protocol):
    """The control plane's tables, as a process that runs user code reads and writes them."""

    def write_record(self, record: WriteRecord) -> None: ...

    def write_records(self, records: WriteRecords) -> None: ...

    def settle_records(self) -> None:
        """Wait a moment until what was written can be read; it waits no longer when the control plane is slow."""

    def read_table(self, table: str) -> dict[str, dict[str, str]]:
        """The rows of one of the control plane's tables, by key; those that were written last may be missing."""

    def put_function(self, function: FunctionID, pickled: bytes) -> None: ...

    def load_function(self, function: FunctionID) -> Any:
        """Return a copy of a function of the function table, unpickled for this process."""


class Host(Tables, Protocol):
    """What a mode provides to a process that runs user code."""

    @property
    def lock(self) -> AbstractContextManager[Any, bool | None]: ...

    @property
    def store(self) -> LocalStore: ...

    @property
    def is_traced(self) -> bool:
        """Whether `trace` is of any use."""

    @property
    def is_logged(self) -> bool:
        """Whether `log` is of any use."""

    def new_times(self) -> TaskTimes | None:
        """Where this process is to keep when its tasks ran; None: `all_task_times` has the times."""

    def epoch_ns(self) -> int:
        """The time of day at which `now_ns` is 0, in ns since 1970."""

    def all_task_times(self) -> Sequence[Row] | None:
        """The times of all tasks of the cluster (task_times.py), as far as this process has them without asking."""

    def yield_point(self) -> None:
        """User code goes on without waiting: news may be taken in, if some has come."""

    def on_empty_poll(self) -> None:
        """User code has looked whether something is there, has not waited, and it was not."""

    def now_ns(self) -> int: ...

    def send(
        self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]], *, urgent: bool = True
    ) -> None: ...

    def end_step(self) -> None:
        """A step of the core worker has ended: what it has sent may go out."""

    def arm_timer(self, timer: str, delay_ns: int) -> None: ...

    def cancel_timer(self, timer: str) -> None: ...

    def tasks_came(self) -> None:
        """There are tasks to run: have `CoreWorker.execute` called, where user code runs, with each that
        `CoreWorker.next_task` gives, one at a time."""

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """Call user code, in the environment and, in sim mode, at the cost of the task."""

    @property
    def is_ahead(self) -> bool:
        """Whether the code of the task in hand has returned, and its time is not over: `end_later` is to be told."""

    def end_later(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> None:
        """Have `CoreWorker.end_small` called when the time of the task is over."""

    def take_environment(self, text: str) -> None:
        """This process runs with a runtime environment from now on (dualray/runtime_env.py); it has had none.

        Raises:
            RuntimeEnvSetupError: a directory of it is not on this node.
        """

    def iterate(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """What a generator that is the user's gives, to be iterated over: as `call`; in sim mode each item at the cost
        of the task."""

    async def until_ready(self, ref: Ref) -> None:
        """On the event loop of an actor: await an object, and do not read it."""

    async def call_async(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """`call`, on the event loop of an actor: what can be awaited is awaited.

        Raises:
            TaskCancelledError: the coroutine was cancelled, by `cancel_on_loop` or by code of its own.
        """

    def start_beside(self, task: RunTask, threads_max: int) -> None:
        """Have `CoreWorker.execute` called with a method of an actor, beside those that run: in a fiber, or on one of
        the threads of its concurrency group, of which there are at most so many. They begin in the order in which this
        is called."""

    def start_on_loop(self, task: RunTask) -> None:
        """Have `CoreWorker.execute_async` called with a method of an actor, on the event loop of its concurrency group;
        in the order in which this is called. The constructor runs on the loop of no group."""

    @property
    def is_on_loop(self) -> bool:
        """Whether the caller runs on an event loop, which stands still while it waits. Only asked in such actors."""

    def cancel_on_loop(self, task: TaskID) -> None:
        """Cancel the coroutine of a method that `start_on_loop` was given, once it has begun. Must not wait."""

    def interrupt(self) -> None:
        """Where user code runs that `CoreWorker.takes_interrupt` is true of, raise KeyboardInterrupt soon, and nowhere
        else. Must not wait."""

    def new_signal(self) -> Signal: ...

    def spawn(self, function: Callable[[], object]) -> None:
        """Run it beside the caller: it may wait, and ends with the process at the latest."""

    def collect_garbage(self) -> None:
        """Have Python's collector run, where finalizers of user code may run too. Must not wait."""

    def place_of(self, node: NodeID) -> tuple[str, str]:
        """The IP address and the host name of a node's machine, as the other nodes know it."""

    def pids(self) -> Mapping[str, int]:
        """The pids of this process and of the workers of the cluster, by address, as far as this machine knows them."""

    def log(self, event: Event, now_ns: int, commands: Sequence[Command]) -> None: ...

    def trace(
        self,
        kind: TraceKind,
        about: str | bytes,
        *,
        other: str = "",
        name: str = "",
        amount: int = 0,
        deps: tuple[str, ...] = (),
    ) -> None: ...

    def tell(self, words: str) -> None:
        """Say something to whoever runs the program, once: an error that nobody has read. Must not wait."""

    def run_at_exit(self) -> None:
        """The process is about to end, and is not killed: call what user code has registered with `atexit`."""

    def is_of_process(self, exception: BaseException) -> bool:
        """Whether an exception in user code is no task's: this mode has raised it to end the process, or somebody has
        pressed Ctrl-C, which is for the driver."""

    def wake(self) -> None:
        """What finalizers and tasks have queued is to be taken in soon."""
