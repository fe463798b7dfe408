"""ObjectID: what references were called, and how they looked."""

from __future__ import annotations

from typing import Any, TypeVar

from dualray import runtime
from dualray.object_ref import ObjectRef
from dualray.shared.model.ids import Address
from dualray.shared.model.ids import ObjectID as Identity
from dualray.shared.model.specs import Ref

T = TypeVar("T")


class ObjectID(ObjectRef[T]):
    """A reference; equal to an `ObjectRef` to the same object. Its text is `ObjectID(<40 hex digits>)`."""

    __slots__ = ()

    def id(self) -> bytes:
        """The object's id: 20 bytes."""
        return self.binary()

    def __repr__(self) -> str:
        return f"ObjectID({self.hex()})"

    def __reduce__(self) -> tuple[Any, ...]:
        self.check()
        return _revive, (self.ref.object_id, self.ref.owner)


def _revive(object_id: Identity, owner: Address) -> ObjectID[Any]:
    """Unpickle: the reference now exists in this process too."""
    verbs = runtime.current("unpickling an ObjectID").verbs
    ref = Ref(object_id, owner)
    verbs.adopt(ref)
    return ObjectID(ref, verbs)
