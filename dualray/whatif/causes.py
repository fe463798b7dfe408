"""On what the time of a predicted run goes: its critical path as a table of causes, which add up to the makespan.

The path follows what the program itself needs: from its end back to what that waited for, and from a task back to its
last argument, or to its submission. What a task waited for beyond these is split up by what went on meanwhile:

    compute         its code computes or sleeps, for as long as it takes alone
    queue           it has all that it needs, and waits for a worker, an actor or a core that others use
    transfer        an object that it needs comes from another node
    spill           objects of its node are written to disk, or read back
    retry           an attempt that was lost, until the next one begins
    control plane   messages, placement, starts of workers within a running cluster, and storing results
    nodes starting  the first workers of a cluster that starts with the program
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dualray.sim.cost.cost_model import CostModel
from dualray.sim.replay.replayed import Move, Replayed, Step
from dualray.whatif.critical_path import Stretch, critical_path

COMPUTE, QUEUE, TRANSFER, SPILL, RETRY, CONTROL, STARTING = (
    "compute",
    "queue",
    "transfer",
    "spill",
    "retry",
    "control plane",
    "nodes starting",
)
CAUSES = (COMPUTE, QUEUE, TRANSFER, SPILL, RETRY, CONTROL, STARTING)
_MESSAGES = 12
"""At most so many follow one another until a task begins that has all it needs; who waits longer queues."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of the table."""

    name: str
    seconds: float
    share: float
    """Of the makespan."""


def causes_of(replayed: Replayed, costs: CostModel, *, cold_start_ns: int = 0) -> list[Cause]:
    """The table of a replay that has noted its steps, in the order of CAUSES.

    Args:
        cold_start_ns: how long the first workers of the cluster took to start, when it started with the program.
    """
    steps = replayed.steps
    assert steps is not None
    found = dict.fromkeys(CAUSES, 0)
    messages_ns = max(costs.local_message_ns, costs.node_message_ns, costs.head_message_ns)
    control_ns = _MESSAGES * messages_ns + costs.worker_start_ns
    moves: dict[str, list[Move]] = {}
    for move in replayed.moves or ():
        moves.setdefault(move.node, []).append(move)
    for stretch in critical_path(steps, through_workers=False):
        span = (round(stretch.began_s * 1e9), round(stretch.ended_s * 1e9))
        step = steps[stretch.task]
        if stretch.waits:
            _split_wait(found, span, stretch, steps, moves.get(step.node, ()), control_ns, cold_start_ns)
        else:
            _split_work(found, span, step)
    total_ns = sum(found.values()) or 1
    return [Cause(name, ns / 1e9, ns / total_ns) for name, ns in found.items()]


def _split_work(found: dict[str, int], span: Span, step: Step) -> None:
    """A stretch in which the code goes on: as long as it takes alone, and what it takes longer beside others."""
    covered_ns = alone_ns = 0
    for began_ns, ended_ns, work_ns in step.computing:
        shared_ns = min(ended_ns, span[1]) - max(began_ns, span[0])
        if shared_ns > 0:
            covered_ns += shared_ns
            alone_ns += min(shared_ns, round(work_ns * shared_ns / (ended_ns - began_ns)))
    found[COMPUTE] += alone_ns
    found[QUEUE] += covered_ns - alone_ns
    found[CONTROL] += span[1] - span[0] - covered_ns


def _split_wait(
    found: dict[str, int],
    span: Span,
    stretch: Stretch,
    steps: Mapping[bytes, Step],
    moves: Iterable[Move],
    control_ns: int,
    cold_start_ns: int,
) -> None:
    """A stretch in which a task waits."""
    step = steps[stretch.task]
    left = [span]
    parts: list[tuple[str, list[Span]]] = [(RETRY, step.lost)]
    if cold_start_ns:
        parts.append((STARTING, [(0, cold_start_ns)]))
    moves = list(moves)
    wanted = frozenset(stretch.objects)
    parts.append((TRANSFER, [(it.began_ns, it.ended_ns) for it in moves if not it.is_disk and it.object_id in wanted]))
    parts.append((SPILL, [(it.began_ns, it.ended_ns) for it in moves if it.is_disk]))
    if stretch.begins and step.before in steps:
        parts.append((QUEUE, [(0, steps[step.before].ended_ns)]))
    for name, spans in parts:
        taken_ns, left = _take(left, spans)
        found[name] += taken_ns
    rest_ns = sum(ended_ns - began_ns for began_ns, ended_ns in left)
    queued_ns = max(0, rest_ns - control_ns) if stretch.begins else 0
    found[QUEUE] += queued_ns
    found[CONTROL] += rest_ns - queued_ns


def _take(left: list[Span], spans: Iterable[Span]) -> tuple[int, list[Span]]:
    """How much of what is left lies within these spans, and what is left without it."""
    before_ns = sum(ended_ns - began_ns for began_ns, ended_ns in left)
    for began_ns, ended_ns in spans:
        rest = []
        for first_ns, last_ns in left:
            if ended_ns <= first_ns or began_ns >= last_ns:
                rest.append((first_ns, last_ns))
                continue
            if first_ns < began_ns:
                rest.append((first_ns, began_ns))
            if ended_ns < last_ns:
                rest.append((ended_ns, last_ns))
        left = rest
    return before_ns - sum(ended_ns - began_ns for began_ns, ended_ns in left), left
