"""References to values that a process gives later: Ray has none, so that an actor of coroutines holds each call up
until its value is there."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import Any

import ray

from dualray.on_ray.references import Value


class _Keeper:
    """Holds calls up: runs in a process of Ray's, without CPUs, for one process that has promised something."""

    def __init__(self) -> None:
        self._values: dict[int, asyncio.Future[Any]] = {}

    def _of(self, number: int) -> asyncio.Future[Any]:
        if number not in self._values:
            self._values[number] = asyncio.get_running_loop().create_future()
        return self._values[number]

    async def value(self, number: int) -> Any:
        """What was promised under the number, once it is there."""
        try:
            return await self._of(number)
        finally:
            self._values.pop(number, None)

    async def keep(self, number: int, value: Any) -> None:
        """Give it."""
        found = self._of(number)
        if not found.done():
            found.set_result(value)


class Promises:
    """Of one process. The actor behind them is made with the first."""

    def __init__(self) -> None:
        self._keeper: Any = None
        self._lock = Lock()
        self._numbers: dict[bytes, int] = {}
        self._made = 0

    def promise(self) -> Value:
        """A reference to a value that comes later."""
        with self._lock:
            if self._keeper is None:
                self._keeper = ray.remote(num_cpus=0, max_concurrency=100_000)(_Keeper).remote()
            self._made += 1
            reference = Value(self._keeper.value.remote(self._made))
            self._numbers[reference.object_id] = self._made
        return reference

    def keep(self, reference: Value, value: Any) -> None:
        """Give the value."""
        with self._lock:
            number = self._numbers.pop(reference.object_id)
        self._keeper.keep.remote(number, value)
