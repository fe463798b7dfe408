"""ObjectID: what references were called, and how they looked."""

from __future__ import annotations

from typing import Any, TypeVar

from dualray import runtime
from dualray.object_ref import ObjectRef

T = TypeVar("T")


class ObjectID(ObjectRef[T]):
    """A reference; equal to an `ObjectRef` to the same object. Its text is `ObjectID(<40 hex digits>)`."""

    __slots__ = ()

    def id(self) -> bytes:
        """The object's id: 20 bytes."""
        return self.binary()

    def __repr__(self) -> str:
        return f"ObjectID({self.hex()})"

    def _reduced(self) -> tuple[Any, ...]:
        self._check_usable()
        return _revive, self.holder.parts_of(self.ref)


def _revive(*parts: Any) -> ObjectID[Any]:
    """Unpickle: the reference now exists in this process too."""
    verbs = runtime.current("unpickling an ObjectID").verbs
    return ObjectID(verbs.revive(*parts), verbs)
