"""A promise: a reference that can be handed out now, and a value that its process gives later.

An actor that cannot answer yet returns `[promise.ref]`, and goes on; the caller waits for the reference, with `get`'s
timeout, on a CPU that it gives back, and in sim mode under the eyes of the deadlock detector. When the process that has
promised dies, who waits gets OwnerDiedError.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from dualray import runtime
from dualray.object_ref import ObjectRef

T = TypeVar("T")


class Promise(Generic[T]):
    """Made by the process that will keep it, and kept by it once."""

    def __init__(self) -> None:
        verbs = runtime.current("a promise").verbs
        self._verbs = verbs
        self.ref: ObjectRef[T] = ObjectRef(verbs.promise(), verbs)

    def keep(self, value: T) -> None:
        """Give the value: who waits for the reference goes on."""
        self._verbs.keep_promise(self.ref.ref, value)

    @property
    def is_awaited(self) -> bool:
        """Whether another process holds the reference, or is about to get it."""
        return self._verbs.is_held_elsewhere(self.ref.ref)
