"""`ray.experimental.internal_kv`: texts by key that every process of the cluster can read, kept by an actor.

The actor is made by the first that writes, and lives until the cluster ends.
"""

from __future__ import annotations

from typing import Any, Final

from dualray import api
from dualray.actor import get_actor
from dualray.exceptions import RaySystemError

__all__ = [
    "_initialize_internal_kv",
    "_internal_kv_del",
    "_internal_kv_exists",
    "_internal_kv_get",
    "_internal_kv_initialized",
    "_internal_kv_list",
    "_internal_kv_put",
    "_internal_kv_reset",
]

_ACTOR: Final = {"name": "internal_kv", "namespace": "dualray"}


_RESERVED: Final = b"@namespace_"


class _Keeper:
    """The actor. Keys are told apart by their namespace."""

    def __init__(self) -> None:
        self._values: dict[tuple[bytes, bytes], bytes] = {}

    def get(self, key: tuple[bytes, bytes]) -> bytes | None:
        return self._values.get(key)

    def put(self, key: tuple[bytes, bytes], value: bytes, overwrite: bool) -> bool:
        existed = key in self._values
        if overwrite or not existed:
            self._values[key] = value
        return existed

    def keys(self, prefix: tuple[bytes, bytes]) -> list[bytes]:
        return sorted(key for space, key in self._values if space == prefix[0] and key.startswith(prefix[1]))

    def delete(self, key: tuple[bytes, bytes], by_prefix: bool) -> int:
        gone = self.keys(key) if by_prefix else [key[1]] if key in self._values else []
        for each in gone:
            del self._values[key[0], each]
        return len(gone)


def _key(key: str | bytes, namespace: str | bytes | None) -> tuple[bytes, bytes]:
    if not isinstance(key, str | bytes):
        raise TypeError(f"a key must be bytes or str, not {key!r} (type {type(key).__name__})")
    if (key if isinstance(key, bytes) else key.encode()).startswith(_RESERVED):
        raise RaySystemError(f"the key {key!r} begins with {_RESERVED.decode()!r}, which is reserved: use another key")
    space = namespace or b""
    return space.encode() if isinstance(space, str) else space, key.encode() if isinstance(key, str) else key


def _asked(method: str, *args: Any, absent: Any) -> Any:
    """What the actor answers; `absent` where nobody has written."""
    try:
        keeper = get_actor(**_ACTOR)
    except ValueError:
        return absent
    return api.get(getattr(keeper, method).remote(*args))


def _initialize_internal_kv(gcs_client: Any) -> None:
    """Change nothing: the values are those of the cluster to which this process is connected."""


def _internal_kv_reset() -> None:
    """Change nothing: the values stay until the cluster ends."""


def _internal_kv_initialized() -> bool:
    """Whether this process is connected to a cluster."""
    return api.is_initialized()


def _internal_kv_get(key: str | bytes, *, namespace: str | bytes | None = None) -> bytes | None:
    """The value of a key; None: it has none."""
    value: bytes | None = _asked("get", _key(key, namespace), absent=None)
    return value


def _internal_kv_exists(key: str | bytes, *, namespace: str | bytes | None = None) -> bool:
    """Whether a key has a value."""
    return _internal_kv_get(key, namespace=namespace) is not None


def _internal_kv_put(
    key: str | bytes, value: str | bytes, overwrite: bool = True, *, namespace: str | bytes | None = None
) -> bool:
    """Give a key a value, unless it has one and `overwrite` is False; whether it had one before.

    Raises:
        TypeError: a key or value that is neither bytes nor a text.
        RaySystemError: a key that begins with "@namespace_".
    """
    if not isinstance(value, str | bytes):
        raise TypeError(f"the value of {key!r} must be bytes or str, not {value!r} (type {type(value).__name__})")
    kept = value.encode() if isinstance(value, str) else value
    make: Any = api.remote(num_cpus=0, lifetime="detached", get_if_exists=True, **_ACTOR)(_Keeper)
    existed: bool = api.get(make.remote().put.remote(_key(key, namespace), kept, overwrite))
    return existed


def _internal_kv_del(key: str | bytes, *, del_by_prefix: bool = False, namespace: str | bytes | None = None) -> int:
    """Take a key away, or all that begin with it; how many there were."""
    count: int = _asked("delete", _key(key, namespace), del_by_prefix, absent=0)
    return count


def _internal_kv_list(prefix: str | bytes, *, namespace: str | bytes | None = None) -> list[bytes]:
    """The keys that begin with a prefix, in order."""
    keys: list[bytes] = _asked("keys", _key(prefix, namespace), absent=[])
    return keys
