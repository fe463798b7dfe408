"""Which values a recorded run has made: a digest of each, in the order in which they first came to be sent or sealed.

Decisions and the trace know the sizes of values, and not what is in them. When two runs that should be the same come
to different results, this names the first value that differed (dualray/testing/determinism.py). Who wants it asks for
it, for equal values need not have equal bytes, and a run's logs have: `ask_for_values`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgpack

from dualray.output_files import create_file
from dualray.shared.core.layout import ALIGNMENT, MARSHALLED_BEFORE, MARSHALLED_START
from dualray.shared.model.codec import SURROGATES, pack

FILE_NAME = "cluster.values"


def ask_for_values(directory: Path) -> None:
    """Have the run whose decision log will be in this directory keep its values there, too."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FILE_NAME).touch()


def are_asked_for(directory: Path) -> bool:
    """Whether somebody has."""
    return (directory / FILE_NAME).exists()


class ValueRow(NamedTuple):
    """A value: when and from whom it came, its id (of a task: its arguments), and what is in it, as a digest."""

    time_ns: int
    process: str
    key: bytes
    digest: bytes


class ValueDigests:
    """See the module."""

    def __init__(self) -> None:
        self._rows: list[ValueRow] = []
        self._known: dict[bytes, bytes] = {}

    def note(self, time_ns: int, process: str, key: bytes, data: bytes | memoryview) -> None:
        """A value is on its way, or has been sealed; another attempt may have made it again."""
        content = blake2b(digest_size=8)
        for part in _parts(memoryview(data)):
            content.update(part)
        digest = content.digest()
        if self._known.get(key) != digest:
            self._known[key] = digest
            self._rows.append(ValueRow(time_ns, process, key, digest))

    def write(self, directory: Path) -> None:
        """The simulation is over."""
        with create_file(directory / FILE_NAME) as file:
            file.write(b"".join(pack(tuple(row)) for row in self._rows))


def _parts(data: memoryview) -> Iterator[memoryview]:
    """What is in a value, without what lies between its buffers (shared/core/layout.py): there can be anything."""
    if len(data) < 12 or data[:MARSHALLED_START] == MARSHALLED_BEFORE:
        yield data
        return
    count, pickled_bytes = struct.unpack_from("<IQ", data)
    lengths = struct.unpack_from(f"<{count}Q", data, 12)
    end = 12 + 8 * count + pickled_bytes
    yield data[:end]
    for length in lengths:
        start = (end + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        end = start + length
        yield data[start:end]


def read_values(directory: Path) -> list[ValueRow]:
    """The values of a recorded run; none where the run has left none."""
    path = directory / FILE_NAME
    if not path.exists():
        return []
    stream = msgpack.Unpacker(raw=False, use_list=False, unicode_errors=SURROGATES)
    stream.feed(path.read_bytes())
    return [ValueRow(*row) for row in stream]
