"""ObjectRef: a reference to a value that exists or will exist."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, Self, TypeVar

from dualray import runtime
from dualray.exceptions import DualrayError, ReferenceEndedError
from dualray.hex_id import HexId
from dualray.shared.handles import Reference
from dualray.shared.model.ids import ObjectID, job_of, task_of
from dualray.user_verbs import UserVerbs

if TYPE_CHECKING:
    from asyncio import Future as AsyncFuture
    from concurrent.futures import Future

T = TypeVar("T")

OBJECT_ID_BYTES = 20


class CountedReference(Reference):
    """A reference that its process counts: when the last one goes, the value may go."""

    __slots__ = ()

    ref: Any
    """What the engine has for the object: see `dualray.user_verbs.Reference`."""
    holder: UserVerbs

    _ended: ClassVar[type[ReferenceEndedError]] = ReferenceEndedError
    _in_rays_words: ClassVar[str] = "You are trying to access a Ray object whose owner is unknown."

    def __init__(self, ref: Any, verbs: UserVerbs) -> None:
        self.ref = ref
        self.holder = verbs

    def __del__(self) -> None:
        # __init__ may not have run, and at interpreter exit there may be nobody left to tell.
        try:
            drop = self.holder.drop
        except AttributeError:
            return
        drop(self.ref.object_id)

    def _check_usable(self, in_rays_words: str = "") -> None:
        """Raise when the cluster that the reference belongs to is gone.

        Raises:
            NotInitializedError: this process was forked from the one that holds the reference.
            ReferenceEndedError: it was shut down. The next one uses ids again, so it would mean another object.
        """
        if self.holder.is_closed:
            runtime.check_no_fork(f"a function that reads {self!r}")
            raise self._ended(
                f"{self!r} belongs to a cluster that was shut down: create the actor or object again after "
                f"dualray.init(). ({in_rays_words or self._in_rays_words})"
            )


class _Id(NamedTuple):
    """A reference of which nothing is known but the id."""

    object_id: ObjectID


class _Nowhere:
    """The holder of references that were made of bytes alone: nobody counts them."""

    is_closed = True

    @staticmethod
    def drop(object_id: ObjectID) -> None:
        """Nothing is counted."""

    @staticmethod
    def pin(reference: _Id) -> None:
        """Nothing is kept."""


_NOWHERE: Any = _Nowhere()
_RAYS_ID_BYTES, _RAYS_TASK_ID_BYTES = 28, 24
_NIL = b"\xff" * OBJECT_ID_BYTES


class ObjectRef(CountedReference, Generic[T]):
    """A reference to a value of type T. `.remote()` and `put` return references, and `get` returns their values.

    You can pass a reference to tasks and actor methods, return it, and put it into other values. If a reference is an
    argument of a task, the task gets the value. If an argument contains a reference in a list or another object, the
    task gets the reference. Two references to the same object are equal and have the same hash. When the last reference
    to an object is gone, dualray frees the object's value.

    `ObjectRef(bytes)`, `from_binary`, `from_hex`, `from_random` and `nil` make a reference from an id alone. You can
    compare and pickle such a reference. `get` refuses a reference from an id, unless this process holds another
    reference to the object, because an id does not say which process has the value.
    """

    __slots__ = ()

    is_value = True

    def __init__(self, ref: Any, verbs: UserVerbs | None = None) -> None:
        if verbs is None:
            ref, verbs = _of_bytes(ref)
        self.ref = ref
        self.holder = verbs

    @classmethod
    def nil(cls) -> Self:
        """Return a reference that refers to nothing."""
        return cls(_NIL)

    @classmethod
    def from_random(cls) -> Self:
        """Return a reference with a random id that no object has."""
        return cls(os.urandom(OBJECT_ID_BYTES))

    @classmethod
    def from_binary(cls, id: bytes) -> Self:  # noqa: A002 - Ray's name
        """Return a reference with the id that these bytes give."""
        return cls(id)

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """Return a reference with the id that these hex digits give."""
        return cls(bytes.fromhex(text))

    @property
    def is_counted(self) -> bool:
        """Whether the reference keeps the value in the cluster."""
        return self.holder is not _NOWHERE

    def _check_usable(self, in_rays_words: str = "") -> None:
        """As of every reference."""
        if self.holder is _NOWHERE:
            raise DualrayError(
                f"{self!r} was created from an id alone, and this process has no other reference to the object. Use "
                "the reference that .remote() or put() returned, or a pickled copy of it"
            )
        super()._check_usable(in_rays_words)

    def hex(self) -> str:
        """Return the object's id as 40 hex digits."""
        return str(self.ref.object_id.hex())

    def task_id(self) -> HexId:
        """Return the id, in hex, of the task that computes the object, or of the task that called `put`."""
        object_id = self.ref.object_id
        if len(object_id) == _RAYS_ID_BYTES:
            return HexId(object_id[:_RAYS_TASK_ID_BYTES].hex())
        return HexId(task_of(object_id).hex())

    def job_id(self) -> HexId:
        """Return the number of the driver whose program created the object, as 8 hex digits."""
        object_id = self.ref.object_id
        if len(object_id) == _RAYS_ID_BYTES:
            return HexId(object_id[_RAYS_TASK_ID_BYTES - 4 : _RAYS_TASK_ID_BYTES].hex())
        return HexId(f"{job_of(object_id):08x}")

    @classmethod
    def size(cls) -> int:
        """Return the number of bytes of an id."""
        return OBJECT_ID_BYTES

    def is_nil(self) -> bool:
        """Return whether the reference refers to nothing, as `ObjectRef.nil()` does."""
        return bool(self.ref.object_id == _NIL)

    def binary(self) -> bytes:
        """Return the object's id as 20 bytes."""
        return bytes(self.ref.object_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and bool(other.ref.object_id == self.ref.object_id)

    def __hash__(self) -> int:
        return hash(self.ref.object_id)

    def __repr__(self) -> str:
        return f"ObjectRef({self.hex()})"

    def _reduced(self) -> tuple[Any, ...]:
        if self.holder is _NOWHERE:
            return type(self), (self.binary(),)
        self._check_usable()
        return _revive, self.holder.parts_of(self.ref)

    def __reduce__(self) -> tuple[Any, ...]:
        """Somebody pickles it, and nobody knows for how long: this process keeps the object until it ends, as in Ray.

        Raises:
            OufOfBandObjectRefSerializationException: RAY_allow_out_of_band_object_ref_serialization is 0 here.
        """
        reduced = self._reduced()
        self.holder.pin(self.ref)
        return reduced

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the value in a coroutine, without blocking the event loop. Raises the same errors as `get`."""
        from dualray.aio import value_of  # noqa: PLC0415 - it imports asyncio, which most programs do without

        self._check_usable()
        return value_of(self.ref, self.holder, self).__await__()

    def future(self) -> Future[T]:
        """Return a `concurrent.futures.Future` that gets the value, or the exception that `get` would raise."""
        from dualray.aio import ReferenceFuture  # noqa: PLC0415 - as above

        self._check_usable()
        return ReferenceFuture(self.ref, self.holder, self)

    def _on_completed(self, py_callback: Callable[[Any], object]) -> None:
        """Have a function called once, with the value or with what `get` raises, when it is there: Ray's tests do.

        Args:
            py_callback: it runs in another thread, and must not wait.
        """

        callbacks = [py_callback]

        def arrived(future: Future[T]) -> None:
            error = future.exception()
            try:
                callbacks.pop()(future.result() if error is None else error)
            except Exception:  # noqa: BLE001 - the user's: a log would keep its traceback, and with it the function
                import traceback  # noqa: PLC0415 - seldom needed

                traceback.print_exc()

        self.future().add_done_callback(arrived)

    def as_future(self, _internal: bool = False) -> AsyncFuture[T]:
        """Return an `asyncio.Future` that gets the value, or the exception that `get` would raise.

        The future belongs to the running event loop. If no event loop runs, the future belongs to the event loop that
        `asyncio.set_event_loop` has set for this thread.

        Raises:
            RuntimeError: this thread has no event loop.
        """
        import asyncio  # noqa: PLC0415 - as above

        from dualray.aio import value_of  # noqa: PLC0415 - as above

        self._check_usable()
        return asyncio.get_event_loop().create_task(value_of(self.ref, self.holder, self))

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self!r} is a reference, not the value: use dualray.get(ref) to read the value")

    def __copy__(self) -> ObjectRef[T]:
        """Return another reference to the same object, which is counted as well."""
        if self.is_counted and not self.holder.is_closed:
            self.holder.adopt(self.ref)
        return type(self)(self.ref, self.holder)

    def __deepcopy__(self, memo: dict[int, Any]) -> ObjectRef[T]:
        return self.__copy__()


def _of_bytes(id: bytes) -> tuple[Any, UserVerbs]:  # noqa: A002 - Ray's name
    """The reference of an id, and who counts it: this process, if it holds one to that object already.

    Raises:
        TypeError, ValueError: no bytes, or no id's.
    """
    if not isinstance(id, bytes):
        raise TypeError(f"ObjectRef takes the bytes of an id, not {id!r}")
    if len(id) not in (OBJECT_ID_BYTES, _RAYS_ID_BYTES):
        raise ValueError(
            f"ObjectRef: an ID string needs to have length {OBJECT_ID_BYTES} bytes, or {_RAYS_ID_BYTES} as in Ray, "
            f"got {len(id)}: {id!r}"
        )
    here = runtime.current_or_none()
    found = here.verbs.find(id) if here is not None and len(id) == OBJECT_ID_BYTES else None
    if here is None or found is None:
        return _Id(ObjectID(id)), _NOWHERE
    here.verbs.adopt(found)
    return found, here.verbs


def _revive(*parts: Any) -> ObjectRef[Any]:
    """Unpickle: the reference now exists in this process too."""
    verbs = runtime.current("unpickling an ObjectRef").verbs
    return ObjectRef(verbs.revive(*parts), verbs)
