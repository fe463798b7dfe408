"""Every error that dualray raises on purpose, and every public exception of Ray 2.60 under its name.

    DualrayError, RayError
    ├── TaskError, RayTaskError          a task's or method's own exception; also an instance of the user's type
    ├── TaskCancelledError               the task was cancelled, or one whose result it needs
    ├── WorkerCrashedError               the process that ran the task died, and no retry was left
    │   └── WorkerUnreachableError       it lives, and cannot be reached from here
    ├── TaskUnschedulableError           no node of the cluster can ever meet the demand
    ├── TaskPlacementGroupRemoved        the placement group that the task runs in was removed
    ├── PlacementGroupUnschedulableError the nodes of the cluster can never take all of its bundles
    ├── ActorError, RayActorError
    │   ├── ActorDiedError               the actor is gone for good
    │   └── ActorUnavailableError        the actor was lost during this call; it restarts, the call is not repeated
    ├── ActorAlreadyExistsError          (also ValueError) the name of an actor is taken
    ├── ActorHandleNotFoundError         (also ValueError) there is no actor of that name
    ├── PendingCallsLimitExceeded        the caller has max_pending_calls calls without an answer
    ├── ActorPlacementGroupRemoved       the placement group that the actor was to live in was removed
    ├── ActorUnschedulableError          no node of the cluster can ever hold the actor
    ├── ObjectLostError                  the value is gone and cannot be made again
    │   ├── ObjectReconstructionFailedError
    │   └── OwnerDiedError               the process that owns the value died
    ├── ObjectStoreFullError             neither eviction nor waiting made room
    ├── OutOfMemoryError                 the node's memory monitor ended the worker
    ├── GetTimeoutError                  (also TimeoutError)
    ├── NodeDiedError
    ├── RuntimeEnvSetupError
    ├── SerializationError               (also TypeError) a value, argument or function that cannot be pickled
    ├── NotInitializedError, AlreadyInitializedError   (also RuntimeError)
    ├── SimulationDeadlockError          nothing is left to happen and the driver still waits
    ├── AuthenticationError              a peer without the cluster's secret
    └── RaySystemError
        ├── ControlPlaneError            the control plane cannot be reached or started
        └── InvalidTransition, InvariantViolation      a bug in dualray itself; carries the story of the id

The last part of this module has Ray's exceptions that dualray never raises: an `except` clause may name them. A clause
that catches an exception in Ray catches its counterpart here.

Each message says what happened, to which id and function, and what to do about it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any


def rays_words() -> Any:
    """The module with Ray's words for errors, where programs have the name `ray`; else None."""
    package = sys.modules.get("dualray.as_ray")
    return import_module("dualray.as_ray.error_words") if package is not None and package.is_installed() else None


class DualrayError(Exception):
    """The root of every error that dualray raises on purpose."""


class _Words:
    """What an error says, under a name of Ray. An attribute of that name, of the user's own exception, hides it."""

    def __init__(self, attribute: str = "") -> None:
        self._attribute = attribute

    def __get__(self, error: DualrayError | None, owner: type[DualrayError]) -> str:
        if error is None:
            return f"the words of {owner.__name__}"
        return str(getattr(error, self._attribute)) if self._attribute else str(error)


class TaskError(DualrayError):
    """A task or actor method raised.

    What `get` raises is an instance of a class that derives from both `TaskError` and the type of the user's own
    exception, so that `except ValueError` and `except TaskError` both work.

    Attributes:
        cause: the user's exception: the first one, where tasks have failed because others had. Of an exception that
            cannot be pickled, a `RayError` that says why, with its traceback. Of a task that never ran because an
            argument was lost, or never made, the error of that argument. None where it is not known.
        function_name: the task's function, or `Class.method`.
        remote_traceback: the traceback as the worker printed it; also `traceback_str`, as Ray's constructor calls it,
            whose other arguments (`proctitle`, `pid`, `ip`, ...) are ignored.
        heading: what stands above the frames in Ray's words, where the task ran under the name `ray`; else "".
    """

    traceback_str = _Words("remote_traceback")
    heading = ""

    def __init__(
        self,
        function_name: str,
        remote_traceback: str = "",
        cause: BaseException | None = None,
        *,
        traceback_str: str | None = None,
        **_of_ray: Any,
    ) -> None:
        remote_traceback = remote_traceback if traceback_str is None else traceback_str
        super().__init__(function_name, remote_traceback, cause)
        self.function_name = function_name
        self.remote_traceback = remote_traceback
        self.cause = cause

    def __str__(self) -> str:
        if self.heading and (words := rays_words()) is not None:
            return str(words.worded(self.heading, self.remote_traceback))
        return f"{self.function_name} raised; the remote traceback follows.\n{self.remote_traceback}"

    def as_instance_of_cause(self) -> TaskError:
        """This error as an instance of both TaskError and the user's own type."""
        cause = self.cause
        while isinstance(cause, TaskError) and cause.cause is not None:
            cause = cause.cause  # a task failed because a task that it waited for had failed
        if cause is None or isinstance(self, type(cause)) or not isinstance(cause, Exception):
            return self
        cause_type = type(cause)
        try:
            named = {"__module__": "ray.exceptions", "args": property(_cause_alone)} if self.heading else {}
            both = type(f"RayTaskError({cause_type.__name__})", (_TaskErrorWithCause, cause_type), named)
            # MemoryError's own makes no other class; what it has, every exception has
            base = Exception if issubclass(cause_type, MemoryError) else builtin_base(cause_type)
            error: TaskError = base.__new__(both, *cause.args)
            _copy_attributes(cause, error)
            error.function_name = self.function_name
            error.remote_traceback = self.remote_traceback
            error.cause = cause
            if self.heading:
                error.heading = self.heading
        except (TypeError, AttributeError) as why:  # a type that allows no second base, or guards its attributes
            if self.heading and (words := rays_words()) is not None:
                words.warn_of_plain_error(cause_type, why)
            return self  # it stays reachable as .cause
        return error

    def as_instanceof_cause(self) -> TaskError:
        """`as_instance_of_cause` under Ray's name."""
        return self.as_instance_of_cause()

    make_dual_exception_instance = as_instanceof_cause


def _cause_alone(error: TaskError) -> tuple[BaseException | None]:
    """The `args` of a task's error, as Ray has them."""
    return (error.cause,)


def builtin_base(cls: type[BaseException]) -> type[BaseException]:
    """Python's own exception class that a class derives from: it makes instances without the class's own code."""
    return next(base for base in cls.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))


def _copy_attributes(source: BaseException, target: BaseException) -> None:
    """Everything that an exception knows: what is in its `__dict__`, in slots, and in Python's own fields (errno)."""
    target.__dict__.update(source.__dict__)
    for base in type(source).__mro__:
        for name, field in vars(base).items():
            if isinstance(field, MemberDescriptorType | GetSetDescriptorType) and not name.startswith("__"):
                with suppress(AttributeError, TypeError):  # not set, or set by __new__ and fixed since
                    setattr(target, name, getattr(source, name))


class _TaskErrorWithCause(TaskError):
    """Base of the classes that are both TaskError and the user's type: pickled as the plain TaskError."""

    def __init__(self, *args: object) -> None:  # the user's own __init__ must not run a second time
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cause!r})"

    def __reduce__(self) -> tuple[object, ...]:
        told = (self.function_name, self.remote_traceback, self.cause)
        return _revive_task_error, (*told, self.heading) if self.heading else told


def _revive_task_error(
    function_name: str, remote_traceback: str, cause: BaseException | None, heading: str = ""
) -> TaskError:
    error = TaskError(function_name, remote_traceback, cause)
    if heading:
        error.heading = heading
    return error.as_instance_of_cause()


class TaskCancelledError(DualrayError):
    """The task was cancelled (`dualray.cancel`), or one whose result it takes as an argument was."""

    error_message = _Words()


class WorkerCrashedError(DualrayError):
    """The worker process that ran a task died and no retry was left; the message carries signal, exit code, stderr."""


class WorkerUnreachableError(WorkerCrashedError):
    """The worker that had a task cannot be reached, though the head hears its node, and no retry was left; the message
    names both ends."""


class TaskUnschedulableError(DualrayError):
    """No node of the cluster can ever meet the task's demand."""

    error_message = _Words()


class TaskPlacementGroupRemoved(DualrayError):
    """The placement group that the task was to run in, or ran in, was removed."""


class PlacementGroupUnschedulableError(DualrayError):
    """The nodes of the cluster can never take all bundles of the placement group; the message says what lacks."""


class ActorError(DualrayError):
    """Something happened to an actor, as opposed to inside one of its methods.

    `actor_id` is the actor's, 32 hexadecimal digits; None where the error was not raised by dualray.
    `actor_init_failed` says whether its constructor has failed; `preempted` is False: nothing here is preempted.
    """

    error_msg = _Words()
    actor_id: str | None = None
    actor_init_failed = False
    preempted = False


class ActorDiedError(ActorError):
    """The actor is gone for good: its calls fail."""


class ActorUnavailableError(ActorError):
    """The actor was lost while it ran this call; it restarts, but the call is not repeated (max_task_retries)."""


class ActorUnschedulableError(DualrayError):
    """No node of the cluster can ever hold the actor."""

    error_message = _Words()


class ActorAlreadyExistsError(ValueError, DualrayError):
    """The name of an actor is taken; the message names the actor that has it."""


class ActorHandleNotFoundError(ValueError, DualrayError):
    """There is no actor of that name; the message has the nearest one."""


class PendingCallsLimitExceeded(DualrayError):
    """This process has as many calls of the actor without an answer as its `max_pending_calls` allows."""


class ActorPlacementGroupRemoved(DualrayError):
    """The placement group that the actor was to live in was removed."""


class ObjectLostError(DualrayError):
    """The value is gone (evicted, or lost with its node) and cannot be made again."""


class ObjectReconstructionFailedError(ObjectLostError):
    """The value was lost and making it again failed or was out of attempts."""


class OwnerDiedError(ObjectLostError):
    """The process that owns the value died, and with it the knowledge of how to make it again."""


class ObjectStoreFullError(DualrayError):
    """The object store has no room; the message names the largest holders."""


class OutOfMemoryError(DualrayError):
    """The node was out of memory: its memory monitor ended the worker that ran this, and no retry was left."""

    message = _Words()


class GetTimeoutError(DualrayError, TimeoutError):
    """`get` did not have every value within its timeout."""


class NodeDiedError(DualrayError):
    """The node on which this ran is gone."""

    message = _Words()


class RuntimeEnvSetupError(DualrayError):
    """The worker's environment could not be made."""

    error_message = _Words()


class SerializationError(DualrayError, TypeError):
    """A value, an argument or a function cannot be pickled; the message says which and why."""


class NotInitializedError(DualrayError, RuntimeError):
    """A verb was used before `dualray.init()`."""


class AlreadyInitializedError(DualrayError, RuntimeError):
    """`dualray.init()` was called twice."""


class SimulationDeadlockError(DualrayError):
    """The driver waits and nothing is left to happen; the message is the wait-for graph in words."""


class AuthenticationError(DualrayError):
    """A peer did not prove the cluster's secret, or speaks another protocol version."""

    message = _Words()


class RaySystemError(DualrayError):
    """Something failed in the system, and not in the program."""


class ControlPlaneError(RaySystemError):
    """The control plane (Redis, or the embedded store) cannot be started or reached."""


class InvalidTransition(RaySystemError):
    """A state machine was asked for a transition that its table does not have: a bug in dualray."""


class InvariantViolation(RaySystemError):
    """An invariant of a machine does not hold: a bug in dualray."""


# Names of Ray for what has another name here.
RayError = DualrayError
RayTaskError = TaskError
RayActorError = ActorError


# Ray's exceptions that dualray never raises: an `except` clause may name them.


class OutOfDiskError(DualrayError):
    """Never raised: a store whose disk is full raises `ObjectStoreFullError`, which says so."""


class LocalRayletDiedError(DualrayError):
    """Never raised: who runs a task says `NodeDiedError` of a node whose process has died."""


class ObjectFetchTimedOutError(ObjectLostError):
    """Never raised: a copy that cannot be fetched in time is fetched elsewhere, or the object is lost."""


class ObjectFreedError(ObjectLostError):
    """Never raised: dualray has no call that frees an object to which references exist."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """Never raised: a wrong count of references is an `InvariantViolation`."""


class PlasmaObjectNotAvailable(DualrayError):
    """Never raised: a value that is not there in time raises `GetTimeoutError`."""


class AsyncioActorExit(DualrayError):
    """Never raised: `exit_actor` ends an actor of coroutines as it ends any other."""


class ObjectRefStreamEndOfStreamError(DualrayError):
    """Never raised: a generator that has ended raises `StopIteration`."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """Never raised: a generator that yields less when it runs again loses those items (`ObjectLostError`)."""


class OufOfBandObjectRefSerializationException(DualrayError):
    """A program pickled a reference, and RAY_allow_out_of_band_object_ref_serialization=0 forbids that."""


class UnserializableException(DualrayError):
    """Never raised: an exception that cannot be pickled is told in the `cause` of a `TaskError`."""


class UserCodeException(DualrayError):
    """Never raised: the function of a dataset raises its own exception."""


class RpcError(DualrayError):
    """Never raised: a peer that cannot be reached is told as an error of the task, actor or object."""


class CrossLanguageError(DualrayError):
    """Never raised: of a feature that dualray refuses, workers in other languages."""


class RayChannelError(RaySystemError):
    """Never raised: of a feature that dualray refuses, compiled graphs."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Never raised: of a feature that dualray refuses, compiled graphs."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Never raised: of a feature that dualray refuses, compiled graphs."""


class RayDirectTransportError(RaySystemError):
    """Never raised: of a feature that dualray refuses, tensors that travel between GPUs."""
