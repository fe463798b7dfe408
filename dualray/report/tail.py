"""Follows the traces of a run while it goes on: each look returns the rows that were written since the last one."""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

import msgpack

from dualray.shared.model.codec import SURROGATES
from dualray.shared.proof.trace import TraceEvent, TraceKind

_SUFFIX = ".trace"
_KINDS = {kind.value: kind for kind in TraceKind}


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
        self._last_ns: dict[str, int] = {}
        """Of each file, the time of the last row that was taken in."""
        self._until_ns: int | None = None
        """Some files have more: rows that are later than this may come after some of theirs."""
        self._held: list[TraceEvent] = []
        """The rows that are later than that."""

    @property
    def has_more(self) -> bool:
        """Whether the last look has left something that was there."""
        return self._until_ns is not None

    def look(self, bytes_max: int = -1) -> list[TraceEvent]:
        """The rows since the last call, merged by time; those of one process stay in their order.

        Args:
            bytes_max: that are read of each file. A look returns the rows until the time to which all files were read;
                so what is returned is in order, however much is left.

        Raises:
            ValueError: a file that is no trace; the message names it.
        """
        events, before_ns, self._until_ns = self._held, self._until_ns, None
        with os.scandir(self._directory) as entries:
            for entry in entries:
                name = entry.name
                if not name.endswith(_SUFFIX) or (size := entry.stat().st_size) <= self._read.get(name, 0):
                    continue
                if before_ns is None or self._last_ns.get(name, 0) <= before_ns:  # else others come first
                    news = self._news(entry.path, name, bytes_max)
                    events += news
                    if news:
                        self._last_ns[name] = news[-1].time_ns
                if self._read[name] < size:
                    last_ns = self._last_ns.get(name, 0)
                    self._until_ns = last_ns if self._until_ns is None else min(self._until_ns, last_ns)
        events.sort(key=lambda event: event.time_ns)
        until_ns = self._until_ns
        here = len(events) if until_ns is None else bisect_right(events, until_ns, key=lambda event: event.time_ns)
        self._held = events[here:]
        return events[:here]

    def _news(self, path: str, name: str, bytes_max: int) -> list[TraceEvent]:
        with Path(path).open("rb") as file:
            file.seek(self._read.get(name, 0))
            data = file.read(bytes_max)
        self._read[name] = self._read.get(name, 0) + len(data)
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = msgpack.Unpacker(
                raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES
            )
        stream.feed(data)
        try:
            return [TraceEvent(time_ns, _KINDS[kind], *rest) for time_ns, kind, *rest in stream]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a trace that this dualray can read: {error}") from error
