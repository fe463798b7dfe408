"""The metrics of programs, as a node serves them: what its workers and drivers have counted, put together.

Counters and histograms are summed over the processes, those that have ended included. A gauge is each process's own:
it has the label `worker`, and goes with its process. Names begin with `ray_`, as Ray's dashboards expect them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dualray.user_metrics import COUNTER, GAUGE, Series, Tags

_ENDED = "ended"


class UserSeries:
    """See the module.

    Args:
        node: whose processes these are.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._said: dict[str, list[Series]] = {}
        """Of each process, what it has said last; under "ended" the sums of those that are gone."""

    def hear(self, peer: str, words: Sequence[Any]) -> None:
        """A process has said what it has counted."""
        self._said[peer] = [Series.read(each) for each in words]

    def forget(self, peer: str) -> None:
        """A process is gone: what it had counted is kept, in sum."""
        series = [each for each in self._said.pop(peer, []) if each.kind != GAUGE]
        if series:
            self._said[_ENDED] = list(_summed([*self._said.get(_ENDED, []), *series]))

    def families(self) -> Iterator[Metric]:
        """All of them, by name. Of two metrics of one name and different kinds or buckets, the first counts."""
        found: dict[str, list[Series]] = {}
        for peer, said in self._said.items():
            for series in said:
                if series.kind == GAUGE and "worker" not in dict(series.tags):
                    series = series._replace(tags=(*series.tags, ("worker", peer)))
                of_name = found.setdefault(series.name, [])
                if not of_name or (of_name[0].kind, of_name[0].boundaries) == (series.kind, series.boundaries):
                    of_name.append(series)
        for name in sorted(found):
            yield self._family(f"ray_{name}", list(_summed(found[name])))

    def _family(self, name: str, series: list[Series]) -> Metric:
        first = series[0]
        labels = sorted({"node"} | {key for each in series for key, _ in each.tags})
        description = first.description or first.name
        names = [_as_label(label) for label in labels]
        family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
        if first.kind == COUNTER:
            family = CounterMetricFamily(name, description, labels=names)
        elif first.kind == GAUGE:
            family = GaugeMetricFamily(name, description, labels=names)
        else:
            family = HistogramMetricFamily(name, description, labels=names)
        for each in series:
            tags = {"node": self._node, **dict(each.tags)}
            values = [tags.get(label, "") for label in labels]
            if isinstance(family, HistogramMetricFamily):
                ends = [*map(str, each.boundaries), "+Inf"]
                counts = itertools.accumulate(each.values[:-1])
                family.add_metric(values, list(zip(ends, counts, strict=True)), each.values[-1])
            else:
                family.add_metric(values, each.values[0])
        return family


def _summed(series: Sequence[Series]) -> Iterator[Series]:
    """One for each kind, name, buckets and tags, in the order in which they came."""
    sums: dict[tuple[str, str, tuple[float, ...], Tags], Series] = {}
    for each in series:
        key = each.kind, each.name, each.boundaries, each.tags
        known = sums.get(key)
        values = each.values if known is None else [a + b for a, b in zip(known.values, each.values, strict=True)]
        sums[key] = each._replace(values=values)
    yield from sums.values()


def _as_label(key: str) -> str:
    """A tag's name as Prometheus takes it."""
    label = re.sub(r"[^a-zA-Z0-9_]", "_", key)
    return f"_{label}" if label[:1].isdigit() else label
