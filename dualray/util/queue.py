"""A queue between tasks, actors and the driver, with the interface of Ray's and of the standard library's.

One actor keeps the items. A `get` from an empty queue, or a `put` into a full one, gets a promise (promise.py) and
waits for that: nobody polls, the actor serves others meanwhile, and a wait that nothing can end is seen as a deadlock
in sim mode. Who waits is served in order of arrival. An item is not given to a process that has died while it waited.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dualray import api
from dualray.exceptions import GetTimeoutError, OwnerDiedError
from dualray.object_ref import ObjectRef
from dualray.util.promise import Promise

__all__ = ["Empty", "Full", "Queue"]


class Empty(queue.Empty):
    """The queue is empty, or has too few items for a batch."""


class Full(queue.Full):
    """The queue is full, or has too little space for a batch."""


class _QueueActor:
    """The actor: the items, and who waits. An answer is (True, value), (False, None), or a list with a promise."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._items: deque[Any] = deque()
        self._getters: dict[str, Promise[Any]] = {}
        self._putters: dict[str, tuple[Promise[Any], Any]] = {}

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return not self._has_room(1)

    def put(self, item: Any, may_wait: bool) -> Any:
        if self._has_room(1):
            self._add(item)
            return True, None
        if not may_wait:
            return False, None
        promise: Promise[Any] = Promise()
        self._putters[promise.ref.hex()] = promise, item
        return [promise.ref]

    def put_many(self, items: list[Any]) -> int:
        """How many items there is no room for; when it is not 0, nothing was put."""
        if not self._has_room(len(items)):
            return len(self._items) + len(items) - self._maxsize
        for item in items:
            self._add(item)
        return 0

    def get(self, may_wait: bool) -> Any:
        if self._items:
            return True, self._take()
        if not may_wait:
            return False, None
        promise: Promise[Any] = Promise()
        self._getters[promise.ref.hex()] = promise
        return [promise.ref]

    def get_many(self, count: int) -> tuple[int, list[Any]]:
        """How many items there are, and `count` of them if there are as many."""
        there = len(self._items)
        return there, [self._take() for _ in range(count)] if there >= count else []

    def withdraw(self, key: str) -> bool:
        """Somebody waits no more; False when the promise has been kept already."""
        waiting = self._getters.pop(key, None)
        if waiting is None and key in self._putters:
            waiting, _ = self._putters.pop(key)
        if waiting is None:
            return False
        waiting.keep(None)
        return True

    def _has_room(self, count: int) -> bool:
        return self._maxsize <= 0 or len(self._items) + count <= self._maxsize

    def _add(self, item: Any) -> None:
        while self._getters:
            promise = self._getters.pop(next(iter(self._getters)))
            if promise.is_awaited:
                promise.keep(item)
                return
            promise.keep(None)
        self._items.append(item)

    def _take(self) -> Any:
        item = self._items.popleft()
        while self._putters and self._has_room(1):
            promise, waiting = self._putters.pop(next(iter(self._putters)))
            if promise.is_awaited:
                self._items.append(waiting)
            promise.keep(None)
        return item


class Queue:
    """A first-in-first-out queue that all processes with a copy of the Queue share.

    Args:
        maxsize: how many items the queue can hold. Default 0: no limit.
        actor_options: options of the actor that keeps the items, such as `{"num_cpus": 0}`.

    Attributes:
        actor: the handle of the queue's actor, or None after `shutdown`.
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, Any] | None = None) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise TypeError(f"maxsize={maxsize!r} must be an int")
        self.maxsize = maxsize
        self.actor: Any = api.remote(_QueueActor).options(**(actor_options or {})).remote(maxsize)

    def __len__(self) -> int:
        return self.qsize()

    def __repr__(self) -> str:
        return f"Queue(maxsize={self.maxsize}, actor={self.actor!r})"

    def qsize(self) -> int:
        """Return the number of items in the queue."""
        return int(api.get(self._keeper().qsize.remote()))

    def size(self) -> int:
        """Return the number of items in the queue."""
        return self.qsize()

    def empty(self) -> bool:
        """Return whether the queue has no items."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Return whether the queue has no space."""
        return 0 < self.maxsize <= self.qsize()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item.

        Args:
            item: a value that can be pickled. dualray replaces a reference by its value, as for arguments of tasks.
            block: whether to wait until the queue has space.
            timeout: the longest wait in seconds; None means no limit.

        Raises:
            Full: the queue has no space, or had none within the timeout.
            ValueError: the timeout is negative.
            ActorDiedError: the queue was shut down, or its actor died.
        """
        deadline = _deadline(timeout) if block else None
        answer = api.get(self._keeper().put.remote(item, block and timeout != 0))
        if isinstance(answer, list):
            self._await(
                answer[0], deadline, Full(f"the queue, with {self.maxsize} items, had no room within {timeout} s")
            )
        elif not answer[0]:
            raise Full(f"the queue is full: the queue has {self.maxsize} items")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove the oldest item and return it.

        Args:
            block: whether to wait until the queue has an item.
            timeout: the longest wait in seconds; None means no limit.

        Raises:
            Empty: the queue has no item, or had none within the timeout.
            ValueError: the timeout is negative.
            ActorDiedError: the queue was shut down, or its actor died.
        """
        deadline = _deadline(timeout) if block else None
        answer = api.get(self._keeper().get.remote(block and timeout != 0))
        if isinstance(answer, list):
            return self._await(answer[0], deadline, Empty(f"the queue had no item within {timeout} s"))
        if not answer[0]:
            raise Empty("the queue is empty")
        return answer[1]

    async def put_async(
        self,
        item: Any,
        block: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109 - Ray's argument
    ) -> None:
        """Do the same as `put`, for coroutines: while `put_async` waits, the event loop runs.

        Raises:
            Full, ValueError, ActorDiedError: as for `put`.
        """
        deadline = _deadline(timeout) if block else None
        answer = await self._keeper().put.remote(item, block and timeout != 0)
        if isinstance(answer, list):
            await self._await_async(
                answer[0], deadline, Full(f"the queue, with {self.maxsize} items, had no room within {timeout} s")
            )
        elif not answer[0]:
            raise Full(f"the queue is full: the queue has {self.maxsize} items")

    async def get_async(
        self,
        block: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109 - Ray's argument
    ) -> Any:
        """Do the same as `get`, for coroutines: while `get_async` waits, the event loop runs.

        Raises:
            Empty, ValueError, ActorDiedError: as for `get`.
        """
        deadline = _deadline(timeout) if block else None
        answer = await self._keeper().get.remote(block and timeout != 0)
        if isinstance(answer, list):
            return await self._await_async(answer[0], deadline, Empty(f"the queue had no item within {timeout} s"))
        if not answer[0]:
            raise Empty("the queue is empty")
        return answer[1]

    def put_nowait(self, item: Any) -> None:
        """Do the same as `put(item, block=False)`."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Do the same as `get(block=False)`."""
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all items, or none if the queue has too little space.

        Raises:
            Full: the queue has no space for all items.
            TypeError: the argument is not an iterable.
        """
        if not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch takes an iterable of items, not {items!r}")
        batch = list(items)
        excess = api.get(self._keeper().put_many.remote(batch))
        if excess:
            raise Full(f"the queue has maxsize={self.maxsize}, and no space for {excess} of the {len(batch)} items")

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Remove the oldest `num_items` items and return them, all or none.

        Raises:
            Empty: the queue has fewer items.
            TypeError, ValueError: the number is not an int, or is negative.
        """
        if isinstance(num_items, bool) or not isinstance(num_items, int):
            raise TypeError(f"num_items={num_items!r} must be an int")
        if num_items < 0:
            raise ValueError(f"num_items={num_items!r} must not be negative")
        there, items = api.get(self._keeper().get_many.remote(num_items))
        if there < num_items:
            raise Empty(f"the queue has {there} items, but {num_items} were requested")
        return list(items)

    def shutdown(self, force: bool = False, grace_period_s: float = 5.0) -> None:
        """End the queue's actor and drop the items. Waiting calls raise an error.

        Args:
            force: whether to end the actor at once. If False, the actor first runs the earlier calls.
            grace_period_s: how many seconds the actor may take for the earlier calls.
        """
        if self.actor is None:
            return
        if not force:
            api.wait([self.actor.qsize.remote()], timeout=grace_period_s)
        api.kill(self.actor)
        self.actor = None

    def _keeper(self) -> Any:
        if self.actor is None:
            raise ValueError("this Queue was shut down")
        return self.actor

    async def _await_async(self, promised: ObjectRef[Any], deadline: float | None, late: Exception) -> Any:
        import asyncio  # noqa: PLC0415 - who is in a coroutine has imported it

        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return await asyncio.wait_for(promised, left)
        except GetTimeoutError:
            raise
        except TimeoutError:
            if await self._keeper().withdraw.remote(promised.hex()):
                raise late from None
            return await promised  # it came just now
        except asyncio.CancelledError:
            self._keeper().withdraw.remote(promised.hex())  # else the next item would be its
            raise
        except OwnerDiedError:
            await self._keeper().qsize.remote()  # raises what has become of the actor
            raise

    def _await(self, promised: ObjectRef[Any], deadline: float | None, late: Exception) -> Any:
        """The value of a promise; `late` is raised when it does not come in time."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return api.get(promised, timeout=left)
        except GetTimeoutError:
            if api.get(self._keeper().withdraw.remote(promised.hex())):
                raise late from None
            return api.get(promised)  # it came just now
        except OwnerDiedError:
            self.qsize()  # raises what has become of the actor
            raise


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError(f"timeout={timeout!r} must not be negative: give a number of seconds")
    return time.monotonic() + timeout
