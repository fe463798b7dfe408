"""Every error that dualray raises on purpose, and every public exception of Ray 2.60 under its name.

    DualrayError, RayError
    ├── TaskError, RayTaskError          a task or method raised an exception; also an instance of its type
    ├── TaskCancelledError               the task was cancelled, or a task whose result this task needs
    ├── WorkerCrashedError               the process that ran the task died, and no retry was left
    │   └── WorkerUnreachableError       this process cannot reach the worker, which may be alive
    ├── TaskUnschedulableError           no node of the cluster can ever meet the task's demand
    ├── TaskPlacementGroupRemoved        the placement group that the task runs in was removed
    │   └── RunningTaskPlacementGroupRemoved   (also WorkerCrashedError) the group was removed while the task ran
    ├── PlacementGroupUnschedulableError the nodes of the cluster can never hold all bundles of the group
    │   └── PlacementGroupAlreadyExistsError   (also RaySystemError) another placement group has the name
    ├── ActorError, RayActorError
    │   ├── ActorDiedError               the actor has ended, and does not restart
    │   └── ActorUnavailableError        the actor was lost during this call, and restarts
    ├── ActorAlreadyExistsError          (also ValueError) another actor has the name
    ├── ActorHandleNotFoundError         (also ValueError) no actor has the name
    ├── PendingCallsLimitExceeded        the caller has max_pending_calls unfinished calls of the actor
    ├── ActorPlacementGroupRemoved       the actor's placement group was removed
    ├── ActorUnschedulableError          no node of the cluster can ever hold the actor
    ├── ObjectLostError                  the value is lost, and dualray cannot recompute it
    │   ├── ObjectReconstructionFailedError   recomputing the lost value failed
    │   └── OwnerDiedError               the process that owns the value died
    ├── ReferenceEndedError              (also ValueError) the cluster of the reference was shut down
    │   └── ActorHandleEndedError        (also ActorHandleNotFoundError) the cluster of the handle was shut down
    ├── ObjectStoreFullError             the object store has no space, even after eviction and a wait
    ├── OutOfMemoryError                 the node's memory monitor ended the worker
    ├── GetTimeoutError                  (also TimeoutError) a value was not ready within the timeout of `get`
    ├── NodeDiedError                    the node that ran the task died
    ├── RuntimeEnvSetupError             dualray could not set up the runtime environment
    ├── SerializationError               (also TypeError) a value, argument or function cannot be pickled
    ├── AlreadyInitializedError          (also RuntimeError) the program called `init` twice
    ├── SimulationDeadlockError          the driver waits for something that can never happen
    ├── AuthenticationError              another process does not have the cluster's secret
    └── RaySystemError                   dualray itself failed, and not the program
        ├── NotInitializedError          (also RuntimeError) the call needs a cluster
        ├── ControlPlaneError            the control plane cannot be reached or started
        └── InvalidTransition, InvariantViolation      a bug in dualray itself

dualray also defines Ray's other exceptions, so that an `except` clause can name them, but never raises them. An
`except` clause that catches an exception of Ray also catches the corresponding exception of dualray.

The message of each error says what happened to which id and function, and what you can do about it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, ClassVar


def rays_words() -> Any:
    """Return the module with Ray's words for errors if `import ray` imports dualray, else None."""
    package = sys.modules.get("dualray.as_ray")
    return import_module("dualray.as_ray.error_words") if package is not None and package.is_installed() else None


class DualrayError(Exception):
    """Base class of every error that dualray raises on purpose."""

    _message_keyword: ClassVar[str] = ""
    """The name of the message's argument in Ray's constructor."""
    _attribute_keywords: ClassVar[tuple[str, ...]] = ()
    """The other arguments of Ray's constructor, which become attributes."""

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
    """The text of an error under an attribute name of Ray. A user's attribute of this name hides it."""

    def __init__(self, attribute: str = "") -> None:
        self._attribute = attribute

    def __get__(self, error: DualrayError | None, owner: type[DualrayError]) -> str:
        if error is None:
            return f"the words of {owner.__name__}"
        return str(getattr(error, self._attribute)) if self._attribute else str(error)


class TaskError(DualrayError):
    """A task or a method of an actor raised an exception.

    `get` raises an instance of a class that derives from both `TaskError` and the type of the user's exception. If a
    task raises a ValueError, `except ValueError` and `except TaskError` both work.

    Attributes:
        cause: the exception that the task raised, or the exception of another task that made this task fail. `cause`
            is a `RayError` if the exception cannot be pickled, and an `UnserializableException` if the exception cannot
            be unpickled. If the task never ran because of a lost argument, `cause` is the error of the argument.
            `cause` is None if dualray does not have the exception.
        function_name: the name of the task's function, or `Class.method`.
        remote_traceback: the traceback as the worker printed it. Ray calls this attribute `traceback_str`. The
            constructor accepts and ignores the other arguments of Ray's constructor (`proctitle`, `pid`, `ip`, ...).
        heading: the line that Ray prints above the traceback, if the program imports `ray`. In other
            programs, `heading` is "".
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
        """Return this error as an instance of both TaskError and the type of the user's exception."""
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
        """Ray's name for `as_instance_of_cause`."""
        return self.as_instance_of_cause()

    make_dual_exception_instance = as_instanceof_cause


def _cause_alone(error: TaskError) -> tuple[BaseException | None]:
    """Return the `args` of a task's error, as Ray sets them."""
    return (error.cause,)


def builtin_base(cls: type[BaseException]) -> type[BaseException]:
    """Return the builtin exception class that a class derives from. It creates instances without running user code."""
    return next(base for base in cls.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))


def _copy_attributes(source: BaseException, target: BaseException) -> None:
    """Copy all attributes of an exception: those in `__dict__`, in slots, and in Python's own fields such as errno."""
    target.__dict__.update(source.__dict__)
    for base in type(source).__mro__:
        for name, field in vars(base).items():
            if isinstance(field, MemberDescriptorType | GetSetDescriptorType) and not name.startswith("__"):
                with suppress(AttributeError, TypeError):  # not set, or set by __new__ and fixed since
                    setattr(target, name, getattr(source, name))


class _TaskErrorWithCause(TaskError):
    """Base of the classes that are both TaskError and the user's type. Instances are pickled as the plain TaskError."""

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
    """`dualray.cancel` cancelled the task, or another task whose result is an argument of the task.

    Attributes:
        task_id: the id, in hex, of the task whose result the program requested, or None.
    """

    task_id: str | None = None
    error_message = _Words()
    _message_keyword = "error_message"
    _attribute_keywords = ("task_id",)

    def __str__(self) -> str:
        words = super().__str__()
        return f"Task: TaskID({self.task_id}) was cancelled. {words}" if self.task_id and rays_words() else words


class WorkerCrashedError(DualrayError):
    """The worker process that ran a task died, and the task had no retry left.

    The message contains the signal or the exit code, and the last lines of the worker's stderr.
    """


class WorkerUnreachableError(WorkerCrashedError):
    """This process cannot reach the worker of a task, and the task has no retry left.

    The head can reach the worker's node. The message names both ends of the broken connection.
    """


class TaskUnschedulableError(DualrayError):
    """No node of the cluster can ever meet the task's demand."""

    error_message = _Words()
    _message_keyword = "error_message"


class TaskPlacementGroupRemoved(DualrayError):
    """The task's placement group was removed before or while the task ran."""


class RunningTaskPlacementGroupRemoved(TaskPlacementGroupRemoved, WorkerCrashedError):
    """The task's placement group was removed while the task ran. Ray raises a WorkerCrashedError instead."""


class PlacementGroupUnschedulableError(DualrayError):
    """The nodes of the cluster can never hold the placement group. The message names the missing resources."""


class ActorError(DualrayError):
    """An actor failed as a whole, and not only one of its methods.

    `actor_id` is the actor's id (32 hex digits), or None if dualray did not raise the error. `actor_init_failed` is
    True if the actor's constructor failed. `preempted` is always False, because dualray preempts no actor.
    """

    error_msg = _Words()
    actor_id: str | None = None
    actor_init_failed = False
    preempted = False
    _message_keyword = "error_msg"
    _attribute_keywords = ("actor_id", "actor_init_failed", "preempted")


class ActorDiedError(ActorError):
    """The actor has ended and does not restart, so its calls fail."""


class ActorUnavailableError(ActorError):
    """The actor died during this call, and restarts. dualray repeats a lost call only with max_task_retries."""

    _message_keyword = "error_message"


class ActorUnschedulableError(DualrayError):
    """No node of the cluster can ever hold the actor."""

    error_message = _Words()
    _message_keyword = "error_message"


class ActorAlreadyExistsError(ValueError, DualrayError):
    """The program created an actor with a name that another actor has. The message names the other actor."""


class ActorHandleNotFoundError(ValueError, DualrayError):
    """The program asked for a name that no actor has. The message contains the most similar name of an actor."""


class PendingCallsLimitExceeded(DualrayError):
    """This process already has `max_pending_calls` unfinished calls of the actor, and cannot submit another call."""


class ActorPlacementGroupRemoved(DualrayError):
    """The actor's placement group was removed."""


class ObjectLostError(DualrayError):
    """The value was evicted, or lost with its node, and dualray cannot recompute it."""


class ReferenceEndedError(ValueError, DualrayError):
    """The program has shut down the cluster that the reference belongs to. Ray raises a ValueError instead."""


class ActorHandleEndedError(ReferenceEndedError, ActorHandleNotFoundError):
    """The program has shut down the cluster that the handle belongs to."""


class ObjectReconstructionFailedError(ObjectLostError):
    """The value was lost, and recomputing it failed, or its task had no attempt left."""


class OwnerDiedError(ObjectLostError):
    """The process that owned the value died, and only the owner could have recomputed the value."""


class ObjectStoreFullError(DualrayError):
    """The object store has no space. The message names the objects that take most of the space."""


class OutOfMemoryError(DualrayError):
    """The node ran out of memory, and its memory monitor ended the task's worker. The task had no retry left."""

    message = _Words()
    _message_keyword = "message"


class GetTimeoutError(DualrayError, TimeoutError):
    """A value was not ready within the timeout of `get`."""


class NodeDiedError(DualrayError):
    """The node that ran the task died."""

    message = _Words()
    _message_keyword = "message"


class RuntimeEnvSetupError(DualrayError):
    """dualray could not set up the runtime environment of a worker."""

    error_message = _Words()
    _message_keyword = "error_message"


class SerializationError(DualrayError, TypeError):
    """A value, an argument or a function cannot be pickled. The message says which one, and why.

    If a method such as `__reduce__` raised an exception, the SerializationError is also an instance of the exception's
    type.
    """


def serialization_error(message: str, cause: Exception) -> SerializationError:
    """Return a SerializationError that is also an instance of the type of its cause."""
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
    """The program called `dualray.init()` twice, without `shutdown` in between."""

    def __str__(self) -> str:
        words, said = rays_words(), super().__str__()
        return said if words is None else f"{said} ({words.STARTED_TWICE})"


class SimulationDeadlockError(DualrayError):
    """A simulated program waits for something that can never happen. The message lists what waits, and why."""


class AuthenticationError(DualrayError):
    """Another process has a different secret of the cluster, or another version of dualray's protocol."""

    message = _Words()
    _message_keyword = "message"


class RaySystemError(DualrayError):
    """dualray itself failed, and not the program."""

    _message_keyword = "client_exc"


class NotInitializedError(RaySystemError, RuntimeError):
    """A program called a function that needs a cluster before `dualray.init()`. Ray raises a RaySystemError instead."""

    def __str__(self) -> str:
        words, said = rays_words(), super().__str__()
        return said if words is None else f"{said} ({words.NOT_STARTED})"


class PlacementGroupAlreadyExistsError(PlacementGroupUnschedulableError, RaySystemError):
    """The program created a placement group with the name of another one. Ray raises a RaySystemError instead."""


class ControlPlaneError(RaySystemError):
    """dualray cannot start or reach the control plane's server (Redis or the embedded server)."""


class InvalidTransition(RaySystemError):
    """A bug in dualray: a state machine got an event that its table does not allow."""


class InvariantViolation(RaySystemError):
    """A bug in dualray: an invariant of a state machine does not hold."""


# Names of Ray for what has another name here.
RayError = DualrayError
RayTaskError = TaskError
RayActorError = ActorError


# Ray's exceptions that dualray never raises: an `except` clause may name them.


class OutOfDiskError(DualrayError):
    """Never raised: if the disk is full, dualray raises an `ObjectStoreFullError` that names the disk."""


class LocalRayletDiedError(DualrayError):
    """Never raised: if the process of a node dies, dualray raises `NodeDiedError`."""


class ObjectFetchTimedOutError(ObjectLostError):
    """Never raised: if a copy does not arrive in time, dualray fetches another copy, or raises `ObjectLostError`."""


class ObjectFreedError(ObjectLostError):
    """Never raised: dualray has no call that frees an object while references to it exist."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """Never raised: if a reference count is wrong, dualray raises `InvariantViolation`."""


class PlasmaObjectNotAvailable(DualrayError):
    """Never raised: if a value is not ready in time, dualray raises `GetTimeoutError`."""


class AsyncioActorExit(DualrayError):
    """Never raised: `exit_actor` ends an async actor in the same way as any other actor."""


class ObjectRefStreamEndOfStreamError(DualrayError):
    """Never raised: a generator that ends raises `StopIteration`."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """Never raised: if a generator yields fewer items in a retry, the missing items raise `ObjectLostError`."""


class OufOfBandObjectRefSerializationException(DualrayError):
    """A program pickled a reference, which RAY_allow_out_of_band_object_ref_serialization=0 forbids."""


class UnserializableException(DualrayError):
    """A task raised an exception that cannot be unpickled. The `cause` of the `TaskError` is this error."""

    _message_keyword = "original_stack_trace"


class UserCodeException(DualrayError):
    """Never raised: a dataset raises the exception of the user's function itself."""


class RpcError(DualrayError):
    """Never raised: if dualray cannot reach a process, tasks, actors and objects fail with another error."""


class CrossLanguageError(DualrayError):
    """Never raised: dualray has no workers in other languages."""


class RayChannelError(RaySystemError):
    """Never raised: dualray has no compiled graphs."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Never raised: dualray has no compiled graphs."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Never raised: dualray has no compiled graphs."""


class RayDirectTransportError(RaySystemError):
    """Never raised: dualray does not send tensors directly between GPUs."""
