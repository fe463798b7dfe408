"""What the C compiler is shown of the core before it compiles it for good: `hatch_build.py` runs this with
DUALRAY_PROFILE=1, and needs nothing of it but that it ends well.

All generated workloads run, each under the faults of several seeds; then a large bag that is modelled, on nodes of one
kind and of several, and functions that are executed, on many nodes and on few. What does not occur here, such as real
mode, is compiled as it would be without.
"""

from __future__ import annotations

from pathlib import Path

import dualray
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.scenario.file import parse_scenario
from dualray.sim.modelled.programs import run_workload
from dualray.sim.processes.node import Hardware
from dualray.testing.run import run_scenario
from dualray.testing.swarm import draw_faults, ground_of
from dualray.testing.workloads import WORKLOADS

SEEDS = 12
SCENARIO = """
name: training
description: a generated workload on eleven nodes
cluster: {{nodes: 11}}
workload: {{generate: {name}}}
"""


def explored() -> None:
    """Each workload, as exploration runs it."""
    for name in WORKLOADS:
        scenario = parse_scenario(SCENARIO.format(name=name), "training")
        ground = ground_of(run_scenario(scenario))
        for seed in range(SEEDS):
            run_scenario(scenario.with_faults(draw_faults(scenario, ground, seed)), directory=Path())


def modelled(cpus: tuple[int, ...], **demand: float) -> None:
    """A bag of 100,000 tasks on a thousand nodes of these kinds, in turn."""
    kinds = [parse_resources(num_cpus=count, num_gpus=0, memory="32GiB", resources=None) for count in cpus]
    hardware = [Hardware(total=kinds[index % len(kinds)], store_bytes=2**31) for index in range(1000)]
    ran = run_workload(
        "bag", {"tasks": 100_000, "seconds": 0.1, "ahead": 20_000, **demand}, hardware=hardware, config=Config()
    )
    assert not ran.failed, ran.failed


def executed(nodes: int) -> None:
    """Functions with an argument and a result."""
    dualray.init(mode="sim", nodes=nodes, num_cpus=8)
    square = dualray.remote(duration=0.0001 * nodes)(lambda number: number * number)
    assert dualray.get([square.remote(number) for number in range(20_000)])[-1] == 19_999**2
    dualray.shutdown()


if __name__ == "__main__":
    assert dualray.__compiled__, "it is the compiled core that is to be watched"
    explored()
    modelled((8,))
    modelled((4, 8, 16, 4), memory=2 * 1024**3)
    executed(1000)
    executed(10)
