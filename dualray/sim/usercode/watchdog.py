"""Says where a simulation stands still in real time.

User code that neither waits nor ends holds up everybody: it computes for long, it waits for something real (a socket, a
lock of C code), or its loop never ends. An OS thread looks from time to time whether anything has happened since, and
prints the stack of who runs, once. It changes nothing.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final

__all__ = ["STILL_S", "THREAD", "Watchdog"]

STILL_S: Final = 30.0
"""Seconds of real time without an event, after which the stack is printed."""
THREAD: Final = "dualray-watchdog"
LOOKS: Final = 6
"""How often it looks within them."""
_OF_DEBUGGERS: Final = frozenset({"IPython", "bdb", "cmd", "code", "debugpy", "ipdb", "pdb", "pydevd"})


class Watchdog:
    """See the module.

    progress: grows with each event.
    who: whose user code runs, and when in virtual time, in words; None: nobody's that is looked at.
    """

    def __init__(self, progress: Callable[[], int], who: Callable[[], str | None], *, still_s: float = STILL_S) -> None:
        self._progress = progress
        self._who = who
        self._still_s = still_s
        self._watched = threading.get_ident()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=THREAD, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The simulation is over."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        looks, last, said = 0, -1, -1
        while not self._is_over.wait(self._still_s / LOOKS):
            now = self._progress()
            looks, last = (looks + 1, last) if now == last else (0, now)
            who = self._who() if looks >= LOOKS and now != said else None
            if who is not None and self._says(who):
                said = now

    def _says(self, who: str) -> bool:
        """Say where it stands, unless a debugger holds it. A frame that is looked at keeps all that it refers to for as
        long as somebody has it: so none is fetched but here, and none is kept."""
        frame = sys._current_frames().get(self._watched)
        if frame is None or _is_debugged(frame):
            return False
        self._say(who, frame)
        return True

    def _say(self, who: str, frame: FrameType) -> None:
        stack = "".join(traceback.format_stack(frame))
        sys.stderr.write(
            f"dualray: {who} has run for {self._still_s:.0f} s without waiting, so virtual time does not advance. If "
            "the code computes, give it a duration= and less work. If the code waits for something outside the "
            f"simulation, it waits forever:\n{stack}"
        )


def _is_debugged(frame: FrameType | None) -> bool:
    while frame is not None:
        name: object = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.partition(".")[0] in _OF_DEBUGGERS:
            return True
        frame = frame.f_back
    return False
