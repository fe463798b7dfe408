"""The user's verbs over a core worker: options become templates and specs, and answers become plain values.

Real mode, sim mode and classic's PYTHON_MODE share this module; an engine with references of its own has another.
The verbs that run for every task are the core's own methods, bound once: they cost no call more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from dualray import runtime_env
from dualray.core_state import ToldTimes, live_rows
from dualray.core_terms import actor_demands, group_spec, placed, selector_for, task_demand
from dualray.exceptions import OufOfBandObjectRefSerializationException
from dualray.options import MethodOptions, Returns, TaskOptions
from dualray.runtime import CoreVerbs
from dualray.shared.core.execution import Execution
from dualray.shared.core.serialization import serialize
from dualray.shared.core.task_runner import Export
from dualray.shared.handles import EXIT_OUTSIDE, SHUTDOWN, ActorExit, ProcessKey
from dualray.shared.labels import parse_selector
from dualray.shared.model.accelerators import Names, named
from dualray.shared.model.demands import parse_named
from dualray.shared.model.ids import (
    ActorID,
    Address,
    FunctionID,
    ObjectID,
    PlacementGroupID,
    actor_handle_id,
    is_put,
    job_of,
)
from dualray.shared.model.resources import NOTHING, Resources, add, in_plain_names, ip_offered
from dualray.shared.model.specs import (
    NODE_ID_LABEL,
    ActorSpec,
    FunctionTemplate,
    LabelTerm,
    NamedActor,
    NodeState,
    Ref,
    Strategy,
    Streaming,
)
from dualray.user_verbs import (
    ActorInfo,
    ActorLimits,
    Awaited,
    CallContext,
    ClassRequest,
    Collect,
    GroupRequest,
    NodeRow,
    Shipped,
)

PICKLED_BY_ANYBODY: Final = "RAY_allow_out_of_band_object_ref_serialization"
"""Ray's variable: 0 forbids programs to pickle references."""


def _pin(core: CoreVerbs, reference: Ref, /) -> None:
    if os.environ.get(PICKLED_BY_ANYBODY) == "0":
        raise OufOfBandObjectRefSerializationException(
            f"the program pickled ObjectRef({reference.object_id.hex()}), but {PICKLED_BY_ANYBODY}=0 forbids this, "
            "because dualray cannot count pickled copies of a reference. Pass the reference to a task or an "
            "actor, or return it."
        )
    core.adopt(reference)  # and nobody drops it


def _exported(core: CoreVerbs, exported: Export, what: str, shipped: dict[Any, FunctionID]) -> FunctionID:
    """Export a function or class, unless this process has shipped it before with all that goes along."""
    along = (exported.duration, exported.collect, exported.retried, exported.sim_unsafe)
    try:
        known = shipped.get(along)
    except TypeError:  # a duration that has no hash
        return _export(core, exported, what)
    if known is None:
        known = shipped[along] = _export(core, exported, what)
    return known


def _export(core: CoreVerbs, exported: Export, what: str) -> FunctionID:
    """Export a function or class that holds no reference, where the program forbids that references are pickled."""
    if os.environ.get(PICKLED_BY_ANYBODY) == "0" and (captured := serialize(exported, what).refs):
        raise OufOfBandObjectRefSerializationException(
            f"The {what} captures ObjectRef({captured[0].object_id.hex()}), but "
            f"{PICKLED_BY_ANYBODY}=0 forbids captured references: pass the reference as an argument."
        )
    return core.export(exported, what)


def _shipped_by(verbs: VerbsOverCore, shipped: Shipped | None) -> dict[Any, FunctionID]:
    """The ids under which one process has shipped a function."""
    return {} if shipped is None else shipped.setdefault(verbs, {})


class _PreparedClass(NamedTuple):
    """An actor class with its options."""

    template: FunctionTemplate
    promises: ActorSpec
    get_if_exists: bool


class VerbsOverCore:
    """`UserVerbs` of a process with a core worker; see dualray/user_verbs.py for what each does.

    Args:
        core: what the process can do.
        device_names: what its node's GPUs and other accelerators are called.
    """

    __slots__ = (
        "__weakref__",
        "_device_names",
        "_told_times",
        "adopt",
        "call",
        "call_method",
        "captures_children",
        "core",
        "drop",
        "find",
        "get",
        "is_closed",
        "pin",
        "put",
        "spawn",
        "submit",
        "submit_method",
        "wait",
    )

    parts_of = staticmethod(tuple)

    def __init__(self, core: CoreVerbs, device_names: Names) -> None:
        self.core = core
        self.is_closed = core.is_closed
        self.pin: Callable[[Any], None] = partial(_pin, core)
        core.holder = self
        self._device_names = device_names
        self._told_times: ToldTimes = {}
        self.adopt = core.adopt
        self.call = core.submit_call
        self.call_method = core.submit_actor_call
        self.captures_children = core.captures_children
        self.drop = core.drop
        self.find = core.find
        self.get = core.get
        self.put = core.put
        self.spawn = core.spawn
        self.submit = core.submit_task
        self.submit_method = core.submit_actor_task
        self.wait = core.wait

    @property
    def key(self) -> ProcessKey:
        return self.core.key

    @property
    def is_in_task(self) -> bool:
        return self.core.execution.is_task

    @property
    def runtime_env(self) -> str:
        return self.core.runtime_env

    @runtime_env.setter
    def runtime_env(self, text: str) -> None:
        self.core.runtime_env = text

    @property
    def namespace(self) -> str:
        return self.core.namespace

    @property
    def ip_address(self) -> str:
        return self.core.place_of(self.core.node)[0]

    def context(self) -> CallContext:
        core = self.core
        execution = core.execution
        template, constructor = execution.resources, execution.constructor
        group = template.strategy.group if template is not None else None
        creates = constructor.creates if constructor is not None else None
        return CallContext(
            job_id=f"{job_of(execution.task_id):08x}",
            node_id=core.node,
            worker_id=core.address,
            task_id=execution.task_id.hex() if execution.is_task else None,
            task_name=_task_name(execution) if execution.is_task else None,
            function_name=partial(_function_name, core),
            attempt=execution.attempt,
            actor_id=execution.actor_id.hex() if execution.actor_id is not None else None,
            actor_name=creates.name if creates is not None else None,
            is_cancelled=None if creates is not None and creates.is_async else core.is_cancelled(),
            is_restarted=constructor is not None and execution.actor_life > 0,
            placement_group_id=group.hex() if group is not None else None,
            captures_children=template is not None and template.strategy.captures,
            accelerators=named(execution.device_ids, self._device_names),
            resources=in_plain_names(template.resources).as_floats() if template is not None else {},
        )

    # ---- Functions and tasks ---------------------------------------------------------------------------------

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
    ) -> FunctionTemplate:
        demand = task_demand(options.num_cpus, options.num_gpus, options.memory, options.resources)
        selector = selector_for(options, demand, self.core.cluster_state)
        demand, _, strategy = placed(
            options.scheduling_strategy,
            selector,
            demand,
            demand,
            name,
            self._captured(captured),
            qualified=getattr(target, "__qualname__", name),
        )
        retried = options.retry_exceptions
        what = f"remote function {name}"
        return FunctionTemplate(
            function_id=_exported(
                self.core,
                Export(
                    target,
                    options.duration,
                    collect if returns.kind == Streaming.DYNAMIC else None,
                    None if isinstance(retried, bool) else tuple(retried),
                    options.sim_unsafe,
                ),
                what,
                _shipped_by(self, shipped),
            ),
            name=name,
            resources=demand,
            placement=demand,
            num_returns=returns.number,
            max_retries=options.max_retries,
            retry_exceptions=bool(retried),
            max_calls=options.max_calls,
            runtime_env=self._environment(options.runtime_env, what),
            strategy=strategy,
            streaming=Streaming(returns.kind),
            items_ahead_max=returns.ahead_max,
        )

    def _captured(self, is_captured: bool) -> Strategy | None:
        """The strategy of the task that runs, for what is to go where it is."""
        running = self.core.execution.resources
        return running.strategy if is_captured and running is not None else None

    def _environment(self, given: Mapping[str, Any] | None, what: str) -> str:
        """The text of the runtime environment of a call."""
        outer = self.core.runtime_env
        return outer if given is None else runtime_env.merged(outer, runtime_env.parse(f"{what}: runtime_env", given))

    def cancel(self, reference: Ref, *, force: bool, recursive: bool) -> None:
        if is_put(reference.object_id):
            raise ValueError(
                "cancel takes the reference of a task's result, but put() created "
                f"ObjectRef({reference.object_id.hex()})"
            )
        self.core.cancel(reference, force=force, recursive=recursive)

    # ---- Actors ----------------------------------------------------------------------------------------------

    def prepare_class(self, request: ClassRequest) -> _PreparedClass:
        target, options, name = request.target, request.options, request.name
        placement, held = actor_demands(options.num_cpus, options.num_gpus, options.memory, options.resources)
        selector = selector_for(options, placement, self.core.cluster_state)
        placement, held, strategy = placed(
            options.scheduling_strategy,
            selector,
            placement,
            held,
            name,
            self._captured(request.captured),
            qualified=getattr(target, "__qualname__", name),
        )
        what = f"actor class {name}"
        template = FunctionTemplate(
            function_id=_exported(
                self.core,
                Export(target, options.duration, request.collect, None, options.sim_unsafe),
                what,
                _shipped_by(self, request.shipped),
            ),
            name=name,
            resources=held,
            placement=placement,
            num_returns=0,
            max_retries=0,
            strategy=strategy,
            runtime_env=self._environment(options.runtime_env, what),
        )
        promises = ActorSpec(
            actor_id=ActorID(b""),  # the core gives it
            max_restarts=options.max_restarts,
            max_task_retries=options.max_task_retries,
            name=options.name or "",
            namespace=options.namespace or "",
            is_detached=(options.lifetime or self.core.config.actor_lifetime) == "detached",
            max_pending_calls=options.max_pending_calls,
            max_concurrency=request.max_concurrency,
            is_async=request.is_async,
            concurrency_groups=tuple((options.concurrency_groups or {}).items()),
            is_unordered=request.is_async or request.max_concurrency > 1 or bool(options.allow_out_of_order_execution),
            has_shutdown=hasattr(target, SHUTDOWN) or hasattr(target, "__del__"),
        )
        return _PreparedClass(template, promises, options.get_if_exists)

    def create_actor(self, prepared: _PreparedClass, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActorInfo:
        template, promises, get_if_exists = prepared
        ref, existing = self.core.create_actor(template, args, kwargs, promises=promises, get_if_exists=get_if_exists)
        if existing is not None:
            return self._found(existing)
        return ActorInfo(ref, template.name, template.function_id, _limits_of(promises))

    def find_actor(self, name: str, namespace: str | None) -> ActorInfo:
        return self._found(self.core.find_actor(name, namespace or ""))

    def _found(self, actor: NamedActor) -> ActorInfo:
        ref = Ref(actor_handle_id(actor.spec.actor_id), actor.owner)
        function = actor.template.function_id
        limits = _limits_of(actor.spec)
        return ActorInfo(ref, actor.template.name, function, limits, self.core.load_class(function), is_weak=True)

    def own_actor(self) -> ActorInfo | None:
        constructor = self.core.execution.constructor
        if constructor is None:
            return None
        assert constructor.creates is not None
        ref = Ref(actor_handle_id(constructor.creates.actor_id), constructor.owner)
        template = constructor.template
        limits = _limits_of(constructor.creates)
        cls = type(self.core.actor_instance)
        return ActorInfo(ref, template.name, template.function_id, limits, cls, is_weak=True)

    def prepare_method(
        self, actor: ActorInfo, name: str, options: MethodOptions, returns: Returns, *, is_last: bool, collect: Collect
    ) -> FunctionTemplate:
        retries, retried = options.max_task_retries, options.retry_exceptions
        function_id = actor.function
        if not isinstance(retried, bool):  # the class's export does not say which exceptions
            dynamic = collect if returns.kind == Streaming.DYNAMIC else None
            what = options.name or f"{actor.class_name}.{name}"
            function_id = self.core.export(Export(None, None, dynamic, tuple(retried)), what)
        return FunctionTemplate(
            function_id=function_id,
            name=options.name or f"{actor.class_name}.{name}",
            method=name if options.name else "",
            resources=NOTHING,
            placement=NOTHING,
            num_returns=returns.number,
            max_retries=0 if is_last else actor.limits.max_task_retries if retries is None else retries,
            retry_exceptions=bool(retried),
            concurrency_group=options.concurrency_group or "",
            streaming=Streaming(returns.kind),
            items_ahead_max=returns.ahead_max,
            is_unordered=actor.limits.is_unordered,
        )

    def check_pending_calls(self, actor: Ref, prepared: FunctionTemplate, limit: int) -> None:
        self.core.check_pending_calls(actor, prepared, limit)

    def kill_actor(self, actor: Ref, *, no_restart: bool) -> None:
        self.core.kill_actor(actor, no_restart=no_restart)

    def exit_actor(self) -> NoReturn:
        execution = self.core.execution
        if execution.actor_id is None or execution.constructor is None:
            raise TypeError(EXIT_OUTSIDE)
        raise ActorExit

    # ---- Values ----------------------------------------------------------------------------------------------

    def get_async(self, reference: Ref, ready: Callable[[], None]) -> Awaited:
        return self.core.get_async(reference, ready)

    def wait_async(self, reference: Ref, ready: Callable[[], None]) -> Awaited:
        return self.core.wait_async(reference, ready)

    def take_item(self, item: Ref) -> tuple[bool, Ref | None]:
        return self.core.take_item(item)

    def has_ended_before(self, item: Ref) -> bool:
        return self.core.has_ended_before(item)

    def promise(self) -> Ref:
        return self.core.promise()

    def keep_promise(self, reference: Ref, value: Any) -> None:
        self.core.keep_promise(reference, value)

    def is_held_elsewhere(self, reference: Ref) -> bool:
        return self.core.is_held_elsewhere(reference)

    def explain(self, reference: Ref) -> str:
        return self.core.explain(reference)

    def waiting(self) -> list[str]:
        return self.core.waiting()

    def revive(self, object_id: ObjectID, owner: Address) -> Ref:
        ref = Ref(object_id, owner)
        self.adopt(ref)
        return ref

    # ---- The cluster -----------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeRow]:
        return [self._node_row(row) for row in self.core.cluster_state()]

    def _node_row(self, row: NodeState) -> NodeRow:
        """A node; its address is what it offers as `node:IP`, else what this process knows of it."""
        here, hostname = self.core.place_of(row.node)
        ip_address = ip_offered(row.total) or here
        return NodeRow(
            row.node,
            row.alive,
            row.incarnation,
            row.total.as_floats(),
            row.available.as_floats(),
            {NODE_ID_LABEL: row.node, **dict(row.labels)},
            ip_address,
            hostname if ip_address == here else ip_address,
        )

    def cluster_resources(self) -> dict[str, float]:
        return add(row.total for row in self.core.cluster_state() if row.alive).as_floats()

    def available_resources(self) -> dict[str, float]:
        return add(row.available for row in self.core.cluster_state() if row.alive).as_floats()

    def head_rows(self, table: str) -> list[dict[str, Any]]:
        return self.core.head_rows(table)

    def state_rows(self, table: str, timeout_ns: int) -> tuple[list[dict[str, Any]], list[str]]:
        return live_rows(self.core, table, timeout_ns, self._told_times)

    def create_placement_group(self, request: GroupRequest) -> bytes:
        return self.core.create_placement_group(group_spec(*request, owner=self.core.address))

    def remove_placement_group(self, group_id: bytes) -> None:
        self.core.remove_placement_group(PlacementGroupID(group_id))

    def request_resources(
        self, *, bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]
    ) -> None:
        counts: dict[tuple[Resources, tuple[LabelTerm, ...]], int] = {}
        for index, (bundle, selector) in enumerate(zip(bundles, selectors, strict=True)):
            terms = parse_selector(f"bundle_label_selectors[{index}]", selector)
            key = parse_named(bundle), terms
            counts[key] = counts.get(key, 0) + 1
        self.core.request_resources(counts)


def _function_name(core: CoreVerbs) -> str | None:
    """The function or method that runs, behind its module; None in a driver."""
    execution = core.execution
    template = execution.resources
    if not execution.is_task or template is None:
        return None
    target = core.load_class(template.function_id)
    last = getattr(target, "__name__", execution.name)
    if execution.actor_id is not None:
        _, dot, method = execution.name.rpartition(".")
        method = execution.method or (method if dot else "__init__")
        last = f"{last}.{method}"
        creates = execution.constructor.creates if execution.constructor is not None else None
        if creates is not None and creates.is_async:
            last = getattr(getattr(target, method, None), "__qualname__", last)
    return f"{getattr(target, '__module__', '')}.{last}"


def _task_name(execution: Execution) -> str:
    """The name of a task: of a method `Class.method`, unless the call has a name of its own."""
    is_constructor = execution.actor_id is not None and not execution.method and "." not in execution.name
    return f"{execution.name}.__init__" if is_constructor else execution.name


def _limits_of(promises: ActorSpec) -> ActorLimits:
    groups = tuple(name for name, _ in promises.concurrency_groups)
    return ActorLimits(promises.max_task_retries, promises.max_pending_calls, groups, promises.is_unordered)
