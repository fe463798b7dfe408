"""Every file in scenarios/ that says nothing that only a simulation can have: it holds on real processes too."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualray.real.faults import REFUSED
from dualray.shared.scenario.cluster import NodeGroup
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.expectations import judge
from dualray.testing.real_run import NODES_MAX
from dualray.testing.run import load_scenario, run_scenario

FILES = sorted(Path("scenarios").glob("*.yaml"))
MODELLED = ("network", "speed", "disk", "worker_start", "gpu_memory")
"""Of a node, in a simulation alone."""


OF_ITSELF = {
    "published-reconstruction": "tasks whose modelled time is what is measured",
    "application-resnet": "a script that declares GPUs of its own, and so a cluster of its own",
}
"""What a program says that its file does not."""


def only_simulated(scenario: Scenario) -> str:
    """What the file says that only a simulation can have; empty: nothing."""
    nodes, default = scenario.cluster.each_node(), NodeGroup()
    said = [name for name in ("costs", "durations", "memory", "gpu_memory", "profile") if getattr(scenario, name)]
    said += [name for name in MODELLED if any(getattr(group, name) != getattr(default, name) for _, group in nodes)]
    said += ["swarm"] if "swarm" in scenario.model_fields_set else []
    said += ["a recorded run"] if scenario.workload.trace else []
    said += ["nodes that a provider launches"] if scenario.cluster.scaling else []
    said += [f"{len(nodes)} nodes"] if len(nodes) > NODES_MAX else []
    said += (
        [f"CPUs of {len(nodes)} nodes: more than can run here"] if sum(group.cpus for _, group in nodes) > 32 else []
    )
    said += [f"a {fault.kind}" for fault in scenario.planned() if fault.kind in REFUSED]
    said += [OF_ITSELF[scenario.name]] if scenario.name in OF_ITSELF else []
    error = scenario.expect.error
    said += [error.type] if error is not None and error.type.startswith("Simulation") else []
    return ", ".join(dict.fromkeys(said))


def test_the_files_that_only_a_simulation_can_have_are_few_without_a_reason() -> None:
    """A file that is left out says why."""
    ran = [file.stem for file in FILES if not only_simulated(load_scenario(file))]
    assert len(ran) >= 20, ran
    assert {"partition_and_heal", "slow_link", "lost_objects", "lost_gpu", "reboot_with_store"} <= set(ran)


@pytest.mark.slow
@pytest.mark.leak_check
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_holds_on_real_processes(file: Path) -> None:
    scenario = load_scenario(file)
    why_not = only_simulated(scenario)
    if why_not:
        pytest.skip(f"only a simulation has {why_not}")
    needs_reference = scenario.expect.same_as_without_faults
    reference = run_scenario(scenario.with_faults(()), directory=file.parent) if needs_reference else None
    outcome = run_scenario(scenario, mode="real", directory=file.parent)
    verdicts = judge(scenario, outcome, reference, mode="real")
    assert [verdict for verdict in verdicts if not verdict.holds] == []
