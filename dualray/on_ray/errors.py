"""Errors between Ray and dualray.

What a task raises travels in a `Carrier`: Ray pickles an exception by its type and `args`, and loses those whose
constructor takes others. A carrier holds it pickled whole, and is unpacked where it is read. Ray decides by the type
whether a task is tried again: `RetriedCarrier` is the one that it is told of.

Ray's own errors become those of the same name; dualray.exceptions has them all.
"""

from __future__ import annotations

import io
import traceback
from typing import Any, NoReturn

import ray
from ray import cloudpickle

from dualray import exceptions
from dualray.exceptions import DualrayError, TaskError
from dualray.shared.core.serialization import has_default_reduce, reduce_exception


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # it ships no types
    """Ray's own pickler, which knows again the classes that came by value, with exceptions as dualray keeps them."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException) and has_default_reduce(type(obj)):
            return reduce_exception(obj)
        return super().reducer_override(obj)


def pickled(value: Any) -> bytes:
    """A value as bytes, for `cloudpickle.loads`."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


class Carrier(Exception):
    """What a task has raised, pickled: a `TaskError`. Its text is the traceback of the user's code."""

    def __init__(self, data: bytes, text: str) -> None:
        super().__init__(data, text)
        self.data = data
        self.text = text

    def __str__(self) -> str:
        return self.text


class RetriedCarrier(Carrier):
    """The same of an exception for which the task is tried again, while it has retries left."""


Retried = bool | tuple[type[BaseException], ...]
"""Of which exceptions a call is tried again: none, all, or those."""


def carried(name: str, exception: BaseException, retried: Retried) -> Carrier:
    """What a task raises towards Ray, of what its code has raised."""
    is_retried = retried is True or (isinstance(retried, tuple) and isinstance(exception, retried))
    text = _traceback_of(exception)
    try:
        data = pickled(TaskError(name, text, exception))
        cloudpickle.loads(data)
    except Exception as why:  # noqa: BLE001 - pickling runs the user's code
        note = f"{text}(The exception itself could not be pickled: {why})\n"
        cause = DualrayError(
            f"{type(exception).__qualname__} isn't serializable, so the exception itself could not be sent: {why}\n"
            f"Its traceback:\n{text}"
        )
        data = pickled(TaskError(name, note, cause))
    text = text.encode("utf-8", "backslashreplace").decode()  # Ray's worker dies of what is not Unicode
    return (RetriedCarrier if is_retried else Carrier)(data, text)


_LAYERS = ("/dualray/", "/ray/_private/", "/ray/actor.py", "/ray/util/tracing/")


def _traceback_of(exception: BaseException) -> str:
    """The traceback without the frames of dualray and Ray above the user's code."""
    frames = exception.__traceback__
    while frames is not None and any(part in "/" + frames.tb_frame.f_code.co_filename for part in _LAYERS):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(exception), exception, frames))


_HINTS = {"ActorUnavailableError": " A call that may be repeated has max_task_retries."}
"""What Ray's sentence leaves out."""


def translated(error: BaseException) -> BaseException:
    """An error of Ray's as dualray raises it; another one as it is."""
    if not isinstance(error, ray.exceptions.RayError):
        return error
    if isinstance(error, ray.exceptions.RayTaskError):
        return _of_task(error)
    for cls in type(error).__mro__:
        found: Any = getattr(exceptions, cls.__name__, None)
        if isinstance(found, type) and issubclass(found, DualrayError) and not issubclass(found, TaskError):
            ours = found(f"{error}{_HINTS.get(found.__name__, '')}")
            actor_id = getattr(error, "actor_id", None)
            if actor_id and hasattr(ours, "actor_id"):
                ours.actor_id = actor_id
            return ours
    return DualrayError(str(error))


def _of_task(error: Any) -> BaseException:
    cause = error.cause
    if isinstance(cause, Carrier):
        failure: BaseException = cloudpickle.loads(cause.data)
        return failure.as_instance_of_cause() if isinstance(failure, TaskError) else failure
    if isinstance(cause, ray.exceptions.RayError) and not isinstance(cause, ray.exceptions.RayTaskError):
        return translated(cause)  # a coroutine that was cancelled, among others
    # What Ray has made an instance of the user's type too has the text alone.
    name, text = getattr(error, "function_name", "a task"), getattr(error, "traceback_str", None) or str(error)
    return TaskError(name, text, cause).as_instance_of_cause()


def raise_translated(error: BaseException) -> NoReturn:
    """Raise what `translated` gives."""
    found = translated(error)
    if found is error:
        raise error
    raise found from None
