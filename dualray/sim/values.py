"""Which values a recorded run has made: a digest of each, in the order in which they first came to be sent or sealed.

Decisions and the trace know the sizes of values, and not what is in them. When two runs that should be the same come
to different results, this names the first value that differed (dualray/testing/determinism.py).
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from dualray.shared.model.codec import pack

FILE_NAME = "cluster.values"


class ValueRow(NamedTuple):
    """A value: when and from whom it came, its id (of a task: its arguments), and what is in it, as a digest."""

    time_ns: int
    process: str
    key: bytes
    digest: bytes


class ValueLog:
    """See the module."""

    def __init__(self) -> None:
        self._rows: list[ValueRow] = []
        self._known: dict[bytes, bytes] = {}

    def note(self, time_ns: int, process: str, key: bytes, data: Any) -> None:
        """A value is on its way, or has been sealed; another attempt may have made it again."""
        digest = blake2b(data, digest_size=8).digest()
        if self._known.get(key) != digest:
            self._known[key] = digest
            self._rows.append(ValueRow(time_ns, process, key, digest))

    def write(self, directory: Path) -> None:
        """The simulation is over."""
        (directory / FILE_NAME).write_bytes(b"".join(pack(tuple(row)) for row in self._rows))


def read_values(directory: Path) -> list[ValueRow]:
    """The values of a recorded run; none where the run has left none."""
    path = directory / FILE_NAME
    if not path.exists():
        return []
    stream = msgpack.Unpacker(raw=False, use_list=False)
    stream.feed(path.read_bytes())
    return [ValueRow(*row) for row in stream]
