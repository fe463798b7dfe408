"""References and asyncio: what `await ref`, `ref.future()` and coroutines of actors have in common in both modes.

Nothing here waits: a value that comes is announced from the middle of a step, and is read where user code runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from dualray.exceptions import TaskCancelledError
from dualray.runtime import CoreVerbs
from dualray.shared.handles import Reference as Handle
from dualray.user_verbs import Awaited, Reference, UserVerbs

T = TypeVar("T")


async def call_and_await(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    then: Callable[[], Awaitable[object]] | None = None,
) -> Any:
    """Call it, and await what it returns if that can be awaited and is no reference; `then`, if given, comes after it.

    Raises:
        TaskCancelledError: the coroutine was cancelled.
    """
    try:
        if isinstance(function, type):
            result = await construct(function, args, kwargs)
        else:
            result = function(*args, **kwargs)
            if inspect.isawaitable(result) and not isinstance(result, Handle):  # a reference is a result like others
                result = await result
        if then is not None:
            await then()
        return result
    except asyncio.CancelledError as cancelled:
        name = getattr(function, "__qualname__", function)
        raise TaskCancelledError(
            f"the async method {name} raised CancelledError, although no process cancelled the call"
        ) from cancelled


async def construct(cls: type[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An instance of an actor's class, whose constructor may be a coroutine."""
    if not inspect.iscoroutinefunction(cls.__init__):
        return cls(*args, **kwargs)
    instance = cls.__new__(cls, *args, **kwargs)
    await instance.__init__(*args, **kwargs)
    return instance


def is_on_loop() -> bool:
    """Whether the caller runs on an event loop, and holds it up while it waits."""
    loop = asyncio._get_running_loop()
    return loop is not None and loop.is_running()


async def value_of(ref: Reference, verbs: UserVerbs, keep: object) -> Any:
    """Await the value of a reference, which `keep` keeps; what `get` would raise is raised here."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not arrived.done():
            arrived.set_result(None)

    def ready() -> None:
        with suppress(RuntimeError):  # the loop was closed, and nobody waits any more
            loop.call_soon_threadsafe(finish)

    awaited = verbs.get_async(ref, ready)
    try:
        await arrived
    except BaseException:
        awaited.abandon()
        raise
    value = awaited.result()
    del keep  # not earlier: with the last reference the value goes
    return value


async def until_ready(ref: Any, verbs: UserVerbs | CoreVerbs) -> None:
    """Await that an object is there, or has failed."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not arrived.done():
            arrived.set_result(None)

    def ready() -> None:
        with suppress(RuntimeError):  # as above
            loop.call_soon_threadsafe(finish)

    awaited = verbs.wait_async(ref, ready)
    try:
        await arrived
    except BaseException:
        awaited.abandon()
        raise


class ReferenceFuture(Future[T]):
    """A `concurrent.futures.Future` of a reference's value; made by `ObjectRef.future()`.

    Who waits for it in `result` or `exception` waits as in `get`: in a task the CPU is given back meanwhile, and in sim
    mode virtual time goes on. It cannot be cancelled.
    """

    def __init__(self, ref: Reference, verbs: UserVerbs, keep: object) -> None:
        super().__init__()
        self._ref = ref
        self._verbs = verbs
        self._keep = keep  # the reference, whose object must not go
        self._awaited: Awaited | None = None
        self.set_running_or_notify_cancel()
        with self._condition:  # `_finish` may be called before `get_async` has returned
            self._awaited = verbs.get_async(ref, lambda: verbs.spawn(self._finish))

    def __hash__(self) -> int:
        return int.from_bytes(self._ref.object_id[:8], "little")  # the same in every process

    def result(self, timeout: float | None = None) -> T:
        """The value, waiting for it.

        Raises:
            TimeoutError: it did not come within `timeout` seconds.
            DualrayError: what `get` raises.
        """
        keep = self._keep  # whoever finishes drops it
        self._wait(timeout)
        if self.done():
            return super().result(0)
        value: T
        [value] = self._verbs.get([self._ref], None)  # it is there, and another thread reads it just now
        del keep
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` raises, waiting for it; None when it raises nothing.

        Raises:
            TimeoutError: as for `result`.
        """
        keep = self._keep
        self._wait(timeout)
        if self.done():
            return super().exception(0)
        try:
            self._verbs.get([self._ref], None)
        except BaseException as error:  # noqa: BLE001 - whoever asks gets it
            return error
        finally:
            del keep
        return None

    def _wait(self, timeout: float | None) -> None:
        """Wait until it is there, and have it read, unless another thread does so just now."""
        if self.done():
            return
        timeout_ns = None if timeout is None else round(timeout * 1e9)
        if not self._verbs.wait([self._ref], num_returns=1, timeout_ns=timeout_ns, fetch_local=True):
            raise TimeoutError(f"object {self._ref.object_id.hex()} was not ready within {timeout} s")
        self._finish()

    def _finish(self) -> None:
        with self._condition:
            awaited, self._awaited = self._awaited, None
        if awaited is None:  # somebody else has just come to read it
            return
        try:
            if awaited.is_ready:
                value = awaited.result()
            else:
                awaited.abandon()
                [value] = self._verbs.get([self._ref], None)
        except BaseException as error:  # noqa: BLE001 - whoever asks gets it
            self.set_exception(error)
        else:
            self.set_result(value)
        self._keep = None
