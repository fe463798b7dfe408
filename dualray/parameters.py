"""The parameters of remote functions, constructors and methods, with which calls are checked where they are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Shape: TypeAlias = int | tuple[int | str, ...]
"""Of a call: how many positional arguments it has, and the names of the others."""

_SHAPES_MAX: Final = 256
"""That one function notes; calls of further shapes are bound each time."""


class Parameters:
    """The parameters of one callable. They travel with handles as a short text, without the values of defaults.

    Args:
        text: for each parameter its kind as a digit (`inspect.Parameter.kind`), `?` with a default, and its name, with
            commas between.

    Attributes:
        accepted: shapes of calls that are known to fit; hot paths look here first, and call `check` for others.
    """

    __slots__ = ("_signature", "accepted", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.accepted: set[Shape] = set()
        self._signature: inspect.Signature | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Parameters, (self.text,)

    def check(self, what: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the callable does not take.

        Raises:
            TypeError: too many, too few, or an unknown name; it says what the callable takes.
        """
        shape = shape_of(args, kwargs)
        if shape in self.accepted:
            return
        if self._signature is None:
            self._signature = _parsed(self.text)
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{what}: {error}. {what} takes {self}") from None
        if len(self.accepted) < _SHAPES_MAX:
            self.accepted.add(shape)

    def __str__(self) -> str:
        signature = str(_parsed(self.text))
        return "no arguments" if signature == "()" else signature


def shape_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shape:
    """The shape of a call with these arguments."""
    return (len(args), *kwargs) if kwargs else len(args)


def parameters_of(target: Callable[..., Any], *, is_method: bool = False) -> Parameters | None:
    """The parameters of a function or class; `is_method`: without the first. None when Python cannot tell them.

    Those that the callable itself has: a decorator that takes `*args` takes anything, whatever it wraps.
    """
    try:
        signature = inspect.signature(target, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    found = list(signature.parameters.values())
    if is_method and found and found[0].kind in (found[0].POSITIONAL_ONLY, found[0].POSITIONAL_OR_KEYWORD):
        del found[0]
    return Parameters(",".join(f"{one.kind:d}{'' if one.default is one.empty else '?'}{one.name}" for one in found))


class _Default:
    """Stands for the value of a default, which does not travel."""

    def __repr__(self) -> str:
        return "..."


_DEFAULT: Final = _Default()


def _parsed(text: str) -> inspect.Signature:
    def parse(one: str) -> inspect.Parameter:
        default = _DEFAULT if one[1] == "?" else inspect.Parameter.empty
        return inspect.Parameter(one[1:].removeprefix("?"), _KINDS[int(one[0])], default=default)

    return inspect.Signature([parse(one) for one in text.split(",")] if text else [])


_KINDS: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)
