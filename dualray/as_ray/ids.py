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
    """Of dualray's ids of this kind, where they are bytes, too."""

    def __init__(self, id: bytes) -> None:  # noqa: A002 - Ray's name
        if not isinstance(id, bytes):
            raise TypeError(f"{type(self).__name__} takes bytes, not {id!r}")
        if len(id) not in (self._size, self._own_size):
            raise ValueError(f"{type(self).__name__} takes {self._size} bytes, not {len(id)}: {id!r}")
        self._binary = id

    @classmethod
    def size(cls) -> int:
        """How many bytes it has."""
        return cls._size

    @classmethod
    def nil(cls) -> Self:
        """The id of nothing."""
        return cls(b"\xff" * cls._size)

    @classmethod
    def from_random(cls) -> Self:
        """Another one at each call."""
        return cls(os.urandom(cls._size))

    @classmethod
    def from_binary(cls, id: bytes) -> Self:  # noqa: A002 - Ray's name
        """That of these bytes."""
        return cls(id)

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """That of this text."""
        return cls(bytes.fromhex(text))

    def binary(self) -> bytes:
        """Its bytes."""
        return self._binary

    def hex(self) -> str:
        """Its bytes, as text."""
        return self._binary.hex()

    def is_nil(self) -> bool:
        """Whether it is the id of nothing."""
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
    """An id that belongs to no other."""

    __slots__ = ()


class NodeID(UniqueID):
    """Of a node."""

    __slots__ = ()


class WorkerID(UniqueID):
    """Of a worker."""

    __slots__ = ()


class FunctionID(UniqueID):
    """Of a remote function."""

    __slots__ = ()


class ActorClassID(UniqueID):
    """Of an actor class."""

    __slots__ = ()


class ClusterID(UniqueID):
    """Of a cluster."""

    __slots__ = ()


class JobID(BaseID):
    """Of a program that is connected to a cluster."""

    __slots__ = ()
    _size = 4

    @classmethod
    def from_int(cls, number: int) -> Self:
        """That of a number, the first byte lowest."""
        return cls(number.to_bytes(cls._size, "little"))

    def int(self) -> int:
        """Its number."""
        return int.from_bytes(self._binary, "little")


class TaskID(BaseID):
    """Of a task."""

    __slots__ = ()
    _size = 24
    _own_size = 16


class ActorID(BaseID):
    """Of an actor."""

    __slots__ = ()
    _size = 16


class PlacementGroupID(BaseID):
    """Of a placement group."""

    __slots__ = ()
    _size = 18
    _own_size = 16


ObjectID = ObjectRef
"""The older name of references."""


class Language(enum.Enum):
    """In what a worker's code is written; here always PYTHON."""

    PYTHON = 0
    JAVA = 1
    CPP = 2


def get_node_instance_id() -> str:
    """What the environment calls this machine, RAY_CLOUD_INSTANCE_ID; "" if nothing."""
    return os.environ.get("RAY_CLOUD_INSTANCE_ID", "")
