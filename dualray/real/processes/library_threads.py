"""How many threads the numeric libraries of a task may start: as many as it holds CPUs, as in Ray.

Workers start with one thread for each library (ONE_THREAD). A task that holds two CPUs or more has OMP_NUM_THREADS say
so, which libraries read when they are imported or start threads. What the program or its runtime environment says of
that variable stays.
"""

from __future__ import annotations

import os
from typing import Final

from dualray.real.session.children import OUR_THREADS
from dualray.shared.model.resources import CPU, UNITS, in_plain_names
from dualray.shared.model.specs import FunctionTemplate

VARIABLE: Final = "OMP_NUM_THREADS"


class LibraryThreads:
    """Of one worker, which calls `take` before each call of user code."""

    __slots__ = ("_is_ours", "_last")

    def __init__(self) -> None:
        self._is_ours = os.environ.get(OUR_THREADS) == "1"
        self._last: FunctionTemplate | None = None

    def take(self, template: FunctionTemplate | None) -> None:
        """A call of this template begins; None: of nobody who holds anything."""
        if template is self._last:
            return
        self._last = template
        if not self._is_ours or template is None or VARIABLE in template.runtime_env:
            return
        cpus = in_plain_names(template.resources).get(CPU) // UNITS
        os.environ[VARIABLE] = str(max(cpus, 1))
