"""Iterators over results in the order in which they are ready."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dualray import api
from dualray.object_ref import ObjectRef

__all__ = ["as_completed", "map_unordered"]


def as_completed(
    refs: list[ObjectRef[Any]], *, chunk_size: int = 10, yield_obj_refs: bool = False, **kwargs: Any
) -> Iterator[Any]:
    """Iterate over the values of references as they become ready.

    Args:
        refs: a list of references.
        chunk_size: how many references must be ready before their values are yielded. Default 10. The values of a chunk
            have the order of the list.
        yield_obj_refs: whether to yield the ready references instead of their values.
        kwargs: arguments of `wait`: `timeout` in seconds, `fetch_local`.

    Raises:
        ValueError: chunk_size is below 1, `num_returns` is given, or a reference is given twice.
        Exception: the exception that `get` of a reference raises.
    """
    _check_chunks(chunk_size, kwargs)
    waiting = refs
    while waiting:
        ready, waiting = api.wait(waiting, num_returns=min(chunk_size, len(waiting)), **kwargs)
        yield from ready if yield_obj_refs else api.get(ready)


def map_unordered(
    fn: Any,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = 100,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    **kwargs: Any,
) -> Iterator[Any]:
    """Iterate over the results of `fn.remote(item)` for each item, as they become ready.

    Args:
        fn: a remote function, or a method of an actor.
        items: an iterable, which is read as you take results.
        backpressure_size: how many calls may run at a time. None means no limit. Default 100.
        chunk_size, yield_obj_refs, kwargs: as for `as_completed`.

    Raises:
        ValueError: as for `as_completed`, or backpressure_size is not positive.
        Exception: the exception that a call raises.
    """
    if backpressure_size is not None and backpressure_size <= 0:
        raise ValueError(f"backpressure_size must be positive, or None for no limit, not {backpressure_size!r}")
    _check_chunks(chunk_size, kwargs)
    waiting: list[ObjectRef[Any]] = []
    for item in items:
        waiting.append(fn.remote(item))
        if backpressure_size is not None and len(waiting) >= backpressure_size:
            ready, waiting = api.wait(waiting, num_returns=min(chunk_size, len(waiting)), **kwargs)
            yield from ready if yield_obj_refs else api.get(ready)
    yield from as_completed(waiting, chunk_size=chunk_size, yield_obj_refs=yield_obj_refs, **kwargs)


def _check_chunks(chunk_size: int, kwargs: dict[str, Any]) -> None:
    if chunk_size < 1:
        raise ValueError(f"`chunk_size` must be >= 1, not {chunk_size!r}")
    if "num_returns" in kwargs:
        raise ValueError("Use the `chunk_size` argument instead of `num_returns`")
