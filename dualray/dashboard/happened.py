"""What happened, in sentences: faults, what was lost by them, and what was done again.

Things of one kind that follow one another closely share a sentence, which counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from dualray.dashboard.tables import Tables

NAMES_SHOWN: Final = 3
TOGETHER_S: Final = 1.0
"""What comes within this time of the last of its kind shares its sentence."""

_AGAIN: Final = {
    "retry": ("is tried again", "are tried again"),
    "reconstruction": ("runs again, to make lost objects anew", "run again, to make lost objects anew"),
    "restart": ("is made anew", "are made anew"),
}


class Happened:
    """See the module; writes the table `happened`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._count = 0
        self._open: dict[tuple[str, str], tuple[list[Any], Counter[str], float]] = {}
        """By kind and detail: the row, what it counts, and when the last of these was."""

    def fault(self, time_s: float, name: str, subject: str, lost: Sequence[str]) -> None:
        """A fault that does not take a whole node."""
        where = f" at {subject}" if subject else ""
        self._add(time_s, "fault", f"Fault: {name}{where}.{_lost_words(lost, 0)}", _node(subject))

    def node_lost(self, time_s: float, node: str, lost: Sequence[str], only: int) -> None:
        """A node is gone."""
        self._add(time_s, "fault", f"{node} was killed.{_lost_words(lost, only)}", node)

    def node_started(self, time_s: float, node: str, *, is_new: bool) -> None:
        """A node has joined, or come back."""
        words = f"{node} joined the cluster." if is_new else f"{node} came back, with an empty store."
        self._add(time_s, "node", words, node)

    def node_state(self, time_s: float, node: str, state: str) -> None:
        """The head has changed its mind about a node."""
        words = {"DEAD": "is dead", "SUSPECT": "does not answer", "ALIVE": "answers again", "DRAINING": "is leaving"}
        self._add(time_s, "fault" if state == "DEAD" else "node", f"{node} {words.get(state, state)}.", node)

    def worker_lost(self, time_s: float, worker: str, why: str, lost: Sequence[str]) -> None:
        """A worker ended while it ran something."""
        because = f": {why}" if why else ""
        self._add(time_s, "loss", f"Worker {worker} ended{because}.{_lost_words(lost, 0)}", _node(worker))

    def failed(self, time_s: float, name: str, error: str, worker: str) -> None:
        """A task raised."""
        counts = self._together(time_s, "failure", error)
        counts[name] += 1
        times = counts.total()
        words = f"{_names(counts)} failed: {error}." if times > 1 else f"{name} failed on {worker}: {error}."
        self._say("failure", error, words)

    def again(self, time_s: float, name: str, cause: str) -> None:
        """A task runs again."""
        counts = self._together(time_s, "again", cause)
        counts[name] += 1
        one, many = _AGAIN.get(cause, (f"runs again ({cause})", f"run again ({cause})"))
        total = counts.total()
        words = f"{total:,} task{'s' if total > 1 else ''} {many if total > 1 else one}: {_names(counts)}."
        self._say("again", cause, words)

    def _together(self, time_s: float, kind: str, detail: str) -> Counter[str]:
        known = self._open.get((kind, detail))
        if known is None or time_s - known[2] > TOGETHER_S:
            known = (self._add(time_s, kind, "", ""), Counter(), time_s)
        self._open[kind, detail] = (known[0], known[1], time_s)
        return known[1]

    def _say(self, kind: str, detail: str, words: str) -> None:
        row = self._open[kind, detail][0]
        row[3] = words
        self._tables.put("happened", row[0], lambda: row)

    def _add(self, time_s: float, kind: str, words: str, node: str) -> list[Any]:
        self._count += 1
        row: list[Any] = [str(self._count), time_s, kind, words, node]
        self._tables.put("happened", row[0], lambda: row)
        return row


def _lost_words(lost: Sequence[str], only: int) -> str:
    words = ""
    if lost:
        words += f" {len(lost):,} running task{'s were' if len(lost) > 1 else ' was'} lost: {_names(Counter(lost))}."
    if only:
        words += f" The only cop{'ies' if only > 1 else 'y'} of {only:,} object{'s' if only > 1 else ''} went with it."
    return words


def _names(counts: Counter[str]) -> str:
    shown = [f"{count:,} x {name}" if count > 1 else name for name, count in counts.most_common(NAMES_SHOWN)]
    more = f" and {len(counts) - NAMES_SHOWN} other functions" if len(counts) > NAMES_SHOWN else ""
    return f"{', '.join(shown)}{more}"


def _node(subject: str) -> str:
    return subject.partition("/")[0]
