"""ActorPool distributes calls over actors, and runs one call at a time on each. The interface is the same as in Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dualray import api
from dualray.actor import ActorHandle
from dualray.exceptions import ActorDiedError
from dualray.object_ref import ObjectRef

Call = Callable[[Any, Any], "ObjectRef[Any]"]


class ActorPool:
    """A pool of actors, for use in one process. The pool itself is not an actor.

    Libraries read the attributes that begin with "_", or derive a pool of their own: these are Ray's.

    Args:
        actors: handles of the pool's actors. The pool needs at least one actor before it can run a call.

    Example:
        pool = ActorPool([Worker.remote() for _ in range(4)])
        doubled = list(pool.map(lambda actor, value: actor.double.remote(value), [1, 2, 3, 4]))
    """

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle_actors = list(actors)
        for actor in self._idle_actors:
            _check_actor(actor)
        self._future_to_actor: dict[Any, tuple[int, Any]] = {}
        """Of each call whose result nobody has taken, by its reference, or a tuple of several: its number, its
        actor."""
        self._index_to_future: dict[int, Any] = {}
        """What each of these calls has returned, by its number: a reference, or a list of several."""
        self._pending_submits: list[tuple[Call, Any]] = []
        self._next_task_index = 0
        self._next_return_index = 0

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
        if not self._idle_actors:
            self._pending_submits.append((fn, value))
            return
        actor = self._idle_actors.pop()
        try:
            returned: Any = fn(actor, value)
        except BaseException:
            self._idle_actors.append(actor)
            raise
        self._future_to_actor[_key_of(returned)] = self._next_task_index, actor
        self._index_to_future[self._next_task_index] = returned
        self._next_task_index += 1

    def has_next(self) -> bool:
        """Return whether there is a submitted call whose result you have not taken."""
        return bool(self._future_to_actor)

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
        while self._next_return_index not in self._index_to_future:  # taken without order, or dropped
            self._next_return_index += 1
        number = self._next_return_index
        returned = self._index_to_future[number]
        is_late = not api.wait([_first_of(returned)], timeout=timeout)[0]
        if is_late and not ignore_if_timedout:
            raise TimeoutError(f"result {number} of the actor pool did not arrive within {timeout} s")
        self._next_return_index += 1
        actor = self._take(_key_of(returned))
        if is_late:
            self._return_late(actor)
            raise TimeoutError(
                f"result {number} did not arrive within {timeout} s, so the actor pool drops this result"
            )
        return self._get_result(returned, actor)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Wait for the first call that ends, and return its result.

        Raises:
            StopIteration: no result is left.
            TimeoutError: no call ended within the timeout. With `ignore_if_timedout`, the pool drops the oldest result.
        """
        if not self.has_next():
            raise StopIteration("the actor pool has no more results")
        keys = {_first_of(key): key for key in self._future_to_actor}
        ready, _ = api.wait(list(keys), timeout=timeout)
        if not ready:
            if ignore_if_timedout:
                self._return_late(self._take(next(iter(self._future_to_actor))))
            raise TimeoutError(f"no result of the actor pool arrived within {timeout} s")
        key = keys[ready[0]]
        return self._get_result(list(key) if isinstance(key, tuple) else key, self._take(key))

    def _take(self, key: Any) -> Any:
        """A result is taken or dropped. The actor of its call."""
        number, actor = self._future_to_actor.pop(key)
        del self._index_to_future[number]
        return actor

    def _get_result(self, future: Any, actor: Any) -> Any:
        is_alive = True
        try:
            return api.get(future)
        except ActorDiedError:
            is_alive = False
            raise
        finally:
            self._return_actor(actor, is_alive)

    def _return_actor(self, actor: Any, is_alive: bool = True) -> None:
        """An actor can take another call; one that has died cannot."""
        if is_alive:
            self._idle_actors.append(actor)
        self._feed()

    def _return_late(self, actor: Any) -> None:
        """A call that is late still occupies its actor, whose calls queue up behind it: others go first."""
        self._idle_actors.insert(0, actor)
        self._feed()

    def _feed(self) -> None:
        while self._idle_actors and self._pending_submits:
            self.submit(*self._pending_submits.pop(0))

    def _forget_untaken(self) -> None:
        self._pending_submits.clear()
        for key in list(self._future_to_actor):
            self._return_late(self._take(key))

    def has_free(self) -> bool:
        """Return whether an actor is idle and no call waits for an actor."""
        return bool(self._idle_actors) and not self._pending_submits

    def pop_idle(self) -> Any | None:
        """Remove an idle actor from the pool and return its handle, or None if no actor is idle."""
        return self._idle_actors.pop() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add an actor to the pool.

        Raises:
            TypeError: the argument is not an actor's handle.
            ValueError: the actor is already in the pool.
        """
        _check_actor(actor)
        if actor in self._idle_actors or any(actor == busy for _, busy in self._future_to_actor.values()):
            raise ValueError(f"{actor!r} is already in the pool")
        self._return_actor(actor)


def _key_of(returned: Any) -> Any:
    return tuple(returned) if isinstance(returned, list) else returned


def _first_of(returned: Any) -> ObjectRef[Any]:
    """By the first of several references it is known that the call has ended."""
    first: ObjectRef[Any] = returned[0] if isinstance(returned, list | tuple) else returned
    return first


def _check_actor(actor: Any) -> None:
    if not isinstance(actor, ActorHandle):
        raise TypeError(f"ActorPool takes actor handles, not {actor!r} (type {type(actor).__name__})")
