"""A lock under which no finalizer of user code runs.

Python's collector runs where objects are made, on the thread that makes them: also in the middle of a step of the core.
A finalizer of user code (`__del__`) that it runs there may call a verb, which would begin a second step within the
first. So the collector rests while a thread holds this lock, and makes up for it when the lock is given back.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

_is_on, _rest, _go_on = gc.isenabled, gc.disable, gc.enable


class QuietLock:
    """A reentrant lock. A program that has disabled the collector itself finds it disabled afterwards, too."""

    __slots__ = ("_acquire", "_depth", "_is_owned", "_release", "_rests")

    def __init__(self) -> None:
        lock = threading.RLock()
        self._acquire, self._release = lock.acquire, lock.release
        self._is_owned = lock._is_owned  # type: ignore[attr-defined]  # what threading.Condition asks, too
        self._depth = 0
        self._rests = False

    def __enter__(self) -> None:
        self._acquire()
        self._depth += 1
        if self._depth == 1:
            self._rests = not _background and _is_on()
            if self._rests:
                _rest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._rests:
            _go_on()
        self._release()

    def is_held(self) -> bool:
        """Whether the calling thread holds it."""
        return bool(self._is_owned())


_background: list[None] = []
"""Whether a thread is within `quiet_beside`. The collector rests then, and a step need not see to it. If the other
thread leaves before a step of this one is over, the collector may run in the rest of that step."""


@contextmanager
def quiet_beside() -> Iterator[None]:
    """Have the collector rest while a thread of dualray's own works beside the program.

    The program may look at `gc.isenabled()` meanwhile, and set it. So the collector rests by its first threshold here,
    which takes eight times as long.
    """
    threshold = gc.get_threshold()[0]
    if threshold == 0 or _background:
        yield
        return
    gc.set_threshold(0)
    _background.append(None)
    try:
        yield
    finally:
        _background.clear()
        gc.set_threshold(threshold)
