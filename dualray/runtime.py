"""The seam between the verbs and a mode: what `dualray.get` and the handles talk to.

`init` makes a Runtime and sets it as current; every worker of either mode has one of its own while it runs user code.
The current runtime is the one ambient thing in dualray. In sim mode it is switched with the fiber that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from dualray.exceptions import DualrayError, NotInitializedError
from dualray.shared.core.execution import Execution
from dualray.shared.core.host import ProcessKey
from dualray.shared.model.ids import Address, FunctionID, NodeID, ObjectID, PlacementGroupID
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import (
    ActorSpec,
    FunctionTemplate,
    GroupStrategy,
    LabelTerm,
    NamedActor,
    NodeState,
    Ref,
)
from dualray.shared.proof.trace import TraceEvent


class Awaited(Protocol):
    """A value that somebody waits for without blocking; see dualray/shared/core/core_worker.py."""

    @property
    def is_ready(self) -> bool: ...

    def result(self) -> Any: ...

    def abandon(self) -> None: ...


class Verbs(Protocol):
    """What a process that runs user code can do; see dualray/shared/core/core_worker.py."""

    address: Address
    node: NodeID
    is_closed: bool
    runtime_env: str

    @property
    def execution(self) -> Execution: ...

    @property
    def key(self) -> ProcessKey: ...

    def export(
        self,
        target: Any,
        *,
        duration: Any,
        what: str,
        collect: Callable[[Sequence[Ref]], Any] | None = None,
        retried: tuple[type[BaseException], ...] | None = None,
        sim_unsafe: str | None = None,
    ) -> FunctionID: ...

    def submit_task(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Ref]: ...

    def submit_call(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ref: ...

    def submit_actor_call(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Ref: ...

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

    @property
    def namespace(self) -> str: ...

    def load_class(self, function: FunctionID) -> Any: ...

    def check_pending_calls(self, handle: Ref, template: FunctionTemplate, limit: int) -> None: ...

    def submit_actor_task(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Ref]: ...

    def put(self, value: Any) -> Ref: ...

    @property
    def actor_instance(self) -> Any: ...

    def promise(self) -> Ref: ...

    def keep_promise(self, ref: Ref, value: Any) -> None: ...

    def is_held_elsewhere(self, ref: Ref) -> bool: ...

    def spawn(self, function: Callable[[], object]) -> None: ...

    @property
    def ip_address(self) -> str: ...

    def get(self, refs: Sequence[Ref], timeout_ns: int | None) -> list[Any]: ...

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> frozenset[ObjectID]: ...

    def get_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited: ...

    def take_item(self, item: Ref) -> tuple[bool, Ref | None]: ...

    def has_ended_before(self, item: Ref) -> bool: ...

    def wait_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited: ...

    def adopt(self, ref: Ref) -> None: ...

    def drop(self, object_id: ObjectID) -> None: ...

    def cluster_state(self) -> tuple[NodeState, ...]: ...

    def explain(self, ref: Ref) -> str: ...

    def rows_of(
        self, addresses: Sequence[Address], table: str, timeout_ns: int
    ) -> dict[Address, list[dict[str, Any]] | None]: ...

    def head_rows(self, table: str) -> list[dict[str, Any]]: ...

    def read_table(self, table: str) -> dict[str, dict[str, str]]: ...

    def create_placement_group(
        self,
        *,
        bundles: Sequence[Resources],
        strategy: GroupStrategy,
        name: str,
        is_detached: bool,
        selectors: tuple[tuple[LabelTerm, ...], ...],
    ) -> PlacementGroupID: ...

    def remove_placement_group(self, group_id: PlacementGroupID) -> None: ...

    def cancel(self, ref: Ref, *, force: bool, recursive: bool) -> None: ...

    def kill_actor(self, handle: Ref, *, no_restart: bool) -> None: ...


class Runtime(Protocol):
    """One mode, as one process sees it."""

    @property
    def mode(self) -> str:
        """`real` or `sim`: for people; nothing below `init` branches on it."""

    @property
    def owns_interpreter(self) -> bool:
        """Whether the interpreter, with its environment variables and its threads, is this process's own. Virtual
        processes share one, and wait on its main thread alone."""

    @property
    def verbs(self) -> Verbs:
        """What this process can do."""

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """What this node's GPUs are called, in the order in which the core counts them."""

    def addresses(self) -> dict[str, str]:
        """Where things are: `node_ip_address` of the node that this process is on, and for people
        `control_plane_address`, `object_store_address` and `local_scheduler_address`."""

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        """A table of the control plane: its records, each a few texts by name. What other processes have written in the
        last moments may be missing."""

    def write_row(self, table: str, key: str, fields: Mapping[str, str]) -> None:
        """A record for a table of the control plane; it is there soon."""

    def read_functions(self) -> dict[FunctionID, bytes]:
        """The function table: pickled functions and classes."""

    def trace_source(self) -> Path | Sequence[TraceEvent]:
        """The directory into which this run's traces are written, or what has happened so far, in order of time.

        Raises:
            DualrayError: nothing is recorded, or this process is not the driver.
        """

    def silence(self) -> None:
        """From now on this process tells nobody of errors that nobody reads."""

    def shutdown(self) -> None:
        """End what `init` started; in a worker, nothing."""


class _Ambient:
    """Holds the current runtime of this process."""

    __slots__ = ("runtime",)

    def __init__(self) -> None:
        self.runtime: Runtime | None = None


_ambient: Final = _Ambient()


def set_current(runtime: Runtime | None) -> Runtime | None:
    """Make a runtime current; the one that was."""
    previous, _ambient.runtime = _ambient.runtime, runtime
    return previous


def current_or_none() -> Runtime | None:
    """The current runtime, if there is one."""
    return _ambient.runtime


def current(verb: str) -> Runtime:
    """The current runtime.

    Raises:
        NotInitializedError: `init` has not been called; the message names the verb that needed it.
    """
    runtime = _ambient.runtime
    if runtime is None:
        raise NotInitializedError(f"{verb} was called before dualray.init(). Call dualray.init() first.")
    return runtime


def only_in_the_driver(verb: str) -> DualrayError:
    """What a worker, which knows its own part alone, raises."""
    return DualrayError(f"{verb} is for the program that called dualray.init(), and was called in a task or an actor.")
