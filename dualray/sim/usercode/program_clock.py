"""The clocks that a program reads before its simulation begins, and after its end.

`dualray run --mode sim` runs a program in virtual time. A program that reads the clock first and calls `init` later
would see it jump by years. So the clocks stand at the simulation's beginning until then, and at its end thereafter.
They stand for the user's modules only: libraries read the real ones, and sleeps are real. A program that reads them
over and over is waiting for them: then they go on with the real time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dualray import runtime
from dualray.sim.usercode.substitutions import is_users
from dualray.sim.usercode.switching import frame_at
from dualray.sim.usercode.virtual_time import EPOCH_NS

__all__ = ["PROGRAM_CLOCK", "ProgramClock"]

READS_MAX: Final = 1_000
"""As often a program may read the clocks while they stand."""
_CLOCKS: Final = {"time": EPOCH_NS, "monotonic": 0, "perf_counter": 0}


class ProgramClock:
    """See the module."""

    def __init__(self) -> None:
        self._at_ns = 0
        self._reads = 0
        self._moved_ns = 0
        self._real_ns: Callable[[], int] = time.monotonic_ns

    def move_to(self, virtual_ns: int) -> None:
        """A simulation has ended, so many nanoseconds after it began."""
        self._at_ns, self._reads = virtual_ns, 0

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Within this the clocks stand while no runtime is there."""
        self.move_to(0)
        clocks = [
            _Clock(self, name + ending, offset_ns, unit)
            for name, offset_ns in _CLOCKS.items()
            for ending, unit in (("", 1_000_000_000), ("_ns", 1))
        ]
        for clock in clocks:
            setattr(time, clock.__name__, clock)  # no module of the program is loaded yet
        try:
            yield
        finally:
            for clock in clocks:
                setattr(time, clock.__name__, clock.original)

    def read_ns(self) -> int:
        """Nanoseconds since the beginning of the simulation."""
        self._reads += 1
        if self._reads == READS_MAX:
            self._moved_ns = self._real_ns()
        return self._at_ns if self._reads < READS_MAX else self._at_ns + self._real_ns() - self._moved_ns


class _Clock:
    """Stands for a clock of the module `time`, and is pickled by its name."""

    def __init__(self, program: ProgramClock, name: str, offset_ns: int, unit: int) -> None:
        self.original: Callable[[], Any] = getattr(time, name)
        self.__module__, self.__name__, self.__qualname__, self.__doc__ = "time", name, name, self.original.__doc__
        self._program = program
        self._offset_ns = offset_ns
        self._unit = unit

    def __call__(self) -> Any:
        caller = None if runtime.current_or_none() is not None else frame_at(1)
        if caller is None or not is_users(caller.f_globals):  # None also beneath compiled code, which is ours
            return self.original()
        read_ns = self._offset_ns + self._program.read_ns()
        return read_ns if self._unit == 1 else read_ns / self._unit

    def __reduce__(self) -> str:
        return self.__qualname__


PROGRAM_CLOCK: Final = ProgramClock()
"""That of this process."""
