"""What this process has counted for the metrics of its program; `dualray.util.metrics` is what programs use.

Theory of operation. Counters, gauges and histograms are *series*: a name, and a value for each of its tags. In real
mode a node manager that serves metrics asks its workers and drivers for them when it is scraped; else they are numbers
in a table, and nobody reads them.
"""

from __future__ import annotations

import bisect
import logging
import threading
from typing import Any, Final, NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

SERIES_MAX: Final = 10_000
"""Series that one process has at most: tags whose values never repeat would fill its memory."""

Tags = tuple[tuple[str, str], ...]


class Series(NamedTuple):
    """One series.

    tags: sorted by name.
    boundaries: of a histogram, the upper ends of its buckets but the last, which has none.
    values: of a counter its sum, of a gauge the last value; of a histogram how many there are in each bucket, and
        then the sum of what was observed.
    """

    kind: str
    name: str
    description: str
    tags: Tags
    boundaries: tuple[float, ...]
    values: list[float]

    @classmethod
    def read(cls, words: Any) -> Series:
        """What came out of a message."""
        kind, name, description, tags, boundaries, values = words
        return cls(kind, name, description, tuple((key, value) for key, value in tags), tuple(boundaries), list(values))


class UserMetrics:
    """The series of this process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str, Tags], Series] = {}
        self._is_full = False

    def record(
        self, kind: str, name: str, description: str, tags: Tags, amount: float, boundaries: tuple[float, ...] = ()
    ) -> None:
        """A counter grows, a gauge has a new value, or a histogram one more."""
        with self._lock:
            series = self._series.get((kind, name, tags))
            if series is None:
                series = self._begin(kind, name, description, tags, boundaries)
                if series is None:
                    return
            if kind == COUNTER:
                series.values[0] += amount
            elif kind == GAUGE:
                series.values[0] = amount
            else:
                series.values[bisect.bisect_left(series.boundaries, amount)] += 1
                series.values[-1] += amount

    def _begin(
        self, kind: str, name: str, description: str, tags: Tags, boundaries: tuple[float, ...]
    ) -> Series | None:
        if len(self._series) >= SERIES_MAX:
            if not self._is_full:
                self._is_full = True
                logging.getLogger("dualray").warning(
                    "metrics: this process has %d series, so it does not count %s with the tags %s: use fewer tags",
                    SERIES_MAX,
                    name,
                    dict(tags),
                )
            return None
        count = len(boundaries) + 2 if kind == HISTOGRAM else 1
        series = self._series[kind, name, tags] = Series(kind, name, description, tags, boundaries, [0.0] * count)
        return series

    def snapshot(self) -> list[Series]:
        """All of them, as they are now."""
        with self._lock:
            return [series._replace(values=list(series.values)) for series in self._series.values()]

    def clear(self) -> None:
        """The cluster is gone."""
        with self._lock:
            self._series.clear()
            self._is_full = False


METRICS: Final = UserMetrics()
"""Of this process; in a simulation, of all of its virtual ones."""
