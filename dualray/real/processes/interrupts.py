"""Ctrl-C, held back while the main thread is in the middle of a step.

A signal's handler runs between any two bytecodes of the main thread. If that thread changes a machine or the loop just
then, a KeyboardInterrupt would leave them half changed: a lost wake-up, a seat that nobody gives back. So the handler
that was there before, Python's or the user's, is called at once where user code runs or waits, and else as soon as the
step has ended: by the thread that waits, when it has left the loop, or by the same signal sent again. What a finalizer
raises is lost, so it is held back there, too.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from _thread import start_new_thread  # threading's own threads take locks that the interrupted code may hold
from collections.abc import Callable
from types import FrameType
from typing import Final

from dualray.fork_signals import reset_in_forks
from dualray.shared.core.interruption import IMPORT_PATIENCE_S, is_importing

_AGAIN_S: Final = 0.001
_AGAIN_MAX_S: Final = 0.1
"""Between signals that are not answered."""
_FINALIZERS: Final = frozenset({"__del__", "_released", "_on_view_released"})
"""Names of functions that the garbage collector calls: anybody's `__del__`, and the end of a view of the store."""


class Interrupts:
    """See the module.

    Args:
        is_busy: whether the calling thread is in the middle of a step.
        leave: called when a waiting thread is to leave the loop soon; from a handler, so it must take no lock.
    """

    _number: int = signal.SIGINT

    def __init__(self, is_busy: Callable[[], bool], leave: Callable[[], None]) -> None:
        self._is_busy = is_busy
        self._leave = leave
        self._previous: Callable[[int, FrameType | None], object] | None = None
        self._is_held = False
        self._is_sent_again = False
        self._waits_until_s: float | None = None
        """While it waits for an import."""

    def install(self) -> None:
        """Stand before the present handler. Nothing happens outside the main thread, or where SIGINT does nothing."""
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(self._number)
            if callable(previous):
                self._previous = previous
                signal.signal(self._number, self._on_signal)

    def restore(self) -> None:
        """Put the earlier handler back, unless the program has set another one. Idempotent."""
        if self._previous is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(self._number) == self._on_signal:
                signal.signal(self._number, self._previous)
            self._previous = None

    def deliver(self) -> None:
        """Call the handler that was held back, if one was: of a thread that has left the loop."""
        is_main = threading.get_ident() == threading.main_thread().ident
        # No variable for the frame: what is raised from here would be held by it, and it by itself.
        if self._is_held and is_main and not self._must_wait(sys._getframe()):
            self._call(sys._getframe())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_sent_again:
            self._is_sent_again = False
            if not self._is_held:  # it was delivered meanwhile
                return
        if not self._is_busy() and not self._must_wait(frame):
            self._call(frame)
            return
        self._is_held = True
        self._leave()
        self._send_later()

    def _must_wait(self, frame: FrameType | None) -> bool:
        """Whether it would do harm there."""
        return _is_finalizing(frame)

    def _must_wait_for_import(self, frame: FrameType | None) -> bool:
        """Whether a module is being imported there, for a while."""
        if not is_importing(frame):
            return False
        if self._waits_until_s is None:
            self._waits_until_s = time.monotonic() + IMPORT_PATIENCE_S
        return time.monotonic() < self._waits_until_s

    def _call(self, frame: FrameType | None) -> None:
        self._is_held = False
        if self._previous is not None:
            self._previous(self._number, frame)

    def _send_later(self) -> None:
        start_new_thread(self._send_again, ())

    def _send_again(self) -> None:
        time.sleep(_AGAIN_S)
        main = threading.main_thread().ident
        if self._is_held and self._previous is not None and main is not None:
            self._is_sent_again = True
            signal.pthread_kill(main, self._number)

    def send(self) -> None:
        """Have the main thread interrupted."""
        main = threading.main_thread().ident
        if self._previous is not None and main is not None:
            signal.pthread_kill(main, self._number)


class Terminations(Interrupts):
    """SIGTERM in a worker: raised on the main thread, and held back as Ctrl-C is. In a process that the worker's code
    forks, it does what it does by default. During an import it is held back, too: Python's compiler goes on after an
    exception other than KeyboardInterrupt that comes while it folds constants, and so loses it.

    Args:
        raise_: called in the main thread.
    """

    _number = signal.SIGTERM

    def __init__(
        self, is_busy: Callable[[], bool], leave: Callable[[], None], raise_: Callable[[int, FrameType | None], object]
    ) -> None:
        super().__init__(is_busy, leave)
        self._previous = raise_

    def install(self) -> None:
        signal.signal(self._number, self._on_signal)
        reset_in_forks(self._number, self._on_signal)

    def _must_wait(self, frame: FrameType | None) -> bool:
        return super()._must_wait(frame) or self._must_wait_for_import(frame)


class TaskInterrupts(Interrupts):
    """The KeyboardInterrupt of a task that is cancelled: raised in its own code, on a worker's main thread, and never
    in dualray's before or behind it, nor, for a while, in the middle of an import, which the tasks after it need. The
    signal is one that does nothing where nobody handles it, and it is sent until it is answered: one that comes when
    Python has looked for signals, and just before it calls the system, does not interrupt that call. On one core that
    is where most come, for who sends them waits for the interpreter, which is free from then on.

    Args:
        is_in_user_code: whether the task's own code is under way, or waits.
        takes: whether the task in hand is to be interrupted; true once for each time.
        is_due: the same, and asking changes nothing.
    """

    _number = signal.SIGURG

    def __init__(
        self,
        is_busy: Callable[[], bool],
        leave: Callable[[], None],
        *,
        is_in_user_code: Callable[[], bool],
        is_due: Callable[[], bool],
        takes: Callable[[], bool],
    ) -> None:
        super().__init__(lambda: not is_in_user_code() or is_busy(), leave)
        self._is_in_user_code = is_in_user_code
        self._is_due = is_due
        self._takes = takes
        self._is_sending = False
        """Whether there is a thread that sends the signal again."""
        self._is_answered = False
        """Whether the handler has run since that thread last sent it."""

    def install(self) -> None:
        self._previous = self._raise_in_task
        signal.signal(self._number, self._on_signal)

    def deliver(self) -> None:
        if self._is_in_user_code():
            super().deliver()

    def send(self) -> None:
        self._is_held = True  # until the handler has run
        super().send()
        self._send_later()

    def _send_later(self) -> None:
        if not self._is_sending:
            self._is_sending = True
            super()._send_later()

    def _send_again(self) -> None:
        pause_s = _AGAIN_S
        while True:
            time.sleep(pause_s)
            self._is_sending = False  # before one looks: whoever holds it back after that starts another thread
            if not self._is_held:
                return
            self._is_sending = True
            pause_s = _AGAIN_S if self._is_answered else min(2 * pause_s, _AGAIN_MAX_S)
            self._is_answered = False
            super().send()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_answered = True
        if self._is_due():
            super()._on_signal(number, frame)
        else:
            self._is_held = False
            self._waits_until_s = None

    def _must_wait(self, frame: FrameType | None) -> bool:
        return super()._must_wait(frame) or self._must_wait_for_import(frame)

    def _raise_in_task(self, number: int, frame: FrameType | None) -> None:
        self._waits_until_s = None
        if self._takes():
            raise KeyboardInterrupt


def _is_finalizing(frame: FrameType | None) -> bool:
    """Whether a finalizer runs: what it raises is printed and forgotten."""
    while frame is not None:
        if frame.f_code.co_name in _FINALIZERS:
            return True
        frame = frame.f_back
    return False
