"""Seeds of steps that draw random numbers.

A step without a seed draws other numbers each time that it is executed: each epoch has its own order, as in Ray. The
numbers follow from the context's `shuffle_seed` and from how many such steps were executed before, so that a second run
of the program gives the same rows, in real mode and in a simulation.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

from dualray import runtime
from dualray.data.context import DataContext

RENEWED: Final = 0x72656E77
"""Stands between a seed and the number of the execution, so that other seeds of as few numbers differ."""

_executions: WeakKeyDictionary[Any, count[int]] = WeakKeyDictionary()
"""Of steps without a seed, by the cluster that they ran on."""


class Seeds:
    """The seeds of one step, one for each time that it is executed.

    Args:
        seed: a number: each time the same. None: see the module. A RandomSeedConfig: as its attributes say.
    """

    def __init__(self, seed: Any) -> None:
        self._seed = getattr(seed, "seed", seed)
        self._renews = getattr(seed, "reseed_after_execution", False)
        self._default = DataContext.get_current().shuffle_seed
        self._times = count()

    def next(self) -> list[int]:
        """The seed of an execution that begins. The runtime must have been started."""
        if self._seed is None:
            return [int(self._default), next_execution()]
        return [int(self._seed), *self._renewal()]

    def _renewal(self) -> list[int]:
        """Numbers to append to the seed, if each execution draws other numbers; none for the first execution."""
        before = next(self._times) if self._renews else 0
        return [RENEWED, before] if before else []


def next_execution() -> int:
    """How many steps without a seed were executed before on this cluster."""
    current = runtime.current_or_none()
    if current is None:
        return 0
    return next(_executions.setdefault(current, count()))
