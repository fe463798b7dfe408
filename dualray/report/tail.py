"""Follows the traces of a run while it goes on: each look returns the rows that were written since the last one."""

from __future__ import annotations

import os
from pathlib import Path

import msgpack

from dualray.shared.model.codec import SURROGATES
from dualray.shared.proof.trace import TraceEvent, TraceKind

_SUFFIX = ".trace"


class TraceTail:
    """See the module.

    Args:
        directory: where the processes of the run write their traces; files that come later are found, too.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}
        """Of each file, the bytes that were taken in."""
        self._streams: dict[str, msgpack.Unpacker] = {}

    def look(self) -> list[TraceEvent]:
        """The rows since the last call, merged by time; those of one process stay in their order.

        Raises:
            ValueError: a file that is no trace; the message names it.
        """
        events: list[TraceEvent] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX) and entry.stat().st_size > self._read.get(entry.name, 0):
                    events += self._news(entry.path, entry.name)
        return sorted(events, key=lambda event: event.time_ns)

    def _news(self, path: str, name: str) -> list[TraceEvent]:
        with Path(path).open("rb") as file:
            file.seek(self._read.get(name, 0))
            data = file.read()
        self._read[name] = self._read.get(name, 0) + len(data)
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = msgpack.Unpacker(
                raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES
            )
        stream.feed(data)
        try:
            return [TraceEvent(time_ns, TraceKind(kind), *rest) for time_ns, kind, *rest in stream]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a trace of this version: {error}") from error
