"""ActorPool distributes calls over actors, and runs one call at a time on each. The interface is the same as in Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dualray import api
from dualray.actor import ActorHandle
from dualray.object_ref import ObjectRef

Call = Callable[[Any, Any], "ObjectRef[Any]"]


class ActorPool:
    """A pool of actors, for use in one process. The pool itself is not an actor.

    Args:
        actors: handles of the pool's actors. The pool needs at least one actor before it can run a call.

    Example:
        pool = ActorPool([Worker.remote() for _ in range(4)])
        doubled = list(pool.map(lambda actor, value: actor.double.remote(value), [1, 2, 3, 4]))
    """

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle = deque(actors)
        for actor in self._idle:
            _check_actor(actor)
        self._running: dict[ObjectRef[Any], tuple[int, Any, Any]] = {}
        """Of each call that has not been returned, by its first reference: its number, its actor, and what it has
        returned: a reference, or a list of several."""
        self._refs: dict[int, ObjectRef[Any]] = {}
        self._waiting: deque[tuple[Call, Any]] = deque()
        self._submitted = 0
        self._returned = 0

    def map(self, fn: Call, values: Iterable[Any]) -> Iterator[Any]:
        """Return the results of `fn(actor, value)` for each value, in the order of the values.

        As in Ray, `map` drops results of earlier calls that you have not taken.

        Args:
            fn: calls a method of the actor, and returns the reference: `lambda actor, value: actor.f.remote(value)`.
            values: one item for each call. The pool runs as many calls at the same time as it has actors.
        """
        self._forget_untaken()
        for value in values:
            self.submit(fn, value)
        return self._results(self.get_next)

    def map_unordered(self, fn: Call, values: Iterable[Any]) -> Iterator[Any]:
        """Return the same results as `map`, in the order in which the calls end."""
        self._forget_untaken()
        for value in values:
            self.submit(fn, value)
        return self._results(self.get_next_unordered)

    def _results(self, take: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield take()

    def submit(self, fn: Call, value: Any) -> None:
        """Call `fn(actor, value)` as soon as an actor is idle. `get_next` returns the result."""
        if not self._idle:
            self._waiting.append((fn, value))
            return
        actor = self._idle.popleft()
        try:
            returned: Any = fn(actor, value)
            ref = returned[0] if isinstance(returned, list) else returned
        except BaseException:
            self._idle.appendleft(actor)
            raise
        self._running[ref] = self._submitted, actor, returned
        self._refs[self._submitted] = ref
        self._submitted += 1

    def has_next(self) -> bool:
        """Return whether there is a submitted call whose result you have not taken."""
        return bool(self._running)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the next result, in the order of submission.

        Args:
            timeout: how many seconds to wait at most. None means no limit.
            ignore_if_timedout: whether to drop a late result, so that the next `get_next` returns the result after it.

        Raises:
            StopIteration: no result is left.
            TimeoutError: the result was not ready within the timeout. Without `ignore_if_timedout`, call `get_next`
                again to get this result.
        """
        if not self.has_next():
            raise StopIteration("the actor pool has no more results")
        while self._returned not in self._refs:  # taken without order, or dropped
            self._returned += 1
        ref = self._refs[self._returned]
        is_late = not api.wait([ref], timeout=timeout)[0]
        if is_late and not ignore_if_timedout:
            raise TimeoutError(f"result {self._returned} did not come within {timeout} s")
        self._returned += 1
        returned = self._take(ref, when_done=is_late)
        if is_late:
            raise TimeoutError(f"result {self._returned - 1} did not come within {timeout} s, so the pool ignores it")
        return api.get(returned)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Wait for the first call that ends, and return its result.

        Raises:
            StopIteration: no result is left.
            TimeoutError: no call ended within the timeout. With `ignore_if_timedout`, the pool drops the oldest result.
        """
        if not self.has_next():
            raise StopIteration("the actor pool has no more results")
        ready, _ = api.wait(list(self._running), timeout=timeout)
        if not ready:
            if ignore_if_timedout:
                self._take(next(iter(self._running)), when_done=True)
            raise TimeoutError(f"no result came within {timeout} s")
        return api.get(self._take(ready[0], when_done=False))

    def _take(self, ref: ObjectRef[Any], *, when_done: bool) -> Any:
        """A result is taken or dropped: its actor is free, `when_done` only when it has ended the call. What the call
        has returned."""
        number, actor, returned = self._running.pop(ref)
        del self._refs[number]
        if when_done:  # a call that is late still occupies its actor, whose calls queue up behind it
            self._idle.append(actor)
        else:
            self._idle.appendleft(actor)
        self._feed()
        return returned

    def _feed(self) -> None:
        while self._idle and self._waiting:
            self.submit(*self._waiting.popleft())

    def _forget_untaken(self) -> None:
        self._waiting.clear()
        for ref in list(self._running):
            self._take(ref, when_done=True)

    @property
    def _pending_submits(self) -> list[tuple[Call, Any]]:
        """The calls that wait for an actor, under the name that Ray's tests look at."""
        return list(self._waiting)

    def has_free(self) -> bool:
        """Return whether an actor is idle and no call waits for an actor."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any | None:
        """Remove an idle actor from the pool and return its handle, or None if no actor is idle."""
        return self._idle.popleft() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add an actor to the pool.

        Raises:
            TypeError: the argument is not an actor's handle.
            ValueError: the actor is already in the pool.
        """
        _check_actor(actor)
        if actor in self._idle or any(actor == busy for _, busy, _ in self._running.values()):
            raise ValueError(f"{actor!r} is already in the pool")
        self._idle.append(actor)
        self._feed()


def _check_actor(actor: Any) -> None:
    if not isinstance(actor, ActorHandle):
        raise TypeError(f"ActorPool takes actor handles, not {actor!r} (type {type(actor).__name__})")
