"""Are these the arguments of that function? For scenario files, whose `kwargs` are written by hand."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from dualray.shared.nearest import nearest
from dualray.shared.units import parse_size_bytes, parse_time_ns


class ArgumentError(ValueError):
    """An argument of a workload is wrong.

    Attributes:
        key: the argument's name.
        is_value: whether it is its value that is wrong.
    """

    def __init__(self, words: str, key: str, *, is_value: bool = False) -> None:
        super().__init__(words)
        self.key = key
        self.is_value = is_value


def check_arguments(name: str, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Whether a function can be called with these.

    Raises:
        ArgumentError: one that it does not have, or that is missing.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of what is written in C
        return
    named = [it for it in parameters if it.kind in (it.KEYWORD_ONLY, it.POSITIONAL_OR_KEYWORD)]
    known = [it.name for it in named]
    if not any(it.kind is it.VAR_KEYWORD for it in parameters):
        for key in kwargs:
            if key not in known:
                raise ArgumentError(f"{name} has no {key!r}{nearest(key, known)}", key)
    for it in named:
        if it.default is it.empty and it.name not in kwargs:
            raise ArgumentError(f"{name} needs {it.name!r}", it.name)


_TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}


def check_types(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Whether the arguments of a function that takes numbers and texts are of the types that it declares.

    Raises:
        ArgumentError: one that is not.
    """
    hints = get_type_hints(function)
    for key, value in kwargs.items():
        wrong = _what_is_wrong(value, hints[key])
        if wrong:
            raise ArgumentError(wrong, key, is_value=True)


def _what_is_wrong(value: Any, hint: Any) -> str:
    """Why a value cannot be what an argument takes, or ""."""
    hint = next((it for it in get_args(hint) if it is not type(None)), hint)
    types, kind = _TYPES[hint]
    if isinstance(value, types) and not isinstance(value, bool):
        return ""
    if isinstance(value, str):
        for parse, unit, scale in ((parse_time_ns, "seconds", 10**9), (parse_size_bytes, "bytes", 1)):
            with contextlib.suppress(ValueError):
                return f"{value!r} must be {kind} of {unit}, without a unit: {parse(value, '') / scale:g}"
    return f"{value!r} must be {kind}"
