"""Which result is whose argument, in a program of which only Ray's own events are known.

Theory of operation. A call leaves the state "waits for arguments" in the moment when its last argument is there: some
tenths of a millisecond after the end of the call that makes it. That edge is *seen*. The other arguments are told by
how the calls of one function behave together. Of each group (one caller, one function, between two waits of the caller)
these patterns are tried, and the one with which most of its calls agree is taken:

    all         each call takes the results of all calls of one function; of a function that is called once, those that
                nobody has taken
    in order    each call takes the next N results, in the order of their submission, that nobody has taken
    last        each call takes what it is seen to wait for, and no more

A call agrees when what it is seen to wait for is the last to end of what the pattern gives it, or, when it is not seen
to wait, when all of that had ended before it was submitted.

What the caller waits for is told by its pauses: if all that it has submitted has ended when it submits again, it has
waited for all; if one call has only just ended, for that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from dualray.recording.ray_events import ARGUMENTS_THERE, SUBMITTED, Call

_SEEN_NS = 500_000
"""A call that waits for an argument goes on within this after the argument's maker has ended."""
_SEEN_LATE_NS = 3_000_000
_LONG_NS = 5_000_000
"""Of many that wait for one argument the last goes on later: a call that has waited for longer than _LONG_NS may go on
within _SEEN_LATE_NS."""
_SEEN_SHARE_MIN = 0.3
"""Of the calls of a function whose calls agree on no pattern: when fewer are seen to wait, chance explains it."""
_SOON_NS = 3_000_000
"""A caller that has waited submits again within this."""
_PAUSE_NS = 1_000_000
"""A caller that submits without waiting does so within this."""
_NOTED_LATE_NS = 1_000_000
"""A caller that has waited may submit again so long before the end of what it waited for is noted."""
_TAKES_MAX = 16
_AGREE_MIN = 0.9


@dataclass(frozen=True, slots=True)
class Wait:
    """A caller has waited, from one time to another, for these calls."""

    began_ns: int
    ended_ns: int
    tasks: tuple[str, ...]
    is_for_all: bool


@dataclass(slots=True)
class Inferred:
    """What was inferred.

    arguments: of each call, the calls whose results it takes.
    waits: of each caller, by its task's id.
    words: each pattern in a sentence, with how many calls agree.
    seen, guessed: how many edges were seen, and how many a pattern gives beside them.
    """

    arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waits: dict[str, list[Wait]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    seen: int = 0
    guessed: int = 0


def infer(calls: Sequence[Call], ends_ns: dict[str, int]) -> Inferred:
    """Infer edges and waits. `calls`: in order of submission; `ends_ns`: when each caller has ended, by its id."""
    found = Inferred()
    by_caller: dict[str, list[Call]] = {}
    for call in calls:
        by_caller.setdefault(call.parent, []).append(call)
    said: dict[str, None] = {}
    for caller, children in by_caller.items():
        waits = found.waits[caller] = _waits(children, ends_ns.get(caller, 0))
        for epoch in _epochs(children, waits):
            _infer_edges(epoch, found, said)
    found.words = list(said)
    return found


def _waits(children: Sequence[Call], ends_ns: int) -> list[Wait]:
    """For what a caller has waited. `ends_ns`: when it ended; 0: unknown, a driver."""
    waits: list[Wait] = []
    still_open: list[Call] = []
    last_end_ns = ends_ns or max(each.last.ended_ns for each in children)
    for call, after in zip_longest(children, children[1:]):
        if not call.is_creation:
            still_open.append(call)
        began_ns = call.submitted_ns
        next_ns = last_end_ns if after is None else after.submitted_ns
        if next_ns - began_ns < _PAUSE_NS and after is not None:
            continue
        ended = [each for each in still_open if 0 < each.last.ended_ns <= next_ns + _NOTED_LATE_NS]
        if not ended or (after is not None and all(each.last.ended_ns <= began_ns for each in ended)):
            continue
        latest = max(ended, key=lambda each: each.last.ended_ns)
        last_ns = min(latest.last.ended_ns, next_ns)
        if len(ended) == len(still_open):
            waits.append(Wait(began_ns, max(last_ns, began_ns), tuple([each.task for each in ended]), True))
            still_open = []
        elif next_ns - last_ns < _SOON_NS:
            waits.append(Wait(began_ns, last_ns, (latest.task,), False))
            still_open.remove(latest)
    return waits


def _epochs(children: Sequence[Call], waits: Sequence[Wait]) -> list[list[Call]]:
    """The calls between two waits for all."""
    bounds = [wait.ended_ns for wait in waits if wait.is_for_all]
    epochs: list[list[Call]] = [[] for _ in range(len(bounds) + 1)]
    for call in children:
        epochs[bisect_right(bounds, call.submitted_ns)].append(call)
    return [epoch for epoch in epochs if epoch]


def _infer_edges(epoch: Sequence[Call], found: Inferred, said: dict[str, None]) -> None:
    seen = _seen(epoch)
    groups: dict[str, list[Call]] = {}
    for call in epoch:
        if not call.is_creation:
            groups.setdefault(call.name, []).append(call)
    taken: set[str] = set()
    for name, group in groups.items():
        waiting = [call for call in group if call.task in seen]
        if not waiting:
            continue
        makers = [call for call in epoch if not call.is_creation]
        best, pattern, agree = _best(group, makers, seen, taken)
        if agree < _AGREE_MIN and len(waiting) < _SEEN_SHARE_MIN * len(group):
            continue
        if agree < _AGREE_MIN:
            best, pattern = {call.task: (seen[call.task].task,) for call in waiting}, "what it is seen to wait for"
        for call in group:
            arguments = best.get(call.task, ())
            if not arguments:
                continue
            found.arguments[call.task] = arguments
            taken.update(arguments)
            was_seen = call.task in seen and seen[call.task].task in arguments
            found.seen += was_seen
            found.guessed += len(arguments) - was_seen
        count = sum(call.task in best and bool(best[call.task]) for call in group)
        said[f"{name} takes {pattern}: {agree:.0%} of {count} calls agree"] = None


def _seen(epoch: Sequence[Call]) -> dict[str, Call]:
    """Of each call that has waited: whose end has let it go on."""
    ordered = sorted(epoch, key=lambda call: call.last.ended_ns)
    ends_ns = [call.last.ended_ns for call in ordered]
    seen: dict[str, Call] = {}
    for call in epoch:
        states = call.attempts[min(call.attempts)].states
        there_ns, submitted_ns = states.get(ARGUMENTS_THERE, 0), states.get(SUBMITTED, 0)
        place = bisect_right(ends_ns, there_ns) - 1
        within_ns = _SEEN_LATE_NS if there_ns - submitted_ns > _LONG_NS else _SEEN_NS
        if place >= 0 and ends_ns[place] > submitted_ns and there_ns - ends_ns[place] <= within_ns:
            seen[call.task] = ordered[place]
    return seen


Arguments = dict[str, tuple[str, ...]]


def _best(
    group: Sequence[Call], makers: Sequence[Call], seen: dict[str, Call], taken: set[str]
) -> tuple[Arguments, str, float]:
    """The pattern with which most calls of a group agree: what it gives, in words, and how many agree."""
    ends_ns = {maker.task: maker.last.ended_ns for maker in makers}
    tried: list[tuple[Arguments, str]] = []
    waited = [seen[call.task] for call in group if call.task in seen]
    name = waited[0].name
    is_shared = len({maker.task for maker in waited}) < len(waited)
    if (is_shared or len(group) == 1) and name != group[0].name:
        all_of = [maker for maker in makers if maker.name == name and (is_shared or maker.task not in taken)]
        given = {
            call.task: tuple([maker.task for maker in all_of if maker.submitted_ns < call.submitted_ns])
            for call in group
        }
        tried.append((given, f"the results of all calls of {name}"))
    for count in range(1, _TAKES_MAX + 1):
        results = "result" if count == 1 else f"{count} results"
        tried.append((_in_order(group, makers, taken, count), f"the next {results}, in their order"))
    best: tuple[Arguments, str, float] = ({}, "", -1.0)
    for given, words in tried:
        agreeing = [call for call in group if _agrees(call, given.get(call.task, ()), seen, ends_ns)]
        of_waiting = sum(call.task in seen for call in agreeing) / len(waited)
        agree = min(len(agreeing) / len(group), of_waiting)
        if agree > best[2]:
            best = given, words, agree
    return best


def _in_order(group: Sequence[Call], makers: Sequence[Call], taken: set[str], count: int) -> Arguments:
    """Each call takes the next results that nobody has taken."""
    given: Arguments = {}
    free: deque[str] = deque()
    others = deque(makers)
    for call in group:
        while others and others[0].submitted_ns < call.submitted_ns:
            maker = others.popleft()
            if maker.task not in taken:
                free.append(maker.task)
        if len(free) >= count:
            given[call.task] = tuple([free.popleft() for _ in range(count)])
    return given


def _agrees(call: Call, given: tuple[str, ...], seen: dict[str, Call], ends_ns: dict[str, int]) -> bool:
    maker = seen.get(call.task)
    if maker is None:
        return all(ends_ns[task] <= call.submitted_ns for task in given)
    return maker.task in given and all(ends_ns[task] <= maker.last.ended_ns for task in given)
