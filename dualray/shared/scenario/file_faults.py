"""The faults of a scenario, as its file says them: each is one or more of those in `fault_model.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from dualray.shared.scenario.cluster import ClusterModel
from dualray.shared.scenario.fault_model import (
    ALL,
    EVENT_ANCHORS,
    LINK_SHARES,
    NAME_ANCHORS,
    Fault,
    FaultKind,
    check_fault,
    parse_fault,
    parse_skew_ns,
)
from dualray.shared.scenario.spot import SKYPILOT, SpotTrace, parse_spot
from dualray.shared.scenario.values import HEAD_NAME, Model, Nodes, Time
from dualray.shared.seeding import stream_seed


class When(Model):
    """A logical anchor: the `index`-th (from 1) of what is named here."""

    task_started: str | None = None
    task_ended: str | None = None
    task_submitted: str | None = None
    event: Literal[EVENT_ANCHORS] | None = None  # type: ignore[valid-type]  # a literal of all that there are
    index: int = Field(
        default=1, ge=1, description="which start, end or event of this kind causes the fault, counted from 1"
    )
    submission: int | None = Field(
        default=None, ge=1, description="instead of index: which submission of the task, counted from 1"
    )
    node: str | None = Field(default=None, description="node on which to count; default: the whole cluster")
    after: Time = Field(default=0, description="time between the start, end or event and the fault")

    @model_validator(mode="after")
    def _exactly_one(self) -> When:
        anchors = (self.task_started, self.task_ended, self.task_submitted, self.event)
        if sum(anchor is not None for anchor in anchors) != 1:
            raise ValueError("the key when needs exactly one of task_started, task_ended, task_submitted and event")
        if self.submission is not None and (any(anchors[2:]) or "index" in self.model_fields_set):
            raise ValueError("the key submission needs task_started or task_ended, and excludes index and event")
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
    "limit_files",
    "skew",
    "hold",
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
    ("hold", "call"): FaultKind.HOLD_CALL,
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


class FaultModel(Model):
    """One fault: an anchor (`at`, `every` or `when`), exactly one action, and what belongs to it."""

    words: str | None = Field(
        default=None, description="the whole fault as text, instead of all other keys: kill node-5 at 2.5s"
    )
    trace: str | None = Field(
        default=None,
        description="instead of all other keys: a file with the number of spot machines at each tick, and `format`",
    )
    format: Literal["skypilot-spot"] | None = Field(default=None, description="of the file of `trace`")
    at: Time | None = None
    every: Time | None = Field(
        default=None,
        description="time before the first fault and between two faults; 10s ± 2s means a random time from 8 s to 12 s",
    )
    spread: Time = Field(default=0, description="with `every`: how much sooner or later than planned a fault may come")
    times: int = Field(default=1, ge=1, le=10_000, description="with `every`: number of faults")
    when: When | None = None
    lasting: Time | None = Field(default=None, alias="for", description="how long the fault lasts")
    heal_after: Time | None = Field(default=None, description="the same as `for`, for a partition or a link")
    back_after: Time | None = Field(default=None, description="the same as `for`, for a node that reboots or drains")

    kill: Nodes | None = Field(
        default=None, description="a node, `head`, or `worker`, which is the worker that starts the task of `when`"
    )
    kill_actor: str | None = Field(default=None, description="class of the actor")
    reboot: Nodes | None = None
    drain: Nodes | None = None
    pause: Nodes | None = Field(default=None, description="as kill")
    partition: Nodes | None = None
    clog: Nodes | None = Field(default=None, description="node that receives no messages, and can still send messages")
    slow: Nodes | None = Field(default=None, description="as kill")
    link: Nodes | None = None
    lose: Literal["object"] | None = Field(
        default=None, description="`object`: the object copy that the event in `when` names is lost"
    )
    lose_gpu: Nodes | None = None
    corrupt: Literal["object"] | None = Field(
        default=None, description="`object`: the object copy that the event in `when` names becomes corrupt"
    )
    restart: Nodes | None = Field(
        default=None, description="`head`, `redis`, `worker` as in kill, or a node, which reboots"
    )
    fill: Nodes | None = None
    fill_memory: Nodes | None = None
    fill_disk: Nodes | None = None
    limit_files: Nodes | None = None
    skew: Nodes | None = None
    hold: Literal["call"] | None = Field(
        default=None, description="`call`: the call of an actor's method that `when` names arrives later"
    )

    from_: Nodes | None = Field(
        default=None, alias="from", description="nodes on the other side of a partition that blocks both directions"
    )
    to_: Nodes | None = Field(
        default=None, alias="to", description="nodes that receive nothing in a partition that blocks one direction"
    )
    by: float | str | None = Field(
        default=None, description="slow: factor, where 3 means three times as slow; skew: a time, such as 30s or -30s"
    )
    share: float | None = Field(
        default=None, gt=0, le=1, description="fill: share of the store or of the memory that is taken"
    )
    gpu: int = Field(default=0, ge=0)
    store: Literal["kept", "lost"] = Field(
        default="lost", description="reboot: whether the node's object store survives"
    )
    bandwidth: float = Field(default=1.0, gt=0, description="link: factor of the bandwidth")
    latency: float = Field(default=1.0, gt=0, description="link: factor of the latency")
    loss: float = Field(default=0.0, ge=0, lt=1, description="link: share of segments that are lost and sent again")
    drop: float = Field(default=0.0, ge=0, lt=1, description="link: share of messages that never arrive")
    duplicate: float = Field(default=0.0, ge=0, le=1, description="link: share of messages that arrive twice")
    reorder: float = Field(default=0.0, ge=0, le=1, description="link: share of messages that later messages overtake")
    delay: Time = 0
    jitter: Time = 0

    _said: Fault | None = PrivateAttr(default=None)
    """What `words` say."""
    _spot: SpotTrace | None = PrivateAttr(default=None)
    """What the file of `trace` says, once it is read."""

    @classmethod
    def of(cls, fault: Fault) -> FaultModel:
        """The one whose words say this."""
        model = _NO_FAULT.model_copy(update={"words": str(fault)})
        model._said = fault
        return model

    def read_trace(self, read: Callable[[str], str]) -> None:
        """Read the file of `trace`, if there is one.

        Raises:
            ValueError: it cannot be read, or is of another format.
        """
        if self.trace is not None:
            self._spot = parse_spot(read(self.trace), self.trace)

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
        if self.trace is not None or self.format is not None:
            if self.model_fields_set != {"trace", "format"}:
                raise ValueError(
                    f"faults from a trace take only the keys trace and format, as in {{trace: spot.json, format: "
                    f"{SKYPILOT}}}"
                )
            return self
        actions = [name for name in _ACTIONS if getattr(self, name) is not None]
        if len(actions) != 1:
            raise ValueError(
                f"a fault needs exactly one of {', '.join(_ACTIONS)}, not {' and '.join(actions) or 'none'}"
            )
        anchors = [name for name in ("at", "every", "when") if getattr(self, name) is not None]
        if len(anchors) != 1:
            raise ValueError(f"a fault needs exactly one of at, every and when, not {' and '.join(anchors) or 'none'}")
        if "times" in self.model_fields_set and self.every is None:
            raise ValueError("`times` needs `every`, the time between the faults")
        if self.every is not None and "times" not in self.model_fields_set:
            raise ValueError("`every` needs `times`, the number of faults")
        if self.spread and (self.every is None or self.spread >= self.every):
            raise ValueError("`spread` needs `every`, and must be shorter than `every`, as in every: 10s ± 2s")
        self._check_details(actions[0])
        if self.slow is not None and not (isinstance(self.by, float) and self.by > 0):
            raise ValueError("`slow` needs `by`: the factor by which the node gets slower, a number above 0")
        if self.skew is not None:
            if not isinstance(self.by, str):
                raise ValueError(
                    "`skew` needs `by`, the time by which the node's clock is ahead, such as 30s; with -30s the "
                    "clock is behind"
                )
            parse_skew_ns(self.by, "by")
        if self.fill is not None and self.share is None:
            raise ValueError("`fill` needs `share`, the part of the store to take, such as 0.9")
        if self.fill_memory is not None and self.share is None:
            raise ValueError("`fill_memory` needs `share`, the part of the memory to take, such as 0.9")
        if len([it for it in (self.lasting, self.heal_after, self.back_after) if it is not None]) > 1:
            raise ValueError("for, heal_after and back_after all set when the fault ends; give only one of the three")
        return self

    def _check_details(self, action: str) -> None:
        """What is said must belong to the action."""
        fields = type(self).model_fields
        for name in sorted(self.model_fields_set & _BELONGS_TO.keys()):
            owners = _BELONGS_TO[name]
            if action not in owners:
                said = fields[name].alias or name
                raise ValueError(f"{said} can be used with {' and '.join(owners)}, but not with {action}")
        self._check_target(action)
        if action == "link" and not self.model_fields_set & _OF_LINKS:
            raise ValueError(f"a fault of a link needs one or more of {', '.join(sorted(_OF_LINKS))}")

    def _check_target(self, action: str) -> None:
        """Workers, objects, the head and Redis stand alone, and not everything can happen to them."""
        target = getattr(self, action)
        for name in target if isinstance(target, tuple) else ():
            can = [known for known, whom in _NO_NODES if whom == name]
            if action in can and len(target) > 1:
                raise ValueError(
                    f"{action}: {name} cannot be in a list with other names; write a separate fault for {name}"
                )
            if can and action not in can and (name != HEAD_NAME or action not in ("link", "partition")):
                raise ValueError(f"{action} takes nodes; the faults of {name} are: {' and '.join(can)}")

    def faults(self, cluster: ClusterModel, seed: int = 0) -> Iterator[Fault]:
        """The faults that this stands for: one for each node and time. `seed` draws what is said with ±.

        Raises:
            ValueError: a node that there is not, or a fault that makes no sense.
        """
        if self._said is not None:
            yield self._said
            return
        if self.trace is not None:
            if self._spot is None:
                raise ValueError(
                    f"trace: {self.trace!r} can only be read for a scenario in a file; write the scenario into a file"
                )
            yield from self._spot.faults(sum(1 for _ in cluster.each_node()), seed)
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
            anchor["after_ns"] = self.when.after
            anchor["on_node"] = self._only(cluster, self.when.node)
            names = {event: getattr(self.when, event) for event in NAME_ANCHORS.values()}
            anchor["event"], anchor["task_name"] = next(
                ((event, name) for event, name in names.items() if name), (self.when.event, None)
            )
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
    "limit_files": FaultKind.LIMIT_FILES,
    "skew": FaultKind.SKEW_CLOCK,
}
