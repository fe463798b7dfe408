"""The log file of one of the runtime's own processes: of bounded size, and no line again and again.

Strangers make lines, too, by connecting to a gateway. Of lines that differ in numbers alone LINES_MAX are written
within WINDOW_S; the others are counted, and one line says how many there were, when the window has ended and something
is logged, or at the end.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

FILE_BYTES_MAX: Final = 16 << 20
"""The file before it is kept as .old."""
LINES_MAX: Final = 200
WINDOW_S: Final = 10.0
_KINDS_MAX: Final = 1_000

_NUMBERS = re.compile(r"\d+")


@dataclass(slots=True)
class _Kind:
    until_s: float
    count: int = 0
    last: str = ""


class BoundedLog(RotatingFileHandler):
    """See the module.

    Args:
        path: of the file; appended to when it is there.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=FILE_BYTES_MAX, backupCount=1, errors="backslashreplace")
        self.namer = lambda name: f"{name.removesuffix('.1')}.old"
        self._kinds: dict[str, _Kind] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        text = record.getMessage()
        self._tell_of(record.created)
        key = _NUMBERS.sub("#", text)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) < _KINDS_MAX:
                self._kinds[key] = _Kind(record.created + WINDOW_S, 1)
        else:
            kind.count += 1
            kind.last = text
            if kind.count > LINES_MAX:
                return
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as the base class calls it
        """A full disk costs lines and nothing else: standard error is the program's."""

    def _tell_of(self, now_s: float | None) -> None:
        """Say how many lines were left out in windows that have ended; None: in all of them."""
        ended = [key for key, kind in self._kinds.items() if now_s is None or now_s >= kind.until_s]
        for key in ended:
            kind = self._kinds.pop(key)
            if kind.count > LINES_MAX:
                words = f"and {kind.count - LINES_MAX:,} more like this within {WINDOW_S:g} s: {kind.last}"
                super().emit(logging.LogRecord("dualray", logging.WARNING, "", 0, words, None, None))

    def close(self) -> None:
        """Say what was left out, and close the file."""
        self.acquire()
        try:
            self._tell_of(None)
        finally:
            self.release()
        super().close()


def log_to(path: Path) -> None:
    """Have all loggers of this process write there from INFO on."""
    handler = BoundedLog(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
