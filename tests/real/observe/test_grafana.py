"""The dashboard for Grafana asks for metrics that there are, with labels that they have, and for each of ours."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import dualray

FILE = Path(__file__).parents[3] / "docs" / "grafana" / "dualray.json"


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(FILE.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """The names of samples that a node serves, with their labels."""
    context = dualray.init(num_cpus=1, metrics_port=0)
    try:
        with urllib.request.urlopen(f"http://{context.metrics_address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        dualray.shutdown()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        found.setdefault(name, set())
        for sample in family.samples:
            found[name] |= set(sample.labels)
    return {name: labels for name, labels in found.items() if name.startswith("dualray_")}


def test_it_asks_for_metrics_that_there_are_and_for_every_one(served: dict[str, set[str]]) -> None:
    asked = {name for expression in expressions() for name in re.findall(r"\bdualray_\w+", expression)}
    assert asked <= served.keys(), asked - served.keys()
    assert served.keys() <= asked, served.keys() - asked


def test_it_groups_by_labels_that_its_metrics_have(served: dict[str, set[str]]) -> None:
    known_late = {"dualray_connections_dropped_total", "dualray_cluster_actors"}  # no series until there is something
    for expression in expressions():
        for label, inner in re.findall(r"sum by \((\w+)\) \((.*)", expression):
            for name in re.findall(r"\bdualray_\w+", inner):
                assert label in served[name] or name in known_late or not served[name], (label, name)


def test_each_panel_has_a_place_of_its_own() -> None:
    places = [
        (panel["gridPos"]["x"] + across, panel["gridPos"]["y"] + down)
        for panel in panels()
        for across in range(panel["gridPos"]["w"])
        for down in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(across for across, _ in places) < 24
    numbers = [panel["id"] for panel in json.loads(FILE.read_text())["panels"]]
    assert len(numbers) == len(set(numbers))
