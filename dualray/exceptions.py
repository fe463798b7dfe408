"""Every error that dualray raises on purpose, and every public exception of Ray 2.60 under its name.

    DualrayError, RayError
    ├── TaskError, RayTaskError          a task's or method's own exception; also an instance of the user's type
    ├── TaskCancelledError               the task was cancelled, or a task whose result it needs
    ├── WorkerCrashedError               the process that ran the task died, and no retry was left
    │   └── WorkerUnreachableError       the process may be alive, and cannot be reached from here
    ├── TaskUnschedulableError           no node of the cluster can ever meet the demand
    ├── TaskPlacementGroupRemoved        the placement group that the task runs in was removed
    │   └── RunningTaskPlacementGroupRemoved   (also WorkerCrashedError) while the task ran
    ├── PlacementGroupUnschedulableError the nodes of the cluster can never take all of its bundles
    │   └── PlacementGroupAlreadyExistsError   (also RaySystemError) the name of a placement group is taken
    ├── ActorError, RayActorError
    │   ├── ActorDiedError               the actor is gone for good
    │   └── ActorUnavailableError        the actor was lost during this call; it restarts, the call is not repeated
    ├── ActorAlreadyExistsError          (also ValueError) the name of an actor is taken
    ├── ActorHandleNotFoundError         (also ValueError) there is no actor of that name
    ├── PendingCallsLimitExceeded        the caller has max_pending_calls calls without an answer
    ├── ActorPlacementGroupRemoved       the actor's placement group was removed
    ├── ActorUnschedulableError          no node of the cluster can ever hold the actor
    ├── ObjectLostError                  the value is gone and cannot be recomputed
    │   ├── ObjectReconstructionFailedError
    │   └── OwnerDiedError               the process that owns the value died
    ├── ReferenceEndedError              (also ValueError) the cluster of a reference was shut down
    ├── ObjectStoreFullError             the object store has no space, even after eviction and a wait
    ├── OutOfMemoryError                 the node's memory monitor ended the worker
    ├── GetTimeoutError                  (also TimeoutError)
    ├── NodeDiedError
    ├── RuntimeEnvSetupError
    ├── SerializationError               (also TypeError) a value, argument or function that cannot be pickled
    ├── AlreadyInitializedError          (also RuntimeError)
    ├── SimulationDeadlockError          the driver waits for something that can never happen
    ├── AuthenticationError              a peer without the cluster's secret
    └── RaySystemError
        ├── NotInitializedError          (also RuntimeError) a call needs a cluster
        ├── ControlPlaneError            the control plane cannot be reached or started
        └── InvalidTransition, InvariantViolation      a bug in dualray itself; the message has the id's history

Ray's other exceptions exist too, so that an `except` clause can name them; dualray never raises them. A clause that
catches an exception in Ray catches its counterpart here.

Each message says what happened, to which id and function, and what to do about it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, ClassVar


def rays_words() -> Any:
    """The module with Ray's words for errors, where programs have the name `ray`; else None."""
    package = sys.modules.get("dualray.as_ray")
    return import_module("dualray.as_ray.error_words") if package is not None and package.is_installed() else None


class DualrayError(Exception):
    """Base class of every error that dualray raises on purpose."""

    _message_keyword: ClassVar[str] = ""
    """The name under which the constructor in Ray takes the message."""
    _attribute_keywords: ClassVar[tuple[str, ...]] = ()
    """The other arguments of the constructor in Ray; they become attributes."""

    def __init__(self, *args: object, **keywords: object) -> None:
        super().__init__(*(self._with_message(args, keywords) if keywords else args))

    def _with_message(self, args: tuple[object, ...], keywords: dict[str, object]) -> tuple[object, ...]:
        """Set attributes from the keywords, and return the arguments with the message that a keyword gives."""
        known = (*self._attribute_keywords, *([self._message_keyword] if self._message_keyword and not args else []))
        for name, value in keywords.items():
            if name not in known:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}")
            if name == self._message_keyword:
                args = () if value is None else (value,)
            elif value is not None:
                setattr(self, name, value.hex() if hasattr(value, "hex") else value)
        return args


class _Words:
    """What an error says, under a name of Ray. An attribute of that name, of the user's own exception, hides it."""

    def __init__(self, attribute: str = "") -> None:
        self._attribute = attribute

    def __get__(self, error: DualrayError | None, owner: type[DualrayError]) -> str:
        if error is None:
            return f"the words of {owner.__name__}"
        return str(getattr(error, self._attribute)) if self._attribute else str(error)


class TaskError(DualrayError):
    """A task or a method of an actor raised an exception.

    `get` raises an instance of a class that derives from both `TaskError` and the type of the user's exception. So
    `except ValueError` and `except TaskError` both work.

    Attributes:
        cause: the user's exception. If a task failed because another one failed, the first exception. If the exception
            cannot be pickled, a `RayError` with the reason and the traceback; if it cannot be unpickled, an
            `UnserializableException`. If the task never ran because an argument
            was lost or never computed, the error of that argument. None if the cause is not known.
        function_name: the name of the task's function, or `Class.method`.
        remote_traceback: the traceback as the worker printed it. Ray calls it `traceback_str`; the other arguments of
            Ray's constructor (`proctitle`, `pid`, `ip`, ...) are ignored.
        heading: the line above the frames in Ray's words, if the task ran under the name `ray`; else "".
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
        if cause is None or isinstance(self, type(cause)):
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
        except Exception as why:  # noqa: BLE001 - a type that allows no second base, or whose own code raises
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
    """`dualray.cancel` cancelled the task, or a task whose result it takes as an argument.

    Attributes:
        task_id: the id, in hex, of the task that `get` was called for. None if it is not known.
    """

    task_id: str | None = None
    error_message = _Words()
    _message_keyword = "error_message"
    _attribute_keywords = ("task_id",)

    def __str__(self) -> str:
        words = super().__str__()
        return f"Task: TaskID({self.task_id}) was cancelled. {words}" if self.task_id and rays_words() else words


class WorkerCrashedError(DualrayError):
    """The worker process that ran a task died, and no retry was left.

    The message has the signal or the exit code, and the last lines of stderr.
    """


class WorkerUnreachableError(WorkerCrashedError):
    """This process cannot reach the worker that had a task, though the head reaches the worker's node.

    No retry was left. The message names both ends of the broken connection.
    """


class TaskUnschedulableError(DualrayError):
    """No node of the cluster can ever meet the task's demand."""

    error_message = _Words()
    _message_keyword = "error_message"


class TaskPlacementGroupRemoved(DualrayError):
    """The task's placement group was removed, before or while the task ran."""


class RunningTaskPlacementGroupRemoved(TaskPlacementGroupRemoved, WorkerCrashedError):
    """The task's placement group was removed while the task ran, which Ray reports as a WorkerCrashedError."""


class PlacementGroupUnschedulableError(DualrayError):
    """The nodes of the cluster can never take all bundles of the placement group; the message names what is missing."""


class ActorError(DualrayError):
    """An actor failed as a whole, and not one of its methods.

    `actor_id` has the actor's id, 32 hexadecimal digits. It is None if dualray did not raise the error.
    `actor_init_failed` is True if its constructor failed. `preempted` is always False, as dualray preempts no actor.
    """

    error_msg = _Words()
    actor_id: str | None = None
    actor_init_failed = False
    preempted = False
    _message_keyword = "error_msg"
    _attribute_keywords = ("actor_id", "actor_init_failed", "preempted")


class ActorDiedError(ActorError):
    """The actor has ended for good, and its calls fail."""


class ActorUnavailableError(ActorError):
    """The actor was lost during this call. It restarts, but the call is not repeated unless max_task_retries is set."""

    _message_keyword = "error_message"


class ActorUnschedulableError(DualrayError):
    """No node of the cluster can ever hold the actor."""

    error_message = _Words()
    _message_keyword = "error_message"


class ActorAlreadyExistsError(ValueError, DualrayError):
    """The name of an actor is taken; the message names the actor that has it."""


class ActorHandleNotFoundError(ValueError, DualrayError):
    """No actor has that name; the message has the nearest name."""


class PendingCallsLimitExceeded(DualrayError):
    """This process has `max_pending_calls` calls of the actor without an answer, and cannot submit another."""


class ActorPlacementGroupRemoved(DualrayError):
    """The actor's placement group was removed."""


class ObjectLostError(DualrayError):
    """The value is gone, evicted or lost with its node, and cannot be recomputed."""


class ReferenceEndedError(DualrayError, ValueError):
    """The cluster that a reference belongs to was shut down, which Ray reports as a ValueError."""


class ObjectReconstructionFailedError(ObjectLostError):
    """The value was lost, and recomputing it failed or no attempt was left."""


class OwnerDiedError(ObjectLostError):
    """The process that owned the value died, and only that process could have recomputed it."""


class ObjectStoreFullError(DualrayError):
    """The object store has no space; the message names the objects that take most of it."""


class OutOfMemoryError(DualrayError):
    """The node was out of memory, so its memory monitor ended the task's worker. No retry was left."""

    message = _Words()
    _message_keyword = "message"


class GetTimeoutError(DualrayError, TimeoutError):
    """`get` did not have every value within its timeout."""


class NodeDiedError(DualrayError):
    """The node that ran the task died."""

    message = _Words()
    _message_keyword = "message"


class RuntimeEnvSetupError(DualrayError):
    """dualray could not prepare the environment of a worker."""

    error_message = _Words()
    _message_keyword = "error_message"


class SerializationError(DualrayError, TypeError):
    """A value, an argument or a function cannot be pickled; the message says which one, and why.

    If a class's own method raised an exception, such as a RuntimeError in `__reduce__`, it is also of that type.
    """


def serialization_error(message: str, cause: Exception) -> SerializationError:
    """Return a SerializationError that an `except` clause for the type of the cause catches, too."""
    return _serialization_error(message, type(cause))


def _serialization_error(message: str, kind: type[Exception]) -> SerializationError:
    if issubclass(SerializationError, kind):
        return SerializationError(message)
    try:
        both = type(f"SerializationError({kind.__name__})", (_SerializationErrorOfUser, kind), {})
        error: BaseException = builtin_base(kind).__new__(both, message)
    except TypeError:  # a type that allows no second base
        return SerializationError(message)
    assert isinstance(error, _SerializationErrorOfUser)
    error.args, error.kind = (message,), kind
    return error


class _SerializationErrorOfUser(SerializationError):
    """Base of the classes that are both SerializationError and the type of what the user's method raised."""

    kind: type[Exception]

    def __init__(self, *args: object) -> None:  # the user's own __init__ may take others
        pass

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return _serialization_error, (self.args[0], self.kind)


class AlreadyInitializedError(DualrayError, RuntimeError):
    """`dualray.init()` was called twice."""

    def __str__(self) -> str:
        words, said = rays_words(), super().__str__()
        return said if words is None else f"{said} ({words.STARTED_TWICE})"


class SimulationDeadlockError(DualrayError):
    """The driver of a simulation waits for something that can never happen; the message lists who waits for what."""


class AuthenticationError(DualrayError):
    """Another process has a different secret or another version of the protocol."""

    message = _Words()
    _message_keyword = "message"


class RaySystemError(DualrayError):
    """dualray itself failed, and not the program."""

    _message_keyword = "client_exc"


class NotInitializedError(RaySystemError, RuntimeError):
    """A function that needs a cluster was called before `dualray.init()`, which Ray reports as a RaySystemError."""

    def __str__(self) -> str:
        words, said = rays_words(), super().__str__()
        return said if words is None else f"{said} ({words.NOT_STARTED})"


class PlacementGroupAlreadyExistsError(PlacementGroupUnschedulableError, RaySystemError):
    """The name of a placement group is taken, which Ray reports as a RaySystemError."""


class ControlPlaneError(RaySystemError):
    """The control plane, Redis or the embedded server, cannot be started or reached."""


class InvalidTransition(RaySystemError):
    """A state machine got an event that its table does not allow. This is a bug in dualray."""


class InvariantViolation(RaySystemError):
    """An invariant of a state machine does not hold. This is a bug in dualray."""


# Names of Ray for what has another name here.
RayError = DualrayError
RayTaskError = TaskError
RayActorError = ActorError


# Ray's exceptions that dualray never raises: an `except` clause may name them.


class OutOfDiskError(DualrayError):
    """Never raised: if the disk is full, dualray raises `ObjectStoreFullError` with that reason."""


class LocalRayletDiedError(DualrayError):
    """Never raised: if the process of a node dies, dualray raises `NodeDiedError`."""


class ObjectFetchTimedOutError(ObjectLostError):
    """Never raised: dualray fetches a slow copy from another node, or raises `ObjectLostError`."""


class ObjectFreedError(ObjectLostError):
    """Never raised: dualray cannot free an object that has references."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """Never raised: if a count of references is wrong, dualray raises `InvariantViolation`."""


class PlasmaObjectNotAvailable(DualrayError):
    """Never raised: if a value is not ready in time, dualray raises `GetTimeoutError`."""


class AsyncioActorExit(DualrayError):
    """Never raised: `exit_actor` ends an async actor as it ends any other."""


class ObjectRefStreamEndOfStreamError(DualrayError):
    """Never raised: a generator that ends raises `StopIteration`."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """Never raised: if a generator yields fewer items when it runs again, the missing ones raise `ObjectLostError`."""


class OufOfBandObjectRefSerializationException(DualrayError):
    """A program pickled a reference, and RAY_allow_out_of_band_object_ref_serialization=0 forbids that."""


class UnserializableException(DualrayError):
    """A task raised an exception that cannot be unpickled: the `cause` of the `TaskError` that `get` raises."""

    _message_keyword = "original_stack_trace"


class UserCodeException(DualrayError):
    """Never raised: the function of a dataset raises its own exception."""


class RpcError(DualrayError):
    """Never raised: dualray raises the error of the task, actor or object that the unreachable process had."""


class CrossLanguageError(DualrayError):
    """Never raised: dualray has no workers in other languages."""


class RayChannelError(RaySystemError):
    """Never raised: dualray has no compiled graphs."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Never raised: dualray has no compiled graphs."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Never raised: dualray has no compiled graphs."""


class RayDirectTransportError(RaySystemError):
    """Never raised: dualray does not send tensors between GPUs."""
