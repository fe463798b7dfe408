"""The head's end of the provider of nodes, which lives in the daemon beside it (cluster/provider.py): orders out,
refusals in."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dualray.real.net.loop import Loop

_PIECE_BYTES: Final = 64 << 10


class ProviderClient:
    """See the module.

    Args:
        loop: of the head.
        path: of the provider's socket.
        on_failed: called on the loop's thread with the group, the launches that have failed, and the reason.
    """

    def __init__(self, loop: Loop, path: Path, on_failed: Callable[[str, tuple[str, ...], str], None]) -> None:
        self._loop = loop
        self._on_failed = on_failed
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._received = b""
        loop.add_reader(self._socket.fileno(), self._read)

    def launch(self, group: str, launch_ids: tuple[str, ...]) -> None:
        """Have a node started for each id."""
        self._send({"op": "launch", "group": group, "ids": launch_ids})

    def terminate(self, launch_id: str) -> None:
        """Have a machine given back."""
        self._send({"op": "terminate", "id": launch_id})

    def _send(self, order: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionError):  # the daemon has ended, and we end with it
            self._socket.sendall(json.dumps(order).encode() + b"\n")

    def _read(self) -> None:
        piece = b""
        with contextlib.suppress(ConnectionError):  # it was killed with an order of ours unread
            piece = self._socket.recv(_PIECE_BYTES)
        if not piece:  # the daemon ends, and we with it
            self._loop.remove_reader(self._socket.fileno())
            return
        *lines, self._received = (self._received + piece).split(b"\n")
        for line in lines:
            news = json.loads(line)
            self._on_failed(news["group"], tuple(news["ids"]), news["reason"])

    def close(self) -> None:
        self._socket.close()
