"""Programs without code: workloads whose tasks have a duration and sizes, and run no Python (docs/howto/model.md).

The machines are those of every run; recorded runs are in dualray/sim/replay.
"""

from dualray.sim.modelled.cluster import Call, Get, Modelled, ModelledCluster, Wait, call
from dualray.sim.modelled.programs import run_workload

__all__ = ["Call", "Get", "Modelled", "ModelledCluster", "Wait", "call", "run_workload"]
