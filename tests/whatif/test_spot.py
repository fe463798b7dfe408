"""Availability of spot machines as faults of a prediction."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import dualray as ray
from dualray import whatif
from dualray.shared.scenario.fault_model import FaultKind
from dualray.whatif.answers import verdicts_of
from dualray.whatif.predicted import Trace
from dualray.whatif.spot import load_spot


def written(path: Path, data: list[int], gap: float = 1.0) -> str:
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": data}))
    return str(path)


@pytest.fixture(scope="module")
def sleepers(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("spot") / "run.parquet"
    ray.init(mode="sim", num_cpus=1, record=path)
    sleep = ray.remote(max_retries=20)(lambda: time.sleep(1))
    ray.get([sleep.remote() for _ in range(12)])
    ray.shutdown()
    return whatif.load(path)


def test_a_machine_goes_when_too_few_can_be_had_and_comes_back(tmp_path):
    spot = load_spot(written(tmp_path / "spot.json", [2, 1, 1, 2, 0]))
    assert spot.starts(2) == [0, 3]
    seed = next(seed for seed in range(50) if len(spot.faults(3, seed)) == 3)  # one that begins at tick 0
    first, second, third = spot.faults(3, seed)
    assert (first.node, first.kind, first.at_ns, first.for_ns) == ("node-1", FaultKind.KILL_NODE, 4 * 10**9, None)
    assert (second.node, second.kind, second.at_ns) == ("node-2", FaultKind.REBOOT_NODE, 10**9)
    assert second.for_ns == 2 * 10**9
    assert (third.node, third.kind, third.at_ns) == ("node-2", FaultKind.KILL_NODE, 4 * 10**9)


def test_a_run_on_spot_machines_takes_longer_and_costs_less(sleepers, tmp_path):
    spot = written(tmp_path / "spot.json", [2, 2, 0, 0, 0, 0, 2, 2, 0, 0, 2, 2] * 3)
    asked: dict[str, Any] = {"nodes": [3], "cpus": [1], "seeds": 4, "jobs": 1, "price": 1.0, "spot_price": 0.1}
    calm, hurt = whatif.predict(sleepers, faults=["", spot], **asked).rows
    assert not hurt.lacks
    assert hurt.makespan_s > calm.makespan_s
    assert hurt.remade_s > 0
    assert hurt.cost == pytest.approx((1.0 + 2 * 0.1) * hurt.makespan_s / 3600)
    assert calm.cost == pytest.approx(3 * calm.makespan_s / 3600)


@pytest.mark.slow
def test_the_chance_to_meet_a_deadline_is_said(sleepers, tmp_path):
    spot = written(tmp_path / "spot.json", [2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0] * 20)
    found = whatif.predict(sleepers, nodes=[3], cpus=[1], faults=["", spot], seeds=10, jobs=1)
    lines = [line for line in verdicts_of(found, "6s") if "of 10 seeds end within 6s" in line]
    assert len(lines) == 1
    assert found.chance(found.rows[0], "6s") == 1.0
    assert 0 < found.chance(found.rows[1], "6s") < 1


def test_machines_that_could_never_be_had_are_refused(sleepers, tmp_path):
    spot = written(tmp_path / "spot.json", [1, 0, 2])
    [row] = whatif.predict(sleepers, nodes=[5], cpus=[1], faults=[spot], seeds=1, jobs=1).rows
    assert (
        "the trace never has 4 spot machines at the same time, but at most 2. Give the cluster at most 3 nodes"
        in row.lacks
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", "metadata.gap_seconds=None must be a number of seconds, above 0"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "metadata.gap_seconds=0 must be"),
        ('{"metadata": {"gap_seconds": 1}, "data": []}', "data must be a list"),
        ('{"metadata": {"gap_seconds": 1}, "data": [1, -1]}', r"data\[1\]=-1 must be a whole number of machines"),
    ],
)
def test_what_is_no_such_file_is_refused_in_one_line(sleepers, tmp_path, text, words):
    path = tmp_path / "spot.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        whatif.predict(sleepers, nodes=[2], faults=[path])
    with pytest.raises(ValueError, match="cannot be read"):
        whatif.predict(sleepers, nodes=[2], faults=[tmp_path / "missing.json"])


@pytest.mark.slow
def test_prices_by_time_and_the_cheapest_of_either_kind(sleepers, tmp_path):
    path = tmp_path / "priced.json"
    content = {"metadata": {"gap_seconds": 1}, "data": [2] * 40, "prices": [0.5] * 40}
    path.write_text(json.dumps(content))
    found = whatif.predict(sleepers, nodes=[3], cpus=[1], faults=["", str(path)], seeds=3, jobs=1, price=1.0)
    on_demand, on_spot = found.rows
    assert on_spot.cost == pytest.approx((1.0 + 2 * 0.5) * on_spot.makespan_s / 3600)
    assert on_demand.cost == pytest.approx(3.0 * on_demand.makespan_s / 3600)
    assert found.likely("8s", 0.9, on_spot=True) == on_spot
    assert found.likely("8s", 0.9, on_spot=False) == on_demand
    assert found.likely("2s", 0.9, on_spot=False) is None
    middle = found.probability(on_demand, on_demand.makespan_s)
    assert middle == pytest.approx(0.5, abs=0.1)  # half of the model's errors lie on either side
    line = next(line for line in verdicts_of(found, "8s") if line.startswith("Cheapest within 8s with a probability"))
    assert "90%" in line
    assert "on spot machines, " in line
    assert "on demand, " in line
    dear = whatif.predict(sleepers, nodes=[3], cpus=[1], faults=[str(path)], seeds=1, jobs=1, price=1.0, spot_price=0.9)
    assert dear.rows[0].cost == pytest.approx((1.0 + 2 * 0.9) * dear.rows[0].makespan_s / 3600)  # what is said counts
