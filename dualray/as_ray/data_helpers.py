"""The two private functions of `ray.data` that sources and targets of other projects import."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TypeVar

Result = TypeVar("Result")


def _check_import(obj: object, *, module: str, package: str) -> None:
    """Raise an ImportError that names the package if the module cannot be imported."""
    try:
        import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{type(obj).__name__} needs the module {module!r}, which is not installed: `pip install {package}`"
        ) from error


def call_with_retry(
    f: Callable[[], Result],
    description: str,
    *,
    match: Sequence[str] | None = None,
    max_attempts: int = 10,
    max_backoff_s: int = 32,
) -> Result:
    """Call a function, and again after an error whose text contains one of `match`; None: after any error.

    The waits double, up to `max_backoff_s`, and are shortened at random, so that tasks do not call again all at once.
    """
    for attempt in range(1, max_attempts + 1):
        try:
            return f()
        except Exception as error:
            is_expected = match is None or any(text in str(error) for text in match)
            if not is_expected or attempt == max_attempts:
                raise
            time.sleep(min(2 ** (attempt - 1), max_backoff_s) * random.random())
    raise ValueError(f"{description}: max_attempts={max_attempts} must be at least 1")
