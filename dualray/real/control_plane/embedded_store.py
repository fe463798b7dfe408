"""A small Redis in a thread: the control plane's tables where no redis-server can be had.

Theory of operation. One thread runs a `Loop` that listens on a Unix socket and speaks RESP2, the protocol of
Redis, as far as `client.py` uses it; redis-py (told `protocol=2`: HELLO is refused) works against it
unchanged. The commands are methods named `_do_<command>` of `EmbeddedStore`; each takes the arguments and
returns the reply as bytes. There is one keyspace of hashes and lists, in this process's memory: what Redis
would keep in its append-only file is gone with the process.

Each command runs alone, on the one thread, so each is atomic. A command on a key of the other type answers
WRONGTYPE, an unknown one answers an error and the connection goes on; a request that is not an array of bulk
strings, or is over a bound below, ends its connection. Before AUTH, a connection may send little and do
nothing. A subscriber that does not read is dropped when PENDING_BYTES_MAX wait for it; a request's own reply
may be larger.
"""

import collections
import hmac
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from dualray.real.credentials import peer_uid
from dualray.real.limits import start_thread
from dualray.real.net.loop import Loop

REQUEST_BYTES_MAX: Final = 512 << 20
"""Of one command, as in Redis (proto-max-bulk-len)."""
ARGUMENTS_MAX: Final = 1 << 20
UNAUTHENTICATED_BYTES_MAX: Final = 4096
CLIENTS_MAX: Final = 10_000
PENDING_BYTES_MAX: Final = 64 << 20
_READ_BYTES: Final = 1 << 18

_log = logging.getLogger(__name__)

_OK: Final = b"+OK\r\n"
_NIL: Final = b"$-1\r\n"
_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"

Hash = dict[bytes, bytes]
Values = list[bytes]


class _BadRequest(Exception):
    """The client does not speak the protocol: its connection ends."""


class _CommandFailed(Exception):
    """The command's answer is this error line."""


def _integer(value: int) -> bytes:
    return b":%d\r\n" % value


def _bulk(value: bytes | None) -> bytes:
    return _NIL if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def _array(values: list[bytes]) -> bytes:
    """An array of replies that are encoded already."""
    return b"*%d\r\n%b" % (len(values), b"".join(values))


class RequestReader:
    """Cuts commands out of one connection's bytes; what has come of a command is not looked at twice."""

    def __init__(self) -> None:
        self.bytes_max = UNAUTHENTICATED_BYTES_MAX
        self._data = bytearray()
        self._position = 0
        self._arguments: list[bytes] = []
        self._left = 0  # arguments still to come
        self._length = -1  # of the next one, when that is known
        self._size = 0  # bytes of this command that were consumed

    def feed(self, data: bytes) -> None:
        """Take in what has come."""
        del self._data[: self._position]
        self._position = 0
        self._data += data

    def next(self) -> list[bytes] | None:
        """The next command, None when it has not come whole; _BadRequest when it is none or too large."""
        if self._left == 0:
            count = self._line(b"*", ARGUMENTS_MAX)
            if count is None:
                return None
            self._left, self._arguments, self._size = count, [], 0
        while self._left:
            if self._length < 0:
                length = self._line(b"$", REQUEST_BYTES_MAX)
                if length is None:
                    return None
                self._length = length
                self._size += length
                if self._size > self.bytes_max:
                    raise _BadRequest(f"a request to the embedded control plane has more than {self.bytes_max} bytes")
            end = self._position + self._length
            if len(self._data) < end + 2:
                return None
            if self._data[end : end + 2] != b"\r\n":
                raise _BadRequest("a bulk string in a request to the embedded control plane does not end with CRLF")
            self._arguments.append(bytes(self._data[self._position : end]))
            self._position = end + 2
            self._length = -1
            self._left -= 1
        return self._arguments

    def _line(self, kind: bytes, bound: int) -> int | None:
        """The number of a line that begins with `kind`."""
        start = self._position
        if start == len(self._data):
            return None
        if self._data[start : start + 1] != kind:
            raise _BadRequest(f"expected {kind!r}")
        end = self._data.find(b"\r\n", start, start + 16)
        if end < 0:
            if len(self._data) - start >= 16:
                raise _BadRequest("a length in a request to the embedded control plane does not end with CRLF")
            return None
        digits = self._data[start + 1 : end]
        if not digits.isdigit() or (value := int(digits)) > bound:
            raise _BadRequest(
                f"a request to the embedded control plane has the length {bytes(digits)!r}, but a length must be a "
                f"number between 0 and {bound}"
            )
        self._position = end + 2
        return value


class _Client:
    __slots__ = (
        "authenticated",
        "channels",
        "closed",
        "outgoing",
        "pending_bytes",
        "requests",
        "sock",
        "writes",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.requests = RequestReader()
        self.outgoing: collections.deque[memoryview] = collections.deque()
        self.pending_bytes = 0
        self.writes = False
        self.authenticated = False
        self.channels: dict[bytes, None] = {}
        self.closed = False


class EmbeddedStore:
    """See the module's theory of operation.

    Args:
        socket_path: made with mode 0600; a file that is there is replaced.
        password: what AUTH must say.
    """

    def __init__(self, socket_path: Path, password: str) -> None:
        self._path = socket_path
        self._password = password.encode()
        self._hashes: dict[bytes, Hash] = {}
        self._lists: dict[bytes, Values] = {}
        self._subscribers: dict[bytes, dict[_Client, None]] = {}
        self._clients: dict[int, _Client] = {}
        self._commands: dict[bytes, Callable[[list[bytes]], bytes]] = {
            name[4:].encode(): getattr(self, name) for name in dir(self) if name.startswith("_do_")
        }
        self._loop = Loop(lambda error: _log.error("the embedded control plane failed", exc_info=error))
        self._thread = threading.Thread(target=self._loop.run, name="dualray-embedded-store", daemon=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._started = False

    def start(self) -> None:
        """Listen, and serve on a thread."""
        self._path.unlink(missing_ok=True)
        self._listener.bind(os.fspath(self._path))
        self._path.chmod(0o600)
        self._listener.listen(socket.SOMAXCONN)
        self._listen()
        start_thread(self._thread)
        self._started = True

    def stop(self) -> None:
        """Close every connection, forget the tables, and remove the socket. Idempotent."""
        if self._started:
            self._started = False
            self._loop.call_soon(self._shut)
            self._loop.stop()
            self._thread.join()
            self._path.unlink(missing_ok=True)
        self._listener.close()
        self._loop.close()

    # -- connections -----------------------------------------------------------------------------------------

    def _shut(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        for client in list(self._clients.values()):
            self._drop(client)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # no descriptor is left: they wait in the listen queue for a moment
            _log.warning("the embedded control plane could not accept a connection: %s", error)
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(0.1, self._listen)
            return
        uid = peer_uid(sock)
        if uid != os.getuid() or len(self._clients) >= CLIENTS_MAX:
            _log.warning("the embedded control plane refused uid %d with %d clients", uid, len(self._clients))
            sock.close()
            return
        sock.setblocking(False)
        client = _Client(sock)
        self._clients[sock.fileno()] = client
        self._loop.add_reader(sock.fileno(), partial(self._read, client))

    def _drop(self, client: _Client) -> None:
        if client.closed:
            return
        client.closed = True
        for channel in list(client.channels):
            self._leave(client, channel)
        fd = client.sock.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        del self._clients[fd]
        client.sock.close()

    def _read(self, client: _Client) -> None:
        try:
            data = client.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        client.requests.feed(data)
        try:
            while not client.closed and (arguments := client.requests.next()) is not None:
                if arguments:
                    self._serve(client, arguments)
        except _BadRequest as reason:
            _log.warning("the embedded control plane dropped a connection: %s", reason)
            self._drop(client)

    def _serve(self, client: _Client, arguments: list[bytes]) -> None:
        name = arguments[0].lower()
        try:
            if name == b"auth":
                reply = self._authenticate(client, arguments)
            elif not client.authenticated:
                reply = b"-NOAUTH Authentication required.\r\n"
            elif name in (b"subscribe", b"unsubscribe"):
                reply = self._change_subscriptions(client, name, arguments[1:])
            elif name == b"quit":
                self._send(client, _OK)
                self._drop(client)
                return
            elif (command := self._commands.get(name)) is None:
                reply = b"-ERR unknown command '%b'\r\n" % name[:64].translate(None, b"\r\n")
            else:
                reply = command(arguments[1:])
        except _CommandFailed as failure:
            reply = b"-%b\r\n" % str(failure).encode()
        except (ValueError, IndexError):
            reply = b"-ERR wrong arguments for '%b'\r\n" % name[:64].translate(None, b"\r\n")
        self._send(client, reply)

    def _send(self, client: _Client, data: bytes) -> None:
        if client.closed:
            return
        if not client.outgoing:
            try:
                data = data[client.sock.send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)
                return
        if data:
            client.outgoing.append(memoryview(data))
            client.pending_bytes += len(data)
            if not client.writes:
                client.writes = True
                self._loop.add_writer(client.sock.fileno(), partial(self._flush, client))

    def _flush(self, client: _Client) -> None:
        try:
            while client.outgoing:
                pieces = list(itertools.islice(client.outgoing, 64))
                written = client.sock.sendmsg(pieces, (), socket.MSG_NOSIGNAL)
                client.pending_bytes -= written
                while client.outgoing and written >= len(client.outgoing[0]):
                    written -= len(client.outgoing.popleft())
                if written:
                    client.outgoing[0] = client.outgoing[0][written:]
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.writes = False
        self._loop.remove_writer(client.sock.fileno())

    def _authenticate(self, client: _Client, arguments: list[bytes]) -> bytes:
        """AUTH password, or AUTH default password."""
        user = arguments[1] if len(arguments) == 3 else b"default"
        if user == b"default" and hmac.compare_digest(arguments[-1], self._password) and len(arguments) > 1:
            client.authenticated = True
            client.requests.bytes_max = REQUEST_BYTES_MAX
            return _OK
        return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"

    # -- publish and subscribe -------------------------------------------------------------------------------

    def _change_subscriptions(self, client: _Client, name: bytes, channels: list[bytes]) -> bytes:
        replies = []
        for channel in channels or list(client.channels) or [b""]:
            if name == b"subscribe":
                client.channels[channel] = None
                self._subscribers.setdefault(channel, {})[client] = None
            else:
                self._leave(client, channel)
            replies.append(_array([_bulk(name), _bulk(channel or None), _integer(len(client.channels))]))
        return b"".join(replies)

    def _leave(self, client: _Client, channel: bytes) -> None:
        client.channels.pop(channel, None)
        subscribers = self._subscribers.get(channel, {})
        subscribers.pop(client, None)
        if not subscribers:
            self._subscribers.pop(channel, None)

    def _do_publish(self, arguments: list[bytes]) -> bytes:
        channel, payload = arguments
        subscribers = list(self._subscribers.get(channel, ()))
        message = _array([_bulk(b"message"), _bulk(channel), _bulk(payload)])
        for client in subscribers:
            if client.pending_bytes > PENDING_BYTES_MAX:
                _log.warning("the embedded control plane dropped a subscriber that does not read")
                self._drop(client)
            else:
                self._send(client, message)
        return _integer(len(subscribers))

    # -- commands without state ------------------------------------------------------------------------------

    def _do_hello(self, _: list[bytes]) -> bytes:
        return b"-NOPROTO unsupported protocol version: this server speaks RESP2\r\n"

    def _do_ping(self, arguments: list[bytes]) -> bytes:
        return _bulk(arguments[0]) if arguments else b"+PONG\r\n"

    def _do_select(self, arguments: list[bytes]) -> bytes:
        return _OK if arguments == [b"0"] else b"-ERR DB index is out of range\r\n"

    def _do_client(self, arguments: list[bytes]) -> bytes:
        return _OK if arguments[0].lower() in (b"setinfo", b"setname") else b"-ERR unknown subcommand\r\n"

    # -- keys, hashes and lists ------------------------------------------------------------------------------

    def _hash(self, key: bytes) -> Hash:
        if key in self._lists:
            raise _CommandFailed(_WRONG_TYPE)
        return self._hashes.get(key, {})

    def _list(self, key: bytes) -> Values:
        if key in self._hashes:
            raise _CommandFailed(_WRONG_TYPE)
        return self._lists.get(key, [])

    def _do_del(self, keys: list[bytes]) -> bytes:
        return _integer(sum((self._hashes.pop(k, None) or self._lists.pop(k, None)) is not None for k in keys))

    def _do_exists(self, keys: list[bytes]) -> bytes:
        return _integer(sum(key in self._hashes or key in self._lists for key in keys))

    def _do_hset(self, arguments: list[bytes]) -> bytes:
        key, fields, values = arguments[0], arguments[1::2], arguments[2::2]
        if not fields or len(fields) != len(values):
            raise ValueError
        table = self._hash(key)
        before = len(table)
        table.update(zip(fields, values, strict=True))
        self._hashes[key] = table
        return _integer(len(table) - before)

    def _do_hget(self, arguments: list[bytes]) -> bytes:
        key, field = arguments
        return _bulk(self._hash(key).get(field))

    def _do_hincrby(self, arguments: list[bytes]) -> bytes:
        key, field, amount = arguments
        table = self._hash(key)
        number = int(table.get(field, b"0")) + int(amount)
        table[field] = b"%d" % number
        self._hashes[key] = table
        return _integer(number)

    def _do_hgetall(self, arguments: list[bytes]) -> bytes:
        (key,) = arguments
        return _array([_bulk(part) for item in self._hash(key).items() for part in item])

    def _do_hlen(self, arguments: list[bytes]) -> bytes:
        (key,) = arguments
        return _integer(len(self._hash(key)))

    def _do_hdel(self, arguments: list[bytes]) -> bytes:
        key, *fields = arguments
        table = self._hash(key)
        removed = sum(table.pop(field, None) is not None for field in fields)
        if not table:
            self._hashes.pop(key, None)
        return _integer(removed)

    def _do_rpush(self, arguments: list[bytes]) -> bytes:
        key, *values = arguments
        if not values:
            raise ValueError
        entries = self._list(key)
        entries.extend(values)
        self._lists[key] = entries
        return _integer(len(entries))

    def _do_rpushx(self, arguments: list[bytes]) -> bytes:
        return self._do_rpush(arguments) if self._list(arguments[0]) else _integer(0)

    def _do_llen(self, arguments: list[bytes]) -> bytes:
        (key,) = arguments
        return _integer(len(self._list(key)))

    def _do_lrange(self, arguments: list[bytes]) -> bytes:
        key, first, last = arguments
        entries = self._list(key)
        start, stop = (index + len(entries) if index < 0 else index for index in (int(first), int(last)))
        return _array([_bulk(entry) for entry in entries[max(0, start) : max(0, stop + 1)]])
