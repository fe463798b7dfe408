"""Ray's classes of ids: bytes of a fixed length, with a text in hex.

dualray's own ids are shorter, and texts that answer `hex()` and `binary()`; these are for programs that make ids of
their own, or name the classes.
"""

from __future__ import annotations

import enum
import os
from typing import ClassVar, Self

from dualray.object_ref import ObjectRef


class BaseID:
    """An id.

    Args:
        id: its bytes, as many as `size()` says.

    Raises:
        ValueError: another number of bytes.
        TypeError: no bytes.
    """

    __slots__ = ("_binary",)
    _size: ClassVar[int] = 28
    _own_size: ClassVar[int] = 0
    """The number of bytes of dualray's ids of this kind, if those are bytes too."""

    def __init__(self, id: bytes) -> None:  # noqa: A002 - Ray's name
        if not isinstance(id, bytes):
            raise TypeError(f"{type(self).__name__} takes bytes, not {id!r}")
        if len(id) not in (self._size, self._own_size):
            raise ValueError(f"{type(self).__name__} takes {self._size} bytes, not {len(id)}: {id!r}")
        self._binary = id

    @classmethod
    def size(cls) -> int:
        """Return the number of bytes of such an id."""
        return cls._size

    @classmethod
    def nil(cls) -> Self:
        """Return the id that stands for nothing."""
        return cls(b"\xff" * cls._size)

    @classmethod
    def from_random(cls) -> Self:
        """Return a new random id."""
        return cls(os.urandom(cls._size))

    @classmethod
    def from_binary(cls, id: bytes) -> Self:  # noqa: A002 - Ray's name
        """Return the id with these bytes."""
        return cls(id)

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """Return the id with this text in hex."""
        return cls(bytes.fromhex(text))

    def binary(self) -> bytes:
        """Return the bytes of the id."""
        return self._binary

    def hex(self) -> str:
        """Return the id in hex."""
        return self._binary.hex()

    def is_nil(self) -> bool:
        """Whether the id stands for nothing."""
        return self._binary == b"\xff" * self._size

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._binary == self._binary

    def __hash__(self) -> int:
        return hash(self._binary)

    def __bytes__(self) -> bytes:
        return self._binary

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self._binary,)


class UniqueID(BaseID):
    """An id that is not part of another id."""

    __slots__ = ()


class NodeID(UniqueID):
    """The id of a node."""

    __slots__ = ()


class WorkerID(UniqueID):
    """The id of a worker."""

    __slots__ = ()


class FunctionID(UniqueID):
    """The id of a remote function."""

    __slots__ = ()


class ActorClassID(UniqueID):
    """The id of an actor class."""

    __slots__ = ()


class ClusterID(UniqueID):
    """The id of a cluster."""

    __slots__ = ()


class JobID(BaseID):
    """The id of a program that is connected to a cluster."""

    __slots__ = ()
    _size = 4

    @classmethod
    def from_int(cls, number: int) -> Self:
        """Return the id of a job's number, in little-endian order."""
        return cls(number.to_bytes(cls._size, "little"))

    def int(self) -> int:
        """Return the job's number."""
        return int.from_bytes(self._binary, "little")


class TaskID(BaseID):
    """The id of a task."""

    __slots__ = ()
    _size = 24
    _own_size = 16


class ActorID(BaseID):
    """The id of an actor."""

    __slots__ = ()
    _size = 16


class PlacementGroupID(BaseID):
    """The id of a placement group."""

    __slots__ = ()
    _size = 18
    _own_size = 16


ObjectID = ObjectRef
"""The older name of references."""


class Language(enum.Enum):
    """The language of a worker's code; here always PYTHON."""

    PYTHON = 0
    JAVA = 1
    CPP = 2


def get_node_instance_id() -> str:
    """What the environment calls this machine, RAY_CLOUD_INSTANCE_ID; "" if nothing."""
    return os.environ.get("RAY_CLOUD_INSTANCE_ID", "")
