"""Converts errors of the core to exceptions for users, and exceptions of user code to payloads of messages."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from dualray import exceptions
from dualray.exceptions import DualrayError, SerializationError, TaskCancelledError, TaskError
from dualray.shared.core.host import Host
from dualray.shared.core.layout import deserialize
from dualray.shared.core.serialization import class_name, in_words, serialize
from dualray.shared.handles import ActorExit
from dualray.shared.machines.owner.value import PassedBy
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import TaskID

_ERRORS: dict[ErrorKind, type[DualrayError]] = {
    ErrorKind.APPLICATION: exceptions.TaskError,
    ErrorKind.WORKER_CRASHED: exceptions.WorkerCrashedError,
    ErrorKind.NODE_DIED: exceptions.NodeDiedError,
    ErrorKind.WORKER_UNREACHABLE: exceptions.WorkerUnreachableError,
    ErrorKind.TASK_CANCELLED: exceptions.TaskCancelledError,
    ErrorKind.TASK_UNSCHEDULABLE: exceptions.TaskUnschedulableError,
    ErrorKind.ACTOR_UNSCHEDULABLE: exceptions.ActorUnschedulableError,
    ErrorKind.TASK_GROUP_REMOVED: exceptions.TaskPlacementGroupRemoved,
    ErrorKind.ACTOR_GROUP_REMOVED: exceptions.ActorPlacementGroupRemoved,
    ErrorKind.GROUP_UNSCHEDULABLE: exceptions.PlacementGroupUnschedulableError,
    ErrorKind.ACTOR_DIED: exceptions.ActorDiedError,
    ErrorKind.ACTOR_UNAVAILABLE: exceptions.ActorUnavailableError,
    ErrorKind.ACTOR_EXISTS: exceptions.ActorAlreadyExistsError,
    ErrorKind.ACTOR_NOT_FOUND: exceptions.ActorHandleNotFoundError,
    ErrorKind.OBJECT_LOST: exceptions.ObjectLostError,
    ErrorKind.RECONSTRUCTION_FAILED: exceptions.ObjectReconstructionFailedError,
    ErrorKind.OWNER_DIED: exceptions.OwnerDiedError,
    ErrorKind.STORE_FULL: exceptions.ObjectStoreFullError,
    ErrorKind.UNREACHABLE: exceptions.ObjectLostError,
    ErrorKind.OUT_OF_MEMORY: exceptions.OutOfMemoryError,
}

TEXT_MAX = 1 << 20
"""Most characters of a task's traceback in a message. dualray cuts the middle out of a longer traceback."""

_LOSSES = (ErrorKind.OBJECT_LOST, ErrorKind.RECONSTRUCTION_FAILED, ErrorKind.OWNER_DIED, ErrorKind.UNREACHABLE)


_CONSTRUCTOR_RAISED = "The constructor of actor "
"""The beginning of the reason for the end of an actor whose constructor failed."""


def as_exception(error: ErrorInfo, payload: bytes | None, task_id: TaskID | None = None) -> DualrayError:
    """Return the exception that `get` raises for a failed object. `payload` is the pickled exception of user code, if
    there is one. `task_id` is the task that computes the object, if it is known."""
    if error.kind is not ErrorKind.APPLICATION and (payload is None or not error.has_exception):
        message = _in_full(error.message) if error.kind in _SAID_IN_FULL else error.message
        made = _class_of(error)(message)
        if error.actor is not None and isinstance(made, exceptions.ActorError):
            made.actor_id = error.actor.hex()
        if task_id is not None and isinstance(made, exceptions.TaskCancelledError):
            made.task_id = task_id.hex()
        if error.kind is ErrorKind.ACTOR_DIED and (
            error.message.startswith(_CONSTRUCTOR_RAISED) or _OF_CONSTRUCTOR in error.message
        ):
            vars(made)["actor_init_failed"] = True
        return made
    if payload is None:
        return TaskError("a task", error.message)
    failure: TaskError = deserialize(payload)
    return failure.as_instance_of_cause()


_OF_CONSTRUCTOR = "an argument of its constructor failed"


def _class_of(error: ErrorInfo) -> type[DualrayError]:
    if error.kind is ErrorKind.TASK_GROUP_REMOVED and " was lost: Worker " in error.message:
        return exceptions.RunningTaskPlacementGroupRemoved
    if (
        error.kind is ErrorKind.GROUP_UNSCHEDULABLE
        and " cannot be created: a group exists with the name " in error.message
    ):
        return exceptions.PlacementGroupAlreadyExistsError
    is_constructor = error.kind is ErrorKind.ACTOR_DIED and error.message.startswith(_CONSTRUCTOR_RAISED)
    if is_constructor and "RuntimeEnvSetupError: " in error.message and "setup hook" not in error.message:
        return exceptions.RuntimeEnvSetupError
    return _ERRORS[error.kind]


_IN_FULL = (
    ("Its last handle is gone.", "The actor is dead because all references to the actor were removed."),
    ("exit_actor() was called in ", "Or it was sys.exit(0)."),
)
"""Beginnings of reasons for the end of an actor, and Ray's words that dualray appends, for programs that search for
them. Messages between processes do not have these words, because longer messages would change simulated times."""


_UNDER_THE_NAME = (
    ("it was killed by `ray.kill`", "The actor is dead because it was killed by `ray.kill`."),
    ("because its worker process has died", "The actor died unexpectedly before finishing this task."),
)
"""Reasons and Ray's words for them that only programs with `import ray` see."""


_NOT_MADE_AGAIN = (
    ("was created by put(), and no task can recompute it", "PUT"),
    ("the reconstruction policy forbids it", "LINEAGE_DISABLED"),
    ("is no longer known", "LINEAGE_EVICTED"),
    ("has no attempt left", "MAX_ATTEMPTS_EXCEEDED"),
)
"""The reasons why an object cannot be recomputed, each with the end of Ray's name for the reason."""
_SAID_IN_FULL = (ErrorKind.ACTOR_DIED, ErrorKind.RECONSTRUCTION_FAILED)


def _in_full(message: str) -> str:
    of_constructor = message.partition(" raised: \x1b[36mray::")  # in Ray's words already, as its worker has the name
    if of_constructor[2]:
        words = "The actor died because of an error raised in its creation task, "
        return f"{words}\x1b[36mray::{of_constructor[2]}".rstrip()
    if exceptions.rays_words() is not None:
        for why, name in _NOT_MADE_AGAIN:
            if why in message:
                of_actor = " (Its arguments: ObjectReconstructionFailedError)" if _OF_CONSTRUCTOR in message else ""
                return f"{message}{of_actor} [OBJECT_UNRECONSTRUCTABLE_{name}]"
    for reason, more in _IN_FULL if exceptions.rays_words() is None else (*_IN_FULL, *_UNDER_THE_NAME):
        if reason in message:
            return f"{message} ({more})"
    return message


def is_of_argument(error: ErrorInfo, *, is_own: bool) -> bool:
    """Return whether a task failed because of an argument. `is_own`: this task was the first that the error stopped, so
    the error can only be the loss of one of its arguments."""
    return error.kind in _LOSSES if is_own else not error.has_exception


def names_of(passed: PassedBy | None) -> tuple[str, ...]:
    """Return the tasks of a chain, each of which failed because the task before it failed; the last task comes first.
    Of a long chain, the names in the middle are left out."""
    names: list[str] = []
    while passed is not None:
        names.append(passed[0])
        passed = passed[1]
    if len(names) > _NAMES_MAX:
        half = _NAMES_MAX // 2
        names[half:-half] = [f"{len(names) - 2 * half} more"]
    return tuple(names)


_NAMES_MAX = 20


def as_argument_error(names: tuple[str, ...], error: ErrorInfo) -> DualrayError:
    """Return the exception that `get` raises for the result of a task that could not run because an argument failed.
    The exception's cause is the argument's error. `names`: the failed tasks; the last of them failed first."""
    cause = as_exception(error, None)
    words = exceptions.rays_words()
    if words is None:
        return TaskError(names[-1], f"{_NOT_COMPUTED}\n{cause}", cause).as_instance_of_cause()
    text = f"{words.FIRST}\n  {_NOT_COMPUTED}\nray.exceptions.{type(cause).__name__}: {cause}"
    heading = words.headings(names[:-1], words.heading_here(names[-1]))
    return _failure(names[-1], text, cause, heading).as_instance_of_cause()


_NOT_COMPUTED = "At least one of the input arguments for this task could not be computed:"


def passed_by(names: tuple[str, ...], error: DualrayError) -> DualrayError:
    """Return the error of a task that made these tasks fail, the last first. With `import ray`, it names them."""
    words = exceptions.rays_words()
    if names and words is not None and isinstance(error, TaskError) and error.heading:
        error.heading = words.headings(names, error.heading)
    return error


def failure_in_words(task_id: TaskID, name: str, error: ErrorInfo) -> str:
    """Return the words about a task's error that the program never read; "" if the program disabled them, as on Ray."""
    words = exceptions.rays_words()
    if words is not None and words.takes_unread(as_exception(error, None)):
        return ""
    heading = f"dualray: {name} (task {task_id.hex()}) failed, and the program never read its error:"
    return f"{heading}\n{error.message.rstrip()}\n"


def is_of_task(exception: BaseException, host: Host, *, is_coroutine: bool = False) -> bool:
    """Return whether an exception of user code is the error of its task, as in Ray. Other exceptions end the process,
    the actor or a coroutine, or come from Ctrl-C."""
    if isinstance(exception, (SystemExit, ActorExit)) or (is_coroutine and isinstance(exception, GeneratorExit)):
        return False
    return not host.is_of_process(exception)


def as_cancellation(message: str, task_id: TaskID, interrupt: BaseException) -> TaskCancelledError:
    """Turn the exception that ended a running task into a TaskCancelledError with its traceback, as Ray does. Frames of
    dualray are left out, also those below the task's code: where the task waited is not of interest."""
    made = TaskCancelledError(message)
    made.task_id = task_id.hex()
    return made.with_traceback(_of_user(interrupt.__traceback__))


def _of_user(frames: TracebackType | None) -> TracebackType | None:
    found: list[TracebackType] = []
    while frames is not None:
        if not _is_ours(frames.tb_frame.f_code.co_filename):
            found.append(frames)
        frames = frames.tb_next
    below: TracebackType | None = None
    for each in reversed(found):
        below = TracebackType(below, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return below


_E = TypeVar("_E", bound=BaseException)


def readable(exception: _E) -> _E | DualrayError:
    """Return the exception, or another error if reading the exception's class or traceback raises."""
    try:
        isinstance(exception, DualrayError)  # reads `__class__`
        exception.__traceback__  # noqa: B018 - a class may define it as a property
    except Exception as why:  # noqa: BLE001 - it is the user's code
        made = DualrayError(f"{class_name(exception)} was raised, but it cannot be read: {in_words(why)}")
        return made.with_traceback(_TRACEBACK.__get__(exception))
    return exception


_TRACEBACK: Any = vars(BaseException)["__traceback__"]


def as_payload(function_name: str, exception: BaseException, instance: Any = None) -> tuple[bytes, ErrorInfo]:
    """Return the pickled exception of user code, and the error for its task. `instance` is the actor that raised it."""
    text = _user_traceback(exception)
    words = exceptions.rays_words()
    heading = "" if words is None else words.heading(function_name, instance)
    try:
        payload = serialize(_failure(function_name, text, exception, heading)).to_bytes()
    except Exception as error:  # noqa: BLE001 - pickling runs the user's code
        why = str(error) if isinstance(error, SerializationError) else in_words(error)
        note = f"{text}(The exception itself could not be pickled: {why})\n"
        cause = DualrayError(
            f"{class_name(exception)} isn't serializable, so the exception itself could not be sent: {why}\n"
            f"Its traceback:\n{text}"
        )
        payload = serialize(_failure(function_name, note, cause, heading)).to_bytes()
    else:
        payload = _readable(payload, function_name, text, exception, heading)
    text = text if words is None else words.worded(heading, text) + "\n"
    return payload, ErrorInfo(kind=ErrorKind.APPLICATION, message=text)


def _readable(payload: bytes, function_name: str, text: str, exception: BaseException, heading: str) -> bytes:
    """Return the payload if it can be unpickled, else a payload whose cause is an UnserializableException."""
    try:
        deserialize(payload)
    except Exception as why:  # noqa: BLE001 - the user's code runs when its exception is read
        cause = exceptions.UnserializableException(
            f"{type(exception).__qualname__} can be pickled, but not unpickled: {why}\nIts traceback:\n{text}"
        )
        if heading:
            words = exceptions.rays_words()
            return serialize(_failure(function_name, text, cause, words.unreadable(heading))).to_bytes()
        note = f"{text}(The exception itself could not be unpickled: {why})\n"
        return serialize(_failure(function_name, note, cause, "")).to_bytes()
    return payload


def _failure(function_name: str, text: str, cause: BaseException, heading: str) -> TaskError:
    failure = TaskError(function_name, text, cause)
    if heading:
        failure.heading = heading
    return failure


class Raising:
    """A result that raises an error when it is read, while other results of the task have values. `payload` is the
    pickled error from `as_payload`."""

    __slots__ = ("_payload",)

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def __reduce__(self) -> tuple[object, ...]:
        return _raise, (self._payload,)


def _raise(payload: bytes) -> NoReturn:
    failure: TaskError = deserialize(payload)
    raise failure.as_instance_of_cause()


def _user_traceback(exception: BaseException) -> str:
    """Return the traceback without frames of dualray, or only the message of an error that dualray raised itself."""
    frames = _TRACEBACK.__get__(exception)
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(exception), exception, frames))
    except Exception as why:  # noqa: BLE001 - formatting reads attributes of the user's exception
        lines = traceback.format_tb(frames)
        text = "".join(lines) + f"{class_name(exception)} (it cannot be shown: {in_words(why)})\n"
    return _bounded(text)


def _bounded(text: str) -> str:
    """Return the text, or its two ends if the text is too long for a message."""
    left_out = len(text) - TEXT_MAX
    if left_out <= 0:
        return text
    half = TEXT_MAX // 2
    return f"{text[:half]}\n... {left_out:,} characters left out ...\n{text[-half:]}"


def _is_ours(filename: str) -> bool:
    """Return whether a file is a module of dualray. The file name of a compiled module begins with `dualray/`."""
    return "/dualray/" in "/" + filename.replace("\\", "/")
