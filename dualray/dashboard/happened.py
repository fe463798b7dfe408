"""What happened, in sentences: faults, what was lost by them, when the head noticed, and what was done again.

Things of one kind that follow one another closely share a sentence, which counts them. A sentence comes with the things
that it is about, so that each can be clicked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from dualray.dashboard.tables import COLUMNS, Tables
from dualray.report.notices import Noticed
from dualray.shared.model.ids import HEAD, ObjectID, short

COST: Final = COLUMNS["happened"].index("cost")
NAMES_SHOWN: Final = 3
ABOUT_MAX: Final = 8
"""Tasks, and objects, that a sentence leads to."""
MORE: Final = "more"
"""In place of a table: words that lead nowhere, and count what has no link."""
TOGETHER_S: Final = 1.0
"""What comes within this time of the last of its kind shares its sentence."""

_AGAIN: Final = {
    "retry": ("is tried again", "are tried again"),
    "reconstruction": ("runs again, to recompute lost objects", "run again, to recompute lost objects"),
    "restart": ("is created again", "are created again"),
}
_KILLS: Final = ("kill actor", "kill worker")
_NOT_YET: Final = " The head has not detected this yet."
_NOTICED: Final = {
    Noticed.SILENT: "The head has waited too long for a message from {node}, and suspects that {node} is dead.",
    Noticed.HEARD: "The head receives messages from {node} again.",
    Noticed.LEAVING: "{node} is about to leave: the head places no new work on it.",
    Noticed.STAYING: "{node} will not leave after all.",
}

Named = tuple[str, str]
"""The id of a task, and the name of its function."""
About = list[list[str]]
"""Things that a sentence leads to: the table, the key there, and what it is called in the sentence or beside it."""


class Lost(NamedTuple):
    """What was lost with a node or a worker: attempts of tasks, objects with their only copy there, and actors."""

    tasks: Sequence[Named]
    objects: Sequence[str]
    actors: Sequence[Named]


class Happened:
    """See the module; writes the table `happened`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._count = 0
        self._open: dict[tuple[str, str], _Together] = {}
        """By kind and detail."""
        self._killed: dict[tuple[str, int], list[Any]] = {}
        """By node and life, the rows of deaths that the head has not noticed."""
        self.last: list[Any] = []
        """The newest sentence."""
        self.is_head_seen = False
        """Whether what the head notices is known."""

    def fault(self, time_s: float, name: str, subject: str, lost: Lost) -> None:
        """A fault that does not take a whole node."""
        about = [*_of_place(subject), *_of_lost(lost, _node(subject))]
        what = (
            f"The worker {subject} was killed"
            if name in _KILLS
            else f"Fault: {name}{f' at {subject}' if subject else ''}"
        )
        self._add(time_s, "fault", f"{what}.{_lost_words(lost)}", _node(subject), about)

    def node_killed(self, time_s: float, node: str, life: int, lost: Lost) -> None:
        """A node is gone, by a fault."""
        words = f"{node} was killed.{_lost_words(lost)}{_NOT_YET if self.is_head_seen else ''}"
        about = [*_of_place(node), *_of_lost(lost, node)]
        self._killed[node, life] = self._add(time_s, "fault", words, node, about)

    def found_dead(self, time_s: float, node: str, life: int, *, is_back: bool) -> None:
        """The head has noticed that a life of a node is over; `is_back`: another one has begun."""
        row = self._killed.pop((node, life), None)
        later = ""
        if row is not None:
            later = f", {time_words(time_s - row[1])} after it was killed"
            noticed = f" The head detected this at {time_words(time_s)} ({time_words(time_s - row[1])} later)."
            row[3] = row[3].removesuffix(_NOT_YET) + noticed
            self._tables.put("happened", row[0], lambda: row)
        words = f"The head detected that {node} {'had died' if is_back else 'is dead'}{later}."
        self._add(time_s, "notice", words, node, _of_place(node))

    def declared_dead(self, time_s: float, node: str, lost: Lost, *, has_left: bool) -> None:
        """The head says that a node is gone, and no fault has taken it."""
        words = f"{node} has left the cluster." if has_left else f"The head declared {node} dead."
        about = [*_of_place(node), *_of_lost(lost, node)]
        kind = "node" if has_left else "fault"
        self._add(time_s, kind, f"{words}{_lost_words(lost)}", node, about)

    def noticed(self, time_s: float, node: str, what: Noticed) -> None:
        """The head thinks otherwise of a node."""
        self._add(time_s, "notice", _NOTICED[what].format(node=node), node, _of_place(node))

    def node_started(self, time_s: float, node: str, *, is_new: bool) -> None:
        """A node has joined, or come back."""
        words = f"{node} joined the cluster." if is_new else f"{node} came back, with an empty store."
        self._add(time_s, "node", words, node, _of_place(node))

    def node_state(self, time_s: float, node: str, state: str) -> None:
        """The head has changed its mind about a node."""
        words = {"DEAD": "is dead", "SUSPECT": "does not answer", "ALIVE": "answers again", "DRAINING": "is leaving"}
        kind = "fault" if state == "DEAD" else "node"
        self._add(time_s, kind, f"{node} {words.get(state, state)}.", node, _of_place(node))

    def worker_lost(self, time_s: float, worker: str, why: str, lost: Lost) -> None:
        """A worker ended while it ran something."""
        because = f": {why}" if why else ""
        about = [*_of_place(worker), *_of_lost(lost, _node(worker))]
        self._add(time_s, "loss", f"Worker {worker} ended{because}.{_lost_words(lost)}", _node(worker), about)

    def actor_restarts(self, time_s: float, actor: Named, worker: str) -> None:
        """The head has an actor made again."""
        about = [["actors", *actor], *_of_place(worker)]
        self._add(time_s, "again", f"Actor {actor[1]} restarts on {worker}.", _node(worker), about)

    def failed(self, time_s: float, task: Named, error: str, worker: str) -> None:
        """A task raised."""
        together = self._together(time_s, "failure", error, task)
        words = f"{_names(together.counts)} failed: {error}."
        if len(together.tasks) == 1:
            words = f"{task[1]} failed on {worker}: {error}."
        self._say(together, words, _of_place(worker) if len(together.tasks) == 1 else [])

    def again(self, time_s: float, task: Named, cause: str) -> None:
        """A task runs again."""
        together = self._together(time_s, "again", cause, task)
        one, many = _AGAIN.get(cause, (f"runs again ({cause})", f"run again ({cause})"))
        total = together.counts.total()
        words = f"{total:,} task{'s' if total > 1 else ''} {many if total > 1 else one}: {_names(together.counts)}."
        self._say(together, words, [])

    def _together(self, time_s: float, kind: str, detail: str, task: Named) -> _Together:
        known = self._open.get((kind, detail))
        if known is None or time_s - known.last_s > TOGETHER_S:
            known = self._open[kind, detail] = _Together(self._add(time_s, kind, "", "", []))
        known.last_s = time_s
        known.counts[task[1]] += 1
        if len(known.tasks) < ABOUT_MAX + 1:
            known.tasks[task[0]] = task[1]
        return known

    def _say(self, together: _Together, words: str, about: About) -> None:
        row = together.row
        tasks = _of_tasks(list(together.tasks.items()))
        row[3], row[5] = words, [*about, *tasks, *_more(together.counts.total() - len(tasks), "task")]
        self._tables.put("happened", row[0], lambda: row)

    def _add(self, time_s: float, kind: str, words: str, node: str, about: About) -> list[Any]:
        self._count += 1
        row: list[Any] = [str(self._count), time_s, kind, words, node, about, ""]
        self._tables.put("happened", row[0], lambda: row)
        self.last = row
        return row

    def costs(self, row: list[Any], words: str) -> None:
        """Say beside a sentence what it has cost the run until now."""
        if row[COST] != words:
            row[COST] = words
            self._tables.put("happened", row[0], lambda: row)


class _Together:
    """Things of one kind that share a sentence."""

    def __init__(self, row: list[Any]) -> None:
        self.row = row
        self.counts: Counter[str] = Counter()
        self.tasks: dict[str, str] = {}
        """The first tasks, with their names."""
        self.last_s = row[1]


def _of_place(place: str) -> About:
    """What leads to a node or a worker."""
    if not place or place == HEAD:
        return []
    return [["workers" if "/" in place else "nodes", place, place]]


def _of_lost(lost: Lost, node: str) -> About:
    """What leads to all that was lost, and to the list of all lost attempts of the node."""
    found = [["actors", *actor] for actor in lost.actors[:ABOUT_MAX]]
    found += _more(len(lost.actors) - ABOUT_MAX, "actor")
    found += _of_tasks(lost.tasks)
    found += [["objects", each, f"object {short(ObjectID(bytes.fromhex(each)))}"] for each in lost.objects[:ABOUT_MAX]]
    found += _more(len(lost.objects) - ABOUT_MAX, "object")
    if lost.tasks:
        found.append(["lost", node, "all lost attempts"])
    return found


def _of_tasks(tasks: Sequence[Named]) -> About:
    """A task is called by its function's name, and by its id, too, where another has the same name."""
    counts = Counter(name for _, name in tasks)
    return [
        ["tasks", task, name if counts[name] == 1 and name else f"{name} {task[:8]}".strip()]
        for task, name in tasks[:ABOUT_MAX]
    ]


def _more(count: int, thing: str) -> About:
    """Says that things beyond those with links exist."""
    return [[MORE, "", f"and {count:,} more {thing}{'s' if count > 1 else ''}"]] if count > 0 else []


def time_words(s: float) -> str:
    """A time, for people."""
    return f"{s:,.3f}".rstrip("0").rstrip(".") + " s"


def _lost_words(lost: Lost) -> str:
    words = ""
    if lost.tasks:
        names, many = _names(Counter(name for _, name in lost.tasks)), len(lost.tasks) > 1
        words += f" {len(lost.tasks):,} running task{'s were' if many else ' was'} lost: {names}."
    if lost.actors:
        names, many = _names(Counter(name for _, name in lost.actors)), len(lost.actors) > 1
        words += f" {len(lost.actors):,} actor{'s' if many else ''} died there: {names}."
    if only := len(lost.objects):
        words += (
            f" The only cop{'ies' if only > 1 else 'y'} of {only:,} object{'s' if only > 1 else ''} "
            f"{'were' if only > 1 else 'was'} lost."
        )
    return words


def _names(counts: Counter[str]) -> str:
    shown = [f"{count:,} x {name}" if count > 1 else name for name, count in counts.most_common(NAMES_SHOWN)]
    more = f" and {len(counts) - NAMES_SHOWN} others" if len(counts) > NAMES_SHOWN else ""
    return f"{', '.join(shown)}{more}"


def _node(subject: str) -> str:
    return subject.partition("/")[0]
