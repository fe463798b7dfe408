"""The control plane's tables and news, in Redis: a thin client.

Theory of operation. A table is a map from keys to values, both bytes. A record is written in one of two ways,
and each key is written in one of them only, by one process:

    put             at once: when it returns, Redis has the record
    write_behind    buffered and packed (`write_behind.py`): a record is durable when `acknowledged` has reached the
                    number that write_behind gave it

The layout, for a person with redis-cli (`redis-cli -s SOCKET`, `AUTH PASSWORD`):

    HGETALL dualray:<table>                 hash: the records that were put
    LRANGE dualray:<table>:packed 0 -1      list: entries of records written behind, oldest first, as `write_behind.py`
                                            packs them
    SUBSCRIBE dualray:<channel>             publish and subscribe (`pubsub.py`)

Packing is what makes a record cheap to write; in exchange `get` of a packed key reads backwards through the list,
and only `drop` makes it shorter: name tables so that they end with what they describe.

Connections that break are made again with growing pauses. What `put`, `get`, `scan` and the others cannot do
within `reconnect_timeout_s` raises ControlPlaneError; a wrong password raises AuthenticationError at once.
Writing behind goes on for as long as the client is open; while it cannot, `write_behind` in the end refuses
records by returning 0. A subscriber that was cut off is told of the gap and reads the tables.

The server is started by `server.py`.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from dualray.exceptions import AuthenticationError, ControlPlaneError
from dualray.real.control_plane.resp import RespClient
from dualray.real.control_plane.write_behind import WriteBehind, WriteBehindLimits, pack, packed_key, unpack

if TYPE_CHECKING:
    from dualray.real.control_plane.pubsub import NewsListener

_ENTRIES_PER_READ: Final = 32

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneLimits(WriteBehindLimits):
    """The bounds of one client; those of writing behind, and the pauses of every retry, are WriteBehindLimits.

    Attributes:
        reconnect_timeout_s: how long a call tries before it raises.
        reply_timeout_s: how long Redis may take for one reply.
    """

    reconnect_timeout_s: float = 10.0
    reply_timeout_s: float = 10.0


def _name(table: str) -> str:
    return f"dualray:{table}"


class ControlPlane:
    """See the module's theory of operation. Every method may be called from any thread.

    Args:
        socket_path: the server's Unix socket.
        password: the server's password.
        limits: see ControlPlaneLimits.
        on_again: called, on a thread of its own, when the server takes records again after it did not.
    """

    def __init__(
        self,
        socket_path: Path,
        password: str,
        *,
        limits: ControlPlaneLimits | None = None,
        on_again: Callable[[], object] = lambda: None,
    ) -> None:
        self._limits = limits or ControlPlaneLimits()
        self._socket_path = socket_path
        self._password = password
        self._lock = threading.Lock()
        self._client = self._new_client()
        self._closing = threading.Event()
        self._writer = WriteBehind(self._new_client(), self._limits, on_again)
        self._listener: NewsListener | None = None

    def _new_client(self) -> RespClient:
        return RespClient(self._socket_path, self._password, timeout_s=self._limits.reply_timeout_s)

    # -- tables ----------------------------------------------------------------------------------------------

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write one record and wait until Redis has it."""
        self._try(lambda: self._client.call("HSET", _name(table), key, value))

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value of a key, None when there is none. What is written behind is seen once acknowledged."""
        value: bytes | None = self._try(lambda: self._client.call("HGET", _name(table), key))
        if value is not None:
            return value
        end: int = self._try(lambda: self._client.call("LLEN", packed_key(table)))
        while end > 0:
            start = max(0, end - _ENTRIES_PER_READ)
            for entry in reversed(self._entries(table, start, end)):
                found = [value for record, value in unpack(entry) if record == key] if key in entry else []
                if found:
                    return found[-1]
            end = start
        return None

    def scan(self, table: str) -> dict[bytes, bytes]:
        """Every record of a table."""
        flat: list[bytes] = self._try(lambda: self._client.call("HGETALL", _name(table)))
        records = dict(zip(flat[::2], flat[1::2], strict=True))
        start = 0
        while entries := self._entries(table, start, start + _ENTRIES_PER_READ):
            for entry in entries:
                for key, value in unpack(entry):
                    if value is None:
                        records.pop(key, None)
                    else:
                        records[key] = value
            start += len(entries)
        return records

    def delete(self, table: str, key: bytes) -> None:
        """Forget a key, however it was written, and wait until Redis has."""
        self._try(lambda: self._client.call("HDEL", _name(table), key))
        self._try(lambda: self._client.call("RPUSHX", packed_key(table), pack(key, None)))

    def drop(self, table: str) -> None:
        """Forget a whole table."""
        self._try(lambda: self._client.call("DEL", _name(table), packed_key(table)))

    def _entries(self, table: str, start: int, end: int) -> list[bytes]:
        entries: list[bytes] = self._try(lambda: self._client.call("LRANGE", packed_key(table), start, end - 1))
        return entries

    # -- writing behind --------------------------------------------------------------------------------------

    def write_behind(self, table: str, key: bytes, value: bytes | None) -> int:
        """Write one record soon, None to delete it, without waiting.

        Returns:
            The record's number, from 1 on in the order of the calls, for `acknowledged`; 0 when the buffer is full
            or the client closed and the record was not taken.
        """
        return self._writer.write(table, pack(key, value))

    def write_many_behind(self, table: str, records: Sequence[tuple[bytes, bytes]]) -> int:
        """Write records soon, all in one entry; they count as one record for `acknowledged`."""
        return self._writer.write(table, b"".join([pack(key, value) for key, value in records]))

    @property
    def acknowledged(self) -> int:
        """The number up to which the server has acknowledged the records that were written behind."""
        return self._writer.acknowledged

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued records are acknowledged. Return False after `timeout_s`."""
        return self._writer.flush(timeout_s)

    # -- news ------------------------------------------------------------------------------------------------

    def publish(self, channel: str, payload: bytes) -> None:
        """Send a payload to whoever is subscribed to the channel now. It may arrive twice."""
        self._try(lambda: self._client.call("PUBLISH", _name(channel), payload))

    def subscribe(
        self, channel: str, fn: Callable[[bytes], object], *, on_gap: Callable[[], object] | None = None
    ) -> None:
        """Call `fn(payload)`, on the listener's thread, with each payload published from now on.

        `on_gap()` is called there after a lost connection was made again: payloads may have been missed.
        """
        self._try(lambda: self._client.call("PING"))
        with self._lock:
            if self._listener is None:
                # It uses redis-py, whose import takes long, and few processes subscribe to anything.
                from dualray.real.control_plane.pubsub import NewsListener  # noqa: PLC0415

                self._listener = NewsListener(
                    self._socket_path,
                    self._password,
                    reply_timeout_s=self._limits.reply_timeout_s,
                    retry_first_s=self._limits.retry_first_s,
                    retry_last_s=self._limits.retry_last_s,
                )
            listener = self._listener
        listener.add(_name(channel), fn, on_gap)
        deadline = time.monotonic() + self._limits.reconnect_timeout_s
        while not listener.wait_for(_name(channel), self._limits.retry_last_s):
            if time.monotonic() > deadline or self._closing.is_set():
                raise ControlPlaneError(
                    f"the control plane at {self._socket_path} did not confirm the subscription to {channel}"
                )

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush, end the threads and the connections. False when records were not acknowledged within the time."""
        flushed = self._writer.close(timeout_s)
        self._closing.set()
        if self._listener is not None:
            self._listener.close()
        self._client.close()
        return flushed

    def _try(self, command: Callable[[], T]) -> T:
        """Run a command, again when the connection breaks: all of them may safely happen twice."""
        deadline = time.monotonic() + self._limits.reconnect_timeout_s
        pause_s = self._limits.retry_first_s
        while True:
            try:
                return command()
            except AuthenticationError as error:
                raise AuthenticationError(
                    f"the control plane at {self._socket_path} refused the password of this process: {error}"
                ) from error
            except OSError as error:
                if time.monotonic() + pause_s > deadline or self._closing.wait(pause_s):
                    raise ControlPlaneError(
                        f"a request to the control plane at {self._socket_path} failed: {error}"
                    ) from error
                pause_s = min(2 * pause_s, self._limits.retry_last_s)
