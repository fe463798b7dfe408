"""The program's own handlers of signals, held back while the main thread is in the middle of a step.

A handler may raise: that is how programs limit the time of a call (`signal.setitimer`, pytest-timeout). Between any two
bytecodes of a step it would leave a machine or the loop half changed, so that waits never end. Each handler that the
program has set, before `init` or later, is therefore called as Ctrl-C's is (interrupts.py): at once where user code
runs or waits, and else when the step has ended. `signal.signal` and `signal.getsignal` of this process go on to speak
of the program's handlers alone.

An exception that another thread raises in this one (`PyThreadState_SetAsyncExc`) comes without a handler, and cannot be
held back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from dualray.real.processes.interrupts import Interrupts

_real_signal: Final = signal.signal
_real_getsignal: Final = signal.getsignal


class _Held(Interrupts):
    """One handler of the program's."""

    def __init__(
        self,
        number: int,
        handler: Callable[[int, FrameType | None], object],
        is_busy: Callable[[], bool],
        leave: Callable[[], None],
    ) -> None:
        super().__init__(is_busy, leave)
        self._number = number  # of a real-time signal there is no name
        self._previous = self.handler = handler

    def install(self) -> None:
        _real_signal(self._number, self._on_signal)

    def stands(self) -> bool:
        """Whether this handler is still the one that Python calls."""
        return _real_getsignal(self._number) == self._on_signal


class UserSignals:
    """See the module.

    Args:
        is_busy, leave: as of Interrupts.
        is_driver: whether the handlers that are set at the start are the program's. Those of a worker are dualray's.
    """

    def __init__(self, is_busy: Callable[[], bool], leave: Callable[[], None], *, is_driver: bool) -> None:
        self._is_busy, self._leave, self._is_driver = is_busy, leave, is_driver
        self._own = () if is_driver else (signal.SIGINT, signal.SIGTERM, signal.SIGURG)
        self._held: dict[int, _Held] = {}
        self._is_installed = False

    def install(self) -> None:
        """Stand before all handlers of the program. Nothing happens outside the main thread."""
        if threading.current_thread() is not threading.main_thread() or signal.signal is not _real_signal:
            return
        self._is_installed = True
        for number in signal.valid_signals() if self._is_driver else ():
            handler = _real_getsignal(number)
            if callable(handler) and number != signal.SIGINT:  # that one is held already
                self._hold(number, handler)
        signal.signal, signal.getsignal = self._set, self._get

    def restore(self) -> None:
        """Put the program's handlers back. Idempotent."""
        if not self._is_installed or threading.current_thread() is not threading.main_thread():
            return
        self._is_installed = False
        signal.signal, signal.getsignal = _real_signal, _real_getsignal
        for number, held in self._held.items():
            if held.stands():
                _real_signal(number, held.handler)
        self._held.clear()

    def _hold(self, number: int, handler: Callable[[int, FrameType | None], object]) -> None:
        held = self._held[number] = _Held(number, handler, self._is_busy, self._leave)
        held.install()

    def _set(self, signalnum: int, handler: Any) -> Any:
        """`signal.signal` for the program."""
        if signalnum in self._own or not callable(handler):
            before = self._get(signalnum)
            _real_signal(signalnum, handler)
            self._held.pop(signalnum, None)
            return before
        before = self._get(signalnum)
        _real_signal(signalnum, handler)  # it refuses what it cannot take, and other threads
        self._hold(signalnum, handler)
        return before

    def _get(self, signalnum: int) -> Any:
        """`signal.getsignal` for the program."""
        held = self._held.get(signalnum)
        return held.handler if held is not None and held.stands() else _real_getsignal(signalnum)
