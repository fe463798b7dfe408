"""Actors and their methods, by Ray."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import ray
from ray import cloudpickle
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from dualray.exceptions import ActorHandleNotFoundError, ActorUnschedulableError, serialization_error
from dualray.on_ray import terms
from dualray.on_ray.calls import CALLED, CLASS, TERMS, Method, Terms, class_for, kind_of
from dualray.on_ray.errors import raise_translated
from dualray.on_ray.here import have_runtime
from dualray.on_ray.references import Actor, Value
from dualray.on_ray.tasks import RayTasks, as_references, submitted
from dualray.options import ActorOptions, MethodOptions, Returns, is_generator
from dualray.shared.handles import CALL, EXIT_OUTSIDE, METHOD_OPTIONS, ActorExit
from dualray.user_verbs import ActorInfo, ActorLimits, ClassRequest, Collect

_KV_NAMESPACE = b"dualray"


class PreparedClass(NamedTuple):
    """An actor's class as Ray makes instances of it."""

    remote: Any
    cls: Any
    name: str
    limits: ActorLimits
    get_if_exists: bool
    problem: str
    words: tuple[str, str] = ("", "")
    creates: tuple[int, int, bool] = (0, 0, False)
    """With `words`, what a run that is recorded notes."""


class PreparedMethod(NamedTuple):
    """A method of one actor. `terms`: what a call says beside its arguments; None: nothing."""

    remote: Any
    name: str
    returns: Returns
    terms: Terms | None
    words: tuple[str, str] = ("", "")


class RayActors(RayTasks):
    """`ActorVerbs`."""

    __slots__ = ()

    def prepare_class(self, request: ClassRequest) -> PreparedClass:
        target, options, name = request.target, request.options, request.name
        cls = target if isinstance(target, type) else target.__wrapped__
        try:
            key = _keep_class(cls, options)
        except Exception as error:
            raise serialization_error(f"actor class {name} cannot be pickled: {error}", error) from error
        said: dict[str, Any] = {
            **terms.where(options),
            "max_restarts": options.max_restarts,
            "max_task_retries": options.max_task_retries,
            "max_pending_calls": options.max_pending_calls,
            "max_concurrency": request.max_concurrency,
            "name": options.name,
            "namespace": options.namespace,
            "lifetime": options.lifetime,
            "get_if_exists": options.get_if_exists or None,
            "concurrency_groups": dict(options.concurrency_groups) if options.concurrency_groups else None,
            "allow_out_of_order_execution": options.allow_out_of_order_execution,
        }
        said = {key: value for key, value in said.items() if value is not None}
        front = class_for(target, cls, _methods_of(cls), key, is_async=request.is_async, record_to=self.record_to)
        return PreparedClass(
            ray.remote(**said)(front).remote,
            cls,
            name,
            ActorLimits(options.max_task_retries, -1, tuple(options.concurrency_groups or ())),
            options.get_if_exists,
            self.problem_of(options, name),
        )

    def create_actor(self, prepared: PreparedClass, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActorInfo:
        if prepared.problem:
            raise ActorUnschedulableError(prepared.problem)
        handle = submitted(prepared.remote, prepared.name, args, kwargs)
        if prepared.get_if_exists:
            return _found(handle)
        return ActorInfo(Actor(handle), prepared.name, None, prepared.limits)

    def find_actor(self, name: str, namespace: str | None) -> ActorInfo:
        try:
            return _found(ray.get_actor(name, namespace))
        except ray.exceptions.RayError as error:
            raise_translated(error)
        except ValueError as error:
            raise ActorHandleNotFoundError(_unknown(name, namespace)) from error

    def own_actor(self) -> ActorInfo | None:
        here = ray.get_runtime_context()
        if here.get_actor_id() is None:
            return None
        return _found(here.current_actor)

    def prepare_method(
        self, actor: ActorInfo, name: str, options: MethodOptions, returns: Returns, *, is_last: bool, collect: Collect
    ) -> PreparedMethod:
        reference = actor.reference
        assert isinstance(reference, Actor)
        called = f"{actor.class_name}.{name}"
        method = getattr(reference.handle, CALLED if name == CALL else name)
        said = {**terms.marks_of(options, returns.kind or returns.number), "name": options.name or called}
        if is_last:
            said = {"max_task_retries": 0}
        wanted = Terms(terms.retried_of(options.retry_exceptions), 1 if returns.kind else returns.number)
        is_usual = is_last or wanted == _usual_terms(reference.handle, name)
        return PreparedMethod(method.options(**said).remote, called, returns, None if is_usual else wanted)

    def submit_method(
        self, actor: Actor, prepared: PreparedMethod, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> list[Any]:
        return as_references(self._called(prepared, args, kwargs), prepared.returns)

    def call_method(
        self, actor: Actor, prepared: PreparedMethod, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Value:
        return Value(self._called(prepared, args, kwargs))

    def _called(self, prepared: PreparedMethod, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if prepared.terms is not None:
            kwargs = {**kwargs, TERMS: prepared.terms}
        return submitted(prepared.remote, prepared.name, args, kwargs)

    def check_pending_calls(self, actor: Actor, prepared: PreparedMethod, limit: int) -> None:
        """Ray refuses the call itself."""

    def kill_actor(self, actor: Actor, *, no_restart: bool) -> None:
        ray.kill(actor.handle, no_restart=no_restart)

    def exit_actor(self) -> NoReturn:
        if have_runtime().instance is None:
            raise TypeError(EXIT_OUTSIDE)
        raise ActorExit


def _usual_terms(handle: Any, name: str) -> Terms | None:
    """By which a method goes when a call says nothing, as far as its handle tells; None: it does not."""
    count = handle._ray_method_num_returns.get(name, 1)
    if handle._ray_method_retry_exceptions.get(name):
        return None
    return Terms(False, count if isinstance(count, int) else 1)


def _unknown(name: str, namespace: str | None) -> str:
    """The sentence for a name that no actor has, with the nearest one."""
    wanted = namespace or ray.get_runtime_context().namespace
    rows = ray.util.list_named_actors(all_namespaces=True)
    names = [row["name"] for row in rows if row["namespace"] == wanted]
    elsewhere = [row["namespace"] for row in rows if row["name"] == name]
    nearest = difflib.get_close_matches(name, names, n=1)
    if nearest:
        hint = f" Did you mean {nearest[0]!r}?"
    elif elsewhere:
        hint = f" Namespace {elsewhere[0]!r} has an actor with this name: pass namespace={elsewhere[0]!r}."
    else:
        hint = f" Names of actors in this namespace: {', '.join(names) or 'none'}."
    gone = "the actor was never created, or has ended."
    return f"Failed to look up actor with name {name!r} in namespace {wanted!r}: {gone}{hint}"


def _methods_of(cls: type[Any]) -> dict[str, Method]:
    """The methods of a class that handles know."""
    return {
        name: _described(getattr(cls, name))
        for name in dir(cls)
        if callable(getattr(cls, name)) and (not name.startswith("__") or name == "__call__")
    }


def _described(function: Any) -> Method:
    options: MethodOptions = getattr(function, METHOD_OPTIONS, MethodOptions())
    returns = options.num_returns
    if returns is None and is_generator(function):
        returns = "streaming"
    count = returns if isinstance(returns, int) else 1
    wanted = Terms(terms.retried_of(options.retry_exceptions), count)
    return Method(kind_of(function), wanted, terms.marks_of(options, returns))


# ---- The classes of actors that others find --------------------------------------------------------------------------


def _keep_class(cls: type[Any], options: ActorOptions) -> str:
    """Keep a class where whoever finds an actor of it by name can load it; by which key."""
    pickled = cloudpickle.dumps((cls, options.max_task_retries, tuple(options.concurrency_groups or ())))
    key = hashlib.blake2b(pickled, digest_size=16).hexdigest()
    if options.name:
        _internal_kv_put(key.encode(), pickled, overwrite=False, namespace=_KV_NAMESPACE)
    return key


def _found(handle: Any) -> ActorInfo:
    """What a handle of Ray's stands for: its class is found by the method that is there for its name."""
    key = next((name.removeprefix(CLASS) for name in dir(handle) if name.startswith(CLASS)), "")
    own = have_runtime().instance
    pickled = _internal_kv_get(key.encode(), namespace=_KV_NAMESPACE) if key else None
    if pickled is not None:
        cls, retries, groups = cloudpickle.loads(pickled)
        return ActorInfo(Actor(handle), cls.__name__, None, ActorLimits(retries, -1, groups), cls)
    if own is not None and handle._actor_id.hex() == ray.get_runtime_context().get_actor_id():
        return ActorInfo(Actor(handle), type(own).__name__, None, ActorLimits(0), type(own))
    raise ActorHandleNotFoundError(
        f"dualray did not create the actor {handle!r}, so dualray does not know its class. Use the actor through ray "
        "itself."
    )
