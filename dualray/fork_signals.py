"""A handler of a signal that child processes made by a fork do not inherit.

Python forgets a signal that reaches such a child before its first bytecode, and ignores what a handler raises while
Python's own functions for forks run. So the signal is blocked until the child has the default action.
"""

from __future__ import annotations

import os
import signal as module
from _thread import get_ident  # a simulation replaces the one of threading
from collections.abc import Callable
from signal import SIG_BLOCK, SIG_DFL, SIG_SETMASK, Signals, getsignal, pthread_sigmask, signal
from types import FrameType

__all__ = ["reset_in_forks"]


def reset_in_forks(number: Signals, handler: Callable[[int, FrameType | None], object]) -> None:
    """From now on, a child that this process forks starts with the default action of the signal, if the signal has
    this handler at the fork.
    """
    masks: dict[int, set[int]] = {}
    """For each thread that forks, the signals that it had blocked before."""

    def block() -> None:
        masks[get_ident()] = pthread_sigmask(SIG_BLOCK, (number,))

    def unblock() -> None:
        pthread_sigmask(SIG_SETMASK, masks.pop(get_ident()))

    def reset() -> None:
        # Real mode may stand before the handler (user_signals.py), and speaks of the handler alone.
        if handler in (getsignal(number), module.getsignal(number)):
            signal(number, SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)
