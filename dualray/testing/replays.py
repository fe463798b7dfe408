"""Runs a scenario whose workload is a trace: the recorded program again, without its code, on the scenario's cluster.

Cluster, limits, policies, costs, seed and faults are the scenario's; what tasks do, how long they compute and how large
their results are is the record's. The seed 0 replays each task with the time that it took; others draw the times anew,
from tasks of the same function (dualray/whatif/predict.py). A trace has no result, and what is left at the end is not
examined: the driver lets go of no more than when it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from dualray.recording.graph import Graph
from dualray.shared.machines.head.global_scheduler import GlobalScheduler
from dualray.shared.model.config import Config
from dualray.shared.scenario.scenario import Scenario
from dualray.sim.cluster.examination import examine_replay
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.network.topologies import wiring_of_scenario
from dualray.sim.replay.replay import ReplayCluster
from dualray.sim.runtime import hardware_of_scenario, machine_groups
from dualray.testing.checkers import watch_choices
from dualray.testing.failures import ERROR_CHARACTERS_MAX, Ended, error_names
from dualray.testing.outcome import Outcome, make_outcome
from dualray.whatif.durations import Durations, own_durations
from dualray.whatif.predict import load


@lru_cache(maxsize=1)
def load_graph(path: Path, changed_ns: int) -> Graph:
    """A recorded run, which many runs of one exploration replay.

    Args:
        changed_ns: when the file was written: a new one is read anew.

    Raises:
        ValueError: the file is no recorded run; or pyarrow, which reads it, is missing.
    """
    try:
        return load(path).graph
    except ImportError:
        raise ValueError("a trace needs pyarrow, which is not installed: pip install 'dualray[whatif]'") from None


def replay_trace(
    scenario: Scenario,
    graph: Graph,
    decision_log: Path | None,
    on_scheduler: Callable[[GlobalScheduler], object] = watch_choices,
) -> Outcome:
    """Replay it once, in a simulation.

    Args:
        decision_log: a directory for the decision logs and the trace.
        on_scheduler: called with the head's scheduler before the program begins.
    """
    limits: dict[str, Any] = {"inline_bytes_max": graph.inline_bytes_max, **scenario.limits}
    if decision_log is not None:
        decision_log.mkdir(parents=True, exist_ok=True)
    cluster = ReplayCluster(
        graph,
        config=Config(**limits),
        cost_model=CostModel().with_scenario(scenario),
        seed=scenario.seed,
        hardware=hardware_of_scenario(scenario),
        scale_of=Durations(graph).scale_of(scenario.seed) if scenario.seed else own_durations,
        faults=scenario.planned(),
        with_trace=True,
        log_directory=decision_log,
        time_limit_ns=scenario.time_limit,
        wiring=wiring_of_scenario(scenario.cluster),
        growing=machine_groups(scenario.cluster),
    )
    on_scheduler(cluster.head.control.scheduler)
    raised: Exception | None = None
    try:
        cluster.run()
        raised = cluster.raised
    except Exception as error:  # noqa: BLE001  # an invariant's, or a policy's: part of the outcome
        raised = error
    try:
        examination = examine_replay(cluster)._asdict()
    finally:
        cluster.close()
    names = () if raised is None else error_names(raised)
    message = "" if raised is None else str(raised)[:ERROR_CHARACTERS_MAX]
    ended = Ended(error=names, message=message)
    return make_outcome(ended, cluster.trace_events, examination, remarks=tuple(graph.remarks))
