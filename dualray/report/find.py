"""Which task or object of a run a person means: by an id, the beginning of one, or a function's name."""

from __future__ import annotations

import difflib
import re

from dualray.report.histories import NOT_ENDED, TASK_HEX, Lives, TaskLife
from dualray.shared.model.ids import short

__all__ = ["find_id"]

NEAREST_SHOWN = 3
LISTED_MAX = 8
"""Ids that an error lists."""
SHORT_HEX = 8
"""Characters of an id."""
_RESULT = re.compile(r"([0-9a-f]{8}):[0-9a-f]+")


def find_id(lives: Lives, wanted: str) -> str:
    """The task or object of a run that a person means: by its id, or by a beginning of it that is the only one.

    Raises:
        ValueError: there is none, or more than one; the message names the nearest, or those there are.
    """
    text = wanted.strip().lower()
    if text in lives.tasks or text in lives.objects:
        return text
    if not text:
        raise ValueError(
            "the id is empty; give the 32 hex digits of a task's id, the 40 hex digits of an object's id, or their "
            "beginning"
        )
    by_short = [each for each in lives.objects if short(bytes.fromhex(each)) == text]
    if len(by_short) == 1:
        return by_short[0]
    result = _RESULT.fullmatch(text)  # a small value, which was never in a store: its task tells its history
    tasks = [each for each in lives.tasks if each.startswith(result[1] if result is not None else text)]
    if len(tasks) == 1 and len(text) <= TASK_HEX:
        return tasks[0]
    objects = [each for each in lives.objects if each.startswith(text)]
    if not tasks and len(objects) == 1:
        return objects[0]
    if tasks or objects:
        raise ValueError(
            f"{wanted!r} is the beginning of {_count(tasks or objects)}; give more digits of one id: "
            f"{_listed(lives, tasks or objects)}"
        )
    named = [task.task for task in lives.tasks.values() if wanted.strip() in _names(task)]
    if len(named) == 1:
        return named[0]
    if named:
        raise ValueError(f"{wanted!r} is the name of {len(named):,} tasks; give one of these ids:{_told(lives, named)}")
    raise ValueError(
        f"no task or object of this run has the name {wanted!r}, or an id that begins with "
        f"{wanted!r}{_nearest(lives, text)}"
    )


def _names(task: TaskLife) -> tuple[str, ...]:
    """Return the names of a task: of its function or method, or of the class and the actor that it constructs."""
    actor = None if task.spec is None else task.spec.creates
    return task.name, task.name.rpartition(".")[2], *((actor.name,) if actor is not None and actor.name else ())


def _count(ids: list[str]) -> str:
    return f"{len(ids):,} ids" if len(ids) > 1 else "one id"


def _listed(lives: Lives, ids: list[str]) -> str:
    shown = [f"{each} ({lives.tasks[each].name})" if each in lives.tasks else each for each in ids[:LISTED_MAX]]
    return ", ".join(shown) + (", ..." if len(ids) > LISTED_MAX else "")


def _told(lives: Lives, ids: list[str]) -> str:
    """A line for each: those first that were tried again, lost or raised."""

    def unusual(life: TaskLife) -> bool:
        return len(life.attempts) > 1 or any(it.outcome not in ("", NOT_ENDED) for it in life.attempts.values())

    lines = []
    for each in sorted(ids, key=lambda it: not unusual(lives.tasks[it]))[:LISTED_MAX]:
        attempts = lives.tasks[each].attempts
        last = attempts[max(attempts)] if attempts else None
        where = f" on {last.worker}" if last is not None else ""
        state = "was never started" if last is None else last.outcome or "returned"
        again = f", {len(attempts)} attempts" if len(attempts) > 1 else ""
        lines.append(f"\n  {each[:SHORT_HEX]}  {state}{where}{again}")
    return "".join(lines) + ("\n  ..." if len(ids) > LISTED_MAX else "")


def _nearest(lives: Lives, text: str) -> str:
    """The ids whose beginning is most like what was given; without any likeness, the first."""
    known = {each[: len(text)]: each for each in (*lives.objects, *lives.tasks)}
    close = difflib.get_close_matches(text, known, n=NEAREST_SHOWN, cutoff=0.5)
    nearest = [known[each] for each in close] or list(lives.tasks)[:NEAREST_SHOWN]
    if not nearest:
        return "; the run has none"
    return f"; {'the nearest are' if close else 'its first tasks are'} {_listed(lives, nearest)}"
