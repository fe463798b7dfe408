"""The stories of the tasks and objects that a failure is about, for who reads the failure.

Which those are says the message, where it names any; else they are the tasks that did not go their usual way: those
that were tried again, or failed, and calls that a fault held. The words are those of `dualray explain`
(dualray/report/explain.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf
from pathlib import Path

from dualray.report.explain import Line, Teller
from dualray.report.find import find_id
from dualray.report.histories import NOT_ENDED, Lives, TaskLife
from dualray.report.record import read_record
from dualray.shared.units import time_words

STORIES_MAX = 2
LINES_MAX = 16
"""Of one story, the first and the last ones: how it began, and how it ended."""

_IDS = re.compile(r"\b[0-9a-f]{8}(?::[0-9a-f]+)?\b")


def stories_of(record: Path, message: str, *, is_whole: bool = False) -> list[str]:
    """The lines of the stories that belong to a failure, of a run that was recorded.

    Args:
        record: the directory of the run's decision logs and trace.
        message: what the failure says.
        is_whole: no line of a story is left out.
    """
    lives = Lives(read_record(record))
    teller = Teller(lives)
    told: list[str] = []
    for subject in list(dict.fromkeys(_subjects(lives, message)))[:STORIES_MAX]:
        story = teller.tell(subject)
        told.append(story.title)
        lines = sorted((*story.lines, *_overtaking(lives, subject)), key=lambda line: line.time_ns or 0)
        left_out = 0 if is_whole else len(lines) - LINES_MAX
        last = len(lines) - LINES_MAX // 2
        for place, line in enumerate(lines):
            if left_out > 1 and last - left_out <= place < last:
                told += [f"  ... {left_out} lines are left out"] * (place == last - left_out)
            else:
                told += _words(line, lives.zero_ns)
    return told


def _overtaking(lives: Lives, subject: str) -> Iterator[Line]:
    """The calls that an actor ran before a call that a fault held, although their callers made them later."""
    held = lives.tasks.get(subject)
    if held is None or held.spec is None or not any(fault.subject == subject for fault in lives.faults):
        return
    starts_ns = min((it.started_ns for it in held.attempts.values() if it.started_ns is not None), default=inf)
    for life in lives.tasks.values():
        is_later = life.spec is not None and life.spec.actor_id == held.spec.actor_id and life.owner != held.owner
        if is_later and life.submitted_ns >= held.submitted_ns:
            first_ns = min((it.started_ns for it in life.attempts.values() if it.started_ns is not None), default=inf)
            if first_ns < starts_ns:
                yield Line(int(first_ns), f"The actor runs {life.name}, which {life.owner} called later.")


def _subjects(lives: Lives, message: str) -> Iterator[str]:
    for named in _IDS.findall(message):
        try:
            yield find_id(lives, named)
        except ValueError:  # digits of something else
            continue
    held = {fault.subject for fault in lives.faults}
    unusual = [life for life in lives.tasks.values() if life.task in held or _is_unusual(life)]
    yield from (life.task for life in sorted(unusual, key=lambda life: life.submitted_ns))


def _is_unusual(life: TaskLife) -> bool:
    return len(life.attempts) > 1 or any(it.outcome not in ("", NOT_ENDED) for it in life.attempts.values())


def _words(line: Line, zero_ns: int) -> Iterator[str]:
    when = "" if line.time_ns is None else time_words(max(0, line.time_ns - zero_ns))
    yield f"  {when:>12}  {line.text}"
    yield from (f"  {'':>12}    - {detail}" for detail in line.details)
