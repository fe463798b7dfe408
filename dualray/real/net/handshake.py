"""The handshake: two processes prove the cluster's secret to one another before any frame is parsed.

Theory of operation. All reads have fixed sizes, and the transport gives the whole a deadline:

    both      -> magic, protocol version, nonce
    initiator -> HMAC-SHA256(secret, "initiator" + nonces + hello), hello = verdict 0, instance, address
    acceptor  -> HMAC-SHA256(secret, "acceptor" + nonces + hello), hello = verdict, instance, address

The kernel's word on the peer's uid is checked first. The acceptor's verdict decides between two connections
made at once: the one begun by the lower address stays, and as no frame is sent before the verdict, nothing is
lost or reordered. An instance is 16 random bytes a process draws: a new process under an old address first
ends the old one.

    verdict    from the acceptor when                              the initiator then
    ACCEPT     nothing else connects the two                       uses it
    DUPLICATE  they are connected, or the acceptor's own attempt   waits for the other connection, and
               has the right of way                                tries again until connect_timeout_s
    REFUSED    the proof is wrong (this verdict proves nothing)    gives the peer up

Peers on other machines. A process never dials them: it asks its session's gateway (`cluster/gateway.py`) for a
connection, with an `ask` at the gateway's Unix socket, and gets one handed over: a TCP connection whose other end
was in the same way handed to the peer, at the peer's own Unix socket. The two then speak the protocol above over it.
Both hand-overs are a preamble of their own with the descriptor beside it; `HandedOver` brings it to the transport.

A process that has no descriptor left for a connection refuses it with a preamble of its own, which has the process's
limit of open files (`spare.py`); the initiator raises `PeerStarved`, and gives the peer up.

Who else connects the two is the transport's knowledge: it gives the acceptor's verdict as `judge`, once the
initiator has proved the secret. A peer without the secret, of another version or of another uid is a `Refusal`.
"""

import array
import dataclasses
import errno
import hmac
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Generator
from typing import Final, NoReturn

from dualray.real.credentials import peer_uid
from dualray.real.limits import starved_in_words
from dualray.real.net.addresses import is_address
from dualray.real.net.frames import Refusal

PROTOCOL_VERSION: Final = 1
ACCEPT, DUPLICATE, REFUSED = 0, 1, 2

HANDED, GONE, NOT_YET = 0, 1, 2
"""What a gateway says to who asked it: here is the connection; the peer's process is gone; try again."""

_MAGIC: Final = b"dualray\n"
_HAND_OVER: Final = b"dualray>"
_STARVED: Final = b"dualray!"
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
_PREAMBLE: Final = struct.Struct("<8sI")
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_HELLO: Final = struct.Struct("<B16s112s")
HANDSHAKE_BYTES: Final = _PREAMBLE.size + _NONCE_BYTES + _PROOF_BYTES + _HELLO.size
"""Of each side, before its first frame."""


class HandedOver(Exception):
    """A gateway has handed over a connection to, or from, a peer on another machine: go on with that one."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__("a connection was handed over")
        self.sock = sock


class PeerGone(ConnectionRefusedError):
    """The gateway of the peer's machine says that the peer's process is dead."""


class PeerStarved(OSError):
    """The peer has reached its limit of open files, and cannot take the connection."""


def refuse_starved(sock: socket.socket) -> None:
    """Tell a process that has connected that this one has reached its limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    sock.send(_PREAMBLE.pack(_STARVED, min(soft, 0xFFFFFFFF)))


def hand_over(sock: socket.socket, status: int, connection: socket.socket | None = None) -> None:
    """A gateway's word to a process of its machine, with a connection when the status is HANDED."""
    ancillary = []
    if connection is not None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))]
    sock.sendmsg([_PREAMBLE.pack(_HAND_OVER, status)], ancillary)


def ask(address: str) -> bytes:
    """What a process sends to its gateway for a connection to `address`; 97 bytes."""
    return address.encode().ljust(ASK_BYTES, b"\0")


ASK_BYTES: Final = 97


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a handshake: the acceptor's verdict, and the proven identity of the peer."""

    verdict: int
    instance: bytes
    address: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this process is, and what proves it.

    Attributes:
        address: its name.
        instance: the 16 bytes that tell it from another process under the same address.
        secret: the cluster's secret.
        binding: what both ends of the connection beneath, and of no other, have in common; it is proved with the rest.
    """

    address: str
    instance: bytes
    secret: bytes = dataclasses.field(repr=False)
    binding: bytes = b""

    def hello(self, role: bytes, nonces: bytes, verdict: int) -> bytes:
        """Our proof and our hello."""
        hello = _HELLO.pack(verdict, self.instance, self.address.encode())
        return hmac.digest(self.secret, role + nonces + self.binding + hello, "sha256") + hello

    def check_hello(self, role: bytes, nonces: bytes, data: bytes) -> Outcome:
        """Return the peer's verdict, instance and address, after it has proved that it knows the secret."""
        proof, hello = data[:_PROOF_BYTES], data[_PROOF_BYTES:]
        verdict, instance, padded = _HELLO.unpack(hello)
        if not hmac.compare_digest(proof, hmac.digest(self.secret, role + nonces + self.binding + hello, "sha256")):
            story = (
                "the peer refused this process's proof of the secret"
                if verdict == REFUSED
                else "the peer's proof of the secret is wrong"
            )
            raise Refusal("wrong_secrets", f"{story}: the two processes have different cluster secrets")
        address = padded.rstrip(b"\0").decode("ascii", "replace")
        if not is_address(address) or address == self.address:
            raise Refusal("bad_hellos", f"the peer calls itself {address!r}")
        return Outcome(verdict=verdict, instance=instance, address=address)


class Handshake:
    """Our side of one handshake, as far as it has come.

    Args:
        sock: the fresh connection, which does not block.
        identity: who we are.
        expected: whom we connect to; "" of a connection that we accepted.
        judge: called with (address, instance) of an initiator that proved the secret; gives the verdict.
        asks: the connection leads to the gateway, which is to hand over one to `expected`.
    """

    __slots__ = ("_got", "_handed", "_protocol", "_receive", "_sock", "_want")

    def __init__(
        self,
        sock: socket.socket,
        *,
        identity: Identity,
        expected: str,
        judge: Callable[[str, bytes], int],
        asks: bool = False,
    ) -> None:
        self._sock = sock
        self._handed: list[socket.socket] = []
        self._receive = self._receive_with_descriptors if sock.family == socket.AF_UNIX else sock.recv
        self._protocol = _speak(sock, identity, expected, judge, self._handed, asks)
        self._want = 0
        self._got = bytearray()

    def advance(self) -> Outcome | None:
        """Begin, or take in what the handshake waits for; its outcome once there is one.

        Raises:
            Refusal: the peer broke a rule.
            HandedOver: the gateway has given a connection to use in place of this one, which is to be closed.
            PeerGone: the gateway says that there is no such process any more.
        PeerStarved: the peer has reached its limit of open files.
            OSError: the connection broke; BlockingIOError when nothing has come.
        """
        try:
            if self._want == 0:
                self._want = next(self._protocol)
                return None
            data = self._receive(self._want - len(self._got))
            if not data:
                raise ConnectionResetError("the other process closed the new connection during the handshake")
            self._got += data
            if len(self._got) == self._want:
                data = bytes(self._got)
                self._got.clear()
                self._want = self._protocol.send(data)
        except StopIteration as end:
            outcome: Outcome | None = end.value
            return outcome
        except Refusal:
            self._drop_handed()
            raise
        return None

    def _receive_with_descriptors(self, count: int) -> bytes:
        data, ancillary, _, _ = self._sock.recvmsg(count, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) - len(content) % _DESCRIPTOR_BYTES
                for fd in array.array("i", content[:whole]):
                    self._handed.append(socket.socket(fileno=fd))
        return data

    def _drop_handed(self) -> None:
        while self._handed:
            self._handed.pop().close()


def shake_hands(sock: socket.socket, *, identity: Identity, expected: str, deadline: float) -> Outcome:
    """A whole handshake on a blocking socket, as gateways have it, until `deadline` of the monotonic clock.

    Raises:
        Refusal, OSError: as `Handshake.advance`; TimeoutError when the deadline has passed.
    """
    handshake = Handshake(sock, identity=identity, expected=expected, judge=lambda address, instance: ACCEPT)
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the handshake of a new connection took too long")
        sock.settimeout(left_s)
        if (outcome := handshake.advance()) is not None:
            return outcome


def _speak(
    sock: socket.socket,
    identity: Identity,
    expected: str,
    judge: Callable[[str, bytes], int],
    handed: list[socket.socket],
    asks: bool,
) -> Generator[int, bytes, Outcome]:
    """The protocol itself: yields how many bytes it needs next. What it sends fits any fresh socket."""
    if sock.family == socket.AF_UNIX:
        uid = peer_uid(sock)
        if uid != os.getuid():
            raise Refusal("foreign_uids", f"the peer's uid is {uid}, but this process has uid {os.getuid()}")
    nonce = os.urandom(_NONCE_BYTES)
    sock.send(ask(expected) if asks else _PREAMBLE.pack(_MAGIC, PROTOCOL_VERSION) + nonce)
    magic, version = _PREAMBLE.unpack((yield _PREAMBLE.size))
    if magic == _HAND_OVER and (asks or not expected):
        _take_over(version, handed)
    if magic == _STARVED and expected:
        raise PeerStarved(errno.EMFILE, starved_in_words(expected, version))
    if magic != _MAGIC:
        raise Refusal("bad_preambles", f"the peer's first bytes are {magic!r}, but must be {_MAGIC!r}")
    if version != PROTOCOL_VERSION:
        ours = f"this process speaks version {PROTOCOL_VERSION} of dualray's protocol"
        raise Refusal("version_mismatches", f"{ours}, but the peer speaks version {version}")
    their_nonce = yield _NONCE_BYTES
    if expected:
        nonces = nonce + their_nonce
        sock.send(identity.hello(b"initiator", nonces, ACCEPT))
        data = yield _PROOF_BYTES + _HELLO.size
        outcome = identity.check_hello(b"acceptor", nonces, data)
        if outcome.address != expected:
            raise Refusal("bad_hellos", f"{outcome.address} answers at the socket of {expected}")
        return outcome
    nonces = their_nonce + nonce
    data = yield _PROOF_BYTES + _HELLO.size
    try:
        claim = identity.check_hello(b"initiator", nonces, data)
    except Refusal:
        sock.send(bytes(_PROOF_BYTES) + _HELLO.pack(REFUSED, b"", b""))
        raise
    verdict = judge(claim.address, claim.instance)
    sock.send(identity.hello(b"acceptor", nonces, verdict))
    return dataclasses.replace(claim, verdict=verdict)


def _take_over(status: int, handed: list[socket.socket]) -> NoReturn:
    """A gateway has answered, or brings a connection that a peer elsewhere has asked for."""
    if status == HANDED and len(handed) == 1:
        raise HandedOver(handed.pop())
    if status == GONE:
        raise PeerGone("the gateway of the other machine reports that the other process of the connection has ended")
    if status == NOT_YET:
        raise ConnectionError("the gateway of the other machine cannot reach the other process of the connection yet")
    raise Refusal("bad_preambles", f"a gateway sent the status {status} with {len(handed)} connections")
