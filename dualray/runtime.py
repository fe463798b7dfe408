"""The seam between the user's verbs and an engine: what `dualray.get` and the handles talk to.

`UserVerbs` (user_verbs.py) is what the public API and the libraries use. `CoreVerbs` is what an engine on the core
worker provides (real and sim); dualray/core_verbs.py makes `UserVerbs` of it.

`init` makes a Runtime and sets it as current; every worker of either mode has one of its own while it runs user code.
The current runtime is the one ambient thing in dualray. In sim mode it is switched with the fiber that runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from dualray.exceptions import DualrayError, NotInitializedError
from dualray.progress_bars import BarState
from dualray.shared.core.execution import Execution
from dualray.shared.handles import ProcessKey
from dualray.shared.model.config import Config
from dualray.shared.model.ids import Address, FunctionID, NodeID, ObjectID, PlacementGroupID
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import (
    ActorSpec,
    FunctionTemplate,
    LabelTerm,
    NamedActor,
    NodeState,
    PlacementGroupSpec,
    Ref,
)
from dualray.shared.proof.trace import TraceEvent
from dualray.user_verbs import Awaited, UserVerbs

if TYPE_CHECKING:
    from dualray.shared.core.task_runner import Export

# ---- What an engine on the core worker provides ----------------------------------------------------------------------


class CoreVerbs(Protocol):
    """What a process of an engine on the core can do; see dualray/shared/core/core_worker.py. Real and sim mode have
    the core worker, classic's PYTHON_MODE runs everything in place."""

    address: Address
    config: Config
    node: NodeID
    is_closed: bool
    runtime_env: str
    holder: Any
    """What references of this process name as their holder: the UserVerbs."""

    @property
    def execution(self) -> Execution: ...

    @property
    def key(self) -> ProcessKey: ...

    @property
    def namespace(self) -> str: ...

    @property
    def actor_instance(self) -> Any: ...

    def captures_children(self) -> bool: ...
    def is_cancelled(self) -> bool: ...

    def place_of(self, node: NodeID) -> tuple[str, str]: ...

    def export(self, exported: Export, what: str) -> FunctionID: ...

    def submit_task(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Ref]: ...

    def submit_call(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ref: ...

    def submit_actor_call(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Ref: ...

    def submit_actor_task(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Ref]: ...

    def create_actor(
        self,
        template: FunctionTemplate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        promises: ActorSpec,
        get_if_exists: bool = False,
    ) -> tuple[Ref, NamedActor | None]: ...

    def find_actor(self, name: str, namespace: str) -> NamedActor: ...

    def load_class(self, function: FunctionID) -> Any: ...

    def check_pending_calls(self, handle: Ref, template: FunctionTemplate, limit: int) -> None: ...

    def put(self, value: Any) -> Ref: ...

    def promise(self) -> Ref: ...

    def keep_promise(self, ref: Ref, value: Any) -> None: ...

    def is_held_elsewhere(self, ref: Ref) -> bool: ...

    def find(self, object_id: bytes) -> Ref | None: ...

    def spawn(self, function: Callable[[], object]) -> None: ...

    def get(self, refs: Sequence[Ref], timeout_ns: int | None) -> list[Any]: ...

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> frozenset[ObjectID]: ...

    def get_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited: ...

    def wait_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited: ...

    def take_item(self, item: Ref) -> tuple[bool, Ref | None]: ...

    def has_ended_before(self, item: Ref) -> bool: ...

    def adopt(self, ref: Ref) -> None: ...

    def drop(self, object_id: ObjectID) -> None: ...

    def cluster_state(self) -> tuple[NodeState, ...]: ...

    def explain(self, ref: Ref) -> str: ...

    def waiting(self) -> list[str]: ...

    def rows_of(
        self, addresses: Sequence[Address], table: str, timeout_ns: int
    ) -> dict[Address, list[dict[str, Any]] | None]: ...

    def task_times(self, addresses: Sequence[Address], timeout_ns: int) -> tuple[list[dict[str, Any]], list[str]]: ...

    def head_rows(self, table: str) -> list[dict[str, Any]]: ...

    def pids(self) -> Mapping[str, int]: ...

    def read_table(self, table: str) -> dict[str, dict[str, str]]: ...

    def create_placement_group(self, spec: PlacementGroupSpec) -> PlacementGroupID: ...

    def remove_placement_group(self, group_id: PlacementGroupID) -> None: ...

    def request_resources(self, demands: Mapping[tuple[Resources, tuple[LabelTerm, ...]], int]) -> None: ...

    def cancel(self, ref: Ref, *, force: bool, recursive: bool) -> None: ...

    def kill_actor(self, handle: Ref, *, no_restart: bool) -> None: ...


# ---- An engine -------------------------------------------------------------------------------------------------------


class LogReader(Protocol):
    """The log files of an engine on this machine; see `dualray.util.state.list_logs` and `get_log`."""

    def names(self, verb: str, node_id: str | None, pattern: str, directory: Path | None) -> dict[str, list[str]]: ...

    def read(
        self,
        verb: str,
        *,
        node_id: str | None,
        directory: Path | None,
        filename: str | None,
        actor_id: str | None,
        task_id: str | None,
        pid: int | None,
        attempt: int | None,
        stream: str,
        tail: int,
        follow: bool,
    ) -> Iterator[bytes]: ...


class Runtime(Protocol):
    """One engine, as one process sees it."""

    @property
    def mode(self) -> str:
        """`real`, `sim` or `ray`: for people; nothing below or above `init` branches on it."""

    @property
    def owns_interpreter(self) -> bool:
        """Whether the interpreter, with its environment variables and its threads, is this process's own."""

    @property
    def threads_may_wait(self) -> bool:
        """Whether any thread of the interpreter may wait for values, one of a library's too."""

    @property
    def models_calls(self) -> bool:
        """Whether a call with `execute=False` is modelled here; else its function runs like any other."""

    @property
    def verbs(self) -> UserVerbs:
        """What this process can do."""

    @property
    def device_names(self) -> Mapping[str, Sequence[str]]:
        """The names of this node's GPUs and other accelerators, by the kind, in the order of their numbers."""

    @property
    def logs(self) -> LogReader:
        """The log files of this cluster on this machine.

        Raises:
            DualrayError: it has none.
        """

    def free_port(self) -> int:
        """A port of this node at which nobody listens now. Another process may take it before it is used."""

    def addresses(self) -> dict[str, str]:
        """Where things are: `node_ip_address` of the node that this process is on, and for people
        `control_plane_address`, `object_store_address`, `local_scheduler_address` and `session_dir` (or "")."""

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        """A table of the control plane: its records, each a few texts by name. What other processes have written in the
        last moments may be missing."""

    def write_row(self, table: str, key: str, fields: Mapping[str, str]) -> None:
        """A record for a table of the control plane; it is there soon."""

    def read_functions(self) -> dict[FunctionID, bytes]:
        """The function table: pickled functions and classes."""

    def trace_source(self) -> Path | Sequence[TraceEvent] | None:
        """The directory into which this run's traces are written, or what has happened so far, in order of time; None:
        nothing is recorded.

        Raises:
            DualrayError: this process is not the driver.
        """

    def show_bar(self, state: BarState) -> None:
        """Have the driver draw a progress bar of this process, or its new state."""

    def silence(self) -> None:
        """From now on this process tells nobody of errors that nobody reads."""

    def shutdown(self) -> None:
        """End what `init` started; in a worker, nothing."""

    def end_in_fork(self) -> bool:
        """This process was forked from the runtime's process. Return whether the runtime cannot be used here."""


class Engine(Protocol):
    """One mode, before it is started: the module `runtime` of its package."""

    def start(self, settings: Mapping[str, Any], config: Any) -> Runtime:
        """Make a cluster, or join one; see `dualray.init`."""

    def total_of(
        self,
        num_cpus: float | None,
        num_gpus: float | None,
        resources: Mapping[str, float] | None,
        memory: float | str | None,
    ) -> tuple[Resources, Mapping[str, Sequence[str]]]:
        """Real mode's: what a node of this machine has, and the names of its accelerators.

        Raises:
            ValueError: resources that are wrong; more accelerators than there are.
        """

    def logs_of_this_machine(self) -> LogReader:
        """Real mode's: the log files of the cluster that runs here, and logs that were kept."""


def engine(mode: str) -> Engine:
    """The engine of a mode: "real", "sim" or "ray". Nothing else in dualray chooses one."""
    return cast(Engine, import_module(f"dualray.{'on_ray' if mode == 'ray' else mode}.runtime"))


class _Ambient:
    """Holds the current runtime of this process."""

    __slots__ = ("is_fork", "runtime")

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.is_fork = False
        """This process was forked from one that had a runtime."""


ambient: Final = _Ambient()
"""What verbs on the hottest paths look into themselves; others call `current`."""


def set_current(runtime: Runtime | None) -> Runtime | None:
    """Make a runtime current; the one that was."""
    previous, ambient.runtime = ambient.runtime, runtime
    return previous


def current_or_none() -> Runtime | None:
    """The current runtime, if there is one."""
    return ambient.runtime


def current(verb: str) -> Runtime:
    """The current runtime.

    Raises:
        NotInitializedError: `init` has not been called; the message names the verb that needed it.
    """
    runtime = ambient.runtime
    if runtime is None:
        check_no_fork(verb)
        raise NotInitializedError(f"{verb} was called before dualray.init(). Call dualray.init() first.")
    return runtime


def check_no_fork(verb: str) -> None:
    """That this process may start a cluster by its first verb.

    Raises:
        NotInitializedError: it was forked from a process that uses a cluster.
    """
    if ambient.is_fork:
        raise NotInitializedError(
            f"{verb} was called in a forked process. A forked process cannot use the cluster of its parent. Start "
            "the process with multiprocessing.get_context('spawn')."
        )


def _on_fork() -> None:
    """In the child: threads and sockets of the runtime are its parent's."""
    runtime = ambient.runtime
    if runtime is not None and runtime.end_in_fork():
        ambient.runtime, ambient.is_fork = None, True


os.register_at_fork(after_in_child=_on_fork)


def only_in_the_driver(verb: str) -> DualrayError:
    """What a worker, which knows its own part alone, raises."""
    return DualrayError(f"{verb} is only for the program that called dualray.init(); a task or an actor called it.")
