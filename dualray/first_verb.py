"""A verb that comes before `init` starts a cluster with the defaults, as in Ray."""

from __future__ import annotations

import sys
from importlib import import_module
from threading import RLock
from types import FrameType
from typing import Final

from dualray import runtime
from dualray.exceptions import NotInitializedError
from dualray.runtime import ambient

_starts: Final = RLock()
"""Held by the thread whose verb starts a cluster."""


def started(verb: str) -> runtime.Runtime:
    """The current runtime; where there is none, the verb starts a cluster with the defaults of `dualray.init()`.

    Raises:
        NotInitializedError: a finalizer calls the verb, the interpreter ends, this process was forked from one that
            uses a cluster, or the setting `auto_init` forbids it.
    """
    return ambient.runtime or _start(verb)


def _start(verb: str) -> runtime.Runtime:
    if sys.is_finalizing() or _is_in_finalizer():
        raise NotInitializedError(
            f"a finalizer called {verb} while no cluster runs, and a finalizer cannot start a cluster."
        )
    runtime.check_no_fork(verb)
    with _starts:
        if runtime.current_or_none() is None:  # no other thread has started one meanwhile
            import_module("dualray.api").init_for(verb)
    return runtime.current(verb)


def _is_in_finalizer() -> bool:
    """Whether a `__del__` is among the callers: it may run at any time, in any thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
