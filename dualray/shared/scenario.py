"""Scenario files: cluster, workload, faults and expectations in one YAML file, as typed data.

`dualray/shared/scenario_file.py` reads them, and says what is wrong with one. Every value that has a unit carries it
(`10Gbps`, `1GiB`, `2.5s`); unknown keys are refused.

Nodes are called node-0, node-1, ... in the order of the groups; the driver runs on node-0. Wherever a fault takes a
node it also takes a list of them, or `label=value` for every node that carries the label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    WithJsonSchema,
    WrapSerializer,
    field_validator,
    model_validator,
)

from dualray import exceptions
from dualray.shared.distributions import Distribution, parse_distribution
from dualray.shared.faults import (
    ALL,
    EVENT_ANCHORS,
    LINK_SHARES,
    NEVER_DRAWN,
    Fault,
    FaultKind,
    check_fault,
    parse_fault,
    parse_skew_ns,
)
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.resources import Resources
from dualray.shared.nearest import nearest
from dualray.shared.seeding import stream_seed
from dualray.shared.units import parse_rate_bytes_per_s, parse_size_bytes, parse_time_ns, time_words

NODES_MAX = 10_000
"""Nodes of one scenario; more is taken for a mistake."""

RACK_LABEL = "rack"
"""The label that the nodes of a cluster with racks have: the name of theirs."""

HEAD_NAME = "head"
DRIVER_NODE_NAME = "node-0"


# ---- Values with units ---------------------------------------------------------------------------------------------


def _unit(parse: Callable[[str, str], int], kind: str, example: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{value!r} is no {kind}; write for example {example}")
        if not isinstance(value, str):
            raise ValueError(f"{value!r} has no unit; write for example {example}")
        return parse(value, f"a {kind}")

    return read


def _text_schema(description: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": description, "examples": list(examples)})


Time = Annotated[
    int,
    BeforeValidator(_unit(parse_time_ns, "time", "2.5s")),
    PlainSerializer(time_words),
    _text_schema("a time", "2.5s", "300ms"),
]
Size = Annotated[
    int,
    BeforeValidator(_unit(parse_size_bytes, "size", "1GiB")),
    PlainSerializer(lambda size_bytes: f"{size_bytes}B"),
    _text_schema("a size", "1GiB", "5MB"),
]
Rate = Annotated[
    int,
    BeforeValidator(_unit(parse_rate_bytes_per_s, "rate", "10Gbps")),
    PlainSerializer(lambda bytes_per_s: f"{bytes_per_s}B/s"),
    _text_schema("a rate; bps counts bits, B/s bytes", "10Gbps", "1.25GB/s"),
]


def _duration(value: Any) -> Distribution:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write for example 2.5s or lognormal(2s, 0.5)")
    return parse_distribution(value)


Duration = Annotated[
    Distribution,
    BeforeValidator(_duration),
    PlainSerializer(str),
    _text_schema("a time or a distribution", "2.5s", "lognormal(2s, 0.5)"),
]


def _names(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{value!r} must be a node such as node-3, a list of nodes, or label=value")
    return tuple(names)


Nodes = Annotated[
    tuple[str, ...],
    BeforeValidator(_names),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "a node, several, or label=value",
        }
    ),
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=False)


# ---- The cluster ---------------------------------------------------------------------------------------------------


class NetworkModel(_Model):
    """A node's link to the switch."""

    bandwidth: Rate = Field(default=1_250_000_000, description="of each direction of each node's link")
    latency: Time = Field(default=100_000, description="between two nodes")


class TopologyModel(_Model):
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


class NodeGroup(_Model):
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


class ClusterModel(_Model):
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


# ---- The workload --------------------------------------------------------------------------------------------------


class Workload(_Model):
    """What runs: exactly one of `script`, `function`, `generate` and `trace`."""

    script: str | None = Field(default=None, description="a Python file that calls dualray.init()")
    args: list[str] = Field(default_factory=list, description="of the script")
    function: str | None = Field(default=None, description="module:name; called with the cluster running")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="of the function, or of the generated workload")
    generate: str | None = Field(
        default=None, description="a workload of dualray.testing.workloads, such as tree_reduce"
    )
    trace: str | None = Field(default=None, description="a recorded run, as init(record=...) leaves it: run again")

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
            raise ValueError(f"say exactly one of script, function, generate and trace, not {words}")
        if self.trace is not None and (self.args or self.kwargs):
            raise ValueError("a trace takes neither args nor kwargs: it is run again as it was recorded")
        if self.args and self.script is None:
            raise ValueError("args belong to a script; a function, or a generated workload, takes kwargs")
        if self.kwargs and self.script is not None:
            raise ValueError("kwargs belong to a function or a generated workload; a script takes args")
        if self.function is not None and not re.fullmatch(r"[\w.]+:[\w.]+", self.function):
            raise ValueError(f"function {self.function!r} must be written module:name")
        return self

    @property
    def words(self) -> str:
        """What runs, for people."""
        return self.script or self.function or (f"trace: {self.trace}" if self.trace else f"generated: {self.generate}")


# ---- Faults --------------------------------------------------------------------------------------------------------


class When(_Model):
    """A logical anchor: the `index`-th (from 1) of what is named here."""

    task_started: str | None = None
    task_ended: str | None = None
    event: Literal[EVENT_ANCHORS] | None = None  # type: ignore[valid-type]  # a literal of all that there are
    index: int = Field(default=1, ge=1, description="as which it happens")
    submission: int | None = Field(default=None, ge=1, description="instead: as which the task was submitted")
    node: str | None = Field(default=None, description="what happens there alone is counted")

    @model_validator(mode="after")
    def _exactly_one(self) -> When:
        if sum(anchor is not None for anchor in (self.task_started, self.task_ended, self.event)) != 1:
            raise ValueError("say exactly one of task_started, task_ended and event")
        if self.submission is not None and (self.event is not None or "index" in self.model_fields_set):
            raise ValueError("submission belongs to task_started and task_ended, and stands instead of index")
        return self


_ACTIONS = (
    "kill",
    "kill_actor",
    "reboot",
    "drain",
    "pause",
    "partition",
    "clog",
    "slow",
    "link",
    "lose",
    "lose_gpu",
    "corrupt",
    "restart",
    "fill",
    "fill_memory",
    "fill_disk",
    "skew",
)


_NO_NODES = {
    ("kill", "worker"): FaultKind.KILL_WORKER,
    ("restart", "worker"): FaultKind.KILL_WORKER,
    ("pause", "worker"): FaultKind.PAUSE_WORKER,
    ("slow", "worker"): FaultKind.SLOW_WORKER,
    ("kill", HEAD_NAME): FaultKind.KILL_HEAD,
    ("pause", HEAD_NAME): FaultKind.PAUSE_HEAD,
    ("slow", HEAD_NAME): FaultKind.SLOW_HEAD,
    ("restart", HEAD_NAME): FaultKind.RESTART_HEAD,
    ("restart", "redis"): FaultKind.RESTART_REDIS,
    ("lose", "object"): FaultKind.LOSE_OBJECT,
    ("corrupt", "object"): FaultKind.CORRUPT_OBJECT,
}
"""Actions on what is no node."""

_OF_LINKS = frozenset({*LINK_SHARES, "delay", "jitter"})
_BELONGS_TO: dict[str, tuple[str, ...]] = {
    "by": ("slow", "skew"),
    "share": ("fill", "fill_memory"),
    "gpu": ("lose_gpu",),
    "store": ("reboot", "restart"),
    "from_": ("partition",),
    "to_": ("partition",),
    "heal_after": ("partition", "link"),
    "back_after": ("reboot", "drain", "kill", "restart", "pause"),
    **dict.fromkeys(_OF_LINKS, ("link",)),
}
"""Of what is said of a fault, the actions that it is said of."""


class FaultModel(_Model):
    """One fault: an anchor (`at`, `every` or `when`), exactly one action, and what belongs to it."""

    words: str | None = Field(default=None, description="instead of all the rest: kill node-5 at 2.5s")
    at: Time | None = None
    every: Time | None = Field(default=None, description="first after this time, then again; 10s ± 2s: about then")
    spread: Time = Field(default=0, description="with `every`: how much sooner or later each may come, at most")
    times: int = Field(default=1, ge=1, le=10_000, description="how often, with `every`")
    when: When | None = None
    lasting: Time | None = Field(default=None, alias="for", description="how long it lasts")
    heal_after: Time | None = Field(default=None, description="the same, said of a partition or a link")
    back_after: Time | None = Field(default=None, description="the same, said of a node that reboots or drains")

    kill: Nodes | None = Field(
        default=None, description="a node, `head`, or `worker`: the one that starts the task of `when`"
    )
    kill_actor: str | None = Field(default=None, description="the class of the actor")
    reboot: Nodes | None = None
    drain: Nodes | None = None
    pause: Nodes | None = Field(default=None, description="as kill")
    partition: Nodes | None = None
    clog: Nodes | None = Field(default=None, description="nothing reaches it; what it sends passes")
    slow: Nodes | None = Field(default=None, description="as kill")
    link: Nodes | None = None
    lose: Literal["object"] | None = Field(default=None, description="the copy that the event of `when` is about")
    lose_gpu: Nodes | None = None
    corrupt: Literal["object"] | None = Field(default=None, description="the copy that the event of `when` is about")
    restart: Nodes | None = Field(default=None, description="`head`, `redis`, `worker` as in kill, or a node: reboot")
    fill: Nodes | None = None
    fill_memory: Nodes | None = None
    fill_disk: Nodes | None = None
    skew: Nodes | None = None

    from_: Nodes | None = Field(default=None, alias="from", description="the other side of a partition")
    to_: Nodes | None = Field(default=None, alias="to", description="the other side, of a partition in one direction")
    by: float | str | None = Field(
        default=None, description="slow: how many times as slow; skew: a time, such as 30s or -30s"
    )
    share: float | None = Field(default=None, gt=0, le=1, description="fill: the share of the store, or of the memory")
    gpu: int = Field(default=0, ge=0)
    store: Literal["kept", "lost"] = Field(default="lost", description="reboot: whether what lay there is there again")
    bandwidth: float = Field(default=1.0, gt=0, description="link: a factor")
    latency: float = Field(default=1.0, gt=0, description="link: a factor")
    loss: float = Field(default=0.0, ge=0, lt=1, description="link: the share of segments lost, and sent again")
    drop: float = Field(default=0.0, ge=0, lt=1, description="link: the share of messages that never arrive")
    duplicate: float = Field(default=0.0, ge=0, le=1, description="link: the share of messages that arrive twice")
    reorder: float = Field(default=0.0, ge=0, le=1, description="link: the share of messages that others overtake")
    delay: Time = 0
    jitter: Time = 0

    _said: Fault | None = PrivateAttr(default=None)
    """What `words` say."""

    @classmethod
    def of(cls, fault: Fault) -> FaultModel:
        """The one whose words say this."""
        model = _NO_FAULT.model_copy(update={"words": str(fault)})
        model._said = fault
        return model

    @model_validator(mode="before")
    @classmethod
    def _split_spread(cls, said: Any) -> Any:
        """`every: 10s ± 2s` says two things."""
        every = said.get("every") if isinstance(said, dict) else None
        parts = re.split(r"±|\+-|\+/-", every) if isinstance(every, str) else ()
        if len(parts) == 2:
            return {**said, "every": parts[0].strip(), "spread": parts[1].strip()}
        return said

    @model_validator(mode="after")
    def _complete(self) -> FaultModel:
        if self.words is not None:
            self._said = parse_fault(self.words)
            return self
        actions = [name for name in _ACTIONS if getattr(self, name) is not None]
        if len(actions) != 1:
            raise ValueError(f"say exactly one of {', '.join(_ACTIONS)}, not {' and '.join(actions) or 'none'}")
        anchors = [name for name in ("at", "every", "when") if getattr(self, name) is not None]
        if len(anchors) != 1:
            raise ValueError(f"say exactly one of at, every and when, not {' and '.join(anchors) or 'none'}")
        if "times" in self.model_fields_set and self.every is None:
            raise ValueError("times belongs to every")
        if self.every is not None and "times" not in self.model_fields_set:
            raise ValueError("every needs times: how often")
        if self.spread and (self.every is None or self.spread >= self.every):
            raise ValueError("spread belongs to every, and is less: every: 10s ± 2s")
        self._check_details(actions[0])
        if self.slow is not None and not (isinstance(self.by, float) and self.by > 0):
            raise ValueError("slow needs by: how many times as slow, a number above 0")
        if self.skew is not None:
            if not isinstance(self.by, str):
                raise ValueError("skew needs by: how far ahead the clock is set, with its unit: 30s, or -30s for back")
            parse_skew_ns(self.by, "by")
        if self.fill is not None and self.share is None:
            raise ValueError("fill needs share: which share of the store is taken")
        if self.fill_memory is not None and self.share is None:
            raise ValueError("fill_memory needs share: which share of the memory is taken")
        if len([it for it in (self.lasting, self.heal_after, self.back_after) if it is not None]) > 1:
            raise ValueError("for, heal_after and back_after say the same: give one")
        return self

    def _check_details(self, action: str) -> None:
        """What is said must belong to the action."""
        fields = type(self).model_fields
        for name in sorted(self.model_fields_set & _BELONGS_TO.keys()):
            owners = _BELONGS_TO[name]
            if action not in owners:
                said = fields[name].alias or name
                raise ValueError(f"{said} belongs to {' and '.join(owners)}, not to {action}")
        self._check_target(action)
        if action == "link" and not self.model_fields_set & _OF_LINKS:
            raise ValueError(f"link needs what changes: {', '.join(sorted(_OF_LINKS))}")

    def _check_target(self, action: str) -> None:
        """Workers, objects, the head and Redis stand alone, and not everything can happen to them."""
        target = getattr(self, action)
        for name in target if isinstance(target, tuple) else ():
            can = [known for known, whom in _NO_NODES if whom == name]
            if action in can and len(target) > 1:
                raise ValueError(f"{action}: {name} stands alone; give it a fault of its own")
            if can and action not in can and (name != HEAD_NAME or action not in ("link", "partition")):
                raise ValueError(f"{action} takes nodes; of {name} there is {' and '.join(can)}")

    def faults(self, cluster: ClusterModel, seed: int = 0) -> Iterator[Fault]:
        """The faults that this stands for: one for each node and time. `seed` draws what is said with ±.

        Raises:
            ValueError: a node that there is not, or a fault that makes no sense.
        """
        if self._said is not None:
            yield self._said
            return
        for fault in self._of_each_node(cluster):
            for at_ns in self._times(seed):
                dated = replace(fault, at_ns=at_ns)
                check_fault(dated)
                yield dated

    def _times(self, seed: int) -> list[int | None]:
        if self.every is None:
            return [self.at]
        said = f"{seed}:every {self.every} {self.spread}".encode()
        drawn = [stream_seed(said, b"%d" % number) % (2 * self.spread + 1) for number in range(1, self.times + 1)]
        return [self.every * number - self.spread + it for number, it in enumerate(drawn, 1)]

    def _of_each_node(self, cluster: ClusterModel) -> Iterator[Fault]:
        action = next(name for name in _ACTIONS if getattr(self, name) is not None)
        target = getattr(self, action)
        anchor: dict[str, Any] = {
            "for_ns": next((it for it in (self.lasting, self.heal_after, self.back_after) if it), None)
        }
        if self.when is not None:
            anchor["start"] = self.when.index
            anchor["submission"] = self.when.submission or 0
            anchor["on_node"] = self._only(cluster, self.when.node)
            anchor["task_name"] = self.when.task_started or self.when.task_ended
            anchor["event"] = self.when.event or ("task_ended" if self.when.task_ended else "task_started")
        stranger = (action, target[0] if isinstance(target, tuple) else target)
        if action == "kill_actor":
            yield Fault(kind=FaultKind.KILL_ACTOR, actor=target, **anchor)
        elif stranger in _NO_NODES:
            yield Fault(kind=_NO_NODES[stranger], **anchor, **self._details(action))
        elif action == "partition":
            others = self.from_ or self.to_ or ()
            yield Fault(
                kind=FaultKind.PARTITION,
                nodes=cluster.select(target),
                others=cluster.select(others),
                one_way=self.to_ is not None,
                **anchor,
            )
        else:
            for node in cluster.select(target):
                yield Fault(kind=_KIND_OF[action], node=node, **anchor, **self._details(action))

    @staticmethod
    def _only(cluster: ClusterModel, name: str | None) -> str:
        """The one node of this name."""
        if name is None:
            return ""
        chosen = cluster.select([name])
        if len(chosen) != 1 or chosen[0] in (HEAD_NAME, ALL):
            raise ValueError(f"when: {name!r} must be one node, such as node-3")
        return chosen[0]

    def _details(self, action: str) -> dict[str, Any]:
        if action == "slow":
            return {"factor": self.by}
        if action in ("fill", "fill_memory"):
            return {"factor": self.share}
        if action == "skew":
            return {"skew_ns": parse_skew_ns(str(self.by), "by")}
        if action == "lose_gpu":
            return {"gpu": self.gpu}
        if action in ("reboot", "restart"):
            return {"keeps_store": self.store == "kept"}
        if action == "link":
            factors = {name: getattr(self, name) for name in LINK_SHARES}
            return {**factors, "delay_ns": self.delay, "jitter_ns": self.jitter}
        return {}


_NO_FAULT = FaultModel.model_construct()
"""Of which `FaultModel.of` makes copies: to give all fields their defaults takes twenty times as long."""

FaultItem = Annotated[
    FaultModel,
    BeforeValidator(lambda value: {"words": value} if isinstance(value, str) else value),
]
"""A fault as a mapping, or in words, as `dualray run --faults` takes it."""

_KIND_OF = {
    "kill": FaultKind.KILL_NODE,
    "reboot": FaultKind.REBOOT_NODE,
    "drain": FaultKind.DRAIN_NODE,
    "restart": FaultKind.REBOOT_NODE,
    "pause": FaultKind.PAUSE_NODE,
    "clog": FaultKind.CLOG_NODE,
    "slow": FaultKind.SLOW_NODE,
    "link": FaultKind.LINK,
    "lose_gpu": FaultKind.LOSE_GPU,
    "fill": FaultKind.FILL_STORE,
    "fill_memory": FaultKind.FILL_MEMORY,
    "fill_disk": FaultKind.FILL_DISK,
    "skew": FaultKind.SKEW_CLOCK,
}


# ---- Expectations --------------------------------------------------------------------------------------------------


class Bounds(_Model):
    """From `min` to `max`, both included; a plain number stands for both."""

    min: int | None = None
    max: int | None = None

    def has(self, value: int) -> bool:
        """Whether the value lies within."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        if self.min == self.max and self.min is not None:
            return f"{self.min:,}"
        least = f"at least {self.min:,}" if self.min is not None else ""
        most = f"at most {self.max:,}" if self.max is not None else ""
        return " and ".join(filter(None, (least, most))) or "anything"


def _bounds(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"min": value, "max": value}
    if not isinstance(value, dict | Bounds):
        raise ValueError(f"{value!r} must be a whole number, or bounds such as {{min: 1, max: 5}}")
    return value


class TimeBounds(_Model):
    """Bounds of a time."""

    min: Time | None = None
    max: Time | None = None

    @model_validator(mode="after")
    def _in_order(self) -> TimeBounds:
        _check_order(self.min, self.max)
        return self


class NumberBounds(_Model):
    """Bounds of a number that a program returns."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _in_order(self) -> NumberBounds:
        _check_order(self.min, self.max)
        return self

    def has(self, value: float) -> bool:
        """Whether the value lies within."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        bounds = (("at least", self.min), ("at most", self.max))
        return " and ".join(f"{side} {bound:g}" for side, bound in bounds if bound is not None) or "anything"


def _check_order(least: float | None, most: float | None) -> None:
    if least is not None and most is not None and least > most:
        raise ValueError("nothing can meet this: min is above max")


def _check_bounds(bounds: Bounds) -> Bounds:
    _check_order(bounds.min, bounds.max)
    if bounds.max is not None and bounds.max < 0:
        raise ValueError("nothing can meet this: a count is never below 0")
    return bounds


Count = Annotated[Bounds, BeforeValidator(_bounds), AfterValidator(_check_bounds)]

COUNTERS = {
    "tasks": "calls that were submitted, constructors of actors included",
    "failed": "attempts that ended with an error",
    "tasks_lost": "tasks that never ended, or failed with an error that is neither their own nor a cancellation (a "
    "worker, a node or an object was lost, nothing could run them); what owners that died had asked for is not counted",
    "retries": "attempts after one that was lost or raised",
    "reconstructions": "attempts that made a lost object again",
    "evictions": "objects that left a full store",
    "transfers": "objects that were sent from one store to another",
    "bytes_moved": "bytes that arrived in a store from another one",
    "workers_started": "worker processes that were started",
    "workers_ended": "worker processes that ended while the program ran",
    "nodes_refused": "lives of nodes that were taken for dead, and heard again",
    "nodes_left": "lives of nodes that ended in good order",
    "messages": "messages between processes",
    "messages_held": "messages that a partition, a pause or a loss has held up",
    "messages_dropped": "messages lost with a node, or dropped by a bad link",
    "messages_doubled": "messages that came twice, and were taken once",
    "transfers_lost": "transfers that ended with a node",
    "faults": "faults that were performed",
}
"""What a run counts."""


class ErrorExpected(_Model):
    """The program is to end with an error."""

    type: str = Field(description="the class's name, such as ObjectStoreFullError; a base class will do")
    match: str | None = Field(default=None, description="a regular expression that its message contains")

    @field_validator("type")
    @classmethod
    def _is_spelled_right(cls, value: str) -> str:
        """A program has errors of its own; a name that is all but one of ours is a slip."""
        ours = [name for name, item in vars(exceptions).items() if isinstance(item, type)]
        if value not in ours and (near := get_close_matches(value, ours, n=1, cutoff=0.9)):
            raise ValueError(f"nothing raises {value!r}. Did you mean {near[0]!r}?")
        return value

    @field_validator("match")
    @classmethod
    def _is_regular(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value


class Expect(_Model):
    """What must hold in the end. Without `error` the program must succeed."""

    result: Any = Field(default=None, description="what the program returns; a script: its last line, as JSON")
    figures: dict[str, NumberBounds] = Field(
        default_factory=dict, description="numbers, by name, of the mapping that the program returns"
    )
    makespan: TimeBounds = TimeBounds()
    error: ErrorExpected | None = None
    counters: dict[str, Count] = Field(default_factory=dict)
    no_leak: bool = Field(default=True, description="at the end no object, lease, task or payload is left")
    all_faults: bool = Field(default=True, description="each planned fault must have happened")
    same_as_without_faults: bool = Field(default=False, description="the result is that of a run without faults")

    @model_validator(mode="before")
    @classmethod
    def _take_counters(cls, said: Any) -> Any:
        """`retries: 0` stands for `counters: {retries: 0}`."""
        counters = said.get("counters", {}) if isinstance(said, dict) else None
        if not isinstance(counters, dict):
            return said
        short = {name: value for name, value in said.items() if name in COUNTERS}
        for name in short:
            if name in counters:
                raise ValueError(f"{name} stands here and in counters; write it once")
        rest = {name: value for name, value in said.items() if name not in short}
        return {**rest, "counters": {**counters, **short}} if short else said

    @field_validator("counters")
    @classmethod
    def _known(cls, value: dict[str, Bounds]) -> dict[str, Bounds]:
        for name in value:
            if name not in COUNTERS:
                raise ValueError(f"there is no counter {name!r}{nearest(name, COUNTERS)}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Expect:
        if self.error is not None and (self.has_result or self.figures or self.same_as_without_faults):
            raise ValueError("nothing can meet this: a program that ends with an error has no result")
        return self

    @property
    def has_result(self) -> bool:
        """Whether a result is named, be it null."""
        return "result" in self.model_fields_set


# ---- Exploration ---------------------------------------------------------------------------------------------------


class Swarm(_Model):
    """Which faults `dualray explore` draws. Each seed also draws which of the kinds are on, and how many."""

    kinds: list[FaultKind] = Field(
        default_factory=lambda: [kind for kind in FaultKind if kind not in NEVER_DRAWN],
        description=f"default: all but {' and '.join(sorted(NEVER_DRAWN))}, which belong among the faults",
    )
    most: int = Field(default=6, ge=0, le=1000, description="faults of one seed")
    within: Time | None = Field(
        default=None, description="faults in time come before this; default: the fault-free makespan"
    )
    lasting: Time = Field(default=3 * 10**9, description="the median of how long what ends lasts")

    @field_validator("kinds")
    @classmethod
    def _can_be_drawn(cls, value: list[FaultKind]) -> list[FaultKind]:
        for kind in value:
            if kind in NEVER_DRAWN:
                raise ValueError(f"{kind} is never drawn: no program can promise to survive it. Say it under faults")
        return value


# ---- The whole -----------------------------------------------------------------------------------------------------


class Scenario(_Model):
    """One scenario; see the module."""

    name: str
    description: str = ""
    seed: int = 0
    cluster: ClusterModel = ClusterModel()
    workload: Workload
    config: dict[str, Any] = Field(default_factory=dict, description="limits of the core; `dualray config` lists them")
    policies: dict[str, str] = Field(default_factory=dict, description="placement, eviction, retry, reconstruction")
    costs: dict[str, str | int] = Field(default_factory=dict, description="of `dualray sim params`, with units")
    profile: str | None = Field(
        default=None,
        description="a recorded run: tasks without a duration of their own take what those of their name took there",
    )
    durations: dict[str, Duration] = Field(default_factory=dict, description="of tasks, by name; `*` matches the rest")
    memory: dict[str, Size] = Field(
        default_factory=dict,
        description="what tasks take of a node's memory while they run, by name; of an actor, for life",
    )
    gpu_memory: dict[str, Size] = Field(
        default_factory=dict, description="the same of the memory of each GPU that they were given"
    )
    faults: list[FaultItem] = Field(default_factory=list)
    swarm: Swarm = Swarm()
    time_limit: Time = Field(default=24 * 3600 * 10**9, description="virtual time after which the run is given up")
    expect: Expect = Expect()

    @property
    def limits(self) -> dict[str, Any]:
        """What `init(limits=)` takes: limits and policies."""
        return {**self.config, **{f"{name}_policy": path for name, path in self.policies.items()}}

    def with_faults(self, faults: Iterable[Fault]) -> Scenario:
        """The same with these faults, in words, and no others."""
        return self.model_copy(update={"faults": [FaultModel.of(fault) for fault in faults]})

    def planned(self) -> tuple[Fault, ...]:
        """Every fault, one by one.

        Raises:
            ValueError: one that makes no sense on this cluster.
        """
        return tuple(fault for item in self.faults for fault in item.faults(self.cluster, self.seed))
