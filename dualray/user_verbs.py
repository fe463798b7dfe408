"""`UserVerbs`: what the public API and the libraries use of an engine.

References are opaque here, and no type of the core occurs: an engine with references of its own fits. real and sim have
theirs made of a core worker (core_verbs.py), ray has one of its own (on_ray/verbs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

from dualray.shared.handles import ProcessKey

if TYPE_CHECKING:
    from dualray.options import ActorOptions, MethodOptions, Returns, TaskOptions


class Reference(Protocol):
    """An engine's reference to one object. Handles hold it, compare its id, and give it back; they look at no more."""

    @property
    def object_id(self) -> bytes: ...


Prepared: TypeAlias = Any
"""A function, class or method with its options, as an engine submits it: made once, used for every call, opaque."""

Collect: TypeAlias = Callable[[Sequence[Any]], Any]
"""Makes what `get` returns of a dynamic generator, of the references to its items."""


Shipped: TypeAlias = MutableMapping[Any, dict[Any, Any]]
"""How a function or class was shipped before, for each process that did it. A remote function and the copies that its
`options` makes share it: a process pickles the function at its first call, whatever the options are."""


class Awaited(Protocol):
    """A value that is waited for without blocking."""

    @property
    def is_ready(self) -> bool: ...
    def result(self) -> Any: ...

    def abandon(self) -> None: ...


class ActorLimits(NamedTuple):
    """What a handle knows of its actor's options.

    max_task_retries: of a call whose worker dies; -1: without end.
    max_pending_calls: calls of one process without an answer; -1: any number.
    groups: the names of its concurrency groups.
    is_unordered: whether calls start as their arguments become ready.
    """

    max_task_retries: int
    max_pending_calls: int = -1
    groups: tuple[str, ...] = ()
    is_unordered: bool = False


class ActorInfo(NamedTuple):
    """What a handle to an actor is made of.

    reference: counted already, for the handle, unless `is_weak`.
    class_name, function: for people; what the engine calls the actor's class, which travels with the handle.
    limits: see ActorLimits.
    cls: the class, of an actor that somebody else has made; None: the caller has it.
    """

    reference: Reference
    class_name: str
    function: Any
    limits: ActorLimits
    cls: Any = None
    is_weak: bool = False


class ClassRequest(NamedTuple):
    """An actor's class that is to be shipped.

    Attributes:
        target: what workers call for an instance.
        name: for messages and traces.
        max_concurrency: how many of its methods may run at a time.
        is_async: whether it has methods that are coroutines.
        captured, collect, shipped: see TaskVerbs.prepare_function.
    """

    target: Any
    options: "ActorOptions"  # noqa: UP037 - compiled, the module would look for the class when it is imported
    name: str
    max_concurrency: int
    is_async: bool
    captured: bool
    collect: Collect
    shipped: Shipped | None = None


class GroupRequest(NamedTuple):
    """A placement group that is to be made. `selectors` has a label selector for each bundle, or is empty."""

    bundles: Sequence[Mapping[str, float]]
    strategy: str
    name: str
    is_detached: bool
    selectors: Sequence[Mapping[str, str]]


class NodeRow(NamedTuple):
    """One node, as the head sees it. Amounts are those of `num_cpus=` and its like, by name."""

    node_id: str
    is_alive: bool
    incarnation: int
    resources: dict[str, float]
    available: dict[str, float]
    labels: dict[str, str]
    ip_address: str
    hostname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The task, actor method or driver that asks. Ids are in hex; None: there is none."""

    job_id: str
    node_id: str
    worker_id: str
    task_id: str | None
    task_name: str | None
    function_name: Callable[[], str | None]
    """Says the function or method that runs, behind its module."""
    attempt: int
    actor_id: str | None
    actor_name: str | None
    """None outside an actor, "" in one without a name."""
    is_restarted: bool
    """Whether the actor that this runs in has been restarted."""
    is_cancelled: bool | None  # None: a coroutine, which is not asked
    placement_group_id: str | None
    captures_children: bool
    """Whether tasks and actors that are made here go to this placement group when they do not say where."""
    accelerators: Mapping[str, Sequence[str]]
    """The names of the devices that the task or actor holds, such as those in CUDA_VISIBLE_DEVICES, by the kind."""
    resources: dict[str, float]
    """What the task or actor holds, by name."""


class TaskVerbs(Protocol):
    """Functions and calls of them."""

    def prepare_function(
        self,
        target: Any,
        options: TaskOptions,
        returns: Returns,
        name: str,
        *,
        captured: bool,
        collect: Collect,
        shipped: Shipped | None = None,
    ) -> Prepared:
        """Ship a function and check its options against the cluster.

        Args:
            target: what workers call.
            options, returns: its options, and what a call returns by them.
            name: for messages and traces.
            captured: whether it goes to the caller's placement group unless it says where.
            collect: see Collect.
            shipped: how the function was shipped before; None: `target` is made anew each time.

        Raises:
            ValueError, TypeError: an option that the cluster cannot meet.
            SerializationError: the function cannot be pickled.
        """

    def captures_children(self) -> bool:
        """As CallContext.captures_children; asked at every call."""

    def submit(self, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Sequence[Reference]:
        """Submit a call of a function; references to its results, counted already. Of a streaming generator three: to
        its end, its first item, and its consumer."""

    def call(self, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Reference:
        """`submit` of a function that has one result: that."""

    def cancel(self, reference: Any, *, force: bool, recursive: bool) -> None:
        """End the task that makes an object.

        Raises:
            ValueError: `put` has made it; it is a method of an actor, and `force` would end the actor.
        """


class ActorVerbs(Protocol):
    """Actors and calls of their methods."""

    def prepare_class(self, request: ClassRequest) -> Prepared:
        """Ship an actor's class; as `prepare_function`."""

    def create_actor(self, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActorInfo:
        """Make an actor. With `get_if_exists`, and an actor of its name: that one, with `cls`.

        Raises:
            ActorAlreadyExistsError: the name is taken.
        """

    def find_actor(self, name: str, namespace: str | None) -> ActorInfo:
        """The actor of a name.

        Raises:
            ActorHandleNotFoundError: there is none.
        """

    def own_actor(self) -> ActorInfo | None:
        """The actor that this runs in; None outside of one."""

    def prepare_method(
        self, actor: ActorInfo, name: str, options: MethodOptions, returns: Returns, *, is_last: bool, collect: Collect
    ) -> Prepared:
        """A method of an actor, as `submit_method` takes it. `is_last`: the actor ends behind it; it is not retried.
        `collect` as in `prepare_function`."""

    def submit_method(
        self, actor: Any, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Sequence[Reference]:
        """As `submit`, of a method."""

    def call_method(
        self, actor: Any, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Reference:
        """As `call`, of a method."""

    def check_pending_calls(self, actor: Any, prepared: Prepared, limit: int) -> None:
        """Refuse a call of an actor of which this process has `limit` without an answer.

        Raises:
            PendingCallsLimitExceeded
        """

    def kill_actor(self, actor: Any, *, no_restart: bool) -> None:
        """End an actor now."""

    def exit_actor(self) -> NoReturn:
        """End the actor that this runs in.

        Raises:
            TypeError: outside of one.
        """


class ValueVerbs(Protocol):
    """Values, and the references to them."""

    def put(self, value: Any, /) -> Reference:
        """Store a value; a reference to it, counted already."""

    def get(self, references: Sequence[Any], timeout_ns: int | None, /) -> list[Any]:
        """The values, in order; None waits without end. Raises what `dualray.get` raises."""

    def wait(
        self, references: Sequence[Any], /, *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> Collection[bytes]:
        """Return the ids of the ready ones, as soon as `num_returns` are ready or the time has passed."""

    def get_async(self, reference: Any, ready: Callable[[], None]) -> Awaited:
        """Have `ready` called, from anywhere, when a value is there; `result()` then reads it."""

    def wait_async(self, reference: Any, ready: Callable[[], None]) -> Awaited:
        """The same, without reading it."""

    def take_item(self, item: Any) -> tuple[bool, Any]:
        """Take the next item of a generator, which is ready: whether the caller has it, and the reference to the one
        behind it; None: there are no more."""

    def has_ended_before(self, item: Any) -> bool:
        """Whether a generator has ended, and there will be no such item."""

    def promise(self) -> Any:
        """A reference to a value that this process gives later."""

    def keep_promise(self, reference: Any, value: Any) -> None:
        """Give it."""

    def is_held_elsewhere(self, reference: Any) -> bool:
        """Whether another process holds a reference, or is about to get it."""

    def explain(self, reference: Any) -> str:
        """In words, what a value waits for."""

    def waiting(self) -> list[str]:
        """In words, what this process waits for now."""

    def adopt(self, reference: Any, /) -> None:
        """Count one more reference to an object in this process."""

    def drop(self, object_id: Any, /) -> None:
        """Count one fewer. Called by finalizers, anywhere and at any time."""

    def pin(self, reference: Any, /) -> None:
        """Keep an object for as long as this process runs: somebody has pickled the reference.

        Raises:
            OufOfBandObjectRefSerializationException: RAY_allow_out_of_band_object_ref_serialization is 0 here.
        """

    def parts_of(self, reference: Any, /) -> tuple[Any, ...]:
        """What a pickle holds of a reference."""

    def find(self, object_id: bytes) -> Reference | None:
        """The reference to an object of which this process holds one, not counted; None: it holds none."""

    def revive(self, *parts: Any) -> Reference:
        """The reference of `parts_of`, counted in this process."""


class ClusterVerbs(Protocol):
    """Questions about the cluster, and placement groups."""

    def nodes(self) -> list[NodeRow]:
        """The nodes that the cluster has had."""

    def cluster_resources(self) -> dict[str, float]:
        """The resources of all nodes that are alive, by name."""

    def available_resources(self) -> dict[str, float]:
        """What of them is not leased now."""

    def head_rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table of the head: `placement_groups`, `named_actors`, `waits`.

        Raises:
            DualrayError: the head has not answered.
        """

    def state_rows(self, table: str, timeout_ns: int) -> tuple[list[dict[str, Any]], list[str]]:
        """The rows of a table of dualray.util.state, or of `object_locations`: objects with `did_spill`, or of
        `workers_ever`: workers, with those that have ended, or of `tasks_ever`: tasks, with their earlier attempts, or
        of `tasks_timed`: these with their times; and which processes have not answered in time."""

    def create_placement_group(self, request: GroupRequest) -> bytes:
        """Have the cluster reserve bundles; the group's id, of 16 bytes.

        Raises:
            PlacementGroupUnschedulableError: the cluster can never take it, or its name is taken.
        """

    def remove_placement_group(self, group_id: bytes) -> None:
        """Give back what a group has reserved, and end what runs in it."""

    def request_resources(
        self, *, bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]
    ) -> None:
        """Have the cluster be large enough for these bundles, in place of those that this job wanted before.

        Raises:
            ValueError, TypeError: an amount that is none; more kinds of bundles than a cluster takes.
        """

    def spawn(self, function: Callable[[], object]) -> None:
        """Run it beside the caller: it may wait, and ends with the process at the latest."""


class UserVerbs(TaskVerbs, ActorVerbs, ValueVerbs, ClusterVerbs, Protocol):
    """What code of the user can ask of an engine. Each process that runs such code has one."""

    is_closed: bool
    """Whether the cluster is gone: its references mean nothing any more."""

    @property
    def key(self) -> ProcessKey:
        """Stands for this process where a library keeps something for each, weakly."""

    @property
    def is_in_task(self) -> bool:
        """Whether the caller runs in a task or an actor, not in the driver."""

    @property
    def runtime_env(self) -> str:
        """The runtime environment of tasks that are submitted here, as JSON, unless they say; "": none."""

    @property
    def namespace(self) -> str:
        """The namespace in which this code names actors."""

    @property
    def ip_address(self) -> str:
        """The node's address, as the other nodes know it."""

    def context(self) -> CallContext:
        """What runs here."""
