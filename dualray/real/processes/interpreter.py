"""Settings of the interpreter in a process that runs user code; they are restored at the end.

- Garbage collection looks for cycles after more new objects than Python does by default: a program that holds a hundred
  thousand references would else spend a tenth of its time on looking through them again and again.
- A thread that computes gives the interpreter to others more often: an answer that has arrived waits so much less for
  user code's busy threads (1,000 instead of 80 calls a second beside one of them).

Settings that the user has changed are left alone.
"""

from __future__ import annotations

import gc
import sys

_DEFAULT_THRESHOLDS = (700, 10, 10)
_THRESHOLDS = (20_000, 20, 20)
_DEFAULT_SWITCH_S = 0.005
_SWITCH_S = 0.0002


class InterpreterSettings:
    """See the module."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._switch_s = sys.getswitchinterval()
        if self._thresholds == _DEFAULT_THRESHOLDS:
            gc.set_threshold(*_THRESHOLDS)
        if self._switch_s == _DEFAULT_SWITCH_S:
            sys.setswitchinterval(_SWITCH_S)

    def restore(self) -> None:
        """Put back what was there, unless somebody has changed it meanwhile."""
        if gc.get_threshold() == _THRESHOLDS:
            gc.set_threshold(*self._thresholds)
        if abs(sys.getswitchinterval() - _SWITCH_S) < 1e-9:
            sys.setswitchinterval(self._switch_s)
