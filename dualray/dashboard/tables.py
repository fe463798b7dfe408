"""What a page shows, in tables, and what has changed in them since a page asked last.

Theory of operation. Each change of a row gets the next *version*, and rows are kept in the order of their versions. A
page says which version it knows; it gets the rows that are newer, the oldest first, at most ROWS_AT_ONCE. So a page
that asks seldom, or never, costs nothing, and one that has just been opened is told everything in the same way. Tables
hold as many rows as LIMITS says: then the oldest go, and a page learns how many went.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final

__all__ = ["COLUMNS", "LIMITS", "ROWS_AT_ONCE", "Tables"]

ROWS_AT_ONCE: Final = 20_000

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "nodes": (
        *("node", "state", "cpus", "cpus_used", "memory", "memory_used", "store", "store_used"),
        *("started_s", "ended_s", "lives", "measured"),
    ),
    "workers": ("worker", "node", "kind", "state", "runs", "task", "started_s", "ended_s", "why"),
    "tasks": (
        *("task", "name", "kind", "state", "attempt", "owner", "worker", "node"),
        *("submitted_s", "started_s", "ended_s", "error", "waits_for"),
    ),
    "spans": ("span", "task", "attempt", "worker", "started_s", "ended_s", "outcome", "cause", "name"),
    "actors": ("actor", "class", "name", "state", "node", "worker", "restarts", "owner", "why"),
    "objects": ("object", "size", "state", "owner", "nodes", "used_by", "of"),
    "happened": ("id", "time_s", "kind", "words", "node"),
    "demand": ("step", "running", "queued", "blocked", "cpus", "nodes"),
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
        self.head: dict[str, Any] = {}
        """What is said of the run as a whole."""
        self.dropped = dict.fromkeys(COLUMNS, 0)
        self._rows: dict[str, dict[str, Callable[[], list[Any] | None]]] = {name: {} for name in COLUMNS}
        self._changed: dict[tuple[str, str], int] = {}
        """In order of versions."""

    def put(self, table: str, key: str, row: Callable[[], list[Any] | None]) -> None:
        """A row is new or has changed. `row` makes it, when a page asks; None: it is there no more."""
        rows = self._rows[table]
        if key not in rows and len(rows) >= LIMITS[table]:
            oldest = next(iter(rows))
            del rows[oldest]
            self._changed.pop((table, oldest), None)
            self.dropped[table] += 1
        rows[key] = row
        self.version += 1
        self._changed.pop((table, key), None)
        self._changed[table, key] = self.version

    def keys(self, table: str) -> list[str]:
        """Of all rows of a table."""
        return list(self._rows[table])

    def rows(self, table: str) -> list[list[Any]]:
        """All rows of a table."""
        made = [row() for row in self._rows[table].values()]
        return [row for row in made if row is not None]

    def since(self, version: int, limit: int = ROWS_AT_ONCE, until: int | None = None) -> dict[str, Any]:
        """What is newer than a version: `tables`, the `version` they bring a page to, and whether there is `more`.

        Args:
            limit: rows at most.
            until: the last version that is told; None: the newest.
        """
        last = self.version if until is None else until
        newer: list[tuple[tuple[str, str], int]] = []
        for item in reversed(self._changed.items()):
            if item[1] <= version:
                break
            if item[1] <= last:
                newer.append(item)
        newer.reverse()
        told = newer[:limit]
        tables: dict[str, list[list[Any]]] = {}
        for (table, key), _ in told:
            row = self._rows[table][key]()
            tables.setdefault(table, []).append([key, None] if row is None else row)
        return {
            "version": told[-1][1] if len(told) < len(newer) else max(version, last),
            "more": len(told) < len(newer),
            "tables": tables,
            "dropped": {name: count for name, count in self.dropped.items() if count},
            "head": self.head,
        }
