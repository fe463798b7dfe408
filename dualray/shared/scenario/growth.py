"""The file of a cluster that grows: its groups of nodes, who starts them on real machines, and how it decides.

`dualray start --head --autoscale FILE` reads it. `cluster`, `config` and `policies` are those of a scenario.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from dualray.shared.machines.autoscaler.groups import groups_to_text
from dualray.shared.scenario.cluster import ClusterModel, NodeGroup
from dualray.shared.scenario.values import Model, Time


class LocalProvider(Model):
    """Each node is a daemon on the head's machine, and ends with it."""

    nodes: int = Field(
        default=16, ge=1, le=1_000, description="most nodes that run at a time; the provider refuses further launches"
    )
    parallel: int = Field(default=4, ge=1, le=64, description="most nodes that start at a time; further launches wait")


class CommandProvider(Model):
    """Commands of the user's start machines and end them; see docs/growing.md for what they are told."""

    launch: str = Field(min_length=1, description="command for /bin/sh that starts a machine, which joins the cluster")
    terminate: str = Field(
        min_length=1, description="command that ends a machine, and succeeds if no machine has the id"
    )
    timeout: Time = Field(default=300 * 10**9, ge=1, description="time after which a command is killed")
    retries: int = Field(default=2, ge=0, le=100, description="retries of a command that fails or takes too long")
    pause: Time = Field(default=5 * 10**9, description="time before dualray repeats a failed command")
    parallel: int = Field(
        default=16, ge=1, le=256, description="most commands that run at a time; further commands wait"
    )
    ledger: str | None = Field(
        default=None,
        description="file with the launched machines, which the next head ends after a crash; default: one for each "
        "configuration in ~/.dualray/launches",
    )


class ProviderModel(Model):
    """Who starts nodes on real machines: one of these."""

    local: LocalProvider | None = None
    command: CommandProvider | None = None

    @model_validator(mode="after")
    def _one(self) -> ProviderModel:
        if (self.local is None) == (self.command is None):
            raise ValueError("a provider needs exactly one of local and command, such as provider: {local: {nodes: 8}}")
        return self


def _provider(value: Any) -> Any:
    if value == "local":
        return {"local": {}}
    if not isinstance(value, dict | ProviderModel):
        raise ValueError(
            f"the provider {value!r} must be local, or a mapping such as {{command: {{launch: ..., terminate: ...}}}}"
        )
    return value


class Growth(Model):
    """One file; see the module."""

    name: str = ""
    description: str = ""
    cluster: ClusterModel
    provider: Annotated[ProviderModel, BeforeValidator(_provider)] = ProviderModel(local=LocalProvider())
    config: dict[str, Any] = Field(default_factory=dict, description="limits of the core; `dualray config` lists them")
    policies: dict[str, str] = Field(
        default_factory=dict, description="policies by name: autoscaler, placement, eviction, retry"
    )

    @property
    def limits(self) -> dict[str, Any]:
        """What the cluster's `Config` has of it."""
        groups = groups_to_text(self.cluster.scaling_specs())
        policies = {f"{name}_policy": path for name, path in self.policies.items()}
        return {"infeasible": "wait", "autoscaler_groups": groups} | self.config | policies

    def launch_plan(self) -> dict[str, Any]:
        """What the provider of real nodes has to know, as JSON takes it."""
        kind = "local" if self.provider.local is not None else "command"
        said = self.provider.local or self.provider.command
        assert said is not None
        offers = {
            name: offer_of(group) | {"memory": group.memory or 0} for name, group in self.cluster.scaled().items()
        }
        return {"kind": kind, "said": dict(said), "groups": offers}


def offer_of(group: NodeGroup) -> dict[str, Any]:
    """What a real node of a group offers, under the names that `dualray start` and `Cluster.add_node` have for it."""
    default = NodeGroup.model_fields["object_store"].default
    return {
        "num_cpus": group.cpus,
        "num_gpus": group.gpus,
        "resources": group.resources,
        "memory": group.memory,
        "labels": group.labels,
        "object_store_memory": None if group.object_store == default else group.object_store,
    }
