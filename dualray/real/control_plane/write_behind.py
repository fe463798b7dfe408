"""Records written behind: packed by a thread, appended many at a time, and acknowledged in order.

Theory of operation. `write` takes a record into the buffer of its table and returns its number. A thread packs
the records that came within `flush_interval_s` and appends them, one entry (up to `entry_bytes_max`) for many
records, all tables in one pipeline. A record is durable when `acknowledged` has reached its number; records are
acknowledged in the order they were written, and never before Redis took them.

    LRANGE dualray:<table>:packed 0 -1      list: entries of records written behind, oldest first. An entry is a row of
                                            netstrings, <length>:<bytes>, by twos: key, value. "-," in a value's place
                                            deletes the key. Of several records of one key the last one counts

So `3:abc,5:alive,3:abc,4:dead,` says that abc was alive and is dead. Packing takes 1.6 us of the
client and 0.3 us of the server a record, where a pipelined HSET takes 10 and 2.

The thread begins with the first record and goes on until `close`. While it cannot write it tries again with
growing pauses, and the buffer fills to its bound; then records are refused by returning 0. After a retry, an
entry may stand in the list twice, which changes nothing.
"""

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator

from dualray.exceptions import AuthenticationError
from dualray.real.control_plane.resp import ReplyError, RespClient
from dualray.real.limits import limit_in_words, start_thread

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteBehindLimits:
    """The bounds of one client's writing behind.

    Attributes:
        flush_interval_s: how long records are gathered before they are sent.
        entry_bytes_max: of one packed entry, unless one record alone is larger.
        buffer_bytes_max: of the records that are written behind and not acknowledged.
        retry_first_s, retry_last_s: the pause before the first further attempt, and the longest one.
    """

    flush_interval_s: float = 0.005
    entry_bytes_max: int = 256 << 10
    buffer_bytes_max: int = 256 << 20
    retry_first_s: float = 0.01
    retry_last_s: float = 0.5


def packed_key(table: str) -> str:
    """Where Redis has the packed entries of a table."""
    return f"dualray:{table}:packed"


def pack(key: bytes, value: bytes | None) -> bytes:
    """One record of a packed entry; the value None deletes the key."""
    if value is None:
        return b"%d:%b,-," % (len(key), key)
    return b"%d:%b,%d:%b," % (len(key), key, len(value), value)


def unpack(entry: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """The records of a packed entry, in the order they were written."""
    position = 0
    while position < len(entry):
        colon = entry.index(b":", position)
        end = colon + 1 + int(entry[position:colon])
        key = entry[colon + 1 : end]
        position = end + 1
        if entry.startswith(b"-,", position):
            yield key, None
            position += 2
            continue
        colon = entry.index(b":", position)
        end = colon + 1 + int(entry[position:colon])
        yield key, entry[colon + 1 : end]
        position = end + 1


class WriteBehind:
    """The buffer and the thread of write_behind; `on_again` is called there when the server takes records again."""

    def __init__(self, client: RespClient, limits: WriteBehindLimits, on_again: Callable[[], object]) -> None:
        self.acknowledged = 0
        self._client = client
        self._on_again = on_again
        self._limits = limits
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._news = threading.Event()  # there are records, or the end has come
        self._hurry = threading.Event()  # somebody waits for them
        self._buffers: dict[str, list[bytes]] = {}
        self._buffered_bytes = 0  # in the buffers and on their way
        self._last = 0  # the number of the last record taken
        self._closed = False  # no further record is taken
        self._stop = threading.Event()  # no further attempt is made
        self._thread: threading.Thread | None = None
        self._lacks_thread = False
        """None could be started, which has been said."""

    def write(self, table: str, record: bytes) -> int:
        with self._lock:
            if self._buffered_bytes >= self._limits.buffer_bytes_max or self._closed:
                return 0
            buffer = self._buffers.get(table)
            if buffer is None:
                buffer = self._buffers[table] = []
                self._news.set()
            if self._thread is None:
                self._begin()
            buffer.append(record)
            self._buffered_bytes += len(record)
            self._last += 1
            return self._last

    def _begin(self) -> None:
        """Start the thread; where none can be had records wait for the next one that is written, or for the end."""
        thread = threading.Thread(target=self._run, name="dualray-write-behind", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError as error:
            if not self._lacks_thread:
                _log.warning("records for the control plane are queued: %s", limit_in_words(error))
            self._lacks_thread = True
            return
        self._thread = thread

    def flush(self, timeout_s: float) -> bool:
        with self._progress:
            if self._thread is None and self._buffers:
                self._begin()
                if self._thread is None:
                    return False
            last = self._last
            self._hurry.set()
            return self._progress.wait_for(lambda: self.acknowledged >= last, timeout_s)

    def close(self, timeout_s: float) -> bool:
        with self._lock:
            self._closed = True
        flushed = self.flush(timeout_s)
        self._stop.set()
        self._news.set()
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()
        elif self._buffers:  # there was never a thread for them
            flushed = self._send(self._buffers)
        self._client.close()
        return flushed

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._hurry.wait(self._limits.flush_interval_s)
            with self._lock:
                self._news.clear()
                self._hurry.clear()
                buffers, self._buffers = self._buffers, {}
                last = self._last
            if buffers and not self._send(buffers):
                return
            with self._progress:
                self._buffered_bytes -= sum(len(record) for buffer in buffers.values() for record in buffer)
                self.acknowledged = last
                self._progress.notify_all()
            if self._stop.is_set():
                return

    def _send(self, buffers: dict[str, list[bytes]]) -> bool:
        """Append the records, however often it takes; False when the client is closed before it succeeds."""
        pause_s = self._limits.retry_first_s
        failed = 0
        while True:
            try:
                self._client.pipeline(
                    [
                        ("RPUSH", packed_key(table), entry)
                        for table, records in buffers.items()
                        for entry in self._entries(records)
                    ]
                )
                if failed:
                    _log.warning("the control plane accepts records again, after %d failed attempts", failed)
                    self._on_again()
                return True
            except (OSError, ReplyError, AuthenticationError) as error:
                failed += 1
                if failed == 1:
                    _log.warning("the control plane does not accept records; dualray keeps trying: %s", error)
                if self._stop.wait(pause_s):
                    return False
                pause_s = min(2 * pause_s, self._limits.retry_last_s)

    def _entries(self, records: list[bytes]) -> Iterator[bytes]:
        start, size = 0, 0
        for index, record in enumerate(records):
            if size and size + len(record) > self._limits.entry_bytes_max:
                yield b"".join(records[start:index])
                start, size = index, 0
            size += len(record)
        yield b"".join(records[start:])
