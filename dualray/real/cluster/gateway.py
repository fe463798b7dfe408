"""The gateway of one machine's session: the one TCP port through which processes of different machines meet.

Theory of operation. Processes know only Unix sockets. What listens on the network is the gateway, on one port, and it
is also who dials other machines:

    process --ask--> its gateway ==TCP, handshake, route==> gateway there --hand over--> process there
            <--hand over--                                  (and then it is out of the way)

A connection between gateways begins with the mutual handshake of `handshake.py`: whoever does not know the cluster's
secret is dropped before a byte of theirs is looked at, and nobody in the cluster's processes has seen them. Then the
dialer names a route, and gets a one-byte answer:

    process ADDRESS    the connection's descriptor goes to the Unix socket of that process (SCM_RIGHTS), and on the
                       other side to the process that asked; the two shake hands again, now with each other
    control-plane      the connection is joined to the control plane's Unix socket: only the head's gateway has one

Bytes between processes thus pass through no one, where nothing is encrypted. Redis cannot take descriptors, so what
goes to it is relayed. On a session without a head the gateway also listens at the path where Redis would be, and relays
to the head's: every process finds the control plane at one path, wherever it is.

Encrypted connections (encryption.py) begin with the handshake of TLS, and all that is above goes through it. They
cannot be handed over: the process gets one end of a pair of sockets, and the gateway joins the other end with the
connection by a wire (net/wire.py). It does the same where the node takes faults: those of the network are performed
there, by the gateway that dials.

The secret is proved and not sent.

Threads. Each connection that is being made has a short-lived thread, with a deadline; their number is bounded, apart
for those that come from the network. Wires run on the owner's loop.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dualray.real import files
from dualray.real.cluster.encryption import Encryption
from dualray.real.control_plane.resp import RespClient
from dualray.real.limits import limit_in_words, start_thread
from dualray.real.net.addresses import home_of, is_address, is_objects_address, listen, socket_path
from dualray.real.net.conditions import LinkConditions
from dualray.real.net.frames import Refusal
from dualray.real.net.handshake import ASK_BYTES, GONE, HANDED, NOT_YET, Identity, hand_over, shake_hands
from dualray.real.net.loop import Loop
from dualray.real.net.wire import Lane, Wire
from dualray.real.observe.counters import GATEWAY_COUNTERS_FILE, GATEWAY_REASONS, SharedCounters
from dualray.real.session.session import GATEWAY_FILE, password_of
from dualray.shared.model.config import Config
from dualray.shared.model.ids import HEAD

_log = logging.getLogger(__name__)

CONTROL_PLANE: Final = "control-plane"
DIAL_TIMEOUT_S: Final = 4.0
"""To reach another machine and be answered; below the transport's own handshake_timeout_s, which waits for it."""
HAND_OVER_TIMEOUT_S: Final = 4.0
"""Until a process has taken a connection that is handed to it: a stopped one never does."""
INCOMING_MAX: Final = 128
"""Connections from the network that are not routed yet; further ones wait in the listen queue."""
ASKING_MAX: Final = 128
"""Local requests under way."""
USER_TIMEOUT_S: Final = 30.0
"""After so long without an acknowledgement of what was sent, a connection counts as broken: at the latest."""

_CUT_LOOK_S: Final = 0.02
_PATIENCES: Final = 3
"""So often `link_patience_ns` a connection between two nodes may carry nothing."""
_ROUTE_BYTES: Final = 128
_GATEWAY: Final = "gateway"
_DIALER: Final = "dialer"


class RouteRefused(ConnectionError):
    """The other gateway has no such route; `status` is GONE or NOT_YET."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def user_timeout_s(config: Config) -> float:
    """After how long between two nodes: not before the head has taken one of them for dead, nor before a node that is
    cut off has ended by itself, which says more than a connection's end does."""
    dead_ns = 2 * config.heartbeat_timeout_ns + config.suspicion_ns
    return min(USER_TIMEOUT_S, max(_PATIENCES * config.link_patience_ns, dead_ns) / 1e9)


def tune(sock: socket.socket, timeout_s: float = USER_TIMEOUT_S) -> None:
    """For messages: no delay; for machines that vanish: broken connections are found."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, int(USER_TIMEOUT_S) // 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))


def dial(
    endpoint: tuple[str, int],
    route: str,
    secret: bytes,
    *,
    encryption: Encryption,
    timeout_s: float = DIAL_TIMEOUT_S,
    broken_after_s: float = USER_TIMEOUT_S,
) -> socket.socket:
    """A blocking connection through the gateway at `endpoint` (host, port) to what `route` names; it is broken when
    nothing is acknowledged for `broken_after_s`.

    Raises:
        RouteRefused: there is no such process, or not yet.
        Refusal: it is no gateway of this cluster: another secret, another version.
        OSError: it cannot be reached; TimeoutError when that takes longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    sock = socket.create_connection(endpoint, timeout=timeout_s)
    try:
        tune(sock, broken_after_s)
        if encryption.is_on_for(endpoint[0]):
            sock = encryption.connect(sock, deadline)
        binding = encryption.binding(sock, is_server=False)
        identity = Identity(address=_DIALER, instance=os.urandom(16), secret=secret, binding=binding)
        shake_hands(sock, identity=identity, expected=_GATEWAY, deadline=deadline)
        sock.sendall(route.encode().ljust(_ROUTE_BYTES, b"\0"))
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        answer = sock.recv(1)
        if not answer:
            raise ConnectionResetError(f"the gateway at {endpoint[0]}:{endpoint[1]} closed the connection")
        if answer[0] != HANDED:
            raise RouteRefused(answer[0], f"the gateway at {endpoint[0]}:{endpoint[1]} has no {route!r}")
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


class RoutedClient(RespClient):
    """A client of the control plane of a cluster, from a machine that has no session of it yet."""

    def __init__(self, endpoint: tuple[str, int], secret: bytes, encryption: Encryption, *, timeout_s: float) -> None:
        super().__init__(Path(f"{endpoint[0]}:{endpoint[1]}"), password_of(secret), timeout_s=timeout_s)
        self._endpoint = endpoint
        self._secret = secret
        self._encryption = encryption

    def _dial(self) -> socket.socket:
        sock = dial(self._endpoint, CONTROL_PLANE, self._secret, encryption=self._encryption)
        sock.settimeout(self.timeout_s)
        return sock


class Gateway:
    """See the module's theory of operation.

    Args:
        loop: runs relays; the owner runs it.
        session_directory: its `gateway` socket is made here.
        socket_dir: where the processes of this session listen.
        secret: the cluster's secret.
        bind: (address, port) to listen at; port 0 lets the system choose.
        control_plane: the control plane's Unix socket, which exists when this session has the head, and is made,
            to relay, when it has not.
        has_head: whether it has.
        resolve: called, in a thread, with a node's name or `head`: where its gateway is; LookupError when unknown.
        broken_after_s: a connection between two machines is broken when nothing is acknowledged for so long.
        node: the name of this session's node.
        encryption: of connections to other machines; default: as for their addresses.
        conditions: what faults make of the links; None: this node takes no faults.
        origin: called, in a thread, with the pid of a process that asks: the node that it counts as.
    Raises:
        OSError: nobody can listen there.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        session_directory: Path,
        socket_dir: Path,
        secret: bytes,
        bind: tuple[str, int],
        control_plane: Path,
        shards: Sequence[str] = (),
        has_head: bool,
        resolve: Callable[[str], tuple[str, int]],
        broken_after_s: float = USER_TIMEOUT_S,
        node: str = "",
        encryption: Encryption | None = None,
        conditions: LinkConditions | None = None,
        origin: Callable[[int], str] | None = None,
    ) -> None:
        self._loop = loop
        self._encryption = encryption or Encryption(secret)
        self._is_encrypted = self._encryption.is_on_for(bind[0])
        self._conditions = conditions
        self._node = node
        self._origin = origin or (lambda pid: node)
        self._broken_after_s = broken_after_s
        self._socket_dir = socket_dir
        self._secret = secret
        self._servers = {CONTROL_PLANE: control_plane}
        self._servers |= {f"{CONTROL_PLANE}/{shard}": control_plane.parent / shard for shard in shards}
        """Of the control plane, by their routes."""
        self._has_head = has_head
        self._resolve = resolve
        self._wires: set[Wire] = set()
        self._incoming = threading.BoundedSemaphore(INCOMING_MAX)
        self._asking = threading.BoundedSemaphore(ASKING_MAX)
        self._closed = False
        self._counters_path = session_directory / GATEWAY_COUNTERS_FILE
        self._counters = SharedCounters(self._counters_path, GATEWAY_REASONS)
        family = socket.AF_INET6 if ":" in bind[0] else socket.AF_INET
        network = socket.create_server(bind, family=family, backlog=1024)
        self.port: int = network.getsockname()[1]
        self._paths = [session_directory / GATEWAY_FILE]
        self._listeners = [network]
        try:
            self._listeners.append(listen(self._paths[0]))
            if not has_head:
                for path in self._servers.values():
                    files.ensure_directory(path.parent)
                    self._paths.append(path)
                    self._listeners.append(listen(path))
        except BaseException:
            self.close()
            raise
        serve = [(self._serve_network, self._incoming), (self._serve_ask, self._asking)]
        if not has_head:
            serve += [(partial(self._serve_relay, route), self._asking) for route in self._servers]
        for listener, (serve_one, bound) in zip(self._listeners, serve, strict=True):
            self._listen(listener, serve_one, bound)

    def _listen(
        self, listener: socket.socket, serve: Callable[[socket.socket], None], bound: threading.BoundedSemaphore
    ) -> None:
        listener.setblocking(True)
        args, name = (listener, serve, bound), f"dualray-gateway-{listener.fileno()}"
        start_thread(threading.Thread(target=self._accept_all, args=args, name=name, daemon=True))

    def close(self) -> None:
        """Stop listening, end every wire. Connections that were handed over are not affected. Loop's thread."""
        self._closed = True
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        for path in (*self._paths, self._counters_path):
            path.unlink(missing_ok=True)
        for wire in list(self._wires):
            wire.end()

    # ---- Accepting -------------------------------------------------------------------------------------------

    def _accept_all(
        self, listener: socket.socket, serve: Callable[[socket.socket], None], bound: threading.BoundedSemaphore
    ) -> None:
        while True:
            bound.acquire()
            try:
                sock, _ = listener.accept()
            except OSError as error:
                bound.release()
                if self._closed:
                    return
                if error.errno not in (errno.ECONNABORTED, errno.EINTR):
                    _log.error("the gateway cannot accept connections: %s", limit_in_words(error))
                    time.sleep(0.1)
                continue
            route = threading.Thread(target=self._serve, args=(sock, serve, bound), name="dualray-route", daemon=True)
            try:
                start_thread(route)
            except RuntimeError as error:
                sock.close()
                bound.release()
                _log.error("the gateway cannot serve a connection: %s", limit_in_words(error))
                time.sleep(0.1)

    def _serve(
        self, sock: socket.socket, serve: Callable[[socket.socket], None], bound: threading.BoundedSemaphore
    ) -> None:
        peer = _peer_of(sock)
        try:
            serve(sock)
        except (OSError, Refusal, LookupError, ValueError) as error:
            if not self._closed:
                self._counters.add(_reason_of(error))
                _log.warning("the gateway dropped a connection from %s: %s: %s", peer, type(error).__name__, error)
        finally:
            bound.release()

    # ---- From the network ------------------------------------------------------------------------------------

    def _serve_network(self, sock: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            tune(sock, self._broken_after_s)
            deadline = time.monotonic() + DIAL_TIMEOUT_S
            if self._is_encrypted:
                sock = stack.enter_context(self._encryption.accept(sock, deadline))
            binding = self._encryption.binding(sock, is_server=True)
            identity = Identity(address=_GATEWAY, instance=os.urandom(16), secret=self._secret, binding=binding)
            shake_hands(sock, identity=identity, expected="", deadline=deadline)
            route = _receive_exactly(sock, _ROUTE_BYTES, deadline).rstrip(b"\0").decode("ascii")
            if route in self._servers and self._has_head:
                redis_socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                redis_socket.connect(os.fspath(self._servers[route]))
                sock.sendall(bytes([HANDED]))
                stack.pop_all()
                self._join(redis_socket, sock)
                return
            if not is_address(route):
                raise ValueError(f"{route!r} is no route")
            status = self._bring(route, sock, stack)
            if status != HANDED:
                sock.sendall(bytes([status]))

    def _bring(self, address: str, sock: socket.socket, closes: contextlib.ExitStack) -> int:
        """Hand a connection, which `closes` would close, to the process that listens as `address`, if there is one."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
            there.settimeout(HAND_OVER_TIMEOUT_S)
            try:
                there.connect(os.fspath(socket_path(self._socket_dir, address)))
            except FileNotFoundError:  # it may be starting, or have gone
                return NOT_YET
            except ConnectionRefusedError:
                return GONE
            # The answer goes first: after the hand-over the stream belongs to the two processes.
            sock.sendall(bytes([HANDED]))
            self._hand_over(there, sock, closes)
            with contextlib.suppress(ConnectionError):
                while there.recv(4096):  # its end says that the process has taken it
                    pass
            return HANDED

    def _hand_over(
        self,
        to: socket.socket,
        sock: socket.socket,
        closes: contextlib.ExitStack,
        lanes: tuple[Lane, Lane] | None = None,
    ) -> None:
        """Give a process its connection: the connection itself, or one that a wire joins with it, which it then is."""
        if lanes is None and not isinstance(sock, ssl.SSLSocket):
            hand_over(to, HANDED, sock)
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                hand_over(to, HANDED, theirs)
            except BaseException:
                ours.close()
                raise
        closes.pop_all()
        self._join(ours, sock, lanes)

    # ---- From this machine -----------------------------------------------------------------------------------

    def _serve_ask(self, sock: socket.socket) -> None:
        with sock:
            deadline = time.monotonic() + DIAL_TIMEOUT_S
            address = _receive_exactly(sock, ASK_BYTES, deadline).rstrip(b"\0").decode("ascii")
            lanes = self._lanes(sock, home_of(address), has_frames=not is_objects_address(address))
            try:
                with contextlib.ExitStack() as stack:
                    there = stack.enter_context(self._dial(home_of(address), address, lanes, deadline))
                    self._hand_over(sock, there, stack, lanes)
            except RouteRefused as refused:
                hand_over(sock, refused.status)
            except (OSError, Refusal, LookupError) as error:
                _log.warning("the gateway cannot reach %s: %s", address, error)
                hand_over(sock, NOT_YET)
            sock.settimeout(HAND_OVER_TIMEOUT_S)
            with contextlib.suppress(ConnectionError):
                sock.recv(1)

    def _serve_relay(self, route: str, sock: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            lanes = self._lanes(sock, HEAD, has_frames=False)
            there = stack.enter_context(self._dial(HEAD, route, lanes, time.monotonic() + DIAL_TIMEOUT_S))
            stack.pop_all()
            self._join(sock, there, lanes)

    def _dial(self, home: str, route: str, lanes: tuple[Lane, Lane] | None, deadline: float) -> socket.socket:
        """A connection through another gateway; the errors of `dial`, and LookupError when no node is called `home`."""
        while lanes is not None and lanes[0].conditions.is_cut(lanes[0].src, lanes[0].dst):
            if time.monotonic() > deadline:
                raise TimeoutError(f"an injected fault blocks the connection between {lanes[0].src} and {lanes[0].dst}")
            time.sleep(_CUT_LOOK_S)
        return dial(
            self._resolve(home),
            route,
            self._secret,
            encryption=self._encryption,
            broken_after_s=self._broken_after_s,
        )

    def _lanes(self, sock: socket.socket, home: str, *, has_frames: bool) -> tuple[Lane, Lane] | None:
        """Where faults are performed on what a process of this machine and another node say to one another."""
        if self._conditions is None:
            return None
        pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        here = self._origin(pid)
        out, into = (
            Lane(self._conditions, src, dst, has_frames=has_frames, broken_after_s=self._broken_after_s)
            for src, dst in ((here, home), (home, here))
        )
        return out, into

    def _join(self, inside: socket.socket, outside: socket.socket, lanes: tuple[Lane, Lane] | None = None) -> None:
        """Let a wire join the two, which are the wire's from now on."""
        peer = _peer_of(outside)

        def on_end(wire: Wire, error: Exception | None) -> None:
            self._wires.discard(wire)
            if isinstance(error, ssl.SSLError):
                self._counters.add("broken_encryption")
                _log.warning("the gateway ended a connection with %s: %s: %s", peer, type(error).__name__, error)

        def begin() -> None:
            if self._closed:
                inside.close()
                outside.close()
                return
            self._wires.add(Wire(self._loop, inside, outside, on_end, lanes))

        if not self._loop.call_soon(begin):
            inside.close()
            outside.close()


def _peer_of(sock: socket.socket) -> str:
    """Who has connected, in words."""
    try:
        address = sock.getpeername()
    except OSError:
        return "a peer that has disconnected"
    return f"{address[0]} port {address[1]}" if isinstance(address, tuple) else "a process of this machine"


def _reason_of(error: Exception) -> str:
    """The counter of why a connection was dropped."""
    if isinstance(error, Refusal):
        return error.counter
    if isinstance(error, TimeoutError):
        return "handshake_timeouts"
    if isinstance(error, ConnectionError):
        return "closed_early"
    return "bad_routes" if isinstance(error, ValueError | LookupError) else "other_errors"


def _receive_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(
                f"the process at the other end of the connection did not send the expected {count} bytes in time"
            )
        sock.settimeout(left_s)
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("the process at the other end closed the connection before it sent a request")
        data += piece
    return data
