"""A line on stderr that says how far a command is; only a terminal gets one."""

from __future__ import annotations

import sys
import time
from typing import Final, Self

from dualray.text_tables import terminal_width

__all__ = ["Progress"]

_BAR: Final = 24
_REDRAW_S: Final = 0.1
_CLEARED: Final = "\r\x1b[2K"


class Progress:
    """`with Progress("replays", 40) as progress:` and then `progress.update(completed=1)`.

    The line is redrawn ten times a second at most, and goes when the block ends.
    """

    def __init__(self, description: str, total: float, *, note: str = "") -> None:
        self.description, self.total, self.note = description, total, note
        self.completed: float = 0
        self._began_s = time.monotonic()
        self._drawn_s = 0.0
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> Self:
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_CLEARED)

    def update(
        self,
        *,
        completed: float | None = None,
        total: float | None = None,
        description: str | None = None,
        note: str | None = None,
    ) -> None:
        """Change what the line says; what is None stays."""
        self.completed = self.completed if completed is None else completed
        self.total = self.total if total is None else total
        self.description = self.description if description is None else description
        self.note = self.note if note is None else note
        if time.monotonic() - self._drawn_s >= _REDRAW_S:
            self._draw()

    def say(self, words: str) -> None:
        """Print a line on stderr that stays, above this one."""
        self._write(_CLEARED)
        print(words, file=sys.stderr)
        self._draw()

    def words(self) -> str:
        """The line."""
        share = min(1.0, self.completed / self.total) if self.total else 1.0
        filled = round(_BAR * share)
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        counts = f"{self.completed:,.0f}/{self.total:,.0f}"
        parts = [self.description, f"[{'#' * filled}{'.' * (_BAR - filled)}]", counts, f"{minutes}:{seconds:02}"]
        return "  ".join([*parts, self.note] if self.note else parts)

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._write(f"{_CLEARED}{self.words()[: terminal_width() - 1]}")

    def _write(self, text: str) -> None:
        if self._is_shown:
            sys.stderr.write(text)
            sys.stderr.flush()
