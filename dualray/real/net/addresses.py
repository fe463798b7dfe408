"""Addresses, and the sockets at which the processes that have them listen.

Theory of operation. An address is a process's name, such as `head`, `node-0/w3`, `driver-2@node-1`. The
process listens on `socket_dir / quote(address)`, in a directory that its user alone may enter. A socket is made
ready under a hidden name and then renamed, so a socket that refuses a connection is one that a dead process
left: whoever finds it may count the process as lost, and a new process under the address takes its place.
"""

import contextlib
import errno
import os
import re
import socket
import urllib.parse
from pathlib import Path
from typing import Final

from dualray.real import files

_PATH_BYTES_MAX: Final = 100
_OBJECTS: Final = "/objects"
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@~-]{0,95}")


def is_address(text: str) -> bool:
    """Whether a process may be called so."""
    return _ADDRESS.fullmatch(text) is not None


def socket_path(socket_dir: Path, address: str) -> Path:
    """Where the process called `address` listens; ValueError when address or path are not legal."""
    if not is_address(address):
        raise ValueError(
            f"{address!r} is not an address: an address has 1 to 96 of the characters A-Z a-z 0-9 . _ - / : @ ~"
        )
    path = socket_dir / urllib.parse.quote(address, safe="")
    if (length := len(os.fsencode(path))) > _PATH_BYTES_MAX:
        raise ValueError(
            f"the socket path {path} has {length} bytes, but the system allows only {_PATH_BYTES_MAX}: choose a "
            f"directory with a shorter path than {socket_dir}"
        )
    return path


def address_of(path: Path) -> str:
    """The process that listens at a path made by `socket_path`."""
    return urllib.parse.unquote(path.name)


def home_of(address: str) -> str:
    """The node on which a process lives, from its address; `head` lives wherever the head does.

    `node-2`, `node-2/w7`, `node-2~1/w0` (after one reboot) and `driver-3@node-2` live on node-2. A `driver-1` without
    a node is that of an `init` that started its own cluster: it lives where everything does.
    """
    return address.rpartition("@")[2].partition("/")[0].partition("~")[0]


def objects_address(node: str) -> str:
    """Where a node manager takes in pieces of objects: apart from its messages, which so never wait behind them."""
    return f"{node}{_OBJECTS}"


def is_objects_address(address: str) -> bool:
    """Whether pieces of objects are taken in there."""
    return address.endswith(_OBJECTS)


def node_of_objects(address: str) -> str:
    """The node whose `objects_address` this is."""
    return address.removesuffix(_OBJECTS)


def listen(path: Path) -> socket.socket:
    """A listening socket that appears at `path` ready for use, in place of one that a dead process left."""
    files.ensure_directory(path.parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            probe.connect(os.fspath(path))
            raise OSError(errno.EADDRINUSE, f"a live process already listens at {path}")
    hidden = path.parent / f".{os.urandom(2).hex()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(os.fspath(hidden))
        hidden.chmod(0o600)
        listener.listen(socket.SOMAXCONN)
        hidden.rename(path)
    except BaseException:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener


def parse_endpoint(text: str, name: str) -> tuple[str, int]:
    """(host, port) of "host:port", "[ipv6]:port" included; ValueError when it is none."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{name}={text!r} must be host:port")
    try:
        host.encode("idna")  # as connecting does
    except UnicodeError as error:
        raise ValueError(f"{name}={text[:100]!r} must be host:port, but has no valid host name: {error}") from None
    return host, int(port)
