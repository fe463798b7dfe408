"""The assumptions of the simulator beside the cost model: default nodes, and numbers that are fixed.

`dualray sim params` prints them, with their sources. What the machines of the core go by (heartbeats, retries, sizes of
chunks) is the same in both modes: `dualray config`.
"""

from __future__ import annotations

from dualray.sim.cluster.cluster import MESSAGE_BYTES
from dualray.sim.cost.cost_model import Param
from dualray.sim.network.conditions import LATENCY_MAX_NS
from dualray.sim.network.flows import CONNECTION_LASTS_NS, SEGMENT_BYTES
from dualray.sim.network.network import RETRANSMIT_NS, RETRANSMITS_MAX
from dualray.sim.processes.host_process import OWED_NS_MAX
from dualray.sim.runtime import DEFAULT_CPUS, DEFAULT_STORE_BYTES
from dualray.sim.usercode.virtual_time import READ_STEP_GROWTH_NS, READ_STEP_MAX_NS, READ_STEP_MIN_NS

__all__ = ["fixed_params", "node_params"]


def node_params() -> list[Param]:
    """Of a node of which `init` and the scenario say nothing."""
    return [
        Param("num_cpus", "CPUs", DEFAULT_CPUS, "assumption: a small cloud machine"),
        Param("num_gpus", "GPUs", 0, "a machine without GPUs"),
        Param("object_store_memory", "bytes", DEFAULT_STORE_BYTES, "assumption: a small cloud machine"),
        Param("memory", "bytes", 0, "0: no limit, because the simulation does not measure what code really allocates"),
        Param("gpu_memory", "bytes", 0, "memory of each GPU; 0: no limit"),
        Param("speed", "factor", 1, "with 1, tasks take the durations that the program or the profile gives"),
    ]


def fixed_params() -> list[Param]:
    """What nobody can change."""
    return [
        Param(
            "message",
            "bytes",
            MESSAGE_BYTES,
            "the message that sends a task to a worker has 83 to 300 bytes, without the arguments",
        ),
        Param(
            "retransmit",
            "ns",
            RETRANSMIT_NS,
            "Linux's smallest retransmission timeout (TCP_RTO_MIN); it doubles with each retransmission",
        ),
        Param("retransmits_max", "times", RETRANSMITS_MAX, "Linux's tcp_retries2"),
        Param("connection_lasts", "ns", CONNECTION_LASTS_NS, "TCP_USER_TIMEOUT of real mode's connections"),
        Param(
            "segment",
            "bytes",
            SEGMENT_BYTES,
            "TCP segment on Ethernet; with losses, the rate is 1.22 segments / (RTT * sqrt(loss)) (Mathis)",
        ),
        Param("latency_max", "ns", LATENCY_MAX_NS, "a link with a larger latency counts as a partition"),
        Param(
            "submissions_owed",
            "ns",
            OWED_NS_MAX,
            "the driver's clock advances for several submissions together, after they cost this much",
        ),
        Param(
            "clock_read_min", "ns", READ_STEP_MIN_NS, "a program that reads the clock advances the clock by this time"
        ),
        Param(
            "clock_read_growth", "ns", READ_STEP_GROWTH_NS, "each consecutive read advances the clock by this much more"
        ),
        Param("clock_read_max", "ns", READ_STEP_MAX_NS, "upper limit of the time that one read advances the clock"),
    ]
