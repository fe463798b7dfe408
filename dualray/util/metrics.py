"""Metrics of programs: counters, gauges and histograms with tags. The interface is the same as in `ray.util.metrics`.

    from dualray.util.metrics import Counter

    requests = Counter("requests", description="What was asked.", tag_keys=("route",))
    requests.inc(tags={"route": "/"})

In real mode with `init(metrics_port=)`, the node serves the program's metrics together with its own, as
`ray_requests_total` (docs/metrics.md). A simulation counts metrics, but does not serve them. You can pickle a metric
with its default tags.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Self

from dualray.user_metrics import COUNTER, GAUGE, HISTOGRAM, METRICS

__all__ = ["Counter", "Gauge", "Histogram"]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Metric:
    """Base class of counters, gauges and histograms.

    Args:
        name: a name of letters, digits, `_` and `:` that does not begin with a digit. A metric with another name gives
            a UserWarning and counts nothing.
        description: a text for readers.
        tag_keys: a tuple with the names of the tags.

    Raises:
        ValueError: the name is empty.
        TypeError: the tag keys are not a tuple of str.
    """

    _kind = ""

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None) -> None:
        if not name:
            raise ValueError("Empty name is not allowed: give the metric a name")
        tag_keys = tag_keys or ()
        if not isinstance(tag_keys, tuple):
            raise TypeError(f"metric {name}: tag_keys should be a tuple type, such as ('route',), but is {tag_keys!r}")
        for key in tag_keys:
            if not isinstance(key, str):
                raise TypeError(f"metric {name}: Tag keys must be str, but {key!r} is a {type(key).__name__}")
        self._is_discarded = _NAME.fullmatch(name) is None
        if self._is_discarded:
            warnings.warn(
                f"Invalid metric name: {name!r} is not counted. Use letters, numbers, _ and :, and do not begin "
                "with a number.",
                UserWarning,
                stacklevel=2 if type(self) is not Histogram else 3,
            )
        self._name = name
        self._description = description
        self._tag_keys = tag_keys
        self._default_tags: dict[str, str] = {}

    def set_default_tags(self, default_tags: Mapping[str, str]) -> Self:
        """Set the default tags for calls without tags, and return the metric.

        Raises:
            ValueError: a tag is not among the tag keys.
            TypeError: a value is not a str.
        """
        for key in default_tags:
            if key not in self._tag_keys:
                raise ValueError(
                    f"metric {self._name}: Unrecognized tag key {key}; the metric has the tag keys {self._tag_keys}"
                )
        self._check_values(default_tags)
        self._default_tags = dict(default_tags)
        return self

    @property
    def info(self) -> dict[str, Any]:
        """The metric's `name`, `description`, `tag_keys` and `default_tags`, and the `boundaries` of a histogram."""
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._tag_keys,
            "default_tags": self._default_tags,
        }

    def _record(self, value: float, tags: Mapping[str, str] | None, boundaries: tuple[float, ...] = ()) -> None:
        self._check_values(tags or {})
        found = {**self._default_tags, **(tags or {})}
        missing = [key for key in self._tag_keys if key not in found]
        if missing:
            raise ValueError(f"metric {self._name}: Missing value for tag key(s): {','.join(missing)}.")
        if not self._is_discarded:
            METRICS.record(
                self._kind, self._name, self._description, tuple(sorted(found.items())), float(value), boundaries
            )

    def _check_number(self, value: Any) -> None:
        if not isinstance(value, Real):
            kind = type(value).__name__
            raise TypeError(f"metric {self._name}: value must be int or float, not {value!r} (type {kind})")

    def _check_values(self, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            if not isinstance(value, str):
                raise TypeError(
                    f"metric {self._name}: Tag values must be str, but {key}={value!r} is a {type(value).__name__}"
                )


class Counter(Metric):
    """A number that only grows, such as a number of requests."""

    _kind = COUNTER

    def inc(self, value: float = 1.0, tags: Mapping[str, str] | None = None) -> None:
        """Add a number to the counter; default 1. `tags` take precedence over the default tags.

        Raises:
            ValueError: the number is not positive, or a tag key has no value.
            TypeError: the number is not a number, or a tag is not a str.
        """
        self._check_number(value)
        if value <= 0:
            raise ValueError(f"metric {self._name}: value must be >0, got {value}")
        self._record(value, tags)


class Gauge(Metric):
    """A number that can rise and fall, such as a queue's length. Each process keeps its last value."""

    _kind = GAUGE

    def set(self, value: float | None, tags: Mapping[str, str] | None = None) -> None:
        """Set the gauge's value. A value of None changes nothing.

        Raises:
            ValueError, TypeError: as for `Counter.inc`, but the number can be negative.
        """
        if value is None:
            return
        self._check_number(value)
        self._record(value, tags)


class Histogram(Metric):
    """A metric that counts how many observed values lie in each bucket.

    Args:
        boundaries: the upper ends of the buckets, which must be positive. Another bucket counts all larger values.
        name, description, tag_keys: as for every metric.
    """

    _kind = HISTOGRAM

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: Sequence[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(name, description, tag_keys)
        if boundaries is None or len(boundaries) == 0:
            raise ValueError(
                f"metric {name}: boundaries argument should be provided when using the Histogram class: "
                f"Histogram({name!r}, boundaries=[1.0, 2.0])"
            )
        for i, boundary in enumerate(boundaries):
            if boundary <= 0:
                raise ValueError(
                    f"metric {name}: Invalid `boundaries` argument at index {i}, {boundaries}. Use positive values."
                )
        self.boundaries = boundaries
        self._ends = tuple(sorted({float(boundary) for boundary in boundaries}))

    @property
    def info(self) -> dict[str, Any]:
        return super().info | {"boundaries": self.boundaries}

    def observe(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Count a value in its bucket.

        Raises:
            ValueError, TypeError: as for `Gauge.set`.
        """
        self._check_number(value)
        self._record(value, tags, self._ends)
