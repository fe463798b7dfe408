"""`log_once`, which lets a process log a message only once: `if log_once("slow-disk"): logger.warning(...)`."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["disable_log_once_globally", "enable_periodic_logging", "log_once", "reset_log_once"]

_PERIOD_S: Final = 60.0


class _Said:
    """What this process has said. In a simulation, where many processes are one, it is all of theirs."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.is_silent = False
        self.is_periodic = False
        self.last_s = 0.0


_said: Final = _Said()


def log_once(key: str) -> bool:
    """Return True the first time that this process calls `log_once` with a key, and False afterwards.

    After `enable_periodic_logging`, `log_once` returns True again for a key if the process has used no new key for a
    minute.
    """
    if _said.is_silent:
        return False
    if key not in _said.keys:
        _said.keys.add(key)
        _said.last_s = time.monotonic()
        return True
    if _said.is_periodic and time.monotonic() - _said.last_s > _PERIOD_S:
        _said.keys.clear()
        _said.last_s = time.monotonic()
    return False


def disable_log_once_globally() -> None:
    """Make `log_once` always return False in this process."""
    _said.is_silent = True


def enable_periodic_logging() -> None:
    """Make `log_once` return True again from time to time."""
    _said.is_periodic = True


def reset_log_once(key: str | None = None) -> None:
    """Make `log_once` return True once more for a key, or for all keys if the key is None."""
    if key is None:
        _said.keys.clear()
    else:
        _said.keys.discard(key)
