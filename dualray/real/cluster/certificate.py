"""The certificate of a cluster, made of its secret: an Ed25519 key, and an X.509 certificate that the key has signed.

Theory of operation. The key is derived from the secret (HMAC-SHA256), and the certificate from the key alone: whoever
has the secret makes the same two, on each machine, and nobody else can. So nothing is sent or kept, and to have the
secret is to know the one certificate that a gateway may show. The standard library speaks TLS and makes no
certificates; Ed25519 is that of RFC 8032, of which only signing is here, and used once for each process.

A secret that can be guessed makes a key that can be guessed: see docs/security.md.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_PRIME: Final = 2**255 - 19
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _PRIME) % _PRIME
_BASE_Y: Final = 4 * pow(5, -1, _PRIME) % _PRIME

_Point = tuple[int, int, int, int]
"""Extended coordinates: x = X/Z, y = Y/Z, x*y = T/Z."""

_ED25519: Final = bytes.fromhex("06032b6570")
_COMMON_NAME: Final = bytes.fromhex("0603550403")
_NOT_BEFORE: Final = b"200101000000Z"
_NOT_AFTER: Final = b"99991231235959Z"
_SUBJECT: Final = b"dualray cluster"


def key_of(secret: bytes) -> bytes:
    """The private key of a cluster: 32 bytes."""
    return hmac.digest(secret, b"dualray certificate key", "sha256")


def certificate_of(key: bytes) -> bytes:
    """The certificate of a private key, in DER."""
    public = public_key(key)
    algorithm = _der(0x30, _ED25519)
    name = _der(0x30, _der(0x31, _der(0x30, _COMMON_NAME + _der(0x0C, _SUBJECT))))
    serial = b"\x01" + hashlib.sha256(public).digest()[:15]
    signed = _der(
        0x30,
        _der(0xA0, _der(0x02, b"\x02"))
        + _der(0x02, serial)
        + algorithm
        + name
        + _der(0x30, _der(0x17, _NOT_BEFORE) + _der(0x18, _NOT_AFTER))
        + name
        + _der(0x30, algorithm + _der(0x03, b"\0" + public)),
    )
    return _der(0x30, signed + algorithm + _der(0x03, b"\0" + sign(key, signed)))


def private_der(key: bytes) -> bytes:
    """The private key as PKCS #8 has it (RFC 8410)."""
    return _der(0x30, _der(0x02, b"\0") + _der(0x30, _ED25519) + _der(0x04, _der(0x04, key)))


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


# ---- Ed25519 -----------------------------------------------------------------------------------------------------


def _recover_x(y: int) -> int:
    """The even x of a point."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _PRIME)
    x = pow(square, (_PRIME + 3) // 8, _PRIME)
    if (x * x - square) % _PRIME:
        x = x * pow(2, (_PRIME - 1) // 4, _PRIME) % _PRIME
    return x if x % 2 == 0 else _PRIME - x


_BASE_X: Final = _recover_x(_BASE_Y)
_BASE: Final[_Point] = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _PRIME)


def _add(one: _Point, other: _Point) -> _Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _PRIME
    b = (one[1] + one[0]) * (other[1] + other[0]) % _PRIME
    c = 2 * one[3] * other[3] * _D % _PRIME
    d = 2 * one[2] * other[2] % _PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % _PRIME, g * h % _PRIME, f * g % _PRIME, e * h % _PRIME)


def _multiple(count: int) -> bytes:
    """So many times the base point, as 32 bytes."""
    result, point = (0, 1, 1, 0), _BASE
    while count:
        if count & 1:
            result = _add(result, point)
        point = _add(point, point)
        count >>= 1
    inverse = pow(result[2], -1, _PRIME)
    x, y = result[0] * inverse % _PRIME, result[1] * inverse % _PRIME
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _expanded(key: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(key).digest()
    scalar = int.from_bytes(digest[:32], "little")
    return scalar & ((1 << 254) - 8) | (1 << 254), digest[32:]


def _modulo(data: bytes) -> int:
    return int.from_bytes(hashlib.sha512(data).digest(), "little") % _ORDER


def public_key(key: bytes) -> bytes:
    """The public key of a private one."""
    return _multiple(_expanded(key)[0])


def sign(key: bytes, message: bytes) -> bytes:
    """The signature of a message: 64 bytes."""
    scalar, prefix = _expanded(key)
    public, nonce = _multiple(scalar), _modulo(prefix + message)
    commitment = _multiple(nonce)
    answer = (nonce + _modulo(commitment + public + message) * scalar) % _ORDER
    return commitment + answer.to_bytes(32, "little")
