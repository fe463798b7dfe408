"""Published results: each scenario meets its bounds, and docs/published.md says what comes out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dualray.testing.expectations import judge
from dualray.testing.run import load_scenario, run_scenario
from scenarios import published

ROOT = Path(__file__).parents[2]
SLOW = {"reconstruction"}


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@cache
def run(name: str) -> tuple[Any, Any]:
    scenario = load_scenario(published.DIRECTORY / f"published_{name}.yaml")
    return scenario, run_scenario(scenario, directory=published.DIRECTORY)


def slow_ones_marked(items, names_of, ids):
    return [
        pytest.param(item, id=ids(item), marks=[pytest.mark.slow] if SLOW & set(names_of(item)) else [])
        for item in items
    ]


def test_every_file_is_in_the_table():
    assert {path.stem for path in published.DIRECTORY.glob("published_*.yaml")} == {
        f"published_{name}" for name in published.SCENARIOS
    }


@pytest.mark.parametrize("name", slow_ones_marked(published.SCENARIOS, lambda name: [name], str))
def test_a_published_result_is_what_its_file_expects(name):
    scenario, outcome = run(name)
    assert [verdict for verdict in judge(scenario, outcome) if not verdict.holds] == []


@pytest.mark.parametrize(
    "row", slow_ones_marked(published.ROWS, lambda row: [row.scenario, row.over], lambda row: row.what)
)
def test_the_page_says_what_comes_out(row):
    figures = {name: run(name)[1].result for name in (row.scenario, row.over) if name is not None}
    page = (ROOT / "docs" / "published.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {row.what} |"))
    _, _, unit, words, simulated, _, how, _ = (cell.strip() for cell in line.split("|"))
    assert (unit, words, how) == (row.unit, row.words, row.how)
    assert float(simulated.replace(",", "")) == pytest.approx(row.simulated(figures), rel=0.02)


def test_the_fit_of_pong_gives_the_parameters_of_its_four_files():
    scale_s, most_s, add_s = published.fit_pong()
    for batch in (1, 10, 60, 300):
        text = (published.DIRECTORY / f"published_pong_{batch}.yaml").read_text()
        assert f"rollout: exponential({scale_s:.3f}s, {most_s:.3f}s)" in text
        assert f"add_seconds: {add_s:.3f}" in text


def test_both_rows_of_a3c_have_the_same_parameters():
    first, second = ((published.DIRECTORY / f"published_a3c_{workers}.yaml").read_text() for workers in (8, 16))
    for name in ("gradients", "gradients_to_train", "rollout", "apply_seconds"):
        assert re.search(rf"{name}: (.*)", first)[1] == re.search(rf"{name}: (.*)", second)[1]  # type: ignore[index]


def test_the_driver_of_a3c_is_saturated_where_the_page_says():
    page = (ROOT / "docs" / "published.md").read_text()
    workers = int(re.search(r"\*\*(\d+) workers\*\*", page)[1])  # type: ignore[index]
    assert published.saturation(published.with_workers, (workers - 1, workers)) == workers
