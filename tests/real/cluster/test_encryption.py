"""What leaves a machine is encrypted: nobody on the way reads a byte, or changes one."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dualray.real.cluster import certificate
from dualray.real.cluster.encryption import CertificateFiles, Encryption, is_loopback, tls_files_of
from dualray.real.net.frames import Refusal
from tests.conformance.support import eventually
from tests.real.cluster.namespaces import Driver, Loopback, Network, why_not

SECRET = b"a secret of thirty-two bytes or so"
DEADLINE_S = 20.0

pytestmark = [pytest.mark.timeout(180)]


# ---- The certificate ---------------------------------------------------------------------------------------------


def test_the_key_signs_as_rfc_8032_says() -> None:
    """Its first and its third example."""
    first = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    assert certificate.public_key(first).hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert certificate.sign(first, b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
        "24655141438e7a100b"
    )
    third = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
    assert certificate.public_key(third).hex() == "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
    assert certificate.sign(third, b"\xaf\x82").hex() == (
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed2"
        "8dc027beceea1ec40a"
    )


def test_one_secret_makes_one_certificate() -> None:
    made = [certificate.certificate_of(certificate.key_of(secret)) for secret in (SECRET, SECRET, b"another secret")]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.77.0.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("box", False),
    ],
)
def test_what_stays_on_the_machine_is_not_encrypted_unless_it_is_said(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    assert Encryption(SECRET).is_on_for(host) is not expected
    assert Encryption(SECRET, is_on=True).is_on_for(host)
    assert not Encryption(SECRET, is_on=False).is_on_for(host)


# ---- Handshakes --------------------------------------------------------------------------------------------------


def meet(server: Encryption, client: Encryption) -> tuple[list[bytes], list[BaseException]]:
    """What both ends of a connection have in common, and what went wrong."""
    ours, theirs = socket.socketpair()
    bindings: list[bytes] = []
    errors: list[BaseException] = []
    deadline = time.monotonic() + DEADLINE_S

    def accept() -> None:
        try:
            with server.accept(theirs, deadline) as sock:
                assert sock.version() == "TLSv1.3"
                sock.sendall(b"welcome")
                bindings.append(server.binding(sock, is_server=True))
        except (Refusal, OSError) as error:
            errors.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with client.connect(ours, deadline) as sock:
            if sock.recv(7) == b"welcome":
                bindings.append(client.binding(sock, is_server=False))
    except (Refusal, OSError) as error:
        errors.append(error)
    thread.join(DEADLINE_S)
    return bindings, errors


def test_who_has_the_secret_gets_in_and_nobody_else() -> None:
    bindings, errors = meet(Encryption(SECRET), Encryption(SECRET))
    assert errors == []
    assert len(bindings) == 2
    assert bindings[0] == bindings[1] != b""
    bindings, errors = meet(Encryption(SECRET), Encryption(b"another secret"))
    assert bindings == []
    reasons = [error for error in errors if isinstance(error, Refusal)]
    assert [reason.counter for reason in reasons] == ["wrong_secrets"] * len(reasons) != []


def test_who_speaks_no_tls_is_refused_by_name() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(b"dualray\n" + bytes(36))
        with pytest.raises(
            Refusal, match=r"the peer does not use TLS, but this process does: start both nodes with --tls"
        ) as refused:
            Encryption(SECRET).accept(theirs, time.monotonic() + DEADLINE_S)
    assert refused.value.counter == "bad_preambles"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, two certificates that it has signed, and one of somebody else's."""
    directory = tmp_path_factory.mktemp("authority")

    def openssl(*words: str) -> None:
        try:
            subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True, timeout=60)
        except FileNotFoundError:
            pytest.skip("there is no openssl program on this machine, to make certificates with")

    new_key = ("-newkey", "ed25519", "-nodes")
    for name in ("ca", "stranger"):
        openssl("req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    for name in ("one", "two"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
            "-out", f"{name}.pem",
        )  # fmt: skip
    return directory


def files(directory: Path, name: str) -> CertificateFiles:
    return CertificateFiles(*(str(directory / each) for each in (f"{name}.pem", f"{name}.key", "ca.pem")))


def test_certificates_of_the_users_own_authority(authority: Path) -> None:
    one, two, stranger = (Encryption(SECRET, files=files(authority, name)) for name in ("one", "two", "stranger"))
    bindings, errors = meet(one, two)
    assert errors == []
    assert bindings[0] == bindings[1]
    assert meet(one, one)[0][0] != bindings[0], "who stands between two others cannot pass on what they prove"
    bindings, errors = meet(one, stranger)
    assert bindings == []
    assert errors


def test_files_that_cannot_be_used_are_refused_by_their_option(authority: Path, tmp_path: Path) -> None:
    good = {name: authority / name for name in ("one.pem", "one.key", "ca.pem", "two.key")}
    assert tls_files_of(None, None, None, None) is None
    with pytest.raises(ValueError, match="must be given together; add --tls-key and --tls-ca"):
        tls_files_of(None, good["one.pem"], None, None)
    with pytest.raises(ValueError, match="--no-tls turns encryption off"):
        tls_files_of(False, good["one.pem"], good["one.key"], good["ca.pem"])
    with pytest.raises(ValueError, match=r"--tls-key .*/missing: No such file"):
        tls_files_of(None, good["one.pem"], tmp_path / "missing", good["ca.pem"])
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(ValueError, match=r"--tls-ca .*/text is not a PEM file"):
        tls_files_of(None, good["one.pem"], good["one.key"], tmp_path / "text")
    with pytest.raises(ValueError, match=r"KEY_VALUES_MISMATCH"):
        tls_files_of(None, good["one.pem"], good["two.key"], good["ca.pem"])


# ---- A cluster ---------------------------------------------------------------------------------------------------

MARK = "a word that nobody else says"
DRIVER = f"""
    import numpy as np
    import dualray

    dualray.init(address=sys.argv[1], log_to_driver=True)

    @dualray.remote(resources={{"far": 1}})
    def far(text, array):
        print("{MARK}".upper(), file=sys.stderr)
        return text + "{MARK}", array

    @dualray.remote(resources={{"far": 1}})
    def second_function():
        return len("{MARK}, in a function")

    def exchange(count):
        dualray.get(second_function.remote())
        array = np.frombuffer(b"{MARK}" * count, np.uint8)
        text, back = dualray.get(far.remote("{MARK}", array))
        return [len(text), bool((back == array).all())]
"""
CAPTURE = """
import socket, sys
sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
sock.bind(("eth0", 0))
with open(sys.argv[1], "wb", buffering=0) as file:
    print("captures", flush=True)
    while True:
        file.write(sock.recv(1 << 17))
"""


def start_two(network: Network | Loopback, *options: str) -> str:
    head, second = network.machine(), network.machine()
    head.dualray("start", "--head", "--node-ip", head.address, "--port", "6398", "--num-cpus", "1", *options)
    address = f"{head.address}:6398"
    second.dualray(
        "start", "--address", address, "--node-ip", second.address, "--num-cpus", "1",
        "--resources", '{"far": 1}', *options,
    )  # fmt: skip
    return address


@pytest.fixture
def namespaces() -> Iterator[Network]:
    why = why_not()
    if why:
        pytest.skip(f"network namespaces cannot be made: {why}")
    made = Network(Path(f"/tmp/drte{os.getpid()}"))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_no_byte_can_be_read_on_the_way(namespaces: Network, tmp_path: Path, is_encrypted: bool) -> None:
    """Without encryption the same capture shows all three: object, function and log line."""
    address = start_two(namespaces, *([] if is_encrypted else ["--no-tls"]))
    head = namespaces.machines[0]
    script, capture = tmp_path / "capture.py", tmp_path / "packets"
    script.write_text(CAPTURE)
    sniffer = subprocess.Popen(head.command(str(script), str(capture)), stdout=subprocess.PIPE, text=True)
    try:
        assert sniffer.stdout is not None
        assert sniffer.stdout.readline() == "captures\n"
        with closing(Driver(head, DRIVER, address)) as driver:
            assert driver("exchange(100_000)") == [2 * len(MARK), True]
    finally:
        sniffer.send_signal(signal.SIGKILL)
        sniffer.communicate()
    seen = capture.read_bytes()
    assert len(seen) > 1_000_000, "the object went there"
    assert (MARK.encode() in seen) is not is_encrypted
    assert (MARK.upper().encode() in seen) is not is_encrypted
    assert (f"{MARK}, in a function".encode() in seen) is not is_encrypted


class FlippingProxy:
    """Passes bytes on to one address, and flips a bit of each piece when it is told."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.flips = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                far = socket.create_connection(self._target)
                self._sockets.append(far)
                for pair in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pump, args=pair))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                target.sendall(piece[:-1] + bytes([piece[-1] ^ self.flips]))
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end(self._listener)
        self._threads[0].join(DEADLINE_S)  # it may be connecting
        for sock in self._sockets:
            self._end(sock)
        for thread in self._threads[1:]:
            thread.join(DEADLINE_S)

    def _end(self, sock: socket.socket) -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def test_a_bit_that_is_flipped_on_the_way_ends_the_connection(tmp_path: Path) -> None:
    network = Loopback(Path(f"/tmp/drtf{os.getpid()}"))
    proxy: FlippingProxy | None = None
    try:
        head, second = network.machine(), network.machine()
        head.dualray("start", "--head", "--node-ip", head.address, "--port", "6397", "--num-cpus", "1", "--tls")
        proxy = FlippingProxy((head.address, 6397))
        second.dualray(
            "start", "--address", f"127.0.0.1:{proxy.port}", "--node-ip", second.address, "--num-cpus", "1", "--tls"
        )
        proxy.flips = True
        reason = "SSLError: [SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]"
        eventually(lambda: reason in head.log("daemon") + second.log("daemon"), "the connection ends", within_s=60)
        assert "the gateway ended a connection with 127." in head.log("daemon") + second.log("daemon")
    finally:
        if proxy is not None:
            proxy.close()
        network.close()


def test_a_node_that_is_not_told_to_encrypt_is_told_so(tmp_path: Path) -> None:
    network = Loopback(Path(f"/tmp/drtg{os.getpid()}"))
    try:
        head, second = network.machine(), network.machine()
        head.dualray("start", "--head", "--node-ip", head.address, "--port", "6396", "--num-cpus", "1", "--tls")
        words = ["start", "--address", f"{head.address}:6396", "--node-ip", second.address, "--num-cpus", "1"]
        with pytest.raises(AssertionError, match=r"if the first node was started with --tls, also give --tls"):
            second.dualray(*words)
        assert "the peer does not use TLS, but this process does" in head.log("daemon")
        second.dualray(*words, "--tls")
    finally:
        network.close()


def test_the_handshake_of_tls_is_that_of_version_1_3_alone() -> None:
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    ours.settimeout(DEADLINE_S)

    def connect() -> None:
        with suppress(OSError), context.wrap_socket(ours):
            pass

    thread = threading.Thread(target=connect)
    thread.start()
    with pytest.raises(Refusal, match="UNSUPPORTED_PROTOCOL"):
        Encryption(SECRET).accept(theirs, time.monotonic() + DEADLINE_S)
    thread.join(DEADLINE_S)
    ours.close()
