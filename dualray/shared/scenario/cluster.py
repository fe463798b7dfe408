"""The cluster of a scenario: groups of nodes, what they have, and how they are wired."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, WrapSerializer, model_validator

from dualray.shared.labels import as_pairs
from dualray.shared.model.accelerators import with_types
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import NODE_GROUP_LABEL
from dualray.shared.nearest import nearest
from dualray.shared.policies.scaling import NodeGroupSpec
from dualray.shared.scenario.distributions import Distribution
from dualray.shared.scenario.fault_model import ALL
from dualray.shared.scenario.values import HEAD_NAME, Duration, Model, Rate, Size, Time
from dualray.shared.units import time_words

NODES_MAX = 10_000
"""Nodes of one scenario; more is taken for a mistake."""

JOINS_IN_TIME = 0.01
"""The least share of a group's launches that must join in time; with fewer, the file is taken for a mistake."""

RACK_LABEL = "rack"
"""The label that the nodes of a cluster with racks have: the name of theirs."""


class NetworkModel(Model):
    """A node's link to the switch."""

    bandwidth: Rate = Field(default=1_250_000_000, description="bandwidth of each node's link, in each direction")
    latency: Time = Field(default=100_000, description="time that a message takes between two nodes")


class TopologyModel(Model):
    """How the nodes are connected: `star`, `mesh`, or racks as a mapping."""

    form: Literal["star", "racks", "mesh"] = "racks"
    racks: int | None = Field(
        default=None,
        ge=1,
        description="number of racks; each gets a block of consecutive nodes, and blocks differ by at most one node",
    )
    oversubscription: float | None = Field(
        default=None,
        ge=1,
        description="bandwidth of a rack's nodes together, divided by the bandwidth of its uplink; default: 1",
    )
    uplink: Rate | None = Field(
        default=None,
        ge=1,
        description="bandwidth of each rack's uplink, in each direction; default: from oversubscription",
    )
    latency: Time = Field(default=0, description="latency of a rack's uplink, added to that of the nodes' links")

    @model_validator(mode="after")
    def _consistent(self) -> TopologyModel:
        if self.oversubscription is not None and self.uplink is not None:
            raise ValueError(
                "oversubscription and uplink both set the speed of a rack's uplink; leave one of the two out"
            )
        return self


def _form(value: Any) -> Any:
    if isinstance(value, str):
        return {"form": value}
    if not isinstance(value, dict | TopologyModel):
        raise ValueError(
            f"the topology {value!r} must be star, mesh, or racks such as {{racks: 4, oversubscription: 4}}"
        )
    return value


def _write_form(topology: TopologyModel, write: Callable[[TopologyModel], Any]) -> Any:
    return write(topology) if topology.form == "racks" else topology.form


class NodeGroup(Model):
    """A group of nodes with the same hardware."""

    count: int = Field(default=1, ge=1, le=NODES_MAX)
    cpus: float = Field(default=4, ge=0)
    gpus: float = Field(default=0, ge=0)
    resources: dict[str, float] = Field(default_factory=dict, description="custom resources by name")
    object_store: Size = Field(default=2 * 1024**3, ge=1024**2)
    memory: Size | None = Field(
        default=None,
        description="memory of each node, with its object store; tasks reserve it with memory=; default: no limit",
    )
    gpu_memory: Size | None = Field(default=None, ge=1, description="memory of each GPU; default: no limit")
    network: NetworkModel = NetworkModel()
    speed: float = Field(default=1.0, gt=0, description="speed of the node's CPUs; with 2, tasks take half as long")
    worker_start: Time | None = Field(
        default=None, description="time that a worker process takes to start; default: the cost model's worker_start_ns"
    )
    disk: Rate | None = Field(
        default=None,
        ge=1,
        description="rate at which objects go to disk and back; default: the cost model's disk_bytes_per_s",
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="labels of each node; faults can name them, as in kill: zone=a"
    )
    rack: str | None = Field(default=None, description="name of the rack that has all nodes of the group")

    @property
    def total(self) -> Resources:
        """What each node offers."""
        return with_types(
            parse_resources(num_cpus=self.cpus, num_gpus=self.gpus, memory=self.memory, resources=self.resources)
        )


GROUP_NAME = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")


class ScalingGroup(NodeGroup):
    """A named group of which the autoscaler launches nodes, and lets them leave; in a simulation, how its provider is.
    What it leaves out is as given for the whole cluster."""

    min: int = Field(default=0, ge=0, le=NODES_MAX, description="fewest nodes, which the cluster has at its start")
    max: int = Field(ge=0, le=NODES_MAX, description="most nodes; 0 switches the group off")
    price: float = Field(
        default=0,
        ge=0,
        description="price of a node for an hour, in any currency; the autoscaler prefers cheaper groups",
    )
    start_up: Duration = Field(
        default=Distribution("constant", 30 * 10**9), description="time from the launch of a node until it joins"
    )
    refused: float = Field(default=0, ge=0, le=1, description="share of launches that the provider refuses")
    stuck: float = Field(default=0, ge=0, le=1, description="share of launched nodes that never join")
    quota: int | None = Field(
        default=None, ge=0, description="most launched nodes at a time; the provider refuses further launches"
    )
    reclaimed: Duration | None = Field(
        default=None, description="time after which the provider takes a spot node away; default: never"
    )
    notice: Time = Field(
        default=120 * 10**9,
        description="time between the warning of a spot node, after which it takes no new tasks, and its end",
    )
    shut_down: Duration = Field(
        default=Distribution("constant", 10**9),
        description="time from the moment at which a node leaves until its machine is gone and is no longer paid; "
        "default: 1s, as measured of the local provider",
    )
    paid_least: Time = Field(default=60 * 10**9, description="shortest time for which the user pays a node")

    @model_validator(mode="after")
    def _consistent(self) -> ScalingGroup:
        if self.max < self.min:
            raise ValueError(f"max: {self.max} is less than min: {self.min}")
        if "count" in self.model_fields_set:
            raise ValueError("the key count is only for nodes; give the group the keys min and max")
        return self


def _named(value: Any) -> Any:
    for name in value if isinstance(value, dict) else ():
        if not isinstance(name, str) or not GROUP_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a group; use letters, digits and -, as in gpu")
    return value


def _number_or_groups(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | list):
        raise ValueError(f"{value!r} must be a number of nodes, or a list of groups such as [{{count: 8, cpus: 18}}]")
    if isinstance(value, int):
        if not 1 <= value <= NODES_MAX:
            raise ValueError(f"{value} must be between 1 and {NODES_MAX:,} nodes")
        return [{"count": value}]
    if not value:
        raise ValueError(
            "the list of nodes must have at least one node, because the driver runs on a node of the cluster"
        )
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
    scaling: Annotated[dict[str, ScalingGroup], BeforeValidator(_named)] = Field(
        default_factory=dict,
        alias="groups",
        description="named groups that grow and shrink; the cluster starts with the min of each, and has other nodes "
        "only if `nodes` is given",
    )
    _ignored: tuple[str, ...] = PrivateAttr(default=())
    topology: Annotated[TopologyModel, BeforeValidator(_form), WrapSerializer(_write_form)] = TopologyModel(form="star")

    @property
    def ignored(self) -> tuple[str, ...]:
        """What the file that it was read `from` says, and has no meaning here, by its path."""
        return self._ignored

    def groups(self) -> list[NodeGroup]:
        """The groups, each complete."""
        has_least = any(group.min for group in self.scaling.values())
        fixed = [] if has_least and "nodes" not in self.model_fields_set else self.nodes
        return [self._completed(group, group.count) for group in fixed] + [
            group.model_copy(update={"count": self.scaling[name].min})
            for name, group in self.scaled().items()
            if self.scaling[name].min
        ]

    def scaled(self) -> dict[str, NodeGroup]:
        """What one node is like of each group that grows and shrinks, by name; it carries its group's label."""
        groups = {}
        for name, group in self.scaling.items():
            plain = self._completed(group, 1)
            groups[name] = plain.model_copy(update={"labels": {**plain.labels, NODE_GROUP_LABEL: name}})
        return groups

    def _completed(self, group: NodeGroup, count: int) -> NodeGroup:
        """With what is said of all nodes where it says nothing."""
        common = {name: getattr(self, name) for name in NodeGroup.model_fields if name not in ("count", "rack")}
        own = {name: getattr(group, name) for name in group.model_fields_set if name in NodeGroup.model_fields}
        return NodeGroup.model_construct(**{**common, **own, "count": count})

    def scaling_specs(self) -> tuple[NodeGroupSpec, ...]:
        """The groups as the autoscaler has them."""
        return tuple(
            [
                NodeGroupSpec(
                    name=name,
                    total=plain.total,
                    labels=as_pairs(plain.labels),
                    least=self.scaling[name].min,
                    most=self.scaling[name].max,
                    price=round(self.scaling[name].price * 1_000_000),
                )
                for name, plain in self.scaled().items()
            ]
        )

    def never_join(self, launch_timeout_ns: int) -> dict[str, str]:
        """The groups whose nodes would not join before the autoscaler gives up their launches, each with the reason:
        it would launch, pay and give up nodes of these for ever."""
        reasons = {}
        for name, group in self.scaling.items():
            least_ns = group.start_up.quantile_ns(JOINS_IN_TIME)
            if group.max and least_ns >= launch_timeout_ns:
                is_same = group.start_up.name == "constant"
                fewest = "no node" if is_same else f"fewer than {JOINS_IN_TIME:.0%} of its nodes"
                reasons[name] = (
                    f"{fewest} would join: start_up is {group.start_up}, and the autoscaler gives up a launch after "
                    f"{time_words(launch_timeout_ns)}; raise launch_timeout_ns under config, or shorten start_up"
                )
        return reasons

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
        return f"the nodes are node-0 to node-{count - 1}" if count > 1 else "the only node is node-0"

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
                raise ValueError(f"the cluster has no node {name!r}; {self.nodes_in_words}")
        return tuple(chosen)

    def _labels(self) -> list[str]:
        kinds = {id(group): group for _, group in self.each_node()}
        return list(dict.fromkeys(f"{key}={value}" for group in kinds.values() for key, value in group.labels.items()))
