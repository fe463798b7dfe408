"""A scenario and a scaling curve for each application: the files, what is kept of them, and what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualray.testing.expectations import judge
from dualray.testing.run import run_scenario
from scenarios.applications import (
    APPLICATIONS,
    DIRECTORY,
    PICTURE,
    draw,
    placed,
    read_results,
    scenario_of,
    seconds_of,
    texts_of,
    write_inputs,
)

ROOT = Path(__file__).parents[2]


def test_every_application_has_a_file():
    files = {path.stem for path in DIRECTORY.glob("application_*.yaml")}
    assert files == {f"application_{name}" for name in APPLICATIONS}
    folders = {path.name for path in (ROOT / "examples").iterdir() if (path / "README.md").exists()}
    assert folders - set(APPLICATIONS) == {"core", "linear_regression"}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_file_is_the_largest_size(name):
    application = APPLICATIONS[name]
    found, expected = scenario_of(application), scenario_of(application, application.sizes[-1])
    assert found.workload == expected.workload
    assert [group.model_dump() for group in found.cluster.groups()] == [
        group.model_dump() for group in expected.cluster.groups()
    ]


def test_the_pages_say_what_came_out():
    for path, name, text in texts_of(read_results()):
        page = path.read_text()
        assert placed(page, name, text) == page, f"{path}: python -m scenarios.applications --write"


def test_the_picture_is_that_of_what_is_kept(tmp_path):
    draw(read_results(), tmp_path / "again.svg")
    drawn, kept = (path.read_text().count("<path d=") for path in (tmp_path / "again.svg", PICTURE))
    assert drawn == kept > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_run_takes_what_is_kept(name, tmp_path, monkeypatch):
    application = APPLICATIONS[name]
    kept = read_results()[name]
    first = application.sizes[0]
    assert seconds_of(scenario_of(application, first)) == pytest.approx(kept[str(first.workers)], rel=1e-3)
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    scenario = scenario_of(application)
    outcome = run_scenario(scenario, directory=DIRECTORY)
    assert [verdict for verdict in judge(scenario, outcome) if not verdict.holds] == []
    assert outcome.makespan_ns / 1e9 == pytest.approx(kept[str(application.sizes[-1].workers)], rel=1e-3)
