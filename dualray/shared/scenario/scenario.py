"""Scenario files: cluster, workload, faults and expectations in one YAML file, as typed data.

`file.py` reads them, and says what is wrong with one. Every value that has a unit carries it
(`10Gbps`, `1GiB`, `2.5s`); unknown keys are refused.

Nodes are called node-0, node-1, ... in the order of the groups; the driver runs on node-0. Wherever a fault takes a
node it also takes a list of them, or `label=value` for every node that carries the label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import Field, field_validator, model_validator

from dualray.shared.machines.autoscaler.groups import groups_to_text
from dualray.shared.scenario.cluster import ClusterModel
from dualray.shared.scenario.expect import Expect
from dualray.shared.scenario.fault_model import DRAWN_IF_NAMED, NEVER_DRAWN, Fault, FaultKind, nodes_added
from dualray.shared.scenario.file_faults import FaultItem, FaultModel
from dualray.shared.scenario.values import Durations, FixedDurations, Model, Size, Time


class Workload(Model):
    """What runs: exactly one of `script`, `function`, `generate` and `trace`."""

    script: str | None = Field(default=None, description="Python file to run, which calls dualray.init()")
    args: list[str] = Field(default_factory=list, description="arguments of the script")
    as_ray: bool = Field(default=False, description="whether `import ray` imports dualray in the script")
    function: str | None = Field(default=None, description="function to call when the cluster runs, as module:name")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the function or of the generated workload"
    )
    generate: str | None = Field(
        default=None, description="name of a workload of dualray.testing.workloads, such as tree_reduce"
    )
    trace: str | None = Field(default=None, description="recorded run to run again, a file that init(record=...) wrote")

    @field_validator("args", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return [str(item) for item in value] if isinstance(value, list) else value

    @model_validator(mode="after")
    def _exactly_one(self) -> Workload:
        kinds = ("script", "function", "generate", "trace")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            words = " and ".join(given) or "none"
            raise ValueError(f"a workload needs exactly one of script, function, generate and trace, not {words}")
        if self.trace is not None and (self.args or self.kwargs):
            raise ValueError(
                "a trace takes no args and no kwargs, because dualray repeats the trace as it was recorded"
            )
        if self.as_ray and self.script is None:
            raise ValueError("the key as_ray is only for scripts; a function uses the imports of its module")
        if self.args and self.script is None:
            raise ValueError("the key args is only for scripts; a function or a generated workload takes kwargs")
        if self.kwargs and self.script is not None:
            raise ValueError("the key kwargs is only for functions and generated workloads; a script takes args")
        if self.function is not None and not re.fullmatch(r"[\w.]+:[\w.]+", self.function):
            raise ValueError(f"function {self.function!r} must be written module:name")
        return self

    @property
    def words(self) -> str:
        """What runs, for people."""
        return self.script or self.function or (f"trace: {self.trace}" if self.trace else f"generated: {self.generate}")


class Swarm(Model):
    """Which faults `dualray explore` draws. Each seed also draws which of the kinds are on, and how many."""

    kinds: list[FaultKind] = Field(
        default_factory=lambda: [kind for kind in FaultKind if kind not in NEVER_DRAWN | DRAWN_IF_NAMED],
        description="kinds of faults to choose from; default: all but "
        + " and ".join(sorted(NEVER_DRAWN | DRAWN_IF_NAMED)),
    )
    most: int = Field(default=6, ge=0, le=1000, description="most faults of one seed")
    within: Time | None = Field(
        default=None, description="faults happen before this time; default: the makespan without faults"
    )
    lasting: Time = Field(default=3 * 10**9, description="median duration of the faults that end")

    @field_validator("kinds")
    @classmethod
    def _can_be_drawn(cls, value: list[FaultKind]) -> list[FaultKind]:
        for kind in value:
            if kind in NEVER_DRAWN:
                raise ValueError(f"a random choice of faults cannot include {kind}; write this fault under faults")
        return value


class Scenario(Model):
    """One scenario; see the module."""

    name: str
    description: str = ""
    seed: int = 0
    cluster: ClusterModel = ClusterModel()
    workload: Workload
    config: dict[str, Any] = Field(default_factory=dict, description="limits of the core; `dualray config` lists them")
    policies: dict[str, str] = Field(
        default_factory=dict, description="policies by name: placement, eviction, retry, reconstruction"
    )
    costs: dict[str, str | int] = Field(
        default_factory=dict, description="costs by name and with units; `dualray sim params` lists them"
    )
    profile: str | None = Field(
        default=None,
        description="recorded run; a task without a duration takes as long as tasks of its name took there",
    )
    durations: Durations = Field(
        default_factory=dict,
        description="durations of tasks by name; `*` matches the rest. `fixed`: all take the cost model's mean",
    )
    memory: dict[str, Size] = Field(
        default_factory=dict,
        description="memory of a node that a task takes while it runs, by name; an actor keeps it until it ends",
    )
    gpu_memory: dict[str, Size] = Field(
        default_factory=dict, description="memory of each assigned GPU that a task takes while it runs, by name"
    )
    faults: list[FaultItem] = Field(default_factory=list)
    swarm: Swarm = Swarm()
    time_limit: Time = Field(default=24 * 3600 * 10**9, description="virtual time after which the run fails")
    expect: Expect = Expect()

    @field_validator("faults", mode="before")
    @classmethod
    def _one_trace(cls, value: Any) -> Any:
        """`faults: {trace: spot.json, format: skypilot-spot}` is a list of one."""
        return [value] if isinstance(value, dict) else value

    @property
    def has_fixed_durations(self) -> bool:
        """Whether tasks of which nothing is said all take the same time."""
        return isinstance(self.durations, FixedDurations)

    @property
    def limits(self) -> dict[str, Any]:
        """What `init(limits=)` takes: limits and policies."""
        policies = {f"{name}_policy": path for name, path in self.policies.items()}
        groups = groups_to_text(self.cluster.scaling_specs())
        others = {"infeasible": "wait"} if groups or nodes_added(self.planned()) else {}
        return others | ({"autoscaler_groups": groups} if groups else {}) | {**self.config, **policies}

    def with_faults(self, faults: Iterable[Fault]) -> Scenario:
        """The same with these faults, in words, and no others."""
        return self.model_copy(update={"faults": [FaultModel.of(fault) for fault in faults]})

    def planned(self) -> tuple[Fault, ...]:
        """Every fault, one by one.

        Raises:
            ValueError: one that makes no sense on this cluster.
        """
        return tuple(fault for item in self.faults for fault in item.faults(self.cluster, self.seed))
