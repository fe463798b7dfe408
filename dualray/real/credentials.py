"""The kernel tells which user runs the process at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct

from dualray.exceptions import AuthenticationError


def peer_uid(sock: socket.socket) -> int:
    """The user id of the process at the other end."""
    uid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


def check_peer(sock: socket.socket, path: str) -> None:
    """See that the process that listens at `path` is of this user, before it is told anything.

    Raises:
        AuthenticationError: it is of another user.
    """
    uid = peer_uid(sock)
    if uid != os.getuid():
        raise AuthenticationError(
            f"the process that listens at {path} has uid {uid}, but this process has uid {os.getuid()}: another user "
            "has put a socket there. Set TMPDIR to a directory that other users cannot change"
        )
