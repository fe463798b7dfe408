"""The driver's display of worker output: lines under their workers' names, and repeated lines once.

Theory of operation. Node managers send lines (worker_output.py). They are printed by a thread of their own,
`dualray-output`, which starts with the driver: a terminal that is stuck, or a full pipe, holds up nobody but it. What
waits for it is bounded. A stream that is closed or broken ends the showing, and nothing else.

The same line from several processes within WINDOW_S is shown once, at once, and then once more, at the window's end,
with how often it came: `(f pid=7) loading [repeated 7x across cluster]`. One process may repeat itself. Programs with
the name `ray` change this with Ray's variables (`Rules`), and their lines are compared as Ray compares them.
"""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from dualray.exceptions import rays_words
from dualray.progress_bars import DISPLAY, BarState
from dualray.real.limits import start_thread
from dualray.real.observe.worker_output import BARS
from dualray.shared.model.codec import unpack

WINDOW_S: Final = 5.0
_BATCHES_MAX: Final = 10_000
_FLUSH_TIMEOUT_S: Final = 2.0
_LINES_REMEMBERED_MAX: Final = 10_000
_DIGIT: Final = re.compile("[0-9]")

Source = tuple[int, str]
"""(pid, node)."""


@dataclass(slots=True)
class _Seen:
    first: Source
    until_s: float
    last: str = ""
    """The line that came last, with its prefix."""
    count: int = 0
    sources: set[Source] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Rules:
    """Which lines count as repeated.

    Attributes:
        window_s: seconds in which the same line of several processes is shown once; 0: every line is shown.
        shown: a line in which this pattern is found is always shown.
        hidden: a line in which this pattern is found is never shown, unless `shown` is found there.
        names_processes: whether the name of its process stands before a line.
        rays_hint: "", or as in Ray: words with a digit do not count when lines are compared, a line of nothing else is
            always shown, and the first process may not repeat itself once others have said the same. The first count
            has this hint behind it.
    """

    window_s: float = WINDOW_S
    shown: re.Pattern[str] | None = None
    hidden: re.Pattern[str] | None = None
    names_processes: bool = True
    rays_hint: str = ""


class Deduplicator:
    """Which lines are shown, and how; see the module. No clock: times are given."""

    def __init__(self, node: str, rules: Rules = Rules()) -> None:
        self._node = node
        self._rules = rules
        self._hint = rules.rays_hint
        self._seen: dict[tuple[int, str], _Seen] = {}

    def prefix(self, name: str, pid: int, node: str) -> str:
        """Return the name that is printed before each line of a process, with a space behind it."""
        where = "" if node == self._node else f", {node}"
        return f"({name} pid={pid}{where}) " if pid else f"({name}{where}) "

    def take(self, name: str, pid: int, node: str, stream: int, line: str, now_s: float) -> str | None:
        """What to print for a line now, if anything; `stream` is 1 or 2."""
        rules = self._rules
        prefix = self.prefix(name, pid, node) if rules.names_processes else ""
        source = (pid, node)
        if not rules.window_s or (rules.shown is not None and rules.shown.search(line)):
            return f"{prefix}{line}\n"
        if rules.hidden is not None and rules.hidden.search(line):
            return None
        compared = line if not rules.rays_hint else " ".join(it for it in line.split() if not _DIGIT.search(it))
        seen = self._seen.get((stream, compared))
        if seen is None:
            if compared and len(self._seen) < _LINES_REMEMBERED_MAX:
                self._seen[stream, compared] = _Seen(first=source, until_s=now_s + rules.window_s, sources={source})
            return f"{prefix}{line}\n"
        seen.sources.add(source)
        if source == seen.first and (not rules.rays_hint or len(seen.sources) == 1):
            return f"{prefix}{line}\n"
        seen.count += 1
        seen.last = f"{prefix}{line}"
        return None

    def due(self, now_s: float | None) -> list[tuple[int, str]]:
        """What is to be printed now as (stream, text) for windows that have ended; with None, for all of them."""
        texts = []
        while self._seen:
            key, seen = next(iter(self._seen.items()))
            if now_s is not None and seen.until_s > now_s:
                break
            del self._seen[key]
            if seen.count == 1:
                texts.append((key[0], f"{seen.last}\n"))
            elif seen.count:
                texts.append((key[0], f"{seen.last} [repeated {seen.count}x across cluster]{self._hint}\n"))
                self._hint = ""
        return texts

    @property
    def next_s(self) -> float | None:
        """When the next window ends."""
        return next(iter(self._seen.values())).until_s if self._seen else None


class DriverOutput:
    """See the module.

    Args:
        node: the driver's own: it is left out of the prefixes.
    """

    def __init__(self, node: str) -> None:
        words = rays_words()
        self._lines = Deduplicator(node, Rules() if words is None else Rules(*words.rules_of_lines()))
        self._queue: queue.Queue[bytes | str | None] = queue.Queue(_BATCHES_MAX)
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Begin to show; what came before is shown then."""
        thread = threading.Thread(target=self._run, name="dualray-output", daemon=True)
        start_thread(thread)
        self._thread = thread

    def put(self, message: memoryview) -> None:
        """Lines have come from a node manager. Never waits."""
        self._add(bytes(message))

    def tell(self, words: str) -> None:
        """Say something of our own on stderr. Never waits."""
        self._add(words)

    def _add(self, item: bytes | str) -> None:
        if self._closed:
            return
        try:
            self._queue.put_nowait(item)
        except queue.Full:  # the terminal is stuck; the files have them
            pass

    def close(self) -> None:
        """Show what is left, and end; a stuck terminal is given up after two seconds. Idempotent."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                self._queue.put(None, timeout=_FLUSH_TIMEOUT_S)
            except queue.Full:
                return
            thread.join(_FLUSH_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            next_s = self._lines.next_s
            try:
                item = self._queue.get(timeout=None if next_s is None else max(0.0, next_s - time.monotonic()))
            except queue.Empty:
                for stream, text in self._lines.due(time.monotonic()):
                    self._print(stream, text)
                continue
            if item is None:
                for stream, text in self._lines.due(None):
                    self._print(stream, text)
                return
            if isinstance(item, str):
                self._print(2, item)
            else:
                self._show(item)

    def _show(self, message: bytes) -> None:
        name, pid, node, stream, lines = unpack(message)
        if stream == BARS:
            for line in lines:
                try:
                    state = BarState.parse(line)
                except (ValueError, TypeError):  # somebody prints what looks like a bar
                    continue
                DISPLAY.take(self._lines.prefix(name, pid, node).rstrip(), state)
            return
        now_s = time.monotonic()
        for due_stream, text in self._lines.due(now_s):
            self._print(due_stream, text)
        texts = [self._lines.take(name, pid, node, stream, line.decode(errors="replace"), now_s) for line in lines]
        self._print(stream, "".join(filter(None, texts)))

    def _print(self, stream: int, text: str) -> None:
        if not text:
            return
        target = sys.stdout if stream == 1 else sys.stderr
        try:
            if target is not None:
                with DISPLAY.hidden():
                    target.write(text)
                    target.flush()
        except (OSError, ValueError):  # the terminal or the pipe is gone, or the stream was closed: nobody reads
            pass
