"""The cluster of a scenario: groups of nodes, what they have, and how they are wired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WrapSerializer, model_validator

from dualray.shared.model.demands import parse_resources
from dualray.shared.model.resources import Resources
from dualray.shared.nearest import nearest
from dualray.shared.scenario.fault_model import ALL
from dualray.shared.scenario.values import HEAD_NAME, Model, Rate, Size, Time

NODES_MAX = 10_000
"""Nodes of one scenario; more is taken for a mistake."""

RACK_LABEL = "rack"
"""The label that the nodes of a cluster with racks have: the name of theirs."""


class NetworkModel(Model):
    """A node's link to the switch."""

    bandwidth: Rate = Field(default=1_250_000_000, description="of each direction of each node's link")
    latency: Time = Field(default=100_000, description="between two nodes")


class TopologyModel(Model):
    """How the nodes are connected: `star`, `mesh`, or racks as a mapping."""

    form: Literal["star", "racks", "mesh"] = "racks"
    racks: int | None = Field(
        default=None,
        ge=1,
        description="how many; nodes are dealt to them in consecutive blocks, equal but for one node",
    )
    oversubscription: float | None = Field(
        default=None, ge=1, description="the links of a rack's nodes together, by its uplink; default: 1"
    )
    uplink: Rate | None = Field(default=None, ge=1, description="of each rack, up and down; default: see above")
    latency: Time = Field(default=0, description="of a rack's uplink, on top of that of its nodes' links")

    @model_validator(mode="after")
    def _consistent(self) -> TopologyModel:
        if self.oversubscription is not None and self.uplink is not None:
            raise ValueError("oversubscription and uplink say the same: give one")
        return self


def _form(value: Any) -> Any:
    if isinstance(value, str):
        return {"form": value}
    if not isinstance(value, dict | TopologyModel):
        raise ValueError(f"{value!r} must be star, mesh, or racks such as {{racks: 4, oversubscription: 4}}")
    return value


def _write_form(topology: TopologyModel, write: Callable[[TopologyModel], Any]) -> Any:
    return write(topology) if topology.form == "racks" else topology.form


class NodeGroup(Model):
    """Nodes that are alike."""

    count: int = Field(default=1, ge=1, le=NODES_MAX)
    cpus: float = Field(default=4, ge=0)
    gpus: float = Field(default=0, ge=0)
    resources: dict[str, float] = Field(default_factory=dict, description="custom resources by name")
    object_store: Size = Field(default=2 * 1024**3, ge=1024**2)
    memory: Size | None = Field(
        default=None,
        description="of the machine, its object store included, and offered to tasks with memory=; default: no limit",
    )
    gpu_memory: Size | None = Field(default=None, ge=1, description="of each GPU; default: no limit")
    network: NetworkModel = NetworkModel()
    speed: float = Field(default=1.0, gt=0, description="2 means that work takes half as long")
    worker_start: Time | None = Field(
        default=None, description="how long a worker process takes to start; default: the cost model's worker_start_ns"
    )
    disk: Rate | None = Field(
        default=None,
        ge=1,
        description="at which objects are spilled and read back; default: the cost model's disk_bytes_per_s",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="for faults: kill: zone=a")
    rack: str | None = Field(default=None, description="the name of the one in which all of them are")

    @property
    def total(self) -> Resources:
        """What each node offers."""
        return parse_resources(num_cpus=self.cpus, num_gpus=self.gpus, memory=self.memory, resources=self.resources)


def _number_or_groups(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | list):
        raise ValueError(f"{value!r} must be a number of nodes, or a list of groups such as [{{count: 8, cpus: 18}}]")
    if isinstance(value, int):
        if not 1 <= value <= NODES_MAX:
            raise ValueError(f"{value} nodes: there can be 1 to {NODES_MAX:,}")
        return [{"count": value}]
    if not value:
        raise ValueError("an empty list: a cluster has at least one node, on which the driver runs")
    return value


class ClusterModel(Model):
    """The machines. `nodes` is their number, or a list of groups; what a group leaves out is as given here."""

    nodes: Annotated[list[NodeGroup], BeforeValidator(_number_or_groups)] = Field(
        default_factory=lambda: [NodeGroup.model_construct(count=1)]
    )
    cpus: float = Field(default=4, ge=0)
    gpus: float = Field(default=0, ge=0)
    resources: dict[str, float] = Field(default_factory=dict)
    object_store: Size = Field(default=2 * 1024**3, ge=1024**2)
    memory: Size | None = None
    gpu_memory: Size | None = Field(default=None, ge=1)
    network: NetworkModel = NetworkModel()
    speed: float = Field(default=1.0, gt=0)
    worker_start: Time | None = None
    disk: Rate | None = Field(default=None, ge=1)
    labels: dict[str, str] = Field(default_factory=dict)
    topology: Annotated[TopologyModel, BeforeValidator(_form), WrapSerializer(_write_form)] = TopologyModel(form="star")

    def groups(self) -> list[NodeGroup]:
        """The groups, each complete."""
        common = {name: getattr(self, name) for name in NodeGroup.model_fields if name not in ("count", "rack")}
        return [
            NodeGroup.model_construct(
                **{"count": group.count, **common, **{name: getattr(group, name) for name in group.model_fields_set}}
            )
            for group in self.nodes
        ]

    def each_node(self) -> list[tuple[str, NodeGroup]]:
        """Every node by name, with what it is like, which those that are alike share. In racks, each has a label."""
        machines = [group for group in self.groups() for _ in range(group.count)]
        if self.topology.form == "racks":
            machines = self._in_racks(machines)
        return [(f"node-{index}", group) for index, group in enumerate(machines)]

    def _in_racks(self, machines: list[NodeGroup]) -> list[NodeGroup]:
        names = [group.rack for group in machines]
        if self.topology.racks is not None:
            least, larger = divmod(len(machines), self.topology.racks)
            sizes = [least + (index < larger) for index in range(self.topology.racks)]
            names = [f"rack-{index}" for index, size in enumerate(sizes) for _ in range(size)]
        labelled: dict[tuple[int, str], NodeGroup] = {}
        for group, name in zip(machines, names, strict=True):
            assert name is not None
            if (id(group), name) not in labelled:
                labels = {**group.labels, RACK_LABEL: name}
                labelled[id(group), name] = group.model_copy(update={"labels": labels})
        return [labelled[id(group), str(name)] for group, name in zip(machines, names, strict=True)]

    @property
    def nodes_in_words(self) -> str:
        """Which names there are."""
        count = sum(group.count for group in self.groups())
        return f"nodes are node-0 to node-{count - 1}" if count > 1 else "the only node is node-0"

    def select(self, names: Sequence[str]) -> tuple[str, ...]:
        """Nodes by name or by `label=value`.

        Raises:
            ValueError: a node or label that there is not.
        """
        nodes = dict(self.each_node())
        chosen: dict[str, None] = {}
        for name in names:
            key, is_label, value = name.partition("=")
            if name in nodes or name in (HEAD_NAME, ALL):
                chosen[name] = None
            elif is_label:
                found = [node for node, group in nodes.items() if group.labels.get(key) == value]
                if not found:
                    raise ValueError(f"no node has the label {name!r}{nearest(name, self._labels())}")
                chosen.update(dict.fromkeys(found))
            else:
                raise ValueError(f"there is no {name!r}; {self.nodes_in_words}")
        return tuple(chosen)

    def _labels(self) -> list[str]:
        kinds = {id(group): group for _, group in self.each_node()}
        return list(dict.fromkeys(f"{key}={value}" for group in kinds.values() for key, value in group.labels.items()))
