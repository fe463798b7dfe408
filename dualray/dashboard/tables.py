"""What a page shows, in tables, and what has changed in them since a page asked last.

Theory of operation. Pages are told of *moments*. `publish` takes all rows that have changed, and what is said of the
run as a whole, as they are at one moment; until the next call every page is told of that moment. So all that a page
shows fits together. A row that changes often between two moments is made once.

At a moment each row that has changed gets the next *version*, and rows are kept in the order of their versions. A page
says which version it knows; it gets the rows that are newer, the oldest first, at most ROWS_AT_ONCE. So a page that
asks seldom, or never, costs nothing, and one that has just been opened is told everything in the same way. Tables hold
as many rows as LIMITS says: then the oldest go, and a page learns how many went.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

__all__ = ["COLUMNS", "LIMITS", "ROWS_AT_ONCE", "Moment", "Tables"]

ROWS_AT_ONCE: Final = 20_000

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "nodes": (
        *("node", "state", "cpus", "cpus_used", "memory", "memory_used", "store", "store_used"),
        *("started_s", "ended_s", "lives", "measured", "noticed_s", "why", "lost"),
    ),
    "workers": ("worker", "node", "kind", "state", "runs", "task", "started_s", "ended_s", "why"),
    "tasks": (
        *("task", "name", "kind", "state", "attempt", "owner", "worker", "node"),
        *("submitted_s", "started_s", "ended_s", "error", "waits_for", "waits", "since_s", "actor"),
    ),
    "spans": ("span", "task", "attempt", "worker", "started_s", "ended_s", "outcome", "cause", "name"),
    "actors": ("actor", "class", "name", "state", "node", "worker", "restarts", "owner", "why"),
    "objects": ("object", "size", "state", "owner", "nodes", "used_by", "of"),
    "happened": ("id", "time_s", "kind", "words", "node", "about", "cost"),
    "demand": ("step", "running", "queued", "blocked", "cpus", "nodes", "most running", "most queued", "most blocked"),
    "waits": ("what", "count", "since_s"),
}
"""Of each table; the first column is the key."""

LIMITS: Final = {
    "nodes": 20_000,
    "workers": 50_000,
    "tasks": 200_000,
    "spans": 200_000,
    "actors": 50_000,
    "objects": 100_000,
    "happened": 2_000,
    "demand": 2_000,
    "waits": 200,
}
"""Rows that are kept, so that a run of any length fits."""


class Tables:
    """See the module. One thread changes them, others read: each takes `lock`."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.version = 0
        """Of the row that was taken into a moment last."""
        self.head: dict[str, Any] = {}
        """What is said of the run as a whole."""
        self.dropped = dict.fromkeys(COLUMNS, 0)
        self._rows: dict[str, dict[str, Callable[[], list[Any] | None]]] = {name: {} for name in COLUMNS}
        self._changed: dict[str, dict[str, None]] = {name: {} for name in COLUMNS}
        """By table, the rows that have changed since the last moment."""
        self._gone: list[tuple[str, str]] = []
        """The rows that were dropped since then."""
        self.moment = Moment(version=0, head={}, dropped={})
        self._told: dict[tuple[str, str], tuple[int, list[Any] | None]] = {}
        """The rows at the last moment, in order of versions."""

    def put(self, table: str, key: str, row: Callable[[], list[Any] | None]) -> None:
        """A row is new or has changed. `row` makes it at the next moment; None: it is there no more."""
        rows = self._rows[table]
        if key not in rows and len(rows) >= LIMITS[table]:
            oldest = next(iter(rows))
            del rows[oldest]
            self._changed[table].pop(oldest, None)
            self._gone.append((table, oldest))
            self.dropped[table] += 1
        rows[key] = row
        self._changed[table][key] = None

    def keys(self, table: str) -> list[str]:
        """Of all rows of a table."""
        return list(self._rows[table])

    def rows(self, table: str) -> list[list[Any]]:
        """All rows of a table, as they are now."""
        made = [row() for row in self._rows[table].values()]
        return [row for row in made if row is not None]

    def publish(self) -> Moment:
        """Pages are told of this moment from now on."""
        told = self._told
        for item in self._gone:
            told.pop(item, None)
        self._gone.clear()
        version = self.version
        for table, keys in self._changed.items():
            rows = self._rows[table]
            for key in keys:
                row, item = rows[key](), (table, key)
                version += 1
                told.pop(item, None)
                told[item] = version, None if row is None else list(row)
            keys.clear()
        self.version = version
        dropped = {name: count for name, count in self.dropped.items() if count}
        self.moment = Moment(version=self.version, head=dict(self.head), dropped=dropped)
        return self.moment

    def since(self, version: int, limit: int = ROWS_AT_ONCE) -> dict[str, Any]:
        """What is newer than a version at the last moment: `tables`, the `version` they bring a page to, and whether
        there is `more`.

        Args:
            limit: rows at most.
        """
        newer: list[tuple[tuple[str, str], int, list[Any] | None]] = []
        for item, (changed, row) in reversed(self._told.items()):
            if changed <= version:
                break
            newer.append((item, changed, row))
        newer.reverse()
        told = newer[:limit]
        tables: dict[str, list[list[Any]]] = {}
        for (table, key), _, row in told:
            tables.setdefault(table, []).append([key, None] if row is None else row)
        return {
            "version": told[-1][1] if len(told) < len(newer) else max(version, self.moment.version),
            "more": len(told) < len(newer),
            "tables": tables,
            "dropped": self.moment.dropped,
            "head": self.moment.head,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What pages are told of: the version of the tables, what is said of the run as a whole, and how many rows of each
    table are not kept."""

    version: int
    head: dict[str, Any]
    dropped: dict[str, int]
