"""What happens to a cluster in memory (harness.py), as data: the steps that user code takes, faults, progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dualray.shared.model.specs import Streaming

MS = 1_000_000
DISK_BYTES = 1500
"""Of each node, where objects are spilled."""
INLINE_MAX = 100
"""Larger values lie in the stores."""
STEPS_MAX = 100_000
"""Deliveries after which a cluster is taken to be in a loop."""


# ---- What user code does -----------------------------------------------------------------------------------------
# Integers choose among what the process has, modulo its number: a step means something wherever shrinking leaves it.


@dataclass(frozen=True, slots=True)
class Out:
    """A return value: its size, and the references in it."""

    size: int = 10
    nested: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """A function, or method: its steps, how it ends, and in how many attempts it ends badly."""

    steps: tuple[Step, ...] = ()
    outs: tuple[Out, ...] = (Out(),)
    ending: str = "return"
    """How its first `bad_attempts` attempts end: "raise", or "exit", which is the end of its process; "leave": a method
    ends its actor in good order."""
    bad_attempts: int = 1


@dataclass(frozen=True, slots=True)
class Put:
    size: int = 10
    nested: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Submit:
    body: Body = Body()
    deps: tuple[int, ...] = ()
    nested: tuple[int, ...] = ()
    handles: tuple[int, ...] = ()
    retries: int = 0
    retry_exceptions: bool = False
    cpus: int = 1
    gpus: int = 0
    strategy: int = 0
    """0 DEFAULT, 1 SPREAD, then NODE_AFFINITY to each node, hard and soft in turn."""
    streaming: Streaming = Streaming.NO
    """Whether its body is a generator, whose items are `outs`: it ends badly in their middle."""
    ahead_max: int = 0
    max_calls: int = 0
    runtime_env: str = ""
    large: int = 0
    """Bytes of an argument by value that is too large to travel with the call; 0: there is none."""


@dataclass(frozen=True, slots=True)
class MakeActor:
    body: Body = Body()
    deps: tuple[int, ...] = ()
    nested: tuple[int, ...] = ()
    restarts: int = 0
    strategy: int = 0
    large: int = 0
    concurrency: int = 1
    cpus: int = 0
    """What it holds while it lives."""


@dataclass(frozen=True, slots=True)
class Call:
    handle: int = 0
    body: Body = Body()
    deps: tuple[int, ...] = ()
    nested: tuple[int, ...] = ()
    handles: tuple[int, ...] = ()
    retries: int = 0
    large: int = 0
    streaming: Streaming = Streaming.NO
    ahead_max: int = 0


@dataclass(frozen=True, slots=True)
class Get:
    refs: tuple[int, ...] = (0,)
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    refs: tuple[int, ...] = (0,)
    num: int = 1
    fetch: bool = True
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop one reference; with `keep`, the process keeps it beyond the task."""

    ref: int = 0
    keep: bool = False


@dataclass(frozen=True, slots=True)
class DropHandle:
    handle: int = 0
    keep: bool = False


@dataclass(frozen=True, slots=True)
class DropValue:
    """Drop a value that `Get` has brought: its view ends."""

    value: int = 0


@dataclass(frozen=True, slots=True)
class KillActor:
    handle: int = 0
    no_restart: bool = True


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the task that makes an object, by force or not."""

    ref: int = 0
    force: bool = False
    recursive: bool = True


@dataclass(frozen=True, slots=True)
class Next:
    """Wait for the next item of a generator, and take it."""

    stream: int = 0
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class DropStream:
    """Take no more items."""

    stream: int = 0


@dataclass(frozen=True, slots=True)
class Sleep:
    ns: int = MS


@dataclass(frozen=True, slots=True)
class AskState:
    pass


Step: TypeAlias = (
    Put
    | Submit
    | MakeActor
    | Call
    | Get
    | Wait
    | Drop
    | DropHandle
    | DropValue
    | KillActor
    | Cancel
    | Next
    | DropStream
    | Sleep
    | AskState
)

# ---- What happens to the cluster ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver so many messages."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class Settle:
    """Deliver until nothing is on its way; timers do not fire."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The earliest timer fires, though messages may be on their way: processes are slow at times."""


@dataclass(frozen=True, slots=True)
class KillWorker:
    worker: int = 0
    ending: int = 0


@dataclass(frozen=True, slots=True)
class KillNode:
    """Never node-0, on which the driver lives."""

    node: int = 1
    silently: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """A node is not heard for a while, or for so long that it is taken for dead; then it is heard again."""

    node: int = 1
    heard_after: int = 10


@dataclass(frozen=True, slots=True)
class Reboot:
    """A node that was killed comes back as a new incarnation."""

    node: int = 1


Fault: TypeAlias = KillWorker | KillNode | Silence | Reboot
Op: TypeAlias = Step | Fault | Deliver | Settle | Tick


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cluster is made of: for each node, CPUs, GPUs and bytes of its store."""

    nodes: tuple[tuple[int, int, int], ...] = ((2, 0, 1000), (2, 0, 1000))
    orderly: bool = False
    """Some channels are always served before others, in an order that the seed gives, instead of all being alike."""
    spills: bool = False
    """Full stores spill to disks, each third time in vain."""
