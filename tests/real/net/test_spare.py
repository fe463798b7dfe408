"""A process at its limit of open files refuses connections in words, and takes them when it may open files again."""

import errno
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualray.real.net.handshake import PeerStarved
from dualray.real.net.loop import Loop
from dualray.real.net.transport import Transport
from tests.exhaustion.runs import taken
from tests.real.net.support import wait_for

SECRET = b"a secret of the cluster"

STARVING = f"""
import sys
from pathlib import Path
from dualray.real.net import transport
from dualray.real.net.loop import Loop
from dualray.real.net.spare import SpareDescriptor

transport._STARVED_S = 0.2
loop = Loop(print)
head = transport.Transport(
    loop, address="head", socket_dir=Path(sys.argv[1]), secret={SECRET!r},
    on_message=lambda peer, header, buffers: print(bytes(header).decode(), flush=True), on_peer_lost=lambda peer: None,
)
spare = SpareDescriptor()
head.on_starved = lambda error: spare.refuse_waiting(head.listener)
print("begins", flush=True)
loop.run()
"""


@pytest.fixture
def starving(tmp_path: Path) -> Iterator[Any]:
    words = [sys.executable, "-c", STARVING, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        yield process
        process.kill()


def test_a_process_without_descriptors_refuses_in_words_and_goes_on_later(starving: Any, tmp_path: Path) -> None:
    lost: list[str] = []
    loop = Loop(lambda error: None)
    transport = Transport(
        loop,
        address="node-0/w1",
        socket_dir=tmp_path,
        secret=SECRET,
        on_message=lambda peer, header, buffers: None,
        on_peer_lost=lost.append,
    )
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        with taken(starving.pid, "open files", 0):
            limit, _ = resource.prlimit(starving.pid, resource.RLIMIT_NOFILE)
            for _ in range(2):  # its spare descriptor serves again
                lost.clear()
                transport.send("head", b"in vain")
                wait_for(lambda: lost, "the connection is refused")
                why = transport.why_lost("head")
                assert isinstance(why, PeerStarved)
                assert why.errno == errno.EMFILE
                assert f"head has reached its limit of open files, {limit} (RLIMIT_NOFILE)" in str(why)
                transport.forget("head")
        transport.send("head", b"arrives")
        assert starving.stdout.readline() == "arrives\n"
        assert lost == ["head"]
    finally:
        transport.close()
        loop.stop()
        thread.join()
        loop.close()
