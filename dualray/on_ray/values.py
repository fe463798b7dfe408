"""Values and the references to them, by Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import ray

from dualray.core_verbs import PICKLED_BY_ANYBODY
from dualray.exceptions import GetTimeoutError, OufOfBandObjectRefSerializationException, serialization_error
from dualray.on_ray.errors import raise_translated
from dualray.on_ray.here import as_ours
from dualray.on_ray.promises import Promises
from dualray.on_ray.references import Actor, Item, Value, is_pickled_by_ray
from dualray.on_ray.refusals import refused
from dualray.shared.core.serialization import serialize
from dualray.user_verbs import Awaited


class AwaitedValue:
    """`Awaited`, over a future of Ray's."""

    __slots__ = ("_future",)

    def __init__(self, future: Any, ready: Callable[[], None]) -> None:
        self._future = future
        future.add_done_callback(lambda _: ready())

    @property
    def is_ready(self) -> bool:
        return bool(self._future.done())

    def result(self) -> Any:
        try:
            return as_ours(self._future.result(0))
        except BaseException as error:  # noqa: BLE001 - whatever Ray raises, under its name here
            raise_translated(error)

    def abandon(self) -> None:
        """Ray's future goes with its last reference."""


class RayValues:
    """`ValueVerbs`."""

    __slots__ = ()

    promises: Promises

    def put(self, value: Any, /) -> Value:
        try:
            return Value(ray.put(value))
        except ray.exceptions.RayError as error:
            raise_translated(error)
        except TypeError as error:
            serialize(value)  # it says which part cannot be pickled
            raise serialization_error(f"put: {error}", error) from error

    def get(self, references: Sequence[Any], timeout_ns: int | None, /) -> list[Any]:
        timeout_s = None if timeout_ns is None else timeout_ns / 1e9
        try:
            values = ray.get([reference.ray for reference in references], timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise _late(references, timeout_s) from None
        except ray.exceptions.RayError as error:
            raise_translated(error)
        return [as_ours(value) for value in values]

    def wait(
        self, references: Sequence[Any], /, *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> set[bytes]:
        timeout_s = None if timeout_ns is None else timeout_ns / 1e9
        waited_for = [reference.waited_for for reference in references]
        ready, _ = ray.wait(waited_for, num_returns=num_returns, timeout=timeout_s, fetch_local=fetch_local)
        if ready and len(ready) < len(waited_for) and ready != waited_for[: len(ready)]:
            # Ray has chosen among more; the first in the caller's order are wanted.
            ready, _ = ray.wait(waited_for, num_returns=len(waited_for), timeout=0, fetch_local=fetch_local)
        found = set(ready)
        return {ref.object_id for one, ref in zip(waited_for, references, strict=True) if one in found}

    def get_async(self, reference: Any, ready: Callable[[], None]) -> Awaited:
        return AwaitedValue(reference.ray.future(), ready)

    def wait_async(self, reference: Any, ready: Callable[[], None]) -> Awaited:
        if isinstance(reference, Item) and reference.ray is None:
            return AwaitedValue(reference.stream.expected().future(), ready)
        return self.get_async(reference, ready)

    def take_item(self, item: Any) -> tuple[bool, Any]:
        assert isinstance(item, Item)
        return item.stream.take(item)

    def has_ended_before(self, item: Any) -> bool:
        assert isinstance(item, Item)
        with item.stream.lock:
            return bool(item.stream.ray.is_finished())

    def promise(self) -> Value:
        return self.promises.promise()

    def keep_promise(self, reference: Value, value: Any) -> None:
        self.promises.keep(reference, value)

    def is_held_elsewhere(self, reference: Value) -> bool:
        return True  # Ray does not say; who asks then keeps what it has promised

    def explain(self, reference: Any) -> str:
        raise refused("explain")

    def waiting(self) -> list[str]:
        return []

    def adopt(self, reference: Any, /) -> None:
        """Ray's references count themselves."""

    def drop(self, object_id: Any, /) -> None:
        """As `adopt`."""

    def pin(self, reference: Any, /) -> None:
        """Ray keeps what the program has pickled: see references.py."""
        is_forbidden = isinstance(reference, Value) and os.environ.get(PICKLED_BY_ANYBODY) == "0"
        if is_forbidden and not is_pickled_by_ray():
            raise OufOfBandObjectRefSerializationException(
                f"the program pickled ObjectRef({reference.object_id.hex()}), but {PICKLED_BY_ANYBODY}=0 forbids "
                "this, because dualray cannot count pickled copies of a reference. Pass the reference to a task "
                "or an actor, or return it."
            )

    def parts_of(self, reference: Any, /) -> tuple[Any, ...]:
        return (reference,)

    def find(self, object_id: bytes) -> None:
        """Nothing: which references this process holds is for Ray to know."""

    def revive(self, *parts: Any) -> Any:
        [reference] = parts
        assert isinstance(reference, Value | Actor)
        return reference


def _late(references: Sequence[Any], timeout_s: float | None) -> GetTimeoutError:
    waited_for = [reference.ray for reference in references]
    _, missing = ray.wait(list(dict.fromkeys(waited_for)), num_returns=len(set(waited_for)), timeout=0)
    several = f"{len(missing)} of {len(waited_for)} objects were" if len(waited_for) > 1 else "the object was"
    first = f", the first is {missing[0].hex()}" if missing else ""
    return GetTimeoutError(f"{several} not ready within {timeout_s:g} s{first}")
