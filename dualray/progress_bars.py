"""Progress bars as the driver draws them, one under another; `dualray.util.progress` has the bars that programs make.

Theory of operation. A bar is a `BarState` that its maker sends again and again. In the driver's process, and in a
simulation, it comes straight to `DISPLAY`; in real mode a worker's comes as a line of its own among what it prints
(worker_output.py). On a terminal the bars are the last lines of stderr: before anything else is written they are taken
away, and drawn again behind it. Elsewhere a bar writes a line when it ends, and at most one in LINE_EVERY_S before.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TextIO

LINE_EVERY_S: Final = 5.0
"""Between two lines of one bar where there is no terminal, of the time that the program sees."""
_DRAWN_EVERY_S: Final = 0.1
_BARS_MAX: Final = 1000
"""Bars that are remembered; what more there are is not drawn."""
_CELLS_MIN, _CELLS_MAX = 10, 40


class BarState(NamedTuple):
    """One bar, at one moment.

    key: the same in all states of a bar.
    position: among the bars of its process: a higher one is drawn lower.
    done, total: in units; no total: it is not known.
    elapsed_s: since the bar was made, by the clock of its maker.
    is_closed: this is the last state.
    """

    key: str
    description: str
    unit: str
    position: int
    done: float
    total: float | None
    elapsed_s: float
    is_closed: bool

    def words(self) -> bytes:
        """In one line."""
        return json.dumps(self).encode()

    @classmethod
    def parse(cls, words: bytes) -> BarState:
        """Read what `words` has written.

        Raises:
            ValueError, TypeError: it has not.
        """
        key, description, unit, position, done, total, elapsed_s, is_closed = json.loads(words)
        return cls(
            str(key),
            str(description),
            str(unit),
            int(position),
            float(done),
            None if total is None else float(total),
            float(elapsed_s),
            bool(is_closed),
        )

    def text(self, who: str, columns: int, cell: str = "#") -> str:
        """The bar, as wide as `columns` at most."""
        head = " ".join(filter(None, (who, f"{self.description}:" if self.description else "")))
        head += " " if head else ""
        rate = self.done / self.elapsed_s if self.elapsed_s > 0 else 0.0
        speed = f"{_amount(rate)}{self.unit}/s" if rate >= 1 or rate == 0 else f"{1 / rate:.2f}s/{self.unit}"
        if self.total is None:
            return f"{head}{_amount(self.done)}{self.unit} [{_span(self.elapsed_s)}, {speed}]"[:columns]
        part = min(max(self.done / self.total, 0.0), 1.0) if self.total > 0 else 1.0
        left = _span((self.total - self.done) / rate) if rate else "?"
        head += f"{part:4.0%}|"
        tail = f"| {_amount(self.done)}/{_amount(self.total)} [{_span(self.elapsed_s)}<{left}, {speed}]"
        cells = min(max(columns - len(head) - len(tail), _CELLS_MIN), _CELLS_MAX)
        return f"{head}{cell * int(part * cells):<{cells}}{tail}"[:columns]


def _amount(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f}{unit}"
    return str(int(number)) if number == int(number) else f"{number:.2f}"


def _span(seconds: float) -> str:
    minutes, second = divmod(int(max(seconds, 0.0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


class _Bar:
    def __init__(self, who: str, state: BarState, now_s: float) -> None:
        self.who = who
        self.state = state
        self.told_s = now_s
        self.told: float | None = None
        """How far it was when it wrote its last line."""


class Display:
    """The bars of a driver; see the module. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bars: dict[str, _Bar] = {}
        self._makers: dict[str, int] = {}
        """In which order those who have bars came."""
        self._lines = 0
        """How many lines of bars stand on the terminal now."""
        self._drawn_s = 0.0
        self._print: Any = None
        """Python's `print`, while ours is in its place."""

    def take(self, who: str, state: BarState) -> None:
        """Draw a bar, or its new state; `who` names its process: "" for the driver itself."""
        now_s = time.monotonic()  # in a simulation others run meanwhile: not under the lock
        with self._lock:
            bar = self._bars.get(state.key)
            if bar is None:
                if len(self._bars) >= _BARS_MAX:
                    return
                bar = self._bars[state.key] = _Bar(who, state, now_s)
                self._makers.setdefault(who, len(self._makers))
            bar.state = state
            if state.is_closed:
                del self._bars[state.key]
                if _terminal() is not None or bar.told != state.done:
                    self._write_line(bar)
            elif _terminal() is None:
                if now_s - bar.told_s >= LINE_EVERY_S:
                    bar.told_s, bar.told = now_s, state.done
                    self._write_line(bar)
            elif not 0 <= now_s - self._drawn_s < _DRAWN_EVERY_S:
                self._drawn_s = now_s
                self._hide()
                self._draw()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the bars away while something else is written."""
        with self._lock:
            self._hide()
            try:
                yield
            finally:
                self._draw()

    def forget(self) -> None:
        """The cluster is gone: what bars there are stay as they stand."""
        with self._lock:
            if self._lines:
                _write(sys.stderr, "\n")
            self._lines = 0
            self._bars.clear()
            self._makers.clear()
            self._give_print_back()

    def _write_line(self, bar: _Bar) -> None:
        with self.hidden():
            _write(sys.stderr, bar.state.text(bar.who, _columns(), _cell()) + "\n")

    def _hide(self) -> None:
        if self._lines:
            up = f"\x1b[{self._lines - 1}A" if self._lines > 1 else ""
            _write(sys.stderr, f"\r{up}\x1b[J")
            self._lines = 0

    def _draw(self) -> None:
        terminal = _terminal()
        if terminal is None or not self._bars:
            self._give_print_back()
            return
        if self._print is None:
            self._print, builtins.print = builtins.print, safe_print
        bars = sorted(self._bars.values(), key=lambda bar: (self._makers[bar.who], bar.state.position))
        lines_max = max(2, shutil.get_terminal_size().lines - 1)
        lines = [bar.state.text(bar.who, _columns(), _cell()) for bar in bars[:lines_max]]
        if len(bars) > lines_max:
            lines[-1] = f"... and {len(bars) - lines_max + 1} more"
        _write(terminal, "\n".join(lines))
        self._lines = len(lines)

    def _give_print_back(self) -> None:
        if self._print is not None:
            if builtins.print is safe_print:
                builtins.print = self._print
            self._print = None

    @property
    def python_print(self) -> Any:
        """Python's own `print`."""
        return self._print or builtins.print


def _terminal() -> TextIO | None:
    stream = sys.stderr
    try:
        return stream if stream is not None and stream.isatty() else None
    except ValueError:  # it was closed
        return None


def _columns() -> int:
    return shutil.get_terminal_size().columns - 1


def _cell() -> str:
    encoding = getattr(sys.stderr, "encoding", None) or ""
    return "█" if encoding.lower().replace("-", "") == "utf8" else "#"


def _write(stream: TextIO | None, text: str) -> None:
    try:
        if stream is not None:
            stream.write(text)
            stream.flush()
    except (OSError, ValueError):  # the terminal or the pipe is gone, or the stream was closed: nobody reads
        pass


DISPLAY: Final = Display()
"""Of this process."""


def safe_print(*args: Any, **kwargs: Any) -> None:
    """Python's `print`, with the progress bars taken away meanwhile and drawn again below."""
    if kwargs.get("file") not in (None, sys.stdout, sys.stderr):
        DISPLAY.python_print(*args, **kwargs)
        return
    with DISPLAY.hidden():
        DISPLAY.python_print(*args, **{**kwargs, "flush": True})
