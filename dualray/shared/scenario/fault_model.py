"""Faults as data: one fault says what happens, to which process or node, when, and for how long.

A fault is anchored in time (`at`, since init) or, better, at a logical event: the n-th start or end of a task of some
name, or the n-th trace event of a kind, counted over the whole cluster, so that the same fault bites at the same place
in every run and in both modes.

What happens, in words:

    kill node-5                                the machine loses power: processes, store, links; the head hears nothing
    reboot node-5 ... for 3s                   the same, and 3 s later it is back, empty, in a new incarnation
    reboot node-5 with its store ... for 3s    the same, and what lay in its object store is there again
    drain node-5                               it is told to leave in good order, as by the notice of a spot machine's
                                               end: its tasks end, others take its objects; in time, it leaves anyway
    drain node-5 ... for 30s                   the same; 30 s later a machine stands in its place, and it is switched
                                               off if it has not left
    remove node-5                              the same as draining it for good
    add 4 nodes, add 2 nodes of gpu            machines like node-0, or of a group of the cluster, join: as node-N, the
                                               next that were not there
    pause node-5 ... for 20s                   it stands still and goes on later: a zombie, once it was taken for dead
    kill worker                                the worker that starts (or ends) the task of the anchor gets SIGKILL
    pause worker ... for 5s                    it stands still, and goes on later
    slow worker by 4                           what it computes takes four times as long
    kill actor Counter                         so does the worker of the first living actor of this class
    hold call ... for 100ms                    the actor call of the anchor reaches its actor so much later, and so do
                                               later calls of the same caller; those of other callers overtake it
    partition node-1,node-2 ... for 3s         nothing passes between these and everybody else, the head included
    partition node-1 from node-2,node-3        nothing passes between the two sides
    partition node-1 to node-2                 nothing passes in this direction
    clog node-5 ... for 3s                     nothing reaches this node; what it sends passes
    slow node-5 by 4                           what its CPUs do takes four times as long
    link node-5 bandwidth 0.1 latency 10 loss 0.01 delay 5ms jitter 2ms
                                               factors of its link; segments lost, and sent again; messages delayed, by
                                               up to 2 ms more. `link all` means every node and the head
    link node-5 duplicate 0.1                  messages that arrive twice; the connection drops the second
    link node-5 reorder 0.1                    messages that others overtake on their way; the connection puts them in
                                               order, so that what has overtaken one waits for it
    link node-5 drop 0.01                      messages that never arrive, which no TCP connection does: who waits for
                                               one waits for ever, unless a node's death makes up for it
    lose gpu 0 of node-5                       the GPU falls off the bus; the worker that holds it dies
    lose object when object_stored 3           the copy that has just been stored there is gone
    corrupt object when object_stored 3        one byte of it is another one from now on; nobody is told
    kill head                                  the head is gone for good, and its cluster with it
    pause head ... for 2s                      it stands still, and goes on later
    slow head by 10                            what reaches and leaves it takes so many times its time there
    restart redis ... for 2s                   the server of the control plane's tables is away
    restart head ... for 2s                    both: head and tables are away, and come back as they were
    fill node-5 to 0.9                         somebody else's bytes take this share of its object store
    fill memory of node-5 to 0.9               and this share of its memory
    fill disk of node-5                        its disk has no room: nothing can be spilled there
    limit files of node-5                      its node manager can open no more files, and starts no worker
    skew node-5 by 30s                         its clock is set ahead (by -30s: back) of everybody else's

and when:

    at 2.5s
    when Network.gradient starts 40            or `ends`, or `is submitted`; counted from 1
    when Network.gradient#40 starts            or `ends`: the call that was submitted as the fortieth of this name
    when transfer_started 3                    or another kind of trace event: see EVENT_ANCHORS
    when Network.gradient starts 2 on node-3   each of these: what happens on this node alone is counted
    when Network.gradient starts 2 after 200ms each of these: so long after that, as in the middle of a task

What can end does so after `for ...`; without it, it stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from dualray.shared.units import parse_time_ns, time_words

ALL = "all"
"""As the node of a LINK fault: every node, and the head."""

LINK_SHARES = ("bandwidth", "latency", "loss", "drop", "duplicate", "reorder")
"""What a LINK fault says as a number: two factors, and shares."""

TASK_ANCHORS = {"starts": "task_started", "ends": "task_ended"}
NAME_ANCHORS = {**TASK_ANCHORS, "is submitted": "task_submitted"}
"""The events of tasks of one name that can cause a fault: words to kinds of trace events."""

EVENT_ANCHORS = (
    "task_submitted",
    "task_retried",
    "worker_started",
    "worker_ended",
    "object_stored",
    "object_evicted",
    "transfer_started",
    "transfer_ended",
    "object_spilled",
)
"""Kinds of trace events whose n-th occurrence, of whatever name, can be an anchor."""

OBJECT_ANCHORS = ("object_stored", "transfer_ended", "object_spilled")
"""Those after which a node has a copy of an object."""
_COPY_ANCHORS = " and ".join(OBJECT_ANCHORS[1:])


ADDED_MAX = 10_000
"""Nodes that one fault adds; more is taken for a mistake."""


class FaultKind(StrEnum):
    """What happens."""

    KILL_NODE = "kill node"
    REBOOT_NODE = "reboot node"
    DRAIN_NODE = "drain node"
    PAUSE_NODE = "pause node"
    KILL_WORKER = "kill worker"
    KILL_ACTOR = "kill actor"
    PARTITION = "partition"
    SLOW_NODE = "slow node"
    LINK = "link"
    LOSE_GPU = "lose gpu"
    RESTART_HEAD = "restart head"
    FILL_STORE = "fill store"
    FILL_MEMORY = "fill memory"
    SKEW_CLOCK = "skew clock"
    PAUSE_WORKER = "pause worker"
    SLOW_WORKER = "slow worker"
    KILL_HEAD = "kill head"
    PAUSE_HEAD = "pause head"
    SLOW_HEAD = "slow head"
    RESTART_REDIS = "restart redis"
    CLOG_NODE = "clog node"
    LOSE_OBJECT = "lose object"
    CORRUPT_OBJECT = "corrupt object"
    FILL_DISK = "fill disk"
    ADD_NODES = "add nodes"
    LIMIT_FILES = "limit files"
    HOLD_CALL = "hold call"


NEEDS_DURATION = frozenset(
    {
        FaultKind.REBOOT_NODE,
        FaultKind.PAUSE_NODE,
        FaultKind.PAUSE_WORKER,
        FaultKind.PAUSE_HEAD,
        FaultKind.RESTART_HEAD,
        FaultKind.RESTART_REDIS,
        FaultKind.HOLD_CALL,
    }
)
MAY_END = NEEDS_DURATION | {
    FaultKind.DRAIN_NODE,
    FaultKind.PARTITION,
    FaultKind.SLOW_NODE,
    FaultKind.LINK,
    FaultKind.FILL_STORE,
    FaultKind.FILL_MEMORY,
    FaultKind.SKEW_CLOCK,
    FaultKind.SLOW_WORKER,
    FaultKind.SLOW_HEAD,
    FaultKind.CLOG_NODE,
    FaultKind.FILL_DISK,
    FaultKind.LIMIT_FILES,
}
OF_WORKERS = frozenset({FaultKind.KILL_WORKER, FaultKind.PAUSE_WORKER, FaultKind.SLOW_WORKER})
"""Kinds that hit the worker of the anchor's task."""
OF_HEAD = frozenset({FaultKind.KILL_HEAD, FaultKind.PAUSE_HEAD, FaultKind.SLOW_HEAD, FaultKind.RESTART_HEAD})
OF_OBJECTS = frozenset({FaultKind.LOSE_OBJECT, FaultKind.CORRUPT_OBJECT})
"""Kinds that hit the copy of the anchor's object."""
SLOWS = frozenset({FaultKind.SLOW_NODE, FaultKind.SLOW_WORKER, FaultKind.SLOW_HEAD})
NEVER_DRAWN = frozenset({FaultKind.KILL_HEAD, FaultKind.CORRUPT_OBJECT, FaultKind.ADD_NODES})
"""Kinds that no program outlives, that nobody promises to notice, or that harm nobody: they are asked for by name."""
DRAWN_IF_NAMED = frozenset({FaultKind.LIMIT_FILES})
"""Kinds that exploration draws only where a scenario names them. They are younger than scenarios that are explored, and
the seeds of those keep their faults."""
ENDS_PROCESSES = frozenset({FaultKind.KILL_NODE, FaultKind.REBOOT_NODE, FaultKind.DRAIN_NODE, FaultKind.PAUSE_NODE})
"""Kinds that may not hit the node on which the driver runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Its anchor is `at_ns`, or the `start`-th (from 1) trace event of kind `event`, and name `task_name`
    where that is given.

    Attributes:
        on_node: what happens there alone is counted; "": anywhere.
        after_ns: how long after its anchor it comes; a fault of a worker hits the one that was there then.
        submission: the anchor is the call of `task_name` that was submitted as this one, from 1; 0: `start` counts.
        node: the target; "" for KILL_ACTOR, PARTITION, and faults of a worker, an object or the head.
        nodes, others: the sides of a PARTITION, nodes or "head"; no `others` means everybody else.
        one_way: a PARTITION holds only what goes from `nodes` to `others`.
        actor: the class of a KILL_ACTOR.
        for_ns: how long it lasts; None: to the end.
        keeps_store: REBOOT_NODE: what lay in its store is there again.
        factor: SLOW_*: how many times as long work takes; FILL_STORE, FILL_MEMORY: the share, 0 to 1.
        bandwidth, latency: LINK: factors of what the link has.
        loss: LINK: the share of segments lost, 0 to below 1; each is sent again.
        drop: LINK: the share of messages that never arrive, 0 to below 1.
        duplicate: LINK: the share of messages that arrive twice, 0 to 1.
        reorder: LINK: the share of messages that others overtake, 0 to 1.
        delay_ns, jitter_ns: LINK: what each message takes more, and up to how much more than that.
        gpu: LOSE_GPU: its id.
        count, group: ADD_NODES: how many machines, and of which group of the cluster; "": like node-0.
        skew_ns: SKEW_CLOCK: how far ahead the clock is set; negative: back.
    """

    kind: FaultKind
    node: str = ""
    at_ns: int | None = None
    task_name: str | None = None
    start: int = 1
    event: str = "task_started"
    nodes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    one_way: bool = False
    actor: str = ""
    for_ns: int | None = None
    factor: float = 1.0
    bandwidth: float = 1.0
    latency: float = 1.0
    loss: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    delay_ns: int = 0
    jitter_ns: int = 0
    gpu: int = 0
    skew_ns: int = 0
    on_node: str = ""
    submission: int = 0
    keeps_store: bool = False
    reorder: float = 0.0
    after_ns: int = 0
    count: int = 0
    group: str = ""

    @property
    def named_nodes(self) -> tuple[str, ...]:
        """Every node that it names, the head left out."""
        names = (self.node, self.on_node, *self.nodes, *self.others)
        return tuple(name for name in names if name not in ("", "head", ALL))

    def __reduce__(self) -> tuple[Any, ...]:
        """In C as far as it goes: exploration pickles some for each seed."""
        return _restore, _VALUES(self)

    def __str__(self) -> str:
        lasting = f" for {time_words(self.for_ns)}" if self.for_ns is not None else ""
        return f"{self._what()} {self._when()}{lasting}"

    def _what(self) -> str:
        match self.kind:
            case FaultKind.KILL_ACTOR:
                return f"kill actor {self.actor}"
            case FaultKind.PARTITION:
                sides = f" {'to' if self.one_way else 'from'} {','.join(self.others)}" if self.others else ""
                return f"partition {','.join(self.nodes)}{sides}"
            case FaultKind.SLOW_NODE:
                return f"slow {self.node} by {self.factor!r}"
            case FaultKind.SLOW_WORKER | FaultKind.SLOW_HEAD:
                return f"{self.kind} by {self.factor!r}"
            case FaultKind.FILL_DISK:
                return f"fill disk of {self.node}"
            case FaultKind.LIMIT_FILES:
                return f"limit files of {self.node}"
            case FaultKind.FILL_STORE:
                return f"fill {self.node} to {self.factor!r}"
            case FaultKind.FILL_MEMORY:
                return f"fill memory of {self.node} to {self.factor!r}"
            case FaultKind.SKEW_CLOCK:
                return f"skew {self.node} by {'-' if self.skew_ns < 0 else ''}{time_words(abs(self.skew_ns))}"
            case FaultKind.LINK:
                return f"link {self.node}{self._link_words()}"
            case FaultKind.ADD_NODES:
                return f"add {self.count} node{'s' * (self.count != 1)}{' of ' * bool(self.group)}{self.group}"
            case FaultKind.LOSE_GPU:
                return f"lose gpu {self.gpu} of {self.node}"
            case _ if not self.node:
                return str(self.kind)
            case _:
                store = " with its store" if self.keeps_store else ""
                return f"{self.kind.partition(' ')[0]} {self.node}{store}"

    def _link_words(self) -> str:
        factors = [(name, getattr(self, name), float(name in ("bandwidth", "latency"))) for name in LINK_SHARES]
        times = (("delay", self.delay_ns), ("jitter", self.jitter_ns))
        words = [f" {name} {value!r}" for name, value, default in factors if value != default]
        return "".join(words + [f" {name} {time_words(value_ns)}" for name, value_ns in times if value_ns])

    def _when(self) -> str:
        if self.at_ns is not None:
            return f"at {time_words(self.at_ns)}"
        where = f" on {self.on_node}" if self.on_node else ""
        where += f" after {time_words(self.after_ns)}" if self.after_ns else ""
        if self.task_name is None:
            return f"when {self.event} {self.start}{where}"
        verb = next(verb for verb, event in NAME_ANCHORS.items() if event == self.event)
        if self.submission:
            return f"when {self.task_name}#{self.submission} {verb}{where}"
        return f"when {self.task_name} {verb} {self.start}{where}"


_FIELDS = tuple(each.name for each in fields(Fault))
_VALUES = attrgetter(*_FIELDS)


def _restore(*values: Any) -> Fault:
    return Fault(**dict(zip(_FIELDS, values, strict=True)))


# ---- Words -------------------------------------------------------------------------------------------------------

_FORM = re.compile(
    r"(?P<what>\S.*?)\s+(?:at\s+(?P<at>.+?)|when\s+(?:"
    r"(?P<submitted>\S+)#(?P<submission>[0-9]+)\s+(?P<does>starts|ends)"
    r"|(?P<task>\S+)\s+(?P<verb>starts|ends|is\s+submitted)\s+(?P<count>[0-9]+)"
    r"|(?P<event>[a-z_]+)\s+(?P<event_count>[0-9]+)"
    r")(?:\s+on\s+(?P<on_node>\S+))?(?:\s+after\s+(?P<after>\S+))?)(?:\s+for\s+(?P<for>.+))?",
    re.ASCII,
)
_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?"
_WHAT: dict[FaultKind, re.Pattern[str]] = {
    kind: re.compile(form, re.ASCII)
    for kind, form in {
        FaultKind.KILL_WORKER: r"(?:kill|restart)\s+worker",
        FaultKind.PAUSE_WORKER: r"pause\s+worker",
        FaultKind.SLOW_WORKER: rf"slow\s+worker\s+by\s+(?P<factor>{_NUMBER})",
        FaultKind.KILL_HEAD: r"kill\s+head",
        FaultKind.PAUSE_HEAD: r"pause\s+head",
        FaultKind.SLOW_HEAD: rf"slow\s+head\s+by\s+(?P<factor>{_NUMBER})",
        FaultKind.RESTART_HEAD: r"restart\s+head",
        FaultKind.RESTART_REDIS: r"restart\s+redis",
        FaultKind.LOSE_OBJECT: r"lose\s+object",
        FaultKind.HOLD_CALL: r"hold\s+call",
        FaultKind.CORRUPT_OBJECT: r"corrupt\s+object",
        FaultKind.KILL_ACTOR: r"kill\s+actor\s+(?P<actor>\S+)",
        FaultKind.KILL_NODE: r"kill\s+(?P<node>\S+)",
        FaultKind.REBOOT_NODE: r"(?:reboot|restart)\s+(?P<node>\S+)(?P<store>\s+with\s+its\s+store)?",
        FaultKind.DRAIN_NODE: r"(?:drain|remove)\s+(?P<node>\S+)",
        FaultKind.ADD_NODES: r"add\s+(?P<count>[0-9]+)\s+nodes?(?:\s+of\s+(?P<group>\S+))?",
        FaultKind.PAUSE_NODE: r"pause\s+(?P<node>\S+)",
        FaultKind.PARTITION: r"partition\s+(?P<nodes>[^\s,]+(?:\s*,\s*[^\s,]+)*)"
        r"(?:\s+(?P<way>from|to)\s+(?P<others>[^\s,]+(?:\s*,\s*[^\s,]+)*))?",
        FaultKind.CLOG_NODE: r"clog\s+(?P<node>\S+)",
        FaultKind.SLOW_NODE: rf"slow\s+(?P<node>\S+)\s+by\s+(?P<factor>{_NUMBER})",
        FaultKind.FILL_MEMORY: rf"fill\s+memory\s+of\s+(?P<node>\S+)\s+to\s+(?P<factor>{_NUMBER})",
        FaultKind.FILL_DISK: r"fill\s+disk\s+of\s+(?P<node>\S+)",
        FaultKind.LIMIT_FILES: r"limit\s+files\s+of\s+(?P<node>\S+)",
        FaultKind.SKEW_CLOCK: r"skew\s+(?P<node>\S+)\s+by\s+(?P<skew>\S+)",
        FaultKind.FILL_STORE: rf"fill\s+(?P<node>\S+)\s+to\s+(?P<factor>{_NUMBER})",
        FaultKind.LINK: rf"link\s+(?P<node>\S+)(?P<link>(?:\s+(?:(?:{'|'.join(LINK_SHARES)})\s+{_NUMBER}"
        r"|(?:delay|jitter)\s+\S+))+)",
        FaultKind.LOSE_GPU: r"lose\s+gpu\s+(?P<gpu>[0-9]+)\s+of\s+(?P<node>\S+)",
    }.items()
}

EXAMPLES = "'kill node-5 at 2.5s', 'kill node-5 when f starts 40' or 'kill worker when f starts 3'"


def parse_fault(text: str) -> Fault:
    """A fault in words; see the module.

    Raises:
        ValueError: the words are not understood, a worker is to be killed without a task, a count is 0, or a time or
            factor is missing or out of range.
    """
    match = _FORM.fullmatch(text.strip())
    found = None
    if match is not None:
        found = next(((kind, it) for kind, form in _WHAT.items() if (it := form.fullmatch(match["what"]))), None)
    if match is None or found is None:
        if any(form.fullmatch(text.strip()) for form in _WHAT.values()):
            raise ValueError(
                f"fault {text!r} does not say when: end it with `at TIME` or `when TASK starts COUNT`, as in "
                f"'{text.strip()} at 2.5s'"
            )
        raise ValueError(f"fault {text!r} is not understood; write {EXAMPLES}; docs/scenarios.md lists all faults")
    what = f"fault {text!r}"
    kind, words = found
    count = match["count"] or match["event_count"] or "1"
    verb = match["verb"] or match["does"] or "starts"
    fault = Fault(
        kind=kind,
        at_ns=parse_time_ns(match["at"], what) if match["at"] is not None else None,
        task_name=match["task"] or match["submitted"],
        start=int(count),
        submission=int(match["submission"] or 0) or (-1 if match["submission"] else 0),
        on_node=match["on_node"] or "",
        after_ns=parse_time_ns(match["after"], what) if match["after"] is not None else 0,
        event=match["event"] or NAME_ANCHORS[" ".join(verb.split())],
        for_ns=parse_time_ns(match["for"], what) if match["for"] is not None else None,
        **_fields(words, what),
    )
    check_fault(fault, what)
    return fault


def _fields(words: re.Match[str], what: str) -> dict[str, Any]:
    """The fields that the words of one kind give."""
    readers: dict[str, Callable[[str], object]] = {
        "node": str,
        "actor": str,
        "factor": float,
        "gpu": int,
        "count": int,
        "group": str,
        "nodes": _names,
        "others": _names,
    }
    given = {name: text for name, text in words.groupdict().items() if text is not None}
    fields: dict[str, Any] = {name: read(given[name]) for name, read in readers.items() if name in given}
    if given.get("way") == "to":
        fields["one_way"] = True
    if "store" in given:
        fields["keeps_store"] = True
    if "skew" in given:
        fields["skew_ns"] = parse_skew_ns(given["skew"], what)
    pieces = given.get("link", "").split()
    for name, value in zip(pieces[::2], pieces[1::2], strict=True):
        is_time = name in ("delay", "jitter")
        fields[f"{name}_ns" if is_time else name] = parse_time_ns(value, what) if is_time else float(value)
    return fields


def parse_skew_ns(text: str, what: str) -> int:
    """A time that may be negative.

    Raises:
        ValueError: it is none; the message names `what`.
    """
    skew_ns = parse_time_ns(text.removeprefix("-"), what)
    return -skew_ns if text.startswith("-") else skew_ns


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def nodes_added(faults: Iterable[Fault]) -> int:
    """How many nodes these faults add."""
    return sum(fault.count for fault in faults if fault.kind is FaultKind.ADD_NODES)


def check_fault(fault: Fault, what: str = "") -> None:
    """What can be said of a fault without knowing the cluster.

    Raises:
        ValueError: one sentence that begins with `what`, by default the fault in words.
    """
    wrong = next(_what_is_wrong(fault), None)
    if wrong is not None:
        what = what or f"'{fault}'"
        raise ValueError(f"{what}: {wrong}")


def _what_is_wrong(fault: Fault) -> Iterator[str]:
    if fault.start < 1:
        yield "the number of a start or an end must be at least 1"
    if fault.at_ns is None and fault.task_name is None and fault.event not in EVENT_ANCHORS:
        yield f"{fault.event!r} cannot be used after 'when'; known are {', '.join(EVENT_ANCHORS)}"
    if (fault.submission or fault.on_node) and fault.at_ns is not None:
        yield "a submission or a node can only be given with 'when', as in 'when f starts 3 on node-2'"
    if fault.after_ns and fault.at_ns is not None:
        yield "'after' can only be used with 'when', as in 'when f starts 3 after 200ms'"
    if fault.submission < 0:
        yield "the number of a submission must be at least 1"
    if fault.kind in OF_WORKERS and fault.task_name is None:
        yield "the fault needs a task that runs on the worker, as in 'when f starts 3'"
    if fault.kind in OF_OBJECTS and (fault.at_ns is not None or fault.event not in OBJECT_ANCHORS):
        yield (
            f"the fault needs an event that stores or sends the copy, as in 'when object_stored 3'; {_COPY_ANCHORS} "
            f"also work"
        )
    if fault.kind is FaultKind.HOLD_CALL and (fault.task_name is None or fault.event != "task_submitted"):
        yield "the fault needs a call of an actor, as in 'when Ledger.release is submitted 3'"
    if fault.kind is FaultKind.HOLD_CALL and fault.after_ns:
        yield "a call can only be held when it is submitted; leave out 'after'"
    if fault.keeps_store and fault.kind is not FaultKind.REBOOT_NODE:
        yield "only the reboot of a node can keep the store"
    if fault.kind in NEEDS_DURATION and fault.for_ns is None:
        yield "the fault needs a duration, as in 'for 3s'"
    if fault.kind not in MAY_END and fault.for_ns is not None:
        yield f"'{fault.kind}' does not end; leave out 'for'"
    if fault.kind in SLOWS and not fault.factor > 0:
        yield "the factor must be above 0; the factor 4 means four times as slow"
    if fault.kind in (FaultKind.FILL_STORE, FaultKind.FILL_MEMORY) and not 0 < fault.factor <= 1:
        yield "the share must be above 0 and at most 1; the share 0.9 leaves a tenth free"
    if fault.kind is FaultKind.SKEW_CLOCK and not fault.skew_ns:
        yield "the fault needs an amount of time: 'by 30s' sets the clock 30 s ahead, and 'by -30s' sets it back"
    if fault.kind is FaultKind.ADD_NODES and not 1 <= fault.count <= ADDED_MAX:
        yield f"the number of nodes to add must be between 1 and {ADDED_MAX:,}"
    if fault.kind is FaultKind.LINK:
        yield from _what_is_wrong_with_link(fault)
    if fault.node in ("head", ALL) and fault.kind is not FaultKind.LINK:
        yield (
            f"the fault needs a node such as node-3; the head can only have the faults {', '.join(sorted(OF_HEAD))} "
            f"and link"
        )
    if fault.kind is FaultKind.PARTITION:
        both = [name for name in fault.nodes if name in fault.others]
        if both:
            yield f"{both[0]} is on both sides of the partition; name it on one side only"


def _what_is_wrong_with_link(fault: Fault) -> Iterator[str]:
    if not (fault.bandwidth > 0 and fault.latency > 0):
        yield "bandwidth and latency must be factors above 0, such as 0.1 for a tenth; to cut a link, use partition"
    if not 0 <= fault.loss < 1:
        yield "loss must be a share of all TCP segments, from 0 to below 1"
    if not 0 <= fault.drop < 1:
        yield "drop must be a share of all messages, from 0 to below 1; to cut a link, use partition"
    if not 0 <= fault.duplicate <= 1:
        yield "duplicate must be a share of all messages, from 0 to 1"
    if not 0 <= fault.reorder <= 1:
        yield "reorder must be a share of all messages, from 0 to 1"
