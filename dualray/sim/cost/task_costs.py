"""Costs of tasks, from their options and their scenario: time, memory of their node, memory of its GPUs.

A task's own `duration=` comes first; then what tasks of its name took in a profile, what the scenario's table says, and
the cost model's default. Each draw has a stream of its own: which task draws first changes nothing.

The default is a mean. Real tasks of which nobody says how long they take do not all take the same time, and programs
that hold only when they do break on real machines. So each attempt takes a share of the mean that its seed says: a
lognormal distribution with a coefficient of variation of 0.3, as 256 whole numbers. That is for each task that a
simulation runs, so no generator is made for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from math import exp, inf, log, sqrt
from numbers import Real
from random import Random
from statistics import NormalDist
from typing import Final

from dualray.shared.core.execution import Execution
from dualray.shared.model.ids import TaskID
from dualray.shared.scenario.distributions import Distribution, parse_distribution
from dualray.shared.seeding import stream_seed, task_seed
from dualray.sim.cost.measured import MEASURED

VARIATION: Final = 0.3
"""The coefficient of variation of what a task takes of which nothing says anything: standard deviation by mean."""
SHARES: Final = 256
_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


@cache
def shares_permille() -> tuple[int, ...]:
    """By which thousandths of the mean a duration is drawn, each as often as the others."""
    sigma = sqrt(log(1 + VARIATION**2))
    normal = NormalDist()
    shares = [exp(sigma * normal.inv_cdf((number + 0.5) / SHARES)) for number in range(SHARES)]
    mean = sum(shares) / SHARES
    return tuple([round(1000 * share / mean) for share in shares])


class TaskCosts:
    """See the module.

    default_ns: what a task takes of which nothing says anything, on average.
    varies: whether that varies.
    durations, memory, gpu_memory: the scenario's tables, by patterns of names; bytes, the latter of each GPU.
    """

    _last_s = 0.0
    """What `whole_ns` was asked for last."""
    _last_ns = 0

    def __init__(
        self,
        *,
        seed: int,
        default_ns: int,
        durations: Mapping[str, Distribution] | None = None,
        memory: Mapping[str, int] | None = None,
        gpu_memory: Mapping[str, int] | None = None,
        varies: bool = False,
    ) -> None:
        self._seed = seed
        self._shares = shares_permille() if varies else ()
        self._mixed_seed = stream_seed(task_seed(seed, TaskID(b"")), b"durations") & _MASK
        self.default_ns = default_ns
        self._durations = dict(durations or {})
        self._distributions: dict[str, Distribution] = {}
        """That functions have said as text."""
        self._memory = dict(memory or {})
        self._gpu_memory = dict(gpu_memory or {})
        self.take_memory = bool(memory or gpu_memory)
        """Whether tasks may take any: of their nodes, or of GPUs."""
        self.profile: Mapping[str, Sequence[int]] = {}
        """What tasks took in a recorded run, in ns, by name."""
        self.rows_used: dict[tuple[str, str], None] = {}
        """Of the tables and the profile, what has said something of a task."""

        self.assumed: dict[str, None] = {}
        """Names of tasks that nothing says anything of."""

    def unsaid_ns(self, task: Execution) -> int:
        """What a task without a duration of its own takes."""
        if self.profile:
            took_ns = self.profile.get(task.name)
            if took_ns is not None:
                self.rows_used["profile", task.name] = None
                return took_ns[int(self._stream_of(task).random() * len(took_ns))]
        for pattern, distribution in self._durations.items():
            if fnmatchcase(task.name, pattern):
                self.rows_used["durations", pattern] = None
                return self._draw_ns(distribution, task)
        self.assumed[task.name] = None
        if not self._shares:
            return self.default_ns
        mixed = int.from_bytes(task.task_id[:8], "big") ^ self._mixed_seed
        mixed = (mixed + task.attempt) * _MIX & _MASK
        mixed = (mixed >> 29 ^ mixed) * _MIX & _MASK
        return self.default_ns * self._shares[mixed >> 56] // 1000

    def said_ns(self, said: object, task: Execution) -> int:
        """What a task's `duration=` says, or the function that it is: seconds, or a distribution as text.

        Raises:
            TypeError, ValueError: it is neither; the message names the task.
        """
        what = f"{task.name}: duration"
        if isinstance(said, str):
            if said == MEASURED:
                raise ValueError(
                    f"{what}: a duration function cannot return '{MEASURED}'; set duration='{MEASURED}' for the task "
                    "or the method"
                )
            distribution = self._distributions.get(said)
            if distribution is None:
                distribution = self._distributions[said] = parse_distribution(said, what)
            return self._draw_ns(distribution, task)
        if isinstance(said, bool) or not isinstance(said, Real):
            raise TypeError(
                f"{what} returned {said!r}, but must return a number of seconds, or a distribution such as "
                "'exponential(2s)'"
            )
        seconds = float(said)
        if not 0 <= seconds < inf:
            raise ValueError(f"{what} returned {said!r}, but must return a number of seconds, at least 0")
        return round(seconds * 1e9)

    def whole_ns(self, seconds: float) -> int:
        """Of a function that says how long it takes: most tasks run the same one as the task before."""
        if seconds != self._last_s:
            self._last_s, self._last_ns = seconds, round(seconds * 1e9)
        return self._last_ns

    def memory_bytes(self, task: Execution) -> int:
        """What a task takes of its node's memory while it runs: the scenario's table, else nothing."""
        return self._bytes_of("memory", self._memory, task)

    def gpu_bytes(self, task: Execution) -> int:
        """What a task takes of the memory of each GPU that it was given: the scenario's table, else nothing."""
        return self._bytes_of("gpu_memory", self._gpu_memory, task)

    def _bytes_of(self, table: str, rows: Mapping[str, int], task: Execution) -> int:
        for pattern, size_bytes in rows.items():
            if fnmatchcase(task.name, pattern):
                self.rows_used[table, pattern] = None
                return size_bytes
        return 0

    def _draw_ns(self, distribution: Distribution, task: Execution) -> int:
        if distribution.name == "constant":
            return distribution.first_ns
        return distribution.sample_ns(self._stream_of(task).random)

    def _stream_of(self, task: Execution) -> Random:
        return Random(task_seed(self._seed, task.task_id, task.attempt) + b":duration")
