"""Metrics of programs, as in `ray.util.metrics`; what is served of them: tests/real/observe/test_metrics.py."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import dualray as ray
from dualray.user_metrics import METRICS
from dualray.util.metrics import Counter, Gauge, Histogram
from tests.conformance.support import get

CLUSTER = {"num_cpus": 2, "nodes": 1}
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(autouse=True)
def nothing_was_counted():
    METRICS.clear()


def counted(name):
    return {series.tags: series.values for series in METRICS.snapshot() if series.name == name}


def test_a_counter_grows_for_each_of_its_tags():
    counter = Counter("asked", description="What was asked.", tag_keys=("route",))
    counter.inc(tags={"route": "/"})
    counter.inc(2.5, tags={"route": "/"})
    counter.inc(np.int64(4), tags={"route": "/x", "more": "y"})
    assert counted("asked") == {(("route", "/"),): [3.5], (("more", "y"), ("route", "/x")): [4.0]}


def test_default_tags_stand_in():
    counter = Counter("asked", tag_keys=("route", "host"))
    assert counter.set_default_tags({"host": "a"}) is counter
    counter.inc(tags={"route": "/"})
    counter.inc(tags={"route": "/", "host": "b"})
    with pytest.raises(ValueError, match=r"asked: Missing value for tag key\(s\): route\."):
        counter.inc()
    assert list(counted("asked")) == [(("host", "a"), ("route", "/")), (("host", "b"), ("route", "/"))]
    with pytest.raises(ValueError, match="Unrecognized tag key zone"):
        counter.set_default_tags({"zone": "a"})
    with pytest.raises(TypeError, match="Tag values must be str, but host=1 is a int"):
        counter.set_default_tags({"host": 1})


def test_a_gauge_keeps_the_last_value():
    gauge = Gauge("depth")
    gauge.set(3)
    gauge.set(-1.5)
    gauge.set(None)
    assert counted("depth") == {(): [-1.5]}


def test_a_histogram_counts_in_buckets():
    histogram = Histogram("took", boundaries=[1, 0.1, 10])
    for value in (0.05, 0.1, 0.5, 100):
        histogram.observe(value)
    assert counted("took") == {(): [2, 1, 0, 1, 100.65]}
    assert histogram.info["boundaries"] == [1, 0.1, 10]


def test_what_cannot_be_counted_is_said():
    counter, gauge = Counter("asked"), Gauge("depth")
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"asked: value must be >0, got {value}"):
            counter.inc(value)
    for record in (counter.inc, gauge.set, Histogram("took", boundaries=[1]).observe):
        with pytest.raises(TypeError, match=r"value must be int or float, not '1' \(type str\)"):
            record("1")
    with pytest.raises(ValueError, match="Empty name is not allowed"):
        Counter("")
    for keys in (["a"], "a"):
        with pytest.raises(TypeError, match="tag_keys should be a tuple"):
            Gauge("depth", tag_keys=keys)
    with pytest.raises(TypeError, match="Tag keys must be str, but 1 is a int"):
        Gauge("depth", tag_keys=("a", 1))
    for boundaries in (None, []):
        with pytest.raises(ValueError, match="boundaries argument should be provided"):
            Histogram("took", boundaries=boundaries)
    with pytest.raises(ValueError, match=r"Invalid `boundaries` argument at index 1, \[1, 0\]"):
        Histogram("took", boundaries=[1, 0])
    with pytest.warns(UserWarning, match="Invalid metric name: 'a-b'"):
        Counter("a-b").inc()
    assert METRICS.snapshot() == []


def test_metrics_travel_and_are_counted_where_they_are_used():
    counter = Counter("asked", description="d", tag_keys=("route",)).set_default_tags({"route": "/"})
    assert counter.info == {"name": "asked", "description": "d", "tag_keys": ("route",), "default_tags": {"route": "/"}}
    assert pickle.loads(pickle.dumps(counter)).info == counter.info

    @ray.remote
    class Server:
        def __init__(self):
            self.latency = Histogram("took", boundaries=[1.0])

        def serve(self, counter):
            counter.inc(2)
            self.latency.observe(0.5)
            return counted("asked"), counted("took")

    server = Server.remote()
    assert get([server.serve.remote(counter), server.serve.remote(counter)])[1] == (
        {(("route", "/"),): [4.0]},
        {(): [2.0, 0.0, 1.0]},
    )


def test_series_are_bounded(monkeypatch, caplog):
    from dualray import user_metrics

    monkeypatch.setattr(user_metrics, "SERIES_MAX", 3)
    counter = Counter("asked", tag_keys=("id",))
    for index in range(9):
        counter.inc(tags={"id": str(index)})
    assert len(counted("asked")) == 3
    assert [record.message for record in caplog.records] == [
        "metrics: this process has 3 series, so it does not count asked with the tags {'id': '3'}: use fewer tags"
    ]
