"""The rows or batches that `iter_rows` and `iter_batches` return: a program can read them several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Passes(Iterator[_T], Generic[_T]):
    """Reads from the start for each `for`, as in Ray. After a `next`, `iter` goes on with the pass of that `next`."""

    def __init__(self, begin: Callable[[], Iterator[_T]]) -> None:
        self._begin = begin
        self._pass: Iterator[_T] | None = None

    def __iter__(self) -> Iterator[_T]:  # noqa: PYI034 - a new pass, not itself
        return self._begin() if self._pass is None else self._pass

    def __next__(self) -> _T:
        if self._pass is None:
            self._pass = self._begin()
        return next(self._pass)
