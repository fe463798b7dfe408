"""Decorators with which libraries mark their own API. The decorators do not change how a function works."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["Deprecated", "DeveloperAPI", "PublicAPI", "RayDeprecationWarning"]


class RayDeprecationWarning(DeprecationWarning):
    """The warning that functions and classes marked with `Deprecated(warning=True)` give."""


def PublicAPI(*args: Any, stability: str = "stable", api_group: str = "Others") -> Any:  # noqa: N802 - Ray's name
    """Mark a function or class as public: `@PublicAPI` or `@PublicAPI(stability="beta")`.

    Args:
        stability: "stable", "beta" or "alpha".
        api_group: a name for readers of the code.

    Raises:
        ValueError: the stability is unknown.
    """
    if stability not in ("stable", "beta", "alpha"):
        raise ValueError(f"PublicAPI: stability={stability!r} must be 'stable', 'beta' or 'alpha'")
    return _marked(args, lambda target: target)


def DeveloperAPI(*args: Any) -> Any:  # noqa: N802 - Ray's name
    """Mark a function or class as an API for developers of libraries: `@DeveloperAPI`."""
    return _marked(args, lambda target: target)


def Deprecated(*args: Any, message: str = "", warning: bool = False) -> Any:  # noqa: N802 - Ray's name
    """Mark a function or class as deprecated: `@Deprecated(message="Use that one.", warning=True)`.

    The decorator also adds a note to the docstring.

    Args:
        message: what to use instead.
        warning: whether a call or a new instance gives a RayDeprecationWarning. Default: False.
    """

    def deprecated(target: Any) -> Any:
        words = f"{target.__module__}.{target.__qualname__} is deprecated and will be removed. {message}".rstrip()
        target.__doc__ = f"{inspect.cleandoc(target.__doc__ or '')}\n\n{words}".lstrip()
        if not warning:
            return target
        is_class = isinstance(target, type)
        function = target.__init__ if is_class else target

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(words, RayDeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        if not is_class:
            return call
        target.__init__ = call
        return target

    return _marked(args, deprecated)


def _marked(args: tuple[Any, ...], mark: Callable[[Any], Any]) -> Any:
    """With the thing itself, or, called with keywords alone, the decorator."""
    if len(args) > 1:
        raise TypeError(f"the decorator takes one function or class, not {args!r}")
    return mark(args[0]) if args else mark
