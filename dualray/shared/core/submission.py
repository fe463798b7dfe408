"""Submission: a function or class goes into the function table, and a call of it to the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dualray import exceptions
from dualray.exceptions import DualrayError, SerializationError
from dualray.shared.core.arguments import NO_ARGUMENTS, Arguments, pack_arguments, pack_plain
from dualray.shared.core.execution import Execution
from dualray.shared.core.serialization import serialize
from dualray.shared.core.task_runner import Export
from dualray.shared.core.tasks_in_hand import CoreTasks
from dualray.shared.handles import Reference
from dualray.shared.model.events import TaskSubmitted
from dualray.shared.model.ids import (
    HEAD,
    ActorID,
    ChildIds,
    FunctionID,
    TaskID,
    actor_handle_id,
    function_id,
    return_object_id,
    short,
    stream_handle_id,
)
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    ActorSpec,
    FunctionTemplate,
    LeaseShape,
    NamedActor,
    Ref,
    Streaming,
    TaskSpec,
    new_ref,
    new_spec,
)
from dualray.shared.model.states import ValueState
from dualray.shared.proof.trace import TraceKind

_EMBEDDED_BYTES_MAX = 1024
"""Of a value that travels in the payload of a call instead of beside it: each call that waits holds a copy."""


def full_name(target: Any) -> str:
    """The name of a function with its module, or of a class's constructor; "" if it has none."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    return f"{module}.{name}{'.__init__' if isinstance(target, type) else ''}" if name else ""


def _without_place(template: FunctionTemplate) -> FunctionTemplate:
    """What a handle to an actor needs of its constructor: not where it goes."""
    return replace(template, resources=NOTHING, placement=NOTHING, strategy=DEFAULT_STRATEGY)


FUNCTION_BYTES_MAX = 95 * 1024 * 1024
"""A pickled function or class, with what it captures; as in Ray."""


class CoreSubmission(CoreTasks):
    """Exports functions, packs arguments, and submits calls of functions, constructors and methods."""

    def captures_children(self) -> bool:
        """Whether what is submitted now goes to the caller's placement group when it does not say where."""
        running = self._execution.resources if self._contexts is None else self._contexts.here.resources
        return running is not None and running.strategy.captures

    def export(self, exported: Export, what: str) -> FunctionID:
        """Put a function or class into the function table, once; `what` names it in messages."""
        try:
            pickled = serialize(exported, what).to_bytes()
        except SerializationError:
            words = exceptions.rays_words()
            if words is not None:
                what = words.of_unpicklable(exported.target)
            serialize(exported.target, what)  # raises, and names the part of the function or class
            raise
        if len(pickled) > FUNCTION_BYTES_MAX:
            raise ValueError(
                f"The {what.replace('actor class ', 'actor ')} is too large: with its captured values it has "
                f"{len(pickled) >> 20} MiB, but the limit is {FUNCTION_BYTES_MAX >> 20} MiB. Put large values into the "
                f"object store with put(), and pass the references"
            )
        identity = function_id(pickled)
        if identity not in self._exported:
            self._check_it_goes_on()
            try:
                self.host.put_function(identity, pickled)
            except DualrayError:
                self._check_it_goes_on()  # the end that we have heard of meanwhile says more
                raise
            # Not earlier: another thread would not wait until it is there.
            self._exported[identity] = full_name(exported.target)
        return identity

    def submit_task(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Ref]:
        """Submit a call of a remote function; its results, as references of this process."""
        self._check_feasible(template)
        task_id = self._submit(template, args, kwargs)
        return self._returns(task_id, template)

    def submit_call(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ref:
        """`submit_task` of a function that has one result: that."""
        if template is not self._feasible_last or self._feasible_in is not self.machine.cluster:
            self._check_feasible(template)
            self._feasible_last = template
        return new_ref((return_object_id(self._submit(template, args, kwargs), 0), self.address))

    def submit_actor_call(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Ref:
        """`submit_actor_task` of a method that has one result: that."""
        return new_ref((return_object_id(self._submit(template, args, kwargs, handle=handle), 0), self.address))

    def submit_actor_task(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Ref]:
        """Submit a call of an actor's method."""
        task_id = self._submit(template, args, kwargs, handle=handle)
        return self._returns(task_id, template)

    def _returns(self, task_id: TaskID, template: FunctionTemplate) -> list[Ref]:
        """The references that a call returns: of a generator, to its end, its first item, and its consumer."""
        count = template.num_returns
        if template.streaming is Streaming.STREAMING:
            ids = (return_object_id(task_id, 0), return_object_id(task_id, 1), stream_handle_id(task_id))
            return [Ref(object_id, self.address) for object_id in ids]
        if count == 1:
            return [Ref(return_object_id(task_id, 0), self.address)]
        return [Ref(return_object_id(task_id, index), self.address) for index in range(count)]

    def create_actor(
        self,
        template: FunctionTemplate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        promises: ActorSpec,
        get_if_exists: bool = False,
    ) -> tuple[Ref, NamedActor | None]:
        """Submit the construction of an actor; the reference that its handle holds, counted already. With
        `get_if_exists`, and an actor of the name that `promises` has: that actor, of which no reference is counted.

        Raises:
            ActorAlreadyExistsError: the name is taken.
        """
        self._check_feasible(template)
        owner = HEAD if promises.is_detached else self.address
        task_id: TaskID | None = None
        if promises.name:
            task_id = self._next_task_id()
            claim = NamedActor(
                spec=replace(promises, actor_id=ActorID(task_id)), template=_without_place(template), owner=owner
            )
            answer = self._ask_for_name(promises.name, promises.namespace, claim, get_if_exists=get_if_exists)
            assert answer.actor is not None
            if not answer.is_new:
                return Ref(actor_handle_id(answer.actor.spec.actor_id), answer.actor.owner), answer.actor
            promises = answer.actor.spec
        task_id = self._submit(template, args, kwargs, creates=promises, task_id=task_id)
        return Ref(actor_handle_id(ActorID(task_id)), owner), None

    def check_pending_calls(self, handle: Ref, template: FunctionTemplate, limit: int) -> None:
        """Refuse a call of an actor of which this process has too many without an answer.

        Raises:
            PendingCallsLimitExceeded: it has `limit` of them.
        """
        with self.host.lock:
            is_full = self.machine.has_pending_calls(ActorID(handle.object_id[:16]), limit)
        if is_full:
            raise exceptions.PendingCallsLimitExceeded(
                f"{template.name}: this process has {limit} calls of actor {short(handle.object_id[:16])} without an "
                f"answer, and max_pending_calls={limit}. Wait for some of these calls, or set a higher limit."
            )

    def _check_feasible(self, template: FunctionTemplate) -> None:
        """Warn once of a demand that no node can meet. The head answers it as the setting `infeasible` says.

        Of each demand is kept in which cluster it was looked at, and why no node could meet it there.
        """
        cluster = self.machine.cluster
        if self._feasible_in is not cluster:
            self._feasible_in, self._feasible_last = cluster, None
        known = self._feasible.get(template)
        if known is not None and known[0] is cluster:
            return
        shape = LeaseShape(
            resources=template.resources, placement=template.placement, strategy=template.strategy, name=template.name
        )
        why = self.machine.why_waiting(shape) or ""
        if why and (known is None or known[1] != why):
            is_final = self.config.infeasible == "raise" or template.strategy.only_node is not None
            fate = "can never run in this cluster" if is_final else "waits for a node that can run it"
            self.host.tell(f"dualray: {template.name} {fate}: {why}.\n")
        self._feasible[template] = cluster, why

    def _submit(
        self,
        template: FunctionTemplate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        handle: Ref | None = None,
        creates: ActorSpec | None = None,
        task_id: TaskID | None = None,
    ) -> TaskID:
        """Submit a call: of a function, of the method of an actor that `handle` names, or of the constructor of one
        that promises `creates`; `task_id` is its id, if it has one already."""
        arguments = NO_ARGUMENTS
        payload = b""
        if args or kwargs:
            payload = pack_plain(args, kwargs, self.config.inline_bytes_max)
            if not payload:
                arguments = self._pack(template, args, kwargs)
                payload = arguments.payload
        self.begin_step()
        try:
            execution = self.execution
            if task_id is None:
                task_id = self._next_child(execution)
            deps, nested = tuple(arguments.deps) if arguments.deps else (), arguments.nested
            actor_id = ActorID(handle.object_id[:16]) if handle is not None else None
            parent, size = execution.task_id, len(payload)
            spec = new_spec(task_id, template, self.address, parent, size, deps, nested, actor_id, handle)
            if creates is not None:
                spec.creates = replace(creates, actor_id=ActorID(task_id))
            if payload:
                self.payloads[task_id] = payload
            if self.has_notes or self.is_logged:
                self._submit_observed(spec, tuple(arguments.embedded))
                self.end_step()
            else:
                if self.is_traced:
                    self._trace_submitted(spec, arguments.embedded)
                commands = self.machine.submit(spec, self.now_ns())
                if commands:
                    self._perform(commands)
                    self.end_step()  # before the rest: the worker may begin
            if arguments.put:
                # From now on the task holds what packing has put; not earlier: another thread may take in finalizers.
                self._dropped.extend(ref.object_id for ref in arguments.put)
            if self._dropped or self._released:
                self._take_in_finalizers()
                self.end_step()
        finally:
            self.leave_step()
        try:
            self.yield_point()
        except BaseException:  # a task that is cancelled: it will never have the references
            for ref in self._returns(task_id, template) if creates is None else ():
                self.drop(ref.object_id)
            raise
        return task_id

    def _pack(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Arguments that are not all plain values; what is large goes to the store."""
        try:
            return self._pack_of(template.name, args, kwargs)
        except SerializationError:
            name = self._exported.get(template.function_id, "")
            if exceptions.rays_words() is None or "." in template.name or not name:
                raise
            return self._pack_of(name, args, kwargs)  # raises, with the name that Ray's message has

    def _pack_of(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        return pack_arguments(
            name,
            args,
            kwargs,
            inline_bytes_max=self.config.inline_bytes_max,
            put=self._put_argument,
            drop=self.drop,
            look=self._look_at_arguments,
        )

    def _next_child(self, execution: Execution) -> TaskID:
        """The id of the next task that the caller submits."""
        execution.submitted += 1
        children = self._children
        if children is None or children.parent is not execution.task_id or children.attempt != execution.attempt:
            children = self._children = ChildIds(execution.task_id, execution.attempt)
        return children.of(execution.submitted)

    def _look_at_arguments(self, references: Sequence[Reference]) -> Sequence[bytes | None]:
        """The pickled values of those arguments that may travel in the call's payload: of this process, here and very
        small, and referring to nothing. What is noted of a program keeps all of its references.

        Raises:
            DualrayError: one of them belongs to a cluster that is gone.
        """
        is_closed, has_notes, address, holder = self.is_closed, self.has_notes, self.address, self.holder
        get, payload_of, inline = self.machine.known_values.get, self.payloads.get, ValueState.INLINE
        found: list[bytes | None] = []
        for reference in references:
            if reference.holder is not holder or is_closed:
                reference._check_usable()
            ref = reference.ref
            value = get(ref.object_id)
            found.append(
                payload_of(ref.object_id)
                if value is not None
                and value.state is inline
                and value.size_bytes <= _EMBEDDED_BYTES_MAX
                and (value.is_bare or (ref.owner == address and not value.nested))
                and not has_notes
                else None
            )
        return found

    def _submit_observed(self, spec: TaskSpec, embedded: tuple[Ref, ...]) -> None:
        """What is submitted is traced, logged or noted; `embedded` are the arguments whose values are in its
        payload."""
        if self.is_traced:
            self._trace_submitted(spec, embedded)
        self._handle(TaskSubmitted(spec=spec))

    def _trace_submitted(self, spec: TaskSpec, embedded: Sequence[Ref]) -> None:
        deps: tuple[str, ...] = ()
        if spec.deps or embedded or spec.nested:
            deps = tuple([ref.object_id.hex() for ref in (*spec.deps, *embedded, *spec.nested)])
        actor = spec.actor_id.hex() if spec.actor_id is not None else ""
        self.trace(TraceKind.TASK_SUBMITTED, spec.task_id, actor, spec.template.name, spec.args_bytes, deps)
