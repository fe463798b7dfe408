"""Generators of actors with coroutines let virtual time pass, as others do (working_process.py).

What such a generator awaits takes its time by itself. An endless one that awaits nothing would never let anybody take
what it has made: after so many items at one moment some time passes. Not compiled: mypyc knows no asynchronous
generators.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

from dualray.shared.core.item_maker import AsyncItems


def pace(
    function: AsyncItems, now_ns: Callable[[], int], wait: Callable[[], Awaitable[object]], at_once_max: int
) -> None:
    """Have a method that is about to be called wait after so many items of one moment."""
    made = function.__wrapped__

    def paced(*args: Any, **kwargs: Any) -> Any:
        items = made(*args, **kwargs)
        is_iterator = isinstance(items, Iterator | AsyncIterator)
        return _paced(items, now_ns, wait, at_once_max) if is_iterator else items  # else it is refused

    function.__wrapped__ = paced


async def _paced(
    items: Any, now_ns: Callable[[], int], wait: Callable[[], Awaitable[object]], at_once_max: int
) -> AsyncGenerator[Any, None]:
    since_ns, at_once = -1, 0
    try:
        while True:
            try:
                item = await anext(items) if isinstance(items, AsyncIterator) else next(items)
            except (StopAsyncIteration, StopIteration):
                return
            if now_ns() != since_ns:
                since_ns, at_once = now_ns(), 0
            elif (at_once := at_once + 1) % at_once_max == 0:
                await wait()
            yield item
            del item
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
        elif isinstance(items, Generator):
            items.close()
