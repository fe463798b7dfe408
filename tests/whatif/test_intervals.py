"""The 90 % interval of a prediction, and what lies outside of what was calibrated."""

from __future__ import annotations

import time
from dataclasses import replace
from math import log
from statistics import median
from typing import Any

import pytest

import dualray as ray
from dualray import whatif
from dualray.recording.calibration import Calibration, load_calibration
from dualray.sim.cost.cost_model import CostModel
from dualray.whatif.answers import grounds_of
from dualray.whatif.configurations import Configuration
from dualray.whatif.intervals import RESIDUALS, SPREAD_MAX, interval_of, posterior_of
from dualray.whatif.predicted import Trace

SEEN = Calibration(
    machine="Linux x86_64, 2 cores, CPython 3.11.7",
    date="2026-11-21",
    costs={"local_message_ns": 100_000, "transfer_bytes_per_s": 2_000_000_000, "node_message_ns": 80_000},
    intervals={"local_message_ns": (50_000, 200_000), "node_message_ns": (1, 10**12), "slowdown": (0.0, 0.02)},
    slowdown=0.01,
    error=0.1,
)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("chain") / "run.parquet"

    @ray.remote
    def link(before: Any) -> None:
        time.sleep(0.01)

    ray.init(mode="sim", num_cpus=2, record=path)
    ref: Any = None
    for _ in range(20):
        ref = link.remote(ref)
    ray.get(ref)
    ray.shutdown()
    return whatif.load(path)


def interval(times_s: list[float], **changes: Any) -> tuple[float, float]:
    asked: dict[str, Any] = {"nodes": 1, "noise": 0.0, "outside": 0, "least_s": 0.0, **changes}
    return interval_of(median(times_s), times_s, **asked)


def test_the_model_is_never_surer_than_its_own_errors():
    low_s, high_s = interval([10.0, 10.0, 10.0])
    assert log(10 / low_s) == pytest.approx(RESIDUALS["one node"])
    assert log(high_s / 10) == pytest.approx(RESIDUALS["one node"])
    assert interval([10.0], nodes=3)[1] > high_s


def test_each_part_makes_an_interval_wider():
    _, alone_s = interval([10.0, 10.0, 10.0])
    _, spread_s = interval([9.0, 10.0, 11.0])
    _, surer_s = interval([9.0, 9.5, 10.0, 10.5, 11.0, 9.2, 10.8])
    assert alone_s < surer_s < spread_s
    assert interval([9.0, 10.0, 11.0], noise=0.3)[1] > spread_s
    assert interval([9.0, 10.0, 11.0], outside=1)[1] > spread_s
    assert interval([9.0, 10.0, 11.0], least_s=9.9)[0] == 9.9


def test_costs_are_drawn_in_pairs_about_the_fit():
    base = CostModel().with_changes(SEEN.costs)
    found = posterior_of(base, SEEN, {})
    assert dict(found.spreads)["local_message_ns"] == pytest.approx(log(4) / 3.92)
    assert dict(found.spreads)["node_message_ns"] == SPREAD_MAX
    assert found.drawn(0) == (base, 0.01)
    (up, _), (down, _) = found.drawn(1), found.drawn(2)
    assert up.local_message_ns != base.local_message_ns
    assert up.local_message_ns * down.local_message_ns == pytest.approx(base.local_message_ns**2, rel=1e-3)
    assert found.drawn(3) != found.drawn(1)
    said = posterior_of(base, SEEN, {"local_message_ns": 1})
    assert "local_message_ns" not in dict(said.spreads)


@pytest.mark.slow
def test_what_is_not_known_of_the_costs_is_in_the_interval(chain):
    unsure = replace(SEEN, intervals={"local_message_ns": (5_000, 2_000_000)})
    calibrated = whatif.predict(chain, nodes=[1], seeds=3, jobs=1, calibration=unsure).rows[0]
    exact = replace(SEEN, intervals={})
    known = whatif.predict(chain, nodes=[1], seeds=3, jobs=1, calibration=exact).rows[0]
    assert calibrated.high_s / calibrated.makespan_s > known.high_s / known.makespan_s
    assert known.high_s / known.makespan_s == pytest.approx(1.147, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpus": 8}, "8 tasks compute at the same time on a node, but the calibration measured only 2"),
        pytest.param(
            {"nodes": 2, "network_bytes_per_s": 12_500_000_000},
            "the network has 100 Gbps, but the calibration moved only 16",
            marks=pytest.mark.slow,
        ),
        pytest.param({"nodes": 2, "latency_ns": 30_000_000}, "messages take 0.03s", marks=pytest.mark.slow),
        ({"gpus": 1}, "the calibration measured no GPUs"),
    ],
)
def test_what_lies_outside_says_why_and_is_refused_when_asked(chain, changes, words):
    inside = Configuration(nodes=1, cpus=2)
    outside = replace(inside, **changes)
    found = whatif.predict(chain, [inside, outside], seeds=1, jobs=1, calibration=SEEN)
    assert [len(row.outside) for row in found.rows] == [0, 1]
    assert words in found.rows[1].outside[0]
    first, second = (row.high_s / row.makespan_s for row in found.rows)
    assert second > 1.1 * first
    assert [words in line for line in grounds_of(found)].count(True) == 1
    with pytest.raises(ValueError, match=r"strict: .* is outside the calibrated range: "):
        whatif.predict(chain, [inside, outside], seeds=1, jobs=1, calibration=SEEN, strict=True)
    assert whatif.predict(chain, [inside], seeds=1, jobs=1, calibration=SEEN, strict=True).rows[0].makespan_s > 0


def test_strict_without_a_calibration_is_refused(chain):
    with pytest.raises(ValueError, match="strict=True needs a calibration; measure this machine with `dualray cal"):
        whatif.predict(chain, strict=True)


def test_a_noisy_calibration_is_said_and_makes_intervals_wider(chain, tmp_path):
    (tmp_path / "noisy.yaml").write_text(replace(SEEN, noise=0.4).dump())
    noisy = whatif.predict(chain, seeds=1, jobs=1, calibration=load_calibration(tmp_path / "noisy.yaml"))
    calm = whatif.predict(chain, seeds=1, jobs=1, calibration=SEEN)
    assert noisy.rows[0].high_s > calm.rows[0].high_s
    assert any(line.startswith("During the calibration, other programs slowed") for line in grounds_of(noisy))
    assert not any("Others used" in line for line in grounds_of(calm))
