"""How a program ended: its result, or its error with the user's own frames and the values on the line that failed.

A frame is the user's when its file lies outside this package. Frames of dualray are left out, as are the frames that
brought a script here; a traceback of nothing else is empty.
"""

from __future__ import annotations

import json
import re
import reprlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import dualray

__all__ = ["ERROR_CHARACTERS_MAX", "Ended", "call", "error_names", "failed", "from_user", "user_traceback"]

ERROR_CHARACTERS_MAX: Final = 4_000
"""Of an error's message that are kept."""

TRACEBACK_CHARACTERS_MAX: Final = 20_000
"""Of a traceback that are kept: its end."""

VALUES_MAX: Final = 8
"""Variables of the line that failed that are shown."""

_OURS: Final = str(Path(dualray.__file__).parent)
_HIDDEN: Final = (_OURS, "dualray/", "<frozen runpy>")  # the second: a compiled module's file name begins with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one program ended. Plain values only.

    Attributes:
        result: what it returned, or the last line that a script printed, as JSON gives it back; None when it failed.
        error: the names of the error's class and its bases, most derived first; empty when the program succeeded.
        message: the error's.
        where: the user's line that raised it, such as "train.py:24"; "" when unknown.
        traceback: the user's frames, and the values of the line that failed.
        output: what a script printed.
    """

    result: Any = None
    error: tuple[str, ...] = ()
    message: str = ""
    where: str = ""
    traceback: str = ""
    output: str = ""


def call(program: Callable[[], Any]) -> Ended:
    """Call a program and keep its result or its error."""
    try:
        return Ended(result=json.loads(json.dumps(program(), default=_plain)))
    except Exception as raised:  # noqa: BLE001  # it is the program's, and part of the outcome
        return failed(raised)


def failed(error: BaseException, output: str = "") -> Ended:
    """How a program ended that raised this error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if _is_users(frame.f_code.co_filename)]
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if _is_users(frame.f_code.co_filename)]
    where = f"{Path(frames[-1].f_code.co_filename).name}:{lines[-1]}" if frames else ""
    return Ended(
        error=error_names(error),
        message=str(error)[:ERROR_CHARACTERS_MAX],
        where=where,
        traceback=(user_traceback(error) + _values_of(error))[-TRACEBACK_CHARACTERS_MAX:] if frames else "",
        output=output,
    )


def _plain(value: Any) -> Any:
    """What JSON cannot say: numpy's numbers and arrays, bytes, sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return repr(value)


def error_names(error: BaseException) -> tuple[str, ...]:
    """The names of an error's class and its bases, most derived first."""
    return tuple(cls.__name__ for cls in type(error).__mro__ if cls is not object)


# ---- tracebacks ------------------------------------------------------------------------------------------------------


def from_user(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on; None: the script was not even compiled."""
    while trace is not None and not _is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def user_traceback(error: BaseException) -> str:
    """As Python prints it, without frames of dualray."""
    shown = traceback.TracebackException(type(error), error, from_user(error.__traceback__), compact=True)
    for each in _chain(shown, set()):
        each.stack = traceback.StackSummary.from_list([frame for frame in each.stack if _is_users(frame.filename)])
    return "".join(shown.format())


def _is_users(file: str) -> bool:
    return not file.startswith(_HIDDEN)


def _chain(shown: traceback.TracebackException, seen: set[int]) -> Iterator[traceback.TracebackException]:
    """An error with its causes and contexts, each once."""
    if id(shown) in seen:
        return
    seen.add(id(shown))
    yield shown
    for other in (shown.__cause__, shown.__context__):
        if other is not None:
            yield from _chain(other, seen)


def _values_of(error: BaseException) -> str:
    """The variables that the failing line of the user names, one a line."""
    last = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_users(frame.f_code.co_filename):
            last = frame, line
    if last is None:
        return ""
    frame, line = last
    source = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name).line or ""
    known = {**frame.f_globals, **frame.f_locals}
    names = [name for name in dict.fromkeys(re.findall(r"(?<![\w.])[A-Za-z_]\w*", source)) if name in known]
    shown = []
    for name in names:
        value = known[name]
        if callable(value) or type(value).__name__ == "module":
            continue
        try:
            shown.append(f"  {name} = {_SHORT.repr(value)}\n")
        except Exception:  # noqa: BLE001 - a repr of the user's own that fails must not hide the error
            continue
    return "".join([f"values at line {line}:\n", *shown[:VALUES_MAX]]) if shown else ""


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
