"""Sockets of virtual workers that connect to nobody: they find a free port, or the address of their node.

A task that starts a server, or a group of processes, often asks for a free port first: it binds a socket to port 0,
reads which port that is, and closes the socket. Others read which address a datagram socket has that is connected to a
host elsewhere. Neither sends anything. So where a task may not use sockets, its socket becomes one of these: its ports
are the virtual node's, in the same order in each run, and its address is the virtual node's. What would reach somebody
is refused by the name of the call. So is its descriptor, for which a server waits. Only what asks for options reaches
the socket of the operating system, which is never bound.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary, WeakValueDictionary

from dualray.sim.usercode.process_calls import ip_of

__all__ = ["PortSocket", "Ports"]

_FIRST_PORT: Final = 32_768
_PORTS_END: Final = 61_000
"""Where Linux takes ports from that a program leaves to it."""
_KINDS: Final = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
_ANY: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_LOOPBACK: Final = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


@dataclass(slots=True)
class _Named:
    """What is known of one socket.

    refuse: raises the error that names a call.
    name: the address that it is bound to, None at first.
    peer: what a datagram socket is connected to.
    """

    ports: Ports
    node: str
    refuse: Callable[[str], NoReturn]
    name: tuple[str, int] | None = None
    peer: tuple[str, int] | None = None


_named: WeakKeyDictionary[socket.socket, _Named] = WeakKeyDictionary()


class Ports:
    """Those of the virtual nodes of one simulation."""

    def __init__(self) -> None:
        self._next: dict[str, Iterator[int]] = {}
        self._bound: WeakValueDictionary[tuple[str, int, int], socket.socket] = WeakValueDictionary()

    @staticmethod
    def may_take(item: socket.socket, family: int, kind: int) -> bool:
        """Whether a socket that is being made may become one of these."""
        return type(item) is socket.socket and family in (-1, *_ANY) and kind in (-1, *_KINDS)

    def take(self, item: socket.socket, node: str, refuse: Callable[[str], NoReturn]) -> None:
        """Make a socket one of a virtual node."""
        item.__class__ = PortSocket
        _named[item] = _Named(self, node, refuse)

    def begin_again(self) -> None:
        """It is another simulation from now on."""
        self._next.clear()
        self._bound.clear()

    def bind(self, item: socket.socket, node: str, port: int) -> int:
        """The port that a socket has from now on; 0 asks for a free one."""
        if port == 0:
            free = self._next.setdefault(node, itertools.cycle(range(_FIRST_PORT, _PORTS_END)))
            port = next(one for one in free if (node, item.type, one) not in self._bound)
        elif (node, item.type, port) in self._bound:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._bound[node, item.type, port] = item
        return port

    def leave(self, item: socket.socket, node: str, port: int) -> None:
        """The socket is closed."""
        if self._bound.get((node, item.type, port)) is item:
            del self._bound[node, item.type, port]


class PortSocket(socket.socket):
    """See the module."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<socket family={self.family} type={self.type} laddr={_named[self].name} of {_named[self].node}>"

    def bind(self, address: Any, /) -> None:
        """Take a port of the virtual node."""
        known = _named[self]
        if known.name is not None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        host, port = address[:2]
        known.name = self._host(host), known.ports.bind(self, known.node, port)

    def listen(self, backlog: int = 0, /) -> None:
        """Do nothing: nobody can connect."""

    def getsockname(self) -> Any:
        """Return the address, as the operating system would."""
        super().getsockname()  # raises what it raises of a closed one
        return self._address(_named[self].name or (_ANY[self.family], 0))

    def getpeername(self) -> Any:
        """Return the address that a datagram socket is connected to."""
        peer = _named[self].peer
        if peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._address(peer)

    def connect(self, address: Any, /) -> None:
        """Have the address of the virtual node, as a datagram socket, which sends nothing then; else be refused."""
        known = _named[self]
        if self.type != socket.SOCK_DGRAM:
            known.refuse("socket.connect")
        known.peer = address[0], address[1]
        own = _LOOPBACK[self.family] if self._host(address[0]) == _LOOPBACK[self.family] else self._of_node()
        port = known.name[1] if known.name is not None else known.ports.bind(self, known.node, 0)
        known.name = own, port

    def close(self) -> None:
        """Give the port back."""
        known = _named[self]
        if known.name is not None:
            known.ports.leave(self, known.node, known.name[1])
        super().close()

    def _host(self, host: str) -> str:
        """The address that a name of a host stands for."""
        if host == "":
            return _ANY[self.family]
        if host == "localhost":
            return _LOOPBACK[self.family]
        return self._of_node() if host == _named[self].node else host

    def _of_node(self) -> str:
        own = ip_of(_named[self].node)
        return own if self.family == socket.AF_INET else f"::ffff:{own}"

    def _address(self, name: tuple[str, int]) -> Any:
        return name if self.family == socket.AF_INET else (*name, 0, 0)


def _refused(name: str) -> Callable[..., NoReturn]:
    def call(self: PortSocket, *args: Any, **kwargs: Any) -> NoReturn:
        _named[self].refuse(f"socket.{name}")
        raise AssertionError("it was not refused")

    return call


for _name in (
    *("accept", "connect_ex", "detach", "dup", "fileno", "makefile", "recv", "recv_into", "recvfrom", "recvfrom_into"),
    *("recvmsg", "recvmsg_into", "send", "sendall", "sendfile", "sendmsg", "sendto"),
):
    setattr(PortSocket, _name, _refused(_name))
