"""The oracles: what must hold in every run, whatever goes wrong. They know nothing of the faults.

Machines check their own invariants after every event; here stands what no single machine can see: that the trace of the
whole cluster makes sense, and that a run with faults gave what the run without them gave, or an honest error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dualray.exceptions import InvariantViolation
from dualray.shared.policies.placement import scores_of
from dualray.shared.proof.trace import TraceEvent, TraceKind

if TYPE_CHECKING:
    from dualray.shared.machines.head.global_scheduler import GlobalScheduler
    from dualray.shared.model.events import LeaseRequested
    from dualray.shared.policies.placement import ClusterView, Placement, PlacementPolicy

UNSCHEDULABLE = frozenset(
    {"ActorUnschedulableError", "PlacementGroupUnschedulableError", "TaskUnschedulableError"},
)
"""What no cluster of today's nodes can take."""

HONEST_ERRORS = UNSCHEDULABLE | frozenset(
    {
        "ActorDiedError",
        "ActorUnavailableError",
        "ControlPlaneError",
        "NodeDiedError",
        "ObjectLostError",
        "ObjectStoreFullError",
        "OutOfMemoryError",
        "WorkerCrashedError",
    }
)
"""What a program that does not survive every fault may end with, subclasses included."""

LISTED_MAX = 5
"""Findings of one kind that are listed."""


def check_trace(trace: Sequence[TraceEvent]) -> list[str]:
    """What is wrong in the trace of a cluster, in words."""
    starts_and_ends: list[TraceEvent] = []
    transfers: list[TraceEvent] = []
    of_kind = {_STARTED: starts_and_ends, _ENDED: starts_and_ends, _TRANSFER: transfers}
    for event in trace:
        events = of_kind.get(event.kind)
        if events is not None:
            events.append(event)
    return [*_started_twice(starts_and_ends), *_ended_without_start(starts_and_ends), *_bytes_changed(transfers)]


_STARTED, _ENDED, _TRANSFER = TraceKind.TASK_STARTED, TraceKind.TASK_ENDED, TraceKind.TRANSFER_STARTED


def _started_twice(trace: Iterable[TraceEvent]) -> Iterator[str]:
    """An attempt of a task, or of an actor's method, runs at most once."""
    started: dict[tuple[str, int], str] = {}
    found = 0
    for event in trace:
        if event.kind is _STARTED:
            key = (event.subject, event.amount)
            if key in started and found < LISTED_MAX:
                found += 1
                yield (
                    f"attempt {event.amount} of {event.name} (task {event.subject[:8]}) started on {started[key]} and "
                    f"again on {event.process}"
                )
            started[key] = event.process


def _ended_without_start(trace: Iterable[TraceEvent]) -> Iterator[str]:
    """What ends has started, once, and in the same process."""
    running: dict[tuple[str, int, str], int] = {}
    found = 0
    for event in trace:
        key = (event.subject, event.amount, event.process)
        if event.kind is _STARTED:
            running[key] = running.get(key, 0) + 1
        elif event.kind is _ENDED:
            if not running.get(key) and found < LISTED_MAX:
                found += 1
                yield f"attempt {event.amount} of {event.name} ({event.subject[:8]}) ended twice on {event.process}"
            running[key] = running.get(key, 0) - 1


def _bytes_changed(trace: Iterable[TraceEvent]) -> Iterator[str]:
    """An object that travels has one size, whoever sends it."""
    sizes: dict[str, int] = {}
    found = 0
    for event in trace:
        if event.kind is _TRANSFER:
            size = sizes.setdefault(event.subject, event.amount)
            if size != event.amount and found < LISTED_MAX:
                found += 1
                yield f"object {event.subject[:8]} had {size:,} bytes and was sent with {event.amount:,}"


# ---- While it runs -------------------------------------------------------------------------------------------------

CHOICES_SKIPPED = 7
"""Between two placements that are looked at."""

CANDIDATES_MAX = 64
"""Nodes of which the ranks are compared: of more, it would cost more than the run."""


def watch_choices(scheduler: GlobalScheduler) -> None:
    """From now on check some of its choices; see `choice_check`."""
    scheduler.on_choice = choice_check()


def choice_check() -> Callable[[LeaseRequested, PlacementPolicy, ClusterView, Placement], None]:
    """Return a function that checks some choices of nodes. The policy itself must give the chosen node the lowest rank,
    and must choose a node if any has a rank.

    What a policy answers and how it explains that are written down twice, and differ when one of them is wrong.
    Policies that do not rank (see PlacementPolicy) are taken at their word.

    Raises:
        InvariantViolation: from within the run, a choice that the policy's own ranks do not bear out.
    """
    until_next = 0

    def on_choice(request: LeaseRequested, policy: PlacementPolicy, view: ClusterView, answer: Placement) -> None:
        nonlocal until_next
        until_next -= 1
        if until_next >= 0 or len(view.candidates) > CANDIDATES_MAX:
            return
        until_next = CHOICES_SKIPPED
        scores = scores_of(policy, request.shape, view, request.via)
        ranked = [(score.rank, score.node) for score in scores if score.rank is not None]
        if ranked and min(ranked)[1] != answer.node:
            raise InvariantViolation(
                f"{type(policy).__name__} chose {answer.node or 'no node'} for {request.shape.name}, although its "
                f"own ranking puts {min(ranked)[1]} first"
            )

    return on_choice
