"""The private client of the control plane's server, against the embedded one, which speaks as Redis does."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualray.exceptions import AuthenticationError
from dualray.real.control_plane.embedded_store import EmbeddedStore
from dualray.real.control_plane.resp import ReplyError, RespClient, encode

PASSWORD = "pass word"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RespClient]:
    store = EmbeddedStore(tmp_path / "redis.sock", PASSWORD)
    store.start()
    client = RespClient(tmp_path / "redis.sock", PASSWORD, timeout_s=10.0)
    yield client
    client.close()
    store.stop()


def test_commands_and_each_kind_of_reply(client: RespClient) -> None:
    assert client.call("PING") == "PONG"
    assert client.call("HGET", "h", b"\0key\r\n") is None
    assert client.call("HSET", "h", b"\0key\r\n", b"\r\n" * 3) == 1
    assert client.call("HGET", "h", b"\0key\r\n") == b"\r\n" * 3
    assert client.call("HGETALL", "h") == [b"\0key\r\n", b"\r\n" * 3]
    assert client.call("LRANGE", "l", 0, -1) == []
    assert client.pipeline([("RPUSH", "l", b"a"), ("RPUSH", "l", b""), ("LLEN", "l")]) == [1, 2, 2]
    assert client.call("LRANGE", "l", 0, -1) == [b"a", b""]


def test_a_large_value_comes_back_whole(client: RespClient) -> None:
    value = bytes(range(256)) * 40_000
    client.call("HSET", "h", b"k", value)
    assert client.call("HGET", "h", b"k") == value


def test_a_refused_command_raises_and_the_connection_goes_on(client: RespClient) -> None:
    client.call("HSET", "h", b"k", b"v")
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        client.pipeline([("RPUSH", "h", b"x"), ("PING",)])
    assert client.call("HGET", "h", b"k") == b"v", "the replies of that pipeline are not left over"


def test_a_wrong_password(client: RespClient, tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match=r"WRONGPASS|invalid"):
        RespClient(tmp_path / "redis.sock", "guess", timeout_s=10.0).call("PING")


def test_threads_share_a_client(client: RespClient) -> None:
    def push(number: int) -> None:
        for _ in range(50):
            client.call("RPUSH", f"l{number}", b"x" * number)

    threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [client.call("LLEN", f"l{number}") for number in range(8)] == [50] * 8


def serve(listener: socket.socket, replies: tuple[bytes, ...]) -> threading.Thread:
    """Answer one connection's commands in turn, and close it at the next one."""

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            for reply in replies:
                connection.recv(4096)
                connection.sendall(reply)
            with contextlib.suppress(ConnectionResetError):  # the client has not read it all
                connection.recv(4096)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ((b"+OK\r\n",), ConnectionResetError),
        ((b"-LOADING its file\r\n",), ConnectionError),
        ((b"+OK\r\n", b"HTTP/1.1 200\r\n"), ConnectionError),
        ((b"+OK\r\n", b"+PO"), TimeoutError),
    ],
    ids=["closed", "loading", "not RESP", "silent"],
)
def test_a_connection_that_breaks_raises_and_the_next_command_makes_another(
    tmp_path: Path, replies: tuple[bytes, ...], error: type[OSError]
) -> None:
    path = tmp_path / "server.sock"
    client = RespClient(path, PASSWORD, timeout_s=0.5)
    with pytest.raises(FileNotFoundError):
        client.call("PING")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = serve(listener, replies)
        with pytest.raises(error):
            client.call("PING")
        thread.join()
        thread = serve(listener, (b"+OK\r\n", b"+PONG\r\n"))
        client.timeout_s = 10.0
        assert client.call("PING") == "PONG"
        client.close()
        thread.join()


def test_how_commands_are_written() -> None:
    assert encode(("SET", b"\0", 12)) == b"*3\r\n$3\r\nSET\r\n$1\r\n\0\r\n$2\r\n12\r\n"
