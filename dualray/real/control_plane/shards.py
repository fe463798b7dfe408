"""The control plane's tables, spread over several servers (`num_redis_shards=`).

Theory of operation. Without shards one server, the *primary*, has everything. With N, the primary keeps what the
cluster is (`dualray:cluster`, `dualray:endpoints`), the news, and the list of the others, and each of N further
servers, the *shards*, keeps a part of every table: a record lies at the shard that its key's CRC-32 names, modulo N.
All listen on Unix sockets below one directory, and each has its own files, its own append-only file among them:

    redis.sock                  the primary
    shard-1/redis.sock, ...     the shards
    LRANGE dualray:shards 0 -1  at the primary: the shards' sockets, in order, relative to its own directory

The number is fixed when the cluster starts. A shard that has died is started again like the primary; until then what
needs it waits, and what is written behind to the others goes on.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dualray.real.control_plane.client import ControlPlane, ControlPlaneLimits
from dualray.real.control_plane.resp import RespClient

SHARDS: Final = "dualray:shards"

_REPLY_TIMEOUT_S: Final = 10.0


def socket_names(shards: int) -> list[str]:
    """Return the names of the shards' sockets, relative to the primary's directory."""
    return [f"shard-{number}/redis.sock" for number in range(1, shards + 1)]


def sockets_at(primary: Path, shards: int) -> list[Path]:
    """Return the sockets of all servers, the primary's first."""
    return [primary, *(primary.parent / name for name in socket_names(shards))]


def list_shards(primary: Path, password: str, shards: int) -> None:
    """Write the list of the shards to the primary, which already answers."""
    client = RespClient(primary, password, timeout_s=_REPLY_TIMEOUT_S)
    try:
        client.pipeline([("DEL", SHARDS), ("RPUSH", SHARDS, *socket_names(shards))])
    finally:
        client.close()


def shard_of(key: bytes, shards: int) -> int:
    """Return the number of the shard that has a key, from 0."""
    return zlib.crc32(key) % shards


class ShardedControlPlane:
    """The methods of ControlPlane, over several servers. Every method may be called from any thread.

    Args:
        primary: the primary's socket.
        shards: how many there are, at least 1.
        password: of all servers.
        limits, on_again: of each server's client.
    """

    def __init__(
        self,
        primary: Path,
        password: str,
        shards: int,
        *,
        limits: ControlPlaneLimits | None = None,
        on_again: Callable[[], object] = lambda: None,
    ) -> None:
        self._primary = ControlPlane(primary, password, limits=limits)
        self._shards = [
            ControlPlane(primary.parent / name, password, limits=limits, on_again=on_again)
            for name in socket_names(shards)
        ]

    def _at(self, key: bytes) -> ControlPlane:
        return self._shards[shard_of(key, len(self._shards))]

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write one record and wait until its shard has it."""
        self._at(key).put(table, key, value)

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self._at(key).get(table, key)

    def scan(self, table: str) -> dict[bytes, bytes]:
        """Return every record of a table."""
        return {key: value for shard in self._shards for key, value in shard.scan(table).items()}

    def delete(self, table: str, key: bytes) -> None:
        """Delete a key."""
        self._at(key).delete(table, key)

    def drop(self, table: str) -> None:
        """Delete a table."""
        for shard in self._shards:
            shard.drop(table)

    def write_behind(self, table: str, key: bytes, value: bytes | None) -> int:
        """Write one record soon. Return its number in its shard; 0 if the shard refused it."""
        return self._at(key).write_behind(table, key, value)

    def write_many_behind(self, table: str, records: Sequence[tuple[bytes, bytes]]) -> int:
        """Write records soon, all of one shard in one entry; 0 when some were not taken."""
        parts: dict[int, list[tuple[bytes, bytes]]] = {}
        for record in records:
            parts.setdefault(shard_of(record[0], len(self._shards)), []).append(record)
        return min((self._shards[at].write_many_behind(table, part) for at, part in parts.items()), default=0)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued records are acknowledged. Return False after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        return all(shard.flush(max(0.0, deadline - time.monotonic())) for shard in self._shards)

    def publish(self, channel: str, payload: bytes) -> None:
        """Send a payload to the current subscribers of a channel."""
        self._primary.publish(channel, payload)

    def subscribe(
        self, channel: str, fn: Callable[[bytes], object], *, on_gap: Callable[[], object] | None = None
    ) -> None:
        """Call `fn(payload)` with each payload published from now on."""
        self._primary.subscribe(channel, fn, on_gap=on_gap)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush, and end the threads and connections. Return False if records were not acknowledged in time."""
        deadline = time.monotonic() + timeout_s
        flushed = [shard.close(max(0.0, deadline - time.monotonic())) for shard in self._shards]
        return self._primary.close(0.0) and all(flushed)


Tables = ControlPlane | ShardedControlPlane


def tables_at(primary: Path, password: str, shards: int, *, on_again: Callable[[], object] = lambda: None) -> Tables:
    """A client of a session's tables; `on_again` is called when a server takes records again after it did not."""
    if shards:
        return ShardedControlPlane(primary, password, shards, on_again=on_again)
    return ControlPlane(primary, password, on_again=on_again)
