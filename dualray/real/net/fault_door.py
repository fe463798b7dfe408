"""The door for faults: a Unix socket at which a process of a cluster under test takes orders to perform one.

Only clusters that are made for faults have it (`Cluster(takes_faults=True)`, `dualray chaos`, `dualray scenario run
--mode real`). It lies in the session's directory, which its user alone may enter, so that no cut of the network shuts
it. One connection carries one order, a line of JSON, and one answer.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dualray.real.net.addresses import listen
from dualray.real.net.loop import Loop
from dualray.real.net.spare import SpareDescriptor

GATEWAY_DOOR: Final = "faults-gateway"
NODE_DOOR: Final = "faults-node"
"""In the session's directory."""
ASK_TIMEOUT_S: Final = 20.0
_HEAR_TIMEOUT_S: Final = 2.0
_LINE_BYTES_MAX: Final = 1 << 24

Answer = dict[str, Any]


class FaultDoor:
    """See the module. On the loop's thread.

    Args:
        path: of the socket.
        perform: called with an order; gives the answer. What it raises is the answer's `error`.
    """

    def __init__(self, loop: Loop, path: Path, perform: Callable[[Answer], Answer]) -> None:
        self._loop = loop
        self._path = path
        self._perform = perform
        self._listener = listen(path)
        self._spare = SpareDescriptor()
        """For the order that ends a limit of open files."""
        loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        with self._spare.lent():
            self._answer_one()

    def _answer_one(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the process that asked has ended, or another thread took the descriptor
            return
        with sock:
            sock.settimeout(_HEAR_TIMEOUT_S)
            try:
                order = _read_line(sock)
                answer = self._answer(json.loads(order))
                sock.sendall(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError):
                return

    def _answer(self, order: Answer) -> Answer:
        try:
            return self._perform(order)
        except (LookupError, ValueError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        """Take no more orders."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._spare.close()
        self._path.unlink(missing_ok=True)


def ask_door(path: Path, order: Answer) -> Answer:
    """Have the process behind a door perform a fault; its answer.

    Raises:
        OSError: nobody is there, or does not answer in time.
        LookupError: the process says no.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ASK_TIMEOUT_S)
        sock.connect(os.fspath(path))
        sock.sendall(json.dumps(order).encode() + b"\n")
        answer: Answer = json.loads(_read_line(sock))
    if "error" in answer:
        raise LookupError(answer["error"])
    return answer


def _read_line(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        piece = sock.recv(1 << 16)
        if not piece:
            raise ConnectionResetError(
                "a process closed a connection for commands of injected faults in the middle of a line"
            )
        data += piece
        if len(data) > _LINE_BYTES_MAX:
            raise ValueError(f"a command of an injected fault, or its answer, has more than {_LINE_BYTES_MAX} bytes")
    return data
