"""References of this engine: they hold Ray's, which count themselves, so that nothing is counted here.

    Value    an object: a `ray.ObjectRef`
    Actor    an actor: Ray's handle
    Item     the next item of a generator; once taken, an object
    Stream   a generator's consumer: Ray's `ObjectRefGenerator`

A pickle holds Ray's reference, so that Ray sees it among the values that refer to it; where the program pickles, Ray
keeps the object from then on. Where it is unpickled first, the process gets its runtime.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, NoReturn

import ray
from ray import cloudpickle

from dualray.on_ray.here import have_runtime


class Value:
    """An object. `object_id`: Ray's, 28 bytes."""

    __slots__ = ("object_id", "ray")

    def __init__(self, ray_ref: Any) -> None:
        self.ray = ray_ref
        self.object_id: bytes = ray_ref.binary()

    @property
    def waited_for(self) -> Any:
        """What `ray.wait` takes."""
        return self.ray

    def __reduce__(self) -> tuple[Any, ...]:
        if is_pickled_by_ray():
            return _value, (self.ray,)
        return _value_of, (cloudpickle.dumps(self.ray),)  # with its owner; and Ray keeps the object from now on


class Actor:
    """An actor. `object_id`: its id, 16 bytes. `handle`: Ray's own handle, which keeps it alive."""

    __slots__ = ("handle", "object_id")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.object_id: bytes = handle._actor_id.binary()

    def __reduce__(self) -> tuple[Any, ...]:
        return _actor, (self.handle,)


def _value(ray_ref: Any) -> Value:
    have_runtime()
    return Value(ray_ref)


def _value_of(pickled: bytes) -> Value:
    return _value(cloudpickle.loads(pickled))


def is_pickled_by_ray() -> bool:
    """Whether Ray pickles a value just now, and counts the references in it; else the program does."""
    return bool(ray._private.worker.global_worker.get_serialization_context().is_in_band_serialization())


def _actor(handle: Any) -> Actor:
    have_runtime()
    return Actor(handle)


class Stream:
    """The consumer of a generator's items. `ray`: Ray's generator, which the lock guards."""

    __slots__ = ("current", "lock", "object_id", "ray", "taken")

    def __init__(self, generator: Any) -> None:
        self.ray = generator
        self.lock = Lock()
        self.taken = 0
        self.object_id: bytes = generator.completed().binary()
        self.current: Item | None = Item(self)

    def take(self, item: Item) -> tuple[bool, Item | None]:
        """See `ValueVerbs.take_item`."""
        with self.lock:
            if item is not self.current:
                return False, None
            try:
                item.become(next(self.ray))
            except StopIteration:
                self.current = None
                return True, None
            self.taken += 1
            self.current = Item(self)
            return True, self.current

    def expected(self) -> Any:
        """Ray's reference to the next item, which nobody has taken; it fails where there are no more."""
        with self.lock:
            [expected] = self.ray._get_next_ref_n(1)
            return expected

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "only the process that called a generator function can read the generator's items. Pass the "
            "references that the generator yields"
        )


class Item:
    """The next item of a generator. `ray` is None until it is taken, and its id stands for its place."""

    __slots__ = ("object_id", "ray", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.ray: Any = None
        self.object_id: bytes = b"%b item %d" % (stream.object_id, stream.taken)

    def become(self, ray_ref: Any) -> None:
        """It was taken."""
        self.ray = ray_ref
        self.object_id = ray_ref.binary()

    @property
    def waited_for(self) -> Any:
        """What `ray.wait` takes."""
        return self.stream.ray if self.ray is None else self.ray

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.ray is not None, "only what was taken is passed on"
        return _value, (self.ray,)
