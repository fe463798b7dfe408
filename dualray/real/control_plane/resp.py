"""A client of the control plane's server: commands out, replies in, in RESP2, the protocol of Redis.

redis-py does this and much more, and importing it, with asyncio and ssl, takes 0.13 s and 12 MiB: as long as all the
rest of starting a session. Head, driver and every worker speak six commands on one private Unix socket, and each needs
them at once. The nodes of a cluster find one another with a few more, through the head's gateway (cluster/gateway.py).
Subscribers use redis-py.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from dualray.exceptions import AuthenticationError
from dualray.real.credentials import check_peer

Argument = bytes | str | int | Path
_READ_BYTES = 1 << 16
_REFUSALS = ("WRONGPASS", "NOAUTH", "ERR invalid password", "ERR AUTH")


class ReplyError(Exception):
    """The server's answer to a command is an error."""


class RespClient:
    """One connection, made on first use, and again after it broke. Thread-safe: one command, or pipeline, at a time.

    What raises OSError (ConnectionError, TimeoutError, FileNotFoundError) has broken the connection, and a command may
    or may not have been carried out.

    Args:
        socket_path: the server's Unix socket.
        password: the server's password.
        timeout_s: how long one reply may take.
    """

    def __init__(self, socket_path: Path, password: str, *, timeout_s: float) -> None:
        self._path = os.fspath(socket_path)
        self._password = password
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._position = 0

    def call(self, *command: Argument) -> Any:
        """Carry out one command.

        Returns:
            bytes, int, None, or a list of these; of a status its text.
        Raises:
            AuthenticationError: the password is wrong.
            ReplyError: the server refuses the command.
            OSError: see the class.
        """
        return self.pipeline([command])[0]

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Carry out commands, all sent at once; their replies. Raises as `call` does, for the first that failed."""
        with self._lock:
            try:
                sock = self._socket or self._connect()
                replies = self._exchange(sock, commands)
            except BaseException:
                self._close()
                raise
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        return replies

    def close(self) -> None:
        """Close the connection. Idempotent; the next command makes another."""
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _dial(self) -> socket.socket:
        """A connection to the server, before the password."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self.timeout_s)
        try:
            sock.connect(self._path)
            check_peer(sock, self._path)
        except BaseException:
            sock.close()
            raise
        return sock

    def _connect(self) -> socket.socket:
        sock = self._socket = self._dial()
        (reply,) = self._exchange(sock, [("AUTH", self._password)])
        if isinstance(reply, ReplyError):
            if str(reply).startswith(_REFUSALS):
                raise AuthenticationError(str(reply))
            raise ConnectionError(str(reply))  # it is reading its file still
        return sock

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._received.clear()
        self._position = 0

    def _exchange(self, sock: socket.socket, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        sock.sendall(b"".join([encode(command) for command in commands]))
        replies = [self._reply(sock) for _ in commands]
        del self._received[: self._position]
        self._position = 0
        return replies

    # ---- Replies ---------------------------------------------------------------------------------------------

    def _reply(self, sock: socket.socket) -> Any:
        line = self._line(sock)
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            text = rest.decode(errors="replace")
            if text.startswith("LOADING"):
                raise ConnectionError(text)
            return ReplyError(text)
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._bytes(sock, int(rest))
        if kind == b"*":
            return None if rest == b"-1" else [self._reply(sock) for _ in range(int(rest))]
        raise ConnectionError(f"the server at {self._path} does not speak RESP2: {line[:80]!r}")

    def _line(self, sock: socket.socket) -> bytes:
        while (end := self._received.find(b"\r\n", self._position)) < 0:
            self._read(sock)
        line = bytes(self._received[self._position : end])
        self._position = end + 2
        return line

    def _bytes(self, sock: socket.socket, size: int) -> bytes:
        end = self._position + size
        while len(self._received) < end + 2:
            self._read(sock)
        value = bytes(self._received[self._position : end])
        self._position = end + 2
        return value

    def _read(self, sock: socket.socket) -> None:
        data = sock.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError(f"the server at {self._path} has closed the connection")
        self._received += data


def encode(command: Sequence[Argument]) -> bytes:
    """A command as an array of bulk strings."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
