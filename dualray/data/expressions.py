"""Expressions of columns: `col("x") * 2 + lit(1)`, for `Dataset.with_column`, `select_columns` and `filter`.

Random numbers, UUIDs and ids follow from the number of the block, so that a task that runs again makes them again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isgenerator
from typing import Any, Final
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa

from dualray import api
from dualray.data.compute import is_async, makes_callables, waited
from dualray.data.expression_tree import (
    AliasExpr,
    BinaryExpr,
    BlockState,
    ColumnExpr,
    Expr,
    LiteralExpr,
    Operation,
    StarExpr,
    UDFExpr,
    UnaryExpr,
    UnnestExpr,
)

__all__ = [
    "AliasExpr",
    "BinaryExpr",
    "ColumnExpr",
    "Expr",
    "LiteralExpr",
    "MonotonicallyIncreasingIdExpr",
    "Operation",
    "RandomExpr",
    "StarExpr",
    "UDFExpr",
    "UUIDExpr",
    "UnaryExpr",
    "UnnestExpr",
    "col",
    "lit",
    "monotonically_increasing_id",
    "pyarrow_udf",
    "random",
    "star",
    "udf",
    "unnest",
    "uuid",
]

_ID_BITS: Final = 33
"""The bits of an id that count the rows of a block. The bits above them hold the number of the block, as on Ray."""
_INSTANCES_MAX: Final = 64
"""Most instances of decorated classes that a process keeps. It makes others again when they are needed."""


class RandomExpr(Expr):
    """A random number from 0 to 1 for each row.

    Attributes:
        seed: the seed. Default: the context's `shuffle_seed`, with other numbers for each expression and execution.
        reseed_after_execution: with a seed, too, each execution of the dataset gives other numbers.
    """

    needs_number = True

    def __init__(self, seed: int | None = None, reseed_after_execution: bool = True) -> None:
        self.seed, self.reseed_after_execution = seed, reseed_after_execution

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        return pa.array(block.draws(self, self.seed, renews=self.reseed_after_execution).random(table.num_rows))

    def label(self) -> str:
        if self.seed is None:
            return "RANDOM()"
        return f"RANDOM(seed={self.seed}, reseed_after_execution={self.reseed_after_execution})"

    def in_line(self) -> str:
        return "random()"


class UUIDExpr(Expr):
    """A new UUID for each row, as text."""

    needs_number = True

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        drawn = block.draws_of_this_dataset(self).bytes(16 * table.num_rows)
        words = (UUID(bytes=drawn[start : start + 16], version=4) for start in range(0, len(drawn), 16))
        return pa.array([str(word) for word in words], pa.string())

    def label(self) -> str:
        return "UUID()"

    def in_line(self) -> str:
        return "uuid()"


class MonotonicallyIncreasingIdExpr(Expr):
    """A number for each row that grows within a block and from block to block."""

    needs_number = True

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        first = (block.number << _ID_BITS) + block.rows_before
        return pa.array(np.arange(first, first + table.num_rows, dtype=np.int64))

    def label(self) -> str:
        return "MONOTONICALLY_INCREASING_ID()"

    def in_line(self) -> str:
        return "monotonically_increasing_id()"


def col(name: str) -> ColumnExpr:
    """Return the expression of a column."""
    return ColumnExpr(name)


def lit(value: Any) -> LiteralExpr:
    """Return the expression of one value for all rows."""
    return LiteralExpr(value)


def star() -> StarExpr:
    """Return the expression of all columns."""
    return StarExpr()


def unnest(expr: Expr) -> UnnestExpr:
    """Return the expression of a column for each field of structs: `ds.with_columns(unnest(col("s")))`."""
    return UnnestExpr(expr)


def random(*, seed: int | None = None, reseed_after_execution: bool = True) -> RandomExpr:
    """Return the expression of random numbers from 0 to 1.

    Args:
        seed: the seed. Default: the context's `shuffle_seed`, with other numbers for each expression and execution.
        reseed_after_execution: with a seed, too, each execution of the dataset gives other numbers.
    """
    return RandomExpr(seed, reseed_after_execution)


def uuid() -> UUIDExpr:
    """Return the expression of a new UUID for each row."""
    return UUIDExpr()


def monotonically_increasing_id() -> MonotonicallyIncreasingIdExpr:
    """Return the expression of ids that grow from row to row, with gaps between blocks."""
    return MonotonicallyIncreasingIdExpr()


# ---- Functions of the program's ----------------------------------------------------------------------------------


def udf(return_dtype: Any = None) -> Callable[[Any], Any]:
    """Decorate a function of Arrow columns, or a class of such functions. A call with expressions makes an expression.

    dualray makes an instance of a class once in each process that needs it: `AddOffset(5)` keeps the arguments, and
    `AddOffset(5)(col("x"))` makes an expression.

    Args:
        return_dtype: accepted as in Ray, and without effect: the returned column has its type.
    """

    def decorate(fn: Any) -> Any:
        if makes_callables(fn):
            return wraps(fn, updated=())(lambda *args, **kwargs: _expressions_of(_Instance(fn, args, kwargs)))
        return _expressions_of(fn)

    def _expressions_of(fn: Callable[..., Any]) -> Callable[..., UDFExpr]:
        called = _last_of(waited(fn)) if is_async(fn) else fn

        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> UDFExpr:
            return UDFExpr(called, args, kwargs, return_dtype)

        return call

    return decorate


pyarrow_udf = udf


def _last_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which returns the last value where an async generator has several, as in Ray."""

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = fn(*args, **kwargs)
        return list(made)[-1] if isgenerator(made) else made

    return call


class _Instance:
    """An instance of a decorated class. A process makes it when it is first called there."""

    def __init__(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.__name__, self.__doc__ = cls.__name__, cls.__doc__
        self._cls, self._args, self._kwargs = cls, args, kwargs
        self._token = uuid4().bytes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = _instances.pop(self._key(), None) or self._cls(*self._args, **self._kwargs)
        _instances[self._key()] = made
        if len(_instances) > _INSTANCES_MAX:
            _instances.pop(next(iter(_instances)), None)
        return (_last_of(waited(made)) if is_async(made) else made)(*args, **kwargs)

    def _key(self) -> tuple[bytes, str]:
        """In a simulation all workers are in one process, and each has its own instance."""
        return self._token, api.get_runtime_context().get_worker_id() if api.is_initialized() else ""


_instances: dict[tuple[bytes, str], Any] = {}
"""The instances of this process, the one that was used last at the end."""
