"""TLS 1.3 on what leaves a machine: the connections between gateways, and all that they carry.

Theory of operation. Both sides show a certificate, and each looks at the other's. Without more ado it is the cluster's
own, which its secret makes (certificate.py): it is the only one that is trusted, so that without the secret nobody gets
through the TLS handshake. With files of the user's (`--tls-cert`, `--tls-key`, `--tls-ca`), who shows a certificate of
that authority gets through; then comes the proof of the secret (net/handshake.py), which covers both certificates:
whoever stands between the two with a certificate of his own cannot pass it on.

It is on for addresses that are not loopback's, unless the node is told otherwise, at each node alike.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import os
import socket
import ssl
import time
from functools import cached_property
from pathlib import Path
from typing import Final

from dualray.input_files import read_bytes
from dualray.real.cluster.certificate import certificate_of, key_of, private_der
from dualray.real.net.frames import Refusal

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST")
"""What OpenSSL says of who begins otherwise."""


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address, which only its own machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclasses.dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The user's own certificate, its key, and the certificates of whom it trusts: paths of PEM files."""

    certificate: str
    key: str
    authority: str

    def check(self) -> None:
        """That they can be used.

        Raises:
            ValueError: one is missing or is no PEM file, with its option; or key and certificate are not a pair.
        """
        for option, path in (("--tls-cert", self.certificate), ("--tls-key", self.key), ("--tls-ca", self.authority)):
            try:
                text = read_bytes(path)
            except OSError as error:
                raise ValueError(f"{option} {path}: {error.strerror}") from error
            if b"-----BEGIN" not in text:
                raise ValueError(
                    f"{option} {path} is not a PEM file, because the file has no line that begins with -----BEGIN"
                )
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            raise ValueError(
                f"dualray cannot use the files --tls-cert {self.certificate}, --tls-key {self.key} and --tls-ca "
                f"{self.authority}: {error.reason or error}"
            ) from error


def tls_files_of(
    tls: bool | None, certificate: Path | None, key: Path | None, authority: Path | None
) -> tuple[str, str, str] | None:
    """What `--tls-cert`, `--tls-key` and `--tls-ca` say, checked; None when none of them is given.

    Raises:
        ValueError: one is missing, or cannot be used; or they are given with `--no-tls`.
    """
    given = {"--tls-cert": certificate, "--tls-key": key, "--tls-ca": authority}
    missing = [option for option, path in given.items() if path is None]
    if len(missing) == len(given):
        return None
    if tls is False:
        raise ValueError(
            "--no-tls turns encryption off; leave out either --no-tls, or --tls-cert, --tls-key and --tls-ca"
        )
    if missing:
        raise ValueError(f"--tls-cert, --tls-key and --tls-ca must be given together; add {' and '.join(missing)}")
    paths = CertificateFiles(*(str(path.absolute()) for path in (certificate, key, authority) if path is not None))
    paths.check()
    return paths.certificate, paths.key, paths.authority


class Encryption:
    """See the module's theory of operation. Any thread.

    Args:
        secret: the cluster's.
        is_on: for every address; None: for those that are not loopback's.
        files: the user's own certificate; None: the cluster's.
    """

    def __init__(self, secret: bytes, *, is_on: bool | None = None, files: CertificateFiles | None = None) -> None:
        self._secret = secret
        self._is_on = is_on
        self._files = files

    def is_on_for(self, host: str) -> bool:
        """Whether what goes to this address, or comes to it, is encrypted."""
        return not is_loopback(host) if self._is_on is None else self._is_on

    def connect(self, sock: socket.socket, deadline: float) -> ssl.SSLSocket:
        """The TLS handshake of who has connected; the socket belongs to the result, and is closed by an error.

        Raises:
            Refusal: the other side speaks no TLS, or shows another certificate.
            OSError: the connection broke, or took too long.
        """
        return self._wrap(self._client, sock, deadline, is_server=False)

    def accept(self, sock: socket.socket, deadline: float) -> ssl.SSLSocket:
        """As `connect`, of who has accepted."""
        return self._wrap(self._server, sock, deadline, is_server=True)

    def binding(self, sock: socket.socket, *, is_server: bool) -> bytes:
        """What both ends of an encrypted connection, and no connections with others, have in common."""
        if not isinstance(sock, ssl.SSLSocket):
            return b""
        theirs = sock.getpeercert(binary_form=True) or b""
        pair = (self._certificate, theirs) if is_server else (theirs, self._certificate)
        return b"".join(hashlib.sha256(each).digest() for each in pair)

    def _wrap(self, context: ssl.SSLContext, sock: socket.socket, deadline: float, *, is_server: bool) -> ssl.SSLSocket:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            return context.wrap_socket(sock, server_side=is_server)
        except ssl.SSLCertVerificationError as error:
            raise Refusal("wrong_secrets", f"{self._strangers} (TLS: {error.verify_message})") from error
        except ssl.SSLError as error:
            raise self._refusal(error) from error
        finally:
            sock.close()  # its descriptor is the result's, or nobody's

    @property
    def _strangers(self) -> str:
        if self._files is None:
            return "the two processes have different cluster secrets"
        return f"the peer's certificate is not signed by {self._files.authority}"

    def _refusal(self, error: ssl.SSLError) -> Refusal:
        """Why a TLS handshake has failed, as the rules that can be broken go."""
        reason = error.reason or str(error)
        if reason in _NO_TLS:
            return Refusal(
                "bad_preambles",
                "the peer does not use TLS, but this process does: start both nodes with --tls, or both with --no-tls",
            )
        if "ALERT" in reason or "CERTIFICATE" in reason:
            return Refusal("wrong_secrets", f"{self._strangers} ({reason})")
        return Refusal("bad_preambles", f"the peer's TLS handshake failed ({reason})")

    @cached_property
    def _certificate(self) -> bytes:
        """Ours, in DER."""
        if self._files is None:
            return certificate_of(key_of(self._secret))
        text = Path(self._files.certificate).read_text()
        begin, end = text.index("-----BEGIN CERTIFICATE-----"), text.index("-----END CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(text[begin:end] + "-----END CERTIFICATE-----\n")

    @cached_property
    def _client(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    @cached_property
    def _server(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # nobody resumes
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate says who belongs to the cluster, and not at which address
        context.verify_mode = ssl.CERT_REQUIRED
        if self._files is not None:
            context.load_cert_chain(self._files.certificate, self._files.key)
            context.load_verify_locations(self._files.authority)
        else:
            _load(context, self._certificate, private_der(key_of(self._secret)))
            context.load_verify_locations(cadata=self._certificate)
        return context


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL reads certificate and key from a file: this one is memory, and has no name."""
    pem = ssl.DER_cert_to_PEM_cert(certificate) + ssl.DER_cert_to_PEM_cert(key).replace("CERTIFICATE", "PRIVATE KEY")
    fd = os.memfd_create("dualray-certificate")
    try:
        os.write(fd, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
