"""One scenario in both modes: which it is, what each mode makes of it, and whether that is the same.

A number draws one of the small workloads and one to three faults, as `dualray explore` draws them: anchored at what the
run without faults has shown, or at a time within it. What cannot be compared is drawn anew: what real mode refuses, and
messages that never arrive, behind which both modes may wait for ever. The same outcome is the same result, or an error
of the same class.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dualray.real.faults import REFUSED
from dualray.shared.scenario.fault_model import NEVER_DRAWN, FaultKind
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.outcome import Outcome
from dualray.testing.real_faults import check_plan
from dualray.testing.run import run_scenario
from dualray.testing.swarm import draw_faults, ground_of

WORKLOADS: Final[tuple[dict[str, Any], ...]] = (
    {"generate": "tree_reduce", "kwargs": {"leaves": 16, "seconds": 0.15, "size": 300_000}},
    {"generate": "bag_of_tasks", "kwargs": {"tasks": 24, "seconds": 0.2, "size": 200_000, "strategy": "SPREAD"}},
    {"generate": "shuffle", "kwargs": {"maps": 8, "reduces": 8, "seconds": 0.15, "size": 40_000}},
    {"generate": "chain", "kwargs": {"length": 8, "seconds": 0.15, "size": 200_000}},
    {"generate": "nested", "kwargs": {"depth": 2, "fan_out": 3, "seconds": 0.1}},
    {"generate": "map_reduce", "kwargs": {"maps": 6, "reduces": 6, "seconds": 0.15}},
    {"generate": "retry_storm", "kwargs": {"tasks": 16, "seconds": 0.15}},
)
CONFIG: Final = {"heartbeat_timeout_ns": 10**9, "suspicion_ns": 2 * 10**9, "link_patience_ns": 10**9}
CLUSTER: Final = {"nodes": 3, "cpus": 2, "object_store": "64MiB"}
FAULTS_MAX: Final = 3
DRAWS_MAX: Final = 100
RUN_TIMEOUT_S: Final = 150.0
STARTS_MAX: Final = 2
"""A cluster may not come up for want of anything on this machine: that says nothing of the scenario."""
_SHOWN: Final = 60
KINDS: Final = sorted(set(FaultKind) - NEVER_DRAWN - set(REFUSED) - {FaultKind.LOSE_GPU, FaultKind.FILL_MEMORY})
"""Without what real mode refuses, and without what this cluster does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One scenario in both modes: its faults, and what each mode made of it, in words."""

    number: int
    workload: str
    faults: tuple[str, ...]
    simulated: str
    real: str

    @property
    def is_same(self) -> bool:
        return self.simulated == self.real

    def __str__(self) -> str:
        made = self.simulated if self.is_same else f"sim: {self.simulated}; real: {self.real}"
        return f"{self.number:4} {self.workload}, {'; '.join(self.faults)}: {made}"


def drawn(number: int) -> Scenario:
    """The scenario of a number, with its faults: a function of the number alone."""
    workload = WORKLOADS[number % len(WORKLOADS)]
    calm = Scenario.model_validate(
        {
            "name": f"both-{number}",
            "seed": number,
            "cluster": CLUSTER,
            "config": CONFIG,
            "workload": workload,
            "swarm": {"kinds": KINDS, "most": FAULTS_MAX, "lasting": "500ms"},
        }
    )
    ground = ground_of(run_scenario(calm))
    names = [name for name, _ in calm.cluster.each_node()]
    for draw in range(DRAWS_MAX):
        faults = draw_faults(calm, ground, number * DRAWS_MAX + draw)
        try:
            check_plan(faults, names)
        except ValueError:
            continue
        if faults and not any(fault.drop for fault in faults):
            return calm.with_faults(faults)
    raise ValueError(f"number {number}: none of {DRAWS_MAX} draws can be performed in both modes")


def outcome_words(outcome: Outcome) -> str:
    """What is compared: a result, or an error's class."""
    if outcome.violations:
        return f"violated: {'; '.join(outcome.violations[:2])}"
    if outcome.error:
        return outcome.error[0]
    text = json.dumps(outcome.result)
    return f"result {text}" if len(text) <= _SHOWN else f"result {text[:_SHOWN]}... ({zlib.crc32(text.encode()):08x})"


def compare(number: int) -> Compared:
    """Run the scenario of a number in both modes."""
    scenario = drawn(number)
    return Compared(
        number=number,
        workload=scenario.workload.generate or "",
        faults=tuple(str(fault) for fault in scenario.planned()),
        simulated=outcome_words(run_scenario(scenario)),
        real=outcome_words(run_scenario(scenario, mode="real")),
    )


def compare_apart(number: int) -> Compared:
    """The same in a process of its own, which has a time limit."""
    command = [sys.executable, "-m", "tests.both_modes", "--one", str(number)]
    starts, error = 0, ""
    try:
        while starts < STARTS_MAX:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, cwd=Path.cwd())
            if not done.returncode:
                found = json.loads(done.stdout.splitlines()[-1])
                return Compared(**found | {"faults": tuple(found["faults"])})
            starts, error = starts + 1, done.stderr
    except subprocess.TimeoutExpired:
        scenario = drawn(number)
        return Compared(
            number=number,
            workload=scenario.workload.generate or "",
            faults=tuple(str(fault) for fault in scenario.planned()),
            simulated=outcome_words(run_scenario(scenario)),
            real=f"it did not end within {RUN_TIMEOUT_S:g} s",
        )
    raise RuntimeError(f"number {number}: {error[-2000:]}")


def compare_all(numbers: range, *, jobs: int) -> Iterator[Compared]:
    """Each of them, so many at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(compare_apart, numbers)


def as_line(found: Compared) -> str:
    """For the process that has asked."""
    return json.dumps(asdict(found))
